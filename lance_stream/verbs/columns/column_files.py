"""Data files of new columns, shared by all attempts to commit them.

The values of new columns are written before the commit. If another writer commits first, the next
attempt reuses the files of those fragments whose files and source columns have not changed, and
writes only the others. A file has no values for rows that were deleted when it was written. If a
restore has brought one of them back, the file is written again.
"""

import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.environment import Environment
from lance_stream.errors import CommitConflictError, InvalidInputError
from lance_stream.read.fragment import FragmentReader
from lance_stream.read.prefetch import BatchRead, read_ahead
from lance_stream.read.selections import Selection
from lance_stream.read.units import unit_of
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.system_columns import ROW_ADDRESS
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.lineage.row_addresses import unpack_addresses
from lance_stream.verbs.columns.schema_changes import Identity
from lance_stream.write.fragments import WriteTarget, delete_files, write_fragments
from lance_stream.write.planning import replan_on_conflict

_Key: TypeAlias = tuple[int, tuple[DataFile, ...], Hashable, tuple[Identity, ...]]


@dataclass(frozen=True)
class ColumnFiles:
    """The files written so far, by fragment and columns.

    Attributes:
        store: The table's store.
        written: Maps (fragment id, its other files, the new columns, their source fields) to the
            new files: each as the only file of a fragment, with the offsets of the rows that have
            no values in it.
    """

    store: Store
    written: dict[_Key, list[tuple[npt.NDArray[np.uint32], Fragment]]] = field(default_factory=dict)

    def of(
        self,
        fragment: Fragment,
        columns: Hashable,
        source: tuple[Identity, ...],
        deleted: npt.NDArray[np.uint32],
        write: Callable[[], Fragment],
    ) -> tuple[DataFile, ...]:
        """Return the file of a fragment's new columns; write it if there is none yet.

        Args:
            fragment: The fragment.
            columns: Identifies the new columns.
            source: The fields that they are computed from.
            deleted: The offsets of the fragment's deleted rows.
            write: Writes the file.
        """
        key = fragment.id, fragment.files, columns, source
        files = self.written.setdefault(key, [])
        for without_values, fragment_of_file in files:
            if np.isin(without_values, deleted).all():
                return fragment_of_file.files
        files.append((deleted, write()))
        return files[-1][1].files

    @contextmanager
    def deleted_on_error(self) -> Iterator[None]:
        """Delete all files if an error occurs: nothing has been committed yet."""
        try:
            yield
        except BaseException:
            self.delete()
            raise

    def delete(self, survivors: tuple[Fragment, ...] = ()) -> None:
        """Delete the files that none of the surviving fragments names."""
        named = {file.path for fragment in survivors for file in fragment.files}
        written = [fragment for files in self.written.values() for _, fragment in files]
        delete_files(
            self.store, [fragment for fragment in written if fragment.files[0].path not in named]
        )


Compute: TypeAlias = Callable[[pa.RecordBatch, npt.NDArray[np.bool_]], pa.RecordBatch]
"""Returns the new columns of a batch, row for row; the mask is true for live rows."""

_BATCH_ROWS: Final = 1 << 18


def write_columns(
    table: TableVersion,
    index: int,
    schema: Schema,
    compute: Compute,
    *,
    columns: tuple[str, ...] = (),
    fields: tuple[Field, ...] | None = None,
) -> Fragment:
    """Write a file of new columns for a fragment.

    A few threads read and compute rows, slightly ahead of the writer.

    Args:
        table: The version.
        index: The index of the fragment in the version.
        schema: The new columns.
        compute: Computes them from the columns that were read.
        columns: The columns to read, by name.
        fields: The columns to read, as fields.

    Returns:
        A fragment whose only file is the new one.
    """
    unit = unit_of(
        table,
        index,
        columns=columns,
        fields=fields,
        system_columns=(ROW_ADDRESS,),
        batch_size=_BATCH_ROWS,
        include_deleted=True,
    )
    fragment = table.manifest.fragments[index]
    deleted = table.deleted_offsets(fragment)
    reader = FragmentReader(unit)
    batches = read_ahead(
        BatchRead(
            partial(_compute, reader, selection, deleted, compute), reader.num_bytes_of(selection)
        )
        for selection in reader.selections()
    )
    target = WriteTarget(
        table.store,
        schema,
        table.file_version,
        max_rows_per_file=max(table.physical_rows(fragment), 1),
        max_bytes_per_file=sys.maxsize,
    )
    (written,) = write_fragments(batches, target)
    return written


def _compute(
    reader: FragmentReader,
    selection: Selection,
    deleted: npt.NDArray[np.uint32],
    compute: Compute,
) -> pa.RecordBatch:
    rows = reader.read(selection)
    _, offsets = unpack_addresses(rows.column(rows.num_columns - 1).to_numpy())
    is_live = ~np.isin(offsets, deleted, assume_unique=True)
    return compute(rows.select(range(rows.num_columns - 1)), is_live)


def commit_columns(
    table: TableVersion,
    attempt: Callable[[TableVersion, ColumnFiles], TableVersion],
    environment: Environment,
) -> TableVersion:
    """Commit new columns to the newest version; retry after conflicts.

    Args:
        table: Any version.
        attempt: Writes the missing files and commits, given the newest version.
        environment: The clock and randomness; sleeps between two attempts.

    Raises:
        CommitError: Every attempt conflicted with other commits. The files are deleted unless the
            outcome is unknown.
    """
    files = ColumnFiles(table.store)
    newest: TableVersion | None = None

    def next_attempt() -> TableVersion:
        nonlocal newest
        newest = newest_version_of(table if newest is None else newest)
        return attempt(newest, files)

    try:
        version = replan_on_conflict(next_attempt, environment=environment)
    except (CommitConflictError, InvalidInputError):  # certainly not committed
        files.delete()
        raise
    files.delete(survivors=tuple(version.manifest.fragments))
    return version
