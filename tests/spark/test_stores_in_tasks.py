"""A store that fails while Spark tasks write: an error of ours, and each row once."""

from collections.abc import Iterator
from typing import Any

import pytest

import lance_stream
from lance_stream.errors import StoreUnavailableError
from lance_stream.spark import lance_sink, register
from tests.faults.faulty_buckets import QUICK
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import Forge
from tests.spark.sink.few_rows_by_tasks import upsert_by_tasks

pytestmark = pytest.mark.spark

FORMAT = "lance_behind_a_proxy"


@pytest.fixture
def proxy(s3_bucket: Bucket) -> Iterator[FaultProxy]:
    with FaultProxy(s3_bucket.endpoint) as proxy:
        yield proxy


@pytest.fixture
def options(s3_bucket: Bucket, proxy: FaultProxy) -> dict[str, str]:
    brief = {**QUICK, "client_max_retries": "1"}
    return {**s3_bucket.storage_options, "aws_endpoint": proxy.url, **brief}


def rows_of(uri: str, options: dict[str, str]) -> list[tuple[Any, ...]]:
    ds = lance_stream.open_dataset(uri, storage_options=options)
    assert ds.verify() == []
    return sorted(tuple(row.values()) for row in ds.to_table().to_pylist())


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("mode", ["append", "overwrite", "upsert"])
def test_batches_survive_a_store_outage(
    spark: Any,
    s3_bucket: Bucket,
    proxy: FaultProxy,
    options: dict[str, str],
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every row is written once, after the store has recovered."""
    upsert_by_tasks(monkeypatch)
    uri = f"{s3_bucket.uri}/table"
    on = {"on": "id"} if mode == "upsert" else {}
    sink = lance_sink(uri, mode=mode, app_id="a", storage_options=options, **on)
    sink(spark.range(3).selectExpr("id", "0L AS n"), 0)
    again = lance_sink(uri, mode=mode, app_id="a", storage_options=options, **on)
    batch = spark.range(2, 6).selectExpr("id", "1L AS n")
    first = 1 if mode == "upsert" else 2  # with another task's file there already, or its only one
    proxy.add(Forge(503), at=first, times=None, kind="put", key="/data/")
    with pytest.raises(StoreUnavailableError, match="503") as caught:
        again(batch, 1)
    assert any("a Spark task" in note for note in caught.value.__notes__)
    assert len(rows_of(uri, options)) == 3
    proxy.clear()
    for _ in range(2):
        again(batch, 1)
    assert again.last_commit is not None
    assert again.last_commit.skipped
    new = [(number, 1) for number in range(2, 6)]
    old = {"append": [(0, 0), (1, 0), (2, 0)], "overwrite": [], "upsert": [(0, 0), (1, 0)]}
    assert rows_of(uri, options) == sorted(old[mode] + new)


@pytest.mark.nightly
@pytest.mark.slow
def test_store_outages_are_named_by_tasks(
    spark: Any, s3_bucket: Bucket, proxy: FaultProxy, options: dict[str, str]
) -> None:
    """Spark wraps the error of a task, and the user has to see that the store failed and that the
    job can be repeated.
    """
    uri = f"{s3_bucket.uri}/table"
    register(spark, FORMAT, storage_options=options)
    write = spark.range(4).write.format(FORMAT).mode("append")
    write.option("txnAppId", "a").option("txnVersion", 0).save(uri)
    proxy.add(Forge(503), at=2, times=None, kind="put", key="/data/")
    write = write.option("txnVersion", 1)
    with pytest.raises(Exception, match=r"StoreUnavailableError: .*503"):
        write.save(uri)
    proxy.clear()
    for _ in range(2):
        write.save(uri)
    assert len(rows_of(uri, options)) == 8
