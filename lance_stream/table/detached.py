"""Detached versions: versions outside of a table's history, which the reference can create.

    _versions/d{version}.manifest     a random number with its highest bit set

A detached version is the result of applying one transaction to a version; no version follows it. It
is opened by its number, or by a tag, and read like any other version. Its row ids may belong to
other rows in the history.

Source:  lance/src/io/commit.rs of release 14 (`do_commit_detached_transaction`), and experiments.
Differs: The reference can restore a detached version, or create a branch from it, so that a row id
         belongs to different rows of one history. Its writes fail with an internal error.
"""

from lance_stream.errors import InvalidInputError
from lance_stream.table.paths import is_detached


def check_is_attached(version: int) -> None:
    """Raise if a version is detached, and so can only be read.

    Raises:
        InvalidInputError: The version is detached.
    """
    if is_detached(version):
        raise InvalidInputError(
            f"version {version} is detached: it is not part of the table's history, so it can be "
            "read and tagged, but not written to, followed, cleaned up, restored or branched from. "
            "Use the newest version for that; to take over the rows of the detached version, read "
            "them, then append, upsert or overwrite with them"
        )
