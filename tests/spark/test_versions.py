"""PySpark's versions: what one lacks is refused by name, with the alternative."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from lance_stream.errors import UnsupportedFeatureError
from lance_stream.spark import register, registration, versions
from lance_stream.spark.session import spark_types
from lance_stream.spark.session.spark_types import carrier_schema, to_nullable

ROOM = Path(versions.__file__).parent

NEWER_THAN_3_5 = re.compile(
    r"\.(toNullable|toArrow|collation)\b|\b(TimeType|VariantType|inheritable_thread_target)\b"
)


class Session:
    """What `register` takes for a session before it looks at the version."""

    def range(self) -> None:
        """Like a session."""


def test_register_needs_python_data_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """On PySpark 3.5 a user learns what to use instead, and not of a missing module."""
    monkeypatch.setattr(versions, "_sources", None)
    monkeypatch.setattr(registration, "check_data_sources", versions.check_data_sources)
    session: Any = Session()
    with pytest.raises(UnsupportedFeatureError, match=r"4\.0.*lance_sink.*Dataset\.follow"):
        register(session)


@pytest.mark.since_spark("4.0")
def test_stream_writer_of_rows_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PySpark 4.0 would pass rows of Python to a writer of Arrow batches."""
    from lance_stream.spark import LanceSource

    monkeypatch.setattr(versions, "_ARROW_WRITER", None)
    source = LanceSource({"path": str(tmp_path / "t")})
    with pytest.raises(UnsupportedFeatureError, match=r"4\.1.*foreachBatch\(lance_sink"):
        source.streamWriter(spark.StructType().add("id", spark.LongType()), overwrite=False)


def test_times_need_a_type_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the message would say that no Spark can read the column."""
    monkeypatch.setattr(spark_types, "TIME_TYPE", None)
    with pytest.raises(UnsupportedFeatureError, match=r"time64\[us\] before version 4\.1") as error:
        carrier_schema(pa.schema([("at", pa.time64("us"))]))
    assert "columns" in error.value.__notes__[0]


@pytest.mark.since_spark("4.0")
def test_nullable_schemas_agree_with_pyspark() -> None:
    """PySpark 3.5 has no such function, so ours replaces it everywhere."""
    items = spark.ArrayType(
        spark.StructType().add("x", spark.IntegerType(), nullable=False), containsNull=False
    )
    values = spark.MapType(spark.StringType(), items, valueContainsNull=False)
    schema = (
        spark.StructType().add("m", values, False, {"unit": "m"}).add("id", spark.LongType(), False)
    )
    assert to_nullable(schema) == schema.toNullable()


def test_only_one_module_knows_the_versions() -> None:
    """Elsewhere these names work on the PySpark of the tests, and fail on that of a platform."""
    modules = {path.name: path.read_text() for path in ROOM.rglob("*.py")}
    assert NEWER_THAN_3_5.search(modules.pop("versions.py")) is not None
    uses = {name: match[0] for name, text in modules.items() if (match := uses_in(text))}
    assert uses == {}


def uses_in(text: str) -> re.Match[str] | None:
    """Return the first use in a module's code, not in its docstrings."""
    return NEWER_THAN_3_5.search(re.sub(r'""".*?"""', "", text, flags=re.DOTALL))
