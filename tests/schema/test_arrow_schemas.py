from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.schema import arrow_schemas
from lance_stream.schema.fields import Field, assign_ids, fields_from_proto, fields_to_proto
from lance_stream.schema.types.extension_types import with_extensions
from lance_stream.schema.types.json_columns import text_schema

LEAVES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.decimal128(38, 0), pa.decimal128(10, -2), pa.decimal256(50, 3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "+05:30")),
    *(pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(7)),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.float64())),
    *(pa.list_(pa.float32(), 16), pa.list_(pa.list_(pa.float16(), 2), 3), pa.list_(pa.bool_(), 5)),
]

SMALL_DECIMALS = [getattr(pa, name) for name in ("decimal32", "decimal64") if hasattr(pa, name)]


def field(name: str, arrow: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, arrow, nullable or arrow == pa.null())


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(field, st.sampled_from("abc"), types, st.booleans())
    return st.one_of(
        fields.map(pa.list_),
        fields.map(pa.large_list),
        st.tuples(st.sampled_from([pa.string(), pa.int64()]), fields).map(lambda of: pa.map_(*of)),
        st.lists(fields, min_size=1, max_size=3, unique_by=lambda column: column.name).map(
            pa.struct
        ),
    )


arrow_types = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=6)


@given(arrow_types, st.booleans())
def test_arrow_types_round_trip_through_fields(arrow: pa.DataType, nullable: bool) -> None:
    """A table must give back the type and nullability that its creator declared."""
    schema = pa.schema([pa.field("first", pa.int8()), field("c", arrow, nullable)])
    tree = assign_ids(arrow_schemas.from_arrow(schema))
    stored = fields_from_proto(fields_to_proto(tree.fields))
    assert stored == tree.fields
    assert arrow_schemas.to_arrow(tree).equals(schema, check_metadata=True)


def test_schema_and_field_metadata_is_preserved() -> None:
    """Metadata may be any bytes, and encodings and other tools rely on it."""
    schema = pa.schema(
        [pa.field("a", pa.struct([pa.field("b", pa.int8(), metadata={"k": "v"})]))],
        metadata={b"raw": b"\xff\x00"},
    )
    assert arrow_schemas.to_arrow(arrow_schemas.from_arrow(schema)).equals(
        schema, check_metadata=True
    )


def test_views_are_stored_as_plain_types() -> None:
    """The format has no logical type for views, only for the values that they show."""
    schema = pa.schema([("s", pa.string_view()), ("b", pa.binary_view())])
    assert arrow_schemas.to_arrow(arrow_schemas.from_arrow(schema)).types == [
        pa.string(),
        pa.binary(),
    ]


def test_ids_are_assigned_depth_first() -> None:
    """Data files refer to fields by id, and pylance numbers them in this order."""
    schema = pa.schema(
        [("a", pa.int8()), ("l", pa.list_(pa.struct([("x", pa.int8())]))), ("b", pa.int8())]
    )
    tree = assign_ids(arrow_schemas.from_arrow(schema), first_id=10)
    assert [(entry.name, entry.id) for entry in tree.walk()] == [
        ("a", 10),
        ("l", 11),
        ("item", 12),
        ("x", 13),
        ("b", 14),
    ]
    assert tree.max_field_id() == 14


def test_maps_have_the_fields_of_pylance() -> None:
    """Readers look for `entries`, key and value as pylance writes them, with their nullability."""
    arrow = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.list_(pa.int8())))
    schema = arrow_schemas.from_arrow(pa.schema([("m", arrow)]))
    assert [(entry.name, entry.logical_type, entry.nullable) for entry in schema.walk()] == [
        ("m", "map", True),
        ("entries", "struct", False),
        ("k", "string", False),
        ("v", "list", True),
        ("item", "int8", True),
    ]
    restored = arrow_schemas.to_arrow(schema).field(0).type
    assert restored == arrow
    assert (restored.key_field, restored.item_field) == (arrow.key_field, arrow.item_field)


def test_fixed_lists_of_structs_have_items() -> None:
    """Only lists of primitive values are a single field; items of structs need fields with ids."""
    arrow = pa.list_(pa.field("i", pa.struct([("x", pa.int8())]), nullable=False), 3)
    schema = pa.schema([pa.field("l", arrow, nullable=False)])
    stored = arrow_schemas.from_arrow(schema)
    assert [(entry.name, entry.logical_type, entry.nullable) for entry in stored.walk()] == [
        ("l", "fixed_size_list:struct:3", False),
        ("i", "struct", False),
        ("x", "int8", True),
    ]
    assert arrow_schemas.to_arrow(stored).equals(schema)


@pytest.mark.parametrize(
    ("arrow", "storage", "stored_as"),
    [
        (pa.uuid(), pa.binary(16), "fixed_size_binary:16"),
        (pa.bool8(), pa.int8(), "int8"),
        (
            pa.fixed_shape_tensor(pa.float32(), [2, 3]),
            pa.list_(pa.float32(), 6),
            "fixed_size_list:float:6",
        ),
        (pa.opaque(pa.string(), "point", "geo"), pa.string(), "string"),
    ],
    ids=str,
)
def test_extension_types_round_trip_as_storage(
    arrow: pa.DataType, storage: pa.DataType, stored_as: str
) -> None:
    """The format stores the storage type and keeps the extension's name in metadata."""
    schema = pa.schema([pa.field("c", arrow, metadata={"k": "v"}), ("l", pa.list_(arrow))])
    tree = assign_ids(arrow_schemas.from_arrow(schema))
    assert tree.fields[0].logical_type == stored_as
    assert tree.fields[0].extension_name == arrow.extension_name
    assert fields_from_proto(fields_to_proto(tree.fields)) == tree.fields
    plain = arrow_schemas.to_arrow(tree)
    assert plain.types == [storage, pa.list_(storage)]
    assert with_extensions(plain).equals(schema, check_metadata=True)


def test_unregistered_extension_types_keep_their_metadata() -> None:
    """A process without the extension must not strip its name from a table that it rewrites."""
    named = {"ARROW:extension:name": "my.type", "ARROW:extension:metadata": "x"}
    schema = pa.schema([pa.field("c", pa.int32(), metadata=named)])
    tree = arrow_schemas.from_arrow(schema)
    assert tree.fields[0].extension_name == "my.type"
    assert with_extensions(arrow_schemas.to_arrow(tree)).equals(schema, check_metadata=True)


@pytest.mark.parametrize(
    ("name", "parameters", "storage"),
    [
        ("arrow.json", "", pa.int64()),
        ("arrow.uuid", "", pa.binary(3)),
        ("arrow.opaque", "[" * 100_000, pa.string()),
        ("arrow.fixed_shape_tensor", '{"shape": [-2, -3]}', pa.list_(pa.float32(), 6)),
        ("arrow.fixed_shape_tensor", '{"shape": [7]}', pa.list_(pa.float32(), 6)),
        ("tests.picky", "\x1b", pa.int32()),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_unfit_extension_types_name_the_column(
    name: str, parameters: str, storage: pa.DataType, nested: bool
) -> None:
    """Stored extension parameters are not trusted: Arrow's own errors do not say which column is
    damaged.
    """
    pa.register_extension_type(Picky())
    field = pa.field(
        "c",
        storage,
        metadata={"ARROW:extension:name": name, "ARROW:extension:metadata": parameters},
    )
    schema = pa.schema(
        [
            ("a", pa.int32()),
            pa.field("l", pa.struct([("\x1b", pa.null()), field])) if nested else field,
        ]
    )
    try:
        if "tensor" in name and _is_read_by_arrow(schema):
            pytest.skip("this release of Arrow does not compare a tensor's shape with its storage")
        with pytest.raises(CorruptDataError, match=r"the column '[cl]'") as raised:
            with_extensions(schema)
    finally:
        pa.unregister_extension_type("tests.picky")
    assert str(raised.value).isprintable()


def _is_read_by_arrow(schema: pa.Schema) -> bool:
    try:
        pa.ipc.read_schema(schema.serialize())
    except pa.ArrowInvalid:
        return False
    return True


class Picky(pa.ExtensionType):
    """A type of a user's own, which takes no parameters."""

    def __init__(self) -> None:
        super().__init__(pa.int32(), "tests.picky")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> "Picky":
        if serialized:
            raise KeyError(serialized)
        return cls()


def test_old_extension_names_become_metadata() -> None:
    """Old writers stored the extension's name in a field of its own."""
    field = arrow_schemas.field_to_arrow(Field("c", "int32", extension_name="my.type"))
    assert field.metadata == {b"ARROW:extension:name": b"my.type"}


@pytest.mark.floors
def test_items_of_bfloat16_keep_their_name() -> None:
    """Arrow has no bfloat16, so only the extension name tells such vectors from
    two-byte binaries.
    """
    item = pa.field("item", pa.binary(2), metadata={"ARROW:extension:name": "lance.bfloat16"})
    (stored,) = arrow_schemas.from_arrow(pa.schema([("v", pa.list_(item, 4))])).fields
    assert stored.logical_type == "fixed_size_list:lance.bfloat16:4"
    restored = arrow_schemas.field_to_arrow(stored).type
    assert restored == pa.list_(pa.binary(2), 4)
    assert restored.value_field.metadata[b"ARROW:extension:name"] == b"lance.bfloat16"


@pytest.mark.floors
def test_binary_json_has_its_own_type() -> None:
    """The specification gives JSON a logical type, from which readers restore the extension."""
    schema = pa.schema(
        [pa.field("j", pa.large_binary(), metadata={"ARROW:extension:name": "lance.json"})]
    )
    (stored,) = arrow_schemas.from_arrow(schema).fields
    assert stored.logical_type == "json"
    assert arrow_schemas.field_to_arrow(replace(stored, metadata={})).equals(schema.field(0))


@pytest.mark.floors
@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()], ids=str)
def test_json_text_becomes_binary_json(text: pa.DataType) -> None:
    """Users see JSON as text, which pyarrow releases without `json_` mark by metadata."""
    field = pa.field("j", text, metadata={"ARROW:extension:name": "arrow.json", "k": "v"})
    tree = arrow_schemas.from_arrow(pa.schema([field]))
    (stored,) = tree.fields
    assert stored.logical_type == "json"
    assert stored.metadata == {"ARROW:extension:name": b"lance.json", "k": b"v"}
    (restored,) = text_schema(arrow_schemas.to_arrow(tree))
    assert restored.equals(field.with_type(pa.string()), check_metadata=True)


@pytest.mark.parametrize(
    ("name", "arrow"),
    [("arrow.json", pa.int64()), ("arrow.json", pa.large_binary()), ("lance.json", pa.string())],
)
def test_json_of_other_types_is_refused(name: str, arrow: pa.DataType) -> None:
    """JSON is text to users, and binary in files."""
    field = pa.field("j", arrow, metadata={"ARROW:extension:name": name})
    with pytest.raises(InvalidInputError, match="JSON is text"):
        arrow_schemas.from_arrow(pa.schema([field]))


@pytest.mark.floors
@pytest.mark.parametrize(
    "arrow",
    [
        pa.month_day_nano_interval(),
        pa.list_(pa.string(), 2),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.list_view(pa.int8()),
        pa.dense_union([pa.field("a", pa.int8())]),
        pa.map_(pa.string(), pa.int8(), keys_sorted=True),
        pa.dictionary(pa.int8(), pa.date32()),
        pa.dictionary(pa.int8(), pa.decimal128(5, 1)),
        pa.dictionary(pa.int8(), pa.list_(pa.int8())),
        pa.list_(pa.list_(pa.int8()), 2),
        pa.list_(pa.list_(pa.struct([("x", pa.int8())]), 2), 2),
        pa.list_(pa.struct([]), 2),
        pa.list_(pa.float32(), 0),
        pa.list_(pa.list_(pa.float32(), 0), 2),
        pa.list_(pa.struct([("x", pa.int8())]), 0),
        pa.binary(0),
        *(make(5, 1) for make in SMALL_DECIMALS),
    ],
    ids=str,
)
def test_unsupported_types_are_refused_with_column(arrow: pa.DataType) -> None:
    """In a wide schema the type does not show which column has to change."""
    with pytest.raises(InvalidInputError) as refused:
        arrow_schemas.from_arrow(pa.schema([("outer", pa.struct([("bad", arrow)]))]))
    assert "column: 'bad'" in refused.value.__notes__


POINTS = pa.list_(pa.struct([("x", pa.int8())]), 2)


@pytest.mark.parametrize(
    "arrow",
    [
        pa.list_(POINTS),
        pa.map_(pa.string(), POINTS),
        pa.list_(pa.struct([("l", pa.list_(pa.int8()))]), 2),
        pa.struct([("p", POINTS), ("n", pa.int8())]),
        pa.struct([("e", pa.struct([])), ("n", pa.int8())]),
        pa.list_(pa.struct([])),
    ],
    ids=str,
)
def test_unreadable_nestings_are_refused(arrow: pa.DataType) -> None:
    """Rows of these shapes could be written, but no Lance reader would return them."""
    with pytest.raises(InvalidInputError, match=r"fixed-size|without fields"):
        arrow_schemas.from_arrow(pa.schema([("c", arrow)]))


def test_dictionaries_that_pylance_cannot_read_work() -> None:
    """The logical type is valid by the specification, although pylance does not parse it."""
    restored = arrow_schemas.field_to_arrow(Field("c", "dict:date32:day:int8:false")).type
    assert restored == pa.dictionary(pa.int8(), pa.date32())


def test_duplicate_column_names_are_refused() -> None:
    """A name must identify one column, or a projection could return the other one."""
    with pytest.raises(InvalidInputError, match="'a'"):
        arrow_schemas.from_arrow(pa.schema([("a", pa.int8()), ("a", pa.int8())]))


@pytest.mark.parametrize(
    ("logical_type", "error"),
    [
        ("int128", UnsupportedFeatureError),
        ("", UnsupportedFeatureError),
        ("decimal:128:99:1", CorruptDataError),
        ("decimal:64:9:1", CorruptDataError),
        ("decimal:128", CorruptDataError),
        ("timestamp:hours:-", CorruptDataError),
        ("fixed_size_binary:0", UnsupportedFeatureError),
        ("fixed_size_binary:-1", CorruptDataError),
        ("fixed_size_binary:x", CorruptDataError),
        ("fixed_size_list:float:0", CorruptDataError),
        ("fixed_size_list:float:99999999999", CorruptDataError),
        ("dict:string:float:false", CorruptDataError),
        ("dict:string", CorruptDataError),
        ("list", CorruptDataError),
        ("map", CorruptDataError),
        ("fixed_size_list:struct:2", CorruptDataError),
    ],
)
def test_damaged_logical_types_are_bad_data(logical_type: str, error: type[Exception]) -> None:
    """Stored text is not trusted, and the error must name the column instead of coming
    from Arrow.
    """
    with pytest.raises(error) as refused:
        arrow_schemas.field_to_arrow(Field(name="c", logical_type=logical_type))
    assert "column: 'c'" in refused.value.__notes__


ENTRIES = Field("entries", "struct", children=(Field("k", "int8"), Field("v", "int8")))


@pytest.mark.parametrize(
    "stored",
    [
        Field("c", "map", children=(Field("entries", "int8"),)),
        Field("c", "map", children=(replace(ENTRIES, children=ENTRIES.children[:1]),)),
        Field("c", "map", children=(ENTRIES, ENTRIES)),
        Field(
            "c",
            "map",
            children=(replace(ENTRIES, children=(Field("k", "null"), Field("v", "int8"))),),
        ),
        Field("c", "fixed_size_list:struct:2", children=(Field("item", "int8"),)),
        Field("c", "fixed_size_list:struct:-2", children=(ENTRIES,)),
    ],
    ids=str,
)
def test_invalid_child_fields_are_corrupt(stored: Field) -> None:
    """A map or list without its parts would otherwise fail later, as an index error."""
    with pytest.raises(CorruptDataError) as refused:
        arrow_schemas.field_to_arrow(stored)
    assert "column: 'c'" in refused.value.__notes__


def test_primary_keys_are_stored_in_fields() -> None:
    """Other engines read the unenforced key from the fields of the manifest, not from Arrow
    metadata.
    """
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = arrow_schemas.from_arrow(
        pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), ("x", pa.int8())])
    )
    assert [value.primary_key_position for value in schema.fields] == [0, None]
    assert [value.unenforced_primary_key for value in fields_to_proto(schema.fields)] == [
        True,
        False,
    ]
