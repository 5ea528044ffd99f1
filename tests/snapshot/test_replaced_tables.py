"""A commit fails if the table it was planned on was re-created or restored from a copy."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import TableReplacedError
from lance_stream.commit import same_table
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.maintenance.compaction import compact
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.resolving import open_version
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.jobs import commit_job, plan_job
from lance_stream.verbs.overwrite import overwrite
from lance_stream.write import planning
from lance_stream.write.fragments import write_fragments, write_target

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
BATCH = PendingBatch.of("app", 7, "query")


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


def others(*values: int) -> pa.Table:
    """Return rows of columns with other names but the same field ids."""
    return pa.table({"place": list(values), "who": [f"w{value}" for value in values]})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Four versions: two files of rows, and a deleted one."""
    uri = str(tmp_path / "table")
    lance_stream.create_dataset(uri, SCHEMA).append(rows(1, 2, 3)).append(rows(4, 5)).delete("id=2")
    return uri


# --- what is done


def append_once(uri: str) -> object:
    return lance_stream.open_dataset(uri).append(
        pa.RecordBatchReader.from_batches(SCHEMA, rows(8, 9).to_batches())
    )


def append_fragments_of_a_batch(uri: str) -> object:
    table = open_newest(uri)
    written = write_fragments(rows(8, 9).to_batches(), write_target(table))
    return append_fragments(table, written, BATCH)


def upsert_a_batch(uri: str) -> object:
    return upsert(open_newest(uri), rows(1, 8), UpsertRules(("id",)), BATCH)


def run_a_job(overwrites: bool) -> Callable[[str], object]:
    def run(uri: str) -> object:
        job = plan_job(uri, SCHEMA, overwrite=overwrites)
        return commit_job(job, write_fragments(rows(8, 9).to_batches(), job.target))

    return run


VERBS: dict[str, Callable[[str], object]] = {
    "append": lambda uri: lance_stream.open_dataset(uri).append(rows(8, 9)),
    "append once": append_once,
    "append of a batch": append_fragments_of_a_batch,
    "overwrite": lambda uri: lance_stream.open_dataset(uri).overwrite(rows(8)),
    "overwrite of a batch": lambda uri: overwrite(open_newest(uri), rows(8), BATCH),
    "delete": lambda uri: lance_stream.open_dataset(uri).delete("id = 1"),
    "update": lambda uri: lance_stream.open_dataset(uri).update({"name": "'x'"}, where="id = 1"),
    "upsert": lambda uri: lance_stream.open_dataset(uri).upsert(rows(1, 8), on="id"),
    "upsert of a batch": upsert_a_batch,
    "restore": lambda uri: lance_stream.open_dataset(uri).restore(2),
    "add a column": lambda uri: lance_stream.open_dataset(uri).add_columns(
        pa.field("more", pa.int64())
    ),
    "add a computed column": lambda uri: lance_stream.open_dataset(uri).add_columns(
        {"more": "id + 1"}
    ),
    "drop a column": lambda uri: lance_stream.open_dataset(uri).drop_columns(["name"]),
    "rename a column": lambda uri: lance_stream.open_dataset(uri).rename_columns({"name": "what"}),
    "configure": lambda uri: lance_stream.open_dataset(uri).update_config({"a": "b"}),
    "compact": lambda uri: lance_stream.open_dataset(uri).compact(),
    "job": run_a_job(overwrites=False),
    "overwriting job": run_a_job(overwrites=True),
}


# --- what becomes of the table meanwhile


def recreate(num_versions: int) -> Callable[[str], None]:
    def make(uri: str) -> None:
        shutil.rmtree(uri)
        table = lance_stream.create_dataset(uri, others(1).schema)
        for number in range(1, num_versions):
            table = table.append(others(number, number + 10))

    return make


def recreate_by_pylance(uri: str) -> None:
    shutil.rmtree(uri)
    for number in range(4):
        lance.write_dataset(others(number), uri, mode="append" if number else "create")


def restore_copy(num_versions: int) -> Callable[[str], None]:
    """Restore a copy of version 3, and continue from there."""

    def put(uri: str) -> None:
        shutil.rmtree(uri)
        shutil.copytree(f"{uri} copy", uri)
        table = lance_stream.open_dataset(uri)
        for number in range(num_versions):
            table = table.append(rows(100 + number))

    return put


REPLACEMENTS: dict[str, Callable[[str], None]] = {
    "re-created, fewer versions": recreate(2),
    "re-created, as many versions": recreate(4),
    "re-created, more versions": recreate(6),
    "re-created, by pylance": recreate_by_pylance,
    "put back, fewer versions": restore_copy(0),
    "put back, as many versions": restore_copy(1),
    "put back, more versions": restore_copy(3),
}


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[], None]]]:
    """Run an action once, when the next commit starts."""
    due: list[Callable[[], None]] = []

    def before(module: Any) -> None:
        real = module.commit

        def commit(*args: Any, **kwargs: Any) -> Any:
            while due:
                due.pop()()
            return real(*args, **kwargs)

        monkeypatch.setattr(module, "commit", commit)

    before(planning)
    before(compact)
    yield due
    assert not due, "nothing was committed"


def files_of(uri: str) -> set[str]:
    """Return the data files and deletion files."""
    return {
        str(path.relative_to(uri))
        for folder in ("data", "_deletions")
        for path in (Path(uri) / folder).glob("*")
    }


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("replacement", REPLACEMENTS)
@pytest.mark.parametrize("verb", VERBS)
def test_commits_to_replaced_tables_are_refused(
    uri: str, verb: str, replacement: str, meanwhile: list[Callable[[], None]]
) -> None:
    """The table that the commit was planned on has been replaced by another one."""
    old = lance_stream.open_dataset(uri)
    shutil.copytree(uri, f"{uri} copy")
    Path(f"{uri} copy/{old.table.log.manifest_path(4)}").unlink()
    replacement_state: list[Any] = []

    def replace_table() -> None:
        REPLACEMENTS[replacement](uri)
        ds = lance_stream.open_dataset(uri)
        replacement_state.extend((ds.version, ds.to_table(), files_of(uri)))

    meanwhile.append(replace_table)
    with pytest.raises(TableReplacedError, match="re-created, or restored from a copy"):
        VERBS[verb](uri)
    ds = lance_stream.open_dataset(uri)
    assert [ds.version, ds.to_table(), files_of(uri)] == replacement_state
    assert ds.verify() == []
    VERBS["append"](uri) if ds.schema == SCHEMA else ds.append(others(5))
    assert lance_stream.open_dataset(uri).verify() == []


@pytest.mark.parametrize("verb", ["append", "overwrite", "update", "delete", "upsert", "compact"])
def test_lost_files_fail_the_commit(
    uri: str, verb: str, meanwhile: list[Callable[[], None]]
) -> None:
    """The copy has the version that the commit was planned on, but no files written since."""
    lance_stream.open_dataset(uri).append(rows(6))
    shutil.copytree(uri, f"{uri} copy")
    before = lance_stream.open_dataset(uri)
    before, version = before.to_table(), before.version
    meanwhile.append(lambda: restore_copy(0)(uri))
    with pytest.raises(TableReplacedError, match=r"no longer exists in"):
        VERBS[verb](uri)
    ds = lance_stream.open_dataset(uri)
    assert (ds.to_table(), ds.version) == (before, version)
    assert ds.verify() == []


@pytest.mark.parametrize("is_like", [True, False])
def test_remaining_versions_identify_the_table(
    uri: str, is_like: bool, meanwhile: list[Callable[[], None]]
) -> None:
    """The version that the commit was planned on has been cleaned up."""

    def go_on() -> None:
        if is_like:
            table = lance_stream.open_dataset(uri).append(rows(6)).append(rows(7))
        else:
            recreate(6)(uri)
            table = lance_stream.open_dataset(uri)
        (Path(uri) / table.table.log.manifest_path(4)).unlink()

    meanwhile.append(go_on)
    if is_like:
        append_fragments_of_a_batch(uri)
        actual = lance_stream.open_dataset(uri).to_table()["id"].to_pylist()
        assert sorted(actual) == [1, 3, 4, 5, 6, 7, 8, 9]
    else:
        with pytest.raises(TableReplacedError):
            append_fragments_of_a_batch(uri)
    assert lance_stream.open_dataset(uri).verify() == []


def test_a_replay_enters_the_recreated_table(uri: str, meanwhile: list[Callable[[], None]]) -> None:
    """Spark replays the batch when the query is restarted: rows that fit are written once."""

    def replace_table() -> None:
        shutil.rmtree(uri)
        lance_stream.create_dataset(uri, SCHEMA).append(rows(1)).append(rows(2)).append(rows(3))

    meanwhile.append(replace_table)
    with pytest.raises(TableReplacedError):
        append_fragments_of_a_batch(uri)
    append_fragments_of_a_batch(uri)
    append_fragments_of_a_batch(uri)
    assert lance_stream.open_dataset(uri).to_table()["id"].to_pylist() == [1, 2, 3, 8, 9]


HANDLE_WRITES: dict[str, Callable[[lance_stream.Dataset], object]] = {
    "append": lambda ds: ds.append(rows(8)),
    "upsert": lambda ds: ds.upsert(rows(1, 8), "id"),
    "update": lambda ds: ds.update({"name": "'x'"}, "id > 0"),
    "delete": lambda ds: ds.delete("id > 0"),
    "overwrite": lambda ds: ds.overwrite(rows(8)),
    "compact": lambda ds: ds.compact(),
    "restore": lambda ds: ds.restore(1),
    "add_columns": lambda ds: ds.add_columns({"twice": "id * 2"}),
    "rename_columns": lambda ds: ds.rename_columns({"name": "label"}),
    "update_config": lambda ds: ds.update_config({"key": "value"}),
}


@pytest.mark.parametrize("write", HANDLE_WRITES.values(), ids=[*HANDLE_WRITES])
def test_stale_handles_write_nothing_after_recreation(
    uri: str, write: Callable[[lance_stream.Dataset], object]
) -> None:
    """A condition or key for the deleted table must not change the new one."""
    ds = lance_stream.open_dataset(uri)
    shutil.rmtree(uri)
    new = lance_stream.create_dataset(uri, SCHEMA)
    for key in range(5):
        new = new.append(rows(key))
    with pytest.raises(TableReplacedError, match="open it again"):
        write(ds)
    assert lance_stream.open_dataset(uri).version == new.version


def test_silent_manifests_are_compared_by_content(
    uri: str,
) -> None:
    """Such manifests state neither their time nor their transaction."""
    one = open_newest(uri).manifest
    silent = replace(one, timestamp_nanos=None, transaction_file="")
    older = open_version(uri, 3).manifest
    other = replace(older, version=4, timestamp_nanos=None, transaction_file="")
    assert same_table.is_same_version(silent, replace(silent))
    assert not same_table.is_same_version(silent, other)
