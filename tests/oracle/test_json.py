"""JSON columns compared with pylance: the same bytes in files, the same text to users."""

import json
import random
from pathlib import Path
from typing import Any, Final

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.errors import InvalidInputError
from lance_stream.spark.session.spark_types import carrier_schema, to_spark
from tests.oracle.test_upserts import rows_of

pytestmark = pytest.mark.oracle

VERSIONS: Final = ("2.0", "2.1", "2.2")
NUMBERS: Final = (
    0,
    -0.0,
    1e15,
    1e16,
    1e-5,
    9.99e-6,
    5e-324,
    1.7976931348623157e308,
    2**64,
    -(2**63),
)


def random_value(dice: random.Random, depth: int = 0) -> Any:
    kind = dice.randrange(9 if depth < 4 else 6)
    if kind == 0:
        return dice.choice((None, True, False))
    if kind == 1:
        return dice.choice((2**8, 2**16, 2**32, 2**63)) * dice.choice((1, -1)) + dice.randint(-1, 1)
    if kind == 2:
        return dice.random() * 10.0 ** dice.randint(-320, 300)
    if kind == 3:
        return dice.choice(NUMBERS)
    if kind in (4, 5):
        return random_text(dice)
    if kind == 6:
        return [random_value(dice, depth + 1) for _ in range(dice.randrange(4))]
    return {random_text(dice): random_value(dice, depth + 1) for _ in range(dice.randrange(4))}


def random_text(dice: random.Random) -> str:
    return "".join(dice.choice('aé☃😀"\\/\n\t\0\x7f zZ') for _ in range(dice.randrange(6)))


def random_texts(seed: int, count: int) -> list[str | None]:
    dice = random.Random(seed)
    return [
        None
        if dice.random() < 0.05
        else json.dumps(
            random_value(dice), ensure_ascii=dice.random() < 0.5, indent=dice.choice((None, 2))
        )
        for _ in range(count)
    ]


def stored(ds: Dataset) -> pa.Table:
    """The columns as they are in files."""
    from lance_stream.read.scan import scan

    return scan(ds.table).read_all()


@pytest.mark.parametrize("file_version", ["0.1", *VERSIONS])
def test_files_and_texts_equal_pylances(tmp_path: Path, file_version: str) -> None:
    """Random JSON, written by each and read by both; the schemas are equal, too."""
    texts = random_texts(int(file_version[-1]), 1500)
    table = pa.table({"id": range(len(texts)), "j": pa.array(texts, pa.json_())})
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    name = "legacy" if file_version == "0.1" else file_version
    lance.write_dataset(table, theirs, data_storage_version=name)
    lance_stream.create_dataset(ours, table, file_version)
    expected = lance.dataset(theirs).to_table()
    for uri in (ours, theirs):
        assert lance.dataset(uri).to_table().equals(expected)
        assert lance_stream.open_dataset(uri).to_table().equals(expected)
    opened = [lance_stream.open_dataset(uri) for uri in (ours, theirs)]
    assert stored(opened[0]).equals(stored(opened[1]))
    assert opened[0].table.schema == opened[1].table.schema
    assert opened[0].verify(deep=True) == []


@pytest.mark.parametrize("file_version", VERSIONS)
def test_json_in_structs_and_lists_agrees(tmp_path: Path, file_version: str) -> None:
    """Parts of columns are JSON, too, with nulls at each level."""
    texts = pa.array(['{"a": 1}', None, "[]", "2"], pa.json_())
    table = pa.table(
        {
            "x": pa.StructArray.from_arrays([texts, pa.array([1, 2, 3, 4])], names=["j", "k"]),
            "l": pa.ListArray.from_arrays(pa.array([0, 2, 2, 3, 4]), texts),
        }
    )
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    lance.write_dataset(table, theirs, data_storage_version=file_version)
    lance_stream.create_dataset(ours, table, file_version)
    expected = lance.dataset(theirs).to_table().to_pylist()
    for uri in (ours, theirs):
        assert lance.dataset(uri).to_table().to_pylist() == expected
        assert lance_stream.open_dataset(uri).to_table().to_pylist() == expected


@pytest.mark.parametrize("file_version", VERSIONS)
def test_upserts_and_feeds_of_json_agree(tmp_path: Path, file_version: str) -> None:
    """Rows, ids and stamps are pylance's; the feed shows the same texts."""
    first = pa.table({"id": [1, 2, 3], "j": pa.array(['{"a":1}', "2", None], pa.json_())})
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    for uri in (ours, theirs):
        lance.write_dataset(
            first, uri, data_storage_version=file_version, enable_stable_row_ids=True
        )
    data = pa.table({"id": [1, 9], "j": pa.array(['{ "b": [1.50] }', '"x"'], pa.json_())})
    merge = lance.dataset(theirs).merge_insert("id")
    merge.when_matched_update_all().when_not_matched_insert_all().execute(data)
    after = lance_stream.open_dataset(ours).upsert(data, "id")
    assert rows_of(lance.dataset(ours)) == rows_of(lance.dataset(theirs))
    changes = after.changes(1).read_all()
    assert changes["j"].to_pylist() == ['{"a":1}', '{"b":[1.5]}', '"x"']
    same = pa.table({"id": [1], "j": ['{"b":   [1.5]}']})
    assert after.upsert(same, "id", skip_unchanged=True).version == after.version


def test_strings_are_written_into_json_columns(tmp_path: Path) -> None:
    """Spark has no JSON type; what is no JSON is refused, and named."""
    schema = pa.schema([("id", pa.int64()), pa.field("j", pa.json_())])
    ds = lance_stream.create_dataset(tmp_path / "table", schema)
    ds = ds.append(pa.table({"id": [1, 2], "j": ['{"a": 1}', None]}))
    ds = ds.update({"j": "'[1]'"}, where="id = 2")
    assert lance.dataset(ds.uri).to_table()["j"].to_pylist() == ['{"a":1}', "[1]"]
    for values in (["{a:1}"], pa.array([b'{"a":1}'], pa.large_binary()), [1]):
        with pytest.raises(InvalidInputError, match="JSON"):
            ds.append(pa.table({"id": [3], "j": values}))


def test_compactions_keep_values_without_a_text(tmp_path: Path) -> None:
    """pylance stores 1e309 as infinity, and shows null: whoever moves the row must not store it."""
    uri = str(tmp_path / "table")
    table = pa.table({"id": [1], "j": pa.array(["[1e309]"], pa.json_())})
    lance.write_dataset(table, uri, enable_stable_row_ids=True)
    ds = lance_stream.open_dataset(uri)
    before = stored(ds)["j"]
    after = ds.append(pa.table({"id": [2], "j": ["1"]})).compact()
    after = after.update({"id": "id + 1"}, where="id = 1")
    assert before[0] in stored(after)["j"]
    assert after.to_table(filter="id = 2")["j"].to_pylist() == ["[null]", "1"]


def test_spark_gets_json_as_strings(tmp_path: Path) -> None:
    """Spark cannot read Arrow's JSON type, at the top level or in lists."""
    texts = pa.array(["[1]", None], pa.json_())
    table = pa.table({"j": texts, "l": pa.ListArray.from_arrays(pa.array([0, 1, 2]), texts)})
    ds = lance_stream.create_dataset(tmp_path / "table", table)
    carried = carrier_schema(ds.table.arrow_schema)
    assert carried.types == [pa.string(), pa.list_(pa.field("element", pa.string()))]
    (batch,) = stored(ds).to_batches()
    assert to_spark(batch, carried).to_pylist() == [
        {"j": "[1]", "l": ["[1]"]},
        {"j": None, "l": [None]},
    ]


def test_a_deep_verification_reads_json(tmp_path: Path) -> None:
    """A header alone does not make JSONB; a decimal of another writer is no damage."""
    schema = pa.schema(
        [pa.field("j", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"})]
    )
    ds = lance_stream.create_dataset(tmp_path / "table", schema)
    decimal, damaged = ("20000000 20000002 70 00", "20000000 10000009 78")
    ds = ds.append(pa.table({"j": pa.array([bytes.fromhex(decimal)], pa.large_binary())}))
    assert ds.verify(deep=True) == []
    ds = ds.append(pa.table({"j": pa.array([bytes.fromhex(damaged)], pa.large_binary())}))
    (finding,) = ds.verify(deep=True)
    assert "JSON" in str(finding)


def test_extracted_parts_agree_with_json_extract(tmp_path: Path) -> None:
    """`get_json_object` gives strings without quotes, and no null for members, as Spark does."""
    texts = [*random_texts(7, 600), '{"a": {"b": [1, "x", null]}}', '{"a": null}', '[["y"], 2]']
    table = pa.table({"id": range(len(texts)), "j": pa.array(texts, pa.json_())})
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, table)
    reference = lance.dataset(uri)
    steps = ("", ".a", "[0]", "[1]", "[0][0]", ".a.b", ".a.b[0]", ".a.b[1]", ".a.b[2]")
    for number, path in enumerate(f"${step}" for step in steps):
        ds = ds.add_columns({f"v{number}": f"get_json_object(j, '{path}')"})
        (ours,) = ds.to_table([f"v{number}"]).columns
        theirs = reference.scanner({"v": f"json_extract(j, '{path}')"}).to_table()["v"]
        for text, other in zip(ours.to_pylist(), theirs.to_pylist(), strict=True):
            if other is None or (other == "null" and path[-1].isalpha()):
                assert text is None
            elif other.startswith('"'):
                assert text == json.loads(other)
            else:
                assert json.loads(text) == json.loads(other)
