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
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from lance_stream.arguments import as_names
from lance_stream.dataset import open_dataset
from lance_stream.distributed.dividing import bytes_of, divide
from lance_stream.feed.change_units import ChangeUnit
from lance_stream.feed.changes import plan_changes
from lance_stream.feed.rules import FeedRules
from lance_stream.feed.selection import FeedSelection
from lance_stream.read.scan import check_filter, names_of, plan_scan
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, output_schema
from lance_stream.schema.column_paths import split_path
from lance_stream.schema.projections import project
from lance_stream.schema.types.extension_types import batch_with_extensions, with_extensions
from lance_stream.snapshot.resolving import VersionSpec


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
    """

    uri: str
    version: int
    schema: pa.Schema

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
        uri: The table's location.
        version: A version, tag or time; None for the newest.
        columns: Names or paths; None for all.
        filter: A condition in SQL; None for all rows.
        storage_options: Settings of the store.

    Raises:
        NotFoundError: There is no such table, version or column.
        InvalidInputError: An argument is invalid.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        version: VersionSpec = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._table = open_dataset(uri, version, storage_options).table
        self.uri, self.version = self._table.uri, self._table.version
        self._columns = columns
        self._filter = None if filter is None else check_filter(self._table, filter)
        plan_scan(self._table, columns)  # are there columns?
        projected = project(self._table.schema, names_of(self._table, columns))
        self.schema = with_extensions(output_schema(projected, ()))

    def tasks(
        self, num_tasks: int | None = None, names: Sequence[str] | None = None
    ) -> list[ReadTask]:
        """Return the tasks that read all rows."""
        columns, schema = _part(self._columns, self.schema, names)
        units = plan_scan(self._table, columns, self._filter)
        groups = divide(units, lambda unit: unit, lambda _, part: part, num_tasks)
        return [ReadTask(schema, bytes_of(group), partial(_read_rows, group)) for group in groups]


class ChangesRead:
    """The changes of an interval of versions; see `DistributedRead`.

    Args:
        uri: The table's location.
        after: The interval starts after this version; 0 is before the first.
        through: Its last version, as a version, tag or time; None for the newest.
        columns: Names or paths, and names of change columns, as in `Dataset.follow`.
        filter: A condition in SQL on the table's columns and the change columns.
        rules: The settings of the feed.
        storage_options: Settings of the store.

    Raises:
        NotFoundError: There is no such table, version or column, or a version of the interval has
            been cleaned up.
        InvalidInputError: An argument is invalid.
        UnsupportedFeatureError: The table has no stable row ids.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        after: int,
        through: VersionSpec = None,
        columns: Sequence[str] | None = None,
        filter: str | None = None,
        rules: FeedRules | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._table = open_dataset(uri, through, storage_options).table
        self.uri, self.version = self._table.uri, self._table.version
        self._columns = None if columns is None else as_names(columns, "columns")
        self._filter, self._after = filter, after
        self._rules = rules or FeedRules()
        self.schema = FeedSelection(self._table, self._columns, filter).rows.schema
        self.tasks()  # are the versions there?

    def tasks(
        self, num_tasks: int | None = None, names: Sequence[str] | None = None
    ) -> list[ReadTask]:
        """Return the tasks that read all rows."""
        columns, schema = _part(self._columns, self.schema, names)
        selection = FeedSelection(self._table, columns, self._filter)
        plan = plan_changes(self._table, self._after, None, self._rules, selection.columns)
        groups = divide(plan.units, lambda change: change.unit, _with_unit, num_tasks)
        return [
            ReadTask(
                schema,
                bytes_of([change.unit for change in group]),
                partial(selection.rows.read, group),
            )
            for group in groups
        ]


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
