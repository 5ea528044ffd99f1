"""Write small tables by a pylance that wrote files of version 2.0 before they were stable.

Run by the python of an environment that has that pylance, not by ours; an environment variable
asks for encodings that no later writer makes:

    <venv>/bin/python tests/golden/make_early_2_0.py plain
    LANCE_PAGE_COMPRESSION=zstd <venv>/bin/python tests/golden/make_early_2_0.py zstd
    LANCE_USE_BITPACKING=1 <venv>/bin/python tests/golden/make_early_2_0.py bitpacked

makes tests/golden/early_2_0/<pylance version>-<name>.tar.xz, in which there are `table.lance` and
`expected.arrow`, the rows that were given to it.
"""

import lzma
import sys
import tarfile
import tempfile
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa

COUNT = 700


def table():
    random = np.random.default_rng(7)
    words = [f"word {n % 170}" + "x" * (n % 7) for n in range(COUNT)]
    sparse = [None if n % 5 == 0 else word for n, word in enumerate(words)]
    vectors = pa.array(random.integers(0, 99, COUNT * 4).astype(np.int32))
    lists = [None if n % 5 == 0 else [n, None, 7][: n % 4] for n in range(COUNT)]
    return pa.table(
        {
            "flags": pa.array([None if n % 11 == 0 else n % 3 == 0 for n in range(COUNT)]),
            "tiny": pa.array(random.integers(0, 7, COUNT).astype(np.uint8)),
            "small": pa.array(random.integers(0, 900, COUNT).astype(np.uint16)),
            "number": pa.array([None if n % 7 == 0 else n * 1000 for n in range(COUNT)]),
            "below": pa.array(random.integers(-500, 9000, COUNT)),
            "text": pa.array(words),
            "sparse": pa.array(sparse),
            "few": pa.array([None if n % 9 == 0 else f"k{n % 30}" for n in range(COUNT)]),
            "raw": pa.array([word.encode() for word in words], pa.large_binary()),
            "none": pa.nulls(COUNT, pa.string()),
            "vector": pa.FixedSizeListArray.from_arrays(vectors, 4),
            "list": pa.array(lists, pa.list_(pa.int32())),
            "texts": pa.array(
                [["a", None, "cc"][: n % 4] for n in range(COUNT)], pa.list_(pa.string())
            ),
            "struct": pa.array([{"a": n, "b": str(n)} for n in range(COUNT)]),
        }
    )


def main():
    name = sys.argv[1]
    original = table()
    out = Path(__file__).parent / "early_2_0"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.lance"
        lance.write_dataset(original, str(path), use_legacy_format=False)
        back = lance.dataset(str(path)).to_table()
        if back.to_pydict() != original.to_pydict():
            print("reads back otherwise")
        with pa.ipc.new_file(str(Path(folder) / "expected.arrow"), original.schema) as writer:
            writer.write_table(original)
        archive = out / f"{lance.__version__}-{name}.tar.xz"
        with (
            lzma.open(str(archive), "w", preset=9) as file,
            tarfile.open(fileobj=file, mode="w") as tar,
        ):
            for member in sorted(Path(folder).rglob("*")):
                if member.is_file():
                    info = tarfile.TarInfo(str(member.relative_to(folder)))
                    info.size = member.stat().st_size
                    with member.open("rb") as content:
                        tar.addfile(info, content)
        print(archive, archive.stat().st_size)


main()
