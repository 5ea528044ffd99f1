"""What a failed update of indices says about those that succeeded."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import pytest

from lance_stream.maintenance.indices.update_indices import _message_about


@pytest.mark.parametrize(
    ("problems", "others", "message"),
    [
        ({"a": "no file"}, [], "the index a. a: no file. The table is unchanged. "),
        ({"a": "x", "b": "y"}, [], "the indices a, b. a: x. b: y. The table is unchanged. "),
        ({"a": "x"}, ["c", "b"], "the index a. a: x. b, c are up to date in version 7. "),
    ],
)
def test_messages_name_updated_indices(
    problems: Mapping[str, str], others: Sequence[str], message: str
) -> None:
    """A user repeats the update only for those that failed."""
    table = SimpleNamespace(version=7)
    text = _message_about(problems, table, others)  # type: ignore[arg-type]  # only its version
    assert text.startswith(f"pylance could not update {message}If an index is damaged")
