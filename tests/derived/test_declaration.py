"""The declaration of derived columns refuses arguments that are no names."""

from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import InvalidInputError
from lance_stream.derived.declaration import STATE_SUFFIX, declare


@pytest.mark.parametrize("name", ["", 5, b"x", ["x"]])
@pytest.mark.parametrize("argument", ["name", "function_version"])
def test_names_are_texts_with_characters(argument: str, name: Any) -> None:
    """Name and version are stored in the table's config, and the next process compares them."""
    arguments = {"name": "x", "function_version": "1", argument: name}
    with pytest.raises(InvalidInputError, match="must be a string"):
        lance_stream.derive(
            "memory://a/t", {"y": pa.int64()}, lambda batch: batch["x"], ["x"], **arguments
        )


@pytest.mark.parametrize(
    "outputs",
    [
        pa.field("y", pa.int64(), nullable=False),
        [pa.field("y", pa.int64())],
        pa.schema([("y", pa.int64())]),
        {"y": pa.int64()},
    ],
)
def test_outputs_have_four_forms(outputs: Any) -> None:
    """All declare the same nullable columns."""
    declaration = declare(outputs, len, "x", function_version="1")
    assert declaration.outputs == pa.schema([("y", pa.int64())])


@pytest.mark.parametrize("outputs", [[], {}, 5, ["y"], [pa.field("y", pa.int64()), "z"], {"y": 5}])
def test_other_outputs_are_refused(outputs: Any) -> None:
    """The error shows the forms."""
    with pytest.raises(InvalidInputError, match="outputs must be a mapping from names to Arrow"):
        declare(outputs, len, "x", function_version="1")


@pytest.mark.parametrize(
    ("inputs", "copied", "repeated"),
    [
        (["x"], ["x"], None),
        (["x"], ["id"], None),
        (["x", "y"], [], "y"),
        (["x"], ["y"], "y"),
        (["x"], ["y_state"], "y_state"),
        (["x", "x"], [], "x"),
        (["x"], ["id", "id"], "id"),
    ],
)
def test_columns_have_one_role(inputs: list[str], copied: list[str], repeated: str | None) -> None:
    """A column may be read and copied, but not read and written."""
    state = STATE_SUFFIX
    named = [name.replace("_state", state) for name in copied]
    arguments: dict[str, Any] = {"function_version": "1", "copy_columns": named}
    if repeated is None:
        declare({"y": pa.int64()}, len, inputs, **arguments)
        return
    with pytest.raises(InvalidInputError, match="occurs more than once") as raised:
        declare({"y": pa.int64()}, len, inputs, **arguments)
    assert repr(repeated.replace("_state", state)) in str(raised.value)
