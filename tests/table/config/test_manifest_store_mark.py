"""Whether a version of a branch belongs to the same table in a manifest store."""

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.table.config.manifest_store_mark import (
    CONFIG_KEY,
    carried,
    check_not_marked,
    is_of_one_table,
)
from lance_stream.table.paths import branch_directory

TABLE = "bucket/t"


@pytest.mark.parametrize(
    ("mark", "is_same"),
    [
        (TABLE, True),  # the main branch
        (f"{TABLE}/{branch_directory('dev')}", True),
        (f"{TABLE}/{branch_directory('other/branch')}", True),
        (f"{TABLE}2", False),
        (f"{TABLE}2/{branch_directory('dev')}", False),
        ("bucket", False),
        ("", False),
    ],
)
def test_branches_begin_with_their_tables_version(mark: str, is_same: bool) -> None:
    """A branch's first version has the mark of the branch from which it was created; the mark of
    another table means that its manifests were copied.
    """
    assert is_of_one_table(mark, f"{TABLE}/{branch_directory('dev')}", "dev") is is_same
    assert not is_of_one_table(mark, f"{TABLE}/{branch_directory('dev')}", "dev2")


@pytest.mark.parametrize("restored", [{}, {CONFIG_KEY: "sqlite s3://b/old"}])
@pytest.mark.parametrize("newest", [{}, {CONFIG_KEY: "sqlite s3://b/new"}])
def test_restores_keep_the_newest_mark(restored: dict[str, str], newest: dict[str, str]) -> None:
    """The table may have entered or left its store since the restored version."""
    assert carried({"a": "1", **restored}, {"b": "2", **newest}) == {"a": "1", **newest}


def test_users_cannot_change_the_mark() -> None:
    """All later writers would be refused, or would publish elsewhere."""
    check_not_marked({"a": "1", f"{CONFIG_KEY}.other": None})
    for value in "sqlite s3://b/t", None:
        with pytest.raises(InvalidInputError, match="is written by commits"):
            check_not_marked({CONFIG_KEY: value})
