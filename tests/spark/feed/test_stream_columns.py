"""A stream keeps the columns that it started with, by field id, while those of its table change.

With any limits, a stream returns the same changes as `Dataset.changes` over the same versions.
"""

import json
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError
from lance_stream.spark.versions import HAS_READ_LIMITS
from tests.spark.feed.query_runs import KilledError, Query

pytestmark = pytest.mark.skipif(not HAS_READ_LIMITS, reason="PySpark 4.1 has no read limits")


def rows(first: int, num_rows: int = 1) -> pa.Table:
    ids = range(first, first + num_rows)
    return pa.table({"a": [*ids], "b": [100 + id_ for id_ in ids]})


@pytest.fixture
def ds(tmp_path: Path) -> Dataset:
    """Versions 1 to 3 insert a row each, in which b is a and 100."""
    uri = str(tmp_path / "table")
    lance.write_dataset(rows(1), uri, enable_stable_row_ids=True)
    return lance_stream.open_dataset(uri).append(rows(2)).append(rows(3))


def behind(ds: Dataset, **options: Any) -> Query:
    """Return a query that reads one version per batch, and has read one."""
    stream = Query(ds.uri, {"startingVersion": "1", "maxVersionsPerTrigger": "1", **options})
    stream.start()
    assert stream.trigger()
    return stream


def run_on(stream: Query) -> None:
    """Read everything available in the current run."""
    while stream.trigger():
        pass


def columns_of(batches: list[list[dict[str, Any]]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row.get(name) for name in names) for batch in batches for row in batch]


def of_dataset(ds: Dataset, *names: str) -> list[tuple[Any, ...]]:
    changes = lance_stream.open_dataset(ds.uri).changes(0).read_all().to_pylist()
    return columns_of([changes], *names)


def test_renamed_columns_keep_their_values(ds: Dataset) -> None:
    """A stream may still read versions from before the rename."""
    stream = behind(ds)
    ds = ds.rename_columns({"b": "price"})
    assert stream.trigger()
    assert columns_of(stream.batches, "a", "b") == [(1, 101), (2, 102)], "the names of the run"
    batches = stream.run()
    assert columns_of(batches, "a", "price") == [(3, 103)], "the names of the next run"


def test_running_streams_keep_their_names(ds: Dataset) -> None:
    """Spark fixes the schema of a query when it starts, so a rename may only take effect at a
    restart.
    """
    stream = behind(ds)
    ds = ds.rename_columns({"b": "price"})
    ds.append(rows(4).rename_columns(["a", "price"]))
    run_on(stream)
    assert columns_of(stream.batches, "a", "b") == [(1, 101), (2, 102), (3, 103), (4, 104)]


def test_renames_between_offset_and_planning_apply(ds: Dataset) -> None:
    """After a crash Spark plans a stored offset with a schema that is newer than the offset."""
    stream = behind(ds)
    with pytest.raises(KilledError):
        stream.trigger(kill="before planning")
    ds.rename_columns({"b": "price"})
    stream.run()
    assert columns_of(stream.batches[1:], "a", "price") == [(2, 102), (3, 103)]


def test_swapped_names_keep_their_meaning(
    ds: Dataset,
) -> None:
    """A stream that resumes keeps its columns, while a new stream takes the new names."""
    stream = behind(ds)
    ds = ds.rename_columns({"a": "b", "b": "a"})
    ds.append(pa.table({"b": [4], "a": [104]}))
    stream.run()
    expected = [(number, 100 + number) for number in range(1, 5)]
    assert columns_of(stream.batches, "a", "b") == expected
    assert json.loads(stream.offsets[-1])["columns"] == {"`a`": 0, "`b`": 1}
    ds.checkout(None).append(pa.table({"b": [5], "a": [105]}))
    stream.run()
    assert columns_of(stream.batches, "a", "b") == [*expected, (5, 105)]
    fresh = Query(ds.uri, {"startingVersion": "1", "maxVersionsPerTrigger": "1"})
    fresh.run()
    assert columns_of(fresh.batches, "a", "b") == of_dataset(ds, "a", "b")
    assert columns_of(fresh.batches, "a") == [(101,), (102,), (103,), (104,), (105,)]


def test_filters_keep_their_meaning_across_renames(ds: Dataset) -> None:
    """A filter that follows the name would select by another column after a swap."""
    stream = behind(ds, filter="a < 100")
    ds = ds.rename_columns({"a": "b", "b": "a"})
    stream.run()
    assert columns_of(stream.batches, "a") == [(1,), (2,), (3,)]


def test_recreated_columns_stop_the_run(ds: Dataset) -> None:
    """Dropping and adding a name makes a new column, whose values must not continue the old one in
    a running query.
    """
    stream = behind(ds)
    ds = ds.drop_columns(["b"]).add_columns(pa.field("b", pa.int64()))
    ds.append(rows(4))
    with pytest.raises(InvalidInputError, match="'b' no longer exists"):
        run_on(stream)
    assert columns_of(stream.batches, "a", "b") == [(1, 101), (2, 102), (3, 103)]
    stream.run()
    assert columns_of(stream.batches[3:], "a", "b") == [(4, 104)]


def test_reused_names_mean_the_new_column(
    ds: Dataset,
) -> None:
    """A name may move to a new column while the old one exists under another name."""
    stream = behind(ds)
    ds.rename_columns({"a": "c", "b": "a"})
    stream.run()
    assert columns_of(stream.batches[1:], "c", "a") == [(2, 102), (3, 103)]


TYPES = [
    (pa.decimal128(20, 2), pa.decimal128(25, 2), [1, 2, 3, 4]),
    (pa.float64(), pa.float32(), [0.5, None, 1.5, 2.5]),
    (pa.int64(), pa.string(), [None, None, None, "4"]),
    (pa.list_(pa.int32()), pa.list_(pa.int64()), [[1], [2], [3], [4]]),
]


@pytest.mark.parametrize(("before", "now", "expected"), TYPES, ids=lambda v: str(v))
@pytest.mark.parametrize("limits", [{}, {"maxVersionsPerTrigger": "1"}, {"maxRowsPerTrigger": "1"}])
def test_streams_survive_retyped_columns(
    tmp_path: Path,
    before: pa.DataType,
    now: pa.DataType,
    expected: list[Any],
    limits: dict[str, str],
) -> None:
    """An overwrite may change types, and old rows have to be delivered in the type that the
    restarted query has.
    """
    uri = str(tmp_path / "table")
    values = [0.5, 0.1, 1.5, 2.5] if before == pa.float64() else [1, 2, 3, 4]
    if pa.types.is_list(before):
        values = [[value] for value in values]
    for index in range(3):
        data = pa.table({"x": pa.array([values[index]], before)})
        mode = "append" if index else "create"
        lance.write_dataset(data, uri, mode=mode, enable_stable_row_ids=True)
    stream = Query(uri, {"startingVersion": "1", **limits})
    stream.start()
    if limits:
        stream.trigger()
    last = [str(values[3])] if now == pa.string() else [values[3]]
    data = pa.table({"x": pa.array(last, now)})
    lance.write_dataset(data, uri, mode="overwrite")
    for _ in range(2):
        stream.run()
    changes = lance_stream.open_dataset(uri).changes(0).read_all().to_pylist()
    kinds = ("_commit_version", "_change_type", "x")
    start = len(stream.batches[0]) if limits else 0
    assert columns_of(stream.batches, *kinds)[start:] == columns_of([changes], *kinds)[start:]
    inserts = [row["x"] for row in changes if row["_change_type"] == "insert"]
    assert inserts == expected


@pytest.mark.parametrize(
    "options",
    [{"columns": '["s.z", "n"]'}, {"filter": "s.z > 1 OR n IS NULL"}, {"filter": "n = 1"}],
)
@pytest.mark.parametrize("limits", [{}, {"maxVersionsPerTrigger": "1"}, {"maxRowsPerTrigger": "1"}])
def test_options_may_name_later_columns(
    tmp_path: Path, options: dict[str, str], limits: dict[str, str]
) -> None:
    """Columns and filter may name a column that the start version does not have."""
    uri = str(tmp_path / "table")
    lance.write_dataset(pa.table({"s": [{"y": 1}]}), uri, enable_stable_row_ids=True)
    lance.write_dataset(pa.table({"s": [{"y": 2}]}), uri, mode="append")
    lance.write_dataset(pa.table({"s": [{"y": 3, "z": 2}], "n": [1]}), uri, mode="overwrite")
    stream = Query(uri, {"startingVersion": "1", **options, **limits})
    stream.run()
    rows_read = [row for batch in stream.batches for row in batch]
    changes = lance_stream.open_dataset(uri).changes(0).read_all().to_pylist()
    if options.get("filter") == "n = 1":
        changes = [row for row in changes if row["n"] == 1]
    kinds = ("_commit_version", "_change_type", "n")
    assert columns_of([rows_read], *kinds) == columns_of([changes], *kinds)
    assert len(rows_read) == (1 if options.get("filter") == "n = 1" else 5)


def test_streams_survive_cleaned_up_versions(ds: Dataset) -> None:
    """The version from which a stream knows its column names may be removed."""
    stream = Query(ds.uri, {"startingVersion": "1"})
    stream.start()
    stream.trigger()
    ds = ds.rename_columns({"a": "b", "b": "a"})
    for number in range(4, 8):
        ds = ds.append(pa.table({"b": [number], "a": [100 + number]}))
        assert stream.trigger()
        ds.cleanup(older_than="0s", retain_versions=2)
    assert columns_of(stream.batches, "a", "b") == [
        (number, 100 + number) for number in range(1, 8)
    ]
    stream.run()
    ds.append(pa.table({"b": [8], "a": [108]}))
    stream.run()
    assert columns_of(stream.batches[-1:], "a", "b") == [(8, 108)]
