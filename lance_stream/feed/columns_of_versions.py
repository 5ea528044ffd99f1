"""The feed's columns, which belong to one version, found in other versions by column identity.

A reader names columns as one version does. Each name stands for a field id in that version. From
there every column, and every part of one, is followed from version to version (see `ancestry`),
back and forth through the version that both derive from. A version without the column gives nulls.

A `Source` for each of the feed's columns describes what is read of a version and which part of it
becomes which part of the column; `value_conversion` builds the values.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lance_stream.errors import NotFoundError
from lance_stream.expressions.predicates import Expression
from lance_stream.feed.ancestry import Ancestry
from lance_stream.feed.change_units import STAMPS, ChangeUnit, feed_schema
from lance_stream.feed.value_conversion import Source
from lance_stream.read.scan import names_of
from lance_stream.read.units import unit_of
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.column_paths import quote_path, split_path
from lance_stream.schema.fields import UNASSIGNED_ID, Field
from lance_stream.schema.identity import Ids, composed, inverted, is_list
from lance_stream.schema.projections import Path, ids_by_path, project
from lance_stream.schema.types.logical_types import MAP, STRUCT
from lance_stream.snapshot.table_version import TableVersion

NUM_PREFETCHED_STEPS: Final = 64
"""The number of older manifests that are read concurrently to follow columns over versions."""

STEPS_ALONE: Final = 4
"""After how many single steps to the previous version the next manifests are read ahead."""


SHORTEST_LEAP: Final = 8
"""Over fewer versions, comparing the ends saves nothing."""


class FeedColumns:
    """The columns of a feed's rows.

    Args:
        as_of: The version whose names are used.
        columns: Names or paths; None for all.
        meaning: Maps ids of the columns to the ids that they stand for in that version; None where
            each stands for itself. A stream that started before two columns swapped names keeps
            the columns that it started with.
        ancestry: Ancestry of the same table from another reader, to save reading it again.

    Attributes:
        as_of: The version.
        schema: The columns, as in that version.
        data_schema: The same in Arrow, all of them nullable at every level.
        arrow_schema: The feed's columns: these, then the change columns.

    Raises:
        NotFoundError: A column does not exist.
    """

    def __init__(
        self,
        as_of: TableVersion,
        columns: Sequence[str] | None,
        meaning: Ids | None = None,
        ancestry: Ancestry | None = None,
    ) -> None:
        self.as_of = as_of
        self.schema = project(as_of.schema, names_of(as_of, columns))
        self.data_schema = pa.schema(
            [field_to_arrow(_nullable(field)) for field in self.schema.fields]
        )
        self.arrow_schema = feed_schema(self.data_schema)
        self.ancestry = ancestry or Ancestry(as_of)
        ids = {field.id: field.id for field in self.schema.walk()}
        self._ids: dict[int, Ids] = {as_of.version: ids if meaning is None else meaning}
        self._last: Ids = self._ids[as_of.version]
        self._meet = as_of.version  # the oldest version that the given one is known to derive from

    def ids_in(self, table: TableVersion) -> Ids:
        """Return a mapping from the ids of the fields of `schema` to their ids in a version.

        Columns that the version does not have are left out.
        """
        self.ancestry.cache_version(table)
        if table.version not in self._ids:
            self._note(table.version, self._follow(table) if self.schema.fields else {})
        return self._ids[table.version]

    def _note(self, version: int, ids: Ids) -> None:
        """Keep the ids of a version; versions with the same ids share one mapping."""
        self._last = self._last if self._last == ids else ids
        self._ids[version] = self._last

    def _follow(self, table: TableVersion) -> Ids:
        """Walk back from both versions until they meet."""
        version: int = table.version
        here: Ids = {field.id: field.id for field in table.schema.walk()}
        steps, read_from = 0, self._meet
        leaps = _Leaps(self._meet)
        while version not in self._ids:
            is_newer = version > self._meet
            if not is_newer and leaps.is_due(self._meet):
                self._leap(version, leaps)
                continue
            if not is_newer:
                if steps >= STEPS_ALONE and self._meet <= read_from:
                    read_from = max(version, self._meet - NUM_PREFETCHED_STEPS, leaps.next)
                    self.ancestry.read_ahead(range(self._meet - 1, read_from - 1, -1))
                steps += 1
            origin = self.ancestry.origin(version if is_newer else self._meet)
            if origin is None:
                return self._over_gap(version, here)
            if is_newer:
                version, here = origin.version, composed(inverted(origin.same), here)
            else:
                steps = steps if origin.version == self._meet - 1 else 0
                self._note(origin.version, composed(self._ids[self._meet], origin.same))
                self._meet = origin.version
        return composed(self._ids[version], here)

    def _leap(self, version: int, leaps: "_Leaps") -> None:
        """Go back towards a version as far as data files prove that no column changed identity."""
        ids = self._ids[self._meet]
        length = 1 << (self._meet - version).bit_length() - 1  # so that walks share versions
        while length >= SHORTEST_LEAP:
            target = self._meet - length
            with suppress(NotFoundError):
                if self.ancestry.common_ids(target, self._meet).issuperset(ids.values()):
                    self._note(target, ids)
                    self._meet = target
                    leaps.succeeded()
                    return
            length //= 2
        leaps.failed_at(self._meet)

    def _over_gap(self, version: int, here: Ids) -> Ids:
        """Compare two versions, where what one derives from is unknown."""
        older, newer = sorted((version, self._meet))
        same = self.ancestry.same_over_gap(older, newer)
        there = same if newer == self._meet else inverted(same)
        return composed(composed(self._ids[self._meet], there), here)

    def names_in(self, table: TableVersion) -> Mapping[str, int | None]:
        """Return the ids of the columns in a version, where their names do not already give them.

        These are names that now belong to another column, or to none any more; None is for a column
        that the version lacks although the name exists.
        """
        ids, by_name = self.ids_in(table), ids_by_path(table.schema.fields)
        return {
            quote_path(path): ids.get(field)
            for path, field in ids_by_path(self.schema.fields).items()
            if ids.get(field) != by_name.get(path)
        }

    def read_from(self, table: TableVersion) -> tuple[tuple[Field, ...], tuple[Source | None, ...]]:
        """Return what to read of a version, and how to build the feed's columns from it.

        Returns:
            The columns of the version, without the parts that are not needed; and for each of the
            feed's own columns, the one that it is built from; None for nulls.
        """
        ids = self.ids_in(table)
        by_id = {field.id: field for field in table.schema.fields}
        read: list[Field] = []
        sources: list[Source | None] = []
        for target in self.schema.fields:
            there = by_id.get(ids.get(target.id, UNASSIGNED_ID))
            if there is None:
                sources.append(None)
            else:
                part = _part(target, there, ids)
                sources.append(_source(target, part, ids, len(read)))
                read.append(part)
        return tuple(read), tuple(sources)

    def missing_in(self, table: TableVersion) -> str | None:
        """Return one of the columns, or a part of one, that a version does not have."""
        ids = self.ids_in(table)
        paths = ids_by_path(self.schema.fields)
        return next(
            (".".join(path) for path, field_id in paths.items() if field_id not in ids), None
        )

    def narrowed(self, columns: Sequence[str] | None) -> tuple[pa.Schema, tuple[Source, ...]]:
        """Return some of the columns, or parts of them, and the feed's columns they come from.

        Args:
            columns: Names or paths in the version whose names are used; None for all.
        """
        fields = project(self.as_of.schema, names_of(self.as_of, columns)).fields
        index_of = {field.id: index for index, field in enumerate(self.schema.fields)}
        ids = {field.id: field.id for field in self.schema.walk()}
        sources = (
            _source(field, self.schema.fields[index_of[field.id]], ids, index_of[field.id])
            for field in fields
        )
        return pa.schema([field_to_arrow(_nullable(field)) for field in fields]), tuple(sources)

    def as_in(self, table: TableVersion) -> pa.Schema:
        """Return the feed's own columns with their types in a version that has all of them."""
        ids = self.ids_in(table)
        by_id = {field.id: field for field in table.schema.walk()}
        fields = [_retyped(field, ids, by_id) for field in self.schema.fields]
        return pa.schema([field_to_arrow(_nullable(field)) for field in fields])


class _Leaps:
    """When to try the next leap: after ever more steps, the more often a leap was impossible.

    Args:
        meet: The version to start from.

    Attributes:
        next: The version at which to try it.
    """

    def __init__(self, meet: int) -> None:
        self.next, self._pause = meet, SHORTEST_LEAP

    def is_due(self, meet: int) -> bool:
        """Return whether to try a leap from a version."""
        return meet <= self.next

    def succeeded(self) -> None:
        """Record that a leap was possible."""
        self._pause = SHORTEST_LEAP

    def failed_at(self, meet: int) -> None:
        """Record that no leap from a version was possible."""
        self.next = meet - self._pause
        self._pause *= 2


def columns_named(
    table: TableVersion, columns: Sequence[str], condition: Expression | None
) -> list[str]:
    """Return the requested columns of a table and those that a condition names, each once.

    Args:
        table: The version whose names are used.
        columns: Names or paths, possibly of change columns, too.
        condition: None for none.
    """
    by_path: dict[Path, str] = {}
    for column in (*columns, *(() if condition is None else condition.columns)):
        path = (column,) if column in table.schema.names else split_path(column)
        if path[0] in table.schema.names:
            by_path.setdefault(path, column)
    return list(by_path.values())


class ReadsOfVersion:
    """Creates the work units that read rows of one version, with the feed's columns.

    Args:
        columns: The feed's columns.
        table: The version from which the rows are read.
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
        self._table = table
        self._fields, sources = columns.read_from(table)
        self._convert = partial(
            ChangeUnit,
            commit_version=commit_version,
            commit_timestamp=commit_timestamp,
            sources=sources,
            arrow_schema=columns.data_schema,
        )

    def unit(self, index: int, change_type: str, **rows: Any) -> ChangeUnit:
        """Return the work unit that reads some rows of a fragment.

        Args:
            index: The fragment's index in the manifest.
            change_type: What happened to the rows.
            rows: Which rows, as attributes of `WorkUnit`; all live rows by default.
        """
        unit = unit_of(self._table, index, fields=self._fields, system_columns=STAMPS, **rows)
        return self._convert(unit=unit, change_type=change_type)


def _nullable(field: Field) -> Field:
    """Return a column nullable at every level, except the keys of maps."""
    if field.logical_type != MAP or len(field.children) != 1:
        return replace(field, nullable=True, children=tuple(map(_nullable, field.children)))
    (entries,) = field.children
    key, *values = entries.children
    key = replace(_nullable(key), nullable=False)
    entries = replace(entries, children=(key, *map(_nullable, values)))
    return replace(field, nullable=True, children=(entries,))


def _part(target: Field, there: Field, ids: Ids) -> Field:
    """Return what to read of a version's field to build a field of the feed from it.

    If no part of it is requested, one part is still read: it states which values are null and
    how long lists are.
    """
    if there.is_leaf or target.is_blob:
        return there
    if there.logical_type == STRUCT:
        stored = {ids[child.id]: child for child in target.children if child.id in ids}
        parts = [
            _part(stored[child.id], child, ids) for child in there.children if child.id in stored
        ]
        return replace(there, children=tuple(parts or [_narrowest(there.children)]))
    if is_list(there) and is_list(target):
        return replace(there, children=(_part(target.children[0], there.children[0], ids),))
    return there


def _narrowest(fields: Sequence[Field]) -> Field:
    """Return the field with the fewest parts, itself reduced to as few as possible."""
    field = min(fields, key=lambda candidate: len(list(candidate.walk())))
    if field.is_leaf or field.logical_type == MAP:
        return field
    return replace(field, children=(_narrowest(field.children),))


def _source(target: Field, there: Field, ids: Ids, index: int) -> Source:
    """Return what a field of the feed is built from.

    Args:
        target: The field.
        there: What is read of its column in a version.
        ids: Maps the ids of the feed to ids in the version.
        index: The index of `there` among its siblings.
    """
    if target.is_blob or there.is_blob:
        return Source(index)
    if target.logical_type == there.logical_type == MAP:
        target, there = target.children[0], there.children[0]
    index_of = {child.id: n for n, child in enumerate(there.children)}
    parts = tuple(
        None
        if (at := index_of.get(ids.get(child.id, UNASSIGNED_ID))) is None
        else _source(child, there.children[at], ids, at)
        for child in target.children
    )
    is_whole = len(parts) == len(there.children) and all(
        part is not None and part.index == n and part.is_whole for n, part in enumerate(parts)
    )
    if is_list(target) and not is_list(there):
        parts = ()  # a list whose items are not a child field
    return Source(index, parts, is_whole)


def _retyped(target: Field, ids: Ids, by_id: Mapping[int, Field]) -> Field:
    there = by_id[ids[target.id]]
    if not target.children or not there.children:
        return replace(there, name=target.name)
    parts = tuple(_retyped(child, ids, by_id) for child in target.children)
    return replace(there, name=target.name, children=parts)
