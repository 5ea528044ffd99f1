"""Sends the rows of a stream's small batch to Spark along with their plan.

Spark asks its own wrapper of simple stream readers for the rows of the batch that it has just
planned, and keeps them as a block that tasks read without a Python worker. It recognizes the
wrapper by its class. So a reader that holds rows has a class that is also a wrapper, until Spark
has asked for them. If the wrapper is missing (it is not public), or if the block is lost, tasks
read the rows.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import datasource_internal

from lance_stream.spark.portions import Portion
from lance_stream.spark.rows_ahead import rows_of

_WRAPPER: Final = getattr(datasource_internal, "_SimpleStreamReaderWrapper", None)
"""Spark's own class; None in a future Spark."""

MOST_BYTES_IN_A_BATCH: Final = 4 << 20
"""Arrow bytes of rows that are sent; they are kept in the memory of Spark's driver."""


class SendsRows:
    """A stream reader that may hold the rows of the batch that it planned last."""

    _kind: type["SendsRows"] | None = None
    _rows: Sequence[pa.RecordBatch] = ()

    def hold_rows(self, portions: Sequence[Portion[Any]]) -> None:
        """Read the rows of a batch, if they are few, and hold them until Spark asks for them."""
        rows = rows_of(portions, MOST_BYTES_IN_A_BATCH) if _WRAPPER is not None else None
        if rows is not None:
            kind: Any = type(self)
            self._rows, self._kind = rows, kind
            self.__class__ = _holding(kind)

    def let_go(self) -> Sequence[pa.RecordBatch]:
        """Return the rows that are held, if any, and hold none."""
        rows, self._rows = self._rows, ()
        if self._kind is not None:
            self.__class__, self._kind = self._kind, None
        return rows


@cache
def _holding(kind: Any) -> Any:
    """Return the class of a reader that holds rows."""

    class Holding(kind, _WRAPPER):  # type: ignore[valid-type,misc]  # made at run time
        def getCache(self, _start: Any, _end: Any) -> Iterator[pa.RecordBatch]:  # noqa: N802  # Spark's name
            return iter(self.let_go())

    return Holding
