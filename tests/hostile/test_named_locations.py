"""No location that a table names gets its reader's credentials, or shows its reader's files."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream._proto import table_pb2
from lance_stream.cli.main import main
from lance_stream.errors import CorruptDataError, LanceStreamError, UntrustedLocationError
from lance_stream.read import blob_locations
from lance_stream.spark.arguments.reader_options import parse_reader_options
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.storage.locations import open_store
from tests.dataset.manifest_edits import join_manifest, split_manifest
from tests.hostile.attack import Canary
from tests.servers.buckets import Bucket

ROWS = pa.table({"id": [1, 2, 3]})
LOCATIONS = (
    "abfss://c@{canary}/t",
    "abfss://c@{canary}.blob.core.windows.net/t",
    "wasb://c@{canary}/t",
    "az://c@{canary}/t",
    "webhdfs://{canary}/t",
    "swebhdfs://{canary}/t",
    "http://{canary}/t",
    "https://{canary}/t",
    "s3://{canary}/t",
    "s3://x@{canary}/t",
    "gs://{canary}#/t",
    "gs://a/../../{canary}/t",
    "abfss://c@169.254.169.254/t",
)
LOCAL = ("/etc", "file:///etc", "../../etc", "~/x", "memory://elsewhere/t")


@pytest.fixture
def canary() -> Iterator[Canary]:
    server = Canary()
    yield server
    assert server.visits == []


def name_base(uri: str, options: dict[str, Any], location: str) -> None:
    """Let the newest version of a table say that its files lie below a location."""
    store = open_store(uri, options)
    path = min(name for name in store.list_names("_versions") if name.endswith(".manifest"))
    before, body, behind = split_manifest(bytes(store.read(f"_versions/{path}")))
    message = table_pb2.Manifest.FromString(body)
    del message.base_paths[:]
    message.base_paths.add(id=1, path=location, is_dataset_root=True)
    message.reader_feature_flags |= 16
    message.writer_feature_flags |= 16
    for fragment in message.fragments:
        fragment.files[0].base_id = 1
    store.write(f"_versions/{path}", join_manifest(before, message.SerializeToString(), behind))


def uses_of(ds: lance_stream.Dataset) -> list[Callable[[], object]]:
    return [ds.to_table, lambda: ds.changes(0).read_all(), lambda: ds.delete("id = 1")]


def check_refuses(uri: str, options: dict[str, Any], canary: Canary, locations: Any) -> None:
    ds = lance_stream.create_dataset(uri, ROWS.schema, storage_options=options).append(ROWS)
    file = next(iter(ds.table.manifest.fragments)).files[0]
    for location in locations:
        named = location.format(canary=f"127.0.0.1:{canary.port}")
        with pytest.raises((UntrustedLocationError, CorruptDataError)):
            blob_locations._locate_external(0, f"{named}/x", ds.table.files)
        name_base(uri, options, named)
        table = lance_stream.open_dataset(uri, storage_options=options)
        for use in uses_of(table):
            with pytest.raises((UntrustedLocationError, CorruptDataError)) as raised:
                use()
            for secret in options.values():
                assert len(str(secret)) < 8 or str(secret) not in str(raised.value)
        findings = [finding for finding in table.verify() if finding.rule == "data files"]
        assert findings
    assert file.base_id is None


@pytest.mark.parametrize("location", LOCATIONS)
def test_local_tables_make_no_requests(
    tmp_path: Path, canary: Canary, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment holds credentials that a request to a hostile location would reveal."""
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sig=hostile-secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "hostile-secret")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hostile-secret")
    check_refuses(str(tmp_path / "t"), {}, canary, [location])


@pytest.mark.parametrize("location", [*LOCATIONS, *LOCAL[:-1]])
def test_tables_in_memory_make_no_requests(canary: Canary, location: str) -> None:
    """A table in memory may be a copy of a hostile one, and local files are
    foreign to it as well.
    """
    check_refuses(f"memory://named/{abs(hash(location))}", {}, canary, [location])


def test_bucket_tables_reach_no_other_host(any_bucket: Bucket, canary: Canary) -> None:
    """The table names locations on another host, which must not receive a request."""
    foreign = [location for location in LOCATIONS if not location.startswith(any_bucket.uri[:3])]
    locations = [*foreign[:5], *foreign[-1:], *LOCAL]
    check_refuses(f"{any_bucket.uri}/t", any_bucket.storage_options, canary, locations)


@pytest.mark.parametrize("path", ["a%09b", "a%1B%5B2Jb", "a%2F%2Fb"])
def test_impossible_names_end_in_our_errors(any_bucket: Bucket, path: str) -> None:
    """The store's client raises errors of its own for such names, with control characters in the
    message.
    """
    uri, options = f"{any_bucket.uri}/t", any_bucket.storage_options
    ds = lance_stream.create_dataset(uri, ROWS.schema, storage_options=options).append(ROWS)
    with pytest.raises(LanceStreamError) as raised:
        blob_locations._open_source(
            (blob_locations.EXTERNAL, 0, f"{any_bucket.uri}/{path}/x"),
            next(iter(ds.table.manifest.fragments)).files[0],
            ds.table.files,
        )
    assert str(raised.value).isprintable()
    name_base(uri, options, f"{any_bucket.uri}/{path}")
    for use in uses_of(lance_stream.open_dataset(uri, storage_options=options)):
        with pytest.raises(LanceStreamError) as raised:
            use()
        assert str(raised.value).isprintable()


def test_same_bucket_locations_are_read(any_bucket: Bucket) -> None:
    """A shallow clone names its source in the same bucket, which needs no declared trust."""
    options = any_bucket.storage_options
    source = f"{any_bucket.uri}/source"
    uri = f"{any_bucket.uri}/clone"
    for value in (source, uri):
        lance_stream.create_dataset(value, ROWS.schema, storage_options=options).append(ROWS)
    theirs, ours = open_store(source, options), open_store(uri, options)
    for file in ours.list("data"):
        theirs.write(file.path, ours.read(file.path))
        ours.delete(file.path)
    name_base(uri, options, source)
    ds = lance_stream.open_dataset(uri, storage_options=options)
    assert ds.to_table()["id"].to_pylist() == [1, 2, 3]


def test_trusted_locations_can_be_stated_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A trusted remote location is requested, which fails here because there is no service."""
    uri = str(tmp_path / "t")
    lance_stream.create_dataset(uri, ROWS.schema).append(ROWS)
    name_base(uri, {}, "webhdfs://127.0.0.1:1/t")
    assert main(["verify", uri]) == 1
    assert "trusted_locations=" in capsys.readouterr().out
    trusted = "gs://theirs/blobs"
    ds = lance_stream.open_dataset(uri, trusted_locations=[trusted])
    assert ds.table.storage_options["trusted_locations"] == (trusted,)
    for text in (trusted, json.dumps([trusted])):
        for parse in (
            parse_reader_options,
            lambda options: parse_writer_options(options, streaming=False),
        ):
            arguments = parse({"path": uri, "trustedlocations": text})
            assert arguments.storage_options["trusted_locations"] == (trusted,)


@pytest.mark.parametrize("tag", ["x.tmp", "tmp", "a.json", "CON", "x" * 200])
def test_tags_of_any_name_hold_versions(tmp_path: Path, tag: str) -> None:
    """A tag whose file looks like a temporary one would not protect its version from cleanup."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS.schema).append(ROWS)
    ds.tags.create(tag, 1)
    report = ds.append(ROWS).cleanup(older_than="0s", delete_unverified=True)
    assert report.versions == (2,)
    assert list(ds.tags.list()) == [tag]
    assert lance_stream.open_dataset(ds.uri, tag).version == 1
