"""Tables on an S3 that cannot create a name once, whose versions are in a manifest store."""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import Forge


@pytest.fixture
def proxy(s3_bucket: Bucket) -> Iterator[FaultProxy]:
    with FaultProxy(s3_bucket.endpoint) as proxy:
        yield proxy


def use(uri: str, options: dict[str, str]) -> None:
    """Make a table, change it, and look at it without its manifest store."""
    data = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    ds = lance_stream.create_dataset(uri, data.schema, storage_options=options)
    ds = ds.append(data).append(data).delete("id = 2")
    ds.tags.create("t", ds.version)
    ds.restore(2).compact()
    for reader_options in (options, {k: v for k, v in options.items() if k != "manifest_store"}):
        table = lance_stream.open_dataset(uri, storage_options=reader_options)
        assert table.to_table().num_rows == 3
        assert table.verify() == []


@pytest.mark.floors
@pytest.mark.parametrize(
    "kind",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.server("moto", "postgresql"))],
)
def test_buckets_without_conditional_puts_get_none(
    s3_bucket: Bucket, proxy: FaultProxy, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """A service that ignores the condition would let two writers overwrite each other, so none
    may be sent.
    """
    url = (
        f"sqlite://{tmp_path}/m.db"
        if kind == "sqlite"
        else request.getfixturevalue("postgresql_url")
    )
    options = {
        **s3_bucket.storage_options,
        "aws_endpoint": proxy.url,
        "aws_conditional_put": "disabled",
    }
    with pytest.raises(lance_stream.UnsupportedFeatureError, match="manifest_store"):
        use(f"{s3_bucket.uri}/plain", options)
    proxy.clear()
    use(f"{s3_bucket.uri}/t", {**options, "manifest_store": url})
    assert "put" in proxy.kinds()
    assert "put once" not in proxy.kinds()


def test_services_refusing_conditional_puts_work(
    s3_bucket: Bucket, proxy: FaultProxy, tmp_path: Path
) -> None:
    """Some services answer a conditional put with 501, and a manifest store makes it
    unnecessary.
    """
    proxy.add(Forge(501, "NotImplemented"), kind="put once", times=None)
    options = {**s3_bucket.storage_options, "aws_endpoint": proxy.url}
    use(f"{s3_bucket.uri}/t", {**options, "manifest_store": f"sqlite://{tmp_path}/m.db"})
    assert "put once" in proxy.kinds()  # it was asked, and said 501
