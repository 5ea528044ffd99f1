"""Writes a 0.1 file: batches of one size, a page for each of their columns, then the tables.

All batches of a file except the last have the same number of rows, on which the reference relies.
The number follows from the width of the first rows: enough for about a page's bytes, and at most
8,192, so that bounds stay narrow.

Source: files that the reference wrote.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import Buffer
from lance_stream.errors import InvalidInputError
from lance_stream.file.v0_1.file_tail import (
    MAX_ROWS,
    DictionaryLocation,
    FileTail,
    StatisticsLocation,
    encode_tail,
)
from lance_stream.file.v0_1.page_table import encode_page_table
from lance_stream.file.v0_1.statistics import (
    BatchStatistics,
    fields_with_bounds,
    statistics_array,
    statistics_fields,
)
from lance_stream.file.v0_1.write_fields import (
    AppendedPages,
    Dictionaries,
    append_field,
    append_values,
)
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.fields import Schema
from lance_stream.schema.types.dictionaries import encode_dictionary

MAX_BATCH_ROWS: Final = 8192


class V01FileWriter:
    """Produces the bytes of one 0.1 file.

    Args:
        schema: The columns, with field ids.
        dictionaries: The table's dictionaries, by field id; a column without one gets its own.
        max_page_bytes: The approximate maximum of bytes in a batch.
    """

    def __init__(
        self, schema: Schema, dictionaries: Mapping[int, pa.Array], max_page_bytes: int
    ) -> None:
        self._schema = schema
        self._dictionaries = Dictionaries(dictionaries)
        self._max_page_bytes = max_page_bytes
        self._batch_rows = 0
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._batch_offsets = [0]
        self._appended = AppendedPages()

    def write(self, batch: pa.RecordBatch) -> list[Buffer]:
        """Add a batch, and return the bytes to append, of batches that became full.

        Raises:
            InvalidInputError: Files of version 0.1 do not support the values, or this many rows.
        """
        if self._batch_offsets[-1] + self._waiting_rows + batch.num_rows > MAX_ROWS:
            raise InvalidInputError(
                f"a file of version 0.1 can have at most {MAX_ROWS} rows; start another file"
            )
        if not batch.num_rows:
            return []
        if not self._batch_rows:
            bytes_per_row = max(1, batch.nbytes // batch.num_rows)
            self._batch_rows = max(1, min(MAX_BATCH_ROWS, self._max_page_bytes // bytes_per_row))
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        while self._waiting_rows >= self._batch_rows:
            self._append_batch(self._batch_rows)
        return self._appended.take_buffers()

    def finish(self) -> tuple[list[Buffer], int, int]:
        """Return the last bytes to append, the number of rows and the size of the file."""
        if self._waiting_rows:
            self._append_batch(self._waiting_rows)
        num_batches = len(self._batch_offsets) - 1
        page_table = self._append_page_table(self._appended.pages, num_batches)
        statistics = self._append_statistics()
        tail = FileTail(
            batch_offsets=np.array(self._batch_offsets),
            page_table_start=page_table,
            schema=self._schema,
            dictionaries=self._append_dictionaries(),
            statistics=statistics,
        )
        self._appended.add(encode_tail(tail, self._appended.position))
        return self._appended.take_buffers(), self._batch_offsets[-1], self._appended.position

    def _append_batch(self, num_rows: int) -> None:
        batches = list(self._take(num_rows))
        for index, field in enumerate(self._schema.fields):
            arrays = [batch.column(index) for batch in batches]
            array = arrays[0] if len(arrays) == 1 else _joined(arrays)
            append_field(field, array, self._appended, self._dictionaries)
        self._batch_offsets.append(self._batch_offsets[-1] + num_rows)

    def _take(self, num_rows: int) -> Iterator[pa.RecordBatch]:
        self._waiting_rows -= num_rows
        while num_rows:
            first = self._waiting.pop(0)
            if first.num_rows > num_rows:
                self._waiting.insert(0, first.slice(num_rows))
                first = first.slice(0, num_rows)
            num_rows -= first.num_rows
            yield first

    def _append_page_table(
        self, pages: Mapping[int, list[tuple[int, int]]], num_batches: int
    ) -> int:
        ids = [field.id for field in self._schema.walk()]
        return self._append_table(pages, min(ids, default=0), max(ids, default=-1), num_batches)

    def _append_table(
        self,
        pages: Mapping[int, list[tuple[int, int]]],
        first_id: int,
        last_id: int,
        num_batches: int,
    ) -> int:
        absent = np.zeros((num_batches, 2), np.int64)
        columns: list[npt.NDArray[np.int64]] = [
            np.array(pages[field_id], np.int64).reshape(-1, 2) if field_id in pages else absent
            for field_id in range(first_id, last_id + 1)
        ]
        return self._appended.add(encode_page_table(columns))

    def _append_statistics(self) -> StatisticsLocation | None:
        batch_statistics = self._appended.statistics
        fields = [
            field
            for field in fields_with_bounds(self._schema.fields)
            if field.id in batch_statistics
        ]
        if not fields:
            return None
        columns = statistics_fields(fields)
        of_bounds = AppendedPages(self._appended.position)
        for field, column in zip(fields, columns, strict=True):
            arrays = _statistics_arrays(field_to_arrow(field).type, batch_statistics[field.id])
            for part, array in zip(column.children, arrays, strict=True):
                append_values(part.id, array, of_bounds)
        for buffer in of_bounds.take_buffers():
            self._appended.add(buffer)
        last_id = columns[-1].children[-1].id
        return StatisticsLocation(columns, self._append_table(of_bounds.pages, 0, last_id, 1))

    def _append_dictionaries(self) -> dict[int, DictionaryLocation]:
        positions: dict[int, DictionaryLocation] = {}
        for field in self._schema.walk():
            if not field.logical_type.startswith("dict:"):
                continue
            values = self._dictionaries.values.get(field.id)
            if values is None:
                values = pa.array([], field_to_arrow(field).type.value_type)
            data, start = encode_dictionary(values, self._appended.position)
            self._appended.add(data)
            positions[field.id] = DictionaryLocation(start, len(values))
        return positions


def _statistics_arrays(
    arrow: pa.DataType, batch_statistics: list[BatchStatistics]
) -> list[pa.Array]:
    return [
        pa.array([statistics.null_count for statistics in batch_statistics], pa.int64()),
        statistics_array(arrow, [statistics.minimum for statistics in batch_statistics]),
        statistics_array(arrow, [statistics.maximum for statistics in batch_statistics]),
    ]


def _joined(arrays: list[pa.Array]) -> pa.Array:
    if not pa.types.is_dictionary(arrays[0].type):
        return pa.concat_arrays(arrays)
    try:
        return pa.concat_arrays(pa.chunked_array(arrays).unify_dictionaries().chunks)
    except pa.ArrowInvalid as error:
        raise InvalidInputError(
            f"a {arrays[0].type} has more distinct values than its indices can represent: {error}"
        ) from None
