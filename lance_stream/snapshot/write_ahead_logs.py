"""Rows in a table's write-ahead log (MemWAL) that are not in any version of the table.

Programs that write through a MemWAL store new rows below `_mem_wal/{shard}` until they merge them
into the table. Like the reference's plain readers, this project reads versions only. So users get a
warning when they open such a table; `show` and `verify` report the files of the log.

Source:  the index `__lance_mem_wal` of tables that pylance created.
"""

import warnings
from typing import Final, NamedTuple

from lance_stream.commit.version_log import VersionLog
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.manifest import Manifest
from lance_stream.table.write_ahead_logs import has_write_ahead_log

FOLDER: Final = "_mem_wal"

_warned: set[str] = set()


class UnmergedFiles(NamedTuple):
    """The contents of a table's write-ahead log.

    Attributes:
        num_files: The number of files.
        num_bytes: Their size in bytes.
    """

    num_files: int
    num_bytes: int


def warn_of_unmerged_rows(log: VersionLog, manifest: Manifest) -> None:
    """Warn, once per table and process, that a table's write-ahead log may have unmerged rows."""
    if log.store.uri in _warned or not has_write_ahead_log(manifest):
        return
    _warned.add(log.store.uri)
    warnings.warn(
        f"the table at {log.store.uri} is written through a write-ahead log (MemWAL): rows that "
        "have not been merged into the table are not read, counted or streamed. Merge them with "
        "the program that writes them; `lance-stream show` reports whether the log has files",
        UserWarning,
        stacklevel=4,
    )


def unmerged_files(table: TableVersion) -> UnmergedFiles | None:
    """Return the contents of a table's write-ahead log; None if the table has no such log.

    They may include files whose rows have been merged, until their writer removes them.
    """
    if not has_write_ahead_log(table.manifest):
        return None
    files = table.store.list(FOLDER)
    return UnmergedFiles(len(files), sum(file.size_bytes for file in files))
