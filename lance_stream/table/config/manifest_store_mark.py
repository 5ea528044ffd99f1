"""The mark of an external manifest store: a config entry that names where versions are published.

    lance_stream.manifest_store     "{kind of store} {base uri}"     "postgresql s3://bucket/t"

A writer that opens a table without its manifest store may be one version behind, and could publish
a version number that another writer has published through the store. Every version that this
library publishes through a store has the mark, so that its writers without the store refuse to
write. The mark contains no secrets: neither the store's address nor a user name.

A restore keeps the mark of the newest version.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from lance_stream.errors import InvalidInputError
from lance_stream.table.paths import TREE_DIRECTORY, branch_directory

CONFIG_KEY: Final = "lance_stream.manifest_store"


def mark_of(kind: str, base_uri: str) -> str:
    """Return the mark of a store.

    Args:
        kind: "dynamodb", "postgresql", "sqlite".
        base_uri: The table's name in the store.
    """
    return f"{kind} {base_uri}"


def check_not_marked(entries: Mapping[str, str | None]) -> None:
    """Check that a user does not set or remove the mark: all later writers would be refused.

    Raises:
        InvalidInputError: The mark is among the entries.
    """
    if CONFIG_KEY in entries:
        raise InvalidInputError(
            f"the config entry {CONFIG_KEY} is written by commits. To publish versions in a "
            "manifest store, set the storage option manifest_store; to stop, call "
            "lance_stream.leave_manifest_store()"
        )


def is_of_one_table(mark: str, uri: str, branch: str) -> bool:
    """Return whether a version's mark belongs to the table of a branch.

    The first version of a branch has the mark of the version from which it was created, which may
    be on the main branch or another one; the store identifies each branch by its directory.

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
