"""How many requests reading a table on Azure takes."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.storage.object_store import MAX_GAP_BYTES
from tests.servers.azurite_blobs import ACCOUNT, Azurite
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[FaultProxy]:
    with FaultProxy(azurite.endpoint) as found:
        yield found


def wide(num_rows: int, first: int = 0) -> pa.Table:
    """Rows of 27 columns: numbers that cannot be compressed, and texts."""
    dice = np.random.default_rng(first)
    numbers = {f"f{each}": dice.random(num_rows) for each in range(24)}
    texts = {
        f"s{each}": [f"text {n}" for n in dice.integers(0, 10**9, num_rows)] for each in (1, 2)
    }
    return pa.table({"id": np.arange(first, first + num_rows), **numbers, **texts})


def made(proxy: FaultProxy, container: Bucket, *parts: pa.Table) -> lance_stream.Dataset:
    """Return a table of a fragment for each part, opened anew, with nothing read of it yet."""
    options = {**container.storage_options, "azure_storage_endpoint": f"{proxy.url}/{ACCOUNT}"}
    uri = f"{container.uri}/t"
    table = lance_stream.create_dataset(uri, parts[0].schema, storage_options=options)
    for part in parts:
        table.append(part)
    opened = lance_stream.open_dataset(uri, storage_options=options)
    proxy.clear()
    return opened


def test_a_small_fragment_is_read_by_one_request_whatever_is_asked_of_it(
    proxy: FaultProxy, azure_container: Bucket
) -> None:
    parts = [wide(900, 900 * each) for each in range(3)]
    table = made(proxy, azure_container, *parts)
    assert table.scan(columns=["id", "s1"]).read_all().num_rows == 2700
    assert proxy.kinds() == {"get": 3}
    assert proxy.num_bytes()[1] < 3 * MAX_GAP_BYTES
    assert table.take([0, 1000, 2699])["id"].to_pylist() == [0, 1000, 2699]
    assert table.scan(filter="id = 1").read_all().num_rows == 1
    assert table.scan().read_all() == pa.concat_tables(parts)
    assert proxy.kinds() == {"get": 3}


def test_a_fragment_of_many_columns_is_read_in_few_joined_requests(
    proxy: FaultProxy, azure_container: Bucket
) -> None:
    rows = wide(50_000)
    table = made(proxy, azure_container, rows)
    assert table.scan().read_all() == rows
    size = sum(each.num_bytes_sent for each in proxy.seen("put")) or rows.nbytes
    assert proxy.kinds()["get"] <= 6, proxy.story()
    assert proxy.num_bytes()[1] < 1.5 * size
