"""Whether a version of a branch belongs to the same table in a manifest store."""

import pytest

from lance_stream.table.config.manifest_store_mark import is_of_one_table
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
