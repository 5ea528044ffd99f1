"""The required content of a branch file."""

from typing import Any

import pytest

from lance_stream.errors import CorruptDataError
from lance_stream.snapshot.references import _as_branch


@pytest.mark.parametrize(
    "changes",
    [
        {"parentVersion": None},
        {"parentVersion": "3"},
        {"parentVersion": True},
        {"parentBranch": 7},
        {"metadata": []},
        {"metadata": None},
    ],
)
def test_invalid_branch_files_are_corrupt(changes: dict[str, Any]) -> None:
    """The version at which a branch starts determines which files a cleanup keeps."""
    content = {"parentVersion": 3, "parentBranch": "main", "createAt": 5, "metadata": {"a": "b"}}
    branch = _as_branch("dev", content)
    assert (branch.parent, branch.metadata) == (None, {"a": "b"})
    assert _as_branch("dev", {"parentVersion": 3}).metadata == {}
    assert _as_branch("dev", {**content, "parentBranch": "x"}).parent == "x"
    with pytest.raises(CorruptDataError, match="does not state the version and branch"):
        _as_branch("dev", {**content, **changes})
    with pytest.raises(CorruptDataError, match="is not a JSON object"):
        _as_branch("dev", list(content))
