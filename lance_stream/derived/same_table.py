"""Writes computed values to the table from whose rows they were computed.

Computing takes a long time, during which other writers commit. So values are written for the newest
version, not for the one that was read, and only for rows whose inputs are still the same:

    the row was deleted                       its value is not written
    its fragment has the same input files     the inputs are the same
    otherwise (moved, updated)                the inputs are read again, and their fingerprint is
                                              compared
    the inputs changed                        the value is not written; the next round computes it

If another writer changes one of these fragments before the commit, this is a conflict, and the
values are written again. Each change of a row changes its fragment, so no value is committed for
inputs from which it was not computed (`table.conflicts.rules`, Update).

Values are written in place, as new files with these columns only (decision 041), if that costs less
than moving the rows; in a table with blobs always, as far as the format allows, so that no blob is
read or copied.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import RowAddresses, RowIds
from lance_stream.derived.candidates import files_of
from lance_stream.derived.computing import ComputedValues, Runner, StagedValues
from lance_stream.derived.declaration import Declaration
from lance_stream.derived.fingerprints import fingerprints_of
from lance_stream.environment import Environment
from lance_stream.read.row_lookup import find_rows
from lance_stream.row_updates.changed_rows import (
    by_fragment,
    moved_lineage,
    read_rows,
    with_moved_lineage,
    without_rows,
)
from lance_stream.row_updates.in_place import (
    changed_offsets,
    columns_job,
    columns_that_may_stay,
    fragments_that_stay,
    with_new_columns,
    write_columns,
)
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.fields import Field, Schema
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.operations.rows import Update, UpdateMode
from lance_stream.write.fragments import delete_files, write_fragments, write_target
from lance_stream.write.lineage_files import with_lineage_files
from lance_stream.write.planning import StagedFiles


@dataclass(frozen=True)
class WrittenValues:
    """Values that were written, and can be committed.

    Attributes:
        operation: The operation to commit.
        staged: The files that were written for it.
        num_rows: The number of rows with new values.
        num_in_place: The number of these rows that do not move.
    """

    operation: Update
    staged: StagedFiles
    num_rows: int
    num_in_place: int


def write_computed(
    table: TableVersion,
    read: TableVersion,
    declaration: Declaration,
    computed: Sequence[ComputedValues],
    runner: Runner,
    environment: Environment,
) -> WrittenValues | None:
    """Write the files of computed values; return None if no row needs a value any more.

    Args:
        table: The newest version.
        read: The version from which the inputs were read.
        declaration: The derived columns.
        computed: The values.
        runner: Runs the jobs that write columns.
        environment: Provides random file names.
    """
    row_ids = np.concatenate([np.empty(0, np.uint64), *(result.row_ids for result in computed)])
    expected = np.concatenate(
        [np.empty(0, np.int64), *(result.fingerprints for result in computed)]
    )
    addresses, exists = find_rows(table, row_ids)
    order = np.argsort(addresses[exists])
    row_ids, expected = row_ids[exists][order], expected[exists][order]
    addresses = addresses[exists][order]
    if table.version != read.version:
        same = _have_same_inputs(table, read, declaration, addresses, row_ids, expected)
        row_ids, addresses = row_ids[same], addresses[same]
    if not len(addresses):
        return None
    values = StagedValues(
        table.store,
        tuple(result.values for result in computed),
        row_ids,
        tuple(declaration.written.names),
    )
    return _write(table, declaration, addresses, values, runner, environment)


def _have_same_inputs(
    table: TableVersion,
    read: TableVersion,
    declaration: Declaration,
    addresses: RowAddresses,
    row_ids: RowIds,
    expected: npt.NDArray[np.int64],
) -> npt.NDArray[np.bool_]:
    """Return which rows have the inputs from which their values were computed, (n,) booleans."""
    # The rows that have not moved since, in fragments with the same input files.
    same = find_rows(read, row_ids)[0] == addresses
    inputs = set(input_ids(table.schema, declaration))
    start = 0
    for fragment_id, offsets in by_fragment(addresses):
        part = slice(start, start + len(offsets))
        start = part.stop
        new = table.manifest.fragments.by_id(fragment_id)
        old = read.manifest.fragments.by_id(fragment_id)
        if old is None or new is None or files_of(new, inputs) != files_of(old, inputs):
            same[part] = False
    # The inputs of all other rows are read again.
    positions = np.flatnonzero(~same)
    if len(positions):
        columns = [quote_path((column,)) for column in declaration.read_columns]
        actual = [
            fingerprints_of(rows.select(list(declaration.read_columns)), declaration.fingerprint)
            for rows in read_rows(table, addresses[positions], columns)
        ]
        same[positions] = np.concatenate(actual) == expected[positions]
    checked: npt.NDArray[np.bool_] = same
    return checked


def input_ids(schema: Schema, declaration: Declaration) -> tuple[int, ...]:
    """Return the ids of the columns that are read, in the order of the declaration."""
    return _ids_by_name(schema, declaration.read_columns)


def output_ids(schema: Schema, declaration: Declaration) -> tuple[int, ...]:
    """Return the ids of the existing columns that are written, in the order of the declaration."""
    return _ids_by_name(schema, declaration.written.names)


def _ids_by_name(schema: Schema, names: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of columns and their parts; others if two of them swap their names."""
    columns = {field.name: field for field in schema.fields}
    return tuple(
        field_id for name in names if name in columns for field_id in _ids_of_parts(columns[name])
    )


def _ids_of_parts(field: Field) -> Iterator[int]:
    yield field.id
    for part in sorted(field.children, key=lambda child: child.name):
        yield from _ids_of_parts(part)


def _write(
    table: TableVersion,
    declaration: Declaration,
    addresses: RowAddresses,
    values: StagedValues,
    runner: Runner,
    environment: Environment,
) -> WrittenValues:
    target = write_target(table)
    names = declaration.written.names
    num_bytes = sum(file.num_bytes for file in values.files)
    fields = columns_that_may_stay(table, names, names, num_bytes)
    has_blobs = any(part.is_blob for field in table.schema.fields for part in field.walk())
    stays = fragments_that_stay(table, addresses, fields, at_any_cost=has_blobs)
    staying, moving = addresses[stays], addresses[~stays]
    in_place: list[Fragment] = []
    new: list[Fragment] = []
    try:
        jobs = []
        start = 0
        staying_values = replace(values, row_ids=values.row_ids[stays])
        for fragment_id, offsets in by_fragment(staying):
            values_of_part = staying_values.of(slice(start, start + len(offsets)))
            start += len(offsets)
            jobs.append(
                columns_job(
                    table, fragment_id, offsets, fields, values_of_part, target, needs_stored=False
                )
            )
        in_place += runner(write_columns, jobs)
        if len(moving):
            rows = _moved_rows(table, moving, values, values.row_ids[~stays])
            new += write_fragments(rows, target)
        updated, removed = without_rows(table, moving, environment)
        if len(moving):
            lineage = moved_lineage(table, moving)
            new = with_lineage_files(table, with_moved_lineage(new, lineage))
    except BaseException:
        delete_files(table.store, [*in_place, *new])
        raise
    changed = tuple(sorted(output_ids(table.schema, declaration)))
    operation = Update(
        removed_fragment_ids=removed,
        updated_fragments=with_new_columns(table, updated, in_place),
        new_fragments=tuple(new),
        fields_modified=changed if in_place else (),
        fields_for_preserving_frag_bitmap=changed,
        update_mode=UpdateMode.REWRITE_COLUMNS if in_place else UpdateMode.REWRITE_ROWS,
        updated_fragment_offset_bitmaps=changed_offsets(staying, in_place),
    )
    return WrittenValues(
        operation, StagedFiles((*new, *in_place), updated), len(addresses), len(staying)
    )


def _moved_rows(
    table: TableVersion, moving: RowAddresses, values: StagedValues, row_ids: RowIds
) -> Iterator[pa.RecordBatch]:
    """Yield all columns of rows that move, with the new values."""
    values_of_rows = replace(values, row_ids=row_ids)
    names = table.schema.names
    start = 0
    for rows in read_rows(table, moving, [quote_path((name,)) for name in names]):
        new_values = values_of_rows(rows, slice(start, start + rows.num_rows))
        start += rows.num_rows
        columns = [
            new_values.column(name) if name in values.columns else column
            for name, column in zip(names, rows.columns, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, names)
