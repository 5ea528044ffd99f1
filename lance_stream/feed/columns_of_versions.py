"""Finds the feed's columns, which belong to one version, in other versions by column identity.

A reader uses the column names of one version, where each name stands for a field id. From there,
every field, nested ones included, is followed through the origins of versions (see `ancestry`):
back to the newest common origin of both versions, and from there to the other version. If a
version does not have a column, its values are null.

A `ValueSource` for each of the feed's columns describes which part of a version's data becomes
which part of the column; `value_conversion` builds the values.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

import pyarrow as pa

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions.predicates import Expression
from lance_stream.feed.ancestry import Ancestry
from lance_stream.feed.change_units import STAMPS, ChangeUnit, feed_schema
from lance_stream.feed.value_conversion import ValueSource
from lance_stream.read.scan import names_of
from lance_stream.read.units import unit_of
from lance_stream.schema.arrow_schemas import field_to_arrow
from lance_stream.schema.column_paths import quote_path, split_path
from lance_stream.schema.fields import UNASSIGNED_ID, Field
from lance_stream.schema.identity import Ids, composed, inverted, is_list, with_items
from lance_stream.schema.projections import Path, ids_by_path, project
from lance_stream.schema.system_columns import CHANGE_COLUMNS
from lance_stream.schema.types.logical_types import MAP, STRUCT
from lance_stream.snapshot.table_version import TableVersion

NUM_PREFETCHED_STEPS: Final = 64
"""How many manifests of older versions are read concurrently to follow columns."""

STEPS_BEFORE_PREFETCH: Final = 4
"""How many steps to the previous version are taken before manifests are read concurrently."""

SHORTEST_LEAP: Final = 8
"""The fewest versions over which comparing both ends costs less than single steps."""


def split_change_columns(
    table: TableVersion, columns: Sequence[str] | None
) -> tuple[list[str] | None, list[str]]:
    """Return the table's columns among selected ones, and the change columns.

    Args:
        table: The version whose column names are used.
        columns: Names or paths of the table's columns, and names of change columns; None for all.
            If it contains no change column, all change columns are selected.

    Raises:
        InvalidInputError: `columns` is a string instead of a sequence of names, or names a change
            column twice.
    """
    if columns is None:
        return None, CHANGE_COLUMNS.names
    names = names_of(table, columns)
    change_names = {*CHANGE_COLUMNS.names}.difference(table.schema.names)
    change_columns = [name for name in names if name in change_names]
    for index, name in enumerate(change_columns):
        if name in change_columns[:index]:
            raise InvalidInputError(f"the column {name!r} is selected twice")
    columns = [name for name in names if name not in change_names]
    return columns, change_columns or CHANGE_COLUMNS.names


class FeedColumns:
    """The columns of a feed's rows.

    Args:
        as_of: The version whose column names are used.
        columns: Names or paths; None for all.
        resumed_ids: Maps field ids of the columns to the ids in `as_of` of the columns that are
            read under their names; None if they are the same. They differ for a stream that
            started before two columns swapped names, because it keeps its columns.
        ancestry: The ancestry of the same table, if another reader has it already.

    Attributes:
        as_of: The version.
        schema: The columns, as in that version.
        data_schema: The same as Arrow schema, nullable at every level.
        arrow_schema: The feed's columns: those of `data_schema`, then the change columns.

    Raises:
        NotFoundError: A column does not exist.
    """

    def __init__(
        self,
        as_of: TableVersion,
        columns: Sequence[str] | None,
        resumed_ids: Ids | None = None,
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
        self._num_fields = len(ids)
        self._ids: dict[int, Ids] = {as_of.version: ids if resumed_ids is None else resumed_ids}
        self._last: Ids = self._ids[as_of.version]
        self._oldest = as_of.version  # the oldest direct or indirect origin of `as_of` so far

    def ids_in(self, table: TableVersion) -> Ids:
        """Return a mapping from field ids of `schema` to field ids in a version.

        Fields that the version does not have are left out.
        """
        self.ancestry.cache_version(table)
        if table.version not in self._ids:
            self._cache_ids(table.version, self._follow(table) if self.schema.fields else {})
        ids = self._ids[table.version]
        if len(ids) < self._num_fields:
            return with_items(ids, table.schema.fields, self.schema.fields)
        return ids

    def _cache_ids(self, version: int, ids: Ids) -> None:
        """Cache the ids of a version; versions with equal ids share one mapping."""
        self._last = self._last if self._last == ids else ids
        self._ids[version] = self._last

    def _follow(self, table: TableVersion) -> Ids:
        """Follow the origins of a version and of `as_of` until both reach the same version."""
        version: int = table.version
        here: Ids = {field.id: field.id for field in table.schema.walk()}
        steps, prefetched_from = 0, self._oldest
        leaps = _LeapSchedule(self._oldest)
        while version not in self._ids:
            is_newer = version > self._oldest
            if not is_newer and leaps.is_due(self._oldest):
                self._leap(version, leaps)
                continue
            if not is_newer:
                if steps >= STEPS_BEFORE_PREFETCH and self._oldest <= prefetched_from:
                    prefetched_from = max(version, self._oldest - NUM_PREFETCHED_STEPS, leaps.next)
                    self.ancestry.prefetch(range(self._oldest - 1, prefetched_from - 1, -1))
                steps += 1
            origin = self.ancestry.origin(version if is_newer else self._oldest)
            if origin is None:
                return self._match_over_gap(version, here)
            if is_newer:
                version, here = origin.version, composed(inverted(origin.same), here)
            else:
                steps = steps if origin.version == self._oldest - 1 else 0
                self._cache_ids(origin.version, composed(self._ids[self._oldest], origin.same))
                self._oldest = origin.version
        return composed(self._ids[version], here)

    def _leap(self, version: int, leaps: "_LeapSchedule") -> None:
        """Skip as many versions as possible, if data files prove that all columns kept their ids.

        Args:
            version: The version to reach; it is not passed.
            leaps: When to try the next leap.
        """
        ids = self._ids[self._oldest]
        length = (
            1 << (self._oldest - version).bit_length() - 1
        )  # a power of 2: walks share versions
        while length >= SHORTEST_LEAP:
            target = self._oldest - length
            with suppress(NotFoundError):
                if self.ancestry.common_ids(target, self._oldest).issuperset(ids.values()):
                    self._cache_ids(target, ids)
                    self._oldest = target
                    leaps.record_success()
                    return
            length //= 2
        leaps.record_failure(self._oldest)

    def _match_over_gap(self, version: int, here: Ids) -> Ids:
        """Match the fields of two versions if an origin between them is unknown."""
        older, newer = sorted((version, self._oldest))
        same = self.ancestry.match_over_gap(older, newer)
        there = same if newer == self._oldest else inverted(same)
        return composed(composed(self._ids[self._oldest], there), here)

    def names_in(self, table: TableVersion) -> Mapping[str, int | None]:
        """Return the field ids of the feed's fields in a version, unless their names match.

        Returns:
            Maps the quoted path of a field to its id in the version, if the version has another
            field or no field of that path; to None, if only another field has that path.
        """
        ids, by_name = self.ids_in(table), ids_by_path(table.schema.fields)
        return {
            quote_path(path): ids.get(field)
            for path, field in ids_by_path(self.schema.fields).items()
            if ids.get(field) != by_name.get(path)
        }

    def plan_read(
        self, table: TableVersion
    ) -> tuple[tuple[Field, ...], tuple[ValueSource | None, ...]]:
        """Return which columns of a version to read, and how to build the feed's columns from them.

        Returns:
            The columns of the version, without the parts that are not needed; and the source of
            each of the feed's columns, None for nulls.
        """
        ids = self.ids_in(table)
        by_id = {field.id: field for field in table.schema.fields}
        fields: list[Field] = []
        sources: list[ValueSource | None] = []
        for target in self.schema.fields:
            stored = by_id.get(ids.get(target.id, UNASSIGNED_ID))
            if stored is None:
                sources.append(None)
            else:
                part = _required_part(target, stored, ids)
                sources.append(_source(target, part, ids, len(fields)))
                fields.append(part)
        return tuple(fields), tuple(sources)

    def missing_in(self, table: TableVersion) -> str | None:
        """Return the path of a field that a version does not have; None if it has all."""
        ids = self.ids_in(table)
        paths = ids_by_path(self.schema.fields)
        return next(
            (".".join(path) for path, field_id in paths.items() if field_id not in ids), None
        )

    def select(self, columns: Sequence[str] | None) -> tuple[pa.Schema, tuple[ValueSource, ...]]:
        """Return the schema of some columns, or parts of them, and their sources in the feed.

        Args:
            columns: Names or paths in `as_of`; None for all.
        """
        fields = project(self.as_of.schema, names_of(self.as_of, columns)).fields
        index_of = {field.id: index for index, field in enumerate(self.schema.fields)}
        ids = {field.id: field.id for field in self.schema.walk()}
        sources = (
            _source(field, self.schema.fields[index_of[field.id]], ids, index_of[field.id])
            for field in fields
        )
        return pa.schema([field_to_arrow(_nullable(field)) for field in fields]), tuple(sources)

    def schema_in(self, table: TableVersion) -> pa.Schema:
        """Return the feed's columns with their types in a version that has all of them."""
        ids = self.ids_in(table)
        by_id = {field.id: field for field in table.schema.walk()}
        fields = [_retyped(field, ids, by_id) for field in self.schema.fields]
        return pa.schema([field_to_arrow(_nullable(field)) for field in fields])


class _LeapSchedule:
    """Decides when to try the next leap; the interval doubles with each failure.

    Args:
        start: The version to start from.

    Attributes:
        next: The version at which to try the next leap.
    """

    def __init__(self, start: int) -> None:
        self.next, self._interval = start, SHORTEST_LEAP

    def is_due(self, version: int) -> bool:
        """Return whether to try a leap from a version."""
        return version <= self.next

    def record_success(self) -> None:
        """Record that a leap was possible."""
        self._interval = SHORTEST_LEAP

    def record_failure(self, version: int) -> None:
        """Record that no leap was possible from a version."""
        self.next = version - self._interval
        self._interval *= 2


def columns_of_query(
    table: TableVersion, columns: Sequence[str], condition: Expression | None
) -> list[str]:
    """Return the table's columns that a query needs: selected ones and those of its condition.

    Args:
        table: The version whose names are used.
        columns: Names or paths; change columns are ignored.
        condition: The condition; None if there is none.
    """
    by_path: dict[Path, str] = {}
    for column in (*columns, *(() if condition is None else condition.columns)):
        path = (column,) if column in table.schema.names else split_path(column)
        if path[0] in table.schema.names:
            by_path.setdefault(path, column)
    return list(by_path.values())


class ChangeUnitFactory:
    """Creates the work units that read rows of one version, with the feed's columns.

    Args:
        columns: The feed's columns.
        table: The version from which the rows are read.
        commit_version: The commit version of the changes.
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
        self._fields, sources = columns.plan_read(table)
        self._convert = partial(
            ChangeUnit,
            commit_version=commit_version,
            commit_timestamp=commit_timestamp,
            sources=sources,
            arrow_schema=columns.data_schema,
        )

    def unit(self, index: int, change_type: str, **rows: Any) -> ChangeUnit:
        """Return the work unit that reads rows of a fragment.

        Args:
            index: The fragment's index in the manifest.
            change_type: The type of change.
            rows: Attributes of `WorkUnit` that select rows; all live rows by default.
        """
        unit = unit_of(self._table, index, fields=self._fields, system_columns=STAMPS, **rows)
        return self._convert(unit=unit, change_type=change_type)


def _nullable(field: Field) -> Field:
    """Return a field that is nullable at every level, except for keys of maps."""
    if field.logical_type != MAP or len(field.children) != 1:
        return replace(field, nullable=True, children=tuple(map(_nullable, field.children)))
    (entries,) = field.children
    key, *values = entries.children
    key = replace(_nullable(key), nullable=False)
    entries = replace(entries, children=(key, *map(_nullable, values)))
    return replace(field, nullable=True, children=(entries,))


def _required_part(target: Field, stored: Field, ids: Ids) -> Field:
    """Return the part of a version's field that a field of the feed is built from.

    If no child of a struct is required, one child is still read, because it tells which structs
    are null, and the lengths of lists.
    """
    if stored.is_leaf or target.is_blob:
        return stored
    if stored.logical_type == STRUCT:
        targets = {ids[child.id]: child for child in target.children if child.id in ids}
        children = [
            _required_part(targets[child.id], child, ids)
            for child in stored.children
            if child.id in targets
        ]
        return replace(stored, children=tuple(children or [_narrowest(stored.children)]))
    if is_list(stored) and is_list(target):
        item = _required_part(target.children[0], stored.children[0], ids)
        return replace(stored, children=(item,))
    return stored


def _narrowest(fields: Sequence[Field]) -> Field:
    """Return the field with the fewest descendants, reduced to as few as possible."""
    field = min(fields, key=lambda candidate: len(list(candidate.walk())))
    if field.is_leaf or field.logical_type == MAP:
        return field
    return replace(field, children=(_narrowest(field.children),))


def _source(target: Field, stored: Field, ids: Ids, index: int) -> ValueSource:
    """Return the source of a field of the feed.

    Args:
        target: The field of the feed.
        stored: The part of a version's field that is read for it.
        ids: Maps field ids of the feed to ids in the version.
        index: The index of `stored` among its siblings.
    """
    if target.is_blob or stored.is_blob:
        return ValueSource(index)
    if target.logical_type == stored.logical_type == MAP:
        target, stored = target.children[0], stored.children[0]
    index_by_id = {child.id: n for n, child in enumerate(stored.children)}
    parts = tuple(
        None
        if (n := index_by_id.get(ids.get(child.id, UNASSIGNED_ID))) is None
        else _source(child, stored.children[n], ids, n)
        for child in target.children
    )
    is_whole = len(parts) == len(stored.children) and all(
        part is not None and part.index == n and part.is_whole for n, part in enumerate(parts)
    )
    if is_list(target) and not is_list(stored):
        parts = ()  # such as a fixed-size list, whose items are not a child field
    return ValueSource(index, parts, is_whole)


def _retyped(target: Field, ids: Ids, by_id: Mapping[int, Field]) -> Field:
    """Return a field of the feed with its type in a version, but the feed's names."""
    stored = by_id[ids[target.id]]
    if not target.children or not stored.children:
        return replace(stored, name=target.name)
    children = tuple(_retyped(child, ids, by_id) for child in target.children)
    return replace(stored, name=target.name, children=children)
