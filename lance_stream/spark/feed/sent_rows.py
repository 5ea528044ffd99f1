"""Sends the rows of a stream's small batch to Spark together with its plan.

After planning a batch, Spark requests its rows from readers of class `_SimpleStreamReaderWrapper`,
and caches them as a block that tasks read without a Python worker. So a reader that has prefetched
rows changes its class to a subclass of the wrapper until Spark has requested the rows. If the
wrapper is missing (it is not public), or the block is lost, tasks read the rows.

Spark copies such rows, and its copy of an array reads every number in it, even nulls: a null among
numbers, booleans, dates or times fails the query with "Value at index is null" (Spark 4.1 to 4.3,
`ColumnarArray.copy`). So tasks read rows with such a null.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource_internal

from lance_stream.spark.jobs.eager_rows import rows_of
from lance_stream.spark.jobs.task_input import TaskInput

_WRAPPER: Final = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
"""Spark's class; None if a future Spark does not have it."""

MAX_SENT_BYTES: Final = 4 << 20
"""The maximum size of Arrow data to send; it stays in the memory of Spark's driver."""


class SendsRows:
    """A stream reader that can prefetch the rows of the batch that it planned last."""

    _kind: type["SendsRows"] | None = None
    _rows: Sequence[pa.RecordBatch] = ()

    def prefetch_rows(self, inputs: Sequence[TaskInput[Any]]) -> None:
        """Read the rows of a small batch, and keep them until Spark requests them."""
        rows = rows_of(inputs, MAX_SENT_BYTES) if _WRAPPER is not None else None
        columns = (column for batch in rows or () for column in batch.columns)
        if rows is not None and not any(map(has_null_items, columns)):
            kind: Any = type(self)
            self._rows, self._kind = rows, kind
            self.__class__ = _class_with_rows(kind)

    def take_rows(self) -> Sequence[pa.RecordBatch]:
        """Return the prefetched rows, if any, and drop them."""
        rows, self._rows = self._rows, ()
        if self._kind is not None:
            self.__class__, self._kind = self._kind, None
        return rows


def has_null_items(array: pa.Array) -> bool:
    """Return whether a list or map, at any depth, contains a null where Spark expects a number.

    Items of null structs and maps are included.
    """
    if pa.types.is_struct(array.type):
        return any(has_null_items(array.field(index)) for index in range(array.type.num_fields))
    if pa.types.is_map(array.type):
        return any(_is_null_item(items) for items in (array.keys, array.items))
    return pa.types.is_list(array.type) and _is_null_item(array.flatten())


def _is_null_item(items: pa.Array) -> bool:
    has_nulls = pa.types.is_primitive(items.type) and items.null_count > 0
    return has_nulls or has_null_items(items)


@cache
def _class_with_rows(kind: Any) -> Any:
    """Return the class of a reader with prefetched rows."""

    class WithRows(kind, _WRAPPER):  # type: ignore[valid-type,misc]  # made at run time
        def getCache(self, _start: Any, _end: Any) -> Iterator[pa.RecordBatch]:  # noqa: N802  # Spark's name
            return iter(self.take_rows())

    return WithRows
