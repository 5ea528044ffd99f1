"""Prints rows while they are read: as a table for people, as JSON lines, or as an Arrow stream."""

import sys
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from lance_stream.cli import output
from lance_stream.cli.read.values import rows_of
from lance_stream.cli.tables import aligned, bold, width_of_terminal
from lance_stream.errors import InvalidInputError

_ROWS_AT_ONCE: Final = 1000

_WIDTHS: Final = {"_change_type": len("update_postimage")}
"""Minimum widths of columns, so that later rows fit."""

_FIRST: Final = ("_change_type", "_commit_version")
_LAST: Final = ("_commit_timestamp", "_row_created_at_version", "_row_last_updated_at_version")
"""If a terminal is too narrow, columns of `_FIRST` are omitted last, and those of `_LAST` first."""

_GAP: Final = 2
_LONGEST: Final = 400


class Writer:
    """Prints rows."""

    def begin(self, schema: pa.Schema) -> None:
        """Set the schema of the following rows."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish the output."""


class JsonWriter(Writer):
    """One object per line."""

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        for part in _parts(batch):
            for row in rows_of(part):
                print(output.to_json(row))


class TableWriter(Writer):
    """A text table with one header; the first rows determine the column widths.

    On a terminal, columns that do not fit are omitted and named.
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._all: list[int] = []
        self._visible: list[int] = []
        self._widths: list[int] = []
        self._right: list[bool] = []

    def write(self, batch: pa.RecordBatch) -> None:
        """Print rows."""
        terminal = width_of_terminal()
        for part in _parts(batch):
            rows = [list(row.values()) for row in rows_of(part)]
            widths = self._widths_for(part.schema, rows, terminal)
            if self._names != part.schema.names or (terminal is not None and widths != self._all):
                self._start(part.schema, widths, terminal)
            for row in rows:
                pairs = zip(self._visible, self._widths, strict=True)
                self._print(
                    [
                        output.cell(row[index], output.MAX_WIDTH if terminal is None else width)
                        for index, width in pairs
                    ]
                )

    def close(self) -> None:
        """Print a note if there were no rows."""
        if not self._names and width_of_terminal() is not None:
            print("(no rows)")

    def _widths_for(
        self, schema: pa.Schema, rows: Sequence[Sequence[object]], terminal: int | None
    ) -> list[int]:
        """Return the width that each column needs, at least its current width."""
        columns = list(zip(*rows, strict=True))
        widths_so_far = self._all if self._names == schema.names else [0] * len(schema.names)
        for longest in (_LONGEST, output.MAX_WIDTH) if terminal else (output.MAX_WIDTH,):
            widths = [
                max(
                    min(before, longest),
                    _WIDTHS.get(name, 0),
                    output.num_columns(output.cell(name)),
                    *(output.num_columns(output.cell(value, longest)) for value in column),
                )
                for before, name, column in zip(widths_so_far, schema.names, columns, strict=True)
            ]
            if terminal is None or sum(widths) + _GAP * (len(widths) - 1) <= terminal:
                break
        return widths

    def _start(self, schema: pa.Schema, widths: list[int], terminal: int | None) -> None:
        """Choose the visible columns, and print the header."""
        header = [output.cell(name) for name in schema.names]
        visible = _fitting(schema.names, widths, terminal)
        omitted = [title for index, title in enumerate(header) if index not in visible]
        if omitted and (schema.names, visible) != (self._names, self._visible):
            names = f"{', '.join(omitted[:5])}{', …' if len(omitted) > 5 else ''}"
            number = output.count(len(omitted), "column")
            print(f"({number} omitted: {names}; select with --columns, or print all with --json)")
        self._names, self._all, self._visible = schema.names, widths, visible
        self._widths = [min(widths[index], terminal or widths[index]) for index in visible]
        self._right = [_is_number(schema.field(index).type) for index in visible]
        self._print([header[index] for index in visible], is_header=True)

    def _print(self, cells: Sequence[str], *, is_header: bool = False) -> None:
        triples = zip(cells, self._widths, self._right, strict=True)
        line = output.escaped((" " * _GAP).join(aligned(*triple) for triple in triples).rstrip())
        output.print_drawn((bold(line) if is_header else line) + "\n")


def _fitting(names: Sequence[str], widths: Sequence[int], terminal: int | None) -> list[int]:
    """Return the indices of the columns that fit a terminal, in order; at least one."""
    if terminal is None:
        return list(range(len(names)))

    def rank(index: int) -> int:
        return 0 if names[index] in _FIRST else 2 if names[index] in _LAST else 1

    visible: list[int] = []
    room = terminal + _GAP
    for index in sorted(range(len(names)), key=rank):
        if room >= widths[index] + _GAP or not visible:
            visible.append(index)
            room -= widths[index] + _GAP
    return sorted(visible)


def _is_number(kind: pa.DataType) -> bool:
    tests = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    return any(is_one(kind) for is_one in tests)


class ArrowWriter(Writer):
    """An Arrow IPC stream. Its columns cannot change."""

    def __init__(self) -> None:
        self._schema: pa.Schema | None = None
        self._stream: pa.RecordBatchStreamWriter | None = None

    def begin(self, schema: pa.Schema) -> None:
        """Start the stream; even without rows it has a schema."""
        if self._stream is None:
            if sys.stdout.isatty():
                raise InvalidInputError(
                    "an Arrow stream cannot be printed on a terminal: redirect it to a file or a "
                    "program"
                )
            self._schema = schema
            self._stream = pa.ipc.new_stream(sys.stdout.buffer, schema)
        elif schema != self._schema:
            raise InvalidInputError(
                "the columns of the table changed, but those of an Arrow stream cannot: start "
                "another stream after the last version that was printed"
            )

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        if self._stream is not None:
            self._stream.write_batch(batch)

    def close(self) -> None:
        """End the stream."""
        if self._stream is not None:
            self._stream.close()


WRITERS: Final[dict[str, type[Writer]]] = {
    "table": TableWriter,
    "json": JsonWriter,
    "arrow": ArrowWriter,
}


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    return (batch.slice(start, _ROWS_AT_ONCE) for start in range(0, batch.num_rows, _ROWS_AT_ONCE))
