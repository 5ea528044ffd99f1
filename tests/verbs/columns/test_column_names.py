"""Valid names of columns, and names that differ in case only."""

from pathlib import Path

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError

NOT_NAMES = ["", "a.b", "."]


@pytest.mark.parametrize("name", NOT_NAMES)
def test_unportable_names_are_refused(name: str, tmp_path: Path) -> None:
    """Dots and empty names have another meaning in Spark, SQL and Lance's paths, and every verb
    must agree on that.
    """
    schema = pa.schema([("id", pa.int64()), (name, pa.int64())])
    with pytest.raises(InvalidInputError, match="names must not be empty or contain a dot"):
        lance_stream.create_dataset(tmp_path / "new", schema)
    assert not list(tmp_path.iterdir())
    ds = lance_stream.create_dataset(tmp_path / "t", pa.schema([("id", pa.int64())]))
    rows = pa.table({"id": [1], name: [2]})
    for change in (
        lambda: ds.overwrite(rows),
        lambda: ds.add_columns(pa.field(name, pa.int64())),
        lambda: ds.add_columns({name: "id + 1"}),
        lambda: ds.rename_columns({"id": name}),
    ):
        with pytest.raises(InvalidInputError, match="names must not be empty or contain a dot"):
            change()
    assert ds.checkout(None).version == 1
    assert not (tmp_path / "t" / "data").exists() or not list((tmp_path / "t" / "data").iterdir())


@pytest.mark.parametrize("version", ["2.0", "2.2"])
def test_struct_fields_need_distinct_names(version: str, tmp_path: Path) -> None:
    """Arrow permits equal names in a struct, but no path could choose between them."""
    parts = pa.struct([pa.field("x", pa.int64()), pa.field("x", pa.int64())])
    for arrow in (parts, pa.list_(parts)):
        with pytest.raises(InvalidInputError, match="the parts of a struct must have different"):
            lance_stream.create_dataset(tmp_path / "t", pa.schema([("s", arrow)]), version)


@pytest.mark.oracle
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_every_verb_is_case_sensitive(version: str, tmp_path: Path) -> None:
    """Lance distinguishes `v` and `V`, and a verb that ignored case would read or overwrite the
    wrong column.
    """
    path = str(tmp_path / "t")
    schema = pa.schema(
        [
            ("v", pa.int64()),
            ("V", pa.int64()),
            ("s", pa.struct([("w", pa.int64()), ("W", pa.int64())])),
        ]
    )
    rows = pa.table(
        {"v": [1, 2, 3], "V": [30, 20, 10], "s": [{"w": n, "W": -n} for n in range(3)]},
        schema=schema,
    )
    ds = lance_stream.create_dataset(path, schema, version).append(rows)
    assert ds.to_table(["V"], filter="v > 1 AND V > 10").to_pydict() == {"V": [20]}
    assert ds.to_table(["s.W"], filter="s.w = 2 AND `s`.`W` < 0").to_pydict() == {"s": [{"W": -2}]}
    assert ds.count_rows("V = v") == 0
    ds = ds.update({"V": "v"}, where="V = 20").delete("V = 30")
    parts = [{"w": 2, "W": -2}, {"w": 3, "W": -3}]
    ds = ds.upsert(pa.table({"v": [3, 9], "V": [11, 99], "s": parts}), on="v")
    ds = ds.upsert(pa.table({"V": [99], "v": [8]}), on="V")
    ds = ds.rename_columns({"v": "V", "V": "v"}).add_columns({"Total": "v * V"}).compact()
    expected = {
        "V": [2, 3, 8],
        "v": [2, 11, 99],
        "s": [{"w": 1, "W": -1}, {"w": 2, "W": -2}, {"w": 3, "W": -3}],
        "Total": [4, 33, 792],
    }
    actual = ds.to_table().sort_by("V").to_pydict()
    assert actual == expected
    assert lance.dataset(path).to_table().sort_by("V").to_pydict() == expected
    assert ds.verify() == []
    feed = ds.changes(1, columns=["V", "v"]).read_all()
    assert set(feed.column_names[:2]) == {"V", "v"}
    dropped = ds.drop_columns(["v"]).to_table()
    assert dropped.schema.names == ["V", "s", "Total"]
