"""Random upserts through Spark: by the sink, by the format, and by a model; see `key_histories`."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark import lance_sink, register
from lance_stream.upsert.rules import UpsertRules
from tests.spark.sink.few_rows_by_tasks import upsert_by_tasks
from tests.upsert.key_histories import Counts, History, Way, play

SPARK_TYPES = (
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_decimal128,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_boolean,
    pa.types.is_date32,
    lambda arrow: pa.types.is_timestamp(arrow) and arrow.unit == "us" and arrow.tz in (None, "UTC"),
)


def comes_from_spark(arrow: pa.DataType) -> bool:
    """Return whether a batch of Spark's can have a type."""
    if pa.types.is_struct(arrow):
        return all(comes_from_spark(part.type) for part in arrow)
    if pa.types.is_list(arrow):
        return comes_from_spark(arrow.value_type)
    return any(accepts(arrow) for accepts in SPARK_TYPES)


def through_sink(spark: Any, batch_ids: dict[str, int], *, by_tasks: bool) -> Way:
    """Return the way of a batch through a sink that collects its rows, or has them staged."""

    def take_in(
        table: TableVersion, data: pa.Table, rules: UpsertRules, num_parts: int
    ) -> tuple[TableVersion, Counts]:
        sink = lance_sink(
            table.uri,
            mode="upsert",
            on=rules.on,
            sequence_by=rules.sequence_by,
            delete_when=rules.delete_when,
            except_columns=rules.except_columns,
            app_id="a",
            skip_unchanged=rules.skip_unchanged,
            tombstones=rules.tombstones,
        )
        batch_id = batch_ids[table.uri] = batch_ids.get(table.uri, -1) + 1
        with pytest.MonkeyPatch.context() as patch:
            if by_tasks:
                upsert_by_tasks(patch, is_cluster=num_parts % 2 == 1)
            sink(spark.createDataFrame(data), batch_id)
        commit = sink.last_commit
        assert commit is not None
        return lance_stream.open_dataset(table.uri).table, {
            "rows": commit.rows_in,
            "inserted": commit.rows_inserted,
            "updated": commit.rows_updated,
            "deleted": commit.rows_deleted,
            "unchanged": commit.rows_unchanged,
            "late": commit.rows_late,
            "remembered": commit.deletes_remembered,
        }

    return take_in


def through_format(spark: Any, batch_ids: dict[str, int]) -> Way:
    """Return the way of a batch through the format as a writer."""

    def take_in(
        table: TableVersion, data: pa.Table, rules: UpsertRules, _: int
    ) -> tuple[TableVersion, None]:
        options: dict[str, Any] = {
            "on": ",".join(rules.on),
            "sequenceBy": rules.sequence_by,
            "deleteWhen": rules.delete_when,
            "exceptColumns": ",".join(rules.except_columns),
            "skipUnchanged": rules.skip_unchanged,
            "tombstones": None if rules.tombstones is None else f"{rules.tombstones.days} days",
        }
        batch_id = batch_ids[table.uri] = batch_ids.get(table.uri, -1) + 1
        writer = spark.createDataFrame(data).repartition(2).write.format("lance").mode("append")
        writer = writer.options(mode="upsert", txnAppId="a", txnVersion=batch_id)
        try:
            writer.options(**{name: option for name, option in options.items() if option}).save(
                table.uri
            )
        except Exception as error:
            if "InvalidInputError" not in str(error):
                raise
            raise InvalidInputError(str(error)) from None
        return lance_stream.open_dataset(table.uri).table, None

    return take_in


@pytest.mark.slow
@pytest.mark.spark
def test_sink_and_format_match_the_model(spark: Any, tmp_path: Path) -> None:
    """Random upserts must leave the same rows whether the driver collects them, tasks write them,
    or the format does.
    """
    register(spark)
    batch_ids: dict[str, int] = {}
    ways = {
        "collected": through_sink(spark, batch_ids, by_tasks=False),
        "by tasks": through_sink(spark, batch_ids, by_tasks=True),
        "format": through_format(spark, batch_ids),
    }
    for seed in (2, 13):
        history = play(History(seed, ways, str(tmp_path), comes_from_spark), 3)
        assert history.num_rows
