"""Jobs of many writers: planned once, written anywhere, committed once."""

import pickle
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import (
    ColumnsChangedError,
    CommitConflictError,
    CommitUncertainError,
    TableReplacedError,
)
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage.locations import open_store
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.paths import NamingScheme, manifest_path
from lance_stream.verbs import jobs
from lance_stream.verbs.jobs import WriteJob, commit_job, discard, plan_job
from lance_stream.write.fragments import write_fragments
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


@pytest.fixture
def uri() -> str:
    return f"memory://{uuid.uuid4()}/table"


def write(job: WriteJob, *ids: int) -> list[Fragment]:
    """Write as a worker does, which gets the job pickled."""
    return write_fragments(rows(*ids).to_batches(), pickle.loads(pickle.dumps(job)).target)


def ids_of(uri: str) -> list[int]:
    ids: list[int] = lance_stream.open_dataset(uri).to_table(["id"])["id"].to_pylist()
    return sorted(ids)


def files_of(uri: str) -> list[str]:
    return sorted(open_store(uri).list_names("data"))


def files_named(uri: str) -> list[str]:
    fragments = open_newest(uri).manifest.fragments
    return sorted(file.path for fragment in fragments for file in fragment.files)


def test_the_first_commit_creates_the_table(uri: str) -> None:
    """A job must not leave an empty table if it fails before its commit."""
    job = plan_job(uri, SCHEMA, file_version="2.1", primary_key=["id"])
    with pytest.raises(NotFoundError):
        open_newest(uri)
    outcome = commit_job(job, write(job, 1, 2) + write(job, 3))
    result = Dataset(outcome.table)
    assert (outcome.is_new, result.version, result.file_version) == (True, 1, "2.1")
    assert result.has_stable_row_ids
    assert result.schema.field("id").metadata[b"lance-schema:unenforced-primary-key"] == b"true"
    assert result.to_table(with_row_id=True, with_row_versions=True).to_pydict() == {
        **rows(1, 2, 3).to_pydict(),
        "_rowid": [0, 1, 2],
        "_row_created_at_version": [1, 1, 1],
        "_row_last_updated_at_version": [1, 1, 1],
    }
    assert result.verify() == []
    assert result.append(rows(4)).verify() == []


@pytest.mark.floors
def test_empty_jobs_create_the_table(uri: str) -> None:
    """The first job creates the table even without rows, and a second one makes no version."""
    assert commit_job(plan_job(uri, SCHEMA), []).is_new
    assert not commit_job(plan_job(uri, SCHEMA), []).is_new
    assert lance_stream.open_dataset(uri).version == 1


@pytest.mark.parametrize("overwrite", [False, True])
def test_concurrent_creations_share_one_table(uri: str, overwrite: bool) -> None:
    """The job that loses the race to create adds its rows, or replaces those of the winner, as
    it was asked to.
    """
    first, second = plan_job(uri, SCHEMA), plan_job(uri, SCHEMA, overwrite=overwrite)
    commit_job(first, write(first, 1, 2))
    result = commit_job(second, write(second, 3))
    assert (result.is_new, result.table.version) == (True, 2)
    assert ids_of(uri) == ([3] if overwrite else [1, 2, 3])
    assert Dataset(result.table).verify() == []


def test_concurrent_tables_are_not_written(uri: str) -> None:
    """Another writer has created the table with other columns since the job was planned."""
    job = plan_job(uri, SCHEMA)
    fragments = write(job, 1, 2)
    lance_stream.create_dataset(uri, pa.schema([("other", pa.int64())]))
    with pytest.raises(InvalidInputError, match="with other columns or another file version"):
        commit_job(job, fragments)
    assert files_of(uri) == []
    assert lance_stream.open_dataset(uri).version == 1


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("exists", [False, True])
def test_micro_batches_are_committed_once(uri: str, overwrite: bool, exists: bool) -> None:
    """Spark repeats a batch after a failure, and the repeated one must add no rows and leave no
    files.
    """
    if exists:
        lance_stream.create_dataset(uri, SCHEMA).append(rows(0))
    batch = PendingBatch.of("app", 0, "query")
    jobs = [plan_job(uri, SCHEMA, overwrite=overwrite) for _ in range(2)]
    written = [write(job, 7, 8) for job in jobs]
    outcomes = [commit_job(*value, batch) for value in zip(jobs, written, strict=True)]
    assert [outcome.is_new for outcome in outcomes] == [True, False]
    version = outcomes[0].table.version
    assert outcomes[1].already_committed_in == version
    assert lance_stream.open_dataset(uri).version == version
    assert ids_of(uri) == ([0] if exists and not overwrite else []) + [7, 8]
    late = plan_job(uri, SCHEMA, overwrite=overwrite)
    assert late.has_committed(batch.batch)
    assert not late.has_committed(MicroBatch("app", 1, "query"))
    with pytest.raises(InvalidInputError, match="comes from the streaming query other"):
        late.has_committed(MicroBatch("app", 0, "other"))
    if not overwrite:
        assert files_of(uri) == files_named(uri)


def test_jobs_commit_after_concurrent_changes(uri: str) -> None:
    """A job can run for hours, while others append, delete and add columns."""
    table = lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 1))
    job = plan_job(uri, SCHEMA)
    fragments = write(job, 2)
    table.append(rows(5)).delete("id = 0").add_columns(pa.field("price", pa.float64()))
    result = commit_job(job, fragments)
    assert ids_of(uri) == [1, 2, 5]
    assert Dataset(result.table).verify() == []


def test_rows_for_replaced_columns_are_refused(uri: str) -> None:
    """The job's files have field ids of the old schema; they must be deleted, as no version will
    name them.
    """
    table = lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 1))
    job = plan_job(uri, SCHEMA)
    fragments = write(job, 2)
    before = files_of(uri)
    table.overwrite(pa.table({"other": [1]}))
    with pytest.raises((InvalidInputError, CommitConflictError)):
        commit_job(job, fragments)
    written = {file.path for fragment in fragments for file in fragment.files}
    assert written <= set(before)
    assert not written & set(files_of(uri))


def test_rows_for_deleted_tables_are_refused(uri: str) -> None:
    """Committing would recreate a table with the rows of this job only."""
    lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 1))
    job = plan_job(uri, SCHEMA)
    fragments = write(job, 2)
    store = open_store(uri)
    for file in store.list():
        if not file.path.startswith("data/"):
            store.delete(file.path)
    with pytest.raises(TableReplacedError, match="the table has been deleted since"):
        commit_job(job, fragments)
    assert len(files_of(uri)) == 1  # that of the first rows, which no job deletes


def test_planned_versions_may_be_cleaned_up(uri: str) -> None:
    """Cleanup may remove the version that a long job was planned on, which must not cost its
    rows.
    """
    table = lance_stream.create_dataset(uri, SCHEMA).append(rows(0, 1))
    job = plan_job(uri, SCHEMA)
    fragments = write(job, 2)
    table.append(rows(5))
    store = open_store(uri)
    store.delete(manifest_path(job.version, NamingScheme.V2))
    assert [version.version for version in table.checkout(None).versions()] == [1, 3]
    commit_job(job, fragments)
    assert ids_of(uri) == [0, 1, 2, 5]


@pytest.mark.parametrize("change", ["type", "file version"])
def test_overwritten_planned_versions_may_be_removed(tmp_path: Path, change: str) -> None:
    """Pylance restarts field ids in an overwrite, so the job's files would be read as other
    columns.
    """
    where = str(tmp_path / "t.lance")
    first = pa.table({"id": [1], "n": [1]})
    lance.write_dataset(first, where, data_storage_version="2.0")
    job = plan_job(where, first.schema)
    fragments = write_fragments(first.to_batches(), job.target)
    other = pa.table({"id": [1], "n": [0.5]}) if change == "type" else first
    version = "2.0" if change == "type" else "2.1"
    lance.write_dataset(other, where, mode="overwrite", data_storage_version=version)
    lance.write_dataset(other, where, mode="append")
    lance.dataset(where).cleanup_old_versions(older_than=timedelta(0))
    with pytest.raises(ColumnsChangedError, match=r"write .* again"):
        commit_job(job, fragments)
    assert lance.dataset(where).to_table()["n"].to_pylist() == other["n"].to_pylist() * 2


@pytest.mark.parametrize("landed", [False, True])
def test_uncertain_creations_keep_their_files(
    uri: str, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the answer to a commit is lost it may have succeeded, so deleting its files could
    destroy a table.
    """

    def fail(call: str, path: str) -> None:
        if path.startswith("_versions/") and call in ("create_once", "read"):
            raise ConnectionError("the wire is cut")

    job = plan_job(uri, SCHEMA)
    fragments = write(job, 1, 2)
    watch = {"after": fail} if landed else {"before": fail}
    broken = WatchedStore(job.target.store, **watch)
    monkeypatch.setattr(jobs, "open_log", lambda *_: ObjectStoreLog(broken))
    with pytest.raises(CommitUncertainError):
        commit_job(job, fragments)
    assert len(files_of(uri)) == 1
    if landed:
        assert ids_of(uri) == [1, 2]


def test_written_files_can_be_discarded(uri: str) -> None:
    """An aborted Spark job must not leave files that only cleanup can find."""
    job = plan_job(uri, SCHEMA)
    discard(job, write(job, 1) + write(job, 2))
    assert files_of(uri) == []


@pytest.mark.floors
def test_planning_a_job_adds_columns(uri: str) -> None:
    """Workers write files of the final schema, so new columns must exist before they begin, and
    only on request.
    """
    lance_stream.create_dataset(uri, SCHEMA).append(rows(0))
    wider = SCHEMA.append(pa.field("price", pa.float64()))
    with pytest.raises(InvalidInputError, match="no column 'price'"):
        plan_job(uri, wider)
    job = plan_job(uri, wider, add_columns=True)
    data = rows(1).append_column("price", pa.array([1.5]))
    commit_job(job, write_fragments(data.to_batches(), job.target))
    assert lance_stream.open_dataset(uri).to_table()["price"].to_pylist() == [None, 1.5]


def test_job_plans_add_struct_fields(uri: str) -> None:
    """No field may be added if the rows turn out not to fit."""
    field = pa.field("place", pa.struct([("zip", pa.int32())]))
    lance_stream.create_dataset(uri, pa.schema([SCHEMA.field("id"), field]))
    wider = pa.struct([("city", pa.string()), ("zip", pa.int16())])
    incoming = pa.schema([SCHEMA.field("id"), ("place", wider)])
    with pytest.raises(InvalidInputError, match=r"no column 'place\.city'"):
        plan_job(uri, incoming)
    with pytest.raises(InvalidInputError, match="'id' is string"):
        plan_job(uri, pa.schema([("id", pa.string()), ("place", wider)]), add_columns=True)
    assert lance_stream.open_dataset(uri).version == 1
    job = plan_job(uri, incoming, add_columns=True)
    data = pa.table({"id": [1], "place": [{"city": "x", "zip": 2}]}, incoming)
    commit_job(job, write_fragments(data.to_batches(), job.target))
    assert lance_stream.open_dataset(uri).to_table().to_pylist() == [
        {"id": 1, "place": {"zip": 2, "city": "x"}}
    ]


def test_incomplete_rows_add_no_column(uri: str) -> None:
    """Rows that will be refused must not change the schema."""
    required = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    lance_stream.create_dataset(uri, required)
    with pytest.raises(InvalidInputError, match="'id' must not be null in the table, but is miss"):
        plan_job(uri, pa.schema([("new", pa.int64())]), add_columns=True)
    assert lance_stream.open_dataset(uri).version == 1


@pytest.mark.parametrize(
    ("incoming", "keeps_ids"),
    [
        (SCHEMA, True),
        (pa.schema([("name", pa.large_string()), ("id", pa.int32())]), True),
        (pa.schema([("id", pa.float64()), ("name", pa.string())]), False),
        (pa.schema([("id", pa.int64())]), False),
        (pa.schema([("id", pa.int64()), ("other", pa.string())]), False),
    ],
)
def test_overwrites_keep_castable_columns(uri: str, incoming: pa.Schema, keeps_ids: bool) -> None:
    """Equal columns keep their field ids, so that followers can continue; others must get ids
    never used before.
    """
    table = lance_stream.create_dataset(uri, SCHEMA).append(rows(0))
    job = plan_job(uri, incoming, overwrite=True)
    ids = {field.id for field in table.table.schema.walk()}
    assert (job.target.schema == table.table.schema) is keeps_ids
    assert ids.isdisjoint(field.id for field in job.target.schema.walk()) is not keeps_ids


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"file_version": "2.1"}, r"has files of version 2\.2, not 2\.1"),
        ({"primary_key": ["name"]}, "has the primary key id, not name"),
        ({"file_version": "9.9"}, "9.9"),
    ],
)
def test_tables_with_other_options_are_refused(
    uri: str, options: dict[str, Any], match: str
) -> None:
    """Options apply to a new table only, and ignoring them on an existing one would hide a
    mistake.
    """
    lance_stream.create_dataset(uri, SCHEMA, primary_key=["id"])
    assert plan_job(uri, SCHEMA, file_version="2.2", primary_key=["id"]).version == 1
    with pytest.raises((InvalidInputError, lance_stream.UnsupportedFeatureError), match=match):
        plan_job(uri, SCHEMA, **options)
