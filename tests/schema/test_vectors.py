"""Array columns that a new table stores as vectors."""

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.schema.vectors import with_vectors

SCHEMA = pa.schema(
    [("id", pa.int64()), ("v", pa.list_(pa.float32())), ("w", pa.large_list(pa.float64()))]
)


def test_named_lists_become_vectors() -> None:
    """Other engines index fixed-size lists only, and Spark has none."""
    schema = with_vectors(SCHEMA, {"v": 4, "w": 2})
    assert schema.field("v").type == pa.list_(pa.float32(), 4)
    assert schema.field("w").type == pa.list_(pa.float64(), 2)
    assert with_vectors(schema, {"v": 4}) == schema


@pytest.mark.parametrize(
    ("sizes", "error", "message"),
    [
        ({"x": 4}, NotFoundError, "there is no column 'x' to store as a vector; there are: id"),
        ({"id": 4}, InvalidInputError, "it is int64, not a list of numbers"),
    ],
)
def test_other_columns_are_refused(
    sizes: dict[str, int], error: type[Exception], message: str
) -> None:
    """A mistyped name would otherwise create a table whose vectors nobody can search."""
    with pytest.raises(error, match=message):
        with_vectors(SCHEMA, sizes)


def test_a_vector_keeps_its_size() -> None:
    """The size of a table's vectors is fixed when the table is created."""
    with pytest.raises(InvalidInputError, match="cannot be stored as a vector of 5 items"):
        with_vectors(with_vectors(SCHEMA, {"v": 4}), {"v": 5})
