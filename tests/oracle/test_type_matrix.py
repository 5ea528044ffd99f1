"""Every type in every shape of data, in each file version: we and pylance say the same, both ways.

The columns of a shape stand side by side in one file, so that thousands of cases take seconds.
What we or pylance refuse stands in one table, `REFUSALS`, which is exact: a case that is in it has
to be refused, in the words that stand there, and a case that is not has to work.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lance_stream.errors import LanceStreamError
from lance_stream.file.versions import FileVersion
from lance_stream.schema.types.extension_types import with_extensions
from tests.file.whole_files import Reading, written_by_us
from tests.oracle.bare_files import (
    read_by_pylance,
    take_by_pylance,
    unsliced,
    write_by_pylance,
)
from tests.oracle.exact import difference, plain
from tests.oracle.type_cases import COLUMNS, SHAPES, Column, Shape, holds_null_structs

pytestmark = pytest.mark.oracle

V2_0, V2_1, V2_2 = FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2
VERSIONS = (V2_0, V2_1, V2_2)
METADATA = {"owner": "nobody", "größe": "ü"}

WORKS = ""
NEVER = "<not tried>"


@dataclass(frozen=True)
class Case:
    """Values of a column, in a shape, to be written in a version."""

    version: FileVersion
    shape: Shape
    column: Column
    array: pa.Array


@dataclass(frozen=True)
class Refusal:
    """Columns that somebody cannot write or read.

    Attributes:
        columns: Which: a pattern of their whole names.
        versions: In which versions.
        ours: What we say when we write them; `WORKS` if we do.
        reading: What we say when we read them from a file of pylance's.
        theirs: What pylance says when it writes them, or reads what it wrote.
        why: The reason, where it is not ours to mend.
        shapes: In which shapes: a pattern of their names, which is searched for.
        when: For which values.
    """

    columns: str
    versions: tuple[FileVersion, ...]
    ours: str = WORKS
    reading: str = WORKS
    theirs: str = WORKS
    why: str = ""
    shapes: str = ""
    when: Callable[[pa.Array], bool] = lambda _: True

    def covers(self, case: Case) -> bool:
        """Say whether a case is meant."""
        return (
            case.version in self.versions
            and re.fullmatch(self.columns, case.column.name) is not None
            and re.search(self.shapes, case.shape.name) is not None
            and self.when(case.array)
        )


def holds_values(array: pa.Array) -> bool:
    """Say whether some value is not null."""
    return array.null_count < len(array)


MAPS = r"(list<)?map.*|struct of map"
STRUCTS = r"struct.*|(large_)?list<struct.*"

REFUSALS = (
    # What neither writer of the version can hold.
    Refusal(
        f"{MAPS}",
        (V2_0, V2_1),
        ours="do not support maps",
        theirs="no field encoding for|Map data type is not enabled",
        why="maps came with 2.2",
    ),
    Refusal(
        "fsl<struct, 2>",
        (V2_0, V2_1),
        ours="do not support fixed-size lists of structs",
        theirs="column index 1 but|Packed struct|does not encode struct validity|is not enabled",
        why="fixed-size lists of structs came with 2.2; pylance writes 2.0 that it cannot read",
    ),
    Refusal(
        STRUCTS,
        (V2_0,),
        ours="2.1 and newer do",
        theirs="does not encode struct validity",
        why="a struct of 2.0 has no place for its nulls",
        when=holds_null_structs,
    ),
    Refusal(
        "packed texts",
        (V2_0,),
        ours="values of whole bytes, not string",
        theirs="only implemented for fixed-width",
        why="a packed struct of 2.0 supports values of fixed width",
    ),
    Refusal(
        "packed (texts|vectors)",
        (V2_1,),
        ours="support only values of fixed width",
        theirs="Variable packed struct encoding is not enabled",
        why="packed structs of values of any width came with 2.2",
        shapes="^(?!no row)",
    ),
    # What pylance cannot write, and we can.
    Refusal(
        "list<packed>",
        (V2_0,),
        theirs=NEVER,
        why="pylance panics at pages of empty lists of packed structs",
        shapes="^(one row|constant)$",
    ),
    Refusal(
        "miniblock .*(string|binary).*",
        (V2_1,),
        theirs=NEVER,
        why="pylance's chunks of 2.1 have at most 32 KiB",
        shapes="wide",
    ),
    Refusal(
        "(string|binary)_view",
        (V2_0,),
        theirs="with ValueEncoder",
        why="pylance writes views of byte strings from 2.1 on",
        when=holds_values,
    ),
    Refusal(
        "fsst (string|binary)",
        (V2_0,),
        theirs=NEVER,
        why="pylance's FSST of 2.0 panics at some pages without a value",
        when=lambda array: not holds_values(array),
    ),
)


def refusal_of(case: Case) -> Refusal | None:
    """Return the first entry of the table that means a case."""
    return next((refusal for refusal in REFUSALS if refusal.covers(case)), None)


@cache
def cases_of(version: FileVersion, shape: Shape) -> list[tuple[Case, Refusal | None]]:
    """Return the cases of a shape, and what is expected of them."""
    random = np.random.default_rng([version.footer_numbers[1], SHAPES.index(shape)])
    cases = [
        Case(version, shape, column, column.array(shape, random))
        for column in COLUMNS.values()
        if column.suits(shape)
    ]
    return [(case, refusal_of(case)) for case in cases]


def table_of(cases: Sequence[Case]) -> pa.RecordBatch:
    """Return the columns of some cases side by side."""
    schema = pa.schema([case.column.field for case in cases], metadata=METADATA)
    return pa.RecordBatch.from_arrays([case.array for case in cases], schema=schema)


def rows_at(array: pa.Array, offsets: Sequence[int]) -> pa.Array:
    """Return some rows; Arrow does not take rightly from all slices of vectors of vectors."""
    stored = plain(array)
    if stored.offset:
        stored = plain(unsliced([pa.record_batch([stored], ["rows"])])[0]["rows"])
    return stored.take(pa.array(offsets, pa.int64()))


def assert_we_read(data: bytes, batch: pa.RecordBatch, what: str) -> pa.Schema:
    """Assert that we read a file's rows whole, in part and one by one; return its schema."""
    reading, count = Reading(data), batch.num_rows
    assert reading.num_rows == count
    names = batch.schema.names
    for start, stop in {(0, count), (count // 3, count // 2)}:
        for name, array in zip(names, reading.read(names, start, stop), strict=True):
            array.validate(full=True)
            assert array.type == reading.schema.field(name).type
            mismatch = difference(array, batch[name][start:stop], name)
            assert not mismatch, f"{what}, rows {start} to {stop}: {mismatch}"
    offsets = sorted({*range(0, count, 37), count - 1} if count else ())
    for name, array in zip(names, reading.take(names, offsets), strict=True):
        array.validate(full=True)
        mismatch = difference(array, rows_at(batch[name], offsets), name)
        assert not mismatch, f"{what}, some rows: {mismatch}"
    return reading.schema


def assert_pylance_reads(path: Path, batch: pa.RecordBatch, what: str) -> pa.Schema:
    """Assert that pylance reads a file's rows whole and one by one; return the schema it gives."""
    whole = read_by_pylance(path)
    for name in batch.schema.names:
        mismatch = difference(whole[name], batch[name], name)
        assert not mismatch, f"{what}: {mismatch}"
    offsets = sorted({*range(0, batch.num_rows, 41), batch.num_rows - 1})
    some = take_by_pylance(path, offsets)
    for name in batch.schema.names:
        mismatch = difference(some[name], rows_at(batch[name], offsets), name)
        assert not mismatch, f"{what}, some rows: {mismatch}"
    return whole.schema


def same_schema(left: pa.Schema, right: pa.Schema) -> str:
    """Return where two schemas differ, metadata too."""
    left = with_extensions(left)
    if left.equals(right, check_metadata=True):
        return ""
    for ours, theirs in zip(left, right, strict=True):
        if not ours.equals(theirs, check_metadata=True):
            return f"{ours} {ours.metadata} and {theirs} {theirs.metadata}"
    return f"{left.metadata} and {right.metadata}"


ALONE = "fsl<struct, 2>"
"""The column that pylance's reader of bare files does not read beside others: it counts items."""


@pytest.mark.quick_cases(one_in=5)
@pytest.mark.some_cases(one_in=3)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
@pytest.mark.essential
def test_all_types_of_a_shape_agree(tmp_path: Path, version: FileVersion, shape: Shape) -> None:
    """The choice of encoding depends on type, shape and version together."""
    cases = cases_of(version, shape)
    ours = [case for case, no in cases if no is None or no.ours == WORKS]
    theirs = [case for case, no in cases if no is None or no.theirs == no.reading == WORKS]
    assert min(len(ours), len(theirs)) > 5
    for some in file_groups(ours):
        check_what_we_write(tmp_path / "ours.lance", version, table_of(some))
    for some in file_groups(theirs if shape.num_rows else []):
        check_what_pylance_writes(tmp_path / "theirs.lance", version, table_of(some))


def file_groups(cases: Sequence[Case]) -> list[Sequence[Case]]:
    """Return what can stand in one file, for each such file."""
    alone = [case for case in cases if case.column.name == ALONE]
    read_together = [case for case in cases if case.column.name != ALONE]
    return [value for value in (read_together, alone) if value]


def check_what_we_write(path: Path, version: FileVersion, batch: pa.RecordBatch) -> None:
    """Assert that we and pylance read our file."""
    data = written_by_us([batch], version, batch.schema)
    schema = assert_we_read(data, batch, "our file, read by us")
    if batch.num_rows:
        path.write_bytes(data)
        read = assert_pylance_reads(path, batch, "our file, read by pylance")
        assert same_schema(schema, read) == ""


def check_what_pylance_writes(path: Path, version: FileVersion, batch: pa.RecordBatch) -> None:
    """Assert that pylance and we read its file."""
    write_by_pylance([batch], path, version, batch.schema)
    read = assert_pylance_reads(path, batch, "pylance's file, read by it")
    schema = assert_we_read(path.read_bytes(), batch, "pylance's file, read by us")
    assert same_schema(schema, read) == ""


@pytest.mark.some_cases(one_in=3)
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize("name", ["some nulls", "few distinct"])
def test_batches_of_any_size_agree(tmp_path: Path, version: FileVersion, name: str) -> None:
    """Empty, single-row and unaligned batches are where rows get lost."""
    shape = next(shape for shape in SHAPES if shape.name == name)
    cases = cases_of(version, shape)
    ends = [0, 1, 1, 8, 150, shape.num_rows]

    def parts(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        return [batch.slice(start, stop - start) for start, stop in pairwise(ends)]

    batch = table_of([case for case, no in cases if no is None and case.column.name != ALONE])
    data = written_by_us(parts(batch), version, batch.schema, max_page_bytes=3000)
    assert_we_read(data, batch, "our file, read by us")
    (tmp_path / "ours.lance").write_bytes(data)
    assert_pylance_reads(tmp_path / "ours.lance", batch, "our file, read by pylance")
    path = tmp_path / "theirs.lance"
    write_by_pylance(parts(batch), path, version, batch.schema, data_cache_bytes=3000)
    assert_we_read(path.read_bytes(), batch, "pylance's file, read by us")


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_refusals_use_the_tables_words(tmp_path: Path, version: FileVersion) -> None:
    """The table of refusals is documentation, and must say what really happens."""
    wrong: list[str] = []
    for shape in SHAPES:
        for case, refusal in cases_of(version, shape):
            if refusal is not None:
                wrong += wrong_refusals(tmp_path, case, refusal)
    assert not wrong, "\n".join(wrong)


def wrong_refusals(folder: Path, case: Case, refusal: Refusal) -> list[str]:
    """Return what of an entry of the table is not so."""
    wrong = []
    batch, version, name = table_of([case]), case.version, case.column.name
    what = f"{name}, {case.shape.name}"
    if refusal.ours not in {WORKS, NEVER}:
        try:
            written_by_us([batch], version, batch.schema)
        except LanceStreamError as error:
            if not re.search(refusal.ours, str(error)):
                wrong.append(f"{what}: we say {error}")
        else:
            wrong.append(f"{what}: we write it")
    if batch.num_rows == 0:
        return wrong
    path = folder / "theirs.lance"
    if refusal.theirs not in {WORKS, NEVER}:
        try:
            write_by_pylance([batch], path, version, batch.schema)
            problem = difference(read_by_pylance(path)[name], batch[name])
        except Exception as error:
            problem = str(error)
        if not problem:
            wrong.append(f"{what}: pylance writes and reads it")
        elif not re.search(refusal.theirs, problem):
            wrong.append(f"{what}: pylance says {problem[:200]}")
    if refusal.reading not in {WORKS, NEVER}:
        write_by_pylance([batch], path, version, batch.schema)
        try:
            Reading(path.read_bytes()).read([name], 0, batch.num_rows)
        except LanceStreamError as error:
            if not re.search(refusal.reading, str(error)):
                wrong.append(f"{what}: we say of pylance's {error}")
        else:
            wrong.append(f"{what}: we read it")
    return wrong


def test_every_refusal_entry_matches_a_case() -> None:
    """An entry that matches nothing is obsolete and would hide a later fault."""
    for value in REFUSALS:
        matches = {
            version
            for version in value.versions
            for shape in SHAPES
            if any(refusal is value for _, refusal in cases_of(version, shape))
        }
        assert matches == set(value.versions), value


def test_every_version_has_many_working_cases() -> None:
    """Too broad a refusal would exclude most comparisons unnoticed."""
    for version in VERSIONS:
        works = [no is None for shape in SHAPES for _, no in cases_of(version, shape)]
        assert sum(works) > 2000, version
