"""Reads the rows of the change feed's work units in the form that Spark expects."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_stream.expressions.predicates import evaluate_predicate, parse_expression
from lance_stream.feed.change_units import ChangeUnit, read_changes, without_change_columns
from lance_stream.spark.feed.batch_sizes import join_small
from lance_stream.spark.session.spark_types import to_spark


@dataclass(frozen=True)
class ChangeRows:
    """Reads row changes; see `task_input.Reading`.

    Attributes:
        carried: The schema of the batches that Spark expects.
        filter: A condition in SQL that the rows must meet; None for all rows.
        keeps_change_columns: Whether the rows include the change columns.
    """

    carried: pa.Schema
    filter: str | None
    keeps_change_columns: bool

    def read(self, units: tuple[ChangeUnit, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the row changes of units, with small batches joined."""
        return join_small(self._batches(units))

    def _batches(self, units: tuple[ChangeUnit, ...]) -> Iterator[pa.RecordBatch]:
        predicate = None if self.filter is None else parse_expression(self.filter)
        for batch in read_changes(units):
            rows = batch
            if predicate is not None:
                rows = batch.filter(evaluate_predicate(predicate, batch))
            if not self.keeps_change_columns:
                rows = without_change_columns(rows)
            if rows.num_rows:
                yield to_spark(rows, self.carried)
