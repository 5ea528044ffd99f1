"""Distinguishes a version from another table's version of the same number.

A table that was deleted and re-created at the same location has versions with the same numbers, and
so has one that was restored from a copy and written to since. A manifest contains the time when it
was created, in nanoseconds, and the name of its transaction file; no other version has both.
"""

import hashlib
from typing import Final

from lance_stream.table.manifest import Manifest

_MARK_DIGITS: Final = 16


def mark_of(manifest: Manifest) -> str:
    """Return a digest that distinguishes a version from another table's of the same number."""
    identity = f"{manifest.version}\n{manifest.timestamp_nanos}\n{manifest.transaction_file}"
    return hashlib.sha256(identity.encode()).hexdigest()[:_MARK_DIGITS]


def is_same_version(one: Manifest, other: Manifest) -> bool:
    """Return whether two manifests are of the same version of the same table.

    Manifests of old writers without time and transaction are compared by columns and fragments.
    """
    if one is other:
        return True
    if mark_of(one) != mark_of(other):
        return False
    return bool(one.timestamp_nanos and one.transaction_file) or (
        one.schema == other.schema and one.fragments.raws == other.fragments.raws
    )


def may_derive_from(newer: Manifest, older: Manifest) -> bool:
    """Return whether a version may have followed an older one whose manifest no longer exists.

    This is assumed if it has the same columns, or names a data file of the older one.
    """
    if newer.schema == older.schema:
        return True
    for fragment_id in older.fragments.ids:
        fragments = older.fragments.by_id(fragment_id), newer.fragments.by_id(fragment_id)
        before, now = (
            {file.path for file in fragment.files} if fragment else set() for fragment in fragments
        )
        if before & now:
            return True
    return False
