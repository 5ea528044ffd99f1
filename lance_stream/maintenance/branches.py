"""Branches as users hold them: `ds.branches`."""

from lance_stream.snapshot import references
from lance_stream.snapshot.references import Branch
from lance_stream.snapshot.table_version import TableVersion


class Branches:
    """The branches of a table: histories of their own beside the main one.

    One is opened by `ds.checkout(("dev", None))`, or by its folder in the table's, `tree/dev`; it
    is then read, written to, followed and cleaned up like a table. Branches are made and deleted
    with pylance.

    Args:
        table: A version of the table, or of a branch.
    """

    def __init__(self, table: TableVersion) -> None:
        self._table = table

    def __repr__(self) -> str:
        return f"<Branches of {self._table.uri!r}>"

    def list(self) -> dict[str, Branch]:
        """Return all branches by name, in the order of their names.

        Files that do not describe a branch are passed over, and named in a warning.
        """
        return references.list_branches(self._table.refs)
