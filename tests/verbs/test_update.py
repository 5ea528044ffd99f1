"""Updates that are refused."""

import uuid

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError, NotFoundError


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"id": "x"}, "'id' is double"),
        ({"y": "1"}, "no column 'y'"),
        ({"x": "1 +"}, "1 \\+"),
        ({}, "at least one column"),
    ],
)
def test_invalid_updates_change_nothing(values: dict[str, str], match: str) -> None:
    """An update that fails halfway must not leave a version."""
    rows = pa.table({"id": pa.array(range(5)), "x": pa.array([0.5] * 5)})
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows)
    with pytest.raises((InvalidInputError, NotFoundError), match=match):
        ds.update(values)
    assert lance_stream.open_dataset(ds.uri).version == ds.version
