"""Writes lineage that is too long for the manifest into separate data files.

    fragment    row ids      created at      last updated at       in its message, or only a mark
    file        column -3    column -4       column -5             for each mark, u64

The file is separate from those with the fragment's columns. So writers of rows need not know the
lineage, and readers of lineage open a file of at most three columns. Only the lineage of rows that
were in the table before is written here; the commit assigns that of new rows.

Source:  table.proto, DataFragment.column_row_ids and its siblings; files that the reference wrote,
         which has such files, too.
"""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.errors import CorruptDataError
from lance_stream.file.versions import FileVersion
from lance_stream.file.writer import FileWriter
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.system_columns import (
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.apply.new_fragments import has_only_moved_rows
from lance_stream.table.config.lineage_limits import inline_limit
from lance_stream.table.fragments.fragment import (
    LINEAGE_FIELD_IDS,
    DataFile,
    Fragment,
    LineageColumn,
    StoredSequence,
)
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.paths import data_file_name, data_file_path
from lance_stream.write.fragments import delete_files

_NAMES: Final[Mapping[str, str]] = {
    "row_ids": ROW_ID,
    "created_at_versions": ROW_CREATED_AT_VERSION,
    "last_updated_at_versions": ROW_LAST_UPDATED_AT_VERSION,
}


def limit_of(table: TableVersion) -> int | None:
    """Return the maximum size in bytes of a sequence in a table's manifest; None without a limit.

    Files of version 0.1 cannot have hidden columns.

    Raises:
        InvalidInputError: The limit in the config is not a number of bytes.
    """
    if table.file_version is FileVersion.V0_1 or not table.has_stable_row_ids:
        return None
    return inline_limit(table.manifest.config)


def with_lineage_files(table: TableVersion, fragments: Iterable[Fragment]) -> list[Fragment]:
    """Move sequences above the table's limit out of the messages of new fragments, into files.

    Args:
        table: The table.
        fragments: New fragments, with the lineage of the rows that were in the table before. A
            fragment that also has new rows is returned unchanged.

    Raises:
        InvalidInputError: The limit in the table's config is not a number of bytes.
        CorruptDataError: A row has an id or a version that the table has not assigned yet.
    """
    limit = limit_of(table)
    if limit is None:
        return list(fragments)
    results: list[Fragment] = []
    written: list[Fragment] = []
    try:
        for fragment in fragments:
            long = _longer_than(limit, fragment)
            if long:
                _check(table, long)
                file = _write(table, long)
                written.append(replace(fragment, files=(file,)))
                fragment = _with_hidden(fragment, file, long)
            results.append(fragment)
    except BaseException:
        delete_files(table.store, written)
        raise
    return results


def lineage_paths(before: Iterable[Fragment], after: Iterable[Fragment]) -> tuple[str, ...]:
    """Return the paths of the files that `with_lineage_files` wrote."""
    paths = {file.path for fragment in before for file in fragment.files}
    return tuple(
        data_file_path(file.path)
        for fragment in after
        for file in fragment.files
        if file.path not in paths
    )


def _longer_than(limit: int, fragment: Fragment) -> dict[str, npt.NDArray[np.uint64]]:
    """Return the values of the sequences above a limit, by name."""
    if not isinstance(fragment.row_ids, bytes) or not has_only_moved_rows(fragment):
        return {}
    files = {}
    for name in _NAMES:
        stored: StoredSequence | None = getattr(fragment, name)
        if isinstance(stored, bytes) and len(stored) > limit:
            decode = decode_row_ids if name == "row_ids" else decode_row_versions
            files[name] = decode(stored, fragment.physical_rows).to_array()
    return files


def _check(table: TableVersion, columns: Mapping[str, npt.NDArray[np.uint64]]) -> None:
    """Raise if a row has an id or a version that the table has not assigned yet."""
    ends = dict.fromkeys(_NAMES, table.version + 1) | {"row_ids": table.manifest.next_row_id}
    for name, values in columns.items():
        if len(values) and int(values.max()) >= ends[name]:
            raise CorruptDataError(
                f"a row has {int(values.max())} among its {name.replace('_', ' ')}, but those of "
                f"version {table.version} are below {ends[name]}: the table is damaged. Nothing "
                "was committed. `lance-stream verify` lists the problems"
            )


def _with_hidden(fragment: Fragment, file: DataFile, names: Iterable[str]) -> Fragment:
    files = (*fragment.files, file)
    marks = {name: LineageColumn.among(LINEAGE_FIELD_IDS[name], files) for name in names}
    return replace(fragment, files=files, **marks)  # type: ignore[arg-type]  # names of sequences


def _write(table: TableVersion, columns: Mapping[str, npt.NDArray[np.uint64]]) -> DataFile:
    fields = tuple(
        Field(_NAMES[name], "uint64", index, nullable=False) for index, name in enumerate(columns)
    )
    schema = Schema(fields)
    writer = FileWriter(schema, table.file_version)
    rows = pa.RecordBatch.from_arrays(
        list(map(pa.array, columns.values())), schema=to_arrow(schema)
    )
    name = data_file_name(secrets.token_bytes(16))
    with table.store.open_writer(data_file_path(name)) as file:
        for buffer in writer.write(rows):
            file.write(buffer)
        buffers, written = writer.finish()
        for buffer in buffers:
            file.write(buffer)
    return DataFile(
        path=name,
        field_ids=tuple(LINEAGE_FIELD_IDS[column] for column in columns),
        column_indices=written.column_indices,
        file_version=written.version.data_file_numbers,
        size_bytes=written.size_bytes,
    )
