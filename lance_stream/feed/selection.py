"""Filters the rows of the feed by a condition, and selects columns by name."""

from collections.abc import Sequence

import pyarrow as pa

from lance_stream.expressions.predicates import (
    Expression,
    evaluate_predicate,
    parse_predicate,
)
from lance_stream.feed.change_units import check_names, feed_schema
from lance_stream.feed.columns_of_versions import FeedColumns, columns_of_query
from lance_stream.feed.value_conversion import convert
from lance_stream.schema.system_columns import CHANGE_COLUMNS
from lance_stream.schema.types.extension_types import batch_with_extensions, with_extensions
from lance_stream.snapshot.table_version import TableVersion


class FeedSelection:
    """Selected rows and columns of the feed; the condition may use change columns.

    Args:
        table: The version whose column names are used.
        columns: Names or paths of the table's columns, and names of change columns; None for all.
            If it contains no change column, all change columns are selected.
        filter: The condition, in SQL; None for all rows.

    Attributes:
        columns: The columns of the table to read: the selected ones, and those of the condition.
        needed: Their names; None for all.

    Raises:
        InvalidInputError: The condition is invalid.
        NotFoundError: A column does not exist.
    """

    def __init__(
        self, table: TableVersion, columns: Sequence[str] | None, filter: str | None
    ) -> None:
        self._condition: Expression | None = None
        change_names = [
            name
            for name in columns or ()
            if name in CHANGE_COLUMNS.names and name not in table.schema.names
        ]
        if columns is not None:
            columns = [name for name in columns if name not in change_names]
        self.needed = None if columns is None else list(columns)
        if filter is not None:
            schema = feed_schema(table.arrow_schema)
            self._condition = parse_predicate(filter, schema)
            if columns is not None:
                self.needed = columns_of_query(table, columns, self._condition)
        self.columns = FeedColumns(table, self.needed)
        check_names(self.columns.data_schema)
        self._selected, self._sources = self.columns.select(columns)
        self._is_all = self._condition is None and columns is None
        self._change_indices = [
            CHANGE_COLUMNS.get_field_index(name) for name in change_names or CHANGE_COLUMNS.names
        ]
        change_fields = [CHANGE_COLUMNS.field(index) for index in self._change_indices]
        self._feed_schema = pa.schema([*self._selected, *change_fields])

    @property
    def schema(self) -> pa.Schema:
        """The selected columns of the table, then the selected change columns."""
        return with_extensions(self._feed_schema)

    def rows_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the selected rows and columns of a batch of changes."""
        if self._is_all:
            return batch_with_extensions(batch)
        if self._condition is not None:
            batch = batch.filter(evaluate_predicate(self._condition, batch))
        columns = [
            convert(batch.column(source.index), source, field.type)
            for source, field in zip(self._sources, self._selected, strict=True)
        ]
        first = len(self.columns.data_schema)
        change_columns = [batch.column(first + index) for index in self._change_indices]
        return batch_with_extensions(
            pa.RecordBatch.from_arrays([*columns, *change_columns], schema=self._feed_schema)
        )
