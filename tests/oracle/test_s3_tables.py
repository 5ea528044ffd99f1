"""Tables on S3 that pylance and we write."""

from collections.abc import Callable
from pathlib import Path

import pytest

import lance_stream
from lance_stream import UntrustedLocationError
from tests.contracts.shared_tables import SharedTable, SharedTables, as_dict, both_see, rows
from tests.servers.buckets import Bucket

pytestmark = pytest.mark.oracle


class TestTablesOnS3(SharedTables):
    @pytest.fixture
    def new_table(self, s3_bucket: Bucket) -> Callable[[str], SharedTable]:
        options = s3_bucket.storage_options
        return lambda path: SharedTable(f"{s3_bucket.uri}/{path}", options)


@pytest.mark.parametrize(
    "path",
    [
        "a b/t",
        "a%20b/t/",
        "100%/50%25/t",
        "a+b%2Bc/t",
        "\N{LATIN SMALL LETTER E WITH ACUTE}%C3%A9/t",
        "a%2Fb%3Fc%23d/t",
        "x=1,y/t:~",
    ],
)
def test_both_open_a_uri_alike(s3_bucket: Bucket, path: str) -> None:
    """Escapes and spaces that one program decodes and the other does not lead to two tables."""
    table = SharedTable(f"{s3_bucket.uri}/{path}", s3_bucket.storage_options)
    table.they_append(rows(1))
    table.we_append(rows(2))
    assert both_see(table) == {1: "n1", 2: "n2"}


def test_local_clones_read_trusted_buckets(s3_bucket: Bucket, tmp_path: Path) -> None:
    """A table must not send its reader's credentials to a location that the reader did not name."""
    options = s3_bucket.storage_options
    uri = s3_bucket.uri.replace("s3:", "s3a:") + "/a table"
    ds = lance_stream.create_dataset(uri, rows(1, 2), storage_options=options)
    with pytest.raises(UntrustedLocationError, match="trusted_locations="):
        ds.shallow_clone(tmp_path / "clone")
    assert ds.tags.list() == {}
    trusting = {**options, "trusted_locations": [f"{s3_bucket.uri}/a%20table"]}
    clone = ds.shallow_clone(tmp_path / "clone", storage_options=trusting).append(rows(3))
    assert clone.table.manifest.base_paths[0].path == f"{s3_bucket.uri}/a table"
    again = lance_stream.open_dataset(tmp_path / "clone", storage_options=trusting)
    assert as_dict(again.to_table()) == as_dict(rows(1, 2, 3))
    with pytest.raises(UntrustedLocationError):
        lance_stream.open_dataset(tmp_path / "clone", storage_options=options).to_table()
