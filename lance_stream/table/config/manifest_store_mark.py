"""The mark of an external manifest store: a config entry that names where versions are published.

    lance_stream.manifest_store     "{kind of store} {base uri}"     "postgresql s3://bucket/t"

A writer that opens a table without its manifest store may be one version behind, and could publish
a version number that the store has given to another writer. Each version that we publish through a
store has the mark, so that our own writers without the store notice. It contains no secrets:
neither the store's address nor a user name.

A restore does not bring back an older version's mark: the newest version's is kept.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from lance_stream.table.paths import TREE_DIRECTORY, branch_directory

CONFIG_KEY: Final = "lance_stream.manifest_store"


def mark_of(kind: str, base_uri: str) -> str:
    """Return the mark of a store.

    Args:
        kind: "dynamodb", "postgresql", "sqlite".
        base_uri: The table's name in the store.
    """
    return f"{kind} {base_uri}"


def is_of_one_table(mark: str, uri: str, branch: str) -> bool:
    """Return whether the mark that a branch was created with belongs to the same table.

    The first version of a branch has the mark of the version that it was created from, of the main
    branch or another one: the store identifies each by its own directory.

    Args:
        mark: The mark of a version.
        uri: The mark of the branch.
        branch: The branch's name.
    """
    for ending in (f"/{branch_directory(branch)}", f"/{quote(branch_directory(branch))}"):
        if uri.endswith(ending):
            table = uri.removesuffix(ending)
            return mark == table or mark.startswith(f"{table}/{TREE_DIRECTORY}/")
    return False


def carried(restored: Mapping[str, str], newest: Mapping[str, str]) -> dict[str, str]:
    """Return an older version's config with the newest version's mark, or with none."""
    config = {key: value for key, value in restored.items() if key != CONFIG_KEY}
    if CONFIG_KEY in newest:
        config[CONFIG_KEY] = newest[CONFIG_KEY]
    return config
