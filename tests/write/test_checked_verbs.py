"""Dataset verbs refuse rows for which a condition is not true, and write nothing."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError

TABLE = pa.schema(
    [pa.field("id", pa.int64(), nullable=False), ("x", pa.uint8()), ("s", pa.string())]
)
GOOD = [{"id": 1, "x": 10, "s": "a"}, {"id": 2, "x": 20, "s": "b"}]
EXPECT = {"large": "x > 9"}


def rows(*records, schema=TABLE):
    return pa.Table.from_pylist([*records], schema)


@pytest.fixture
def ds(tmp_path: Path) -> lance_stream.Dataset:
    return lance_stream.create_dataset(tmp_path / "t.lance", rows(*GOOD), expect=EXPECT)


def upsert(ds, data, **more):
    return ds.upsert(data, "id", **more)


def append(ds, data, **more):
    return ds.append(data, **more)


def overwrite(ds, data, **more):
    return ds.overwrite(data, **more)


def create(ds, data, **more):
    return lance_stream.create_dataset(f"{ds.uri}.new", data, **more)


@pytest.mark.floors
@pytest.mark.parametrize("verb", [append, overwrite, upsert, create])
def test_bad_rows_are_refused_by_reason(ds: lance_stream.Dataset, verb) -> None:
    """Reasons must be counted over several batches, and for a reader that can be read only once."""
    files = sorted(Path(ds.uri).rglob("*"))
    bad = {"id": 3, "x": 5, "s": "c"}, {"id": 4, "x": None, "s": "d"}, {"id": 5, "x": 1, "s": "e"}
    data = pa.concat_tables([rows(GOOD[0]), rows(*bad)])
    for source in (data, data.to_reader(), data.to_batches()):
        with pytest.raises(InvalidInputError, match="3 of 4 rows do not fit") as refused:
            verb(ds, source, expect=EXPECT)
        message = str(refused.value)
        assert "3 for which the check 'large' is not true" in message
        assert '"id": 3' in message
        assert 'lance_sink(bad_rows="quarantine")' in message
    assert sorted(Path(ds.uri).rglob("*")) == files
    assert not Path(f"{ds.uri}.new", "_versions").exists()
    result = verb(ds, rows({"id": 3, "x": 50, "s": "c"}), expect=["x > 9", "s LIKE '_'"])
    assert result.count_rows("id = 3") == 1
    assert lance.dataset(result.uri).count_rows() == result.count_rows()


def test_unfit_values_count_as_reasons(ds: lance_stream.Dataset) -> None:
    """A user repairs input faster if one error lists all kinds of bad rows."""
    wide = pa.schema([("id", pa.int64()), ("x", pa.int16())])
    data = rows({"id": 3, "x": 300}, {"id": None, "x": 30}, {"id": 4, "x": 3}, schema=wide)
    with pytest.raises(InvalidInputError) as refused:
        ds.append(data, expect=EXPECT)
    for part in (
        "a value that does not fit its column",
        "a null in a column that must not be null",
        "the check 'large'",
    ):
        assert f"1 with {part}" in str(refused.value) or f"1 for which {part}" in str(refused.value)


def test_deleting_rows_need_only_their_key(ds: lance_stream.Dataset) -> None:
    """The values of a row that deletes are not stored, so conditions on them do not apply."""
    schema = TABLE.append(pa.field("op", pa.string()))
    data = rows({"id": 1, "x": 0, "op": "d"}, {"id": 2, "x": 30, "op": "u"}, schema=schema)
    rules = {"delete_when": "op = 'd'", "except_columns": "op"}
    checks = {**EXPECT, "op": "op IN ('u', 'd')"}
    assert upsert(ds, data, expect=checks, **rules).count_rows() == 1
    with pytest.raises(InvalidInputError, match="1 with a null key"):
        upsert(ds, rows({"id": None, "op": "d"}, schema=schema), expect=checks, **rules)
    with pytest.raises(InvalidInputError, match="check 'op'"):
        upsert(ds, rows({"id": 7, "x": 70, "op": "?"}, schema=schema), expect=checks, **rules)


@pytest.mark.parametrize("verb", [append, overwrite, upsert, create])
def test_invalid_checks_are_refused_without_rows(ds: lance_stream.Dataset, verb) -> None:
    """A misspelt condition must not pass because the first batch happens to be empty."""
    for expect, problem in (
        (["y > 0"], "no column 'y'|does not have"),
        ("x >", "SQL"),
        (3, "expect"),
    ):
        with pytest.raises(InvalidInputError, match=problem):
            verb(ds, TABLE.empty_table(), expect=expect)


def test_checks_need_rows_not_schemas(tmp_path: Path) -> None:
    """The condition would be ignored, as it is not stored with the table."""
    with pytest.raises(InvalidInputError, match=r"ds.append\(rows, expect"):
        lance_stream.create_dataset(tmp_path / "t", TABLE, expect="x > 0")


def test_errors_quote_rows_of_any_type(tmp_path: Path) -> None:
    """The error quotes a bad row as JSON, which must work for every type."""
    data = pa.table(
        {
            "id": [1, -2],
            "v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32(), 2)),
            "d": pa.array(["a", "b"]).dictionary_encode(),
            "n": pa.array([{"k": b"\xff"}, None]),
            "view": pa.array(["x", "y"], pa.string_view()),
        }
    )
    uri = tmp_path / "t"
    with pytest.raises(InvalidInputError, match='"id": -2'):
        lance_stream.create_dataset(uri, data, expect="id > 0")
    ds = lance_stream.create_dataset(uri, data, expect="d IN ('a', 'b') AND view <> 'z'")
    with pytest.raises(InvalidInputError, match='"id": -2'):
        ds.append(ds.scan(), expect="id > 0")
    with pytest.raises(InvalidInputError, match='"id": -2'):
        ds.upsert(data, "id", expect="id > 0")
    assert ds.upsert(data, "id", expect="id <> 0").count_rows() == 2


def test_concurrent_casts_repeat_the_checks(ds: lance_stream.Dataset) -> None:
    """Another writer changed the type since the dataset was opened, and rows are judged by the
    newest columns.
    """
    lance_stream.open_dataset(ds.uri).alter_columns({"path": "x", "data_type": pa.int32()})
    wide = pa.schema([("id", pa.int64()), ("x", pa.int32())])
    assert ds.append(rows({"id": 3, "x": 300}, schema=wide), expect=EXPECT).count_rows() == 3
    with pytest.raises(InvalidInputError, match="check 'large'"):
        ds.append(rows({"id": 3, "x": 3}, schema=wide), expect=EXPECT)
