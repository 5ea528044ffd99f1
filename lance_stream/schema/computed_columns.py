"""Columns that LanceDB computes, and the requirements of its refresh on other writers.

The declaration is in the metadata of a top-level column, and names other columns by path:

    computed_column                "true"
    computed_column.kind           "sql", or "function": a registered function
    computed_column.expression     of the kind sql: "price * 2"
    computed_column.inputs         JSON list of paths: ["price"]

A refresh computes rows that have no value or whose inputs changed, and trusts the values of all
others. It fails if an input is missing. So other writers must not write values of such a column,
nor drop its inputs; LanceDB itself does neither.

Source:  lancedb, rust/lancedb/src/table/computed_columns.rs; experiments with lancedb 0.40.
Differs: LanceDB parses the inputs from the expression; we trust the list that it has stored. It
         refuses upserts and updates of tables with registered functions, which only its service
         refreshes; we accept them, and their columns are stale until the next refresh.
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
PREFIXES: Final = ("computed_column.", "computed_refresh.")
"""The prefixes of the keys of a declaration, and of the state of a refresh."""


def check_not_computed(names: Iterable[str], table: pa.Schema) -> None:
    """Raise if a user's rows have values for a column that LanceDB computes.

    Args:
        names: The columns of the rows.
        table: The table's columns.

    Raises:
        InvalidInputError: The rows have such a column; the message names it.
    """
    computed = {field.name for field in table if _is_declared(field.metadata or {})}
    for name in names:
        if name in computed:
            raise InvalidInputError(
                f"the column {name!r} is computed by LanceDB, whose refresh would treat a stored "
                "value as computed. Omit the column from the rows and run "
                f"table.refresh_column({name!r}) in LanceDB afterwards; or drop it first"
            )


def check_declarations_hold(before: Schema | None, after: Schema) -> None:
    """Raise unless LanceDB can still refresh computed columns after a change of columns.

    Args:
        before: The columns of a version; None for a new table.
        after: The columns of the next version.

    Raises:
        InvalidInputError: The declaration, the type or an input of a computed column would change;
            or a column would be declared as computed, which only LanceDB can do. The message names
            the column.
    """
    if before is not None and before.fields == after.fields:
        return
    declared = {} if before is None else {field.id: field for field in _declared(before)}
    remaining = {field.id: field for field in after.fields}
    for field in _declared(after):
        if field.id not in declared:
            raise InvalidInputError(_new_declaration_problem(field, declared.values()))
    for field in declared.values():
        new = remaining.get(field.id)
        if new is None:
            continue
        same_declaration = _declaration(new.metadata) == _declaration(field.metadata)
        if not same_declaration or _type_signature(new) != _type_signature(field):
            raise InvalidInputError(
                f"the column {field.name!r} is computed by LanceDB: neither its type nor its "
                f"metadata {DECLARED}* can change. Drop the column, and declare it again in LanceDB"
            )
        _check_inputs(field, before, remaining)


def _check_inputs(computed: Field, before: Schema | None, remaining: Mapping[int, Field]) -> None:
    inputs = _inputs(computed)
    for old in () if before is None else before.fields:
        new = remaining.get(old.id)
        is_unchanged = (
            new is not None
            and new.name == old.name
            and {*_type_signature(old)} <= {*_type_signature(new)}
        )
        if not is_unchanged and old.id != computed.id and (inputs is None or old.name in inputs):
            raise InvalidInputError(
                f"the column {old.name!r} cannot be dropped, renamed or cast: LanceDB computes the "
                f"column {computed.name!r} from it. Drop {computed.name!r} first, and declare it "
                "again in LanceDB afterwards"
            )


def _new_declaration_problem(field: Field, declared: Iterable[Field]) -> str:
    if any(field.name == other.name for other in declared):
        return (
            f"the column {field.name!r} is computed by LanceDB: its type cannot change. Drop the "
            "column, and declare it again in LanceDB"
        )
    return (
        f"the column {field.name!r} is declared as computed, by metadata {DECLARED}*: only LanceDB "
        "can declare it, because its refresh would treat stored values as computed. Remove these "
        "entries (pyarrow: field.remove_metadata()) to store the values as they are"
    )


def _declared(schema: Schema) -> list[Field]:
    return [field for field in schema.fields if _declaration(field.metadata)]


def _is_declared(metadata: Mapping[bytes, bytes]) -> bool:
    return metadata.get(DECLARED.encode()) == b"true"


def _declaration(metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    return {
        key: value for key, value in metadata.items() if key == DECLARED or key.startswith(PREFIXES)
    }


def _type_signature(field: Field) -> list[tuple[int, str, str]]:
    """Return the id and type of a column, and the id, type and name of each part of it."""
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
