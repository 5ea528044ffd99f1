"""The outcome of applying some rows of a batch: a part has all rows of its keys.

A batch that fits into one process is one part; a larger one has a part for each range of keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lance_stream.row_updates.staged_files import SortedRows, discard_files
from lance_stream.storage.store import Store
from lance_stream.upsert.row_writer import Written
from lance_stream.write.fragments import delete_files


@dataclass(frozen=True)
class Part:
    """The outcome of one part; picklable.

    Attributes:
        written: What was decided and written.
        num_rows: How many rows of the batch it had.
        num_late: How many of them were late.
        changes: Changed rows that are left to other parts, by their addresses.
        partial: The columns of these that lack some of their parts, as in `Incoming`.
    """

    written: Written
    num_rows: int = 0
    num_late: int = 0
    changes: SortedRows = field(default_factory=SortedRows)
    partial: Mapping[str, pa.DataType] = field(default_factory=dict)


def discard_parts(store: Store, parts: Iterable[Part]) -> None:
    """Delete the files of parts, which no version names; best effort."""
    for part in parts:
        delete_files(store, part.written.files)
        discard_files(store, [part.changes])
