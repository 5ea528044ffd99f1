"""Tags that either program creates are tags for the other."""

import json
import uuid
from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.maintenance.consumers import record_progress

pytestmark = pytest.mark.oracle


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of two versions, by pylance."""
    path = str(tmp_path / uuid.uuid4().hex)
    lance.write_dataset(pa.table({"a": [1]}), path)
    lance.write_dataset(pa.table({"a": [2]}), path, mode="append")
    return path


def tag_file(uri: str, name: str) -> bytes:
    return Path(uri, "_refs", "tags", f"{name}.json").read_bytes()


def test_tag_files_equal_pylances_except_times(uri: str) -> None:
    """pylance parses these files strictly."""
    lance.dataset(uri).tags.create("theirs", 1)
    lance_stream.open_dataset(uri).tags.create("ours", 1)
    theirs, ours = (tag_file(uri, name) for name in ("theirs", "ours"))
    times = [json.loads(value)["createdAt"].encode() for value in (theirs, ours)]
    assert ours.replace(times[1], b"T") == theirs.replace(times[0], b"T")


def test_each_side_manages_the_others_tags(uri: str) -> None:
    """Tags protect versions from the cleanup of either program."""
    theirs, ours = lance.dataset(uri), lance_stream.open_dataset(uri)
    theirs.tags.create("a", 1)
    ours.tags.create("b", 1)
    record_progress(ours.table.refs, "totals", 2)
    consumer = "lance_stream.consumer.totals"
    assert {name: file["version"] for name, file in theirs.tags.list().items()} == {
        "a": 1,
        "b": 1,
        consumer: 2,
    }
    ours.tags.update("a", 2)
    theirs.tags.update("b", 2)
    assert lance.dataset(uri, version="a").version == ours.checkout("b").version == 2
    assert [file.version for file in ours.tags.list().values()] == [2, 2, 2]
    ours.tags.delete("a")
    theirs.tags.delete("b")
    assert list(theirs.tags.list()) == list(ours.tags.list()) == [consumer]


def test_non_ascii_pylance_tags_are_read(uri: str) -> None:
    """Pylance can create such a tag, but cannot list it."""
    theirs, ours = lance.dataset(uri), lance_stream.open_dataset(uri)
    theirs.tags.create("größe", 1)
    with pytest.raises(ValueError, match="Not found"):
        theirs.tags.list()
    assert ours.tags.list()["größe"].version == ours.checkout("größe").version == 1
    ours.tags.delete("größe")
    assert theirs.tags.list() == {}
