"""Byte strings in files of 2.1 and 2.2, in every encoding that a column's metadata can ask for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.byte_ranges import answer, read_from
from lance_stream.file.compression import compiled
from lance_stream.file.encoding_options import PREFIX
from lance_stream.file.metadata.columns import unpack_encoding
from lance_stream.file.reader import open_file
from lance_stream.file.v2_1.layouts.choosing import choose_strings
from lance_stream.file.versions import FileVersion
from tests.file.column_metadata import columns_of
from tests.oracle.test_files_2_1_2_2 import (
    assert_pylance_reads,
    assert_we_read,
    write_by_pylance,
    write_by_us,
)

try:
    from lance_stream.file.compression import kernels  # before a fixture turns compilation off
except ImportError:
    kernels = None  # type: ignore[assignment]  # a module elsewhere

pytestmark = pytest.mark.oracle

VERSIONS = [FileVersion.V2_1, FileVersion.V2_2]
COMPRESSIONS = [None, "none", "lz4", "zstd", "fsst"]
LAYOUTS = [None, "miniblock", "fullzip"]


def texts(count: int, size: int, seed: int = 3) -> list[bytes]:
    random = np.random.default_rng(seed)
    words = [b"stream", b"table", b"version", b"of", b"a", "größe".encode(), b"column"]
    picked = random.integers(0, len(words), (count, max(1, size // 5)))
    return [
        b" ".join(words[index] for index in row[: random.integers(0, len(row) + 1)])
        for row in picked
    ]


def table_of(metadata: dict[str, str], count: int = 1500) -> pa.Table:
    """Return columns of texts with nulls: of each type, bare and in lists."""
    random = np.random.default_rng(5)
    values = [text if random.random() > 0.05 else None for text in texts(count, 40)]
    long = [text * 40 for text in texts(count // 20, 200)]
    columns: dict[str, Any] = {
        name: pa.array(values, pa.binary()).cast(arrow_type)
        for name, arrow_type in (
            ("string", pa.string()),
            ("large", pa.large_string()),
            ("bytes", pa.binary()),
            ("large bytes", pa.large_binary()),
        )
    }
    columns["full"] = pa.array(texts(count, 40), pa.binary()).cast(pa.string())
    columns["long"] = pa.array(long * 20, pa.binary())
    columns["random"] = pa.array([random.bytes(30) for _ in range(count)])
    lists = np.sort(random.integers(0, count + 1, count - 1))
    columns["list"] = pa.ListArray.from_arrays(
        pa.array(np.concatenate([[0], lists, [count]]), pa.int32()), columns["string"]
    )
    fields = []
    for name, array in columns.items():
        if name == "list":
            item = pa.field("item", pa.string(), metadata=metadata)
            fields.append(pa.field(name, pa.list_(item), metadata=metadata))
        else:
            fields.append(pa.field(name, array.type, metadata=metadata))
    return pa.table(list(columns.values()), pa.schema(fields))


def encodings(path: Path) -> Iterator[str]:
    """Yield, for each column's first page, layout and encodings from the outermost inwards."""
    data = path.read_bytes()
    reader = answer(open_file(len(data)), read_from(data))
    num_columns = len([leaf for f in reader.metadata.schema.fields for leaf in f.leaves()])
    for column in columns_of(reader, range(num_columns), read_from(data)):
        layout = unpack_encoding(column.pages[0].encoding, pb.PageLayout)
        name = str(layout.WhichOneof("layout"))
        if name == "constant_layout":
            yield "constant"
            continue
        encoding = getattr(layout, name).value_compression
        names = [name.split("_")[0]]
        if name == "mini_block_layout" and layout.mini_block_layout.HasField("dictionary"):
            names.append("dictionary")
        while encoding is not None:
            kind = encoding.WhichOneof("compression")
            names.append(kind)
            message = getattr(encoding, kind)
            if kind == "general":
                names[-1] = {1: "lz4", 2: "zstd"}[message.compression.scheme]
            encoding = message.values if kind in ("general", "fsst") else None
        yield " ".join(names)


def metadata_of(compression: str | None, layout: str | None, **others: str) -> dict[str, str]:
    options = {"compression": compression, "structural-encoding": layout}
    options |= {key.replace("_", "-"): value for key, value in others.items()}
    return {PREFIX + key: value for key, value in options.items() if value is not None}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("version", VERSIONS)
def test_requested_encodings_are_written_and_read(
    tmp_path: Path, version: FileVersion, compression: str | None, layout: str | None
) -> None:
    """Compression and layout together give a different file for each combination."""
    table = table_of(metadata_of(compression, layout, dict_divisor="1000000"))
    batches = table.to_batches()
    ours, theirs = tmp_path / "ours.lance", tmp_path / "theirs.lance"
    write_by_us(batches, ours, version)
    write_by_pylance(batches, theirs, version)
    assert_pylance_reads(ours, table)
    assert_we_read(ours, table)
    assert_we_read(theirs, table)
    expected = {"none": "", "lz4": "lz4 ", "zstd": "zstd ", "fsst": "fsst "}
    first = next(encodings(ours))
    if layout == "fullzip":
        expected["lz4"] = "zstd "  # as the reference does, which does not read nulls of the other
    if compression is not None:
        assert first.split(" ", 1)[1] == expected[compression] + "variable"
    if layout is not None:
        assert first.split(" ")[0] == {"miniblock": "mini", "fullzip": "full"}[layout]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("level", ["-5", "0", "1", "9", "22"])
def test_both_read_all_compression_levels(tmp_path: Path, version: FileVersion, level: str) -> None:
    """Some levels change the frame that a decoder must understand."""
    table = table_of(metadata_of("zstd", None, compression_level=level), 500)
    path = tmp_path / "ours.lance"
    write_by_us(table.to_batches(), path, version)
    assert_pylance_reads(path, table)
    assert_we_read(path, table)


@pytest.mark.parametrize("version", VERSIONS)
def test_zstd_is_the_default_where_worthwhile(tmp_path: Path, version: FileVersion) -> None:
    """Strings of enough text shrink by it, while random ones would only cost time."""
    table = table_of({}, 1000)
    path = tmp_path / "ours.lance"
    write_by_us(table.to_batches(), path, version)
    encoding_of = dict(zip(table.column_names, encodings(path), strict=True))
    assert encoding_of["full"] == "mini zstd variable"
    assert encoding_of["random"] == "mini variable"
    assert encoding_of["list"] == "mini zstd variable"
    assert_pylance_reads(path, table)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("num_distinct", "order"),
    [(1, "any"), (2, "any"), (2, "sorted"), (256, "any"), (257, "sorted"), (70_000, "any")],
)
def test_dictionaries_of_any_size_read_alike(
    tmp_path: Path, version: FileVersion, num_distinct: int, order: str
) -> None:
    """The width of indices changes with the number of items."""
    random = np.random.default_rng(num_distinct)
    count = max(2 * num_distinct, 2000)
    indices = np.append(np.arange(num_distinct), random.integers(0, num_distinct, count))[:count]
    indices = np.sort(indices) if order == "sorted" else random.permutation(indices)
    items = pa.array([f"a value of number {n * 7919}" for n in range(num_distinct)])
    nulls = pa.array(random.random(count) < 0.1)
    values = items.take(pa.array(indices))
    ends = np.sort(random.integers(0, count + 1, count - 1))
    offsets = pa.array(np.concatenate([[0], ends, [count]]), pa.int32())
    some = pc.if_else(nulls, pa.scalar(None, pa.string()), values)
    table = pa.table(
        {
            "all": values,
            "some": some,
            "large": some.cast(pa.large_binary()),
            "lists": pa.ListArray.from_arrays(offsets, some),
            "typed": some.dictionary_encode(),
        }
    )
    metadata = metadata_of(None, None, dict_divisor="1", dict_size_ratio="1.0")
    fields = [field.with_metadata(metadata) for field in table.schema]
    table = table.cast(pa.schema(fields))
    path = tmp_path / "ours.lance"
    write_by_us(table.to_batches(), path, version)
    assert_pylance_reads(path, table)
    assert_we_read(path, table)
    kinds = list(encodings(path))
    if num_distinct in (2, 256):
        assert [kind.split()[:2] for kind in kinds] == [["mini", "dictionary"]] * 5


@pytest.mark.skipif(kernels is None, reason="it needs the extra fast")
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_compiled_loops_agree_with_pylance(
    version: FileVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With compiled loops, strings that suit FSST are written in it without a request."""
    monkeypatch.setattr(choose_strings, "MIN_FSST_BYTES", 1)
    table = table_of({})
    ours, theirs = tmp_path / "ours.lance", tmp_path / "theirs.lance"
    write_by_pylance(table.to_batches(), theirs, version)
    with compiled.loops.replaced(kernels):
        write_by_us(table.to_batches(), ours, version)
        assert "mini fsst variable" in set(encodings(ours))
        assert_pylance_reads(ours, table)
        assert_we_read(ours, table)
        assert_we_read(theirs, table)
