"""Filters the rows of the feed by a condition, and selects columns by name."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from lance_stream.expressions.predicates import (
    Expression,
    evaluate_predicate,
    parse_predicate,
)
from lance_stream.feed.change_units import ChangeUnit, check_names, feed_schema, read_changes
from lance_stream.feed.columns_of_versions import (
    FeedColumns,
    columns_of_query,
    split_change_columns,
)
from lance_stream.feed.value_conversion import ValueSource, convert
from lance_stream.schema.types.extension_types import batch_with_extensions, with_extensions
from lance_stream.snapshot.table_version import TableVersion


@dataclass(frozen=True)
class SelectedRows:
    """Selects rows and columns of batches of changes; picklable, without a version of the table.

    Attributes:
        condition: The condition that rows must meet; None for all rows.
        feed_schema: The selected columns, as stored.
        sources: For each selected column of the table, its source in a batch; None for all columns.
        change_indices: The positions of the selected change columns in a batch.
    """

    condition: Expression | None
    feed_schema: pa.Schema
    sources: tuple[ValueSource, ...] | None
    change_indices: tuple[int, ...]

    @property
    def schema(self) -> pa.Schema:
        """The selected columns of the table, then the selected change columns."""
        return with_extensions(self.feed_schema)

    def read(self, units: Sequence[ChangeUnit]) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of work units, in order; a batch may be empty."""
        return map(self.rows_of, read_changes(units))

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows and columns of a batch of changes."""
        if self.condition is not None:
            batch = batch.filter(evaluate_predicate(self.condition, batch))
        if self.sources is None:
            return batch_with_extensions(batch)
        columns = [
            convert(batch.column(source.index), source, field.type)
            for source, field in zip(self.sources, self.feed_schema, strict=False)
        ]
        change_columns = [batch.column(index) for index in self.change_indices]
        return batch_with_extensions(
            pa.RecordBatch.from_arrays([*columns, *change_columns], schema=self.feed_schema)
        )


class FeedSelection:
    """Selected rows and columns of the feed; the condition may use change columns.

    Args:
        table: The version whose column names are used.
        columns: As in `split_change_columns`.
        filter: The condition, in SQL; None for all rows.

    Attributes:
        columns: The columns of the table to read: the selected ones, and those of the condition.
        needed: Their names; None for all.
        rows: Selects the rows and columns of a batch.

    Raises:
        InvalidInputError: The condition is invalid.
        NotFoundError: A column does not exist.
    """

    def __init__(
        self, table: TableVersion, columns: Sequence[str] | None, filter: str | None
    ) -> None:
        condition: Expression | None = None
        columns, names = split_change_columns(table, columns)
        self.needed = columns
        if filter is not None:
            schema = feed_schema(table.arrow_schema)
            condition = parse_predicate(filter, schema)
            if columns is not None:
                self.needed = columns_of_query(table, columns, condition)
        self.columns = FeedColumns(table, self.needed)
        check_names(self.columns.data_schema)
        selected, sources = self.columns.select(columns)
        self.rows = SelectedRows(
            condition,
            feed_schema(selected, names),
            None if columns is None else sources,
            tuple(map(self.columns.arrow_schema.get_field_index, names)),
        )
