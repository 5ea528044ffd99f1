"""The rows or changes of a table as tasks, which another engine distributes over its workers.

    VersionRead    the rows of one version
    ChangesRead    the changes of an interval of versions
    ReadTask       some of them; picklable, and read without the table's manifest

The calling process opens the table and plans; that fixes the versions, whatever is committed later.
Tasks are in the order of a scan or of the feed. `ray` and `daft` are two engines' sources.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from lance_stream.arguments import as_names
from lance_stream.dataset import open_dataset
from lance_stream.distributed.dividing import bytes_of, divide
from lance_stream.feed.change_units import ChangeUnit
from lance_stream.feed.changes import plan_changes
from lance_stream.feed.intervals import IntervalEnd, checked_interval, version_before
from lance_stream.feed.rules import NO_DEDUPLICATION, FeedRules
from lance_stream.feed.selection import FeedSelection, SelectedRows
from lance_stream.read.scan import check_filter, names_of, plan_scan
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, output_schema
from lance_stream.schema.column_paths import split_path
from lance_stream.schema.projections import project
from lance_stream.schema.types.extension_types import batch_with_extensions, with_extensions
from lance_stream.snapshot.resolving import VersionSpec

P = ParamSpec("P")
S = TypeVar("S")


@dataclass(frozen=True)
class ReadTask:
    """Some rows of a read; picklable.

    Attributes:
        schema: The columns of the rows.
        num_bytes: About how many bytes the rows have in files; None if unknown.
        batches: Reads the rows, possibly with more columns.
    """

    schema: pa.Schema
    num_bytes: int | None
    batches: Callable[[], Iterator[pa.RecordBatch]]

    def read(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows; no batch is empty.

        Raises:
            NotFoundError: A file no longer exists: its version was cleaned up.
            BadDataError: A file is damaged.
        """
        for batch in self.batches():
            if batch.num_rows:
                yield batch.select(self.schema.names)


def _read_rows(units: Sequence[WorkUnit]) -> Iterator[pa.RecordBatch]:
    return map(batch_with_extensions, read_units(units))


class DistributedRead(Protocol):
    """What an engine's source needs to know.

    Attributes:
        uri: The table's location.
        version: The version that is read, or the last one of the interval.
        schema: The columns of the rows.
        num_bytes: About how many bytes the rows have in files; None if unknown.
    """

    uri: str
    version: int
    schema: pa.Schema
    num_bytes: int | None

    def tasks(
        self, num_tasks: int | None = None, names: Sequence[str] | None = None
    ) -> list[ReadTask]:
        """Return the tasks that read all rows.

        Args:
            num_tasks: The maximum number of tasks; None for the best one for this machine's cores.
            names: The columns of `schema` to read; None for all.
        """
        ...


class VersionRead:
    """The rows of one version; see `DistributedRead`.

    Args:
        uri: The table's location, which all workers can reach.
        version: A version, tag or time; None for the newest, which is fixed by this call.
        columns: As in `Dataset.scan`.
        filter: As in `Dataset.scan`.
        storage_options: Settings of the store.

    Raises:
        NotFoundError: There is no such table, version or column.
        InvalidInputError: An argument is invalid.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        version: VersionSpec = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._table = open_dataset(uri, version, storage_options).table
        self.uri, self.version = self._table.uri, self._table.version
        self._columns = columns
        self._filter = None if filter is None else check_filter(self._table, filter)
        self._units = self._plan(columns)
        projected = project(self._table.schema, names_of(self._table, columns))
        self.schema = with_extensions(output_schema(projected, ()))
        self.num_bytes = bytes_of(self._units)

    def _plan(self, columns: Sequence[str] | None) -> Sequence[WorkUnit]:
        return plan_scan(self._table, columns, self._filter)

    def tasks(
        self, num_tasks: int | None = None, names: Sequence[str] | None = None
    ) -> list[ReadTask]:
        """Return the tasks that read all rows."""
        columns, schema = _part(self._columns, self.schema, names)
        units = self._units if names is None else self._plan(columns)
        groups = divide(units, lambda unit: unit, lambda _, part: part, num_tasks)
        return [ReadTask(schema, bytes_of(group), partial(_read_rows, group)) for group in groups]


class ChangesRead:
    """The changes of an interval of versions, as of `Dataset.changes`; see `DistributedRead`.

    Args:
        uri: The table's location, which all workers can reach.
        after: As in `Dataset.changes`: a version, a tag or a time.
        through: Its last version, as a version, tag or time; None for the newest, which is fixed
            by this call.
        columns: As in `Dataset.follow`.
        filter: As in `Dataset.follow`.
        deduplication_mode: As in `Dataset.changes`.
        pre_images: As in `Dataset.changes`.
        storage_options: Settings of the store.

    Raises:
        NotFoundError: There is no such table or column, or a version of the interval has been
            cleaned up.
        InvalidInputError: An argument is invalid.
        UnsupportedFeatureError: The table has no stable row ids.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        after: IntervalEnd,
        through: VersionSpec = None,
        *,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        deduplication_mode: str = NO_DEDUPLICATION,
        pre_images: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(through, datetime):
            newest = open_dataset(uri, None, storage_options).table
            after, through = checked_interval(newest, after, through)
        self._table = open_dataset(uri, through, storage_options).table
        self.uri, self.version = self._table.uri, self._table.version
        self._columns = None if columns is None else as_names(columns, "columns")
        self._filter, self._after = filter, version_before(self._table, after)
        self._rules = FeedRules(None, deduplication_mode, pre_images)
        self._planned = rows, units = self._plan(self._columns)
        self.schema, self.num_bytes = rows.schema, _bytes_of(units)

    def _plan(self, columns: Sequence[str] | None) -> tuple[SelectedRows, Sequence[ChangeUnit]]:
        selection = FeedSelection(self._table, columns, self._filter)
        plan = plan_changes(self._table, self._after, None, self._rules, selection.columns)
        return selection.rows, plan.units

    def tasks(
        self, num_tasks: int | None = None, names: Sequence[str] | None = None
    ) -> list[ReadTask]:
        """Return the tasks that read all rows."""
        columns, schema = _part(self._columns, self.schema, names)
        rows, units = self._planned if names is None else self._plan(columns)
        groups = divide(units, lambda change: change.unit, _with_unit, num_tasks)
        return [ReadTask(schema, _bytes_of(group), partial(rows.read, group)) for group in groups]


def _bytes_of(changes: Sequence[ChangeUnit]) -> int | None:
    return bytes_of([change.unit for change in changes])


def _with_unit(change: ChangeUnit, unit: WorkUnit) -> ChangeUnit:
    return replace(change, unit=unit)


def _part(
    columns: Sequence[str] | None, schema: pa.Schema, names: Sequence[str] | None
) -> tuple[Sequence[str] | None, pa.Schema]:
    """Return the requested columns within those of some names, and their schema.

    Args:
        columns: The requested names or paths; None for all columns of the schema.
        schema: Their schema.
        names: Names of the schema; None for all. A read needs one column: the first, if empty.
    """
    if names is None:
        return columns, schema
    names = [name for name in schema.names if name in names] or schema.names[:1]
    part = pa.schema([schema.field(name) for name in names])
    if columns is None:
        return names, part
    return [path for path in columns if path in names or split_path(path)[0] in names], part


def source_factory(
    create: Callable[[DistributedRead], S], read: Callable[P, DistributedRead]
) -> Callable[P, S]:
    """Return a function that creates an engine's source of a read, with the read's arguments."""

    @wraps(read, updated=())
    def create_source(*args: P.args, **kwargs: P.kwargs) -> S:
        return create(read(*args, **kwargs))

    return create_source
