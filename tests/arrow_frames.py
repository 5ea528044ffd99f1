"""DataFrames of Arrow tables, on every PySpark."""

from typing import Any

import pyarrow as pa

from lance_stream.spark.session.spark_types import carrier_schema, spark_schema
from lance_stream.spark.versions import HAS_ARROW_FRAMES


def frame_of(spark: Any, rows: pa.Table) -> Any:
    """Return the DataFrame of a table's rows."""
    if HAS_ARROW_FRAMES:
        return spark.createDataFrame(rows)
    return spark.createDataFrame(rows.to_pylist(), spark_schema(carrier_schema(rows.schema)))
