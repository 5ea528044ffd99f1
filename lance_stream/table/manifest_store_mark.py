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

CONFIG_KEY: Final = "lance_stream.manifest_store"


def mark_of(kind: str, base_uri: str) -> str:
    """Return the mark of a store.

    Args:
        kind: "dynamodb", "postgresql", "sqlite".
        base_uri: What the store knows the table by.
    """
    return f"{kind} {base_uri}"


def carried(restored: Mapping[str, str], newest: Mapping[str, str]) -> dict[str, str]:
    """Return an older version's config with the newest version's mark, or with none."""
    config = {key: value for key, value in restored.items() if key != CONFIG_KEY}
    if CONFIG_KEY in newest:
        config[CONFIG_KEY] = newest[CONFIG_KEY]
    return config
