"""Bad rows of a batch: how rows are checked, and what happens to those that fail.

Without conditions (`expect`) and without `bad_rows="quarantine"`, rows are only checked by their
casts. Otherwise the driver or Spark's tasks sort the rows with `write.row_checks` while they write
them. The driver then refuses the batch, or stages its bad rows for the quarantine before it commits
the others (`quarantine.quarantine_writer`).
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import StructType

from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import RowsDigest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.session.spark_types import stored_schema, to_nullable
from lance_stream.spark.sink.batch import Batch
from lance_stream.spark.sink.reports import SinkCommit
from lance_stream.spark.writer.bad_row_rules import (
    check_rows,
    publish_bad_rows,
    quarantine_batch,
    recorded_rules,
    row_rules,
)
from lance_stream.write.row_checks import BadRows, RowRules

if TYPE_CHECKING:
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch


@dataclass
class RowSorter:
    """Refuses a batch because of its bad rows, or quarantines them; created by `row_sorter`.

    Attributes:
        batch: The batch.
        table: The table, at any version.
        rules: The rules for its rows; None if rows are not checked individually.
        quarantine: What quarantines the bad rows; None if they are refused.
        pending: The batch's identity, and what is known of its rows.
    """

    batch: Batch
    table: TableVersion
    rules: RowRules | None
    quarantine: "QuarantineBatch | None"
    pending: PendingBatch

    def refuse_or_stage(self, bad: BadRows, digest: RowsDigest) -> None:
        """Refuse the batch because of its rows, or stage bad ones; record the digest of its rows.

        Args:
            bad: Its bad rows.
            digest: The digest of all its rows.

        Raises:
            InvalidInputError: It is refused.
        """
        check_rows(self.batch.arguments, bad, digest.num_rows)
        file = ""
        if self.quarantine is not None:
            self.quarantine.stage(bad, recorded_rules(self.batch.arguments), self.table)
            file = self.quarantine.file
        self.pending = self.pending.with_rows(digest, file)

    def publish(self, commit: SinkCommit) -> SinkCommit:
        """Add the staged rows to the quarantine; return the outcome of the batch with them.

        Args:
            commit: The outcome of the batch, which this driver or another has committed.
        """
        if self.quarantine is None:
            return commit
        if commit.skipped:  # another driver's bad rows count
            publish_bad_rows(self.batch.arguments, self.pending.batch, self.table)
            return commit
        self.quarantine.publish(self.table)
        counts = dict(self.quarantine.counts)
        return replace(
            commit, rows_in=commit.rows_in + sum(counts.values()), rows_quarantined=counts
        )


def row_sorter(batch: Batch, table: TableVersion, deletes: str | None = None) -> RowSorter:
    """Return the sorter of a batch's rows, and publish what an earlier batch has staged.

    Args:
        batch: The batch.
        table: The version that its rows are written for.
        deletes: The column that marks rows that delete; None if there is none.

    Raises:
        InvalidInputError: The quarantine's location has another table, a condition is invalid, or
            the columns do not fit the table.
    """
    arguments, quarantine, rules = batch.arguments, None, None
    if arguments.quarantines:
        quarantine = quarantine_batch(arguments, batch.pending.batch)
        quarantine.begin(table)
    if arguments.quarantines or arguments.expect:
        rules = _rules(batch, table, deletes)
    return RowSorter(batch, table, rules, quarantine, batch.pending)


def _rules(batch: Batch, table: TableVersion, deletes: str | None) -> RowRules:
    arguments, columns = batch.arguments, batch.df.columns
    stored = set(columns) - {*arguments.not_stored(columns), deletes}
    of_table = pa.schema([field for field in table.arrow_schema if field.name in stored])
    rules = row_rules(arguments, of_table, deletes)
    read = stored | rules.checked_columns
    columns_read = [field for field in to_nullable(batch.df.schema) if field.name in read]
    rules.check_batch(stored_schema(StructType(columns_read)))
    return rules
