import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.schema.arrow_schemas import from_arrow, to_arrow
from lance_stream.schema.column_paths import split_path
from lance_stream.schema.projections import project

ADDRESS = pa.struct([("city", pa.string()), ("zip", pa.int32()), ("geo.hash", pa.string())])
SCHEMA = from_arrow(
    pa.schema(
        [("id", pa.int64()), ("place", ADDRESS), ("tags", pa.list_(ADDRESS)), ("a.b", pa.int8())]
    )
)


def projected(*columns: str) -> pa.Schema:
    return to_arrow(project(SCHEMA, columns))


def test_columns_come_in_the_requested_order() -> None:
    """Users and Spark address the result by position."""
    assert projected("place", "id").names == ["place", "id"]


def test_no_requested_columns_means_all() -> None:
    """None is the default, while an empty list asks for rows without columns."""
    assert project(SCHEMA, None) == SCHEMA
    assert projected() == pa.schema([])


def test_paths_keep_only_parts_of_structs() -> None:
    """Unrequested parts of a struct must not be read from storage."""
    assert projected("place.zip") == pa.schema([("place", pa.struct([("zip", pa.int32())]))])


def test_paths_into_a_struct_are_merged() -> None:
    """The paths make one column, in the schema's order."""
    assert projected("place.zip", "id", "place.city") == pa.schema(
        [("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])), ("id", pa.int64())]
    )


def test_a_path_goes_through_lists() -> None:
    """Spark prunes fields of structs in lists by the same path."""
    assert projected("tags.city") == pa.schema(
        [("tags", pa.list_(pa.struct([("city", pa.string())])))]
    )


def test_dotted_names_take_precedence_over_paths() -> None:
    """Backticks quote a name."""
    assert projected("a.b").names == ["a.b"]
    assert projected("`a.b`").names == ["a.b"]
    assert projected("place.`geo.hash`").field("place").type.names == ["geo.hash"]


def test_a_whole_column_includes_its_parts() -> None:
    """A part that is requested as well must not narrow the whole column."""
    assert projected("place.zip", "place") == pa.schema([("place", ADDRESS)])


def test_unknown_columns_list_the_present_ones() -> None:
    """The list shows a typing mistake at once, on the level where it happened."""
    with pytest.raises(NotFoundError, match=r"no column 'town' in 'place'; there are: city, zip"):
        projected("place.town")
    with pytest.raises(NotFoundError, match="no column 'ID'"):
        projected("ID")
    with pytest.raises(NotFoundError, match="no column 'x' in 'id', which has no fields"):
        projected("id.x")


def test_a_column_requested_twice_is_refused() -> None:
    """Two result columns of one name could not be told apart."""
    with pytest.raises(InvalidInputError, match="twice"):
        projected("id", "id")


@pytest.mark.parametrize("column", ["", ".", "a.", "`a", ".a"])
def test_a_malformed_path_is_refused(column: str) -> None:
    """A guess at unbalanced backticks or empty parts could read another column."""
    with pytest.raises(InvalidInputError):
        split_path(column)


def test_doubled_backticks_mean_one() -> None:
    """Spark quotes names in this way, and names may contain dots and backticks."""
    assert split_path("`a``b`.c") == ("a`b", "c")


def test_paths_enter_lists_not_maps() -> None:
    """A map without its keys or values is no map, so its parts cannot be requested."""
    points = pa.list_(pa.struct([("x", pa.int8()), ("y", pa.int8())]), 2)
    tags = pa.map_(pa.string(), pa.struct([("n", pa.int8())]))
    schema = from_arrow(pa.schema([("p", points), ("m", tags)]))
    assert to_arrow(project(schema, ["p.y", "m"])) == pa.schema(
        [("p", pa.list_(pa.struct([("y", pa.int8())]), 2)), ("m", tags)]
    )
    for path in ("m.key", "m.entries", "m.value.n", "m.n"):
        with pytest.raises(NotFoundError, match="no column"):
            project(schema, [path])
