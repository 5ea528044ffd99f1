"""Capture what codecs are given when Lance's own files are read.

`python tests/golden/make_codecs.py` writes one small .npz file a case
into tests/golden/codecs, with

    position    "mini_block", "block" or "per_value"
    encoding    the serialized CompressiveEncoding
    num_values  of each chunk; of the block; of the page
    data_0 ..   the bytes of each value buffer (or of the block, or of the values)
    starts_0 .. sizes_0 ..   where each chunk has them (mini-block)
    offsets     of the values (per value, variable width)
    expected    the values, as an Arrow IPC stream of one column

Pages are taken apart by the shortest way, and nothing is checked. PROVENANCE.md says more.
"""

import io
import struct
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from google.protobuf.any_pb2 import Any as WrappedMessage
from lance.file import LanceFileWriter

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream._proto import file2_pb2

FOLDER = Path(__file__).parent / "codecs"
Chunks = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]

RNG = np.random.default_rng(20)
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"]


def written(values: pa.Array, version: str, metadata: dict[str, str] | None) -> bytes:
    """Return a file that Lance wrote."""
    field = pa.field("values", values.type, metadata=metadata)
    table = pa.table([values], schema=pa.schema([field]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "one.lance"
        with LanceFileWriter(str(path), table.schema, version=version) as writer:
            writer.write_batch(table)
        return path.read_bytes()


def only_page(data: bytes) -> tuple[pb.PageLayout, list[bytes]]:
    """Return the layout and the buffers of a file's only page."""
    _, table, _, _, _ = struct.unpack("<QQQII", data[-40:-8])
    start, size = struct.unpack_from("<QQ", data, table)
    metadata = file2_pb2.ColumnMetadata.FromString(data[start : start + size])
    (page,) = metadata.pages
    wrapped = WrappedMessage.FromString(page.encoding.direct.encoding)
    spans = zip(page.buffer_offsets, page.buffer_sizes, strict=True)
    return pb.PageLayout.FromString(wrapped.value), [data[at : at + size] for at, size in spans]


def chunk_parts(
    layout: pb.MiniBlockLayout, buffers: list[bytes]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[Chunks]]:
    """Return values and levels of each chunk, and its parts: rep, def, value buffers."""
    words = np.frombuffer(buffers[0], "<u4" if layout.has_large_chunk else "<u2").astype(np.int64)
    counts = 1 << (words & 15)
    counts[-1] = layout.num_items - counts[:-1].sum()
    has_levels = [layout.HasField("rep_compression"), layout.HasField("def_compression")]
    size_word = "<I" if layout.has_large_chunk else "<H"
    parts: list[list[tuple[int, int]]] = [[] for _ in range(2 + layout.num_buffers)]
    num_levels = []
    chunk = 0
    for word in words.tolist():
        num_levels.append(struct.unpack_from("<H", buffers[1], chunk)[0])
        at = chunk + 2
        sizes = []
        for present in has_levels:
            sizes.append(struct.unpack_from("<H", buffers[1], at)[0] if present else 0)
            at += 2 * present
        for _ in range(layout.num_buffers):
            sizes.append(struct.unpack_from(size_word, buffers[1], at)[0])
            at += struct.calcsize(size_word)
        at = -(-at // 8) * 8
        for part, size in zip(parts, sizes, strict=True):
            part.append((at, size))
            at = -(-(at + size) // 8) * 8
        chunk += ((word >> 4) + 1) * 8
    spans = [np.array(part, dtype=np.int64).reshape(-1, 2).T for part in parts]
    return counts, np.array(num_levels), [(span[0], span[1]) for span in spans]


def save(name: str, position: str, encoding: Any, expected: pa.Array, **arrays: Any) -> None:
    """Write one case."""
    sink = io.BytesIO()
    table = pa.table({"values": expected})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        position=position,
        encoding=np.frombuffer(encoding.SerializeToString(), np.uint8),
        expected=np.frombuffer(sink.getvalue(), np.uint8),
        **arrays,
    )


def names_of(encoding: pb.CompressiveEncoding) -> str:
    """Return the names of the codecs, from the root inwards."""
    name = encoding.WhichOneof("compression")
    message = getattr(encoding, name)
    inner = "offsets" if name == "variable" else "values"
    child = getattr(message, inner, None)
    if name in ("variable", "flat", "inline_bitpacking") or child is None:
        return str(name)
    return f"{name}({names_of(child)})"


def mini_block(
    name: str,
    expected: str,
    values: pa.Array,
    version: str = "2.2",
    metadata: dict[str, str] | None = None,
) -> None:
    """Capture the values of a mini-block page."""
    layout, buffers = only_page(written(values, version, metadata))
    mini = layout.mini_block_layout
    codec = names_of(mini.value_compression)
    if codec != expected or mini.HasField("dictionary"):
        raise SystemExit(f"{name}: expected {expected}, but Lance chose {codec}")
    counts, _, parts = chunk_parts(mini, buffers)
    arrays: dict[str, Any] = {}
    for index, (starts, sizes) in enumerate(parts[2:]):
        arrays[f"starts_{index}"], arrays[f"sizes_{index}"] = starts, sizes
    data = np.frombuffer(buffers[1], np.uint8)
    save(
        name, "mini_block", mini.value_compression, values, num_values=counts, data_0=data, **arrays
    )


def dictionary(
    name: str, expected: str, values: pa.Array, version: str = "2.2", items: pa.Array | None = None
) -> None:
    """Capture the items of a mini-block page's dictionary: the distinct values as they come."""
    layout, buffers = only_page(written(values, version, None))
    mini = layout.mini_block_layout
    codec = names_of(mini.dictionary) if mini.HasField("dictionary") else "none"
    if codec != expected:
        raise SystemExit(f"{name}: expected {expected}, but Lance chose {codec}")
    if items is None:
        items = values.unique()
    count = np.array([mini.num_dictionary_items])
    data = np.frombuffer(buffers[2], np.uint8)
    save(name, "block", mini.dictionary, items, num_values=count, data_0=data)


def levels(name: str, expected: str, values: pa.Array, version: str, chunk: int) -> None:
    """Capture the definition levels of one chunk of a mini-block page: 1 where a value is null."""
    layout, buffers = only_page(written(values, version, None))
    mini = layout.mini_block_layout
    codec = names_of(mini.def_compression)
    if codec != expected:
        raise SystemExit(f"{name}: expected {expected}, but Lance chose {codec}")
    counts, num_levels, parts = chunk_parts(mini, buffers)
    stop = int(counts[: chunk % len(counts) + 1].sum())
    start = stop - int(counts[chunk])
    at, size = int(parts[1][0][chunk]), int(parts[1][1][chunk])
    nulls = values.slice(start, stop - start).is_null().cast(pa.uint16())
    data = np.frombuffer(buffers[1][at : at + size], np.uint8)
    count = np.array([num_levels[chunk]])
    save(name, "block", mini.def_compression, nulls, num_values=count, data_0=data)


def full_zip(
    name: str,
    expected: str,
    values: pa.Array,
    version: str = "2.2",
    metadata: dict[str, str] | None = None,
) -> None:
    """Capture the values of a full-zip page without levels."""
    layout, buffers = only_page(written(values, version, metadata))
    zipped = layout.full_zip_layout
    codec = names_of(zipped.value_compression)
    if codec != expected:
        raise SystemExit(f"{name}: expected {expected}, but Lance chose {codec}")
    arrays: dict[str, Any] = {}
    data = buffers[0]
    if zipped.WhichOneof("details") == "bits_per_value":
        arrays["bits_per_value"] = np.array([zipped.bits_per_value])
    else:
        width = zipped.bits_per_offset // 8
        pieces = []
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at : at + width], "little")
            pieces.append(data[at + width : at + width + size])
            at += width + size
        data = b"".join(pieces)
        offsets = np.cumsum([0, *map(len, pieces)])
        arrays["offsets"] = offsets.astype(np.int32 if width == 4 else np.int64)
    save(
        name,
        "per_value",
        zipped.value_compression,
        values,
        num_values=np.array([zipped.num_items]),
        data_0=np.frombuffer(data, np.uint8),
        **arrays,
    )


def pick(choices: list[Any], count: int) -> list[Any]:
    """Return some of them by chance."""
    return [choices[index] for index in RNG.integers(0, len(choices), count)]


def sentences(count: int) -> list[str]:
    """Return strings of which FSST makes something."""
    return [
        f"{first}-{second}-{number:04d}"
        for first, second, number in zip(
            pick(WORDS, count), pick(WORDS, count), RNG.integers(0, 10_000, count), strict=True
        )
    ]


def lists(count: int, items: int, *, nulls: bool) -> pa.Array:
    """Return fixed-size lists of floats."""
    values = RNG.random(count * items).astype(np.float32)
    mask = RNG.random(count * items) < 0.2 if nulls else None
    return pa.FixedSizeListArray.from_arrays(pa.array(values, mask=mask), items)


def with_nulls(count: int, share: float) -> pa.Array:
    """Return integers of which some are null."""
    return pa.array(RNG.integers(0, 2**62, count), mask=RNG.random(count) < share)


def main() -> None:
    """Capture every case."""
    wide = RNG.integers(-(2**63), 2**63 - 1, 700)
    plain = {"lance-encoding:compression": "none"}
    zstd = {"lance-encoding:compression": "zstd"}
    lz4 = {"lance-encoding:compression": "lz4"}
    split = {"lance-encoding:bss": "on"}
    mini_block("flat_64", "flat", pa.array(wide), "2.1")
    mini_block("flat_1", "flat", pa.array(RNG.random(5000) < 0.5))
    mini_block("flat_24", "flat", pa.array([RNG.bytes(3) for _ in range(300)], pa.binary(3)))
    for bits in (8, 16, 32, 64):
        narrow = RNG.integers(0, 5, 1024)
        wider = RNG.integers(0, 2 ** (bits - 2), 600)
        values = np.concatenate([narrow, wider]).astype(f"u{bits // 8}")
        mini_block(f"inline_bitpacking_{bits}", "inline_bitpacking", pa.array(values), "2.1")
    for bits in (8, 16, 32, 64):
        runs = RNG.integers(0, 2 ** (bits - 1), 60).astype(f"u{bits // 8}")
        mini_block(
            f"rle_{bits}", "rle(flat)", pa.array(np.repeat(runs, RNG.integers(1, 600, 60))), "2.1"
        )
    texts = sentences(2500)
    blobs = [text.encode() for text in texts[:600]] + [b""]
    mini_block("variable_32", "variable", pa.array(blobs, pa.binary()))
    mini_block("variable_64", "variable", pa.array(blobs, pa.large_binary()), "2.1")
    mini_block("fsst_32", "fsst(variable)", pa.array(texts))
    mini_block("fsst_64", "fsst(variable)", pa.array(texts, pa.large_string()), "2.1")
    rare = [
        text + "".join(map(chr, RNG.integers(161, 255, 1 + index % 3)))
        for index, text in enumerate(texts)
    ]
    mini_block("fsst_with_escapes", "fsst(variable)", pa.array(rare))
    mini_block("fsst_off", "fsst(variable)", pa.array(texts[:40]), metadata=FSST)
    mini_block("zstd_variable", "general(variable)", pa.array(texts[:600]), metadata=zstd)
    mini_block("lz4_variable", "general(variable)", pa.array(rare[:600]), metadata=lz4)
    rounded = np.round(RNG.random(1500), 2)
    for bits in (32, 64):
        mini_block(
            f"zstd_byte_stream_split_{bits}",
            "general(byte_stream_split(flat))",
            pa.array(rounded.astype(f"f{bits // 8}")),
            "2.1",
            {**zstd, **split},
        )
    mini_block(
        "lz4_byte_stream_split",
        "general(byte_stream_split(flat))",
        pa.array(rounded),
        "2.1",
        {**lz4, **split},
    )
    mini_block("fixed_size_list", "fixed_size_list(flat)", lists(600, 4, nulls=False))
    mini_block(
        "fixed_size_list_with_nulls", "fixed_size_list(flat)", lists(600, 3, nulls=True), "2.1"
    )
    inner = lists(400, 3, nulls=True)
    mask = pa.array(RNG.random(400) < 0.2)
    inner = pa.FixedSizeListArray.from_arrays(inner.values, 3, mask=mask)
    mini_block(
        "fixed_size_list_nested",
        "fixed_size_list(fixed_size_list(flat))",
        pa.FixedSizeListArray.from_arrays(inner, 2),
    )
    bits = pa.array(RNG.random(1500) < 0.5, mask=RNG.random(1500) < 0.2)
    mini_block(
        "fixed_size_list_of_bools",
        "fixed_size_list(flat)",
        pa.FixedSizeListArray.from_arrays(bits, 3),
    )

    dictionary("variable_block_32", "variable", pa.array(pick(WORDS, 500)), "2.1")
    dictionary(
        "variable_block_64", "variable", pa.array(pick(WORDS, 500), pa.large_string()), "2.1"
    )
    dictionary("lz4_variable_block", "general(variable)", pa.array(pick(WORDS, 500)))
    few = RNG.integers(-(2**60), 2**60, 50).tolist()
    dictionary("lz4_flat_block", "general(flat)", pa.array(pick(few, 1000)))
    few = RNG.integers(0, 1000, 900).tolist()
    dictionary("inline_bitpacking_block", "inline_bitpacking", pa.array(pick(few, 3000)))
    few = RNG.integers(0, 2**20, 1500).tolist()
    dictionary(
        "out_of_line_bitpacking_64", "out_of_line_bitpacking(flat)", pa.array(pick(few, 6000))
    )

    levels("levels_flat", "flat", with_nulls(20, 0.3), "2.1", 0)
    levels("levels_inline", "inline_bitpacking", with_nulls(700, 0.3), "2.1", 0)
    many = pa.array(np.arange(9000, dtype=np.uint8) % 200, mask=RNG.random(9000) < 0.3)
    levels("levels_out_of_line", "out_of_line_bitpacking(flat)", many, "2.1", 0)
    levels("levels_out_of_line_tail", "out_of_line_bitpacking(flat)", many, "2.2", -1)
    longer = pa.array(np.arange(5000) % 2 == 0, mask=RNG.random(5000) < 0.3)
    levels("levels_out_of_line_packed_tail", "out_of_line_bitpacking(flat)", longer, "2.1", -1)
    late = pa.array(RNG.integers(0, 2**62, 900), mask=np.arange(900) > 600)
    levels("levels_rle", "rle(flat)", late, "2.2", 0)

    long = [text * (1 + index % 40) for index, text in enumerate(texts[:300])]
    full_zip("fsst_per_value", "fsst(variable)", pa.array(long))
    full_zip("fsst_per_value_64", "fsst(variable)", pa.array(long, pa.large_string()), "2.1")
    blobs = [text.encode() for text in long]
    full_zip("variable_per_value", "variable", pa.array(blobs[:100], pa.binary()), metadata=plain)
    huge = [bytes(33_000), b"", b"short", *blobs[:40], bytes(40_000)]
    full_zip("zstd_per_value", "general(variable)", pa.array(huge, pa.binary()))
    full_zip("zstd_per_value_64", "general(variable)", pa.array(huge, pa.large_binary()), "2.1")
    full_zip("fixed_size_list_per_value", "fixed_size_list(flat)", lists(20, 70, nulls=False))
    full_zip(
        "fixed_size_list_per_value_with_nulls", "fixed_size_list(flat)", lists(20, 70, nulls=True)
    )
    wide_blobs = pa.array([RNG.bytes(300) for _ in range(20)], pa.binary(300))
    full_zip("flat_per_value", "flat", wide_blobs)


FSST = {"lance-encoding:compression": "fsst"}

if __name__ == "__main__":
    main()
