"""Bad rows of a batch: what its rows are checked for, and what becomes of those that fail.

Without conditions (`expect`) and without `bad_rows="quarantine"` none of this is used: rows are
then only checked as they are cast. Otherwise whatever writes or splits the rows sorts them with
`write.row_checks`: the driver, or Spark's tasks. The driver refuses the batch, or sets its bad rows
aside before it commits the others (`quarantine.quarantine_writer`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import NO_ROWS, RowsDigest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.session.spark_types import stored_schema
from lance_stream.spark.writer.bad_row_rules import quarantine_batch, recorded_rules
from lance_stream.write.row_checks import BadRows, RowRules

if TYPE_CHECKING:
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch


@dataclass
class Sorting:
    """Sorts the rows of one batch, and sets the bad ones aside.

    Args:
        arguments: The sink's arguments, with column names as in the batch.
        df: The batch, with all columns that the sink reads.
        pending: Its identity, and what is known of its rows.
        deletes: The column that marks rows that delete; None if there is none.

    Attributes:
        digest: The digest of all rows of the batch; known once they are sorted.
    """

    arguments: WriterArguments
    df: DataFrame
    pending: PendingBatch
    deletes: str | None = None
    digest: RowsDigest = NO_ROWS
    _aside: "QuarantineBatch | None" = None

    @property
    def attempt(self) -> str:
        """What the quarantine knows the bad rows by; empty if none were set aside."""
        return "" if self._aside is None else self._aside.attempt

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows were set aside, by reason."""
        return {} if self._aside is None else self._aside.counts

    def begin(self, target: TableVersion) -> None:
        """Look whether the quarantine has rows of an earlier attempt, before anything is written.

        Args:
            target: The table.

        Raises:
            InvalidInputError: There is another table.
        """
        if self.arguments.sets_aside:
            self._aside = quarantine_batch(self.arguments, self.pending.batch)
            self._aside.begin(target)

    def rules(self, table: TableVersion) -> RowRules:
        """Return the rules for the rows.

        Args:
            table: The version that they are written for.

        Raises:
            InvalidInputError: A condition is invalid, or the columns do not fit the table.
        """
        own = self.arguments
        stored = set(self.df.columns) - {*own.not_stored(self.df.columns), self.deletes}
        columns = pa.schema([field for field in table.arrow_schema if field.name in stored])
        rules = RowRules(
            stored=columns,
            checks=own.expect,
            keys=own.on,
            sequence_by=own.sequence_by,
            deletes=self.deletes,
            casts=not own.is_by_key,
            keeps_rows=own.sets_aside,
            hidden=() if self.deletes is None else (self.deletes,),
        )
        named = {check.column_of(column) for check in own.expect for column in check.columns}
        needed = [each for each in self.df.schema.toNullable() if each.name in {*named, *stored}]
        rules.check_batch(stored_schema(StructType(needed)))
        return rules

    def settle(self, bad: BadRows, num_rows: int) -> None:
        """Refuse the batch if it has bad rows, or set them aside.

        Args:
            bad: Its bad rows.
            num_rows: How many rows it has.

        Raises:
            InvalidInputError: It is refused.
        """
        if self._aside is not None:
            self._aside.keep(bad, recorded_rules(self.arguments))
        elif bad:
            raise bad.error(self.arguments.uri, num_rows)

    def with_rows(self, digest: RowsDigest) -> PendingBatch:
        """Return the batch with the digests of all its rows, and of those that were set aside."""
        self.digest = digest
        return self.pending.with_rows(digest, self.attempt)

    def end(self) -> None:
        """Delete the rows of other attempts; the batch is committed."""
        if self._aside is not None:
            self._aside.end()


def keep_committed_attempt(arguments: WriterArguments, micro_batch: MicroBatch) -> None:
    """Delete bad rows of a committed batch that belong to another attempt than the committed one.

    Args:
        arguments: The sink's arguments.
        micro_batch: The batch; the table has it, perhaps under another app id.
    """
    if arguments.sets_aside:
        quarantine_batch(arguments, micro_batch).keep_committed()


def sorting_of(
    arguments: WriterArguments,
    df: DataFrame,
    pending: PendingBatch,
    target: TableVersion,
    deletes: str | None = None,
) -> Sorting | None:
    """Return what sorts a batch's rows; None if they are not checked one by one.

    Args:
        arguments: The sink's arguments.
        df: The batch.
        pending: Its identity, and what is known of its rows.
        target: The table.
        deletes: The column that marks rows that delete; None if there is none.

    Raises:
        InvalidInputError: The quarantine is another table.
    """
    if not arguments.expect and not arguments.sets_aside:
        return None
    sorting = Sorting(arguments, df, pending, deletes)
    sorting.begin(target)
    return sorting
