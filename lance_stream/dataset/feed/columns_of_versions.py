"""The feed's columns, which are those of one version, found in other versions.

A field's id alone does not say which column it is: an overwrite gives ids anew, and so does what
is added after a restore. So columns are followed from version to version, back to the one that
both versions were made from: the version before, or the one that a restore brought back.

    the same id                             the same column, whatever it is called
    the id is new, the name is not, and     a column that was cast: the reference writes it under
    the id of that name is gone             another id
    an overwrite                            the same name
    otherwise                               a column that came then: older versions have none

If the versions between are gone, names decide. A column whose type cannot be cast, and one that a
version does not have, is null in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

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
from lance_stream.table.operations import Overwrite, Restore


class FeedColumns:
    """The columns that the feed of an interval has.

    Args:
        last: The interval's last version, whose columns they are.
        columns: Names or paths; None for all.

    Attributes:
        own: The table's own columns among the feed's, all of them nullable.
        arrow_schema: The feed's columns: these, then the change columns.

    Raises:
        NotFoundError: A column is not there.
    """

    def __init__(self, last: TableVersion, columns: Sequence[str] | None) -> None:
        self._last = last
        self._columns = names_of(last, columns)
        self._wanted = project(last.schema, self._columns)
        self.own = pa.schema([each.with_nullable(True) for each in to_arrow(self._wanted)])
        self.arrow_schema = feed_schema(self.own)
        names = set(self._wanted.names)
        self._lineage = _Lineage(last)
        self._followed = {
            last.version: {each.name: each for each in last.schema.fields if each.name in names}
        }

    def sources(self, table: TableVersion) -> tuple[Field | None, ...]:
        """Return for each of the feed's own columns what of a version it is read from.

        They are called what the feed calls them: data files are read by ids.
        """
        if table.schema == self._last.schema:
            return self._wanted.fields
        there = self._found_in(table)
        return tuple(
            self._source_of(each, there.get(each.name), table) for each in self._wanted.fields
        )

    def _source_of(self, wanted: Field, there: Field | None, table: TableVersion) -> Field | None:
        if there is None:
            return None
        if there.id == wanted.id and there.logical_type == wanted.logical_type:
            return replace(wanted, nullable=True) if _has_parts(wanted, table.schema) else None
        try:
            part = project(
                Schema((replace(there, name=wanted.name),)),
                [each for each in self._columns if self._head(each) == wanted.name],
            )
            check_castable(to_arrow(part), pa.schema([field_to_arrow(wanted).with_nullable(True)]))
        except (NotFoundError, InvalidInputError):
            return None
        return part.fields[0]

    def _head(self, column: str) -> str:
        """Return the top-level column of a path."""
        return column if column in self._last.schema.names else split_path(column)[0]

    def _found_in(self, table: TableVersion) -> "_Named":
        """Return what in a version is each of the feed's columns, by the feed's names."""
        own: _Named = {each.name: each for each in table.schema.fields}
        followed, version, theirs = self._followed, table.version, own
        while version not in followed:
            oldest = min(followed)
            origin = self._lineage.origin(max(version, oldest))
            if origin is None:
                return {each: own[each] for each in followed[oldest] if each in own}
            if version < oldest:
                followed[origin.version] = origin.back(followed[oldest])
            else:
                version, theirs = origin.version, origin.back(theirs)
        known = {each.id: name for name, each in theirs.items()}
        return {
            name: own[known[each.id]]
            for name, each in followed[version].items()
            if each.id in known
        }


_Named: TypeAlias = dict[str, Field]
"""Columns of a version, by the names that they have in a version that was made from it."""


class _Origin(NamedTuple):
    """The version that another one was made from.

    Attributes:
        version: Its number.
        before: Its columns.
        after: The columns of the version that was made from it.
        ids_hold: Whether an id stands for the same column in both.
    """

    version: int
    before: Schema
    after: Schema
    ids_hold: bool

    def back(self, columns: _Named) -> _Named:
        """Return what columns of the newer version were in this one; some are not there."""
        by_id = {each.id: each for each in self.before.fields} if self.ids_hold else {}
        left = by_id.keys() & {each.id for each in self.after.fields}
        by_name = {each.name: each for each in self.before.fields if each.id not in left}
        found = {
            name: by_id.get(each.id) or by_name.get(each.name) for name, each in columns.items()
        }
        return {name: each for name, each in found.items() if each is not None}


class _Lineage:
    """Tells which version each version was made from; each is read once.

    Args:
        last: Any version of the table.
    """

    def __init__(self, last: TableVersion) -> None:
        self._last = last
        self._origins: dict[int, _Origin | None] = {}
        self._schemas: dict[int, Schema] = {}

    def origin(self, version: int) -> _Origin | None:
        """Return what a version was made from; None for the first one, or if it is gone."""
        if version not in self._origins:
            self._origins[version] = self._read(version)
        return self._origins[version]

    def _read(self, version: int) -> _Origin | None:
        if version < 2:
            return None
        try:
            table = self._at(version)
            transaction = read_transaction(table.store, table.manifest)
            operation = transaction.operation if transaction else None
            origin = operation.version if isinstance(operation, Restore) else version - 1
            before = self._at(origin)
        except NotFoundError:
            return None  # cleaned up
        ids_hold = operation is not None and not isinstance(operation, Overwrite)
        return _Origin(origin, before.schema, table.schema, ids_hold)

    def _at(self, version: int) -> TableVersion:
        if version == self._last.version:
            return self._last
        return self._last.at(self._last.log.read(version))


def _has_parts(wanted: Field, schema: Schema) -> bool:
    """Return whether a version has of a column's parts those that must not be null."""
    ids = {each.id for each in schema.walk()}
    return all(
        each.id in ids or each.nullable for child in wanted.children for each in child.walk()
    )
