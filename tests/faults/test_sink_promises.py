"""What the sink promises when things go wrong, one by one, for every way to write a batch.

- the newest entry of the checkpoint's commit log is lost
- a crash between the writes to two tables of one batch
- the commit lands and then fails, also while another writer moves on
- two drivers do the same batch
- the version that took the batch in has been cleaned up, or lies behind a gap
- a new checkpoint comes under an old app id
- a batch comes again with other data
- a batch is empty
- others change the table between the plan and the commit
- keys that are null, come twice, or are new to two writers at once
- changes of one key in one batch, and batches out of order
- tasks that are tried again: see test_faulty_workers.py
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError, OtherBatchError
from lance_stream.spark.versions import inheriting_properties
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.objects.object_store import ObjectStore
from lance_stream.storage.store import Store
from tests.arrow_frames import frame_of
from tests.faults.drivers import (
    MODES,
    Batch,
    Change,
    Rows,
    named_files,
    rows_at,
    to_arrow,
)
from tests.faults.locations import (
    folder_on,
    is_seen_by_pylance,
    on,
    open_by_pylance,
    open_table,
    sink_into,
)

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.some_cases(one_in=2)]

ARGUMENTS: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"mode": "upsert", "on": ["id"]},
    "cdc": {
        "mode": "upsert",
        "on": ["id"],
        "sequence_by": "seq",
        "delete_when": "op = 'd'",
        "except_columns": ["op"],
    },
    "overwrite": {"mode": "overwrite", "any_output_mode": True},
}

# Without deletes, for all modes; ids come again from the second batch on.
PLAIN: Sequence[Batch] = (
    [Change(n, "first", 1) for n in range(8)],
    [Change(n, "second", 2) for n in (1, 6, 8, 9)],
    [Change(n, "third", 3) for n in (0, 8, 10)],
)


def as_file(mode: str, batch: Batch) -> pa.Table:
    rows = to_arrow(batch)
    if mode != "cdc":
        assert not any(change.deletes for change in batch), "only CDC knows deletes"
        return rows
    return rows.append_column("op", pa.array(["d" if change.deletes else "u" for change in batch]))


def after(mode: str, batches: Sequence[Batch], rows: Rows | None = None) -> Rows:
    """Return the rows of a table that has taken in some batches."""
    rows = rows or []
    for batch in batches:
        rows = MODES[mode].model(rows, batch)
    return rows


def versions_of(uri: str) -> list[int]:
    return open_table(uri).table.log.versions()


def check(uri: str, expected: Rows) -> None:
    """The table has these rows, for us and for pylance, and is sound."""
    table = open_table(uri)
    assert rows_at(uri) == expected
    if is_seen_by_pylance(uri):
        theirs = open_by_pylance(uri).to_table(["id", "value", "seq"]).to_pylist()
        assert sorted(tuple(row.values()) for row in theirs) == expected
    assert table.verify() == []


def check_all_files_are_named(uri: str) -> None:
    table = open_table(uri).table
    stored = {file.path for name in ("data", "_deletions") for file in table.store.list(name)}
    assert stored == named_files(table)


@pytest.fixture
def kind() -> str:
    """The kind of store that a test plays on, unless its parameters say otherwise."""
    return "local"


@pytest.fixture
def folder(kind: str, request: pytest.FixtureRequest) -> str:
    return folder_on(kind, request)


@pytest.fixture
def uri(folder: str) -> str:
    return f"{folder}/table"


ON_LOCAL_DISKS = [on("local", mode) for mode in ARGUMENTS]
ON_STORES = [on("s3", "append"), on("s3", "cdc"), on("google", "append"), on("azure", "upsert")]
every_mode = pytest.mark.parametrize(("mode", "kind"), ON_LOCAL_DISKS)
every_mode_and_store = pytest.mark.parametrize(("mode", "kind"), [*ON_LOCAL_DISKS, *ON_STORES])


def instead_of(
    patch: pytest.MonkeyPatch, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Let stores do something else in place of one of their methods, which it is given."""
    for kind in (LocalStore, ObjectStore):
        patch.setattr(kind, name, make(getattr(kind, name)))


@contextmanager
def once_before(
    monkeypatch: pytest.MonkeyPatch, folder: str, act: Callable[[], None]
) -> Iterator[list[str]]:
    """Act once, just before the driver creates a file in a folder of the table."""
    acted: list[str] = []

    def acting(real: Callable[..., bool]) -> Callable[..., bool]:
        def create_once(store: Store, path: str, data: Any, **named: Any) -> bool:
            if path.startswith(folder) and not acted:
                acted.append(path)
                act()
            return real(store, path, data, **named)

        return create_once

    with monkeypatch.context() as patch:
        instead_of(patch, "create_once", acting)
        yield acted
    assert acted, "nothing was created there"


# --- a


@every_mode_and_store
def test_a_replay_changes_nothing(file_stream: Any, uri: str, mode: str) -> None:
    """The newest entry of the commit log is lost, so the same batch comes again."""
    for batch in PLAIN:
        file_stream.add(as_file(mode, batch))
    sink = sink_into(uri, **ARGUMENTS[mode])
    file_stream.run(sink)
    before = versions_of(uri)
    for _ in range(2):
        newest = file_stream.forget_newest_commit()
        file_stream.run(sink)
        assert sink.last_commit is not None
        assert (sink.last_commit.batch_id, sink.last_commit.skipped) == (newest, True)
        assert versions_of(uri) == before
    check(uri, after(mode, PLAIN))
    check_all_files_are_named(uri)


# --- b


@every_mode_and_store
def test_crashes_between_two_tables_are_harmless(file_stream: Any, folder: str, mode: str) -> None:
    """One function writes several tables, and the restart repeats those that have the batch
    already.
    """
    uris = [f"{folder}/{name}" for name in ("one", "two", "three")]
    sinks = [sink_into(value, **ARGUMENTS[mode]) for value in uris]
    crashes = {(0, 0), (1, 1), (1, 0), (2, 2)}

    def write(df: Any, batch_id: int) -> None:
        for number, sink in enumerate(sinks):
            sink(df, batch_id)
            if (batch_id, number) in crashes:
                crashes.remove((batch_id, number))
                raise RuntimeError("between the tables")

    for batch in PLAIN:
        file_stream.add(as_file(mode, batch))
    while crashes:
        with pytest.raises(Exception, match="between the tables"):
            file_stream.run(write)
    file_stream.run(write)
    for item in uris:
        check(item, after(mode, PLAIN))
        assert versions_of(item) == [1, 2, 3]
        check_all_files_are_named(item)


# --- c


@every_mode_and_store
@pytest.mark.essential
def test_lost_replies_amid_rivals_are_ours(
    file_stream: Any, uri: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer's version follows before the error arrives, so the newest version is not the
    sink's own.
    """
    lost: list[str] = []

    def losing(real: Callable[..., bool]) -> Callable[..., bool]:
        def create_once(store: Store, path: str, data: Any, **named: Any) -> bool:
            created = real(store, path, data, **named)
            if path.endswith(".manifest") and versions_of(uri) == [1, 2] and not lost:
                lost.append(path)
                open_table(uri).append(to_arrow([Change(100, "theirs", 1)]))
                raise OSError("the wire is cut")
            return created

        return create_once

    instead_of(monkeypatch, "create_once", losing)
    for batch in PLAIN[:2]:
        file_stream.add(as_file(mode, batch))
    file_stream.run(sink_into(uri, **ARGUMENTS[mode]))
    assert lost
    check(uri, sorted([*after(mode, PLAIN[:2]), (100, "theirs", 1)]))
    assert versions_of(uri) == [1, 2, 3]
    check_all_files_are_named(uri)


@every_mode_and_store
def test_unnoticed_commits_are_skipped_later(
    file_stream: Any, uri: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded although the driver could not learn it, and the repeated batch must
    find it.
    """
    lost: list[str] = []

    def losing(real: Callable[..., bool]) -> Callable[..., bool]:
        def create_once(store: Store, path: str, data: Any, **named: Any) -> bool:
            created = real(store, path, data, **named)
            names = store.list_names("_versions")
            if (
                path.endswith(".manifest")
                and sum(name.endswith(".manifest") for name in names) == 2
            ):
                lost.append(path)
                raise OSError("the wire is cut")
            return created

        return create_once

    def still_lost(real: Callable[..., bytes]) -> Callable[..., bytes]:
        def read(store: Store, path: str) -> bytes:
            if path in lost:
                raise OSError("the wire is still cut")
            return real(store, path)

        return read

    for batch in PLAIN:
        file_stream.add(as_file(mode, batch))
    sink = sink_into(uri, **ARGUMENTS[mode])
    with monkeypatch.context() as patch:
        instead_of(patch, "create_once", losing)
        instead_of(patch, "read", still_lost)
        with pytest.raises(Exception, match="CommitUncertainError"):
            file_stream.run(sink)
    skipped: list[bool] = []

    def remember(df: Any, batch_id: int) -> None:
        sink(df, batch_id)
        assert sink.last_commit is not None
        skipped.append(sink.last_commit.skipped)

    file_stream.run(remember)
    assert skipped == [True, False]
    check(uri, after(mode, PLAIN))
    assert versions_of(uri) == [1, 2, 3]
    check_all_files_are_named(uri)


# --- d


@every_mode_and_store
@pytest.mark.essential
def test_concurrent_drivers_commit_batches_once(file_stream: Any, uri: str, mode: str) -> None:
    """Every order of their steps is covered by test_interleaved_drivers.py."""
    sinks = [sink_into(uri, app_id="app", **ARGUMENTS[mode]) for _ in range(2)]
    errors: list[BaseException] = []

    def both(df: Any, batch_id: int) -> None:
        start = threading.Barrier(2)

        def take_in(sink: Any) -> None:
            try:
                start.wait(60)
                sink(df, batch_id)
            except BaseException as error:
                errors.append(error)

        wrap = inheriting_properties(df.sparkSession)
        threads = [threading.Thread(target=wrap(take_in), args=(sink,)) for sink in sinks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    for batch in PLAIN:
        file_stream.add(as_file(mode, batch))
    file_stream.run(both)
    assert errors == []
    check(uri, after(mode, PLAIN))
    assert versions_of(uri) == [1, 2, 3]
    check_all_files_are_named(uri)


# --- e


@every_mode
@pytest.mark.essential
def test_batches_of_removed_versions_are_recognized(file_stream: Any, uri: str, mode: str) -> None:
    """A cleanup between commit and replay removes the version that held the batch."""
    for batch in PLAIN:
        file_stream.add(as_file(mode, batch))
    sink = sink_into(uri, **ARGUMENTS[mode])
    file_stream.run(sink)
    open_by_pylance(uri).update_config({"some": "entry"})
    open_by_pylance(uri).cleanup_old_versions(timedelta(0))
    before = versions_of(uri)
    assert len(before) == 1
    file_stream.forget_newest_commit()
    file_stream.run(sink)
    assert versions_of(uri) == before
    check(uri, after(mode, PLAIN))


@every_mode
def test_batches_of_missing_versions_are_recognized(file_stream: Any, uri: str, mode: str) -> None:
    """Another program's cleanup may leave gaps, and the ledger in the newest
    version must suffice.
    """
    for batch in PLAIN:
        file_stream.add(as_file(mode, batch))
    sink = sink_into(uri, **ARGUMENTS[mode])
    file_stream.run(sink)
    open_by_pylance(uri).update_config({"some": "entry"})
    taken_in = versions_of(uri)[-2]
    (manifest,) = (
        path
        for path in Path(uri, "_versions").iterdir()
        if path.name == f"{(1 << 64) - 1 - taken_in:020}.manifest"
    )
    manifest.unlink()
    before = versions_of(uri)
    file_stream.forget_newest_commit()
    file_stream.run(sink)
    assert versions_of(uri) == before
    assert taken_in not in before
    check(uri, after(mode, PLAIN))


# --- f


@every_mode
def test_new_checkpoints_cannot_reuse_app_ids(file_stream: Any, uri: str, mode: str) -> None:
    """A new checkpoint counts from zero, so its rows would be lost as replays."""
    for batch in PLAIN:
        file_stream.add(as_file(mode, batch))
    file_stream.run(sink_into(uri, app_id="app", **ARGUMENTS[mode]))
    before = versions_of(uri)
    with pytest.raises(Exception, match=r"InvalidInputError.*'app'.*checkpoint"):
        file_stream.run(sink_into(uri, app_id="app", **ARGUMENTS[mode]), checkpoint="another")
    assert versions_of(uri) == before
    check(uri, after(mode, PLAIN))
    check_all_files_are_named(uri)


# --- g


@every_mode
@pytest.mark.essential
def test_replays_with_other_rows_are_refused(spark: Any, uri: str, mode: str) -> None:
    """Such a replay would lose rows, also after a restart."""
    sink = sink_into(uri, app_id="app", **ARGUMENTS[mode])
    for batch_id, batch in enumerate(PLAIN[:2]):
        sink(frame_of(spark, as_file(mode, batch)), batch_id)
    before = versions_of(uri)
    other = sink_into(uri, app_id="app", **ARGUMENTS[mode])
    with pytest.raises(OtherBatchError, match="have arrived under the same batch id"):
        other(frame_of(spark, as_file(mode, PLAIN[2])), 1)
    assert versions_of(uri) == before
    check(uri, after(mode, PLAIN[:2]))


@every_mode
def test_a_failed_batch_may_return_changed(
    file_stream: Any, uri: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the rows of the second attempt are in the table."""

    def fail() -> None:
        raise ConnectionError("the wire is cut")

    sink = sink_into(uri, **ARGUMENTS[mode])
    which = [PLAIN[1], PLAIN[2]]

    def changing(df: Any, batch_id: int) -> None:
        rows = frame_of(df.sparkSession, as_file(mode, which[0])) if batch_id else df
        sink(rows, batch_id)

    for batch in PLAIN[:2]:
        file_stream.add(as_file(mode, batch))
    with (
        once_before(monkeypatch, "_transactions/1-", fail),
        pytest.raises(Exception, match="the wire is cut"),
    ):
        file_stream.run(changing)
    which.pop(0)
    file_stream.run(changing)
    check(uri, after(mode, [PLAIN[0], PLAIN[2]]))
    assert versions_of(uri) == [1, 2]


# --- h


@every_mode_and_store
def test_only_first_empty_batch_commits(file_stream: Any, uri: str, mode: str) -> None:
    """The first batch creates the table, and an empty overwrite of rows is a change as well."""
    sink = sink_into(uri, **ARGUMENTS[mode])

    def without_some(df: Any, batch_id: int) -> None:
        sink(df.filter("id < 0") if batch_id in (0, 2) else df, batch_id)

    batches = [PLAIN[0], PLAIN[1], PLAIN[1], PLAIN[2]]
    for batch in batches[:3]:
        file_stream.add(as_file(mode, batch))
    file_stream.run(without_some)
    assert versions_of(uri) == ([1, 2] if mode != "overwrite" else [1, 2, 3])
    file_stream.forget_newest_commit()
    file_stream.run(without_some)
    file_stream.add(as_file(mode, batches[3]))
    file_stream.run(without_some)
    check(uri, after(mode, [PLAIN[1], PLAIN[2]]))
    check_all_files_are_named(uri)


# --- i

Interloper = Callable[[str], None]
Effect = Callable[[Rows], Rows]


def even_out(rows: Rows) -> Rows:
    return [row for row in rows if row[0] % 2 == 0]


def from_pylance(act: Callable[[Any], Any]) -> Interloper:
    return lambda uri: act(open_by_pylance(uri))


def overwrite_by_pylance(uri: str, rows: pa.Table) -> None:
    lance.write_dataset(rows.cast(open_by_pylance(uri).schema), uri, mode="overwrite")


OTHERS_ROWS = [Change(1, "theirs", 1), Change(50, "theirs", 1)]
INTERLOPERS: dict[str, tuple[Interloper, Effect]] = {
    "our delete": (lambda uri: open_table(uri).delete("id % 2 = 1") and None, even_out),
    "our compaction": (lambda uri: open_table(uri).compact() and None, lambda rows: rows),
    "our overwrite": (
        lambda uri: open_table(uri).overwrite(to_arrow(OTHERS_ROWS)) and None,
        lambda _rows: after("append", [OTHERS_ROWS]),
    ),
    "our restore": (
        lambda uri: open_table(uri).restore(1) and None,
        lambda _rows: after("append", [PLAIN[0]]),
    ),
    "our update": (
        lambda uri: open_table(uri).update({"value": "'x'"}, "id < 3") and None,
        lambda rows: [(i, "x" if i < 3 else value, seq) for i, value, seq in rows],
    ),
    "delete": (from_pylance(lambda table: table.delete("id % 2 = 1")), even_out),
    "compaction": (
        from_pylance(lambda table: table.optimize.compact_files()),
        lambda rows: rows,
    ),
    "overwrite": (
        lambda uri: overwrite_by_pylance(uri, to_arrow(OTHERS_ROWS)),
        lambda _rows: after("append", [OTHERS_ROWS]),
    ),
    "restore": (
        from_pylance(lambda table: table.checkout_version(1).restore()),
        lambda _rows: after("append", [PLAIN[0]]),
    ),
    "new column": (
        from_pylance(lambda table: table.add_columns({"twice": "nullif(id * 2, -1)"})),
        lambda rows: rows,
    ),
    "update": (
        from_pylance(lambda table: table.update({"value": "'x'"}, "id < 3")),
        lambda rows: [(i, "x" if i < 3 else value, seq) for i, value, seq in rows],
    ),
    "index": (
        from_pylance(lambda table: table.create_scalar_index("id", "BTREE")),
        lambda rows: rows,
    ),
}


@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize(
    ("interloper", "mode", "kind"),
    [
        *(
            on("local", interloper, mode)
            for interloper in INTERLOPERS
            for mode in ("append", "upsert")
        ),
        *(on("s3", name, "upsert") for name in ("our compaction", "delete", "update")),
        on("google", "our delete", "append"),
        on("azure", "compaction", "append"),
    ],
)
@pytest.mark.essential
def test_concurrent_changes_precede_the_batch(
    file_stream: Any, uri: str, mode: str, interloper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others change the table between the batch's plan and its commit."""
    act, effect = INTERLOPERS[interloper]
    sink = sink_into(uri, **ARGUMENTS[mode])
    for batch in PLAIN[:2]:
        file_stream.add(as_file(mode, batch))
    file_stream.run(sink)
    file_stream.add(as_file(mode, PLAIN[2]))
    with once_before(monkeypatch, "_transactions/", lambda: act(uri)):
        file_stream.run(sink)
    check(uri, after(mode, [PLAIN[2]], effect(after(mode, PLAIN[:2]))))
    before = versions_of(uri)
    file_stream.forget_newest_commit()
    file_stream.run(sink)
    assert versions_of(uri) == before
    check_all_files_are_named(uri)


# --- j


@pytest.mark.parametrize("mode", ["upsert", "cdc"])
def test_null_keys_are_counted_and_refused(spark: Any, uri: str, mode: str) -> None:
    """The count shows how bad the batch is, and the refusal must leave neither version nor file."""
    sink = sink_into(uri, app_id="app", **ARGUMENTS[mode])
    sink(frame_of(spark, as_file(mode, PLAIN[0])), 0)
    before = versions_of(uri)
    op = ", 'u' AS op" if mode == "cdc" else ""
    bad = spark.sql(f"SELECT if(id < 2, NULL, id) AS id, 'v' AS value, 2L AS seq{op} FROM range(9)")
    with pytest.raises(InvalidInputError, match="2"):
        sink(bad, 1)
    assert versions_of(uri) == before
    check_all_files_are_named(uri)


def test_duplicate_keys_need_a_sequence(spark: Any, uri: str) -> None:
    """Without a sequence the batch is refused, and nothing is written."""
    sink = sink_into(uri, app_id="app", **ARGUMENTS["upsert"])
    sink(frame_of(spark, as_file("upsert", PLAIN[0])), 0)
    before = versions_of(uri)
    twice = [Change(4711, "one", 2), Change(4711, "other", 3), Change(5, "v", 2)]
    with pytest.raises(InvalidInputError, match="4711"):
        sink(frame_of(spark, as_file("upsert", twice)), 1)
    assert versions_of(uri) == before
    check_all_files_are_named(uri)


@pytest.mark.parametrize("writer", ["our upsert", "our sink", "pylance"])
@pytest.mark.parametrize("mode", ["upsert", "cdc"])
def test_keys_inserted_concurrently_are_merged(
    spark: Any, uri: str, mode: str, writer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that is new to two writers at once gets one row."""
    sink = sink_into(uri, app_id="app", **ARGUMENTS[mode])
    sink(frame_of(spark, as_file(mode, PLAIN[0])), 0)
    theirs = [Change(70, "theirs", 1), Change(71, "theirs", 1)]
    ours = [Change(70, "ours", 2), Change(72, "ours", 2)]

    def insert_first() -> None:
        if writer == "pylance":
            merge = open_by_pylance(uri).merge_insert("id")
            merge.when_matched_update_all().when_not_matched_insert_all().execute(to_arrow(theirs))
        elif writer == "our upsert":
            open_table(uri).upsert(to_arrow(theirs), on=["id"])
        else:
            rows = frame_of(spark, as_file(mode, theirs))
            sink_into(uri, app_id="other", **ARGUMENTS[mode])(rows, 0)

    with once_before(monkeypatch, "_transactions/", insert_first):
        sink(frame_of(spark, as_file(mode, ours)), 1)
    check(uri, after(mode, [PLAIN[0], theirs, ours]))
    check_all_files_are_named(uri)


# --- k


def test_newest_changes_of_keys_win(file_stream: Any, uri: str) -> None:
    """A batch holds several changes of a key in any order, deletes included."""
    batches = [
        [Change(1, "a", 1), Change(2, "a", 1), Change(3, "a", 1)],
        [
            Change(1, "", 5, True),
            Change(1, "update", 4),
            Change(2, "", 4, True),
            Change(2, "insert again", 5),
            Change(4, "insert", 4),
            Change(4, "update", 5),
            Change(4, "", 6, True),
            Change(5, "", 4, True),
            Change(5, "insert", 5),
        ],
    ]
    for batch in batches:
        file_stream.add(as_file("cdc", batch))
    file_stream.run(sink_into(uri, **ARGUMENTS["cdc"]))
    check(uri, [(2, "insert again", 5), (3, "a", 1), (5, "insert", 5)])
    assert rows_at(uri) == after("cdc", batches)
    assert versions_of(uri) == [1, 2]


@pytest.mark.essential
def test_late_changes_across_batches_are_ignored(file_stream: Any, uri: str) -> None:
    """Kafka delivers partitions independently, so an older change can arrive batches later."""
    batches = [
        [Change(1, "newest", 9), Change(2, "old", 1)],
        [Change(1, "late", 5), Change(2, "newer", 2), Change(3, "", 3, True)],
        [Change(1, "", 7, True), Change(2, "late", 1)],
    ]
    sink = sink_into(uri, **ARGUMENTS["cdc"])
    for batch in batches:
        file_stream.add(as_file("cdc", batch))
    file_stream.run(sink)
    check(uri, [(1, "newest", 9), (2, "newer", 2)])
    assert rows_at(uri) == after("cdc", batches)
    check_all_files_are_named(uri)
