from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap

from lance_stream.commit import committer
from lance_stream.commit.committer import (
    MAX_INLINE_TRANSACTION_BYTES,
    CommittedTransaction,
    ConfigEntries,
    commit,
)
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.commit.rebasing import rebase_transaction
from lance_stream.commit.same_table import check_files_exist
from lance_stream.errors import (
    IncompatibleConflictError,
    InvalidInputError,
    NotFoundError,
    RetryableConflictError,
    TableReplacedError,
    UnsupportedFeatureError,
)
from lance_stream.retries import RetryPolicy
from lance_stream.storage.locations import open_store
from lance_stream.table.apply.index_coverage import coverage
from lance_stream.table.fragments.fragment import DeletionFile, DeletionFileType, Fragment
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.indices import IndexMetadata, decode_index_section
from lance_stream.table.manifest import Manifest, encode_manifest
from lance_stream.table.operations.columns import DataOverlay, Merge
from lance_stream.table.operations.moved_rows import Rewrite, RewriteGroup
from lance_stream.table.operations.operation import Operation, UnknownOperation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update, UpdateMode
from lance_stream.table.operations.transaction import decode_transaction, encode_transaction
from lance_stream.table.operations.versions import CreateIndex, Restore
from tests.commit.tables import (
    CREATION,
    SCHEMA,
    START_NANOS,
    append,
    commit_to,
    configure,
    create,
    delete,
    deleted_offsets_of,
    live_ids,
    make_environment,
    make_store,
    new_fragment,
    overwrite,
    publish_foreign,
    skip,
    transaction,
)
from tests.contracts.watched_stores import WatchedStore


def test_the_first_commit_creates_a_table() -> None:
    """Version, fragment ids and row ids of a new table have to start as in the format's
    specification.
    """
    log = create(10, 5)
    manifest = log.read_latest()
    assert manifest.version == 1
    assert [fragment.id for fragment in manifest.fragments] == [0, 1]
    assert live_ids(log) == list(range(15))


def test_the_second_creator_must_replan() -> None:
    """Two writers create a table at once, and the later one has planned without
    the other's rows.
    """
    log = create(3)
    with pytest.raises(RetryableConflictError) as caught:
        commit(log, overwrite(0, 5), creation=CREATION, environment=make_environment())
    assert caught.value.version == 1
    assert live_ids(log) == [0, 1, 2]


def test_only_overwrites_create_tables() -> None:
    """Any other operation refers to fragments or columns that a new table lacks."""
    with pytest.raises(NotFoundError, match="no table for the operation Append"):
        commit(
            ObjectStoreLog(make_store()),
            append(0, 3),
            creation=CREATION,
            environment=make_environment(),
        )


def test_appends_cannot_recreate_tables() -> None:
    """A table that was deleted while a writer worked must not come back with the new rows alone."""
    with pytest.raises(NotFoundError, match="no dataset at"):
        commit(ObjectStoreLog(make_store()), append(3, 3), environment=make_environment())


def test_late_appends_get_the_newest_ids() -> None:
    """The append was planned on an older version, whose next row id is taken by now."""
    log = create(10)
    first, second = append(1, 4), append(1, 6)
    commit_to(log, first)
    manifest = commit_to(log, second)
    assert manifest.version == 3
    assert [fragment.id for fragment in manifest.fragments] == [0, 1, 2]
    assert live_ids(log) == list(range(20))
    assert manifest.next_row_id == 20


def test_transactions_are_in_file_and_manifest() -> None:
    """Other writers look for the transaction in both places when they check for conflicts."""
    log = create(10)
    planned = replace(append(1, 4), properties={"who": "me"})
    manifest = commit_to(log, planned)
    assert manifest.transaction_file == f"1-{planned.uuid}.txn"
    assert manifest.inline_transaction == log.store.read(f"_transactions/1-{planned.uuid}.txn")
    assert decode_transaction(manifest.inline_transaction or b"") == planned


def test_an_uncontested_commit_costs_four_requests() -> None:
    """Every request costs latency and money with each micro-batch."""
    store = WatchedStore(create(10).store)
    commit_to(ObjectStoreLog(store), append(1, 4))
    assert [call for call, _ in store.calls] == [
        "create_once",  # the transaction
        "list_files", "read_ranges",  # the newest version, which this process has made
        "create_once",  # the manifest
    ]  # fmt: skip


def test_the_transaction_file_is_written_once() -> None:
    """A commit that needs several attempts names the same file in each of them."""
    log = create(10)
    store = WatchedStore(log.store)
    rivals = iter([append(1, 1), append(1, 1)])

    def rival(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            planned = next(rivals, None)
            if planned is not None:
                commit_to(log, planned)

    store.before = rival
    result = commit(ObjectStoreLog(store), append(1, 4), environment=make_environment())
    assert (result.manifest.version, result.attempts) == (4, 3)
    files = [path for call, path in store.calls if call == "create_once" and path.endswith(".txn")]
    assert len(files) == 1


def test_large_transactions_are_not_inlined() -> None:
    """The manifest is read by every reader, and a replay must still be recognized from the file."""
    log = create(10)
    planned = replace(append(1, 4), properties={"x": "y" * MAX_INLINE_TRANSACTION_BYTES})
    manifest = commit_to(log, planned)
    assert manifest.inline_transaction is None
    commit_to(log, append(1, 3))
    assert skip(log, planned).reason == "this transaction was already committed as version 2"


@pytest.mark.parametrize("spare", [0, 1, -1])
def test_inline_transactions_have_a_limit(monkeypatch: pytest.MonkeyPatch, spare: int) -> None:
    """A transaction of exactly the limit has a copy in the manifest, as in the reference."""
    log = create(10)
    planned = append(1, 4)
    size = len(encode_transaction(planned))
    monkeypatch.setattr(committer, "MAX_INLINE_TRANSACTION_BYTES", size + spare)
    assert (commit_to(log, planned).inline_transaction is not None) == (spare >= 0)


def test_repeated_transactions_commit_once() -> None:
    """A driver may repeat a commit whose answer was lost, after other writers have committed."""
    log = create(10)
    planned = append(1, 4)
    commit_to(log, planned)
    commit_to(log, append(2, 1))
    assert skip(log, planned).manifest == log.read_latest()
    assert len(live_ids(log)) == 15


def test_timestamps_never_go_backwards() -> None:
    """Time travel and the change feed search versions by time, and clocks of writers differ."""
    log = create(10)
    before = log.read_latest().timestamp_nanos
    assert before == START_NANOS + 1_000_000_000
    slow = make_environment(now_nanos=lambda: 5)
    assert commit_to(log, append(1, 1), environment=slow).timestamp_nanos == before + 1
    assert commit_to(log, append(2, 1), environment=slow).timestamp_nanos == before + 2


def test_every_attempt_asks_the_hook() -> None:
    """The hook can end the commit at every attempt, for example when the batch is committed
    already.
    """
    log = create(10)
    store = WatchedStore(log.store)
    seen: list[int | None] = []

    def rival(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest") and len(seen) == 1:
            commit_to(log, configure(1, done="yes"))

    def look(manifest: object) -> str | None:
        newest = log.read_latest()
        seen.append(newest.version)
        return "it is done" if newest.config.get("done") == "yes" else None

    store.before = rival
    result = commit(
        ObjectStoreLog(store), append(1, 4), before_attempt=look, environment=make_environment()
    )
    assert result.reason == "it is done"
    assert result.manifest.version == 2
    assert seen == [1, 2]
    assert len(live_ids(log)) == 10


def test_the_hook_runs_before_conflict_checks() -> None:
    """A replayed batch must be skipped even if it now conflicts with a later version."""
    log = create(10)
    commit_to(log, overwrite(1, 3))
    assert skip(log, append(1, 4), before_attempt=lambda _: "taken in").reason == "taken in"


def test_the_hook_sees_a_missing_table() -> None:
    """The hook decides whether a missing table is new or was deleted."""
    log = ObjectStoreLog(make_store())
    seen: list[object] = []
    commit_to(
        log,
        overwrite(0, 3),
        creation=CREATION,
        before_attempt=lambda manifest: seen.append(manifest),
    )
    assert seen == [None]


def test_errors_of_the_hook_stop_commits() -> None:
    """A refusal by the hook must not be retried or ignored."""
    log = create(10)

    def refuse(_manifest: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        commit(log, append(1, 4), before_attempt=refuse, environment=make_environment())
    assert log.latest() == 1


def test_config_entries_join_the_new_version() -> None:
    """Proofs of batches are config entries and must become visible together with the rows."""
    log = create(10)
    commit_to(log, append(1, 1))
    manifest = commit_to(log, append(1, 4), config_entries=lambda _, version: {"at": str(version)})
    assert manifest.config == {"at": "3"}
    assert manifest.writer_feature_flags & 8


def test_config_entries_are_recomputed_per_attempt() -> None:
    """Entries of several writers are merged with those of the newest version."""
    log = create(10)

    def adding(name: str) -> ConfigEntries:
        def entries(newest: Manifest | None, _version: int) -> dict[str, str]:
            assert newest is not None
            return {"writers": newest.config.get("writers", "") + name}

        return entries

    store = WatchedStore(log.store)

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            store.before = lambda _call, _path: None
            commit_to(log, append(1, 1), config_entries=adding("b"))

    store.before = overtake
    manifest = commit_to(ObjectStoreLog(store), append(1, 4), config_entries=adding("a"))
    assert (manifest.version, manifest.config) == (3, {"writers": "ba"})


def test_losing_every_attempt_raises_an_error() -> None:
    """A writer that never wins must give up with the number of attempts, and must not wait after
    the last one.
    """
    log = create(10)
    store = WatchedStore(log.store)
    waits: list[float] = []

    def rival(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest"):
            commit_to(log, append(log.latest(), 1))

    store.before = rival
    with pytest.raises(RetryableConflictError, match=r"faster in every attempt.*4 attempts in"):
        commit(
            ObjectStoreLog(store),
            append(1, 4),
            retries=RetryPolicy(4, 0.02, 2.0),
            environment=make_environment(sleep=waits.append),
        )
    assert log.latest() == 5
    assert waits == [0.01, 0.02, 0.04], "nothing is waited for after the last attempt"


def test_waits_grow_up_to_a_limit() -> None:
    """Exponential waits without a limit would exceed any timeout, and large exponents would
    overflow.
    """
    backoff = RetryPolicy(30, first_delay_seconds=0.1, max_delay_seconds=1.0)
    assert [backoff.delay_seconds(n, 1.0) for n in (1, 2, 3, 4, 5, 1000)] == [
        0.1, 0.2, 0.4, 0.8, 1.0, 1.0,
    ]  # fmt: skip
    assert backoff.delay_seconds(3, 0.0) == 0.0


def test_versions_without_transaction_conflict() -> None:
    """What an old writer did is unknown, so the operation has to be planned again on its result."""
    log = create(10)
    publish_foreign(log, None)
    with pytest.raises(RetryableConflictError, match="the operation of version 2 is unknown"):
        commit(log, append(1, 4), environment=make_environment())
    commit_to(log, append(2, 4))


def test_missing_transaction_files_conflict() -> None:
    """The file may have been cleaned up, and its operation is then unknown."""
    log = create(10)
    publish_foreign(log, None, {"transaction_file": "1-gone.txn"})
    with pytest.raises(RetryableConflictError, match="version 2"):
        commit(log, append(1, 4), environment=make_environment())


def test_transactions_in_files_alone_are_found() -> None:
    """Older writers do not repeat the transaction in the manifest, and a needless conflict would
    cost a new plan.
    """
    log = create(10)
    manifest = commit_to(log, append(1, 3))
    path = "_versions/18446744073709551613.manifest"
    log.store.write(path, encode_manifest(replace(manifest, inline_transaction=None)))
    commit_to(log, append(1, 4))
    assert len(live_ids(log)) == 17


def test_cleaned_up_versions_conflict() -> None:
    """Whatever happened in a removed version cannot be checked any more."""
    log = create(10)
    commit_to(log, append(1, 3))
    commit_to(log, append(2, 3))
    log.store.delete("_versions/18446744073709551613.manifest")
    with pytest.raises(RetryableConflictError, match="version 2"):
        commit(log, append(1, 4), environment=make_environment())
    commit_to(log, append(3, 4))


def test_damaged_transactions_conflict() -> None:
    """Damage in another writer's transaction must not fail this commit for good."""
    log = create(10)
    publish_foreign(log, None, {"inline_transaction": b"\xff\xff"})
    with pytest.raises(RetryableConflictError, match="version 2"):
        commit(log, append(1, 4), environment=make_environment())


def test_unknown_operations_conflict() -> None:
    """A newer writer may do what this release does not know, so no rebase is safe."""
    log = create(10)
    publish_foreign(log, UnknownOperation(199, bytes([0xBA, 0x0C, 0])))
    with pytest.raises(IncompatibleConflictError, match=r"unknown \(field 199\)"):
        commit(log, append(1, 4), environment=make_environment())


def test_an_older_replacement_table_is_noticed() -> None:
    """The newest version is older than the one that was read, so the table was re-created."""
    log = create(10)
    with pytest.raises(IncompatibleConflictError, match="re-created"):
        commit(log, append(7, 4), environment=make_environment())


def test_replacements_at_equal_versions_are_noticed() -> None:
    """The replaced version has the number of the one that the first attempt was planned on."""
    planned_on = create(10).read_latest()
    other = create(3, 4)
    with pytest.raises(TableReplacedError):
        commit(other, append(1, 4), planned_on=planned_on, environment=make_environment())


@pytest.mark.parametrize(
    ("operation", "error", "match"),
    [
        (Merge((), SCHEMA), InvalidInputError, "are missing"),
        (Rewrite((RewriteGroup((), (new_fragment(3),)),)), InvalidInputError, r"the ids \[0\]"),
        (DataOverlay(()), UnsupportedFeatureError, "cannot be committed"),
        (UnknownOperation(199), UnsupportedFeatureError, "cannot be committed"),
        (Restore(7), NotFoundError, "7"),
    ],
)
def test_invalid_operations_publish_nothing(
    operation: Operation, error: type[Exception], match: str
) -> None:
    """A wrong plan must fail before a manifest is published, because that cannot be undone."""
    log = create(10)
    with pytest.raises(error, match=match):
        commit(log, transaction(1, operation), environment=make_environment())
    assert log.versions() == [1]


def test_restores_reuse_no_ids() -> None:
    """The change feed would take a reused row id for an update of the old row."""
    log = create(10)
    commit_to(log, append(1, 4))
    commit_to(log, transaction(2, Restore(1)))
    restored = commit_to(log, append(3, 2))
    assert [fragment.id for fragment in restored.fragments] == [0, 2]
    assert restored.next_row_id == 16


def test_appends_conflict_with_overwrites_and_restores() -> None:
    """After one of them the append would no longer mean the same."""
    log = create(10)
    publish_foreign(log, Restore(1))
    with pytest.raises(IncompatibleConflictError, match="Restore of version 2"):
        commit(log, append(1, 4), environment=make_environment())
    commit_to(log, overwrite(2, 4))
    with pytest.raises(IncompatibleConflictError, match="Overwrite"):
        commit(log, append(2, 4), environment=make_environment())


def test_deletes_of_different_rows_are_united() -> None:
    """Both deletes succeed without planning again, and the transaction must name the deletion file
    that resulted.
    """
    log = create(10, 5)
    ours, theirs = delete(log, 1, [1, 2, 12]), delete(log, 1, [7])
    commit_to(log, theirs)
    manifest = commit_to(log, ours)
    assert live_ids(log) == [0, 3, 4, 5, 6, 8, 9, 10, 11, 13, 14]
    assert deleted_offsets_of(log.store, manifest.fragments[0]).tolist() == [1, 2, 7]
    stated = decode_transaction(manifest.inline_transaction or b"")
    assert stated.read_version == 2
    assert stated.uuid == ours.uuid
    assert stated.operation.updated_fragments[0].deletion_file == (
        manifest.fragments[0].deletion_file
    )
    assert log.store.exists(f"_transactions/{manifest.transaction_file}")


def test_deletes_can_be_rebased_repeatedly() -> None:
    """Each further rival adds its deletion file to the one that was already merged."""
    log = create(10)
    ours = delete(log, 1, [0])
    rivals = [delete(log, 1, [5]), delete(log, 1, [6]), delete(log, 1, [7])]
    commit_to(log, rivals.pop())
    store = WatchedStore(log.store)

    def rival(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest") and rivals:
            commit_to(log, rivals.pop())

    store.before = rival
    result = commit(ObjectStoreLog(store), ours, environment=make_environment())
    assert result.attempts == 3
    assert live_ids(log) == [1, 2, 3, 4, 8, 9]


@pytest.mark.parametrize("ending", ["the fragment is dropped", "there is nothing to do"])
def test_unused_deletion_files_are_deleted(ending: str) -> None:
    """A first attempt wrote the file, and the next one does not need it."""
    log = create(4, 5)
    ours, rivals = delete(log, 1, [0]), [delete(log, 1, [1])]
    commit_to(log, rivals.pop())
    rivals.append(delete(log, 2, [2, 3]))
    store = WatchedStore(log.store)

    def rival(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest") and rivals:
            commit_to(log, rivals.pop())

    def hook(newest: Manifest | None) -> str | None:
        is_second = newest is not None and newest.version == 3
        return "nothing to do" if is_second and ending == "there is nothing to do" else None

    store.before = rival
    outcome = commit(
        ObjectStoreLog(store), ours, before_attempt=hook, environment=make_environment()
    )
    assert isinstance(outcome, CommittedTransaction) == (ending == "the fragment is dropped")
    written, deleted = (
        [path for call, path in store.calls if call == name and path.startswith("_deletions/")]
        for name in ("write", "delete")
    )
    assert len(written) == 1
    assert deleted == written


@pytest.mark.parametrize("base_id", [None, 7])
def test_foreign_bases_require_replanning(base_id: int | None) -> None:
    """A rebase reads deletion files of the table's directory only."""
    log = create(10)
    ours = delete(log, 1, [1])
    (fragment,) = delete(log, 1, [2]).operation.updated_fragments
    moved = replace(fragment, deletion_file=replace(fragment.deletion_file, base_id=base_id))
    publish_foreign(log, Delete((moved,), (), ""), {"fragments": FragmentList.of([moved])})
    if base_id is None:
        commit_to(log, ours)
        assert live_ids(log) == [0, 3, 4, 5, 6, 7, 8, 9]
        return
    with pytest.raises(RetryableConflictError, match="fragment 0 is stored below a base path"):
        commit(log, ours, environment=make_environment())


def test_new_indices_leave_out_changed_columns() -> None:
    """The index has the old values of the fragment that another writer changed in place."""
    log = create(10, 5)
    planned = log.read(1)
    (column, *_) = SCHEMA.fields
    index = IndexMetadata(bytes(16), (column.id,), "ids", 1, BitMap([0, 1]).serialize())
    rewritten = replace(planned.fragments[0], files=new_fragment(10).files)
    update = Update(
        updated_fragments=(rewritten,),
        fields_modified=(column.id,),
        update_mode=UpdateMode.REWRITE_COLUMNS,
    )
    commit_to(log, transaction(1, update))
    manifest = commit_to(log, transaction(1, CreateIndex((index,))))
    (committed,) = decode_index_section(manifest.index_section or b"")
    assert coverage(committed) == BitMap([1])
    stated = decode_transaction(manifest.inline_transaction or b"")
    assert stated.read_version == 2
    assert stated.operation.new_indices == (committed,)


def test_appends_cannot_be_rebased() -> None:
    """Only operations that name rows or indices of a version depend on it."""
    log = create(10)
    planned = append(1, 1)
    with pytest.raises(UnsupportedFeatureError, match="Append cannot be rebased"):
        rebase_transaction(log, planned, log.read_latest(), lambda: 1, [])


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize(
    "kind", ["rewritten columns", "new columns", "rewritten rows", "overwrite"]
)
def test_new_files_of_fragments_must_exist(tmp_path: Path, kind: str, missing: int) -> None:
    """A new column is in the last file of a fragment; its other files are older."""
    store = open_store(tmp_path)
    files = (*new_fragment(3).files, *new_fragment(3).files)
    fragment = Fragment(0, files, 3)
    operation: Operation = {
        "rewritten columns": Update(
            updated_fragments=(fragment,), update_mode=UpdateMode.REWRITE_COLUMNS
        ),
        "new columns": Merge((fragment,), SCHEMA),
        "rewritten rows": Rewrite((RewriteGroup((), (fragment,)),)),
        "overwrite": Overwrite((fragment,), SCHEMA),
    }[kind]
    store.write(f"data/{files[1 - missing].path}", b"")
    if missing == 0 and kind.endswith("columns"):
        check_files_exist(store, operation)
        return
    with pytest.raises(TableReplacedError, match=files[missing].path):
        check_files_exist(store, operation)


@pytest.mark.parametrize("base_id", [None, 7])
@pytest.mark.parametrize("kind", ["data", "deletion"])
def test_files_of_the_table_must_exist(tmp_path: Path, kind: str, base_id: int | None) -> None:
    """A cleanup may have deleted them while the commit was planned; other bases are not ours."""
    store = open_store(tmp_path)
    fragment = new_fragment(3)
    file = replace(fragment.files[0], base_id=base_id)
    operation: Operation = Append((replace(fragment, files=(file,)),))
    if kind == "deletion":
        deletion_file = DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 2, 1, base_id)
        operation = Delete((fragment, replace(fragment, deletion_file=deletion_file)), (), "")
    if base_id is not None:
        check_files_exist(store, operation)
        return
    with pytest.raises(TableReplacedError, match=r"_deletions/|data/"):
        check_files_exist(store, operation)


def test_rows_deleted_twice_require_replanning() -> None:
    """Both writers would count the row as deleted, and an update of it would come back to life."""
    log = create(10)
    ours, theirs = delete(log, 1, [1, 2]), delete(log, 1, [2, 3])
    commit_to(log, theirs)
    with pytest.raises(RetryableConflictError, match=r"1 rows of fragment 0 .* \[2\]"):
        commit(log, ours, environment=make_environment())
    commit_to(log, delete(log, 2, [1, 2]))
    assert live_ids(log) == [0, 4, 5, 6, 7, 8, 9]


def test_deletes_of_all_rows_drop_fragments() -> None:
    """Only together do both deletes empty the fragment, and empty fragments
    would remain forever.
    """
    log = create(10, 5)
    ours, theirs = delete(log, 1, range(6)), delete(log, 1, range(6, 10))
    commit_to(log, theirs)
    manifest = commit_to(log, ours)
    assert [fragment.id for fragment in manifest.fragments] == [1]
    assert manifest.max_fragment_id == 1
    assert live_ids(log) == [10, 11, 12, 13, 14]


def test_many_merged_deletions_become_a_bitmap() -> None:
    """A list of offsets for many rows is many times larger than a bitmap."""
    log = create(20_000)
    ours, theirs = delete(log, 1, range(0, 20_000, 4)), delete(log, 1, range(1, 20_000, 4))
    commit_to(log, theirs)
    manifest = commit_to(log, ours)
    file = manifest.fragments[0].deletion_file
    assert file is not None
    assert (file.file_type.name, file.num_deleted_rows) == ("BITMAP", 10_000)
    assert np.array_equal(np.array(live_ids(log)) % 4 // 2, np.ones(10_000))


def test_a_compacted_fragment_requires_replanning() -> None:
    """The delete was planned on the fragment that the compaction replaced."""
    log = create(10, 5)
    ours = delete(log, 1, [1])
    old = tuple(log.read(1).fragments)
    publish_foreign(log, Rewrite((RewriteGroup(old[1:], (new_fragment(5),)),)))
    commit_to(log, ours)
    ours = delete(log, 3, [11])
    publish_foreign(log, Rewrite((RewriteGroup(old, (new_fragment(14),)),)))
    with pytest.raises(RetryableConflictError, match="Rewrite of version 4"):
        commit(log, ours, environment=make_environment())


def test_a_removed_read_version_requires_replanning() -> None:
    """The version that the delete was planned on has been cleaned up."""
    log = create(10)
    ours, theirs = delete(log, 1, [1]), delete(log, 1, [2])
    commit_to(log, theirs)
    log.store.delete("_versions/18446744073709551614.manifest")
    with pytest.raises(RetryableConflictError, match="version 1, on which the operation"):
        commit(log, ours, environment=make_environment())


def test_different_config_keys_both_apply() -> None:
    """Streams record their batches in different keys and must not make each other fail."""
    log = create(10)
    commit_to(log, configure(1, a="1"))
    commit_to(log, configure(1, b="2"))
    assert log.read_latest().config == {"a": "1", "b": "2"}
    with pytest.raises(IncompatibleConflictError, match="UpdateConfig"):
        commit(log, configure(1, b="3"), environment=make_environment())
    assert commit_to(log, configure(3, b=None)).config == {"a": "1"}


def test_reused_uuids_write_two_transaction_files() -> None:
    """Two drivers can derive the same uuid from one micro-batch."""
    log = create(10)
    one, two = append(1, 3), append(1, 4)
    two = replace(two, uuid=one.uuid)
    store = WatchedStore(log.store)

    def rival(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest") and log.latest() == 1:
            commit_to(log, two)

    store.before = rival
    result = commit(ObjectStoreLog(store), one, environment=make_environment())
    assert result.reason == "this transaction was already committed as version 2"
    assert len(live_ids(log)) == 14
    manifest = log.read(2)
    assert (
        log.store.read(f"_transactions/{manifest.transaction_file}") == manifest.inline_transaction
    )
    assert len([n for n in log.store.list_names("_transactions") if one.uuid in n]) == 2
