"""What tells a version from one of another table that has the same number.

A table that was deleted and made anew under its location has versions of the same numbers, and so
has one that was put back from a copy and written to since. A manifest says when it was made, to the
nanosecond, and the name of its transaction's file; no other version says both.
"""

import hashlib
from typing import Final

from lance_stream.table.manifest import Manifest

_MARK_DIGITS: Final = 16


def mark_of(manifest: Manifest) -> str:
    """Return a digest by which a version is known from one of another table with its number."""
    said = f"{manifest.version}\n{manifest.timestamp_nanos}\n{manifest.transaction_file}"
    return hashlib.sha256(said.encode()).hexdigest()[:_MARK_DIGITS]


def is_same_version(one: Manifest, other: Manifest) -> bool:
    """Say whether two manifests are of one version of one table.

    Those of old writers that say neither time nor transaction are compared by their columns and
    fragments.
    """
    if one is other:
        return True
    if mark_of(one) != mark_of(other):
        return False
    return bool(one.timestamp_nanos and one.transaction_file) or (
        one.schema == other.schema and one.fragments.framed == other.fragments.framed
    )


def may_derive_from(newer: Manifest, older: Manifest) -> bool:
    """Say whether a version may have followed an older one, whose manifest is gone by now.

    It is assumed to where it has the same columns, or names a data file of the older one.
    """
    if newer.schema == older.schema:
        return True
    for fragment_id in older.fragments.ids:
        fragments = older.fragments.by_id(fragment_id), newer.fragments.by_id(fragment_id)
        before, now = ({file.path for file in each.files} if each else set() for each in fragments)
        if before & now:
            return True
    return False
