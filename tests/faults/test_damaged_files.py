"""Whatever bytes a table's files hold, reading ends in the rows or in `BadDataError`.

Every file of small tables that both writers made is cut short and has bits flipped. A flipped bit
inside a value cannot be noticed, for the format has no checksums; everything else must either
read with the right shape or be refused, within bounds of time and memory.
"""

import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import BadDataError, NotFoundError
from tests.sampling import ALL_CASES

FILE_VERSIONS = ("2.0", "2.1", "2.2")
SECONDS_PER_READ = 10
MEMORY_BYTES = 3 << 30
NUM_ROUNDS = 150 if ALL_CASES else 40


def make_rows(num_rows: int, seed: int = 3) -> pa.Table:
    """A table in which every layout and codec occurs that is written by default."""
    rng = np.random.default_rng(seed)
    null = rng.random(num_rows) < 0.2
    words = np.array(["alpha", "beta", "gamma", "delta"])
    return pa.table(
        {
            "id": pa.array(range(num_rows), pa.int64()),
            "small": pa.array(rng.integers(0, 50, num_rows), pa.int32()),
            "some": pa.array(rng.random(num_rows), pa.float64(), mask=null),
            "runs": pa.array(np.repeat(range(num_rows // 50 + 1), 50)[:num_rows], pa.int16()),
            "flag": pa.array(null),
            "word": pa.array(words[rng.integers(0, 4, num_rows)]),
            "text": pa.array([f"text number {n} {rng.random()}" for n in range(num_rows)]),
            "wide": pa.array([("w" * 300 + str(n)) for n in range(num_rows)], mask=null),
            "list": pa.array(
                [None if n % 7 == 0 else list(range(n % 5)) for n in range(num_rows)],
                pa.list_(pa.int32()),
            ),
            "nested": pa.array(
                [{"a": n, "b": [{"c": str(n)}] * (n % 3)} for n in range(num_rows)],
            ),
            "vector": pa.array(rng.random((num_rows, 4)).tolist(), pa.list_(pa.float32(), 4)),
            "long": pa.array(rng.random((num_rows, 80)).tolist(), pa.list_(pa.float32(), 80)),
            "same": pa.array([7] * num_rows),
            "none": pa.array([None] * num_rows, pa.string()),
            "coded": pa.array(words[rng.integers(0, 4, num_rows)]).dictionary_encode(),
        }
    )


def make_table(uri: str, writer: str, version: str) -> None:
    rows = make_rows(600)
    if writer == "we":
        ds = lance_stream.create_dataset(uri, rows.schema, file_version=version).append(rows)
        ds.delete("id % 11 = 3")
    else:
        theirs = lance.write_dataset(
            rows, uri, data_storage_version=version, enable_stable_row_ids=True
        )
        theirs.delete("id % 11 = 3")


def read_all(uri: str) -> None:
    ds = lance_stream.open_dataset(uri)
    table = ds.to_table(with_row_id=True, with_row_versions=True)
    assert table.num_rows == ds.count_rows()
    table.validate(full=True)
    ds.take(row_offsets=[0, 5, table.num_rows - 1])
    ds.versions()
    if ds.version > 1:
        ds.changes(ds.version - 1).read_all()


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    def too_long(*_: object) -> None:
        raise AssertionError(f"still reading after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def reads_or_refuses(uri: str) -> bool:
    """Whether the table read; False when it was refused. Anything else is raised."""
    with no_longer_than(SECONDS_PER_READ):
        try:
            read_all(uri)
        except (BadDataError, NotFoundError):
            return False
    return True


def damage(data: bytes, chance: random.Random) -> bytes:
    """Cut short, flip bits, or put absurd numbers in."""
    kind = chance.choice(["cut", "flip", "flip", "flip", "huge", "zero"])
    if kind == "cut":
        return data[: chance.randrange(len(data))]
    broken = bytearray(data)
    # Metadata stands at the end of the files: damage it more often than its share of bytes.
    start = chance.choice([0, max(0, len(data) - 2000)])
    position = chance.randrange(start, len(data))
    if kind == "flip":
        broken[position] ^= 1 << chance.randrange(8)
    else:
        filler = b"\xff" * 8 if kind == "huge" else bytes(8)
        broken[position : position + 8] = filler[: len(data) - position]
    return bytes(broken)


def torture(uri: str, rounds: int, seed: int) -> tuple[int, int]:
    """Damage one file at a time, read, and mend it; return how often it read and was refused."""
    chance = random.Random(seed)
    files = [path for path in sorted(Path(uri).rglob("*")) if path.is_file()]
    files = [file for file in files if file.suffix != ".json"]
    read = refused = 0
    for _ in range(rounds):
        victim = chance.choice(files)
        whole = victim.read_bytes()
        broken = damage(whole, chance)
        victim.write_bytes(broken)
        try:
            if reads_or_refuses(uri):
                read += 1
            else:
                refused += 1
        except BaseException as error:
            finding_path = Path(uri + "-damaged")
            shutil.rmtree(finding_path, ignore_errors=True)
            shutil.copytree(uri, finding_path)
            error.add_note(f"damaged file: {victim.name}; the table is kept at {finding_path}")
            raise
        finally:
            victim.write_bytes(whole)
    assert reads_or_refuses(uri), "the mended table must read again"
    return read, refused


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.oracle
@pytest.mark.parametrize("writer", ["we", "pylance"])
@pytest.mark.parametrize("version", FILE_VERSIONS)
@pytest.mark.essential
def test_damaged_tables_read_or_are_refused(tmp_path: Path, writer: str, version: str) -> None:
    """Whatever file of the table is damaged, no other exception may reach the user."""
    uri = str(tmp_path / "table")
    make_table(uri, writer, version)
    read, refused = torture(uri, rounds=25, seed=1)
    assert read + refused == 25
    assert refused > 0


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("writer", ["we", "pylance"])
@pytest.mark.parametrize("version", FILE_VERSIONS)
def test_damage_costs_neither_time_nor_memory(tmp_path: Path, writer: str, version: str) -> None:
    """The reader runs in a process with little memory, where an absurd size would end in a
    MemoryError.
    """
    uri = str(tmp_path / "table")
    make_table(uri, writer, version)
    started = time.monotonic()
    command = [sys.executable, "-m", "tests.faults.test_damaged_files", uri, str(NUM_ROUNDS)]
    root = Path(__file__).parents[2]
    process = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=400)
    assert process.returncode == 0, process.stdout[-3000:] + process.stderr[-6000:]
    read, refused = map(int, process.stdout.split()[-2:])
    assert read + refused == NUM_ROUNDS
    assert refused > NUM_ROUNDS // 10, f"after {time.monotonic() - started:.0f} s"


@pytest.mark.parametrize("version", FILE_VERSIONS)
def test_strict_prefixes_of_files_are_refused(tmp_path: Path, version: str) -> None:
    """A copy that broke off must not look like a file with fewer rows."""
    uri = str(tmp_path / "table")
    rows = make_rows(40).select(["id", "some", "word", "list", "vector"])
    lance_stream.create_dataset(uri, rows.schema, file_version=version).append(rows)
    (data_file,) = (tmp_path / "table" / "data").iterdir()
    whole = data_file.read_bytes()
    step = max(1, len(whole) // 150)
    for length in [*range(0, len(whole) - 40, step), *range(len(whole) - 40, len(whole))]:
        data_file.write_bytes(whole[:length])
        assert not reads_or_refuses(uri), f"a prefix of {length} of {len(whole)} bytes was read"
    data_file.write_bytes(whole)
    assert reads_or_refuses(uri)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    print(*torture(sys.argv[1], int(sys.argv[2]), seed=2))
