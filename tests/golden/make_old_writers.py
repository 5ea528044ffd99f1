"""Write small tables by an old pylance, to be read by every later lance-stream.

Run by the python of an environment that has that pylance (and what pyarrow it needs), not by ours:

    <venv>/bin/python tests/golden/make_old_writers.py legacy,2.0

makes tests/golden/old_writers/<pylance version>.tar.xz, in which there is for each table a folder
`<file version>-<name>` with

    table.lance     the table
    expected.arrow  its rows as that pylance read them back, an Arrow IPC file. They are the rows
                    that were given to it, except for nulls in 0.1, which that version cannot hold

A table that this pylance refuses, or reads back otherwise than it was given, is not made, and said.

It runs on python 3.8 and numpy 1, and asks nothing of lance-stream.
"""

import lzma
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

LONG = "a text that is repeated, and so compresses well: "


def texts(random, count, null_every=0):
    values = [f"t{integer:05d}" for integer in random.integers(0, 100000, count)]
    return [None if null_every and n % null_every == 0 else values[n] for n in range(count)]


def nulled(values, every):
    return [None if n % every == 1 else value for n, value in enumerate(values)]


def scalars(random, count, null_every):
    """A column of each plain type; nulls in all, if `null_every` says it."""
    numbers = random.integers(0, 100, count)

    def column(values, arrow):
        values = list(values)
        return pa.array(nulled(values, null_every) if null_every else values, arrow)

    return {
        "bool": column((bool(number % 2) for number in numbers), pa.bool_()),
        "int8": column((int(number) for number in numbers), pa.int8()),
        "uint16": column((int(number) * 600 for number in numbers), pa.uint16()),
        "int32": column((int(number) - 50 for number in numbers), pa.int32()),
        "int64": column((int(number) << 40 for number in numbers), pa.int64()),
        "small": column((int(number) for number in numbers), pa.uint64()),
        "float": column((float(number) / 7 for number in numbers), pa.float32()),
        "double": column(random.standard_normal(count).tolist(), pa.float64()),
        "date": column((int(number) for number in numbers), pa.date32()),
        "stamp": column((int(number) * 1000003 for number in numbers), pa.timestamp("us")),
        "string": column(texts(random, count), pa.string()),
        "binary": column((text.encode() for text in texts(random, count)), pa.binary()),
    }


def nested(random, count, nulls):
    """Lists, structs and vectors; null lists and items, if `nulls` says it."""
    lengths = random.integers(0, 4, count)

    def lists(item):
        rows = [[item(n, i) for i in range(length)] for n, length in enumerate(lengths.tolist())]
        return nulled(rows, 5) if nulls else rows

    return {
        "vector": pa.array(
            [[float(n), float(n) / 3, -1.0, 0.5] for n in range(count)], pa.list_(pa.float32(), 4)
        ),
        "list": pa.array(lists(lambda n, i: n * 10 + i), pa.list_(pa.int32())),
        "texts": pa.array(
            lists(lambda n, i: None if nulls and (n + i) % 3 == 0 else f"x{n}.{i}"),
            pa.list_(pa.string()),
        ),
        "struct": pa.array(
            [{"a": n, "b": f"s{n}", "c": {"d": n / 2}} for n in range(count)],
            pa.struct(
                [("a", pa.int64()), ("b", pa.string()), ("c", pa.struct([("d", pa.float64())]))]
            ),
        ),
        "structs": pa.array(
            lists(lambda n, i: {"p": n, "q": f"q{i}"}),
            pa.list_(pa.struct([("p", pa.int32()), ("q", pa.string())])),
        ),
    }


def repeated(random, count):
    """What newer versions compress: few values, runs, small numbers, long texts."""
    words = ["red", "green", "blue", "yellow"]
    picked = random.integers(0, 4, count)
    return {
        "words": pa.array([words[number] for number in picked], pa.string()),
        "runs": pa.array(np.repeat(np.arange(-(-count // 50)), 50)[:count], pa.int64()),
        "ids": pa.array(np.arange(count) + 1000000, pa.int64()),
        "tiny": pa.array(random.integers(0, 3, count), pa.uint8()),
        "same": pa.array([7] * count, pa.int32()),
        "long": pa.array([LONG + f"{number:04d}" for number in picked], pa.string()),
        "none": pa.array([None] * count, pa.int32()),
    }


def with_metadata(table, metadata):
    fields = [field.with_metadata(metadata.get(field.name)) for field in table.schema]
    return pa.Table.from_arrays(table.columns, schema=pa.schema(fields))


def tables():
    random = np.random.default_rng(2024)
    few = 60
    yield "scalars", pa.table(scalars(random, few, 0)), {}
    yield "nulls", pa.table(scalars(random, few, 4)), {}
    yield "nested", pa.table(nested(random, few, False)), {}
    yield "nested_nulls", pa.table(nested(random, few, True)), {}
    yield "repeated", pa.table(repeated(random, 1500)), {}
    words = pa.array(["x", "y", "x", "z"] * 20).dictionary_encode()
    yield "dictionary", pa.table({"d": words, "n": pa.array(range(80), pa.int64())}), {}
    number = pa.array(range(500), pa.int64())
    table = pa.table(
        {
            "zstd": pa.array([LONG + str(n % 9) for n in range(500)]),
            "lz4": pa.array([LONG + str(n % 7) for n in range(500)]),
            "fsst": pa.array([LONG + str(n % 8) for n in range(500)]),
            "n": number,
        }
    )
    yield (
        "asked",
        with_metadata(
            table,
            {
                "zstd": {"lance-encoding:compression": "zstd"},
                "lz4": {"lance-encoding:compression": "lz4"},
                "fsst": {"lance-encoding:compression": "fsst"},
            },
        ),
        {},
    )
    packed = pa.table(
        {
            "p": pa.StructArray.from_arrays(
                [number.slice(0, 60), number.slice(60, 60).cast(pa.float32())], ["a", "b"]
            )
        }
    )
    yield (
        "packed",
        with_metadata(packed, {"p": {"packed": "true", "lance-encoding:packed": "true"}}),
        {},
    )
    grown = pa.table(scalars(random, 40, 0))
    yield "groups", pa.concat_tables([grown] * 6), {"max_rows_per_group": 32}
    long_lists = pa.array([[n // 1000 for n in range(70000)], [], [1]], pa.list_(pa.int32()))
    yield "long_list", pa.table({"long_list": long_lists}), {}


FOLDER = Path(__file__).resolve().parent / "old_writers"


def write(folder, table, version, more):
    path = str(folder / "table.lance")
    if version == "legacy":
        for spelled in ({"data_storage_version": "legacy"}, {"use_legacy_format": True}, {}):
            try:
                return lance.write_dataset(table, path, **spelled, **more)
            except TypeError:
                continue
        raise TypeError("no way to ask for it")
    try:
        return lance.write_dataset(table, path, data_storage_version=version, **more)
    except TypeError:
        if version != "2.0":
            raise
        return lance.write_dataset(table, path, use_legacy_format=False, **more)


def make(folder, version, name, table, more):
    """Write one table and what is expected of it; raise if this pylance does not manage."""
    folder.mkdir()
    write(folder, table, version, more)
    stored = lance.dataset(str(folder / "table.lance")).to_table()
    if stored.num_rows != table.num_rows:
        raise ValueError(f"{stored.num_rows} rows came back")
    if version != "legacy" and stored.to_pydict() != table.to_pydict():
        raise ValueError("other values came back")
    path = str(folder / "expected.arrow")
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, stored.schema) as writer:
        writer.write_table(stored.combine_chunks())
    for text in ("_transactions", "_latest.manifest"):
        path = folder / "table.lance" / text
        if path.is_dir():
            shutil.rmtree(str(path))
        elif path.exists():
            path.unlink()


def main(versions):
    target = FOLDER / (f"{lance.__version__}.tar.xz")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as root:
        for version in versions:
            for name, table, more in tables():
                folder = Path(root) / (f"{version}-{name}")
                try:
                    make(folder, version, name, table, more)
                except BaseException as error:  # a panic of pylance is no Exception
                    shutil.rmtree(str(folder))
                    problem = str(error).splitlines()[0][:100] if str(error) else "?"
                    print(f"{lance.__version__} {version} {name}: not made: {problem}")
        with tarfile.open(str(target), "w:xz", preset=9 | lzma.PRESET_EXTREME) as archive:
            archive.add(root, arcname=".")
    print(f"{target.name}: {target.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1].split(","))
