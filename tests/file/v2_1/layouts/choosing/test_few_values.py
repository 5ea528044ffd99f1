"""A few plain values are stored as `choose` would store them."""

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.file.metadata.columns import EncodedPage
from lance_stream.file.v2_1.layouts import write_fields
from lance_stream.file.v2_1.layouts.choosing import few_values
from lance_stream.file.v2_1.layouts.choosing.choose_fixed import MIN_BYTES
from lance_stream.file.versions import FileVersion
from lance_stream.schema.arrow_schemas import field_from_arrow

MAX_VALUES = MIN_BYTES // min(few_values._WIDTHS.values()) + 2
TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64()),
    *(pa.time32("ms"), pa.time64("ns"), pa.timestamp("s", "UTC"), pa.duration("ms")),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary()),
    *(pa.bool_(), pa.decimal128(9, 2), pa.binary(4), pa.list_(pa.int8(), 2)),
]
STRINGS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]


def pages(rows: pa.Array, version: FileVersion, metadata: dict[str, str]) -> list[tuple]:
    field = field_from_arrow(pa.field("x", rows.type, metadata=metadata))
    writer = write_fields.FieldWriter(field, version, 1 << 20)
    return [comparable(value) for value in [*writer.append(rows), *writer.finish()]]


def comparable(page: EncodedPage) -> tuple:
    buffers = [b"".join(parts) for parts in page.buffers]
    return page.column, buffers, page.length, page.encoding, page.first_row


def values(kind: pa.DataType, count: int, *, same: bool) -> pa.Array:
    """Return some values with one more before them, and one after."""
    rng = np.random.default_rng(count)
    if kind in STRINGS:
        texts = [
            f"{7 if same else number * count}" * (number % 3 or same) for number in range(count + 2)
        ]
        return pa.array(texts, kind)[1:-1]
    width = 2 if pa.types.is_fixed_size_list(kind) else max(kind.bit_width // 8, 1)
    data = rng.bytes(width) * (count + 2) if same else rng.bytes(width * (count + 2))
    if pa.types.is_fixed_size_list(kind):
        items = pa.array(np.frombuffer(data, np.int8))
        return pa.FixedSizeListArray.from_arrays(items, 2)[1 : count + 1]
    return pa.Array.from_buffers(kind, count + 2, [None, pa.py_buffer(data)])[1:-1]


@pytest.mark.parametrize("version", [FileVersion.V2_1, FileVersion.V2_2], ids=str)
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_fast_path_writes_equal_bytes(
    kind: pa.DataType, version: FileVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small pages are encoded by a fast path, whose bytes must equal those of the general one."""
    cases = [
        (rows, metadata)
        for count in (1, 2, 10, 31, 32, 33, 99, 100, MAX_VALUES)
        for same in (True, False)
        for metadata in ({}, {"lance-encoding:structural-encoding": "miniblock"})
        for rows in [values(kind, count, same=same)]
    ]
    if kind in STRINGS:
        long = [["x" * 254, "y"], ["x" * 255, "y"], ["", ""], ["", "x"], ["x", "xx", "x"], ["xx"]]
        cases += [(pa.array(value, kind), {}) for value in long]
    cases.append((pa.nulls(10, kind), {}))
    cases.append((pa.concat_arrays([values(kind, 9, same=False), pa.nulls(1, kind)]), {}))
    quick = [pages(rows, version, metadata) for rows, metadata in cases]
    monkeypatch.setattr(write_fields, "encode_few_values", lambda *_: None)
    assert quick == [pages(rows, version, metadata) for rows, metadata in cases]


def test_fast_path_covers_common_types() -> None:
    """If no type took the fast path, the comparison above would prove nothing."""
    quick_types = [
        kind
        for kind in TYPES
        if few_values.encode_few_values(
            values(kind, 10, same=False), FileVersion.V2_2, few_values.DEFAULT_OPTIONS
        )
    ]
    assert set(TYPES) - set(quick_types) == set(TYPES[-4:])
