"""Bad rows of a batch: how rows are checked, and what happens to those that fail.

Without conditions (`expect`) and without `bad_rows="quarantine"`, rows are only checked by their
casts, and none of this is used. Otherwise the driver or Spark's tasks sort the rows with
`write.row_checks` while they write them. The driver then refuses the batch, or stages its bad rows
for the quarantine before it commits the others (`quarantine.quarantine_writer`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import NO_ROWS, RowsDigest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.writer.bad_row_rules import quarantine_batch, recorded_rules
from lance_stream.write.row_checks import BadRows, RowRules

if TYPE_CHECKING:
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch


@dataclass
class RowSorter:
    """Sorts the rows of one batch into good and bad ones, and quarantines the bad ones.

    Args:
        arguments: The sink's arguments, with column names as in the batch.
        df: The batch, with all columns that the sink reads.
        pending: Its identity, and what is known of its rows.
        target: The table, at any version.
        deletes: The column that marks rows that delete; None if there is none.

    Attributes:
        digest: The digest of all rows of the batch; known once they are sorted.
    """

    arguments: WriterArguments
    df: DataFrame
    pending: PendingBatch
    target: TableVersion
    deletes: str | None = None
    digest: RowsDigest = NO_ROWS
    _quarantine: "QuarantineBatch | None" = None

    @property
    def file(self) -> str:
        """The name of the file with the bad rows; empty if there are none."""
        return "" if self._quarantine is None else self._quarantine.file

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of quarantined rows, by reason."""
        return {} if self._quarantine is None else self._quarantine.counts

    def begin(self) -> None:
        """Publish what an earlier batch has staged, before anything is written.

        Raises:
            InvalidInputError: The quarantine's location has another table.
        """
        if self.arguments.quarantines:
            self._quarantine = quarantine_batch(self.arguments, self.pending.batch)
            self._quarantine.begin(self.target)

    def rules(self, table: TableVersion) -> RowRules:
        """Return the rules for the rows.

        Args:
            table: The version that they are written for.

        Raises:
            InvalidInputError: A condition is invalid, or the columns do not fit the table.
        """
        arguments = self.arguments
        stored = set(self.df.columns) - {*arguments.not_stored(self.df.columns), self.deletes}
        columns = pa.schema([field for field in table.arrow_schema if field.name in stored])
        rules = RowRules(
            stored=columns,
            checks=arguments.expect,
            keys=arguments.on,
            sequence_by=arguments.sequence_by,
            deletes=self.deletes,
            casts=not arguments.is_by_key,
            keeps_rows=arguments.quarantines,
            hidden=() if self.deletes is None else (self.deletes,),
        )
        named = {check.column_of(column) for check in arguments.expect for column in check.columns}
        needed = [field for field in to_nullable(self.df.schema) if field.name in {*named, *stored}]
        rules.check_batch(stored_schema(StructType(needed)))
        return rules

    def refuse_or_quarantine(self, bad: BadRows, num_rows: int) -> None:
        """Refuse the batch if it has bad rows, or stage them.

        Args:
            bad: Its bad rows.
            num_rows: How many rows it has.

        Raises:
            InvalidInputError: It is refused.
        """
        if self._quarantine is not None:
            self._quarantine.stage(bad, recorded_rules(self.arguments), self.target)
        elif bad:
            raise bad.error(self.arguments.uri, num_rows)

    def with_rows(self, digest: RowsDigest) -> PendingBatch:
        """Return the batch with the digest of all its rows, and the file of the bad ones."""
        self.digest = digest
        return self.pending.with_rows(digest, self.file)

    def publish(self) -> None:
        """Add the bad rows to the quarantine; this driver has committed the batch."""
        if self._quarantine is not None:
            self._quarantine.publish(self.target)


def row_sorter(
    arguments: WriterArguments,
    df: DataFrame,
    pending: PendingBatch,
    target: TableVersion,
    deletes: str | None = None,
) -> RowSorter | None:
    """Return the sorter of a batch's rows; None if rows are not checked individually.

    Args:
        arguments: The sink's arguments.
        df: The batch.
        pending: Its identity, and what is known of its rows.
        target: The table, at any version.
        deletes: The column that marks rows that delete; None if there is none.

    Raises:
        InvalidInputError: The quarantine's location has another table.
    """
    if not arguments.expect and not arguments.quarantines:
        return None
    sorter = RowSorter(arguments, df, pending, target, deletes)
    sorter.begin()
    return sorter
