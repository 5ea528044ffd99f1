"""Arrow schemas as trees of fields, and back.

The Arrow schema is what users see; the tree is what is stored. Field ids are not given here
(see `field_ids`): a schema fresh from Arrow has none.

Source:  file.proto, messages Field and Schema.
Differs: The reference drops the name and nullability of a fixed-size list's items, a dictionary's
         order, and turns views into plain types; so do we, because the format cannot hold them.
"""

from collections.abc import Mapping

import pyarrow as pa

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.schema import logical_types as names
from lance_stream.schema.fields import Field, Schema

PRIMARY_KEY_METADATA = "lance-schema:unenforced-primary-key"
"""Field metadata that declares a column a member of the table's (unenforced) primary key."""

PRIMARY_KEY_POSITION_METADATA = "lance-schema:unenforced-primary-key:position"
"""Field metadata that gives a member's 1-based place in a key of several columns."""


def from_arrow(schema: pa.Schema) -> Schema:
    """Return the tree of an Arrow schema, its fields not numbered yet.

    Raises:
        InvalidInputError: A type that the format cannot store, or two top-level columns of one
            name.
        UnsupportedFeatureError: A type that the format has and lance-stream does not write yet.
    """
    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        raise InvalidInputError(f"columns must have different names, but {repeated} occur twice")
    return Schema(
        fields=tuple(field_from_arrow(each) for each in schema),
        metadata=_metadata_from_arrow(schema.metadata),
    )


def field_from_arrow(arrow: pa.Field) -> Field:
    """Return the tree of one Arrow field, not numbered yet."""
    metadata = _metadata_from_arrow(arrow.metadata)
    if isinstance(arrow.type, pa.BaseExtensionType):
        raise UnsupportedFeatureError(
            f"column {arrow.name!r} has the extension type {arrow.type}, which is not supported "
            "yet; pass its storage (`column.storage`) instead"
        )
    try:
        logical_type, children = _describe(arrow.type)
    except InvalidInputError as error:
        error.add_note(f"column: {arrow.name!r}")
        raise
    return Field(
        name=arrow.name,
        logical_type=logical_type,
        nullable=arrow.nullable,
        children=children,
        metadata=metadata,
        primary_key_position=_primary_key_position(arrow.name, metadata),
    )


def to_arrow(schema: Schema) -> pa.Schema:
    """Return the Arrow schema that a tree stands for."""
    return pa.schema(
        [field_to_arrow(each) for each in schema.fields],
        metadata=_metadata_to_arrow(schema.metadata),
    )


def field_to_arrow(each: Field) -> pa.Field:
    """Return the Arrow field that a field stands for.

    Raises:
        UnsupportedFeatureError: Its type is not known, or not supported yet.
        CorruptDataError: It has too few or too many fields below it.
    """
    try:
        arrow = _arrow_type(each)
    except (CorruptDataError, UnsupportedFeatureError) as error:
        error.add_note(f"column: {each.name!r}")
        raise
    # Arrow knows no column of type null that may not be null.
    nullable = each.nullable or pa.types.is_null(arrow)
    return pa.field(each.name, arrow, nullable, metadata=_metadata_to_arrow(each.metadata))


def _describe(arrow: pa.DataType) -> tuple[str, tuple[Field, ...]]:
    if pa.types.is_struct(arrow):
        return names.STRUCT, tuple(field_from_arrow(each) for each in arrow)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        of_structs = pa.types.is_struct(arrow.value_type)
        if pa.types.is_list(arrow):
            kind = names.LIST_OF_STRUCTS if of_structs else names.LIST
        else:
            kind = names.LARGE_LIST_OF_STRUCTS if of_structs else names.LARGE_LIST
        return kind, (field_from_arrow(arrow.value_field),)
    if pa.types.is_map(arrow):
        raise UnsupportedFeatureError(
            "maps are not supported yet; store them as a list of structs (key, value)"
        )
    if pa.types.is_fixed_size_list(arrow) and pa.types.is_struct(arrow.value_type):
        raise UnsupportedFeatureError(
            "fixed-size lists of structs are not supported yet; use a list"
        )
    return names.leaf_to_logical(arrow), ()


def _arrow_type(each: Field) -> pa.DataType:
    kind = each.logical_type
    if kind == names.STRUCT:
        if _is_packed(each):
            raise UnsupportedFeatureError("packed structs are not supported yet")
        if "lance-encoding:blob" in each.metadata:
            raise UnsupportedFeatureError("blob columns are not supported yet")
        return pa.struct([field_to_arrow(child) for child in each.children])
    if kind == names.MAP:
        raise UnsupportedFeatureError("maps are not supported yet")
    if kind in names.NESTED_KINDS:
        if len(each.children) != 1:
            raise CorruptDataError(
                f"a {kind} has one field for its items, but {len(each.children)} are stored"
            )
        item = field_to_arrow(each.children[0])
        return pa.list_(item) if kind.startswith("list") else pa.large_list(item)
    if kind.startswith(names.FIXED_SIZE_LIST_PREFIX + names.STRUCT):
        raise UnsupportedFeatureError("fixed-size lists of structs are not supported yet")
    if each.children:
        raise CorruptDataError(f"the type {kind!r} has no parts, but fields stand below it")
    if _is_blob(each):
        raise UnsupportedFeatureError("blob columns are not supported yet")
    return names.logical_to_leaf(kind)


def _is_blob(each: Field) -> bool:
    return each.metadata.get("lance-encoding:blob", b"false").lower() == b"true" or (
        each.logical_type.startswith("blob")
    )


def _is_packed(each: Field) -> bool:
    declared = (each.metadata.get("lance-encoding:packed"), each.metadata.get("packed"))
    return any(value is not None and value.lower() == b"true" for value in declared)


def _primary_key_position(name: str, metadata: Mapping[str, bytes]) -> int | None:
    position = metadata.get(PRIMARY_KEY_POSITION_METADATA)
    if position is not None:
        if not position.isdigit():
            raise InvalidInputError(
                f"column {name!r}: the metadata {PRIMARY_KEY_POSITION_METADATA!r} must be a "
                f"whole number from 1, not {position!r}"
            )
        return int(position)
    declared = metadata.get(PRIMARY_KEY_METADATA, b"false").lower()
    return 0 if declared in {b"true", b"1", b"yes"} else None


def _metadata_from_arrow(metadata: Mapping[bytes, bytes] | None) -> dict[str, bytes]:
    return {key.decode(): bytes(value) for key, value in (metadata or {}).items()}


def _metadata_to_arrow(metadata: Mapping[str, bytes]) -> dict[bytes, bytes] | None:
    return {key.encode(): value for key, value in metadata.items()} or None
