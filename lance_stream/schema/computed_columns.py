"""Columns that LanceDB computes, and what its refresh needs from other writers.

The declaration is in the metadata of a top-level column, and names other columns by path:

    computed_column                "true"
    computed_column.kind           "sql", or "function": a registered function
    computed_column.expression     of the kind sql: "price * 2"
    computed_column.inputs         JSON list of paths: ["price"]

A refresh fills rows that have no value or whose inputs changed, and trusts the values of all
others. It fails if an input is missing. So other writers leave such a column without values, and
its inputs in place, as LanceDB itself does.

Source:  lancedb, rust/lancedb/src/table/computed_columns.rs; experiments with lancedb 0.40.
Differs: LanceDB finds the inputs in the expression; we trust the list that it has stored. It
         refuses upserts and updates of tables with registered functions, which only its service
         refreshes; here, their columns are stale until it does.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.schema.column_paths import split_path
from lance_stream.schema.fields import Field, Schema

DECLARED: Final = "computed_column"
INPUTS: Final = "computed_column.inputs"
_PREFIXES: Final = ("computed_column.", "computed_refresh.")
"""Of the keys of a declaration, and of what a refresh remembers."""


def check_not_computed(names: Iterable[str], table: pa.Schema) -> None:
    """Raise if a user's rows have values for a column that LanceDB computes.

    Args:
        names: The columns of the rows.
        table: The table's columns.

    Raises:
        InvalidInputError: They have; the message names the column.
    """
    computed = {field.name for field in table if _is_declared(field.metadata or {})}
    for name in names:
        if name in computed:
            raise InvalidInputError(
                f"the column {name!r} is computed by LanceDB, whose refresh would take a stored "
                "value for its own. Leave the column out of the rows and run "
                f"table.refresh_column({name!r}) in LanceDB afterwards; or drop it first"
            )


def check_declarations_hold(before: Schema | None, after: Schema) -> None:
    """Raise unless LanceDB can refresh the computed columns of a version after a change of columns.

    Args:
        before: The columns of the version; None for a new table.
        after: Those of the next one.

    Raises:
        InvalidInputError: A column that stays would lose its declaration, its type or one of its
            inputs; or one would be declared, which is up to LanceDB. The message names the column.
    """
    if before is not None and before.fields == after.fields:
        return
    declared = {} if before is None else {field.id: field for field in _declared(before)}
    remaining = {field.id: field for field in after.fields}
    for field in _declared(after):
        if field.id not in declared:
            raise InvalidInputError(_reason_against_declaring(field, declared.values()))
    for field in declared.values():
        new = remaining.get(field.id)
        if new is None:
            continue
        if _declaration(new.metadata) != _declaration(field.metadata) or _parts(new) != _parts(
            field
        ):
            raise InvalidInputError(
                f"the column {field.name!r} is computed by LanceDB: neither its type nor its "
                f"metadata {DECLARED}* can change. Drop it, and declare it again there"
            )
        _check_inputs(field, before, remaining)


def _check_inputs(computed: Field, before: Schema | None, remaining: Mapping[int, Field]) -> None:
    inputs = _inputs(computed)
    for old in () if before is None else before.fields:
        new = remaining.get(old.id)
        same = new is not None and new.name == old.name and {*_parts(old)} <= {*_parts(new)}
        if not same and old.id != computed.id and (inputs is None or old.name in inputs):
            raise InvalidInputError(
                f"the column {old.name!r} cannot be dropped, renamed or cast: LanceDB computes the "
                f"column {computed.name!r} from it. Drop {computed.name!r} first, and declare it "
                "again there afterwards"
            )


def _reason_against_declaring(field: Field, declared: Iterable[Field]) -> str:
    if any(field.name == other.name for other in declared):
        return (
            f"the column {field.name!r} is computed by LanceDB: its type cannot change. Drop it, "
            "and declare it again there"
        )
    return (
        f"the column {field.name!r} is declared as computed, by metadata {DECLARED}*: only LanceDB "
        "can declare it, because its refresh would take stored values for its own. Remove these "
        "entries (pyarrow: field.remove_metadata()) to store the values as they are"
    )


def _declared(schema: Schema) -> list[Field]:
    return [field for field in schema.fields if _declaration(field.metadata)]


def _is_declared(metadata: Mapping[bytes, bytes]) -> bool:
    return metadata.get(DECLARED.encode()) == b"true"


def _declaration(metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        key: value
        for key, value in metadata.items()
        if key == DECLARED or key.startswith(_PREFIXES)
    }


def _parts(field: Field) -> list[tuple[int, str, str]]:
    """Return what distinguishes the type of a column, and the names in it, from others."""
    column, *parts = field.walk()
    names = ((part.id, part.logical_type, part.name) for part in parts)
    return [(column.id, column.logical_type, ""), *names]


def _inputs(field: Field) -> set[str] | None:
    """Return the columns that a computed column reads; None if that is unknown."""
    try:
        paths = json.loads(field.metadata.get(INPUTS, b"").decode())
        return {split_path(path)[0] for path in paths}
    except (ValueError, AttributeError, TypeError):
        return None
