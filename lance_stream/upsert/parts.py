"""The outcome of one part of a batch. A part has all rows of its keys.

A batch that fits into one process is one part; a larger batch has one part per range of keys.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from lance_stream.row_updates.staged_files import SortedRows, discard_files
from lance_stream.storage.store import Store
from lance_stream.upsert.row_writer import Written
from lance_stream.write.fragments import delete_files


@dataclass(frozen=True)
class UpsertPart:
    """The outcome of one part; picklable.

    Attributes:
        written: What was decided and written.
        num_rows: The number of rows of the batch in this part.
        num_late: The number of these rows that were late.
        changes: Changed rows that other parts will write, by address.
        partial: The columns of `changes` whose structs are incomplete, as in `IncomingRows`.
    """

    written: Written
    num_rows: int = 0
    num_late: int = 0
    changes: SortedRows = field(default_factory=SortedRows)
    partial: Mapping[str, pa.DataType] = field(default_factory=dict)


def discard_parts(store: Store, parts: Iterable[UpsertPart]) -> None:
    """Delete the files of parts, which no version references; best effort."""
    for part in parts:
        delete_files(store, part.written.files)
        discard_files(store, [part.changes])
