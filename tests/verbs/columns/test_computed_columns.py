"""Adding computed columns: values of each row, written beside the existing files."""

import uuid
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.environment import MACHINE
from lance_stream.errors import IncompatibleConflictError, RetryableConflictError
from lance_stream.verbs.columns.computed_columns import add_computed_columns
from tests.verbs.columns.test_add_columns import in_the_way

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("name", pa.string()),
        ("place", pa.struct([("zip", pa.int32())])),
    ]
)


def rows(*ids: int) -> pa.Table:
    return pa.table(
        {
            "id": ids,
            "name": [f"n{id_}" if id_ % 3 else None for id_ in ids],
            "place": [{"zip": id_ * 10} for id_ in ids],
        },
        SCHEMA,
    )


@pytest.fixture
def ds() -> Dataset:
    """Seven rows in two fragments; one row of the first is deleted."""
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    return dataset.append(rows(1, 2, 3, 4)).append(rows(5, 6, 7, 8)).delete("id = 2")


def data_files(ds: Dataset) -> set[str]:
    return set(ds.table.store.list_names("data"))


@pytest.mark.floors
def test_values_are_computed_row_by_row(ds: Dataset) -> None:
    """Deleted rows occupy offsets in a file, so values could be shifted against their rows."""
    result = ds.add_columns(
        {
            "double": "id * 2",
            "code": "CAST(place.zip AS string)",
            "named": "name IS NOT NULL",
            "one": "1",
        }
    )
    assert result.version == ds.version + 1
    ids = [1, 3, 4, 5, 6, 7, 8]
    assert result.to_table(["double", "code", "named", "one"]).to_pydict() == {
        "double": [2 * id_ for id_ in ids],
        "code": [str(10 * id_) for id_ in ids],
        "named": [id_ % 3 > 0 for id_ in ids],
        "one": [1] * 7,
    }
    assert result.schema.field("double").type == pa.int64()
    assert all(result.schema.field(name).nullable for name in ("double", "code", "named", "one"))
    assert result.verify() == []


def test_updated_rows_keep_their_ids(ds: Dataset) -> None:
    """Computed values change rows in place: a follower needs them as updates of the same row
    ids.
    """
    before = ds.to_table(with_row_id=True, with_row_versions=True).drop_columns(
        "_row_last_updated_at_version"
    )
    result = ds.add_columns({"double": "id * 2"})
    after = result.to_table(with_row_id=True, with_row_versions=True)
    assert set(after["_row_last_updated_at_version"].to_pylist()) == {result.version}
    assert after.select(before.column_names).equals(before)
    feed = result.changes(ds.version, columns=["id", "double"]).read_all().to_pylist()
    posts = [row for row in feed if row["_change_type"] == "update_postimage"]
    pres = [row for row in feed if row["_change_type"] == "update_preimage"]
    assert [post["double"] for post in posts] == [2 * post["id"] for post in posts]
    assert [pre["double"] for pre in pres] == [None] * 7


def test_only_the_new_columns_are_written(ds: Dataset) -> None:
    """Rewriting the existing columns would cost the size of the table."""
    before = data_files(ds)
    result = ds.add_columns({"double": "id * 2", "half": "id / 2"})
    assert len(data_files(result) - before) == 2  # one a fragment
    for fragment in result.table.manifest.fragments:
        assert fragment.files[-1].field_ids == (4, 5)
        assert fragment.physical_rows == 4


def test_deleted_rows_are_not_computed(ds: Dataset) -> None:
    """A user removes rows whose values break the expression, and expects that they no longer
    matter.
    """
    numbers = {"number": "CAST(name AS int)"}
    with pytest.raises(InvalidInputError, match="cannot be computed"):
        ds.add_columns(numbers)
    remaining = ds.delete("name IS NOT NULL")  # and with them what is no number
    assert remaining.add_columns(numbers).to_table()["number"].to_pylist() == [None, None]


def test_constant_nulls_write_nothing(ds: Dataset) -> None:
    """A column of nulls updates no row and needs no file."""
    before = data_files(ds)
    result = ds.add_columns({"price": "CAST(NULL AS double)"})
    assert result.schema.field("price").type == pa.float64()
    assert result.to_table()["price"].null_count == 7
    assert data_files(result) == before
    assert result.changes(ds.version).read_all().num_rows == 0


def test_null_and_computed_columns_combine(ds: Dataset) -> None:
    """A constant null needs no file, while its neighbour does, and both belong to one version."""
    result = ds.add_columns({"price": "CAST(NULL AS double)", "double": "id * 2"})
    assert result.schema.names[-2:] == ["price", "double"]
    assert result.to_table()["price"].null_count == 7
    assert result.to_table()["double"].to_pylist()[:2] == [2, 6]
    assert result.verify() == []


def test_later_rows_may_lack_values(ds: Dataset) -> None:
    """The expression is evaluated once and is no default, so later rows read null unless they
    bring a value.
    """
    result = ds.add_columns({"double": "id * 2"}).append(rows(9))
    result = result.append(rows(10).append_column("double", pa.array([20])))
    assert result.to_table(filter="id > 8")["double"].to_pylist() == [None, 20]
    assert result.compact().to_table(filter="id > 7")["double"].to_pylist() == [16, None, 20]


def test_an_empty_table_gets_its_columns() -> None:
    """Without fragments there is nothing to compute, but the type is still known from the
    expression.
    """
    empty = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", SCHEMA)
    result = empty.add_columns({"double": "id * 2"}).append(rows(1))
    assert result.schema.names == [*SCHEMA.names, "double"]
    assert result.to_table()["double"].to_pylist() == [None]


def test_columns_compute_without_stable_ids() -> None:
    """Tables of other writers often have no stable row ids, and no sequence of versions to
    update.
    """
    result = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/table", SCHEMA, stable_row_ids=False
    )
    result = result.append(rows(1, 2)).add_columns({"double": "id * 2"})
    assert result.to_table()["double"].to_pylist() == [2, 4]
    assert result.verify() == []


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        ({"name": "id"}, InvalidInputError, "already has a column 'name'"),
        ({"x": "nope + 1"}, NotFoundError, "no column 'nope'"),
        ({"x": "NULL"}, InvalidInputError, "CAST"),
        ({"x": "id +"}, InvalidInputError, "not a SQL expression"),
        ({"x": "id", "y": "x"}, NotFoundError, "no column 'x'"),
        ({"_rowid": "id"}, InvalidInputError, "must not be called '_rowid'"),
        ({"a.b": "id"}, InvalidInputError, "cannot be called 'a.b'"),
        ({"": "id"}, InvalidInputError, "cannot be called ''"),
        ({"x": "CAST(name AS int)"}, InvalidInputError, "cannot be computed"),
        ({"x": 1}, InvalidInputError, "SQL expression"),
    ],
)
def test_failed_computations_leave_no_files(
    ds: Dataset, columns: Any, error: type[Exception], match: str
) -> None:
    """Fragments computed before the error would remain as files that no version names."""
    before = data_files(ds)
    with pytest.raises(error, match=match):
        ds.add_columns(columns)
    assert ds.checkout(None).version == ds.version
    assert data_files(ds) == before


def test_adding_no_column_makes_no_version(ds: Dataset) -> None:
    """An empty version would wake every follower for nothing."""
    assert ds.add_columns({}).version == ds.version


def test_retries_compute_only_new_rows(ds: Dataset) -> None:
    """Computing everything again after each concurrent append might never end on a busy table."""
    before = data_files(ds)
    result = in_the_way(ds, lambda: ds.append(rows(9))).add_columns({"double": "id * 2"})
    assert result.version == ds.version + 2
    assert result.to_table()["double"].to_pylist() == [2, 6, 8, 10, 12, 14, 16, 18]
    assert len(data_files(result) - before) == 4  # a new fragment, and three with the column
    assert result.verify() == []


def test_concurrently_deleted_rows_stay_deleted(ds: Dataset) -> None:
    """The commit replaces fragments, and must carry over deletions that were made meanwhile."""
    result = in_the_way(ds, lambda: ds.delete("id = 5")).add_columns({"double": "id * 2"})
    assert result.to_table()["double"].to_pylist() == [2, 6, 8, 12, 14, 16]


def test_files_of_removed_fragments_are_deleted(ds: Dataset) -> None:
    """Values computed for a fragment that was deleted meanwhile are referenced by no version."""
    result = in_the_way(ds, lambda: ds.delete("id < 5")).add_columns({"double": "id * 2"})
    named = {file.path for fragment in result.table.manifest.fragments for file in fragment.files}
    stale = {file.path for fragment in ds.table.manifest.fragments for file in fragment.files}
    assert data_files(result) == named | stale


def test_files_are_rewritten_if_ids_collide(ds: Dataset) -> None:
    """A concurrent writer's column took the field id."""

    def meanwhile() -> None:
        ds.add_columns({"other": "name"})

    before = data_files(ds)
    result = in_the_way(ds, meanwhile).add_columns({"double": "id * 2"})
    assert result.to_table(["other", "double"]).to_pydict()["double"] == [2, 6, 8, 10, 12, 14, 16]
    assert result.verify() == []
    assert len(data_files(result) - before) == 4  # the first two of ours are gone


def test_concurrent_overwrites_leave_no_files(ds: Dataset) -> None:
    """After an overwrite the computed values belong to no row, so the verb fails and removes
    them.
    """

    def meanwhile() -> None:
        ds.overwrite(rows(50))

    with pytest.raises(IncompatibleConflictError):
        in_the_way(ds, meanwhile).add_columns({"double": "id * 2"})
    newest = ds.checkout(None)
    named = {
        file.path
        for value in (ds, newest)
        for fragment in value.table.manifest.fragments
        for file in fragment.files
    }
    assert data_files(ds) == named


def test_concurrent_columns_of_equal_name_conflict(ds: Dataset) -> None:
    """Two computed columns of one name may have different values, so the second must not replace
    the first.
    """

    def meanwhile() -> None:
        ds.add_columns({"double": "id * 3"})

    with pytest.raises(InvalidInputError, match="already has a column 'double'"):
        in_the_way(ds, meanwhile).add_columns({"double": "id * 2"})
    assert ds.checkout(None).to_table()["double"].to_pylist()[0] == 3
    assert len(data_files(ds)) == 4


def test_computing_gives_up_after_retries(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a table that changes all the time the verb must end with an error, without files of its
    own.
    """
    monkeypatch.setattr("lance_stream.write.planning.MAX_PLANS", 3)
    at_once = replace(MACHINE, sleep=lambda _seconds: None)
    before = data_files(ds)
    table = in_the_way(ds, lambda: ds.append(rows(9)), times=99).table
    with pytest.raises(RetryableConflictError):
        add_computed_columns(table, {"double": "id * 2"}, at_once)
    assert len(data_files(ds) - before) == 3  # what the others appended
