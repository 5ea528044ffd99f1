"""JSON columns in expressions: the operations that they support.

The table stores JSON in binary, and expressions are evaluated on the stored values. Users see JSON
as text, so a result that depends on the bytes would be wrong. Only these operations are allowed:

    get_json_object(j, '$.a.b[0]')          the text of a part, by its path
    j IS NULL    j IS NOT NULL    isnull(j)    isnotnull(j)    size(list_of_json)
    s.number     items[0].number  map_of_json['k'] IS NULL     other fields next to JSON
"""

from typing import Final

import pyarrow as pa

from lance_stream.errors import InvalidInputError
from lance_stream.expressions import nodes
from lance_stream.expressions.evaluation.rules import evaluate_node
from lance_stream.expressions.nodes import Node, refuse, source_of
from lance_stream.schema.column_paths import resolve_name
from lance_stream.schema.types.json_columns import has_json, is_json

EXTRACTS: Final = "get_json_object"

_BLIND_TO_VALUES: Final = frozenset({"get", "isnull", "isnotnull", "size"})


def check_json_uses(node: Node, schema: pa.Schema, no_rows: pa.RecordBatch) -> None:
    """Raise if an expression uses JSON as bytes, or bytes as JSON.

    Args:
        node: The expression, with the columns' spelling of their names.
        schema: The columns as they are stored.
        no_rows: A batch without rows, with the columns of the expression.

    Raises:
        InvalidInputError: It uses the value of a JSON column, or of a column that contains JSON,
            other than with `get_json_object`, or extracts JSON from other bytes.
    """
    for call in node.find_all(nodes.Call):
        if call.name == EXTRACTS:
            _check_extraction(call, schema, no_rows)
    if not any(map(has_json, schema)):
        return
    pairs = [(None, node), *((part, child) for part in node.walk() for child in part.children())]
    for parent, part in pairs:
        field = _field_of(part, schema)
        if field is None or not has_json(field) or _is_allowed(part, parent, field):
            continue
        what = "is JSON" if is_json(field) else "contains JSON"
        raise InvalidInputError(
            f"{source_of(node)[:200]!r} uses {source_of(part)[:200]!r}, which {what}: the table "
            "stores binary JSON, so an expression can only test it with IS NULL and IS NOT NULL, "
            f"or extract parts of a JSON column as text with {EXTRACTS}(column, '$.name[0]')"
        )


def _check_extraction(call: nodes.Call, schema: pa.Schema, no_rows: pa.RecordBatch) -> None:
    document = call.arguments[0]
    field = _field_of(document, schema)
    if field is None or not is_json(field):
        arrow = evaluate_node(document, no_rows).type
        if pa.types.is_large_binary(arrow):
            raise refuse(call, f"extracts JSON from {arrow}, which is not a JSON column")


def _field_of(node: Node, schema: pa.Schema) -> pa.Field | None:
    """Return the column or nested field that a node names; None if it names none."""
    if isinstance(node, nodes.Column):
        return schema.field(node.name)
    if isinstance(node, nodes.Call):
        if node.name != "get":
            return None
        whole = _field_of(node.arguments[0], schema)
    elif isinstance(node, nodes.FieldAccess | nodes.Subscript | nodes.Parentheses):
        whole = _field_of(node.operand, schema)
    else:
        return None
    if whole is None or isinstance(node, nodes.Parentheses):
        return whole
    if isinstance(node, nodes.FieldAccess):
        return _part_of(whole.type, node.name)
    is_map = pa.types.is_map(whole.type)
    return whole.type.item_field if is_map else getattr(whole.type, "value_field", None)


def _part_of(arrow: pa.DataType, name: str) -> pa.Field | None:
    """Return the field of a struct with a name; case does not matter if only one field matches."""
    parts = list(arrow) if pa.types.is_struct(arrow) else []
    by_name = {part.name: part for part in parts}
    spelled = resolve_name(name, by_name)
    return None if spelled is None else by_name[spelled]


def _is_allowed(node: Node, parent: Node | None, field: pa.Field) -> bool:
    """Return whether the parent does not use the bytes, or is itself checked."""
    if isinstance(parent, nodes.Is):
        return isinstance(parent.constant, nodes.Null)
    if isinstance(parent, nodes.Call):  # whose second argument is a number or a literal
        return parent.name in _BLIND_TO_VALUES or (parent.name == EXTRACTS and is_json(field))
    if isinstance(parent, nodes.Subscript):
        return parent.operand is node
    return isinstance(parent, nodes.FieldAccess | nodes.Parentheses)
