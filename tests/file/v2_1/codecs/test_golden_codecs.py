"""Bytes that Lance wrote decode to the values that were written."""

import io
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError

from lance_stream._proto.encodings_v2_1_pb2 import CompressiveEncoding
from lance_stream.errors import BadDataError
from lance_stream.file.blocks.chunked_buffers import ChunkedBuffer
from lance_stream.file.blocks.data_blocks import (
    DataBlock,
    FixedSizeListBlock,
    FixedWidthBlock,
    VariableWidthBlock,
)
from lance_stream.file.v2_1.codecs import (
    decode_block,
    decode_mini_block,
    decode_per_value,
    num_mini_block_buffers,
)

FOLDER = Path(__file__).parents[3] / "golden" / "codecs"


def load(name: str) -> dict[str, Any]:
    with np.load(FOLDER / f"{name}.npz") as stored:
        return dict(stored)


POSITIONS = {path.stem: str(load(path.stem)["position"]) for path in sorted(FOLDER.glob("*.npz"))}
CASES = list(POSITIONS)
CHUNKED = [name for name, position in POSITIONS.items() if position == "mini_block"]
WITH_SIZES = [name for name in CASES if "offsets" not in load(name)]
ALL_REFUSED = {"zstd_variable"}
"""What a few damaged bytes always make unreadable; of all others some read as other values."""
COUNTED = [name for name, position in POSITIONS.items() if position != "per_value"]


def expected_of(case: dict[str, Any]) -> pa.Array:
    table = pa.ipc.open_stream(io.BytesIO(case["expected"].tobytes())).read_all()
    return table["values"].combine_chunks()


def decoded(case: dict[str, Any], data: Any = None) -> DataBlock:
    encoding = CompressiveEncoding.FromString(case["encoding"].tobytes())
    data = case["data_0"] if data is None else data
    if case["position"] == "block":
        return decode_block(encoding, data, int(case["num_values"][0]))
    if case["position"] == "per_value":
        count = int(case["num_values"][0])
        if "offsets" in case:
            return decode_per_value(encoding, VariableWidthBlock(count, case["offsets"], data))
        bits = int(case["bits_per_value"][0])
        return decode_per_value(encoding, FixedWidthBlock(bits, count, data))
    buffers = [
        ChunkedBuffer(data, case[f"starts_{index}"], case[f"sizes_{index}"])
        for index in range(
            min(num_mini_block_buffers(encoding), sum("starts" in key for key in case))
        )
    ]
    return decode_mini_block(encoding, buffers, case["num_values"])


def to_arrow(block: DataBlock, kind: pa.DataType) -> pa.Array:
    """Return a block as an array: the shortest way, for these tests only."""
    if isinstance(block, VariableWidthBlock):
        is_large = kind in (pa.large_string(), pa.large_binary())
        assert block.offsets.dtype == (np.int64 if is_large else np.int32)
        return pa.Array.from_buffers(
            kind, block.num_values, [None, pa.py_buffer(block.offsets), pa.py_buffer(block.data)]
        )
    if isinstance(block, FixedSizeListBlock):
        items = to_arrow(block.items, kind.value_type)
        if block.validity is not None:
            is_valid = np.unpackbits(block.validity, count=len(items), bitorder="little")
            items = pa.compute.if_else(pa.array(is_valid == 1), items, None)
        return pa.FixedSizeListArray.from_arrays(items, kind.list_size)
    assert isinstance(block, FixedWidthBlock)
    return pa.Array.from_buffers(kind, block.num_values, [None, pa.py_buffer(block.data)])


@pytest.mark.parametrize("name", CASES)
def test_bytes_written_by_lance_decode(name: str) -> None:
    """Round trips cannot notice a mistake that encoder and decoder share."""
    case = load(name)
    expected = expected_of(case)
    assert to_arrow(decoded(case), expected.type).to_pylist() == expected.to_pylist()


@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_decode_at_any_position(name: str) -> None:
    """Random access decodes a chunk without those before it, at any alignment."""
    case = load(name)
    stops = np.cumsum(case["num_values"])
    chunk = len(stops) // 2
    values = expected_of(case).slice(
        int(stops[chunk] - case["num_values"][chunk]), int(case["num_values"][chunk])
    )
    moved = {**case, "num_values": case["num_values"][chunk : chunk + 1]}
    for key in case:
        if key.startswith(("starts", "sizes")):
            moved[key] = case[key][chunk : chunk + 1] + 3 * key.startswith("starts")
    data = np.concatenate([np.zeros(3, np.uint8), case["data_0"]])
    assert to_arrow(decoded(moved, data), values.type).to_pylist() == values.to_pylist()


def decodes(case: Any, num_values: int, data: Any = None) -> bool:
    """Whether a case decodes to so many values; if not, it must be bad data."""
    try:
        block = decoded(case, data)
    except BadDataError:
        return False
    assert block.num_values == num_values
    return True


@pytest.mark.parametrize("name", CASES)
def test_damage_raises_only_bad_data(name: str) -> None:
    """Stored bytes are not trusted: damage may change values, but never raise a foreign error."""
    case = load(name)
    rng = np.random.default_rng(7)
    outcomes: Counter[bool] = Counter()
    for trial in range(60):
        damaged = case["data_0"].copy()
        positions = rng.integers(0, min(len(damaged), 64 if trial % 2 else len(damaged)), 4)
        damaged[positions] = rng.choice([0, 1, 127, 128, 254, 255], 4)
        outcomes[decodes(case, case["num_values"].sum(), damaged)] += 1
    assert (outcomes[True] > 0) == (name not in ALL_REFUSED), outcomes


@pytest.mark.floors
@pytest.mark.parametrize("name", WITH_SIZES)
def test_a_cut_buffer_is_bad_data(name: str) -> None:
    """A short buffer must not read as fewer or other values."""
    case = load(name)
    size = len(case["data_0"])
    for num_bytes in {0, 1, 3, 7, 8, 9, size // 3, size // 2, size - 9}:
        with pytest.raises(BadDataError):
            decoded(case, case["data_0"][:num_bytes])


@pytest.mark.parametrize("name", CHUNKED)
def test_a_truncated_chunk_is_bad_data(name: str) -> None:
    """Bytes of the next chunk must not complete a short one."""
    case = load(name)
    parts = [key for key in case if key.startswith("sizes") and len(case[key])]
    assert parts
    for part in parts:
        for chunk in range(len(case[part])):
            shorter = case[part].copy()
            shorter[chunk] -= 1
            with pytest.raises(BadDataError):
                decoded({**case, part: shorter})


@pytest.mark.parametrize("name", COUNTED)
def test_wrong_value_counts_are_bad_data(name: str) -> None:
    """Only a difference of one may go unnoticed, where padding of the last block hides it."""
    case = load(name)
    outcomes: Counter[bool] = Counter()
    for more in (-1, 1, 1500, 2**31, 2**62):
        counts = case["num_values"].copy()
        counts[-1] += more
        is_read = decodes({**case, "num_values": counts}, counts.sum())
        assert not is_read or abs(more) == 1
        outcomes[is_read] += 1
    assert outcomes[False] >= 3


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_encoding_is_bad_data(name: str) -> None:
    """Stored encodings are not trusted: damage decodes or is refused."""
    case = load(name)
    rng = np.random.default_rng(8)
    outcomes: Counter[bool] = Counter()
    for _ in range(60):
        damaged = case["encoding"].copy()
        positions = rng.integers(0, min(len(damaged), 48), 2)
        damaged[positions] ^= rng.choice([1, 2, 4, 8, 16, 32, 64, 128], 2).astype(np.uint8)
        try:
            CompressiveEncoding.FromString(damaged.tobytes())
        except DecodeError:
            continue
        outcomes[decodes({**case, "encoding": damaged}, case["num_values"].sum())] += 1
    assert outcomes.total() >= 10, "hardly one is an encoding at all"
