"""Arrow schemas as trees of fields, and back.

Users see the Arrow schema; the tree is stored. Field ids are not assigned here (see `fields`):
the tree of an Arrow schema has none.

JSON text (arrow.json) is a column of binary JSON (`json_columns`).

A map is one field, below it one struct that is never null (`entries`), below that key and value.

Source:  file.proto, messages Field and Schema.
Differs: The reference drops the name and nullability of a fixed-size list's items and a
         dictionary's order, and turns views into plain types; so do we, because the format cannot
         represent them.
"""

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from lance_stream.arguments import repeated_names
from lance_stream.caches import IdentityCache
from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.schema.blobs import surface_field
from lance_stream.schema.fields import (
    FALSE_SPELLINGS,
    PACKED_KEYS,
    TRUE_SPELLINGS,
    Field,
    Schema,
)
from lance_stream.schema.types import logical_types as names
from lance_stream.schema.types.extension_types import storage_field
from lance_stream.schema.types.json_columns import STORED_NAME, TEXT_NAME

PRIMARY_KEY_METADATA = "lance-schema:unenforced-primary-key"
"""Field metadata that makes a column part of the table's (unenforced) primary key."""

PRIMARY_KEY_POSITION_METADATA = "lance-schema:unenforced-primary-key:position"
"""Field metadata with a column's 1-based position in a key of several columns."""


def from_arrow(schema: pa.Schema) -> Schema:
    """Return the tree of an Arrow schema, without field ids.

    Raises:
        InvalidInputError: The format cannot store a type, or two top-level columns have the same
            name.
    """
    repeated = repeated_names(schema.names)
    if repeated:
        raise InvalidInputError(f"columns must have different names, but {repeated} occur twice")
    fields = tuple(field_from_arrow(field) for field in schema)
    for field in fields:
        _check_nesting(field)
    return Schema(
        fields=fields,
        metadata=metadata_from_arrow(schema.metadata),
    )


def field_from_arrow(arrow: pa.Field) -> Field:
    """Return the tree of one Arrow field, without field ids."""
    arrow = storage_field(arrow)
    metadata = _with_canonical_flags(metadata_from_arrow(arrow.metadata))
    if metadata.get(names.EXTENSION_NAME) == TEXT_NAME.encode() and _is_text(arrow.type):
        arrow = arrow.with_type(pa.large_binary())
        metadata[names.EXTENSION_NAME] = STORED_NAME.encode()
    extension_name = metadata.get(names.EXTENSION_NAME, b"").decode()
    try:
        logical_type, children = _describe(arrow.type, extension_name)
    except InvalidInputError as error:
        error.add_note(f"column: {arrow.name!r}")
        raise
    return Field(
        name=arrow.name,
        logical_type=logical_type,
        nullable=arrow.nullable,
        children=children,
        metadata=metadata,
        extension_name=extension_name,
        primary_key_position=_primary_key_position(arrow.name, metadata),
    )


def _is_text(arrow: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(arrow) or types.is_large_string(arrow) or types.is_string_view(arrow)
    )


def mixes_fixed_size_lists(field: Field) -> bool:
    """Return whether a field nests fixed-size lists of structs in lists or maps, or around them.

    The reference has no encoding for them: it writes some, but cannot read any.
    """

    def visit(field: Field, kinds: frozenset[bool]) -> bool:
        if names.is_fixed_size_list_of_structs(field.logical_type):
            kinds |= {True}
        elif field.logical_type in names.LIST_KINDS or field.logical_type == names.MAP:
            kinds |= {False}
        return len(kinds) > 1 or any(visit(child, kinds) for child in field.children)

    return visit(field, frozenset())


def _check_nesting(top: Field) -> None:
    """Raise if a column's types are nested in a way that no reader of the format supports.

    Source: files that the reference wrote and then misread, or could not read.
    """
    if mixes_fixed_size_lists(top):
        raise InvalidInputError(
            f"column {top.name!r}: fixed-size lists of structs cannot be nested in lists and maps, "
            "or around them; use lists for both"
        )
    if any(field.logical_type == names.STRUCT and not field.children for field in top.walk()) and (
        top.children
    ):
        raise InvalidInputError(
            f"column {top.name!r}: a struct without fields must be a top-level column; add "
            "a field to it, or omit it"
        )
    _items_per_value(top)


def _items_per_value(field: Field) -> int:
    """Return the number of values of each leaf in one value of a field."""
    counts = {_items_per_value(child) for child in field.children} or {1}
    if len(counts) > 1:
        raise InvalidInputError(
            f"{field.name!r}: a struct cannot contain a fixed-size list of structs and other "
            "fields; use a list, or a separate column"
        )
    (count,) = counts
    if names.is_fixed_size_list_of_structs(field.logical_type):
        count *= names.fixed_size_list_length(field.logical_type)
    return count


def to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a tree."""
    return _ARROW_SCHEMAS.of(schema)


def _to_arrow(schema: Schema) -> pa.Schema:
    return pa.schema(
        [field_to_arrow(field) for field in schema.fields],
        metadata=_metadata_to_arrow(schema.metadata),
    )


_ARROW_SCHEMAS: Final = IdentityCache(_to_arrow)


def field_to_arrow(field: Field) -> pa.Field:
    """Return the Arrow field of a field.

    Raises:
        UnsupportedFeatureError: Its type is unknown, or not supported yet.
        CorruptDataError: It has too few or too many fields below it.
    """
    return _ARROW_FIELDS.of(field)


def _field_to_arrow(field: Field) -> pa.Field:
    if field.is_blob_v2:
        return surface_field(field)
    try:
        arrow = _arrow_type(field)
    except (CorruptDataError, UnsupportedFeatureError) as error:
        error.add_note(f"column: {field.name!r}")
        raise
    # Arrow has no non-nullable columns of type null.
    nullable = field.nullable or pa.types.is_null(arrow)
    metadata = dict(field.metadata)
    if field.logical_type == names.JSON:
        metadata.setdefault(names.EXTENSION_NAME, STORED_NAME.encode())
    if field.extension_name:
        metadata.setdefault(names.EXTENSION_NAME, field.extension_name.encode())
    return pa.field(field.name, arrow, nullable, metadata=_metadata_to_arrow(metadata))


_ARROW_FIELDS: Final = IdentityCache(_field_to_arrow)


def has_narrow_indices(field: Field) -> bool:
    """Return whether a field is a dictionary whose indices have 8 or 16 bits.

    An array has room for one dictionary of this type, but not for the values of any two.
    """
    arrow = field_to_arrow(field).type
    return bool(pa.types.is_dictionary(arrow) and arrow.index_type.bit_width < 32)


def _describe(arrow: pa.DataType, extension_name: str) -> tuple[str, tuple[Field, ...]]:
    if extension_name in (STORED_NAME, TEXT_NAME):
        if extension_name == STORED_NAME and pa.types.is_large_binary(arrow):
            return names.JSON, ()
        raise InvalidInputError(
            f"a column of the extension type {extension_name} is {arrow}, but JSON is text: "
            "pa.json_(), or a string with the metadata ARROW:extension:name of 'arrow.json'"
        )
    if pa.types.is_struct(arrow):
        return names.STRUCT, tuple(field_from_arrow(field) for field in arrow)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        of_structs = pa.types.is_struct(arrow.value_type)
        if pa.types.is_list(arrow):
            kind = names.LIST_OF_STRUCTS if of_structs else names.LIST
        else:
            kind = names.LARGE_LIST_OF_STRUCTS if of_structs else names.LARGE_LIST
        return kind, (field_from_arrow(arrow.value_field),)
    if pa.types.is_map(arrow):
        return _describe_map(arrow)
    if pa.types.is_fixed_size_list(arrow) and pa.types.is_struct(arrow.value_type):
        if arrow.value_type.num_fields == 0:
            raise InvalidInputError("Lance has no fixed-size list of structs without fields")
        kind = f"{names.FIXED_SIZE_LIST_OF_STRUCTS_PREFIX}{names.length_of(arrow)}"
        return kind, (field_from_arrow(arrow.value_field),)
    return names.leaf_to_logical(arrow), ()


def _describe_map(arrow: pa.MapType) -> tuple[str, tuple[Field, ...]]:
    if arrow.keys_sorted:
        raise InvalidInputError(
            "Lance cannot store that a map's keys are sorted; cast it to a map without sorted keys"
        )
    key, value = field_from_arrow(arrow.key_field), field_from_arrow(arrow.item_field)
    entries = Field("entries", names.STRUCT, nullable=False, children=(key, value))
    return names.MAP, (entries,)


def _arrow_type(field: Field) -> pa.DataType:
    kind = field.logical_type
    if kind == names.STRUCT:
        return pa.struct([field_to_arrow(child) for child in field.children])
    if kind == names.MAP:
        return _map_type(field)
    if kind in names.LIST_KINDS:
        item = field_to_arrow(_only_child(field))
        return pa.list_(item) if kind.startswith("list") else pa.large_list(item)
    if names.is_fixed_size_list_of_structs(kind):
        item = field_to_arrow(_only_child(field))
        if not pa.types.is_struct(item.type):
            raise CorruptDataError(f"the items of a {kind} are declared as {item.type}")
        return pa.list_(item, names.fixed_size_list_length(kind))
    if field.children:
        raise CorruptDataError(f"the type {kind!r} has no parts, but fields stand below it")
    return names.logical_to_leaf(kind)


def _map_type(field: Field) -> pa.DataType:
    entries = _only_child(field)
    if entries.logical_type != names.STRUCT or len(entries.children) != 2:
        raise CorruptDataError("the entries of a map are not structs of a key and a value")
    key, value = (field_to_arrow(part) for part in entries.children)
    if pa.types.is_null(key.type):
        raise CorruptDataError("the keys of a map are declared as nulls")
    return pa.map_(key.with_nullable(False), value)


def _only_child(field: Field) -> Field:
    if len(field.children) != 1:
        raise CorruptDataError(
            f"a {field.logical_type} has one field for its items, but {len(field.children)} are "
            "stored"
        )
    return field.children[0]


def _primary_key_position(name: str, metadata: Mapping[str, bytes]) -> int | None:
    position = metadata.get(PRIMARY_KEY_POSITION_METADATA)
    if position is not None:
        if not position.isdigit():
            raise InvalidInputError(
                f"column {name!r}: the metadata {PRIMARY_KEY_POSITION_METADATA!r} must be a "
                f"whole number of at least 1, not {position!r}"
            )
        return int(position)
    declared = metadata.get(PRIMARY_KEY_METADATA, b"false").lower()
    return 0 if declared in {b"true", b"1", b"yes"} else None


def _with_canonical_flags(metadata: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return metadata in which the flags of packed structs have values that all readers accept.

    Releases of the reference interpret `false` and `1` differently, and write files that they
    cannot read themselves.
    """
    result = dict(metadata)
    for key in PACKED_KEYS:
        text = result.get(key, b"?").decode(errors="replace").strip().lower()
        if text in TRUE_SPELLINGS:
            result[key] = b"true"
        elif text in FALSE_SPELLINGS:
            del result[key]
    return result


def metadata_from_arrow(metadata: Mapping[bytes, bytes] | None) -> dict[str, bytes]:
    """Return Arrow's metadata as a field or schema has them.

    Raises:
        InvalidInputError: A key is not text.
    """
    try:
        return {key.decode(): bytes(value) for key, value in (metadata or {}).items()}
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"a metadata key is not UTF-8: {error.object[:100]!r}; encode it, for example in base64"
        ) from error


def _metadata_to_arrow(metadata: Mapping[str, bytes]) -> dict[bytes, bytes] | None:
    return {key.encode(): value for key, value in metadata.items()} or None
