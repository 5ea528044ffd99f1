from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.keys.fragment_matches import Matches, find_matches, join_matches
from lance_stream.read.units import unit_of
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.fragments.fragment import encode_fragment

ROWS = 1000


@pytest.mark.parametrize("where", ["false", "key % 5 = 0", "key % 5 > 0", "key < 990"])
@pytest.mark.parametrize("batch_size", [None, 64])
def test_all_live_rows_of_keys_match(tmp_path: Path, where: str, batch_size: int | None) -> None:
    """Every live row of a key must match, and no deleted one."""
    keys = np.random.default_rng(0).permutation(ROWS)
    rows = pa.table({"sequence": np.arange(ROWS), "key": keys})
    uri = str(tmp_path / "table.lance")
    before = lance_stream.create_dataset(uri, rows.schema).append(rows[:10])
    dataset = before.append(rows[10:]).delete(where)
    live = set(dataset.to_table()["key"].to_pylist())

    table = open_newest(uri)
    fragment_id, position = max((id_, at) for at, id_ in enumerate(table.manifest.fragments.ids))
    unit = unit_of(table, position, columns=("key", "sequence"), system_columns=(ROW_ADDRESS,))
    lookup = KeyLookup([pa.array(np.arange(5, ROWS))])
    fragment = table.manifest.fragments[position]
    uncounted = encode_fragment(replace(fragment, physical_rows=0))  # as older writers left it
    for changes in (
        {},
        {"include_deleted": True},
        {"fragment": uncounted},
        {"fragment": uncounted, "include_deleted": True},
    ):
        matches = find_matches(replace(unit, batch_size=batch_size, **changes), lookup, num_keys=1)
        offsets = [int(address) - (fragment_id << 32) for address in matches.addresses]
        assert [
            number for number in range(10, ROWS) if keys[number] >= 5 and keys[number] in live
        ] == [10 + offset for offset in offsets]
        assert [keys[10 + offset] for offset in offsets] == [5 + key for key in matches.keys]
        assert matches.sequence is not None
        assert matches.sequence.to_pylist() == [10 + offset for offset in offsets]


@pytest.mark.floors
@pytest.mark.parametrize("keys", [[], [-1], [4, 998], list(range(0, 2000, 2))])
@pytest.mark.parametrize("learns", [False, True])
def test_only_sequences_of_matches_are_read(tmp_path: Path, keys: list[int], learns: bool) -> None:
    """Reading the sequences of a whole fragment for a few keys would dominate the cost of a small
    batch.
    """
    rows = pa.table({"key": np.arange(ROWS) * 2, "sequence": np.arange(ROWS) % 7})
    uri = str(tmp_path / "table.lance")
    lance_stream.create_dataset(uri, rows.schema).append(rows).delete("key % 3 = 0")
    columns = ("key", "sequence" if set(keys) - {-1} else "no such column")
    unit = unit_of(
        open_newest(uri), 0, columns=columns, system_columns=(ROW_ADDRESS,), include_deleted=learns
    )
    matches = find_matches(unit, KeyLookup([pa.array(keys, pa.int64())]), num_keys=1)
    live = [key // 2 for key in keys if key >= 0 and key % 3]
    assert (matches.addresses & np.uint64(0xFFFFFFFF)).tolist() == live
    assert len(matches.file_bounds) == learns
    if live:
        assert matches.sequence is not None
        assert matches.sequence.to_pylist() == [number % 7 for number in live]
    else:
        assert matches.sequence is None


@pytest.mark.parametrize("addresses", [[[5, 9], [2, 4]], [[2, 4], [5, 9]], [[], [4], [2, 9]], [[]]])
@pytest.mark.parametrize("has_sequence", [False, True])
def test_matches_are_joined_by_address(addresses: list[list[int]], has_sequence: bool) -> None:
    """Workers report fragments in any order, and a sequence must stay with its row."""
    parts = [
        Matches(
            np.array(part, np.uint64),
            np.array(part, np.int64) * 2,
            pa.array([10 * address for address in part], pa.int64()) if has_sequence else None,
        )
        for part in addresses
    ]
    joined = join_matches(parts)
    expected = sorted(address for part in addresses for address in part)
    assert joined.addresses.tolist() == expected
    assert joined.keys.tolist() == [2 * address for address in expected]
    if has_sequence and expected:
        assert joined.sequence is not None
        assert joined.sequence.to_pylist() == [10 * address for address in expected]
    else:
        assert joined.sequence is None
