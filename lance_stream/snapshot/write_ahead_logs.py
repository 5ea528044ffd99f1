"""Rows that stand in a table's write-ahead log (MemWAL), and in no version of the table.

Programs that write by a MemWAL keep new rows below `_mem_wal/{shard}` until they merge them into
the table. What is read here, as by every plain reader of the reference, is the versions alone. So a
user is warned when such a table is opened; `show` and `verify` list what lies there.

Source:  the index `__lance_mem_wal` of tables that pylance made.
"""

import warnings
from typing import Final, NamedTuple

from lance_stream.commit.version_log import VersionLog
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.indices import decode_index_section
from lance_stream.table.manifest import Manifest

INDEX_NAME: Final = "__lance_mem_wal"
FOLDER: Final = "_mem_wal"

_warned: set[str] = set()


class UnmergedFiles(NamedTuple):
    """What lies in the write-ahead log of a table.

    Attributes:
        num_files: How many files.
        num_bytes: How many bytes they have.
    """

    num_files: int
    num_bytes: int


def has_write_ahead_log(manifest: Manifest) -> bool:
    """Say whether a table is written by a write-ahead log.

    Raises:
        CorruptDataError: Its index section is damaged.
    """
    section = manifest.index_section
    if section is None or INDEX_NAME.encode() not in section:
        return False
    return any(each.name == INDEX_NAME for each in decode_index_section(section))


def warn_of_unmerged_rows(log: VersionLog, manifest: Manifest) -> None:
    """Warn that rows of a table may stand in its write-ahead log; once a table and process."""
    if log.store.uri in _warned or not has_write_ahead_log(manifest):
        return
    _warned.add(log.store.uri)
    warnings.warn(
        f"the table at {log.store.uri} is written by a write-ahead log (MemWAL): rows that have "
        "not been merged into the table are not read, counted or streamed here. Merge them by the "
        "program that writes them; `lance-stream show` tells whether files lie in the log",
        UserWarning,
        stacklevel=4,
    )


def unmerged_files(table: TableVersion) -> UnmergedFiles | None:
    """Return what lies in the write-ahead log of a table; None if it has no such log.

    Files whose rows have been merged may lie there, too, until its writer removes them.
    """
    if not has_write_ahead_log(table.manifest):
        return None
    files = table.store.list(FOLDER)
    return UnmergedFiles(len(files), sum(each.size_bytes for each in files))
