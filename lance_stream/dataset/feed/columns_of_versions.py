"""The feed's columns, which are those of one version, found in other versions.

A column is found by its field id (a rename keeps the id); beyond an overwrite, which may give ids
to other columns, by its name, if the type can be cast. What a version does not have is null.
"""

from collections.abc import Sequence

import pyarrow as pa

from lance_stream.dataset.casting import check_castable
from lance_stream.dataset.feed.change_units import feed_schema
from lance_stream.dataset.history import read_transaction
from lance_stream.dataset.scan import names_of
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.schema.arrow_schemas import field_to_arrow, to_arrow
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.projections import project, split_path
from lance_stream.table.operations import Overwrite


class FeedColumns:
    """The columns that the feed of an interval has.

    Args:
        last: The interval's last version, whose columns they are.
        columns: Names or paths; None for all.
        after: The version after which the interval begins.

    Attributes:
        own: The table's own columns among the feed's, all of them nullable.
        arrow_schema: The feed's columns: these, then the change columns.

    Raises:
        NotFoundError: A column is not there.
    """

    def __init__(self, last: TableVersion, columns: Sequence[str] | None, after: int) -> None:
        self._last = last
        self._after = after
        self._columns = names_of(last, columns)
        self._wanted = project(last.schema, self._columns)
        self.own = pa.schema([each.with_nullable(True) for each in to_arrow(self._wanted)])
        self.arrow_schema = feed_schema(self.own)
        self._ids_hold_from: int | None = None

    def sources(self, table: TableVersion) -> tuple[Field | None, ...]:
        """Return for each of the feed's own columns what of a version it is read from."""
        return tuple(self._source_of(each, table) for each in self._wanted.fields)

    def _source_of(self, wanted: Field, table: TableVersion) -> Field | None:
        if table.schema == self._last.schema:
            return wanted
        if table.version >= self._first_version_of_ids():
            return wanted if _has_needed_parts(wanted, table.schema) else None
        try:
            part = project(
                Schema(tuple(each for each in table.schema.fields if each.name == wanted.name)),
                [each for each in self._columns if self._head(each) == wanted.name],
            )
            check_castable(to_arrow(part), pa.schema([field_to_arrow(wanted).with_nullable(True)]))
        except (NotFoundError, InvalidInputError):
            return None
        return part.fields[0]

    def _head(self, column: str) -> str:
        """Return the top-level column of a path."""
        return column if column in self._last.schema.names else split_path(column)[0]

    def _first_version_of_ids(self) -> int:
        """Return the first version from which on field ids stand for the same columns."""
        if self._ids_hold_from is None:
            newer = self._last
            for version in range(self._last.version - 1, self._after - 1, -1):
                if version < 1 or not _keeps_ids(newer):
                    break
                try:
                    newer = self._last.at(self._last.log.read(version))
                except NotFoundError:
                    break  # between the ends of net changes; nobody knows what happened there
            self._ids_hold_from = newer.version
        return self._ids_hold_from


def _keeps_ids(table: TableVersion) -> bool:
    """Return whether a version's columns have the ids that they had in the version before."""
    transaction = read_transaction(table.store, table.manifest)
    return transaction is not None and not isinstance(transaction.operation, Overwrite)


def _has_needed_parts(wanted: Field, schema: Schema) -> bool:
    """Return whether a version has a column, and of its parts those that must not be null."""
    ids = {each.id for each in schema.walk()}
    return wanted.id in ids and all(
        each.id in ids or each.nullable for child in wanted.children for each in child.walk()
    )
