"""Distinguishes a version from another table's version of the same number.

A table that was deleted and re-created at the same location has versions with the same numbers; so
has a table that was restored from a copy and written to since. A manifest has the time of its
creation, in nanoseconds, and the name of its transaction file; no other version has both.
"""

import hashlib
from typing import Final

from lance_stream.table.manifest import Manifest

_MARK_DIGITS: Final = 16


def mark_of(manifest: Manifest) -> str:
    """Return a digest that distinguishes a version from those of other tables."""
    identity = f"{manifest.version}\n{manifest.timestamp_nanos}\n{manifest.transaction_file}"
    return hashlib.sha256(identity.encode()).hexdigest()[:_MARK_DIGITS]


def is_same_version(one: Manifest, other: Manifest) -> bool:
    """Return whether two manifests describe the same version of the same table.

    Manifests of old writers, without timestamp and transaction, are compared by columns and
    fragments.
    """
    if one is other:
        return True
    if mark_of(one) != mark_of(other):
        return False
    return bool(one.timestamp_nanos and one.transaction_file) or (
        one.schema == other.schema and one.fragments.raws == other.fragments.raws
    )


def may_derive_from(newer: Manifest, older: Manifest) -> bool:
    """Return whether a version may be a successor of an older one whose manifest no longer exists.

    It may be one if it has the same columns, or names a data file of the older version.
    """
    if newer.schema == older.schema:
        return True
    for fragment_id in older.fragments.ids:
        fragments = older.fragments.by_id(fragment_id), newer.fragments.by_id(fragment_id)
        old_paths, new_paths = (
            {file.path for file in fragment.files} if fragment else set() for fragment in fragments
        )
        if old_paths & new_paths:
            return True
    return False
