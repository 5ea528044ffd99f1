"""Verifies the values of a version: every page of every column is decoded.

`verify` reads the metadata of data files only; this reads all their bytes, as a scan would, but
column by column, so that a finding names the column and the fragment, and does not hide findings in
others.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pyarrow as pa

from lance_stream.errors import BadDataError, NotFoundError, UnsupportedFeatureError
from lance_stream.read.fragment import FragmentReader
from lance_stream.read.scan import plan_scan
from lance_stream.read.units import WorkUnit
from lance_stream.schema.types.json_columns import with_text
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import decode_fragment


def invalid_values(
    table: TableVersion, watch: Callable[[float], object] = lambda _share: None
) -> Iterator[tuple[str, str]]:
    """Yield where values of a version cannot be decoded, or are not what its schema allows.

    Args:
        table: The version; all its data files are read, blobs included.
        watch: Called with the share of columns and fragments that have been read, from 0 to 1.

    Yields:
        The fragment and column, and what is wrong.
    """
    live = {fragment.id: table.num_live_rows(fragment) for fragment in table.manifest.fragments}
    num_fields = len(table.schema.fields)
    for number, field in enumerate(table.schema.fields):
        num_read = dict.fromkeys(live, 0)
        units = list(plan_scan(table, [field.name]))
        for index, unit in enumerate(units):
            watch((number + index / len(units)) / num_fields)
            fragment = decode_fragment(unit.fragment).id
            where = f"fragment {fragment}, column {field.name!r}"
            try:
                num_read[fragment] += _num_rows(unit, nullable=field.nullable)
            except (BadDataError, NotFoundError, pa.ArrowInvalid) as error:
                notes = getattr(error, "__notes__", [])
                yield ", ".join([where, *notes]), str(error)
                num_read[fragment] = live[fragment]
        for fragment, num_rows in num_read.items():
            if num_rows != live[fragment]:
                yield (
                    f"fragment {fragment}, column {field.name!r}",
                    f"it has {num_rows} live values, but the fragment {live[fragment]} live rows",
                )


def _num_rows(unit: WorkUnit, *, nullable: bool) -> int:
    """Read a unit of one column, and return its number of rows.

    Raises:
        BadDataError: A page is damaged.
        ArrowInvalid: A value is not of its type, such as text that is not UTF-8.
    """
    reader = FragmentReader(unit)
    num_rows = 0
    for selection in reader.selections():
        batch = reader.read(selection)
        batch.validate(full=True)
        if not nullable and batch.column(0).null_count:
            raise pa.ArrowInvalid(f"{batch.column(0).null_count} nulls in a non-nullable column")
        with suppress(UnsupportedFeatureError):  # valid, though JSON has no such value
            with_text(batch)
        num_rows += batch.num_rows
    return num_rows
