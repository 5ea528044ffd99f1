"""Plans that are repeated after a conflict, and what is left of those that failed."""

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.environment import MACHINE
from lance_stream.errors import (
    CommitConflictError,
    CommitUncertainError,
    IncompatibleConflictError,
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    RetryableConflictError,
    TableReplacedError,
)
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.row_updates.changed_rows import chosen_rows, without_rows
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.paths import deletion_file_path
from lance_stream.verbs.create import plan_table
from lance_stream.write import planning
from lance_stream.write.fragments import write_fragments, write_target
from lance_stream.write.planning import (
    StagedFiles,
    combined,
    commit_operation,
    commit_planned,
    replan_on_conflict,
)

PATIENT = replace(MACHINE, sleep=lambda _: None)
RETRY = RetryableConflictError("another writer was faster", 2)
OTHER = IncompatibleConflictError("the table was overwritten", 2)
MISSING, ANOTHER_MISSING = NotFoundError("a is missing"), NotFoundError("b is missing")


def attempt_that(*errors: Exception) -> Callable[[], int]:
    """Return an attempt that raises these errors, and then returns its number."""
    numbers = itertools.count()

    def attempt() -> int:
        number = next(numbers)
        if number < len(errors):
            raise errors[number]
        return number

    return attempt


@pytest.mark.parametrize(
    ("errors", "has_batch", "result"),
    [
        ([], False, 0),
        ([RETRY], False, 1),
        ([RETRY] * 19, False, 19),
        ([RETRY] * 20, False, RETRY),
        ([OTHER], False, OTHER),
        ([OTHER, RETRY], True, 2),
        ([MISSING], False, 1),
        ([MISSING, ANOTHER_MISSING, MISSING], False, 3),
        ([MISSING, MISSING], False, MISSING),
        ([MISSING, RETRY, MISSING], False, MISSING),
        ([InvalidInputError("no"), RETRY], True, InvalidInputError),
    ],
)
def test_only_some_errors_are_repeated(
    errors: list[Exception], has_batch: bool, result: Any
) -> None:
    """A micro-batch means the same on any version of the table; other verbs may not."""
    batch: Any = object() if has_batch else None
    attempt = attempt_that(*errors)
    if isinstance(result, int):
        delays: list[float] = []
        environment = replace(MACHINE, sleep=delays.append)
        assert replan_on_conflict(attempt, batch, environment) == result
        assert len(delays) == sum(isinstance(error, CommitConflictError) for error in errors)
        return
    with pytest.raises(Exception) as raised:  # noqa: PT011  # the error itself is compared
        replan_on_conflict(attempt, batch, PATIENT)
    assert raised.value is result or type(raised.value) is result


@pytest.mark.parametrize("has_batch", [False, True])
def test_replaced_tables_end_all_verbs(has_batch: bool) -> None:
    """The rows may not belong into the new table."""
    assert issubclass(TableReplacedError, CommitConflictError)
    replaced = TableReplacedError("the table was replaced", 2)
    batch: Any = object() if has_batch else None
    with pytest.raises(TableReplacedError):
        replan_on_conflict(attempt_that(replaced), batch, PATIENT)


def test_config_entries_of_all_are_combined() -> None:
    """The ledger and the verb both have some; most verbs have none."""

    def one(_: object, version: int) -> dict[str, str]:
        return {"one": str(version)}

    def two(_: object, version: int) -> dict[str, str]:
        return {"two": str(version)}

    assert combined() is None
    assert combined(None, None) is None
    assert combined(None, one) is one
    assert combined(one, None) is one
    both = combined(one, None, two)
    assert both is not None
    manifest: Any = None
    assert both(manifest, 7) == {"one": "7", "two": "7"}


def test_first_rows_create_the_table() -> None:
    """A verb may be the first one; it then has rows, but none to change."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema({"a": pa.int64()}))
    new, changed = (Fragment(id=at, files=(), physical_rows=1) for at in (0, 1))
    for operation in (
        Append((new,)),
        Overwrite((new,), ds.table.manifest.schema),
        Update(updated_fragments=(changed,), new_fragments=(new,)),
    ):
        first, creation = planning._first(ds.table, operation)
        assert first.fragments == (new,)
        assert creation.stable_row_ids
    with pytest.raises(InvalidInputError, match=r"no table exists at .* for this Delete"):
        planning._first(ds.table, Delete((), (), "a = 1"))


def test_only_replaced_deletion_files_are_superseded() -> None:
    """A rebase merges the deletions of two writers into a new file."""
    rows = pa.table({"a": range(8)})
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows).append(rows).append(rows)
    ds = ds.delete("a = 3")
    before = tuple(ds.table.manifest.fragments)
    first, second, third = ds.delete("a = 5").table.manifest.fragments
    staged = StagedFiles(with_deletion_files=(first, second))
    for fragments, superseded in (
        ([first, second, third], []),
        ([before[0], second, third], [first]),
        ([first, before[1]], [second]),
        ([first, third], [second]),
        ([third], [first, second]),
    ):
        manifest = replace(ds.table.manifest, fragments=FragmentList.of(fragments))
        assert planning._superseded(staged, manifest) == superseded


ROWS = pa.table({"a": [1, 2]})
SCHEMA = ROWS.schema


def new_table(*rows: pa.Table) -> TableVersion:
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    for part in rows:
        ds = ds.append(part)
    return ds.table


def planned_append(table: TableVersion, rows: pa.Table = ROWS) -> tuple[Append, StagedFiles]:
    """Return an append whose files are written."""
    fragments = tuple(write_fragments(rows.to_batches(), write_target(table)))
    return Append(fragments), StagedFiles(fragments)


def planned_delete(table: TableVersion, predicate: str) -> tuple[Delete, StagedFiles]:
    """Return a delete whose deletion files are written."""
    updated, removed = without_rows(table, chosen_rows(table, predicate), MACHINE)
    return Delete(updated, removed, predicate), StagedFiles(with_deletion_files=updated)


def micro_batch(number: int = 0, rows: pa.Table = ROWS) -> PendingBatch:
    return PendingBatch.of("app", number, digest=digest_of(rows))


def files_of(table: TableVersion) -> set[str]:
    """Return the names of all files but those of transactions and versions."""
    return {name for folder in ("data", "_deletions") for name in table.store.list_names(folder)}


def named_files(table: TableVersion) -> set[str]:
    return {file.path for fragment in table.manifest.fragments for file in fragment.files}


def exists(table: TableVersion, fragment: Fragment) -> bool:
    """Return whether a fragment's deletion file exists."""
    assert fragment.deletion_file is not None
    return table.store.exists(deletion_file_path(fragment.id, fragment.deletion_file))


def values_of(table: TableVersion) -> list[int]:
    return sorted(lance_stream.Dataset(table).to_table()["a"].to_pylist())


def test_a_batch_is_committed_once() -> None:
    """Two drivers may write the same batch, each on a version without it."""
    table = new_table()
    plans = [planned_append(table) for _ in range(2)]
    first = commit_planned(table, *plans[0], micro_batch())
    assert (first.is_new, first.table.version, first.already_committed_in) == (True, 2, None)
    newest = lance_stream.Dataset(first.table).append(pa.table({"a": [3]})).table
    second = commit_planned(table, *plans[1], micro_batch())
    assert (second.is_new, second.table.version, second.already_committed_in) == (False, 3, 2)
    assert values_of(second.table) == [1, 2, 3]
    assert files_of(table) == named_files(newest)
    assert (first.attempts, second.attempts) == (1, 1)
    operation, _ = planned_append(table)  # its caller deletes the files
    assert not commit_planned(table, operation, micro_batch=micro_batch()).is_new
    assert len(files_of(table)) == len(named_files(newest)) + 1
    third = commit_planned(table, planned_append(table)[0], micro_batch=micro_batch(1))
    assert (third.is_new, third.table.version) == (True, 4)
    assert values_of(third.table) == [1, 1, 2, 2, 3]


def test_transactions_without_entry_commit_once() -> None:
    """Another program may remove the entry of the batch, but not the version that has its uuid."""
    table = new_table()
    plans = [planned_append(table) for _ in range(2)]
    first = commit_planned(table, *plans[0], micro_batch())
    removal = UpdateConfig(old_delete_keys=(ledger_entries.config_key("app"),))
    commit_operation(table.log, first.table.manifest, removal)
    second = commit_planned(table, *plans[1], micro_batch())
    assert (second.is_new, second.table.version, second.already_committed_in) == (False, 3, None)
    assert values_of(second.table) == [1, 2]
    assert files_of(table) == named_files(second.table)


def test_commits_clean_up_as_configured() -> None:
    """A table may ask each of its writers for this."""
    config = {"lance.auto_cleanup.interval": "3"}
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA, config=config)
    for oldest in (1, 2):
        outcome = commit_planned(ds.table, *planned_append(ds.table))
        assert min(outcome.table.log.versions()) == oldest


@pytest.mark.parametrize("has_batch", [False, True])
def test_commits_have_all_their_entries(has_batch: bool) -> None:
    """The batch adds its own entries and properties to those of the verb."""
    table = new_table()
    batch = micro_batch() if has_batch else None
    outcome = commit_planned(
        table,
        *planned_append(table),
        batch,
        properties={"verb": "append"},
        config_entries=lambda newest, version: {"entry": f"{newest and newest.version} {version}"},
    )
    manifest = outcome.table.manifest
    transaction = read_transaction(table.store, manifest)
    assert transaction is not None
    assert manifest.config["entry"] == "1 2"
    assert transaction.properties["verb"] == "append"
    of_batch = micro_batch().batch
    entry = ledger_entries.read_entry(manifest.config, "app")
    assert (entry is not None and entry.batch_id == 0) == has_batch
    assert (uuid.UUID(transaction.uuid) == uuid.UUID(of_batch.uuid)) == has_batch
    assert (transaction.properties.items() >= of_batch.properties.items()) == has_batch


@pytest.mark.parametrize("is_staged", [False, True])
def test_only_certain_failures_delete_files(
    is_staged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the outcome is unknown, a version may have the files; and a caller may keep its own."""
    table = new_table(ROWS)
    before = files_of(table)
    append, staged = planned_append(table)
    _, deletes = planned_delete(table, "a = 1")
    table.store.write("data/other", b"")
    staged = replace(
        staged, with_deletion_files=deletes.with_deletion_files, others=("data/other", "data/gone")
    )
    written = files_of(table)
    assert len(written) == len(before) + 3
    for error in (
        CommitUncertainError("no answer"),
        KeyboardInterrupt(),
        RETRY,
        LanceStreamError("refused"),
    ):
        monkeypatch.setattr(planning, "commit_operation", Mock(side_effect=error))
        with pytest.raises(type(error)):
            commit_planned(table, append, staged if is_staged else None)
        is_certain = isinstance(error, RetryableConflictError | LanceStreamError)
        is_certain &= not isinstance(error, CommitUncertainError)
        assert files_of(table) == (before if is_certain and is_staged else written)


def test_each_attempt_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files must fit the version that the commit follows."""
    table = new_table()
    lance_stream.Dataset(table).append(ROWS)
    versions: list[int] = []

    def check(newest: Manifest) -> None:
        versions.append(newest.version)
        if newest.version == 2:
            lance_stream.Dataset(table).append(ROWS)
        if newest.version == 4:
            raise RETRY

    outcome = commit_planned(table, *planned_append(table), check=check)
    assert (versions, outcome.table.version, outcome.attempts) == ([2, 3], 4, 2)
    before = files_of(table)
    with pytest.raises(RetryableConflictError, match="another writer was faster"):
        commit_planned(table, *planned_append(table), check=check)
    assert versions == [2, 3, 4]
    assert files_of(table) == before


@pytest.mark.parametrize("has_batch", [False, True])
def test_tables_of_others_are_not_replaced(has_batch: bool) -> None:
    """The first commit creates the table; a later one must be planned on it."""
    planned_on = plan_table(f"memory://{uuid.uuid4()}/t", SCHEMA)
    plans = [planned_append(planned_on) for _ in range(2)]
    batch = micro_batch() if has_batch else None
    first = commit_planned(planned_on, *plans[0], batch, check=lambda _: pytest.fail("no version"))
    assert (first.is_new, first.table.version, values_of(first.table)) == (True, 1, [1, 2])
    if has_batch:
        second = commit_planned(planned_on, *plans[1], batch)
        assert (second.is_new, second.already_committed_in) == (False, 1)
    else:
        with pytest.raises(RetryableConflictError, match="another writer created the table"):
            commit_planned(planned_on, *plans[1])
    assert first.table.log.latest() == 1
    assert files_of(planned_on) == named_files(first.table)


@pytest.mark.parametrize("is_staged", [False, True])
def test_replaced_deletion_files_are_deleted(is_staged: bool) -> None:
    """A rebase merges the deletions of two writers, after which no version names their files."""
    table = new_table(pa.table({"a": [1, 2, 3]}), pa.table({"a": [4, 5, 6]}))
    operation, staged = planned_delete(table, "a = 1 OR a = 4")
    lance_stream.Dataset(table).delete("a = 2")
    outcome = commit_planned(table, operation, staged if is_staged else None)
    assert values_of(outcome.table) == [3, 5, 6]
    assert [exists(table, fragment) for fragment in staged.with_deletion_files] == [
        not is_staged,
        True,
    ]
    assert all(exists(table, fragment) for fragment in outcome.table.manifest.fragments)
