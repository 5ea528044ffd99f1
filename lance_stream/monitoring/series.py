"""The data of a report: the size and changes of versions, and the newest version's details.

Each manifest is read once. No data or deletion file is read: numbers that the manifests do not
state are None.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import BadDataError, InvalidInputError
from lance_stream.maintenance.consumers import list_consumers
from lance_stream.maintenance.indices.coverage import index_coverage
from lance_stream.snapshot.history import VersionInfo, walk_versions
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import Fragment, total_size

MAX_SECONDS: Final = 1e9
"""Larger values are not durations of a batch."""

LOG_PREFIX: Final = "lance_sink "
"""The text before the JSON in a line of the log "lance_stream.sink"."""


class VersionSize(NamedTuple):
    """One version and its size.

    Attributes:
        info: The version's operation and changes.
        data_bytes: The size of its data files; None if not recorded.
        deleted_rows: The number of deleted rows that are still in data files; None if not recorded.
        fragments: The number of its fragments.
    """

    info: VersionInfo
    data_bytes: int | None
    deleted_rows: int | None
    fragments: int


class FragmentSize(NamedTuple):
    """One fragment of the newest version."""

    id: int
    live_rows: int | None
    deleted_rows: int | None
    data_bytes: int | None


class ConsumerState(NamedTuple):
    """A consumer of the change feed; `rows` and `seconds` are None if they are unknown."""

    name: str
    version: int
    has_started: bool
    versions: int
    rows: int | None
    seconds: float | None
    updated_at: datetime | None


class IndexState(NamedTuple):
    """An index: its name, its columns, and the fraction of the live rows that it covers, 0 to 1.

    `unindexed` is the number of live rows that it does not cover. Both are None if its writer did
    not state them.
    """

    name: str
    columns: str
    covered: float | None
    unindexed: int | None = None


class CommitTimes(NamedTuple):
    """The duration of each phase of a micro-batch."""

    version: int
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Series:
    """The data of a report.

    Attributes:
        uri: The table's location.
        read_at: The time of reading, in UTC.
        versions: The versions, the newest last.
        has_older: Whether there are older versions, which the report omits.
        fragments: The fragments of the newest version, in scan order.
        consumers: The consumers of the change feed.
        indices: The indices; None if their list is damaged.
        commits: The durations of micro-batches that the caller passed.
    """

    uri: str
    read_at: datetime
    versions: list[VersionSize]
    has_older: bool
    fragments: list[FragmentSize]
    consumers: list[ConsumerState]
    indices: list[IndexState] | None
    commits: list[CommitTimes]


def collect(
    table: TableVersion,
    limit: int | None,
    commits: Iterable[CommitTimes] = (),
    environment: Environment = MACHINE,
) -> Series:
    """Return the data of a table's report.

    Args:
        table: The version whose fragments and indices are shown.
        limit: The number of newest versions to show; None for all.
        commits: Durations of micro-batches.
        environment: The clock.
    """
    cached: dict[bytes, _Sizes] = {}
    existing = table.log.versions()
    versions = list(walk_versions(table, limit, lambda at, info: _version_size(at, info, cached)))
    now = datetime.fromtimestamp(environment.now_nanos() / 1e9, UTC)
    oldest = versions[0].info.version if versions else 0
    visible = {version.info.version for version in versions}
    return Series(
        uri=table.uri,
        read_at=now,
        versions=versions,
        has_older=any(version < oldest for version in existing),
        fragments=[
            FragmentSize(fragment.id, *_sizes(fragment)) for fragment in table.manifest.fragments
        ],
        consumers=_consumers(table, versions, now),
        indices=_indices(table),
        commits=[commit for commit in commits if commit.version in visible],
    )


def commits_in_log(lines: Iterable[str], uri: str) -> list[CommitTimes]:
    """Return the durations of the batches of a table, from lines of the log "lance_stream.sink".

    Other lines, lines of other tables, and skipped batches are ignored.

    Args:
        lines: Lines of a log, some of which contain the sink's `lance_sink {"table": ...}`.
        uri: The table's location, as it was passed to the sink.
    """
    commits: dict[int, CommitTimes] = {}
    for line in lines:
        _, prefix, text = line.partition(LOG_PREFIX)
        if not prefix:
            continue
        with suppress(ValueError, RecursionError):
            entry, _ = json.JSONDecoder().raw_decode(text)
            commit = _commit_of(entry, uri)
            if commit is not None:
                commits[commit.version] = commit
    return [commits[version] for version in sorted(commits)]


def commit_times(report: Any) -> CommitTimes | None:
    """Return the durations in a batch's report, `SinkCommit`; None if it committed nothing.

    Raises:
        InvalidInputError: The argument is not such a report.
    """
    try:
        version, seconds, skipped = report.version, report.seconds, report.skipped
    except AttributeError:
        raise InvalidInputError(
            "commits must be reports of batches, from sink.last_commit or on_commit, not "
            f"{report!r:.200}"
        ) from None
    return None if version is None or skipped else CommitTimes(version, dict(seconds))


def _commit_of(entry: object, uri: str) -> CommitTimes | None:
    if not isinstance(entry, dict) or entry.get("skipped"):
        return None
    table, version, seconds = entry.get("table"), entry.get("version"), entry.get("seconds")
    if not isinstance(table, str) or _normalized(table) != _normalized(uri):
        return None
    if not isinstance(version, int) or not isinstance(seconds, dict):
        return None
    times = {str(name): second for name, second in seconds.items() if _is_duration(second)}
    return CommitTimes(version, times)


def _is_duration(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < MAX_SECONDS


def _normalized(uri: str) -> str:
    """Return a normal form, the same for all spellings of a local path."""
    return (uri if ":/" in uri else os.path.realpath(uri)).rstrip("/")


class _Sizes(NamedTuple):
    live_rows: int | None
    deleted_rows: int | None
    data_bytes: int | None


def _sizes(fragment: Fragment) -> _Sizes:
    size = total_size(fragment.files)
    file = fragment.deletion_file
    if not fragment.physical_rows or (file is not None and not file.num_deleted_rows):
        return _Sizes(None, None, size)
    return _Sizes(fragment.num_live_rows, file.num_deleted_rows if file else 0, size)


def _version_size(
    table: TableVersion, info: VersionInfo, cached: dict[bytes, _Sizes]
) -> VersionSize:
    """Return the size of a version; the sizes of most fragments are cached."""
    fragments = table.manifest.fragments
    sizes = []
    for index, raw in enumerate(fragments.raws):
        if raw not in cached:
            cached[raw] = _sizes(fragments[index])
        sizes.append(cached[raw])
    return VersionSize(
        info,
        _sum(size.data_bytes for size in sizes),
        _sum(size.deleted_rows for size in sizes),
        len(fragments),
    )


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _consumers(
    table: TableVersion, versions: list[VersionSize], now: datetime
) -> list[ConsumerState]:
    consumers = []
    for consumer in list_consumers(table.refs):
        finished = consumer.version - 1 if consumer.is_beginning else consumer.version
        unread = [size.info for size in versions if size.info.version > finished]
        is_all = bool(versions) and versions[0].info.version <= finished + 1
        counts = [info.row_counts for info in unread]
        rows = sum(count.total for count in counts if count)
        first = unread[0].timestamp if unread and is_all else None
        consumers.append(
            ConsumerState(
                name=consumer.name,
                version=consumer.version,
                has_started=not consumer.is_beginning,
                versions=len(unread) if is_all else max(table.version - finished, len(unread)),
                rows=rows if is_all and None not in counts else None,
                seconds=0.0 if not unread else (now - first).total_seconds() if first else None,
                updated_at=consumer.updated_at,
            )
        )
    return consumers


def _indices(table: TableVersion) -> list[IndexState] | None:
    try:
        return [
            IndexState(
                coverage.name,
                ", ".join(coverage.columns),
                coverage.fraction,
                coverage.rows_unindexed,
            )
            for coverage in index_coverage(table)
        ]
    except BadDataError:
        return None
