"""The user's view of branches: `ds.branches`."""

from lance_stream.snapshot import references
from lance_stream.snapshot.references import Branch
from lance_stream.snapshot.table_version import TableVersion


class Branches:
    """The branches of a table: separate histories beside the main one.

    Open one by `ds.checkout(("dev", None))`, or by its folder inside the table's, `tree/dev`; it
    can then be read, written, followed and cleaned up like a table. Create and delete branches
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

        Files that do not describe a branch are skipped, with a warning that names them.
        """
        return references.list_branches(self._table.refs)
