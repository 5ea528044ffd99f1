"""The tree of columns that manifests and data files store, and its list of messages.

A schema is stored as a flat list of `lance.file.Field` messages in depth-first order; each names
its parent by id. In memory it is a tree of `Field` values.

Source: file.proto, messages Field and Schema.
"""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from operator import is_

from lance_stream._proto import file_pb2
from lance_stream.errors import CorruptDataError

UNASSIGNED_ID = -1
"""The id of a field before an id is assigned; also the parent id of top-level columns."""

TOMBSTONED_ID = -2
"""In a data file's list of fields: a column whose data in that file is no longer used."""

LINEAGE_IDS = frozenset({-3, -4, -5})
"""In a data file's list of fields: row ids and row versions, which are in no schema."""

PACKED_KEYS = ("lance-encoding:packed", "packed")
"""Metadata keys that make a struct one column; early writers used the second one."""

TRUE_SPELLINGS = frozenset({"true", "1", "on", "yes", "y"})
"""Values in the metadata of a field that mean true, in any case. Source: files of pylance."""

FALSE_SPELLINGS = frozenset({"false", "0", "off", "no", "n", ""})
"""Values in the metadata of a field that mean false, in any case."""

BLOB_KEY = "lance-encoding:blob"
"""The metadata key that makes a column of bytes a blob column, whatever its value."""

EXTENSION_NAME_KEY = "ARROW:extension:name"
BLOB_V2_NAME = "lance.blob.v2"
"""The extension type of blobs in tables from 2.2 on."""

_MAX_DEPTH = 64
# The legacy encoding hints that the reference writes; it ignores them in files from 2.0 on.
_PLAIN, _VAR_BINARY, _DICTIONARY = 1, 2, 3


@dataclass(frozen=True)
class Field:
    """One column, or one part of a nested column.

    Attributes:
        name: The field's name, without the names of its parents.
        logical_type: The format's name of the type, for example `"int32"`; see `logical_types`.
        id: The number by which data files refer to the column; unique within a version, though a
            later one may assign it to another column.
        nullable: Whether the column may hold nulls.
        children: The parts of a struct, the item of a list, in order.
        metadata: The field's key-value metadata, as in Arrow.
        extension_name: The name of an Arrow extension type, in files of old writers; new writers
            store it in `metadata`.
        primary_key_position: 1-based position in the unenforced primary key; 0 for a member without
            a position (a key of one column); None for a column outside the key.
        clustering_key_position: The same for the unenforced clustering key.
        packed_in_file: Whether the data file that is read stores this struct as one column; None to
            decide by the metadata. A property of the file, not of the schema.
    """

    name: str
    logical_type: str
    id: int = UNASSIGNED_ID
    nullable: bool = True
    children: tuple["Field", ...] = ()
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    extension_name: str = ""
    primary_key_position: int | None = None
    clustering_key_position: int | None = None
    packed_in_file: bool | None = field(default=None, compare=False, repr=False)

    @property
    def is_packed(self) -> bool:
        """Whether this is a struct whose parts are stored side by side, as one column.

        Old and new releases of the reference interpret the same metadata differently, so the file
        decides when reading (`as_in_file`), and the metadata when writing.
        """
        if self.logical_type != "struct":
            return False
        if self.packed_in_file is not None:
            return self.packed_in_file
        return any(
            self.metadata.get(key, b"").decode(errors="replace").lower() in TRUE_SPELLINGS
            for key in PACKED_KEYS
            if key in self.metadata
        )

    @property
    def is_blob(self) -> bool:
        """Whether its bytes are stored separately, and the column only has their locations."""
        return BLOB_KEY in self.metadata or self.is_blob_v2

    @property
    def is_blob_v2(self) -> bool:
        """Whether this is a blob column as in files from 2.2 on."""
        return self.metadata.get(EXTENSION_NAME_KEY, b"") == BLOB_V2_NAME.encode()

    @property
    def is_leaf(self) -> bool:
        """Whether it is one column of a file from 2.1 on, whatever is below it."""
        return not self.children or self.is_packed or self.is_blob

    def walk(self) -> Iterator["Field"]:
        """Yield this field and all below it, depth first, parents before children."""
        yield self
        for child in self.children:
            yield from child.walk()

    def leaves(self) -> Iterator["Field"]:
        """Yield the fields below (or at) this one that have a column from 2.1 on, in order."""
        if self.is_leaf:
            yield self
        else:
            for child in self.children:
                yield from child.leaves()


@dataclass(frozen=True)
class Schema:
    """The columns of a table or of a data file.

    Attributes:
        fields: The top-level columns, in order.
        metadata: The schema's key-value metadata.
    """

    fields: tuple[Field, ...] = ()
    metadata: Mapping[str, bytes] = field(default_factory=dict)

    def ids_in_files(self) -> set[int]:
        """Return the ids of columns that data files can store, including hidden lineage."""
        return {*LINEAGE_IDS, *(field.id for field in self.walk())}

    def walk(self) -> Iterator[Field]:
        """Yield every field, depth first, in the order in which they are stored."""
        for column in self.fields:
            yield from column.walk()

    @property
    def names(self) -> list[str]:
        """The names of the top-level columns."""
        return [field.name for field in self.fields]

    def fields_named(self, names: Iterable[str]) -> tuple[Field, ...]:
        """Return the top-level columns with these names, in the order of the names."""
        by_name = {field.name: field for field in self.fields}
        return tuple(by_name[name] for name in names)

    def field_by_id(self, field_id: int) -> Field | None:
        """Return the field with this id, at any depth, or None."""
        return next((field for field in self.walk() if field.id == field_id), None)

    def max_field_id(self) -> int:
        """Return the largest field id; -1 for an empty schema."""
        return max((field.id for field in self.walk()), default=UNASSIGNED_ID)


def fields_to_proto(fields: Iterable[Field]) -> list[file_pb2.Field]:
    """Return the messages of a tree of fields, depth first."""
    messages: list[file_pb2.Field] = []

    def add(field: Field, parent_id: int) -> None:
        message = file_pb2.Field(
            name=field.name,
            id=field.id,
            parent_id=parent_id,
            logical_type=field.logical_type,
            nullable=field.nullable,
            encoding=_encoding_hint(field.logical_type),  # type: ignore[arg-type]  # an int is one
            extension_name=field.extension_name,
            metadata=dict(field.metadata),
        )
        if field.primary_key_position is not None:
            message.unenforced_primary_key = True
            message.unenforced_primary_key_position = field.primary_key_position
        if field.clustering_key_position is not None:
            message.unenforced_clustering_key = True
            message.unenforced_clustering_key_position = field.clustering_key_position
        messages.append(message)
        for child in field.children:
            add(child, field.id)

    for column in fields:
        add(column, UNASSIGNED_ID)
    return messages


def fields_from_proto(messages: Sequence[file_pb2.Field]) -> tuple[Field, ...]:
    """Return the tree of fields that a list of messages describes.

    Raises:
        CorruptDataError: Two fields share an id, a parent is missing or comes after its child,
            or the tree is deeper than 64.
    """
    children: dict[int, list[file_pb2.Field]] = {UNASSIGNED_ID: []}
    depth = {UNASSIGNED_ID: 0}
    for message in messages:
        if message.id in children:
            raise CorruptDataError(f"field id {message.id} ({message.name!r}) occurs twice")
        if message.parent_id not in children:
            raise CorruptDataError(
                f"field {message.name!r} names the parent {message.parent_id}, which is not "
                "among the fields before it"
            )
        depth[message.id] = depth[message.parent_id] + 1
        if depth[message.id] > _MAX_DEPTH:
            raise CorruptDataError(f"fields are nested deeper than {_MAX_DEPTH}")
        children[message.parent_id].append(message)
        children[message.id] = []

    def build(message: file_pb2.Field) -> Field:
        return Field(
            name=message.name,
            logical_type=message.logical_type,
            id=message.id,
            nullable=message.nullable,
            children=tuple(build(child) for child in children[message.id]),
            metadata=dict(message.metadata),
            extension_name=message.extension_name,
            primary_key_position=(
                message.unenforced_primary_key_position if message.unenforced_primary_key else None
            ),
            clustering_key_position=(
                message.unenforced_clustering_key_position
                if message.unenforced_clustering_key
                else None
            ),
        )

    return tuple(build(message) for message in children[UNASSIGNED_ID])


def as_in_file(field: Field, whole: Field, ids_in_file: Container[int]) -> Field:
    """Return a field whose structs are packed if and only if they are packed in a data file.

    Args:
        field: The field; parts of structs may be projected away.
        whole: The field in the table.
        ids_in_file: The ids of the fields in the file. For a packed struct, they include its id and
            none of its parts'; for others the parts' ids, and up to 2.0 the struct's, too.
    """
    if not field.children or field.is_blob:
        return field
    whole_parts = {part.id: part for part in whole.children}
    children = tuple(as_in_file(part, whole_parts[part.id], ids_in_file) for part in field.children)
    is_unchanged = all(map(is_, children, field.children))
    projected = field if is_unchanged else replace(field, children=children)
    if field.logical_type != "struct" or not any(part.id in ids_in_file for part in whole.walk()):
        return projected
    is_packed = field.id in ids_in_file and not any(
        part.id in ids_in_file for child in whole.children for part in child.walk()
    )
    return (
        projected
        if is_packed == projected.is_packed
        else replace(projected, packed_in_file=is_packed)
    )


def assign_ids(schema: Schema, first_id: int = 0) -> Schema:
    """Return the schema with ids assigned to all fields without one, depth first, from `first_id`.

    Ids are never reused within a table, so a data file of an old version can never be mistaken for
    a new column.

    Source: the reference's manifests; "Fields" in the table format's document.
    """
    numbers = count(first_id)
    return replace(schema, fields=tuple(_numbered(field, numbers) for field in schema.fields))


def _numbered(field: Field, numbers: Iterator[int]) -> Field:
    field_id = next(numbers) if field.id == UNASSIGNED_ID else field.id
    children = tuple(_numbered(child, numbers) for child in field.children)
    return replace(field, id=field_id, children=children)


def _encoding_hint(logical_type: str) -> int:
    if logical_type.startswith("dict:"):
        return _DICTIONARY
    if logical_type in {"string", "binary", "large_string", "large_binary", "json"}:
        return _VAR_BINARY
    return 0 if logical_type in {"struct", "null"} else _PLAIN
