"""The feed's columns, which are those of one version, found in other versions.

Columns are followed from version to version (see `lineage`), back to the one that both versions
were made from. If versions between are gone, names decide. A column whose type cannot be cast, and
one that a version does not have, is null in it.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import pyarrow as pa

from lance_stream.dataset.casting import check_castable
from lance_stream.dataset.feed.change_units import STAMPS, ChangeUnit, feed_schema
from lance_stream.dataset.feed.lineage import Lineage, Named, restored_version
from lance_stream.dataset.predicates import quote_path
from lance_stream.dataset.scan import names_of
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.schema.arrow_schemas import field_to_arrow, to_arrow
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.projections import project, split_path


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
        self._lineage = Lineage(last)
        self._followed = {
            last.version: {each.name: each for each in last.schema.fields if each.name in names}
        }

    def sources(self, table: TableVersion) -> tuple[Field | None, ...]:
        """Return for each of the feed's own columns what of a version it is read from.

        They are called what the feed calls them: data files are read by ids.
        """
        if self._has_the_same_columns(table):
            return self._wanted.fields
        there = self._found_in(table)
        return tuple(
            self._source_of(each, there.get(each.name), table) for each in self._wanted.fields
        )

    def _has_the_same_columns(self, table: TableVersion) -> bool:
        """Return whether a version's columns are those of the last one, without looking between.

        Columns that are equal may still be others, where they do not stand for each other in a
        version between: an id that a drop and a compaction have freed is given again. Nor does a
        restore make anything of the version before it.
        """
        return table.version == self._last.version or (
            table.version == self._last.version - 1
            and table.schema == self._last.schema
            and restored_version(self._last) is None
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

    def _found_in(self, table: TableVersion) -> Named:
        """Return what in a version is each of the feed's columns, by the feed's names."""
        own: Named = {each.name: each for each in table.schema.fields}
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


class ReadsOfVersion:
    """Makes the work units that read rows of one version, with the feed's columns.

    Args:
        columns: The feed's columns.
        table: The version in which the rows are read.
        commit_version: The version that the changes show.
        commit_timestamp: When it was committed, in UTC.
    """

    def __init__(
        self,
        columns: FeedColumns,
        table: TableVersion,
        commit_version: int,
        commit_timestamp: datetime,
    ) -> None:
        sources = columns.sources(table)
        self._table = table
        self._schema = Schema(tuple(each for each in sources if each is not None))
        self._columns = tuple(quote_path((each.name,)) for each in self._schema.fields)
        self._said = partial(
            ChangeUnit,
            commit_version=commit_version,
            commit_timestamp=commit_timestamp,
            sources=tuple(None if each is None else each.name for each in sources),
            arrow_schema=columns.own,
        )

    def unit(self, place: int, change_type: str, **rows: Any) -> ChangeUnit:
        """Return what reads some rows of a fragment.

        Args:
            place: The fragment's place in the manifest.
            change_type: What became of the rows.
            rows: Which, as the attributes of `WorkUnit`; all live ones if nothing is said.
        """
        unit = self._table.unit(place, columns=self._columns, system_columns=STAMPS, **rows)
        return self._said(unit=replace(unit, schema=self._schema), change_type=change_type)


def _has_parts(wanted: Field, schema: Schema) -> bool:
    """Return whether a version has of a column's parts those that must not be null."""
    ids = {each.id for each in schema.walk()}
    return all(
        each.id in ids or each.nullable for child in wanted.children for each in child.walk()
    )
