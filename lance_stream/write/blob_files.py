"""Writes the side files of a data file, for blobs that are too large to be inline.

    up to 64 KiB           inline: bytes of the data file
    more, up to 4 MiB      one after another in a pack, a side file of up to 1 GiB
    more                   a separate side file

A column's metadata can change these limits (`schema.blobs`). Side files are numbered from 1 across
all columns of the data file. They are complete before the data file: a pack is closed when the next
one begins, or at the end. After an error, all of them are deleted.

Source: lance, dataset/blob/write; files that the reference wrote.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import LanceStreamError
from lance_stream.schema.blobs import (
    DEDICATED,
    DEDICATED_THRESHOLD_KEY,
    INLINE,
    INLINE_THRESHOLD_KEY,
    PACK_FILE_THRESHOLD_KEY,
    PACKED,
    PREPARED_V2,
    threshold,
)
from lance_stream.schema.fields import Field, Schema
from lance_stream.storage.store import FileWriter, Store
from lance_stream.table.paths import blob_file_path


class BlobFiles:
    """The side files of a data file that is being written.

    As a context manager, it deletes them if the body raises an error.

    Args:
        store: The table's store.
        data_file: The path of the data file.
        schema: The table's columns.
    """

    def __init__(self, store: Store, data_file: str, schema: Schema) -> None:
        self._store = store
        self._data_file = data_file
        self._fields = {
            index: field for index, field in enumerate(schema.fields) if field.is_blob_v2
        }
        self._num_files = 0
        self._pack: FileWriter | None = None
        self._pack_id = 0
        self._pack_bytes = 0
        self.size_bytes = 0

    def __enter__(self) -> "BlobFiles":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._delete()

    def close(self) -> None:
        """Close the last pack; call this before closing the data file."""
        self._close_pack()

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Write the large blobs of a batch, and return the batch with their descriptions.

        The batch has the table's schema. Blobs that belong in the data file stay in the batch.
        """
        if not self._fields:
            return batch
        columns = list(batch.columns)
        fields = list(batch.schema)
        for index, field in self._fields.items():
            prepared = self._prepare(field, columns[index])
            if prepared is not columns[index]:
                columns[index] = prepared
                fields[index] = pa.field(field.name, PREPARED_V2, field.nullable)
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _prepare(self, field: Field, array: pa.Array) -> pa.Array:
        limits: Mapping[str, bytes] = field.metadata
        inline = threshold(limits, INLINE_THRESHOLD_KEY, field.name)
        dedicated = threshold(limits, DEDICATED_THRESHOLD_KEY, field.name)
        pack_bytes = threshold(limits, PACK_FILE_THRESHOLD_KEY, field.name)
        sizes = pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
        large = np.flatnonzero((sizes > inline) | (sizes > dedicated))
        if len(large) == 0:
            return array
        kinds = np.full(len(array), INLINE, np.uint8)
        positions = np.zeros(len(array), np.uint64)
        ids = np.zeros(len(array), np.uint32)
        for row, data in zip(large.tolist(), _bytes_of(array, large), strict=True):
            if len(data) > dedicated:
                kinds[row], ids[row] = DEDICATED, self._write_one(data)
            else:
                kinds[row] = PACKED
                ids[row], positions[row] = self._add_to_pack(data, pack_bytes)
        is_large = np.zeros(len(array), np.bool_)
        is_large[large] = True
        inline_bytes = pc.if_else(pa.array(is_large), pa.scalar(b"", pa.large_binary()), array)
        parts = [
            pa.array(kinds),
            inline_bytes,
            pa.array(positions),
            pa.array(sizes.astype(np.uint64)),
        ]
        return pa.StructArray.from_arrays(
            [*parts, pa.array(ids)],
            fields=list(PREPARED_V2),
            mask=array.is_null() if array.null_count else None,
        )

    def _write_one(self, data: memoryview) -> int:
        number = self._next_number()
        with self._store.open_writer(blob_file_path(self._data_file, number)) as file:
            file.write(data)
        self.size_bytes += len(data)
        return number

    def _add_to_pack(self, data: memoryview, pack_bytes: int) -> tuple[int, int]:
        if self._pack is None or self._pack_bytes + len(data) > pack_bytes:
            self._close_pack()
            self._pack_id = self._next_number()
            path = blob_file_path(self._data_file, self._pack_id)
            self._pack, self._pack_bytes = self._store.open_writer(path), 0
        position = self._pack_bytes
        self._pack.write(data)
        self._pack_bytes += len(data)
        self.size_bytes += len(data)
        return self._pack_id, position

    def _close_pack(self) -> None:
        pack, self._pack = self._pack, None
        if pack is not None:
            with pack:
                pass

    def _next_number(self) -> int:
        self._num_files += 1
        return self._num_files

    def _delete(self) -> None:
        """Delete all side files; best effort."""
        if self._pack is not None:
            with suppress(OSError, LanceStreamError):
                self._pack.abort()
        for number in range(1, self._num_files + 1):
            with suppress(OSError, LanceStreamError):
                self._store.delete(blob_file_path(self._data_file, number))


def _bytes_of(array: pa.Array, rows: npt.NDArray[np.int64]) -> Iterator[memoryview]:
    """Yield some values of a large_binary array, without copies."""
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset :]
    data = memoryview(array.buffers()[2])
    for row in rows.tolist():
        yield data[int(offsets[row]) : int(offsets[row + 1])]
