"""Scans a version: reads its live rows in order, or those that match a filter.

A scan is planned as work units, one per fragment. In one process, threads read them ahead of the
consumer (`prefetch.read_ahead`); with Spark, workers read them (`spark.source.table_reader`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from lance_stream.arguments import as_count, as_flag, as_names
from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import (
    Expression,
    parse_expression,
    parse_predicate,
)
from lance_stream.read.skipping.lineage_skipping import fragments_that_may_match, lineage_columns_of
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import (
    BYTES,
    READABLE_SYSTEM_COLUMNS,
    WorkUnit,
    check_blob_handling,
    output_schema,
    projected,
    unit_of,
)
from lance_stream.schema.arrow_schemas import to_arrow
from lance_stream.schema.projections import project
from lance_stream.schema.system_columns import (
    ROW_ADDRESS,
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.snapshot.table_version import TableVersion

if TYPE_CHECKING:  # imported only for tables with indices
    from lance_stream.read.indices.candidates import Candidates

_ROW_VERSIONS: Final = frozenset({ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION})


def plan_scan(
    table: TableVersion,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    *,
    system_columns: Sequence[str] = (),
    batch_size: int | None = None,
    blob_handling: str = BYTES,
) -> list[WorkUnit]:
    """Plan the work units that read the live rows of a version, in order.

    Args:
        table: The version.
        columns: Names or paths; None for all columns.
        filter: A SQL expression; rows that do not match are skipped.
        system_columns: Names of `READABLE_SYSTEM_COLUMNS`, to add after the columns.
        batch_size: The maximum number of rows in a batch; None for batches of about 32 MB.
        blob_handling: `units.BYTES` or `units.DESCRIPTORS`.

    Raises:
        NotFoundError: A column does not exist.
        InvalidInputError: The filter is invalid, a number is out of range, or no column is
            requested.
    """
    names = names_of(table, columns)
    if not names and not system_columns:
        raise InvalidInputError("a scan needs at least one column; use count_rows to count rows")
    if batch_size is not None:
        batch_size = as_count(batch_size, "a batch has")
    project(table.schema, names)
    if filter is not None:
        filter = check_filter(table, filter)
    return units_of(
        table,
        filter,
        columns=names,
        system_columns=tuple(system_columns),
        batch_size=batch_size,
        blob_handling=blob_handling,
    )


def units_of(table: TableVersion, filter: str | None, **options: Any) -> list[WorkUnit]:
    """Plan the work units that read the rows that match a filter, in order.

    Fragments without matches according to the manifest are skipped (see `lineage_skipping`); no
    file is opened for that. An index on a column of the filter may exclude rows of the others (see
    `indices.candidates`); indices are opened only if they can serve the filter.

    Args:
        table: The version.
        filter: A SQL expression that has been checked; None for all rows.
        options: Attributes of `WorkUnit` that state what to read.
    """
    fragments = table.manifest.fragments
    if filter is None:
        return [unit_of(table, index, **options) for index in range(len(fragments))]
    predicate = parse_expression(filter)
    parts: list[tuple[int, int, int | None]]
    if lineage_columns_of(predicate):
        parts = fragments_that_may_match(
            predicate, fragments, has_stable_row_ids=table.has_stable_row_ids
        )
    else:
        parts = [(index, 0, None) for index in range(len(fragments))]
    candidates = _candidate_rows(table, predicate)
    units: list[WorkUnit] = []
    for index, start, stop in parts:
        if candidates is None or not candidates.covered[index]:
            units.append(unit_of(table, index, filter=filter, start=start, stop=stop, **options))
            continue
        offsets = candidates.within(index, start, stop)
        if len(offsets):
            rows = offsets.astype(np.uint32)
            units.append(unit_of(table, index, filter=filter, offsets=rows, **options))
    return units


def _candidate_rows(table: TableVersion, predicate: Expression) -> "Candidates | None":
    if table.manifest.index_section is None:
        return None
    from lance_stream.read.indices.candidates import candidate_rows  # few tables have indices

    return candidate_rows(table, predicate)


def check_filter(table: TableVersion, filter: str) -> str:
    """Validate a filter and return it with the columns' exact names and a fixed current time.

    Raises:
        NotFoundError: A column does not exist.
        InvalidInputError: The filter is invalid, or uses row versions in a table that does not
            record them.
    """
    arrow = to_arrow(table.schema)
    for name in READABLE_SYSTEM_COLUMNS:
        if name not in arrow.names:
            arrow = arrow.append(pa.field(name, pa.uint64()))
    predicate = parse_predicate(filter, arrow)
    if table.has_stable_row_ids:
        return predicate.text
    for path in predicate.paths:
        if path[0] in _ROW_VERSIONS:
            raise InvalidInputError(
                f"the filter names {path[0]!r}, but {table.uri} has no stable row ids and so does "
                "not record row versions. Assign row ids with "
                "lance_stream.migrate_to_stable_row_ids(uri): row versions are recorded from then "
                "on"
            )
    return predicate.text


def scan(
    table: TableVersion,
    columns: Sequence[str] | None = None,
    filter: str | None = None,
    *,
    with_row_id: bool = False,
    with_row_address: bool = False,
    with_row_versions: bool = False,
    batch_size: int | None = None,
    blob_handling: str = BYTES,
) -> pa.RecordBatchReader:
    """Return the live rows of a version; see `Dataset.scan`."""
    has_versions = as_flag("with_row_versions", with_row_versions)
    options = {
        ROW_ID: as_flag("with_row_id", with_row_id),
        ROW_ADDRESS: as_flag("with_row_address", with_row_address),
        ROW_CREATED_AT_VERSION: has_versions,
        ROW_LAST_UPDATED_AT_VERSION: has_versions,
    }
    system_columns = tuple(name for name in READABLE_SYSTEM_COLUMNS if options[name])
    check_blob_handling(blob_handling)
    names = names_of(table, columns)
    units = plan_scan(
        table,
        names,
        filter,
        system_columns=system_columns,
        batch_size=batch_size,
        blob_handling=blob_handling,
    )
    schema = projected(table.schema, names, blob_handling)
    arrow = output_schema(schema, system_columns)
    return pa.RecordBatchReader.from_batches(arrow, read_units(units))


def count_rows(table: TableVersion, filter: str | None = None) -> int:
    """Return the number of live rows of a version, or of those that match a filter.

    Without a filter, no data file is opened. Deletion files are read only if the manifest does not
    state their number of rows.
    """
    if filter is None:
        return int(table.row_counts.live.sum())
    filter = check_filter(table, filter)
    units = units_of(table, filter, columns=(), system_columns=(ROW_ADDRESS,))
    return sum(batch.num_rows for batch in read_units(units))


def names_of(table: TableVersion, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the requested columns; all top-level columns for None.

    Raises:
        InvalidInputError: `columns` is a string instead of a sequence of names.
    """
    if columns is None:
        return tuple(table.schema.names)
    if isinstance(columns, str):
        raise InvalidInputError(f"columns must be a list of names: [{columns!r}], not {columns!r}")
    return as_names(columns, "columns")
