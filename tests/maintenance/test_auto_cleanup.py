"""Cleanups that a table's config asks for, after commits."""

import logging
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.maintenance import auto_cleanup
from lance_stream.maintenance.consumers import record_progress
from lance_stream.table.config.auto_cleanup import (
    INTERVAL,
    OLDER_THAN,
    RETAIN_VERSIONS,
    AutoCleanup,
    due_cleanup,
)
from lance_stream.verbs.append import append

ROWS = pa.table({"id": [1], "v": [1]})

VERBS: dict[str, Callable[[Dataset], Dataset]] = {
    "append": lambda ds: ds.append(ROWS),
    "overwrite": lambda ds: ds.overwrite(ROWS),
    "upsert": lambda ds: ds.upsert(ROWS, "id"),
    "delete": lambda ds: ds.delete("id = 1"),
    "update": lambda ds: ds.update({"v": "v + 1"}),
    "add_columns": lambda ds: ds.add_columns(pa.field("w", pa.int64())),
    "computed columns": lambda ds: ds.add_columns({"w": "v + 1"}),
    "drop_columns": lambda ds: ds.drop_columns("v"),
    "alter_columns": lambda ds: ds.alter_columns({"path": "v", "nullable": False}),
    "update_config": lambda ds: ds.update_config({"a": "b"}),
    "update_metadata": lambda ds: ds.update_metadata({"a": "b"}),
    "restore": lambda ds: ds.restore(ds.version),
    "compact": lambda ds: ds.compact(),
}


def create(**entries: str) -> Dataset:
    uri = f"memory://{uuid.uuid4()}/table"
    keys = {"interval": INTERVAL, "older_than": OLDER_THAN, "retain_versions": RETAIN_VERSIONS}
    config = {keys[name]: value for name, value in entries.items()}
    return lance_stream.create_dataset(uri, ROWS, config=config)


def numbers(ds: Dataset) -> list[int]:
    return [version.version for version in ds.versions()]


def test_without_an_interval_every_version_stays() -> None:
    """Automatic cleanup is off by default, and its other entries do not enable it."""
    ds = create(older_than="0s", retain_versions="1")
    for _ in range(4):
        ds = ds.append(ROWS)
    assert numbers(ds) == [1, 2, 3, 4, 5]


def test_versions_at_the_interval_clean_up() -> None:
    """The new version and the one before it stay in any case."""
    ds = create(interval="3", older_than="0s")
    seen = []
    for _ in range(6):
        ds = ds.append(ROWS)
        seen.append(numbers(ds))
    assert seen == [[1, 2], [2, 3], [2, 3, 4], [2, 3, 4, 5], [5, 6], [5, 6, 7]]
    assert ds.verify() == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_committing_verb_cleans_up(verb: str) -> None:
    """The setting belongs to the table, whichever verb commits."""
    ds = create(interval="4", older_than="0s").append(ROWS).append(ROWS)
    after = VERBS[verb](ds)
    assert (after.version, numbers(after)) == (4, [3, 4])


def test_batches_of_a_stream_clean_up() -> None:
    """The sink commits on the driver, and a repeated batch commits nothing."""
    ds = create(interval="2", older_than="0s")
    for number in range(3):
        append(ds.table, ROWS, PendingBatch.of("stream", number))
    assert numbers(ds.checkout(None)) == [3, 4]
    append(ds.table, ROWS, PendingBatch.of("stream", 2))
    assert numbers(ds.checkout(None)) == [3, 4]


def test_a_commit_of_nothing_cleans_nothing() -> None:
    """Without a new version no interval is reached."""
    ds = create(interval="2", older_than="0s")
    ds = ds.append(ROWS).append(ROWS)
    assert ds.delete("id = 7").version == 3
    assert numbers(ds) == [1, 2, 3]


def test_retained_and_young_versions_stay() -> None:
    """Both conditions must allow it, as in the reference."""
    ds = create(interval="1", retain_versions="3")
    aged = create(interval="1", retain_versions="2", older_than="1h")
    for _ in range(4):
        ds, aged = ds.append(ROWS), aged.append(ROWS)
    assert numbers(ds) == [3, 4, 5]
    assert numbers(aged) == [1, 2, 3, 4, 5]


def test_what_readers_need_stays() -> None:
    """Tags, branches and consumers are protected as in every cleanup."""
    ds = create(interval="1", older_than="0s").update_config({INTERVAL: "100"})
    for _ in range(6):
        ds = ds.append(ROWS)
    ds.tags.create("gold", 3)
    ds.branches.create("dev", 4)
    record_progress(ds.table.refs, "totals", 6)
    ds = ds.update_config({INTERVAL: "1"})
    assert numbers(ds) == [3, 4, 6, 7, 8, 9]
    assert ds.changes(6).read_all().num_rows == 2
    dev = ds.checkout(("dev", None))
    assert dev.count_rows() == ds.checkout(4).count_rows()


def test_branches_clean_up_their_versions() -> None:
    """Versions of the main branch are not the branch's to remove."""
    ds = create(interval="100", older_than="0s").append(ROWS).append(ROWS)
    dev = ds.branches.create("dev")
    dev = ds.checkout(("dev", None)).update_config({INTERVAL: "1"})
    for _ in range(3):
        dev = dev.append(ROWS)
    assert numbers(dev) == [dev.version - 1, dev.version]
    assert numbers(ds.checkout(None)) == [1, 2, 3]


def test_failures_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are committed by then, and an error would make the caller write them again."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("no right to delete")

    monkeypatch.setattr(auto_cleanup, "cleanup", fail)
    ds = create(interval="1")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            ds = ds.append(ROWS)
    assert ds.count_rows() == 4
    (record,) = caplog.records
    assert "no right to delete" in record.message


def test_foreign_invalid_entries_fail_no_commit(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Other programs may set any value, so an invalid one is only logged."""
    ds = lance_stream.create_dataset(tmp_path / "table", ROWS, config={INTERVAL: "1"})
    manifest = ds.table.manifest
    manifest.config[INTERVAL] = "often"  # type: ignore[index]  # as it would be read
    with caplog.at_level(logging.WARNING):
        auto_cleanup.clean_up_if_due(ds.table)
    assert "'often'" in caplog.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (INTERVAL, "often"),
        (INTERVAL, "-1"),
        (INTERVAL, " 3"),
        (INTERVAL, "99999999999999999999"),
        (OLDER_THAN, "5"),
        (OLDER_THAN, ""),
        (OLDER_THAN, "7 bananas"),
        (OLDER_THAN, "1s 2"),
        (OLDER_THAN, "-1s"),
        (RETAIN_VERSIONS, "0"),
        (RETAIN_VERSIONS, "two"),
    ],
)
def test_invalid_entries_are_refused(key: str, value: str) -> None:
    """An invalid entry would silently disable the cleanup."""
    with pytest.raises(InvalidInputError, match=key):
        create().update_config({key: value})
    with pytest.raises(InvalidInputError, match=key):
        create().update_config({INTERVAL: "3", key: value})
    with pytest.raises(InvalidInputError, match=key):
        lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", ROWS, config={key: value})


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("0", timedelta(0)),
        ("0ms", timedelta(0)),
        ("14days", timedelta(14)),
        ("1h 30m", timedelta(hours=1.5)),
        ("1.5h", timedelta(hours=1.5)),
        ("1M2d", timedelta(days=32.44)),
        ("2yr", timedelta(days=730.5)),
        ("500 us", timedelta(microseconds=500)),
    ],
)
def test_ages_are_those_of_the_reference(text: str, age: timedelta) -> None:
    """In Lance's notation a minute is `m` and a month is `M`."""
    assert due_cleanup({INTERVAL: "1", OLDER_THAN: text}, 5) == AutoCleanup(age)


def test_the_interval_counts_version_numbers() -> None:
    """Zero means every commit, as in the reference."""
    assert [version for version in range(1, 8) if due_cleanup({INTERVAL: "3"}, version)] == [3, 6]
    assert due_cleanup({INTERVAL: "0"}, 5) == due_cleanup({INTERVAL: "+1"}, 5) == AutoCleanup()
    assert due_cleanup({OLDER_THAN: "0s", RETAIN_VERSIONS: "1"}, 5) is None


def test_entries_can_be_removed() -> None:
    """A removed entry has no value to check."""
    ds = create(interval="1", older_than="1h", retain_versions="5")
    ds = ds.update_config(dict.fromkeys([INTERVAL, OLDER_THAN, RETAIN_VERSIONS]))
    assert ds.table.manifest.config == {}


def test_numbers_are_those_of_the_reference() -> None:
    """Its integers have 64 bits; ages beyond what Python can express are as old as possible."""
    config = {INTERVAL: "1", RETAIN_VERSIONS: f"{2**64 - 1}"}
    assert due_cleanup(config, 5) == AutoCleanup(retain_versions=2**64 - 1)
    with pytest.raises(InvalidInputError, match="must be a whole number"):
        due_cleanup({INTERVAL: f"{2**64}"}, 5)
    longest = due_cleanup({INTERVAL: "1", OLDER_THAN: "99999999999y"}, 5)
    assert longest is not None
    assert longest.older_than is not None
    assert longest.older_than > timedelta(999_999_990)


def test_logged_failures_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process with many tables must not remember all of their failures."""
    monkeypatch.setattr(auto_cleanup, "_MAX_LOGGED", 2)
    monkeypatch.setattr(auto_cleanup, "_logged", set())
    sizes = []
    for uri in ("a", "a", "b", "b", "c", "a"):
        auto_cleanup._log_failure(uri, ValueError("x"))
        sizes.append(len(auto_cleanup._logged))
    assert sizes == [1, 1, 2, 2, 1, 2]
    assert [record.args[0] for record in caplog.records] == ["a", "b", "c", "a"]
