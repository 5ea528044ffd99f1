"""JSON columns in expressions: their nulls can be tested, and nothing else.

Users see JSON as text, but an expression is evaluated on what the table stores, which is binary
JSON. Its text would have to be decoded for each row, and bytes are never a right answer.

    j IS NULL    j IS NOT NULL    isnull(j)    isnotnull(j)    size(list_of_json)
    s.number     items[0].number  map_of_json['k'] IS NULL     other parts beside JSON
"""

from typing import Final

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.expressions import nodes
from lance_stream.expressions.nodes import Node, source_of
from lance_stream.expressions.predicates import spelled_name
from lance_stream.schema.json_columns import has_json, is_json

_BLIND_TO_VALUES: Final = frozenset({"isnull", "isnotnull", "size"})


def check_json_uses(node: Node, schema: pa.Schema) -> None:
    """Raise if an expression uses the value of a JSON column, or of a column that has JSON in it.

    Args:
        node: The expression; its names are spelled as the columns' are.
        schema: The columns as they are stored.

    Raises:
        InvalidInputError: It does.
    """
    if not any(map(has_json, schema)):
        return
    around = [(None, node), *((part, child) for part in node.walk() for child in part.children())]
    for parent, part in around:
        field = _field_of(part, schema)
        if field is None or not has_json(field) or _is_allowed(part, parent):
            continue
        what = "is JSON" if is_json(field) else "has JSON in it"
        raise InvalidInputError(
            f"{source_of(node)[:200]!r} uses {source_of(part)[:200]!r}, which {what}: the table "
            "stores binary JSON, and an expression can only test it by IS NULL or IS NOT NULL. "
            "Read the column, and compare or extract its values in the program"
        )


def _field_of(node: Node, schema: pa.Schema) -> pa.Field | None:
    """Return the column, or the part of one, that a node names; None if it names none."""
    if isinstance(node, nodes.Column):
        return schema.field(node.name)
    if isinstance(node, nodes.Call):
        if node.name != "get":
            return None
        whole = _field_of(node.arguments[0], schema)
    elif isinstance(node, nodes.Part | nodes.Subscript | nodes.Parentheses):
        whole = _field_of(node.operand, schema)
    else:
        return None
    if whole is None or isinstance(node, nodes.Parentheses):
        return whole
    if isinstance(node, nodes.Part):
        return _part_of(whole.type, node.name)
    is_map = pa.types.is_map(whole.type)
    return whole.type.item_field if is_map else getattr(whole.type, "value_field", None)


def _part_of(arrow: pa.DataType, name: str) -> pa.Field | None:
    """Return the part of a struct that a name means, in any case if none is exactly it."""
    parts = list(arrow) if pa.types.is_struct(arrow) else []
    by_name = {part.name: part for part in parts}
    spelled = spelled_name(name, by_name)
    return None if spelled is None else by_name[spelled]


def _is_allowed(node: Node, parent: Node | None) -> bool:
    """Return whether the node above does not use the value, or is a node to check itself."""
    if isinstance(parent, nodes.Is):
        return isinstance(parent.constant, nodes.Null)
    if isinstance(parent, nodes.Call):
        is_list = parent.name == "get" and parent.arguments[0] is node
        return is_list or parent.name in _BLIND_TO_VALUES
    if isinstance(parent, nodes.Subscript):
        return parent.operand is node
    return isinstance(parent, nodes.Part | nodes.Parentheses)
