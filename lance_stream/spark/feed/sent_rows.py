"""Sends the rows of a stream's small batch to Spark along with their plan.

Spark requests the rows of the batch that it has just planned from its wrapper of simple stream
readers, and keeps them as a block that tasks read without a Python worker. It recognizes the
wrapper by its class. A reader that holds rows therefore has a subclass of the wrapper as its class
until Spark has requested the rows. If the wrapper is missing (it is not public), or the block is
lost, tasks read the rows.

Spark copies such rows, and its copy of an array reads every number in it, also where there is none:
a null among numbers, booleans, dates or times ends the query with "Value at index is null" (Spark
4.1 to 4.3, `ColumnarArray.copy`). Tasks read rows with such a null.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource_internal

from lance_stream.spark.jobs.eager_rows import rows_of
from lance_stream.spark.jobs.task_input import TaskInput

_WRAPPER: Final = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
"""Spark's own class; None in a future Spark."""

MOST_BYTES_IN_A_BATCH: Final = 4 << 20
"""Arrow bytes of rows that are sent; they are kept in the memory of Spark's driver."""


class SendsRows:
    """A stream reader that may hold the rows of the batch that it planned last."""

    _kind: type["SendsRows"] | None = None
    _rows: Sequence[pa.RecordBatch] = ()

    def hold_rows(self, inputs: Sequence[TaskInput[Any]]) -> None:
        """Read the rows of a batch, if they are few, and hold them until Spark asks for them."""
        rows = rows_of(inputs, MOST_BYTES_IN_A_BATCH) if _WRAPPER is not None else None
        columns = (column for batch in rows or () for column in batch.columns)
        if rows is not None and not any(map(has_null_items, columns)):
            kind: Any = type(self)
            self._rows, self._kind = rows, kind
            self.__class__ = _holding(kind)

    def let_go(self) -> Sequence[pa.RecordBatch]:
        """Return the rows that are held, if any, and hold none."""
        rows, self._rows = self._rows, ()
        if self._kind is not None:
            self.__class__, self._kind = self._kind, None
        return rows


def has_null_items(array: pa.Array) -> bool:
    """Return whether a list or map, at any depth, has a null where Spark's copy expects a number.

    Nulls behind a null struct or map count, too.
    """
    if pa.types.is_struct(array.type):
        return any(has_null_items(array.field(at)) for at in range(array.type.num_fields))
    if pa.types.is_map(array.type):
        return any(_is_null_item(items) for items in (array.keys, array.items))
    return pa.types.is_list(array.type) and _is_null_item(array.flatten())


def _is_null_item(items: pa.Array) -> bool:
    has_nulls = pa.types.is_primitive(items.type) and items.null_count > 0
    return has_nulls or has_null_items(items)


@cache
def _holding(kind: Any) -> Any:
    """Return the class of a reader that holds rows."""

    class Holding(kind, _WRAPPER):  # type: ignore[valid-type,misc]  # made at run time
        def getCache(self, _start: Any, _end: Any) -> Iterator[pa.RecordBatch]:  # noqa: N802  # Spark's name
            return iter(self.let_go())

    return Holding
