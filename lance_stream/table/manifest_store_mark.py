"""The mark of an external manifest store: a config entry that says how versions are published.

    lance_stream.manifest_store     "{kind of store} {base uri}"     "postgresql s3://bucket/t"

Whoever opens a table without its manifest store sees versions that are up to one behind, and could
publish a version that the store has given to another. Each version that we publish through a store
has the mark, so that writers of ours who do not know of the store learn of it. It holds nothing
secret: not where the store is, and no name of a user.

A restore does not bring an older version's mark back: the mark is the newest version's.
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
        base_uri: What the store knows the table by.
    """
    return f"{kind} {base_uri}"


def is_of_one_table(mark: str, own: str, branch: str) -> bool:
    """Return whether a mark that a branch was made with is one of the same table.

    The first version of a branch has the mark of the version that it was made from, of the main
    branch or another one: each is known to the store by its own directory.

    Args:
        mark: The one that a version has.
        own: That of the branch.
        branch: The branch's name.
    """
    for ending in (f"/{branch_directory(branch)}", f"/{quote(branch_directory(branch))}"):
        if own.endswith(ending):
            table = own.removesuffix(ending)
            return mark == table or mark.startswith(f"{table}/{TREE_DIRECTORY}/")
    return False


def carried(restored: Mapping[str, str], newest: Mapping[str, str]) -> dict[str, str]:
    """Return an older version's config with the newest version's mark, or with none."""
    config = {key: value for key, value in restored.items() if key != CONFIG_KEY}
    if CONFIG_KEY in newest:
        config[CONFIG_KEY] = newest[CONFIG_KEY]
    return config
