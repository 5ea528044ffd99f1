"""Tags: named versions."""

import json
import uuid
from datetime import UTC, datetime

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import CorruptDataError, Dataset, InvalidInputError, NotFoundError
from lance_stream.snapshot import tag_files
from lance_stream.snapshot.timestamps import as_rfc3339
from tests.commit.tables import make_environment


@pytest.fixture
def ds() -> Dataset:
    """Three versions: none, one, two rows."""
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", pa.schema([pa.field("a", pa.int64())])
    )
    return dataset.append(pa.table({"a": [1]})).append(pa.table({"a": [2]}))


def test_tags_work_wherever_versions_do(ds: Dataset) -> None:
    """A tag stands for its version in every argument, also for another tag."""
    result = ds.tags.create("gold", 2)
    assert (result.name, result.version) == ("gold", 2)
    assert ds.checkout("gold").version == 2
    assert lance_stream.open_dataset(ds.uri, "gold").count_rows() == 1
    ds.tags.create("silver", "gold")
    ds.tags.create("now")
    listed = ds.tags.list()
    assert {name: tag.version for name, tag in listed.items()} == {"gold": 2, "now": 3, "silver": 2}
    assert list(listed) == ["gold", "now", "silver"]


def test_moved_tags_keep_time_and_metadata(ds: Dataset) -> None:
    """Lance's tag files have fields that we do not use and must not lose."""
    first, then = 1_763_740_000_123_456_789, 1_763_740_001_000_000_000
    tag_files.create_tag(ds.table.refs, "gold", 1, make_environment(now_nanos=lambda: first))
    path = "_refs/tags/gold.json"
    content = json.loads(ds.table.store.read(path))
    noted = {**content, "metadata": {"by": "Zoë"}, "future": [1]}
    ds.table.store.write(path, json.dumps(noted).encode())
    moved = tag_files.move_tag(ds.table.refs, "gold", 3, make_environment(now_nanos=lambda: then))
    assert moved.created_at == datetime(2025, 11, 21, 15, 46, 40, 123456, UTC)
    assert moved.updated_at == datetime(2025, 11, 21, 15, 46, 41, tzinfo=UTC)
    assert moved.metadata == {"by": "Zoë"}
    after = json.loads(ds.table.store.read(path))
    assert after["future"] == [1]
    assert after["manifestSize"] == ds.table.store.size("_versions/18446744073709551612.manifest")


def test_tags_are_created_once(ds: Dataset) -> None:
    """Creating a tag must not move an existing one."""
    ds.tags.create("gold", 2)
    with pytest.raises(InvalidInputError, match="already exists, for version 2"):
        ds.tags.create("gold", 3)
    assert ds.tags.list()["gold"].version == 2
    assert ds.tags.update("gold", 3).version == 3


def test_missing_tags_cannot_be_changed(ds: Dataset) -> None:
    """A misspelt name must fail, and the message lists the names that exist."""
    ds.tags.create("gold", 2)
    for attempt in (lambda: ds.tags.update("god", 1), lambda: ds.tags.delete("god")):
        with pytest.raises(NotFoundError, match="tag 'god' does not exist; existing tags: gold"):
            attempt()
    ds.tags.delete("gold")
    assert ds.tags.list() == {}


@pytest.mark.parametrize("version", [0, -1, 1.5, True, None])
def test_tags_need_an_existing_version(ds: Dataset, version: object) -> None:
    """A tag of a missing version would only fail when it is used."""
    if version is None:
        with pytest.raises(NotFoundError, match="has no version 99"):
            ds.tags.create("gold", 99)
    else:
        with pytest.raises(InvalidInputError, match="by a number of at least 1"):
            ds.tags.create("gold", version)  # type: ignore[arg-type]  # what the test is about
    assert ds.tags.list() == {}


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".x", "x.", "a..b", "x.lock", "a b", "größe"])
def test_invalid_tag_names_are_refused(ds: Dataset, name: str) -> None:
    """Names become file names, for which Lance has rules, and which must stay in the folder."""
    with pytest.raises(InvalidInputError, match="cannot be the name of a"):
        ds.tags.create(name, 1)
    assert ds.tags.list() == {}


def test_times_passed_as_tags_are_explained(ds: Dataset) -> None:
    """The command line takes times as text, and Python does not: a tag could have that name."""
    with pytest.raises(InvalidInputError, match="cannot be the name") as caught:
        ds.checkout("2026-11-27 08:00")
    assert "A time is a datetime in Python" in caught.value.__notes__[0]
    with pytest.raises(NotFoundError, match="does not exist") as missing:
        ds.tags.update("2026-11-27", 1)
    assert missing.value.__notes__ == caught.value.__notes__
    with pytest.raises(NotFoundError, match="does not exist") as missing:
        ds.tags.update("v2026", 1)
    assert not hasattr(missing.value, "__notes__")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"version": 0}',
        b'{"version": true}',
        b'{"version": 1, "branch": 3}',
        b'{"version": 1, "metadata": []}',
        b'{"version": 1, "createdAt": "yesterday"}',
        b'{"version": 1, "updatedAt": "0000-01-01T00:00:00+14:00"}',
        b"[" * 5000,
    ],
)
def test_damaged_tags_are_reported(ds: Dataset, content: bytes) -> None:
    """An unreadable tag must neither crash with a Python error nor count as missing."""
    ds.table.store.write("_refs/tags/gold.json", content)
    for attempt in (lambda: ds.checkout("gold"), lambda: ds.tags.update("gold", 1)):
        with pytest.raises(CorruptDataError, match="'gold'"):
            attempt()


def test_tags_of_year_one_are_read(ds: Dataset) -> None:
    """A zone moves this moment before Python's first year."""
    content = b'{"version": 1, "updatedAt": "0001-01-01T00:00:00+14:00"}'
    ds.table.store.write("_refs/tags/gold.json", content)
    assert ds.checkout("gold").version == 1
    assert tag_files.get_tag(ds.table.refs, "gold").updated_at == datetime.min.replace(tzinfo=UTC)


def test_invalid_tag_files_are_named(ds: Dataset, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged file must not hide the other tags."""
    ds.tags.create("gold", 1)
    for name in ("a b", "silver", "below/gold"):
        ds.table.store.write(f"_refs/tags/{name}.json", b"{}")
    assert list(ds.tags.list()) == ["gold"]
    assert all(f"_refs/tags/{name}.json" in caplog.text for name in ("a b", "silver", "below/gold"))
    with pytest.raises(CorruptDataError, match=r"_refs/tags/.*\.json looks like a tag"):
        ds.cleanup(retain_versions=1)


def test_tags_on_main_are_the_tables(ds: Dataset) -> None:
    """Lance writes the main branch either as a name or not at all."""
    ds.table.store.write("_refs/tags/gold.json", b'{"branch": "main", "version": 1}')
    assert ds.checkout("gold").version == 1
    assert 1 not in ds.cleanup(retain_versions=1).versions


def test_internal_tag_names_are_reserved(ds: Dataset) -> None:
    """A user's tag of such a name would be treated as a consumer's progress."""
    for name in ("lance_stream.consumer.x", "lance_stream.hold.x", "lance_stream.x"):
        with pytest.raises(InvalidInputError, match="are reserved for consumers"):
            ds.tags.create(name, 1)


def test_other_files_are_not_tags(ds: Dataset) -> None:
    """Temporary files of a killed writer share the folder."""
    ds.tags.create("gold", 1)
    for name in (".gold.json.0123456789abcdef.tmp", ".json", "notes.txt"):
        ds.table.store.write(f"_refs/tags/{name}", b"?")
    assert list(ds.tags.list()) == ["gold"]


@pytest.mark.parametrize(
    ("nanos", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_500_000_000, "1970-01-01T00:00:01.500Z"),
        (1_000_001_000, "1970-01-01T00:00:01.000001Z"),
        (1_000_000_001, "1970-01-01T00:00:01.000000001Z"),
    ],
)
def test_times_omit_unneeded_digits(nanos: int, text: str) -> None:
    """Lance writes 0, 3, 6 or 9 digits, and equal moments should be equal texts."""
    assert as_rfc3339(nanos) == text


def test_early_tags_belong_to_their_branch(ds: Dataset) -> None:
    """Early releases stored them in the branch's folder, without the branch's name."""
    ds.branches.create("dev")
    dev = lance_stream.open_dataset(ds.uri, branch="dev")
    dev.table.store.write("_refs/tags/early.json", b'{"version": 3}')
    refs = dev.table.refs
    assert tag_files.get_tag(refs, "early").branch == "dev"
    ds.tags.create("ours", 2)
    assert tag_files.get_tag(refs, "ours").branch is None
    dev.tags.create("theirs", 3)
    assert tag_files.get_tag(ds.table.refs, "theirs").branch == "dev"
    for name, text in (("ours", "for version 2."), ("theirs", "for version 3 of the branch 'dev'")):
        with pytest.raises(InvalidInputError, match=text):
            ds.tags.create(name, 1)
