"""Compactions while others write: the prepared files follow them, and no row changes."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyroaring import BitMap

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.committer import read_transaction
from lance_stream.errors import (
    CommitUncertainError,
    IncompatibleConflictError,
    InvalidInputError,
    NotFoundError,
    RetryableConflictError,
    TableReplacedError,
)
from lance_stream.maintenance.compaction import compact as compaction
from lance_stream.maintenance.compaction.compact import (
    CompactionResult,
    _check_ids_unused,
    commit_prepared,
    compact,
)
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import (
    PreparedCompaction,
    RewriteTask,
    prepare,
    write_locally,
)
from lance_stream.maintenance.verification.verify import verify
from lance_stream.retries import RetryPolicy
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.resolving import checkout
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.indices import IndexMetadata, encode_index_section
from lance_stream.table.manifest import FragmentList
from lance_stream.table.operations.moved_rows import Rewrite
from lance_stream.write.planning import MAX_PLANS
from tests.commit.tables import make_environment
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())])
RULES = CompactionRules(100)
Act = Callable[[Dataset], Any]


def rows(*ids: int, x: str = "") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x or f"row {id_}" for id_ in ids]}, schema=SCHEMA)


def new_table(*, stable_row_ids: bool = True) -> TableVersion:
    """Fragments of 4, 3 and 3 rows; row 1 of the first is deleted."""
    ds = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", SCHEMA, stable_row_ids=stable_row_ids
    )
    ds = ds.append(rows(0, 1, 2, 3)).append(rows(4, 5, 6)).append(rows(7, 8, 9))
    return ds.delete("id = 1").table


def content(table: TableVersion) -> list[dict[str, Any]]:
    reader = Dataset(table).scan(
        with_row_id=table.has_stable_row_ids, with_row_versions=table.has_stable_row_ids
    )
    return sorted(reader.read_all().to_pylist(), key=lambda row: row["id"])


def feed(table: TableVersion, after: int) -> int:
    return Dataset(table).changes(after).read_all().num_rows


def files_of_no_version(table: TableVersion) -> set[str]:
    named: set[str] = set()
    for version in table.log.versions():
        for fragment in table.log.read(version).fragments:
            named.update(f"data/{file.path}" for file in fragment.files)
            if fragment.deletion_file is not None:
                kind = ".bin" if fragment.deletion_file.file_type else ".arrow"
                file = fragment.deletion_file
                named.add(f"_deletions/{fragment.id}-{file.read_version}-{file.id}{kind}")
    stored = {file.path for folder in ("data", "_deletions") for file in table.store.list(folder)}
    assert named <= stored
    return stored - named


def sizes(table: TableVersion) -> list[tuple[int, int]]:
    """How many rows, and how many live ones, each fragment has."""
    return [
        (fragment.physical_rows, fragment.num_live_rows) for fragment in table.manifest.fragments
    ]


def commit_and_check(prepared: PreparedCompaction, **options: Any) -> CompactionResult:
    before = newest_version_of(prepared.table)
    expected = content(before)
    result = commit_prepared(prepared, **options)
    assert content(result.table) == expected
    assert verify(result.table) == []
    assert files_of_no_version(result.table) == set()
    if result.table.version > before.version:
        assert stated_ids(result.table) == added_ids(before, result.table)
        if before.has_stable_row_ids:
            assert feed(result.table, before.version) == 0
    return result


def stated_ids(table: TableVersion) -> set[int]:
    """Return the ids that the version's transaction, a compaction's, states of new fragments."""
    transaction = read_transaction(table.log, table.manifest)
    assert transaction is not None
    assert isinstance(transaction.operation, Rewrite)
    groups = transaction.operation.groups
    return {fragment.id for group in groups for fragment in group.new_fragments}


def added_ids(before: TableVersion, after: TableVersion) -> set[int]:
    return set(after.manifest.fragments.ids) - set(before.manifest.fragments.ids)


def test_compaction_changes_only_the_fragments() -> None:
    """Readers of rows and of the feed must not notice a compaction."""
    table = new_table()
    result = commit_and_check(prepare(table, RULES))
    assert (result.num_removed, result.num_added, result.num_abandoned) == (3, 1, 0)
    assert sizes(result.table) == [(9, 9)]
    assert result.table.version == table.version + 1


@pytest.mark.parametrize("stable_row_ids", [True, False])
@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda ds: ds.append(rows(20, 21)), [(2, 2), (9, 9)]),
        (lambda ds: ds.delete("id IN (0, 5, 9)"), [(9, 6)]),
        (lambda ds: ds.delete("id = 3").delete("id = 8"), [(9, 7)]),
        (lambda ds: ds.upsert(rows(3, 4, 30, x="new"), on=["id"]), [(3, 3), (9, 7)]),
        # its fragment has another file, and stays
        (lambda ds: ds.update({"x": "'new'"}, where="id = 6"), [(3, 3), (9, 6)]),
        (lambda ds: ds.delete("id BETWEEN 4 AND 6"), [(9, 6)]),  # a whole fragment
        (lambda ds: ds.update_config({"a": "b"}), [(9, 9)]),
    ],
)
def test_concurrent_deletes_survive_the_rewrite(
    act: Act, expected: list[tuple[int, int]], stable_row_ids: bool
) -> None:
    """Writers must not wait for a compaction, so their changes are carried over to the new
    files.
    """
    table = new_table(stable_row_ids=stable_row_ids)
    prepared = prepare(table, RULES)
    act(Dataset(table))
    result = commit_and_check(prepared)
    assert sizes(result.table) == expected
    assert result.num_abandoned == 0


def test_concurrent_deletes_find_their_new_fragment() -> None:
    """With several fragments on both sides an offset could be counted in the wrong one."""
    table = new_table()
    prepared = prepare(table, CompactionRules(3, max_deleted_fraction=0.0))
    assert [fragment.physical_rows for group in prepared.groups for fragment in group.new] == [3]
    table = Dataset(table).delete("id = 5").table
    wide = prepare(table, RULES)
    halves = prepare(compact(table).table, CompactionRules(4, max_deleted_fraction=-1.0))
    assert [fragment.physical_rows for group in halves.groups for fragment in group.new] == [4, 4]
    wide.delete_files(table.store)
    prepared.delete_files(table.store)
    Dataset(table).delete("id IN (0, 8, 9)")
    result = commit_and_check(halves)
    assert sizes(result.table) == [(4, 3), (4, 2)]


def test_fully_deleted_new_fragments_are_dropped() -> None:
    """A concurrent delete can empty a new fragment before it is committed."""
    table = compact(new_table()).table
    prepared = prepare(table, CompactionRules(3, max_deleted_fraction=-1.0))
    Dataset(table).delete("id IN (0, 2, 3)")
    result = commit_and_check(prepared)
    assert sizes(result.table) == [(3, 3), (3, 3)]
    assert (result.num_removed, result.num_added) == (1, 2)


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        # restored: the rows that were deleted live again, and were not written
        (lambda ds: ds.restore(ds.version - 1), [(4, 4), (9, 6)]),
        (lambda ds: ds.delete("id BETWEEN 4 AND 6").append(rows(4, 5, 6)), [(3, 3), (9, 6)]),
    ],
)
def test_changed_fragments_stay_uncompacted(act: Act, expected: list[tuple[int, int]]) -> None:
    """Only the unchanged fragments of the group are replaced."""
    table = new_table()
    prepared = prepare(table, RULES)
    act(Dataset(table))
    result = commit_and_check(prepared)
    assert sizes(result.table) == expected


@pytest.mark.parametrize(
    "act",
    [
        lambda ds: ds.overwrite(rows(1, 2)),
        lambda ds: ds.delete("id IN (0, 2, 3, 4, 5)"),
        lambda ds: ds.delete("id >= 0"),
        lambda ds: ds.compact(),
    ],
)
def test_useless_groups_are_abandoned(act: Act) -> None:
    """A group that no longer saves anything must not leave files."""
    table = new_table()
    prepared = prepare(table, RULES)
    newest = act(Dataset(table)).version
    result = commit_and_check(prepared)
    assert (result.num_removed, result.num_added, result.num_abandoned) == (0, 0, 1)
    assert result.table.version == newest


def test_groups_are_abandoned_independently() -> None:
    """One group that was overtaken must not cost the work on the others."""
    table = Dataset(new_table()).append(rows(*range(20, 120))).append(rows(120, 121)).table
    table = Dataset(table).append(rows(122, 123)).table
    prepared = prepare(table, RULES)
    assert len(prepared.groups) == 2
    Dataset(table).delete("id >= 120")
    result = commit_and_check(prepared)
    assert (result.num_removed, result.num_added, result.num_abandoned) == (3, 1, 1)


def meddling(*acts: Act) -> Callable[[Sequence[RewriteTask]], Iterator[list[Fragment]]]:
    """A way to write during which another writer acts: the next one each time."""
    remaining = list(acts)

    def write(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        if remaining:
            uri = tasks[0].target.store.uri
            remaining.pop(0)(lance_stream.open_dataset(uri))
        yield from write_locally(tasks)

    return write


def test_abandoned_groups_are_planned_again() -> None:
    """A group is given up if its fragments are gone; the remaining rows still deserve a
    compaction, and no file may stay.
    """
    table = new_table()
    write = meddling(
        lambda ds: ds.delete("id IN (0, 2, 3, 4, 5)"),
        lambda ds: ds.delete("id = 6"),
    )
    result = compact(table, write=write)
    assert sizes(result.table) == [(4, 3)]
    assert [row["id"] for row in content(result.table)] == [7, 8, 9]
    assert (result.num_removed, result.num_added) == (1, 1)
    assert files_of_no_version(result.table) == set()


def test_planning_attempts_are_limited() -> None:
    """On a table that is overwritten all the time the verb must end with an error."""
    table = new_table()
    overwrite: Act = lambda ds: ds.overwrite(rows(1)).append(rows(2))  # noqa: E731  # one of many
    with pytest.raises(RetryableConflictError, match=f"{MAX_PLANS} times in a row"):
        compact(table, write=meddling(*[overwrite] * MAX_PLANS))
    assert files_of_no_version(newest_version_of(table)) == set()


def bytes_of_fragments(table: TableVersion) -> list[int]:
    return [
        sum(file.size_bytes for file in fragment.files) for fragment in table.manifest.fragments
    ]


def test_large_compactions_commit_in_between() -> None:
    """Hours of work in one commit would be lost to one failure, and concurrent changes must
    survive each part.
    """
    ds = Dataset(new_table())
    for first in range(10, 30, 2):
        ds = ds.append(rows(first, first + 1))
    table, before = ds.table, content(ds.table)
    write = meddling(lambda ds: ds.append(rows(90)), lambda ds: ds.delete("id = 12"))
    maximum = 4 * max(bytes_of_fragments(table))
    result = compact(table, 8, write, bytes_per_commit=maximum)
    versions = Dataset(result.table).versions()
    assert [version.operation for version in versions].count("Rewrite") > 2
    assert [row for row in content(result.table) if row["id"] != 90] == [
        row for row in before if row["id"] != 12
    ]
    assert (1, 1) in sizes(result.table)  # what was added meanwhile waits for the next compaction
    assert result.num_removed > result.num_added
    assert verify(result.table) == []
    assert files_of_no_version(result.table) == set()
    assert feed(result.table, table.version) == 2


def test_partial_commits_reach_the_same_result() -> None:
    """Committing in parts must not leave fragments that a whole compaction would have merged."""
    ds = Dataset(new_table())
    for first in range(10, 30, 2):
        ds = ds.append(rows(first, first + 1))
    for maximum in 5 * max(bytes_of_fragments(ds.table)), 1:  # the second is less than one group
        result = compact(ds.table, 8, bytes_per_commit=maximum)
        assert result.num_removed > result.num_added > 0
        assert compact(result.table, 8, bytes_per_commit=maximum).num_removed == 0
        assert compact(result.table, 8).num_removed == 0
        ds = Dataset(result.table).restore(ds.version)


def test_failures_keep_earlier_commits() -> None:
    """An error in a later part must neither undo the earlier ones nor leave files."""
    ds = Dataset(new_table())
    for first in range(10, 30, 2):
        ds = ds.append(rows(first, first + 1))
    calls: list[int] = []

    def write(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        calls.append(len(tasks))
        if len(calls) == 3:
            raise OSError("the disk is gone")
        yield from write_locally(tasks)

    with pytest.raises(OSError, match="the disk is gone"):
        compact(ds.table, 8, write, bytes_per_commit=4 * max(bytes_of_fragments(ds.table)))
    newest = newest_version_of(ds.table)
    assert newest.version == ds.version + 2
    assert content(newest) == content(ds.table)
    assert files_of_no_version(newest) == set()


def test_unchanged_deletion_files_are_read_once() -> None:
    """Preparing and committing both need the deleted offsets, and a read costs a request."""
    table = new_table()
    clear_deleted_offsets()
    store = WatchedStore(table.store)
    result = commit_prepared(prepare(watched(table, store), RULES))
    assert result.num_removed == 3
    read = [path for call, path in store.calls if call.startswith("read")]
    assert len([path for path in read if path.startswith("_deletions")]) == 1


def watched(table: TableVersion, store: WatchedStore) -> TableVersion:
    return TableVersion(table.uri, {}, store, type(table.log)(store), table.manifest)


def test_commits_follow_a_faster_writer() -> None:
    """Another writer takes the version number before each of the first attempts."""
    table = new_table()
    acts: list[Act] = [
        lambda ds: ds.append(rows(20)),
        lambda ds: ds.delete("id = 0"),
        lambda ds: ds.append(rows(21)),  # takes the id that the new fragment was to have
        lambda ds: ds.upsert(rows(4, x="new"), on=["id"]),
        lambda ds: ds.delete("id = 4"),
    ]

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/") and acts:
            acts.pop(0)(Dataset(table))

    prepared = prepare(table, RULES)
    store = WatchedStore(table.store, before=overtake)
    result = commit_prepared(
        PreparedCompaction(watched(table, store), prepared.groups), environment=make_environment()
    )
    assert acts == []
    assert result.table.version == table.version + 6
    assert sizes(result.table) == [(1, 1), (1, 1), (9, 7)]
    assert stated_ids(result.table) == added_ids(checkout(table, table.version + 5), result.table)
    assert [row["id"] for row in content(result.table)] == [2, 3, 5, 6, 7, 8, 9, 20, 21]
    assert files_of_no_version(newest_version_of(table)) == set()
    assert verify(newest_version_of(table)) == []


def test_appends_that_take_ids_delay_compactions() -> None:
    """The append comes after the ids were stated, and before the commit looks for newer versions.

    No row was deleted, so the new fragments have no deletion file that would need the ids.
    """
    table = new_table()
    appends = [rows(20), rows(21)]

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_transactions/") and appends:
            Dataset(table).append(appends.pop())

    store = WatchedStore(table.store, before=overtake)
    result = commit_prepared(
        PreparedCompaction(watched(table, store), prepare(table, RULES).groups),
        environment=make_environment(),
    )
    assert sizes(result.table) == [(1, 1), (1, 1), (9, 9)]
    assert stated_ids(result.table) == {5}
    assert files_of_no_version(result.table) == set()
    assert verify(result.table) == []


def test_commit_attempts_take_separate_turns() -> None:
    """Holding the turn during the wait between attempts would block the stream's batches."""
    table = new_table()
    happened: list[str] = []

    @contextmanager
    def turn() -> Iterator[None]:
        happened.append("turn")
        yield
        happened.append("end")

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/") and len(happened) < 5:
            Dataset(table).append(rows(20))

    store = WatchedStore(table.store, before=overtake)
    prepared = PreparedCompaction(watched(table, store), prepare(table, RULES).groups)
    environment = make_environment(
        sleep=lambda seconds: happened.append("wait") if seconds else None
    )
    commit_prepared(prepared, turn, environment)
    assert happened == ["turn", "end", "wait", "turn", "end", "wait", "turn", "end"]


def test_giving_up_deletes_the_files() -> None:
    """After the last attempt no version will name the rewritten files."""
    table = new_table()
    prepared = prepare(table, RULES)

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/"):
            Dataset(table).append(rows(20))

    store = WatchedStore(table.store, before=overtake)
    with pytest.raises(RetryableConflictError, match=r"faster in every attempt.*3 attempts in"):
        commit_prepared(
            PreparedCompaction(watched(table, store), prepared.groups),
            environment=make_environment(),
            retries=RetryPolicy(3, 0.02, 2.0),
        )
    assert files_of_no_version(newest_version_of(table)) == set()


def test_uncertain_commits_keep_their_files() -> None:
    """If the answer is lost the version may exist, and deleting its files would destroy rows."""
    table = new_table()
    prepared = prepare(table, RULES)
    Dataset(table).delete("id = 0")

    def fail(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/"):
            raise OSError("no answer")

    store = WatchedStore(table.store, before=fail)
    with pytest.raises(CommitUncertainError):
        commit_prepared(
            PreparedCompaction(watched(table, store), prepared.groups),
            environment=make_environment(),
        )
    remaining = files_of_no_version(newest_version_of(table))
    assert {text.split("/")[0] for text in remaining} == {"data", "_deletions"}


def test_ids_of_removed_fragments_stay_taken() -> None:
    """An index may still refer to a fragment that was added and emptied during the compaction."""
    table = new_table()
    check = _check_ids_unused(table)
    assert check(table.manifest) is None
    emptied = Dataset(table).append(rows(99)).delete("id = 99").table
    assert emptied.manifest.fragments.ids == table.manifest.fragments.ids
    with pytest.raises(RetryableConflictError, match="used the fragment ids"):
        check(emptied.manifest)


def test_lost_responses_are_not_failures() -> None:
    """The committer recognises its own manifest, so the compaction must not report or undo a
    success.
    """
    table = new_table()
    prepared = prepare(table, RULES)

    def fail(call: str, path: str) -> None:
        if call == "create_once" and path.startswith("_versions/"):
            raise OSError("the answer got lost")

    store = WatchedStore(table.store, after=fail)
    result = commit_prepared(
        PreparedCompaction(watched(table, store), prepared.groups), environment=make_environment()
    )
    assert sizes(result.table) == [(9, 9)]
    assert files_of_no_version(newest_version_of(table)) == set()


def test_failed_groups_delete_all_files() -> None:
    """Groups written before the error are not committed either."""
    table = Dataset(new_table()).append(rows(*range(20, 120))).append(rows(120)).table
    table = Dataset(table).append(rows(121)).table

    def write(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        yield from write_locally(tasks[:1])
        raise InvalidInputError("the second group cannot be read")

    with pytest.raises(InvalidInputError, match="second group"):
        prepare(table, RULES, write)
    assert files_of_no_version(table) == set()


def test_deleted_tables_are_reported() -> None:
    """Committing must not recreate a table that was dropped, and the rewritten files must go."""
    table = new_table()
    prepared = prepare(table, RULES)
    for entry in table.store.list():
        if entry.path.startswith("_versions/"):
            table.store.delete(entry.path)
    with pytest.raises(NotFoundError):
        commit_prepared(prepared)
    assert all(
        file.path not in {file.path.removeprefix("data/") for file in table.store.list("data")}
        for group in prepared.groups
        for fragment in group.new
        for file in fragment.files
    )


@pytest.mark.parametrize(
    ("error", "is_final"),
    [
        (RetryableConflictError("another writer was faster"), False),
        (IncompatibleConflictError("the fragments are gone"), False),
        (TableReplacedError("the table was replaced"), True),
        (OSError("the disk is full"), True),
    ],
)
def test_only_conflicts_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception, is_final: bool
) -> None:
    """Any other failure would be repeated, and hidden behind the last conflict."""
    table = new_table()
    prepared = prepare(table, RULES)
    num_files = len(table.store.list("data"))
    errors = [error]
    commit = compaction.commit

    def fail_once(*arguments: Any, **options: Any) -> Any:
        if errors:
            raise errors.pop()
        return commit(*arguments, **options)

    monkeypatch.setattr(compaction, "commit", fail_once)
    if is_final:
        with pytest.raises(type(error), match=str(error)):
            commit_prepared(prepared, environment=make_environment())
        assert len(table.store.list("data")) == num_files - 1
    else:
        assert commit_prepared(prepared, environment=make_environment()).num_removed == 3


@pytest.mark.parametrize(
    ("covered", "num_groups"), [([], 1), ([0, 1, 2], 1), ([0], 0), ([0, 1], 0), ([7], 1)]
)
def test_new_indices_cover_whole_groups(covered: list[int], num_groups: int) -> None:
    """An index of some of the old fragments could not cover the new one."""
    table = new_table()
    prepared = prepare(table, RULES)
    index = IndexMetadata(bytes(16), (0,), "an index", 1, BitMap(covered).serialize())
    indexed = replace(table.manifest, index_section=encode_index_section([index]))
    adapted = compaction._adapt(table.at(indexed), prepared, make_environment())
    assert len(adapted.groups) == num_groups


def test_emptied_tables_have_no_groups() -> None:
    """Old writers record no largest fragment id, which the table then lacks."""
    table = new_table()
    prepared = prepare(table, RULES)
    emptied = replace(table.manifest, fragments=FragmentList(()), max_fragment_id=None)
    adapted = compaction._adapt(table.at(emptied), prepared, make_environment())
    assert adapted.groups == ()


@pytest.mark.parametrize(("num_deleted", "num_groups"), [(3, 1), (4, 1), (5, 0)])
def test_half_of_the_rows_may_go(num_deleted: int, num_groups: int) -> None:
    """A new fragment with more deleted rows would soon be rewritten again."""
    table = new_table()
    prepared = prepare(table, RULES)
    ds = Dataset(table).append(rows(10)).delete("id = 10")
    newest = ds.delete(f"id >= {10 - num_deleted}").table
    prepared_rows = sum(fragment.physical_rows for fragment in prepared.groups[0].new)
    assert prepared_rows == 9
    limit = 4 / 9
    with patch.object(compaction, "MAX_DELETED_BEFORE_COMMIT", limit):
        adapted = compaction._adapt(newest, prepared, make_environment())
    assert len(adapted.groups) == num_groups
