"""The statements of manifest stores in SQL databases.

A statement has the placeholders `{table}` and `?`, which each database converts to its syntax.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore

DEFAULT_TABLE: Final = "lance_manifests"

_INSERT: Final = (
    "INSERT INTO {table} (base_uri, version, path, size) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"
)
_UPDATE: Final = "UPDATE {table} SET path = ?, size = ? WHERE base_uri = ? AND version = ?"
_SELECT: Final = "SELECT version, path, size FROM {table} WHERE base_uri = ?"
_LATEST_OF_ALL: Final = (
    "SELECT base_uri, version, path, size FROM {{table}} AS newest WHERE base_uri IN ({marks}) "
    "AND version = (SELECT max(version) FROM {{table}} WHERE base_uri = newest.base_uri)"
)
_DELETE: Final = "DELETE FROM {table} WHERE base_uri = ? AND version = ?"


class Answer(NamedTuple):
    """A database's answer to one statement.

    Attributes:
        rows: The selected rows.
        row_counts: The number of rows that were written or changed, per list of values.
    """

    rows: Sequence[Sequence[Any]]
    row_counts: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """The number of rows that were written or changed for the last list of values."""
        return self.row_counts[-1]


class SqlManifests(ManifestStore):
    """The items in a table of a database; see `ManifestStore`."""

    @abstractmethod
    def execute(
        self,
        what: str,
        statement: str,
        values: Sequence[Sequence[Any]],
        *,
        all_or_none: bool = False,
    ) -> Answer:
        """Run a statement once per list of values, in one transaction.

        Args:
            what: The request, for errors.
            statement: The statement.
            values: The lists of values, at least one; exactly one for a SELECT.
            all_or_none: Whether to roll back if the statement changes no row for one of the lists.

        Returns:
            The rows for the last list, and the number of changed rows per list, even if the
            transaction was rolled back.
        """
        ...

    def put_if_not_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Put an item, unless there is one; see `ManifestStore.put_if_not_exists`."""
        answer = self.execute(f"putting version {item.version}", _INSERT, [(base_uri, *item)])
        return answer.num_rows == 1

    def put_if_exists(self, base_uri: str, item: ManifestItem) -> bool:
        """Replace the item of a version; see `ManifestStore.put_if_exists`."""
        answer = self.execute(
            f"putting the final path of version {item.version}",
            _UPDATE,
            [(item.path, item.size_bytes, base_uri, item.version)],
        )
        return answer.num_rows == 1

    def put_all_if_not_exist(self, items: Mapping[str, ManifestItem]) -> frozenset[str]:
        """Put items of several tables, or none; see `ManifestStore.put_all_if_not_exist`."""
        names = sorted(items)  # sorted, so that two writers do not deadlock
        answer = self.execute(
            f"putting versions of {len(items)} tables",
            _INSERT,
            [(name, *items[name]) for name in names],
            all_or_none=True,
        )
        return frozenset(
            name for name, num_rows in zip(names, answer.row_counts, strict=True) if not num_rows
        )

    def get(self, base_uri: str, version: int) -> ManifestItem | None:
        """Return the item of a version; see `ManifestStore.get`."""
        items = self._select(f"the item of version {version}", "AND version = ?", base_uri, version)
        return items[0] if items else None

    def latest(self, base_uri: str) -> ManifestItem | None:
        """Return the item of the newest version; see `ManifestStore.latest`."""
        items = self._select("the newest item", "ORDER BY version DESC LIMIT 1", base_uri)
        return items[0] if items else None

    def latest_of_all(self, base_uris: Sequence[str]) -> dict[str, ManifestItem]:
        """Return the newest items at one moment; see `ManifestStore.latest_of_all`."""
        statement = _LATEST_OF_ALL.format(marks=", ".join("?" * len(base_uris)))
        answer = self.execute(
            f"the newest items of {len(base_uris)} tables", statement, [base_uris]
        )
        return {name: ManifestItem(*rest) for name, *rest in answer.rows}

    def items(self, base_uri: str) -> list[ManifestItem]:
        """Return all items of a table, ascending."""
        return self._select("all items", "ORDER BY version", base_uri)

    def delete(self, base_uri: str, versions: Sequence[int]) -> None:
        """Delete the items of versions; see `ManifestStore.delete`."""
        if versions:
            self.execute(
                f"the deletion of {len(versions)} items",
                _DELETE,
                [(base_uri, version) for version in versions],
            )

    def _select(self, what: str, rest: str, *values: object) -> list[ManifestItem]:
        answer = self.execute(what, f"{_SELECT} {rest}", [values])
        return [ManifestItem(*row) for row in answer.rows]
