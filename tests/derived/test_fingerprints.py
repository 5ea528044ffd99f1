"""Inputs have different fingerprints if, and only if, a function can distinguish them."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.derived.fingerprints import Fingerprints, fingerprints_of

FUNCTION = "0123456789abcdef"
ENTRIES = pa.map_(pa.string(), pa.float32())


def numbers(values: pa.Array) -> Fingerprints:
    return fingerprints_of(pa.RecordBatch.from_arrays([values], ["v"]), FUNCTION)


def test_stored_fingerprints_outlive_releases() -> None:
    """They are stored: with other numbers, all rows of all tables would be computed again."""
    columns = {
        "v": pa.array([1, -1, None]),
        "t": pa.array(["x", "", "y"]),
        "f": pa.array([0.5, None, 2.0], pa.float32()),
    }
    (batch,) = pa.table(columns).to_batches()
    expected = [5117265710565102226, 1708849089111893067, 8467762192835213607]
    assert fingerprints_of(batch, FUNCTION).tolist() == expected


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.float16(), [0.0, -0.0, float("nan"), None]),
        (pa.float32(), [0.0, -0.0, float("nan"), 1.5, None]),
        (pa.float64(), [0.0, -0.0, float("nan"), 1.5, None]),
        (pa.list_(pa.float64()), [None, [], [None], [0.0], [-0.0], [0.0, 0.0], [0.0, -0.0]]),
        (pa.large_list(pa.float32()), [None, [], [0.0], [-0.0]]),
        (pa.list_(pa.float32(), 2), [None, [None, None], [0.0, 0.0], [0.0, -0.0]]),
        (
            pa.struct([("x", pa.float64()), ("y", pa.string())]),
            [None, {"x": None, "y": None}, {"x": 0.0, "y": None}, {"x": -0.0, "y": None}],
        ),
        (ENTRIES, [None, [], [("a", 0.0)], [("a", -0.0)], [("a", None)]]),
        (ENTRIES, [[("a", 1.0), ("b", 2.0)], [("b", 2.0), ("a", 1.0)]]),
        (
            pa.map_(pa.string(), pa.int64()),
            [None, [], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], [("a", 2), ("b", 1)]],
        ),
        (pa.list_(pa.map_("string", "int8")), [[[("a", 1), ("b", 2)]], [[("b", 2), ("a", 1)]]]),
        (
            pa.list_(pa.struct([("m", ENTRIES)])),
            [None, [], [None], [{"m": None}], [{"m": [("a", 0.0)]}], [{"m": [("a", -0.0)]}]],
        ),
    ],
)
def test_distinguishable_values_have_different_fingerprints(
    kind: pa.DataType, values: list[Any]
) -> None:
    """Equal numbers would hide a change, while layout and offsets of Arrow's buffers must not
    matter.
    """
    array = pa.array(values, kind)
    actual = numbers(array)
    for one, other in combinations(range(len(values)), 2):
        assert actual[one] != actual[other], (values[one], values[other])
    for start in range(len(values)):  # however the values are laid out
        assert (numbers(array.slice(start)) == actual[start:]).all()
        assert (numbers(pa.array(values[start:], kind)) == actual[start:]).all()


def test_dictionaries_have_their_values_fingerprints() -> None:
    """Encoding is not visible to the function, so re-encoding must not compute all rows again."""
    values = pa.array([0.0, -0.0, None, 0.0])
    assert (numbers(values.dictionary_encode().dictionary_decode()) == numbers(values)).all()


def signs(batch: pa.RecordBatch) -> list[str]:
    return [f"{column.type}: {value}" for column in batch.columns for value in column.to_pylist()]


def test_negative_zeros_are_computed_again(tmp_path: Path) -> None:
    """Zeros compare as equal, but a function can distinguish them."""
    uri = str(tmp_path / "t.lance")
    rows = pa.table({"id": [1, 2], "v": [0.0, 1.0]})
    ds = lance_stream.create_dataset(uri, rows)
    derived = lance_stream.derive(uri, {"text": pa.string()}, signs, "v", function_version="1")
    assert derived.run().num_computed == 2
    changed = pa.table({"id": [1], "v": [-0.0]})
    ds = lance_stream.open_dataset(uri).upsert(changed, on="id")
    assert str(ds.to_table(["v"], "id = 1")["v"][0]) == "-0.0"
    assert derived.run().num_computed == 1
    ds = lance_stream.open_dataset(uri)
    assert sorted(ds.to_table()["text"].to_pylist()) == ["double: -0.0", "double: 1.0"]


def test_cast_inputs_are_computed_again(tmp_path: Path) -> None:
    """The function sees the type, so equal numbers of another width are another input."""
    uri = str(tmp_path / "t.lance")
    rows = pa.table({"id": [1, 2], "v": pa.array([5, None], pa.int32())})
    lance_stream.create_dataset(uri, rows)
    derived = lance_stream.derive(uri, {"text": pa.string()}, signs, "v", function_version="1")
    derived.run()
    lance_stream.open_dataset(uri).alter_columns({"path": "v", "data_type": pa.int64()})
    assert derived.run().num_computed == 2
    texts = lance_stream.open_dataset(uri).to_table()["text"].to_pylist()
    assert texts == ["int64: 5", "int64: None"]


def test_encoded_zeros_have_different_fingerprints() -> None:
    """A dictionary of floats has both zeros, which compare as equal."""
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array([0.0, -0.0]))
    first, second, third = numbers(encoded)
    assert first == third != second
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), encoded)
    assert len(set(numbers(nested).tolist())) == 2
