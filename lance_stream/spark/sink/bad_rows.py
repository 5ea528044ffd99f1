"""Bad rows of a batch: what its rows are checked for, and what becomes of those that fail.

Without conditions (`expect`) and without `bad_rows="quarantine"` none of this is used: rows are
then only checked as they are cast. Otherwise whatever writes or splits the rows sorts them with
`write.row_checks`: the driver, or Spark's tasks. The driver refuses the batch, or sets its bad rows
aside before it commits the others (`quarantine.table`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lance_stream.quarantine.table import (
    delete_other_attempts,
    mark_unnamed,
    may_have_attempts,
    open_quarantine,
    set_aside,
)
from lance_stream.snapshot.opening import open_table
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.sink.arguments import SinkArguments
from lance_stream.spark.spark_types import stored_schema
from lance_stream.table.ledger import read_entry
from lance_stream.write.micro_batches import MicroBatch
from lance_stream.write.row_checks import BadRows, RowRules
from lance_stream.write.row_digests import NO_ROWS, RowsDigest


@dataclass
class Sorting:
    """Sorts the rows of one batch, and sets the bad ones aside.

    Args:
        arguments: The sink's arguments, with column names as in the batch.
        df: The batch, with all columns that the sink reads.
        micro_batch: Its identity.
        deletes: The column that marks rows that delete; None if there is none.

    Attributes:
        attempt: What the quarantine knows the bad rows by; empty if none were set aside.
        counts: How many rows were set aside, by reason.
        digest: The digest of all rows of the batch; known once they are sorted.
    """

    arguments: SinkArguments
    df: DataFrame
    micro_batch: MicroBatch
    deletes: str | None = None
    attempt: str = ""
    counts: Mapping[str, int] | None = None
    digest: RowsDigest = NO_ROWS
    _may_have_others: bool = False

    def begin(self, target: TableVersion) -> None:
        """Look whether the quarantine has rows of an earlier attempt, before anything is written.

        Args:
            target: The table.

        Raises:
            InvalidInputError: There is another table.
        """
        if self.arguments.sets_aside:
            own, batch = self.arguments, self.micro_batch
            table = open_quarantine(own.quarantine, own.storage_options, own.uri)
            mark_unnamed(table, target, batch.app_id)
            self._may_have_others = may_have_attempts(table, batch.app_id, batch.batch_id)

    def rules(self, table: TableVersion) -> RowRules:
        """Return the rules for the rows.

        Args:
            table: The version that they are written for.

        Raises:
            InvalidInputError: A condition is invalid, or the columns do not fit the table.
        """
        own = self.arguments
        stored = set(self.df.columns) - {*own.not_stored(self.df.columns), self.deletes}
        columns = pa.schema([each for each in table.arrow_schema if each.name in stored])
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
        named = {check.column_of(each) for check in own.expect for each in check.columns}
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
        self.attempt, self.counts = "", None
        if not bad:
            return
        own, batch = self.arguments, self.micro_batch
        if not own.sets_aside:
            raise bad.error(own.uri, num_rows)
        self.counts = bad.counts()
        self.attempt = set_aside(
            own.quarantine,
            own.storage_options,
            bad.rows,
            batch.app_id,
            batch.batch_id,
            self._recorded(),
            own.uri,
        )

    def _recorded(self) -> dict[str, Any]:
        own = self.arguments
        return {
            "mode": own.mode,
            "on": list(own.on),
            "sequence_by": own.sequence_by,
            "except_columns": list(own.except_columns),
            "tombstones": None if own.tombstones is None else own.tombstones.total_seconds(),
            "skip_unchanged": own.skip_unchanged,
            "expect": {
                each.name: {"condition": each.condition, "columns": dict(each.spelled)}
                for each in own.expect
            },
        }

    def identity(self, digest: RowsDigest) -> MicroBatch:
        """Return the batch's identity: all its rows, and those that were set aside."""
        self.digest = digest
        return replace(self.micro_batch, digest=digest, quarantined=self.attempt)

    def end(self) -> None:
        """Delete the rows of other attempts; the batch is committed."""
        if self._may_have_others:
            own, batch = self.arguments, self.micro_batch
            table = open_quarantine(own.quarantine, own.storage_options)
            if table is not None:
                delete_other_attempts(table, batch.app_id, batch.batch_id, self.attempt)


def keep_committed_attempt(arguments: SinkArguments, micro_batch: MicroBatch) -> None:
    """Delete bad rows of a committed batch that belong to another attempt than the committed one.

    Args:
        arguments: The sink's arguments.
        micro_batch: The batch; the table has it, perhaps under another app id.
    """
    if not arguments.sets_aside:
        return
    app_id, batch_id = micro_batch.app_id, micro_batch.batch_id
    table = open_quarantine(arguments.quarantine, arguments.storage_options)
    if table is None or not may_have_attempts(table, app_id, batch_id):
        return
    target = open_table(arguments.uri, storage_options=arguments.storage_options)
    entry = read_entry(target.manifest.config, app_id)
    if entry is None or entry.batch_id <= batch_id:
        is_own = entry is not None and entry.batch_id == batch_id
        attempt = entry.quarantined if entry is not None and is_own else ""
        delete_other_attempts(table, app_id, batch_id, attempt)


def sorting_of(
    arguments: SinkArguments,
    df: DataFrame,
    micro_batch: MicroBatch,
    target: TableVersion,
    deletes: str | None = None,
) -> Sorting | None:
    """Return what sorts a batch's rows; None if they are not checked one by one.

    Args:
        arguments: The sink's arguments.
        df: The batch.
        micro_batch: Its identity.
        target: The table.
        deletes: The column that marks rows that delete; None if there is none.

    Raises:
        InvalidInputError: The quarantine is another table.
    """
    if not arguments.expect and not arguments.sets_aside:
        return None
    sorting = Sorting(arguments, df, micro_batch, deletes)
    sorting.begin(target)
    return sorting
