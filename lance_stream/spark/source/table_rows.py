"""Reads the rows of a table's work units in the form that Spark expects."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit
from lance_stream.spark.session.spark_types import to_spark


@dataclass(frozen=True)
class TableRows:
    """Reads rows of a table; see `task_input.Reading`.

    Attributes:
        carried: The schema of the batches that Spark expects.
    """

    carried: pa.Schema

    def read(self, units: tuple[WorkUnit, ...]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of units."""
        return (to_spark(batch, self.carried) for batch in read_units(units))
