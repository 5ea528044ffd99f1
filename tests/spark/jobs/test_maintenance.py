"""Compaction and cleanup by Spark's tasks do what they do in one process."""

import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.maintenance.compaction.rewrites import RewriteTask
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.files.open_files import OpenFiles
from lance_stream.spark import cleanup_table, compact_table
from lance_stream.spark.jobs import arrow_jobs, file_jobs, maintenance
from lance_stream.spark.jobs.rewrite_jobs import rewrite_by_jobs
from lance_stream.storage.local_store import LocalStore
from lance_stream.table.fragments.fragment import Fragment
from tests.servers.buckets import Bucket

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("x", pa.string())])


def rows(*ids: int, x: str = "") -> pa.Table:
    return pa.table({"id": list(ids), "x": [x or f"row {id_}" for id_ in ids]}, schema=SCHEMA)


def make_table(uri: str, **options: Any) -> Dataset:
    """Fragments of two rows, of which some were updated and deleted."""
    ds = lance_stream.create_dataset(uri, SCHEMA, **options)
    for first in range(0, 12, 2):
        ds = ds.append(rows(first, first + 1))
    return ds.upsert(rows(4, 9, x="updated"), on=["id"]).delete("id = 3")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Dataset, Dataset]:
    """The same table twice."""
    make_table(str(tmp_path / "ours"))
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    ours, theirs = (lance_stream.open_dataset(tmp_path / name) for name in ("ours", "theirs"))
    return ours, theirs


def content(ds: Dataset) -> list[dict[str, Any]]:
    records = ds.scan(with_row_id=True, with_row_versions=True).read_all().to_pylist()
    return sorted(records, key=lambda row: row["id"])


def sizes(ds: Dataset) -> list[tuple[int, int]]:
    return [(fragment.id, fragment.physical_rows) for fragment in ds.table.manifest.fragments]


def files_of(ds: Dataset, folder: str = "") -> set[str]:
    return {file.path for file in ds.table.store.list(folder)}


class Driver:
    """What this process, which is the driver, lists and deletes; it opens no data file."""

    def __init__(self) -> None:
        self.listed: set[str] = set()
        self.deleted: set[str] = set()


@contextmanager
def watching_the_driver() -> Iterator[Driver]:
    """Watch this process; Spark's tasks run in others."""
    driver = Driver()

    def refuse(*_: object) -> None:
        raise AssertionError("the driver reads a data file")

    def noting(name: str, paths: set[str]) -> Callable[..., Any]:
        inner = getattr(LocalStore, name)

        def call(store: LocalStore, path: str = "", *more: Any) -> Any:
            paths.add(path.partition("/")[0])
            return inner(store, path, *more)

        return call

    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(OpenFiles, "_open", refuse)
        patches.setattr(LocalStore, "delete", noting("delete", driver.deleted))
        for name in ("list", "list_files", "list_names"):
            patches.setattr(LocalStore, name, noting(name, driver.listed))
        yield driver


def meddling(monkeypatch: pytest.MonkeyPatch, *acts: Callable[[], object]) -> None:
    """Act after the tasks of a compaction have written, and before it commits."""
    remaining = list(acts)

    def write(spark: Any, tasks: Sequence[RewriteTask], num: int) -> Iterator[list[Fragment]]:
        yield from rewrite_by_jobs(spark, tasks, num)
        if remaining:
            remaining.pop(0)()

    monkeypatch.setattr(maintenance, "rewrite_by_jobs", write)


def test_tasks_derive_the_drivers_order(spark: Any, tmp_path: Path) -> None:
    """Driver and tasks derive the order independently (see `compaction.row_order`), and row ids
    follow it.
    """
    ds = lance_stream.create_dataset(str(tmp_path / "t"), SCHEMA)
    ds = ds.append(rows(*range(1000)))
    for number in range(4):
        ids = random.Random(number).sample(range(1000), 300)
        ds = ds.upsert(rows(*ids, x=f"batch {number}"), on=["id"])
    before = content(ds)
    after = compact_table(spark, str(tmp_path / "t"))
    assert content(after) == before
    assert verify(after.table) == []
    lineage = after.scan(with_row_id=True, with_row_versions=True).read_all()
    placed = zip(
        lineage["_row_last_updated_at_version"].to_pylist(),
        lineage["_rowid"].to_pylist(),
        strict=True,
    )
    assert len(after.table.manifest.fragments) == 1
    assert [*placed] == sorted(
        (row["_row_last_updated_at_version"], row["_rowid"]) for row in before
    )


@pytest.mark.floors
def test_compaction_by_tasks_equals_local_compaction(
    spark: Any, pair: tuple[Dataset, Dataset]
) -> None:
    """Row ids, versions and contents must not depend on where the files are rewritten, and the
    driver must read none of them.
    """
    before = content(pair[0])
    with watching_the_driver() as driver:
        ours = compact_table(spark, pair[0].uri, 4)
    assert driver.deleted == set()
    theirs = pair[1].compact(4)
    assert sizes(ours) == sizes(theirs)
    assert content(ours) == content(theirs) == before
    assert ours.changes(after=pair[0].version).read_all().num_rows == 0
    assert ours.to_table() == theirs.to_table()
    assert ours.verify(deep=True) == []
    assert compact_table(spark, ours.uri, 4).version == ours.version  # nothing is left to do


def test_large_compactions_commit_in_between(
    spark: Any, pair: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction of a large table commits in steps, so that a conflict or failure loses only the
    last step.
    """
    ours, before = pair[0], content(pair[0])
    one = max(
        file.size_bytes for fragment in ours.table.manifest.fragments for file in fragment.files
    )
    meddling(monkeypatch, lambda: ours.append(rows(20)), lambda: ours.append(rows(21)))
    result = compact_table(spark, ours.uri, 4, bytes_per_commit=2 * one)
    operations = [version.operation for version in result.versions()[ours.version :]]
    assert operations.count("Rewrite") >= 3
    assert operations.count("Append") == 2
    assert [row for row in content(result) if row["id"] < 20] == before
    assert [size for _, size in sizes(result)].count(1) == 2  # what was added meanwhile waits
    assert result.verify() == []


def test_concurrent_writers_keep_their_changes(
    spark: Any, pair: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upsert and a delete that commit while tasks rewrite files must survive in the compacted
    files.
    """
    ours, theirs = pair

    def write(ds: Dataset) -> Dataset:
        return ds.upsert(rows(0, 5, 30, x="new"), on=["id"]).delete("id IN (7, 8)")

    meddling(monkeypatch, lambda: write(ours))
    result, expected = compact_table(spark, ours.uri, 100), write(theirs)
    assert content(result) == content(expected)
    assert result.version == expected.version + 1
    assert len(sizes(result)) == 2
    assert result.changes(after=expected.version).read_all().num_rows == 0
    assert result.verify() == []


def test_failed_compaction_tasks_leave_no_files(spark: Any, pair: tuple[Dataset, Dataset]) -> None:
    """A failed compaction is repeated, and each attempt would otherwise leave a copy of the table
    on the store.
    """
    ours = pair[0]
    missing = ours.table.manifest.fragments[4].files[0].path
    ours.table.store.delete(f"data/{missing}")
    before = files_of(ours)
    with pytest.raises(NotFoundError, match=missing):
        compact_table(spark, ours.uri, 4)
    assert files_of(ours) == before


@pytest.mark.floors
@pytest.mark.slow
def test_tasks_clean_up_like_one_process(
    spark: Any, pair: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A distributed cleanup must delete the same files and keep the same young or tagged ones,
    while the driver lists no data folder.
    """
    monkeypatch.setattr(file_jobs, "FILES_PER_TASK", 5)
    monkeypatch.setattr(file_jobs, "TASKS_AT_ONCE", 2)
    ours, theirs = (value.compact(4) for value in pair)
    for item in (ours, theirs):
        item.tags.create("kept", 3)
        item.table.store.write("data/abandoned.lance", b"by a writer that died")
    before = files_of(ours)
    with watching_the_driver() as driver:
        planned = cleanup_table(spark, ours.uri, retain_versions=1, dry_run=True)
        assert files_of(ours, "data") == {text for text in before if text.startswith("data/")}
        driver.listed.clear()
        report = cleanup_table(spark, ours.uri, retain_versions=1)
    assert driver.deleted == {"_versions", "_lance_stream"}  # the second for the store's clock
    assert driver.listed <= {"_versions", "_transactions", "_lance_stream", "_refs", "tree"}
    expected = theirs.cleanup(retain_versions=1)
    assert (report.versions, report.num_files, report.protected) == (
        expected.versions,
        expected.num_files,
        expected.protected,
    )
    assert replace(planned, is_dry_run=False) == report
    assert report.num_files["data files"] >= 5
    assert len(files_of(ours)) == len(files_of(theirs))
    assert "data/abandoned.lance" in files_of(ours)  # it is young
    assert lance_stream.open_dataset(ours.uri).verify(deep=True) == []
    again = cleanup_table(spark, ours.uri, retain_versions=1, delete_unverified=True)
    assert again.num_files == {"data files": 1}
    assert "data/abandoned.lance" not in files_of(ours)


def test_deleting_tasks_may_run_twice(pair: tuple[Dataset, Dataset]) -> None:
    """Spark repeats tasks, so a file that an earlier attempt deleted is not an error."""
    store = pair[0].table.store
    paths = sorted(files_of(pair[0], "_transactions"))
    for _ in range(2):
        file_jobs._delete_some(store, paths)
    assert files_of(pair[0], "_transactions") == set()


def test_workers_without_the_table_are_noticed(tmp_path: Path) -> None:
    """A worker with its own disk would list nothing and delete nothing, so the job has to fail
    instead of reporting success.
    """
    store = LocalStore(str(tmp_path / "not here"))
    for work in (file_jobs._list_folder, file_jobs._delete_some):
        with pytest.raises(InvalidInputError, match="a worker sees no table"):
            work(store, "data")  # type: ignore[operator]  # the second takes several paths


def test_listings_survive_their_arrow_encoding(pair: tuple[Dataset, Dataset]) -> None:
    """Tasks send listings to the driver as Arrow batches, and a lost size or time could delete a
    file that is too young.
    """
    store = pair[0].table.store
    for folder in ("data", "_deletions", "nothing"):
        files = list(file_jobs._files_in(file_jobs._list_folder(store, folder)))
        assert files == store.list(folder)


@pytest.mark.parametrize("function", [compact_table, cleanup_table])
def test_invalid_arguments_are_refused_at_once(
    spark: Any, tmp_path: Path, function: Callable[..., Any]
) -> None:
    """Swapped arguments, memory tables and unknown options must fail in the driver instead of in a
    job.
    """
    uri = str(tmp_path / "t")
    with pytest.raises(InvalidInputError, match="is the Spark session, not"):
        function(uri, spark)
    with pytest.raises(InvalidInputError, match="is not the path or URI"):
        function(spark, 5)
    with pytest.raises(InvalidInputError, match="in the memory of one process"):
        function(spark, "memory://t")
    with pytest.raises(NotFoundError, match="no dataset"):
        function(spark, uri)
    with pytest.raises(InvalidInputError, match="wrong"):
        function(spark, uri, storage_options={"wrong": "x"})


def test_limits_of_both_functions_are_checked(spark: Any, pair: tuple[Dataset, Dataset]) -> None:
    """The Spark functions take the limits of `Dataset.compact` and `Dataset.cleanup` and must
    refuse the same values.
    """
    uri = pair[0].uri
    for wrong in (0, -1, 1.5, True, "1 GB"):
        with pytest.raises(
            InvalidInputError, match="bytes_per_commit must be a whole number from 1"
        ):
            compact_table(spark, uri, bytes_per_commit=wrong)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InvalidInputError, match="at least 1 row"):
        compact_table(spark, uri, 0)
    with pytest.raises(InvalidInputError, match="retain_versions must be an integer of at least 1"):
        cleanup_table(spark, uri, retain_versions=0)


def test_jobs_are_described_and_settings_restored(
    spark: Any, pair: tuple[Dataset, Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Spark UI shows which table a job compacts, and the user's own description has to come
    back afterwards.
    """
    seen: list[str] = []
    context = spark.sparkContext

    def note() -> None:
        seen.append(context.getLocalProperty("spark.job.description"))

    meddling(monkeypatch, note)
    context.setJobDescription("mine")
    compact_table(spark, pair[0].uri)
    assert seen == [f"lance-stream: compact {pair[0].uri}"]
    assert context.getLocalProperty("spark.job.description") == "mine"
    context.setLocalProperty("spark.job.description", None)
    with arrow_jobs.described(spark, "x"):
        pass
    assert context.getLocalProperty("spark.job.description") is None


@pytest.mark.nightly
@pytest.mark.oracle
@pytest.mark.parametrize("stable_row_ids", [True, False])
@pytest.mark.parametrize("file_version", ["2.0", "2.2"])
def test_pylance_reads_files_rewritten_by_tasks(
    spark: Any, tmp_path: Path, file_version: str, stable_row_ids: bool
) -> None:
    """Other readers of the format must find the same rows and row ids after tasks have compacted
    and cleaned up a table.
    """
    lance = pytest.importorskip("lance", reason="pylance reads what tasks compact")
    ds = lance_stream.create_dataset(
        tmp_path / "t", SCHEMA, file_version, stable_row_ids=stable_row_ids
    )
    for first in range(0, 12, 2):
        ds = ds.append(rows(first, first + 1))
    ds = ds.upsert(rows(4, 9, 20, x="updated"), on=["id"]).delete("id = 3")
    theirs = lance.dataset(ds.uri).to_table(with_row_id=stable_row_ids).sort_by("id")
    result = compact_table(spark, ds.uri, 5)
    assert len(sizes(result)) <= 3
    cleanup_table(spark, ds.uri, retain_versions=1, delete_unverified=True)
    after = lance.dataset(ds.uri)
    after.validate()
    assert after.to_table(with_row_id=stable_row_ids).sort_by("id") == theirs
    assert sorted(after.to_table()["id"].to_pylist()) == sorted(result.to_table()["id"].to_pylist())


@pytest.mark.nightly
def test_branches_are_compacted_and_cleaned_up(spark: Any, pair: tuple[Dataset, Dataset]) -> None:
    """Maintenance of a branch must leave the files of the main table in place, on which the branch
    depends.
    """
    ours, uri = pair[0], pair[0].uri
    ours.branches.create("dev")
    branch = lance_stream.open_dataset(uri, branch="dev").append(rows(40)).append(rows(41))
    expected = content(branch)
    result = compact_table(spark, uri, branch="dev")
    assert (result.branch, content(result), len(sizes(result))) == ("dev", expected, 1)
    report = cleanup_table(spark, uri, retain_versions=1, branch="dev")
    assert report.versions
    assert content(lance_stream.open_dataset(uri, branch="dev")) == expected
    assert content(lance_stream.open_dataset(uri)) == content(ours)


@pytest.mark.nightly
def test_tasks_on_s3_receive_storage_options(spark: Any, s3_bucket: Bucket) -> None:
    """Tasks open the store on their own, with explicit options or with the `fs.s3a` settings of
    the session.
    """
    options, uri = s3_bucket.storage_options, f"{s3_bucket.uri}/some tables/t.lance"
    before = content(make_table(uri, storage_options=options))
    result = compact_table(spark, uri, 4, storage_options=options)
    assert content(result) == before
    assert result.verify(deep=True) == []
    report = cleanup_table(spark, uri, retain_versions=1, storage_options=options)
    assert report.num_files["data files"] >= 6
    again = lance_stream.open_dataset(uri, storage_options=options)
    assert content(again) == before
    assert again.verify() == []
    settings = {
        "fs.s3a.endpoint": s3_bucket.endpoint,
        "fs.s3a.access.key": options["aws_access_key_id"],
        "fs.s3a.secret.key": options["aws_secret_access_key"],
        "fs.s3a.endpoint.region": options["aws_region"],
    }
    again.append(rows(50)).append(rows(51))
    try:
        for name, value in settings.items():
            spark.conf.set(name, value)
        assert compact_table(spark, uri).count_rows() == len(before) + 2
        assert cleanup_table(spark, uri, retain_versions=1).versions
    finally:
        for name in settings:
            spark.conf.unset(name)
