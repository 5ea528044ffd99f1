import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError, UnsupportedFeatureError
from lance_stream.schema import arrow_schemas
from lance_stream.schema.field_ids import assign_ids
from lance_stream.schema.fields import Field, fields_from_proto, fields_to_proto

LEAVES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.decimal128(38, 0), pa.decimal128(10, -2), pa.decimal256(50, 3)),
    *(pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
    *(pa.timestamp("s"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "+05:30")),
    *(pa.duration("s"), pa.duration("ms"), pa.duration("us"), pa.duration("ns")),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(7)),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.timestamp("us", "UTC"))),
    *(pa.list_(pa.float32(), 16), pa.list_(pa.list_(pa.float16(), 2), 3), pa.list_(pa.bool_(), 5)),
]


def field(name: str, arrow: pa.DataType, nullable: bool) -> pa.Field:
    return pa.field(name, arrow, nullable or arrow == pa.null())


def nested(types: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    fields = st.builds(field, st.sampled_from("abc"), types, st.booleans())
    return st.one_of(
        fields.map(pa.list_),
        fields.map(pa.large_list),
        st.lists(fields, max_size=3, unique_by=lambda each: each.name).map(pa.struct),
    )


arrow_types = st.recursive(st.sampled_from(LEAVES), nested, max_leaves=6)


@given(arrow_types, st.booleans())
def test_an_arrow_type_comes_back_from_the_stored_fields(
    arrow: pa.DataType, nullable: bool
) -> None:
    schema = pa.schema([pa.field("first", pa.int8()), field("c", arrow, nullable)])
    tree = assign_ids(arrow_schemas.from_arrow(schema))
    stored = fields_from_proto(fields_to_proto(tree.fields))
    assert stored == tree.fields
    assert arrow_schemas.to_arrow(tree).equals(schema, check_metadata=True)


def test_metadata_of_schema_and_fields_is_kept() -> None:
    schema = pa.schema(
        [pa.field("a", pa.struct([pa.field("b", pa.int8(), metadata={"k": "v"})]))],
        metadata={b"raw": b"\xff\x00"},
    )
    assert arrow_schemas.to_arrow(arrow_schemas.from_arrow(schema)).equals(
        schema, check_metadata=True
    )


def test_views_are_stored_as_the_plain_type() -> None:
    schema = pa.schema([("s", pa.string_view()), ("b", pa.binary_view())])
    assert arrow_schemas.to_arrow(arrow_schemas.from_arrow(schema)).types == [
        pa.string(),
        pa.binary(),
    ]


def test_ids_are_given_depth_first_parents_before_children() -> None:
    schema = pa.schema(
        [("a", pa.int8()), ("l", pa.list_(pa.struct([("x", pa.int8())]))), ("b", pa.int8())]
    )
    tree = assign_ids(arrow_schemas.from_arrow(schema), first_id=10)
    assert [(each.name, each.id) for each in tree.walk()] == [
        ("a", 10),
        ("l", 11),
        ("item", 12),
        ("x", 13),
        ("b", 14),
    ]
    assert tree.max_field_id() == 14


@pytest.mark.parametrize(
    ("arrow", "says"),
    [
        (pa.map_(pa.string(), pa.int8()), "maps are not supported"),
        (pa.list_(pa.struct([("x", pa.int8())]), 2), "fixed-size lists of structs"),
        (pa.uuid(), "extension type"),
    ],
    ids=str,
)
def test_a_type_that_comes_later_is_refused_by_name(arrow: pa.DataType, says: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=says):
        arrow_schemas.from_arrow(pa.schema([("c", arrow)]))


@pytest.mark.parametrize(
    "arrow",
    [
        pa.month_day_nano_interval(),
        pa.list_(pa.string(), 2),
        pa.run_end_encoded(pa.int32(), pa.int8()),
        pa.list_view(pa.int8()),
    ],
    ids=str,
)
def test_a_type_that_the_format_cannot_hold_is_refused_with_its_column(arrow: pa.DataType) -> None:
    with pytest.raises(InvalidInputError) as refused:
        arrow_schemas.from_arrow(pa.schema([("outer", pa.struct([("bad", arrow)]))]))
    assert "column: 'bad'" in refused.value.__notes__


def test_two_columns_of_one_name_are_refused() -> None:
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
        ("fixed_size_binary:-1", CorruptDataError),
        ("fixed_size_binary:x", CorruptDataError),
        ("fixed_size_list:float:0", CorruptDataError),
        ("fixed_size_list:float:99999999999", CorruptDataError),
        ("dict:string:float:false", CorruptDataError),
        ("dict:string", CorruptDataError),
        ("list", CorruptDataError),
    ],
)
def test_a_damaged_logical_type_is_bad_data(logical_type: str, error: type[Exception]) -> None:
    with pytest.raises(error) as refused:
        arrow_schemas.field_to_arrow(Field(name="c", logical_type=logical_type))
    assert "column: 'c'" in refused.value.__notes__


@pytest.mark.parametrize(
    "stored",
    [
        Field("c", "struct", metadata={"packed": b"true"}),
        Field("c", "large_binary", metadata={"lance-encoding:blob": b"true"}),
        Field("c", "map"),
        Field("c", "fixed_size_list:struct:2"),
        Field("c", "fixed_size_list:lance.bfloat16:2"),
    ],
    ids=lambda stored: stored.logical_type,
)
def test_stored_features_that_come_later_are_refused(stored: Field) -> None:
    with pytest.raises(UnsupportedFeatureError):
        arrow_schemas.field_to_arrow(stored)


def test_a_declared_primary_key_is_stored_in_the_field_itself() -> None:
    key = {"lance-schema:unenforced-primary-key": "true"}
    schema = arrow_schemas.from_arrow(
        pa.schema([pa.field("id", pa.int64(), nullable=False, metadata=key), ("x", pa.int8())])
    )
    assert [each.primary_key_position for each in schema.fields] == [0, None]
    assert [each.unenforced_primary_key for each in fields_to_proto(schema.fields)] == [True, False]
