"""The change feed: the rows that were inserted, updated and deleted, version by version.

The feed walks one version at a time, so that a row which is inserted and deleted again shows as
both. Within one version deletes come first, then updates (the rows as they were, then the rows as
they are), then inserts: whoever applies the changes in this order to the rows of the older version
gets those of the newer one. Versions that change no row (a compaction, an index, a config) give
nothing, and fragments whose bytes are the same in both versions are not opened.

    delete             content and stamps as in the version before
    update_preimage    likewise; only where asked for
    update_postimage   content and stamps as in the version itself
    insert             likewise

"netChanges" compares the two ends alone: a row that was changed often shows once, one that came
and went not at all. Their commit version is the last one of the interval.

Every row has the columns of the interval's last version, all of them nullable. In an older version
a column is found by its field id (a rename keeps the id); beyond an overwrite, which may give ids
to other columns, by its name, if the type can be cast. What an older version does not have is null.

Planning reads manifests and deletion files; a `ChangeUnit` is picklable and read by any worker.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from lance_stream.dataset.casting import cast_batch, check_castable
from lance_stream.dataset.history import read_transaction
from lance_stream.dataset.opening import as_number
from lance_stream.dataset.predicates import quote_path
from lance_stream.dataset.read_fragment import FragmentReader, Selection, WorkUnit
from lance_stream.dataset.scan import ReadBatch, names_of, read_ahead
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import InvalidInputError, NotFoundError, UnsupportedFeatureError
from lance_stream.schema.arrow_schemas import field_to_arrow, to_arrow
from lance_stream.schema.fields import Field, Schema
from lance_stream.schema.projections import project, split_path
from lance_stream.schema.system_columns import (
    CHANGE_COLUMNS,
    ROW_CREATED_AT_VERSION,
    ROW_ID,
    ROW_LAST_UPDATED_AT_VERSION,
)
from lance_stream.table.diff import RowsOfFragment, TableChanges, diff, plan_diff
from lance_stream.table.operations import Overwrite
from lance_stream.table.row_addresses import unpack_addresses

DELETE: Final = "delete"
UPDATE_PREIMAGE: Final = "update_preimage"
UPDATE_POSTIMAGE: Final = "update_postimage"
INSERT: Final = "insert"

DEDUPLICATION_MODES: Final = ("none", "netChanges")

_STAMPS: Final = (ROW_ID, ROW_CREATED_AT_VERSION, ROW_LAST_UPDATED_AT_VERSION)


@dataclass(frozen=True)
class ChangeUnit:
    """Some changes of one kind, made by one version to rows of one fragment: picklable.

    Attributes:
        unit: The rows, in the version in which they are to be read.
        change_type: "delete", "update_preimage", "update_postimage" or "insert".
        commit_version: The version that made the change.
        commit_timestamp: When it was committed, in UTC.
        sources: For each of the feed's own columns the column of `unit` that it is made of; None
            where that version has none.
        arrow_schema: The feed's own columns, without the change columns.
    """

    unit: WorkUnit
    change_type: str
    commit_version: int
    commit_timestamp: datetime
    sources: tuple[str | None, ...]
    arrow_schema: pa.Schema

    @property
    def num_rows(self) -> int:
        """How many changes there are."""
        return 0 if self.unit.offsets is None else len(self.unit.offsets)


@dataclass(frozen=True)
class ChangesPlan:
    """Everything that has to be read for an interval of the feed, in the feed's order.

    Attributes:
        units: The work units.
        arrow_schema: The feed's columns: the table's own, then the change columns.
    """

    units: tuple[ChangeUnit, ...]
    arrow_schema: pa.Schema


def changes(
    table: TableVersion,
    after: int,
    through: int | None = None,
    columns: Sequence[str] | None = None,
    *,
    deduplication_mode: str = "none",
    pre_images: bool = True,
) -> pa.RecordBatchReader:
    """Return the changes of an interval of versions; see `Dataset.changes`."""
    plan = plan_changes(
        table,
        after,
        through,
        columns,
        deduplication_mode=deduplication_mode,
        pre_images=pre_images,
    )
    return pa.RecordBatchReader.from_batches(plan.arrow_schema, read_changes(plan.units))


def plan_changes(
    table: TableVersion,
    after: int,
    through: int | None = None,
    columns: Sequence[str] | None = None,
    *,
    deduplication_mode: str = "none",
    pre_images: bool = True,
) -> ChangesPlan:
    """Return what has to be read for an interval of the feed.

    Args:
        table: Any version of the table.
        after: The version after which the interval begins; 0 is before the first.
        through: Its last version; None for the version of `table`.
        columns: Names or paths; None for all columns of the last version.
        deduplication_mode: "none", or "netChanges" to compare the ends of the interval alone.
        pre_images: Whether an update also gives the row as it was.

    Raises:
        InvalidInputError: The interval ends before it begins, or after the newest version.
        NotFoundError: A version of the interval is gone, or a column is not there.
        UnsupportedFeatureError: The table has no stable row ids.
    """
    through = table.version if through is None else through
    if deduplication_mode not in DEDUPLICATION_MODES:
        raise InvalidInputError(
            f"deduplication_mode is one of {', '.join(DEDUPLICATION_MODES)}, not "
            f"{deduplication_mode!r}"
        )
    after, through = _checked_interval(table, after, through)
    last = _version(table, through, after, through)
    if not last.has_stable_row_ids:
        raise UnsupportedFeatureError(
            "the table has no stable row ids, without which a row cannot be followed from version "
            "to version, so there is no change feed. Ids are given to tables that are created "
            "with stable_row_ids=True, which is the default here"
        )
    feed = _Feed(last, names_of(last, columns), after, pre_images=pre_images)
    units: list[ChangeUnit] = []
    if after < through:
        older = _version(table, after, after, through) if after else None
        is_net = deduplication_mode == "netChanges"
        for version in range(through if is_net else after + 1, through + 1):
            newer = last if version == through else _version(table, version, after, through)
            units += feed.step(older, newer)
            older = newer
    return ChangesPlan(tuple(units), feed.arrow_schema)


def _checked_interval(table: TableVersion, *interval: object) -> tuple[int, int]:
    after, through = map(as_number, interval)
    if after is None or through is None:
        raise InvalidInputError(
            f"an interval has numbers of versions at its ends, not {interval[0]!r} and "
            f"{interval[1]!r}"
        )
    if not 0 <= after <= through:
        raise InvalidInputError(
            f"changes after version {after} and through version {through} are no interval: after "
            "is exclusive, 0 stands before the first version, and through is not less than it"
        )
    if through > table.version and through > (latest := table.log.latest()):
        raise InvalidInputError(
            f"changes through version {through} are asked for, but the newest version is {latest}"
        )
    return after, through


def _version(table: TableVersion, version: int, after: int, through: int) -> TableVersion:
    if version == table.version:
        return table
    try:
        return table.at(table.log.read(version))
    except NotFoundError as error:
        versions = [each for each in table.log.versions() if each <= through]
        there = f"{versions[0]} to {versions[-1]}" if versions else "none of them"
        raise NotFoundError(
            f"the changes after version {after} and through version {through} need version "
            f"{version}, which has been cleaned up; of the versions through {through} there are "
            f"still {there}. Begin at a version that is there, with a snapshot of it"
        ) from error


def read_changes(units: Sequence[ChangeUnit]) -> Iterator[pa.RecordBatch]:
    """Yield the changes of some work units, in their order, read a little ahead.

    The columns are the feed's own, then the change columns.

    Raises:
        BadDataError: A file is damaged, or has what is not supported.
        NotFoundError: A file is gone: its version was cleaned up.
    """

    def reads() -> Iterator[ReadBatch]:
        for unit in units:
            reader = FragmentReader(unit.unit)
            for selection in reader.selections():
                yield partial(_read_changes, unit, reader, selection)

    return read_ahead(reads())


def _read_changes(unit: ChangeUnit, reader: FragmentReader, selection: Selection) -> pa.RecordBatch:
    batch = reader.read(selection)
    own = []
    for field, source in zip(unit.arrow_schema, unit.sources, strict=True):
        if source is None:
            own.append(pa.nulls(batch.num_rows, field.type))
            continue
        own.append(_cast(batch.column(source), field))
    num_rows = batch.num_rows
    constants = [
        pa.repeat(pa.scalar(unit.change_type), num_rows),
        pa.repeat(pa.scalar(unit.commit_version, pa.int64()), num_rows),
        pa.repeat(pa.scalar(unit.commit_timestamp, pa.timestamp("us", "UTC")), num_rows),
    ]
    stamps = [batch.column(name) for name in _STAMPS]
    return pa.RecordBatch.from_arrays(
        own + constants + stamps, schema=feed_schema(unit.arrow_schema)
    )


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type.equals(field.type):
        return column
    single = pa.RecordBatch.from_arrays([column], names=[field.name])
    return cast_batch(single, pa.schema([field])).column(0)


def feed_schema(own: pa.Schema) -> pa.Schema:
    """Return the feed's columns, given the table's own among them."""
    for field in CHANGE_COLUMNS:
        own = own.append(field)
    return own


# --- planning


class _Feed:
    """Plans the steps of one interval, from version to version.

    Args:
        last: The interval's last version, whose columns the feed has.
        columns: The columns asked for.
        after: The version after which the interval begins.
        pre_images: Whether an update also gives the row as it was.
    """

    def __init__(
        self, last: TableVersion, columns: tuple[str, ...], after: int, *, pre_images: bool
    ) -> None:
        self._last = last
        self._after = after
        self._columns = columns
        self._pre_images = pre_images
        self._wanted = project(last.schema, columns)
        self._own = pa.schema([each.with_nullable(True) for each in to_arrow(self._wanted)])
        self.arrow_schema = feed_schema(self._own)
        self._timestamp = datetime.fromtimestamp(0, UTC)
        self._ids_hold_from: int | None = None

    def step(self, older: TableVersion | None, newer: TableVersion) -> Iterator[ChangeUnit]:
        """Yield the work units of what one version changed in another."""
        if newer.timestamp is not None:
            self._timestamp = max(self._timestamp, newer.timestamp)
        changed = _diff(older, newer)
        before: list[tuple[str, RowsOfFragment]] = [(DELETE, each) for each in changed.deletes]
        if self._pre_images:
            before += [(UPDATE_PREIMAGE, each) for each in _rows_before(older, changed)]
        now = [
            (UPDATE_POSTIMAGE, RowsOfFragment(each.fragment, each.offsets))
            for each in changed.updates
        ]
        now += [(INSERT, each) for each in changed.inserts]
        if older is not None:
            yield from self._units(older, before, newer.version)
        yield from self._units(newer, now, newer.version)

    def _units(
        self, table: TableVersion, rows: Sequence[tuple[str, RowsOfFragment]], version: int
    ) -> Iterator[ChangeUnit]:
        if not rows:
            return
        sources = [self._source_of(each, table) for each in self._wanted.fields]
        schema = Schema(tuple(each for each in sources if each is not None))
        for change_type, (fragment, offsets) in rows:
            yield ChangeUnit(
                unit=replace(
                    table.unit(
                        table.manifest.fragments.place_of[fragment.id],
                        columns=tuple(quote_path((each.name,)) for each in schema.fields),
                        system_columns=_STAMPS,
                        offsets=offsets,
                    ),
                    schema=schema,
                ),
                change_type=change_type,
                commit_version=version,
                commit_timestamp=self._timestamp,
                sources=tuple(each.name if each is not None else None for each in sources),
                arrow_schema=self._own,
            )

    def _source_of(self, wanted: Field, table: TableVersion) -> Field | None:
        """Return what of a version one of the feed's columns is read from."""
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


def _diff(older: TableVersion | None, newer: TableVersion) -> TableChanges:
    plan = plan_diff(older.manifest if older else None, newer.manifest)
    return diff(
        plan,
        {
            (each.id, each.deletion_file): newer.dead_offsets(each)
            for each in plan.dead_rows_of
            if each.deletion_file is not None
        },
        {each: newer.files.sequence(each) for each in plan.sequences},
    )


def _rows_before(older: TableVersion | None, changed: TableChanges) -> Iterator[RowsOfFragment]:
    """Yield where the rows that were updated lie in the older version."""
    if older is None or not changed.updates:
        return
    addresses = np.sort(np.concatenate([each.addresses_before for each in changed.updates]))
    fragment_ids, offsets = unpack_addresses(addresses)
    fragments = older.manifest.fragments
    for fragment_id in np.unique(fragment_ids).tolist():
        low, high = np.searchsorted(fragment_ids, [fragment_id, fragment_id + 1])
        yield RowsOfFragment(
            fragments[fragments.place_of[fragment_id]], offsets[low:high].astype(np.uint32)
        )
