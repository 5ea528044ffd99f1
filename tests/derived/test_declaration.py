"""The declaration of derived columns refuses arguments that are no names."""

from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import InvalidInputError


@pytest.mark.parametrize("name", ["", 5, b"x", ["x"]])
@pytest.mark.parametrize("argument", ["name", "function_version"])
def test_names_are_texts_with_characters(argument: str, name: Any) -> None:
    """Name and version are stored in the table's config, and the next process compares them."""
    arguments = {"name": "x", "function_version": "1", argument: name}
    with pytest.raises(InvalidInputError, match="must be a string"):
        lance_stream.derive(
            "memory://a/t", {"y": pa.int64()}, lambda batch: batch["x"], ["x"], **arguments
        )
