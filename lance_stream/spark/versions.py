"""What not every version of PySpark has; the rest of this package asks here.

    since   what                                         without it
    4.0     Python data sources, `analyze` of functions  `register` is refused
    4.0     collations of strings                        all strings compare by their bytes
    4.0     DataFrames from Arrow tables                 tasks read all rows of `read_changes`
    4.1     `TimeType`                                   columns of times are refused
    4.1     stream writers that take Arrow batches       `writeStream.format("lance")` is refused
    4.2     `latestOffset` with a start and a limit      `feed.stream_reader` derives the start

Presence decides, not the version's number: vendors add features of later versions to their Spark.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyspark
from pyspark.sql import Column, DataFrame, SparkSession, types
from pyspark.util import inheritable_thread_target

from lance_stream.errors import UnsupportedFeatureError

try:
    from pyspark.sql import datasource as _sources
except ImportError:
    _sources = None  # type: ignore[assignment]  # a module elsewhere

if TYPE_CHECKING or _sources is not None:
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
else:  # before PySpark 4.0 only our own jobs use the classes that are derived from these
    DataSource = DataSourceReader = object

    class InputPartition:
        """Stands in for PySpark's class."""

        def __init__(self, value: Any) -> None:
            self.value = value


if TYPE_CHECKING or hasattr(pyspark.util, "local_connect_and_auth"):
    from pyspark.util import PythonEvalType, local_connect_and_auth
else:
    from pyspark.java_gateway import local_connect_and_auth
    from pyspark.rdd import PythonEvalType

try:
    from pyspark.sql.streaming import datasource as _read_limits
except ImportError:
    _read_limits = None  # type: ignore[assignment]  # a module elsewhere

__all__ = [
    "BY_BYTES",
    "HAS_ARROW_FRAMES",
    "HAS_READ_LIMITS",
    "STREAM_WRITER",
    "TIME_TYPE",
    "DataSource",
    "DataSourceReader",
    "InputPartition",
    "PythonEvalType",
    "check_data_sources",
    "check_stream_writers",
    "collation_of",
    "inheriting_properties",
    "local_connect_and_auth",
    "plan_map_in_arrow",
    "to_arrow",
]

TIME_TYPE: Final[Any] = getattr(types, "TimeType", None)
"""The class of Spark's type TIME; None before PySpark 4.1."""

HAS_ARROW_FRAMES: Final = hasattr(DataFrame, "toArrow")
"""Whether a DataFrame can be made of an Arrow table, and the reverse."""

HAS_READ_LIMITS: Final = hasattr(_read_limits, "ReadLimit")
"""Whether PySpark passes a start and a limit to `latestOffset`."""

BY_BYTES: Final = "UTF8_BINARY"
"""Spark's name for the collation of strings that compare by their bytes."""

_ARROW_WRITER: Final[Any] = getattr(_sources, "DataSourceStreamArrowWriter", None)

STREAM_WRITER: Final[Any] = _ARROW_WRITER or getattr(_sources, "DataSourceStreamWriter", object)
"""The base class of the format's stream writer."""


def collation_of(kind: types.StringType) -> str:
    """Return the name of a collation; by default strings compare by their bytes."""
    return str(getattr(kind, "collation", BY_BYTES))


def check_data_sources() -> None:
    """Refuse the format "lance" if PySpark has no Python data sources.

    Raises:
        UnsupportedFeatureError: PySpark is older than 4.0.
    """
    if _sources is None:
        raise UnsupportedFeatureError(
            'the format "lance" and its SQL functions require PySpark 4.0 or newer, where Python '
            f"data sources begin; this is {pyspark.__version__}. Write with lance_sink in "
            "foreachBatch, read changes with read_changes, and follow a table with Dataset.follow"
        )


def check_stream_writers() -> None:
    """Refuse the format's stream writer if PySpark cannot pass Arrow batches to it.

    Raises:
        UnsupportedFeatureError: PySpark is older than 4.1.
    """
    if _ARROW_WRITER is None:
        raise UnsupportedFeatureError(
            'writeStream.format("lance") requires PySpark 4.1 or newer; this is '
            f"{pyspark.__version__}. Write the stream with "
            "writeStream.foreachBatch(lance_sink(uri)), which has the same modes"
        )


def inheriting_properties(spark: SparkSession) -> Callable[[Any], Any]:
    """Return what wraps a thread's function, so that its jobs have the caller's local properties.

    Args:
        spark: The session; before PySpark 4.0 there is one context, and so one set of properties.
    """
    wrap: Any = inheritable_thread_target
    return wrap(spark) if HAS_ARROW_FRAMES else wrap  # type: ignore[no-any-return]  # untyped before 4.0


def plan_map_in_arrow(df: DataFrame, function: Any, columns: Sequence[Column]) -> DataFrame:
    """Return the DataFrame of a function's results for each partition's Arrow batches.

    Args:
        df: The source of the batches.
        function: A user-defined function.
        columns: Its arguments: all columns.

    Raises:
        AttributeError: The DataFrame is of Spark Connect.
    """
    java: Any = df._jdf  # before the call of the function, which needs a SparkContext
    call = function(*columns)
    if HAS_ARROW_FRAMES:
        plan = java.mapInArrow(call._jc, False, None)
    else:
        plan = java.pythonMapInArrow(call._jc.expr(), False)
    return DataFrame(plan, df.sparkSession)


def to_arrow(df: Any) -> Any:
    """Return all rows of a DataFrame as an Arrow table."""
    if HAS_ARROW_FRAMES:
        return df.toArrow()
    client = df._session.client  # before PySpark 4.0 it is asked of Spark Connect only
    return client.to_table(df._plan.to_proto(client))[0]
