"""Columns of data files, read from the bytes of many fragments, compared with decoded ones."""

import random
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from lance_stream import create_dataset
from lance_stream._proto import table_pb2
from lance_stream.errors import CorruptDataError
from lance_stream.keys import file_columns as module
from lance_stream.keys.file_columns import file_column, file_columns
from lance_stream.table.fragments.fragment import DataFile, Fragment, encode_fragment
from lance_stream.table.manifest import FragmentList
from lance_stream.table.paths import (
    data_file_name,
    parse_data_file_name,
    parse_data_file_names,
)


def some_name(dice: random.Random) -> str:
    name = data_file_name(dice.randbytes(16))
    return dice.choice(
        [
            *[name] * 8,
            f"folder/{name}",
            name.upper(),
            f"2{name[1:]}",
            f"{name[:-7]}g.lance",
            f"{name}x",
            "123e4567-e89b-42d3-a456-426614174000.lance",
            "part-0.lance",
        ]
    )


def some_file(dice: random.Random) -> DataFile:
    fields, columns = dice.choice(
        [((0, 1), (0, 1)), ((0, 1), (1, 0)), ((1, 0), (0, 1)), ((1,), (0,)), ((-2, 0), (0, 3))]
    )
    base = dice.choice([None, None, 1])
    return DataFile(some_name(dice), fields, columns, (2, 1), dice.randrange(1 << 20), base)


def some_fragment(dice: random.Random, number: int) -> bytes:
    files = tuple(some_file(dice) for _ in range(dice.choice([1, 1, 1, 1, 1, 2])))
    raw = encode_fragment(Fragment(number, files, dice.randrange(1, 100)))
    if dice.random() < 0.1:
        overlays = table_pb2.DataFragment(overlays=[table_pb2.DataOverlayFile()])
        raw += overlays.SerializeToString()
    return raw


@pytest.mark.floors
@pytest.mark.parametrize("max_kinds", [1, 16])
def test_columns_equal_decoded_fragments(max_kinds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns are read from the encoded bytes of many fragments at once, which must agree with
    decoding each of them.
    """
    monkeypatch.setattr(module, "_MAX_KINDS", max_kinds)
    dice = random.Random(max_kinds)
    num_present = 0
    for _ in range(10):
        fragments = FragmentList(some_fragment(dice, number) for number in range(200))
        positions = np.array(sorted(dice.sample(range(200), 150)))
        for field_id in (0, 1, 7):
            expected = [file_column(fragments[index], field_id) for index in positions.tolist()]
            assert file_columns(fragments, positions, field_id) == expected
            num_present += sum(value is not None for value in expected)
    assert num_present > 500


def test_similar_fragments_are_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoding every fragment of a large table would cost more than the upsert itself."""
    dice = random.Random(3)
    file = DataFile("", (0, 1), (0, 1), (2, 1), 5)
    fragments = FragmentList(
        encode_fragment(
            Fragment(number, (replace(file, path=data_file_name(dice.randbytes(16))),), 9)
        )
        for number in range(1000)
    )
    decoded = []

    def counted(fragment: Fragment, field_id: int) -> object:
        decoded.append(fragment.id)
        return file_column(fragment, field_id)

    monkeypatch.setattr(module, "file_column", counted)
    columns = file_columns(fragments, np.arange(1000), 1)
    assert len({value.file for value in columns if value is not None}) == 1000
    assert decoded == [0]


def test_damaged_fragments_are_reported() -> None:
    """The fast path must not read past the end of a truncated fragment."""
    dice = random.Random(4)
    raws = [some_fragment(dice, number) for number in range(200)]
    fragments = FragmentList([*raws[:-1], raws[-1][:-1]])
    with pytest.raises(CorruptDataError):
        file_columns(fragments, np.arange(200), 0)


def test_many_names_are_parsed_like_one() -> None:
    """A file that is identified by a wrong name would be given the bounds of another one."""
    dice = random.Random(5)
    names = [some_name(dice) for _ in range(300)]
    raw = [name.encode() for name in names]
    stops = np.cumsum([len(value) for value in raw])
    data = np.frombuffer(b"".join(raw), np.uint8)
    are_random, parsed = parse_data_file_names(data, stops - [len(value) for value in raw], stops)
    expected = [parse_data_file_name(name) for name in names]
    assert are_random.tolist() == [value is not None for value in expected]
    assert [row.tobytes() for row in parsed[are_random]] == [value for value in expected if value]
    assert 100 < int(are_random.sum()) < 300


@pytest.mark.parametrize("name", ["part-0.lance", "123e4567-e89b-42d3-a456-426614174000.lance"])
def test_no_fragment_has_random_name(name: str) -> None:
    """The numpy path for many names also serves a selection without any random name."""
    file = DataFile(name, (0, 1), (0, 1), (2, 1), 5)
    fragments = FragmentList(
        encode_fragment(Fragment(number, (file,), 9)) for number in range(module._FEW + 1)
    )
    columns = file_columns(fragments, np.arange(len(fragments)), 1)
    assert columns == [file_column(fragment, 1) for fragment in fragments]


def test_no_fragment_has_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """An upsert finds its keys in fragments whose computed column is a second data file."""
    monkeypatch.setattr(module, "_FEW", 1)
    table = create_dataset("memory://unnamed_files/t", pa.table({"id": [0], "x": [0]}))
    for number in range(1, 4):
        table = table.append(pa.table({"id": [number], "x": [number]}))
    table = table.add_columns({"y": "x + 1"})
    table = table.upsert(pa.table({"id": [3, 9], "x": [30, 90], "y": [0, 0]}), on=["id"])
    assert sorted(table.to_table().column("x").to_pylist()) == [0, 1, 2, 30, 90]
