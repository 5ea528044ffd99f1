"""Damage data files for as long as wanted, and keep each file that does harm.

    python -m tests.faults.fuzz_files --minutes 60 [--seed 1] [--findings folder]

Files of one column each, of every type, shape, version and writer, are damaged (see `damage`) and
read: whole, in part, row by row. A read has to end in arrays that Arrow finds sound or in
`BadDataError`, within 10 seconds of work and 1 GiB of memory. Anything else is a finding: the file
is kept with what happened beside it, the first of each kind. A finding is looked at again by

    python -m tests.faults.fuzz_files --read findings/1.lance
"""

import argparse
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa

from lance_stream.byte_ranges import answer, read_from
from lance_stream.errors import BadDataError, InvalidInputError, LanceStreamError
from lance_stream.file.metadata.columns import fields_with_column
from lance_stream.file.reader import open_file
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import assign_ids
from tests.faults.damage import Damager
from tests.oracle.type_cases import COLUMNS, SHAPES, Column, Shape

VERSIONS = (FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2)
WRITERS = ("we", "pylance")
SECONDS_OF_WORK = 10.0
BYTES_OF_GROWTH = 1 << 30
ROWS_AT_ONCE = 5000
DAMAGES_OF_A_FILE = 60
MEANINGLESS_NUMBERS = (
    "not within the acceptable range",
    "does not represent a whole number of days",
    "does not fit in precision",
)
"""What Arrow says of numbers that are too large for what their type means."""


@dataclass(frozen=True)
class Kind:
    """What is damaged: a column in a shape, as a writer writes it in a version."""

    version: FileVersion
    writer: str
    column: Column
    shape: Shape

    def __str__(self) -> str:
        return f"{self.column.name}, {self.shape.name}, {self.version} by {self.writer}"


@dataclass(frozen=True)
class Finding:
    """A read that ended as none may.

    Attributes:
        what: The error, as a line.
        where: The innermost lines of ours that it came through.
        trace: All of them.
    """

    what: str
    where: str
    trace: str


class TooLongError(Exception):
    """A read has worked for longer than it may."""


def kinds() -> list[Kind]:
    """Return all that can be damaged."""
    return [
        Kind(version, writer, column, shape)
        for version in VERSIONS
        for writer in WRITERS
        for column in COLUMNS.values()
        for shape in SHAPES
        if shape.num_rows and column.suits(shape)
    ]


def sound_file(kind: Kind, seed: int, folder: Path) -> bytes | None:
    """Return a sound file, in pages of any size; None if its writer cannot write it."""
    rng = np.random.default_rng(seed)
    array = kind.column.array(kind.shape, rng)
    batch = pa.record_batch([array], schema=pa.schema([kind.column.field]))
    page_bytes = int(rng.choice([300, 5000, 8 << 20]))
    if kind.writer == "we":
        try:
            return written_by_us(batch, kind.version, page_bytes)
        except LanceStreamError:
            return None
    return _written_by_pylance(batch, kind.version, folder / "sound.lance")


def written_by_us(batch: pa.RecordBatch, version: FileVersion, page_bytes: int = 8 << 20) -> bytes:
    """Return a file that we write."""
    schema = assign_ids(from_arrow(batch.schema))
    writer = FileWriter(schema, version, max_page_bytes=page_bytes)
    parts = [*writer.write(batch), *writer.finish()[0]]
    return b"".join(parts)


def _written_by_pylance(batch: pa.RecordBatch, version: FileVersion, path: Path) -> bytes | None:
    from lance.file import LanceFileWriter

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    (unsliced,) = pa.ipc.open_stream(sink.getvalue())
    try:
        with LanceFileWriter(str(path), batch.schema, version=version.value) as writer:
            writer.write_batch(unsliced)
    except BaseException as error:  # a panic of its Rust is a BaseException
        if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
            raise
        return None
    return path.read_bytes()


def read_every_way(data: bytes) -> None:
    """Read a file's columns whole, in part and row by row, each result checked by Arrow.

    Raises:
        BadDataError: It is refused.
    """
    ranges = read_from(data)
    reader = answer(open_file(len(data)), ranges)
    count = reader.metadata.num_rows
    for field in reader.metadata.schema.fields:
        below = fields_with_column(field, reader.metadata.version)
        column_of = {field.id: column for column, field in enumerate(below)}
        middle = count // 2
        for start, stop in ((0, min(count, ROWS_AT_ONCE)), (middle, min(count, middle + 70))):
            (array,) = answer(reader.read([field], column_of, start, stop), ranges)
            check_sound(array, stop - start)
        offsets = np.array(sorted({0, middle, count - 1} if count else ()), np.uint64)
        (array,) = answer(reader.take([field], column_of, offsets), ranges)
        check_sound(array, len(offsets))


def check_sound(array: pa.Array, num_rows: int) -> None:
    """Raise unless an array is as long as it should be and breaks none of Arrow's rules.

    A number too large for its type's meaning, such as a time past midnight, is a wrong value like
    any other, which no format without checksums can notice.
    """
    assert len(array) == num_rows, f"{len(array)} rows instead of {num_rows}"
    array.validate()
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        if not any(number in str(error) for number in MEANINGLESS_NUMBERS):
            raise


def find_harm(data: bytes) -> Finding | None:
    """Read a file; return what happened, if it was neither sound arrays nor a refusal."""
    try:
        with limits():
            read_every_way(data)
    except BadDataError:
        return None
    except Exception as error:
        if isinstance(error, InvalidInputError) and "fewer rows" in str(error):
            return None  # the file may be sound, its values only large
        lines = traceback.extract_tb(error.__traceback__)
        ours = [line for line in lines if "lance_stream" in line.filename] or lines
        where = " < ".join(f"{Path(entry.filename).name}:{entry.name}" for entry in ours[:-4:-1])
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return Finding(what, where, traceback.format_exc())
    return None


@contextmanager
def limits() -> Iterator[None]:
    """Let the process work for some seconds, and grow by some memory."""
    before = signal.signal(signal.SIGPROF, _too_long)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    maximum = pages * resource.getpagesize() + BYTES_OF_GROWTH
    resource.setrlimit(resource.RLIMIT_AS, (maximum, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS_OF_WORK)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _too_long(_: int, __: FrameType | None) -> None:
    raise TooLongError(f"still at work after {SECONDS_OF_WORK:.0f} seconds")


def damaged_files(seed: int, folder: Path) -> Iterator[tuple[Kind, bytes]]:
    """Yield damaged files without end; the same for the same seed."""
    chance = random.Random(seed)
    damager = Damager(chance)
    every = kinds()
    while True:
        kind = chance.choice(every)
        whole = sound_file(kind, chance.randrange(1 << 30), folder)
        if whole is None:
            continue
        for _ in range(DAMAGES_OF_A_FILE):
            yield kind, damager.damaged(whole)


def _work(calls: Connection, seed: int, folder: Path) -> None:
    """Damage and read until the process is ended; tell of each finding, now and then a count."""
    pa.set_memory_pool(pa.system_memory_pool())
    current = folder / "current.lance"
    for number, (kind, data) in enumerate(damaged_files(seed, folder), 1):
        current.write_bytes(data)
        (folder / "current.txt").write_text(str(kind))
        finding = find_harm(data)
        if finding is not None or number % 100 == 0:
            calls.send((number, str(kind), data if finding else b"", finding))


@dataclass
class Campaign:
    """A run of the search.

    Attributes:
        folder: Where findings are kept.
        tried: Damaged files read.
        findings: The number of findings of each kind, by the error and its line.
    """

    folder: Path
    tried: int
    findings: dict[str, int]

    def keep(self, kind: str, data: bytes, finding: Finding) -> None:
        """Keep a finding, if it is the first of its kind."""
        signature = f"{finding.what.partition(':')[0]} at {finding.where}"
        self.findings[signature] = self.findings.get(signature, 0) + 1
        if self.findings[signature] > 1:
            return
        number = len(self.findings)
        (self.folder / f"{number}.lance").write_bytes(data)
        text = f"{kind}\n{finding.what}\n{finding.where}\n\n{finding.trace}"
        (self.folder / f"{number}.txt").write_text(text)
        print(f"finding {number}: {kind}\n  {finding.what}\n  {finding.where}", flush=True)


def search(minutes: float, seed: int, folder: Path, maximum: int) -> Campaign:
    """Damage files in a process of their own, begun again where a read ended it.

    Args:
        minutes: For how long.
        seed: What decides the damage; a new process goes on with the next.
        folder: Where findings are kept.
        maximum: How many damaged files are read at most, about.
    """
    folder.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(folder, 0, {})
    context = multiprocessing.get_context("spawn")
    stop = time.monotonic() + 60 * minutes
    last_report = time.monotonic()
    while time.monotonic() < stop and campaign.tried < maximum:
        calls, theirs = context.Pipe(duplex=False)
        work = folder / "work"
        work.mkdir(exist_ok=True)
        process = context.Process(target=_work, args=(theirs, seed, work), daemon=True)
        process.start()
        theirs.close()
        tried = 0
        heard = time.monotonic()
        while time.monotonic() < stop and campaign.tried < maximum:
            try:
                if not calls.poll(1):
                    if time.monotonic() - heard < 600:
                        continue
                    raise EOFError("nothing was heard for ten minutes")
                number, kind, data, finding = calls.recv()
            except (EOFError, OSError) as error:
                process.kill()
                process.join()
                what = f"Died: exit code {process.exitcode} {error}"
                where = f"{(work / 'current.txt').read_text()}"
                campaign.keep(
                    where, (work / "current.lance").read_bytes(), Finding(what, where, "")
                )
                break
            heard = time.monotonic()
            campaign.tried, tried = campaign.tried + number - tried, number
            if finding is not None:
                campaign.keep(kind, data, finding)
            if heard - last_report > 60:
                last_report = heard
                print(
                    f"{campaign.tried} read, {len(campaign.findings)} kinds of findings", flush=True
                )
        process.kill()
        process.join()
        seed += 1
    return campaign


def main() -> int:
    """Search, or look at one finding again."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--most", type=int, default=sys.maxsize, help="read about so many at most")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--findings", type=Path, default=Path("findings"))
    parser.add_argument("--read", type=Path, help="read this file, and say what happens")
    arguments = parser.parse_args()
    if arguments.read:
        pa.set_memory_pool(pa.system_memory_pool())
        finding = find_harm(arguments.read.read_bytes())
        print(finding.trace if finding else "read or refused")
        return int(finding is not None)
    print(f"seed {arguments.seed}, process {os.getpid()}", flush=True)
    campaign = search(arguments.minutes, arguments.seed, arguments.findings, arguments.most)
    print(f"{campaign.tried} damaged files read, {len(campaign.findings)} kinds of findings")
    for where, count in campaign.findings.items():
        print(f"  {count} x {where}")
    return int(bool(campaign.findings))


if __name__ == "__main__":
    sys.exit(main())
