"""Reads the rows of a query, and prints them."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.cli import output
from lance_stream.cli.read.writers import Writer
from lance_stream.dataset import Dataset
from lance_stream.errors import InvalidInputError

_FEW_ROWS: Final = 10_000

_DIRECTIONS: Final = {"asc": "ascending", "desc": "descending"}


@dataclass(frozen=True)
class Query:
    """The rows to print.

    Attributes:
        columns: Names of columns, or paths of struct fields; None for all.
        where: A condition that selects rows; None for all.
        order_by: Columns to sort by, as in SQL; None for the stored order.
        limit: The maximum number of rows; None for all.
        with_row_id: Whether to add the row ids.
    """

    columns: list[str] | None
    where: str | None
    order_by: str | None = None
    limit: int | None = None
    with_row_id: bool = False


def print_rows(ds: Dataset, query: Query, writer: Writer) -> None:
    """Print the rows of a version that a query selects.

    Raises:
        InvalidInputError: The condition or the order is invalid.
        NotFoundError: A column does not exist.
    """
    keys = _parse_order(query.order_by)
    added = _unselected(keys, query.columns)
    columns = None if query.columns is None else [*query.columns, *added]
    small = query.limit is not None and query.limit <= _FEW_ROWS and not keys
    reader = ds.scan(
        columns,
        query.where,
        with_row_id=query.with_row_id,
        batch_size=query.limit if small else None,
        blob_handling="descriptors",
    )
    with reader:
        batches = iter(reader)
        if keys:
            batches = iter(_sorted(reader, keys, query.limit).drop_columns(added).to_batches())
        schema = pa.schema([field for field in reader.schema if field.name not in added])
        writer.begin(schema)
        if small:
            batches = iter(_joined(batches, query.limit or 0))
        for batch in _limited(batches, query.limit):
            writer.write(batch)
    writer.close()
    sys.stdout.flush()


def print_count(ds: Dataset, query: Query, *, as_json: bool) -> None:
    """Print the number of rows that a query selects."""
    number = ds.count_rows(query.where)
    if query.limit is not None:
        number = min(number, query.limit)
    print(output.to_json({"num_rows": number}) if as_json else number)


def _joined(batches: Iterator[pa.RecordBatch], limit: int) -> list[pa.RecordBatch]:
    """Return a few rows as one batch, so that their table has one width."""
    parts = list(_limited(batches, limit))
    joined: list[pa.RecordBatch] = (
        pa.Table.from_batches(parts).combine_chunks().to_batches() if parts else []
    )
    return joined


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    num_remaining = limit
    for batch in batches:
        yield batch if num_remaining is None else batch.slice(0, num_remaining)
        if num_remaining is not None:
            num_remaining -= min(num_remaining, batch.num_rows)
            if not num_remaining:
                return


def _parse_order(text: str | None) -> list[tuple[str, str]]:
    """Parse the columns and directions of an ORDER BY clause.

    Raises:
        InvalidInputError: The clause is invalid.
    """
    keys = []
    for part in text.split(",") if text else ():
        name, _, last = part.strip().rpartition(" ")
        direction = _DIRECTIONS.get(last.lower()) if name else None
        if not part.strip():
            raise InvalidInputError(
                f"--order-by must be a list of columns such as 'price desc, id', not {text!r}"
            )
        keys.append((name.strip(), direction) if direction else (part.strip(), "ascending"))
    return keys


def _unselected(keys: list[tuple[str, str]], columns: list[str] | None) -> list[str]:
    """Return the sort columns that are not printed."""
    names = dict.fromkeys(name for name, _ in keys)
    return [] if columns is None else [name for name in names if name not in columns]


def _sorted(
    reader: pa.RecordBatchReader, keys: list[tuple[str, str]], limit: int | None
) -> pa.Table:
    """Sort the rows, and return all of them or the first ones; only these are kept in memory.

    Raises:
        InvalidInputError: The rows cannot be sorted by one of the columns.
    """
    missing = next((name for name, _ in keys if name not in reader.schema.names), None)
    if missing is not None:
        raise InvalidInputError(
            f"--order-by sorts by columns of the result, which has no column {missing!r}; its "
            f"columns are {', '.join(reader.schema.names)}"
        )
    if limit is None:
        return _in_order(reader.read_all(), keys)
    first_rows = reader.schema.empty_table()
    for batch in reader:
        both = pa.concat_tables([first_rows, pa.table(batch)])
        first_rows = _in_order(both, keys).slice(0, limit).combine_chunks()
    return first_rows


def _in_order(table: pa.Table, keys: list[tuple[str, str]]) -> pa.Table:
    columns = {str(position): _decoded(table[name]) for position, (name, _) in enumerate(keys)}
    order = [(str(position), direction) for position, (_, direction) in enumerate(keys)]
    try:
        return table.take(pc.sort_indices(pa.table(columns), sort_keys=order))
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid) as error:
        raise InvalidInputError(f"--order-by cannot sort by these columns: {error}") from error


def _decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    is_encoded = pa.types.is_dictionary(column.type)
    return column.cast(column.type.value_type) if is_encoded else column
