"""Follows a table in batches: from one position in its history to the next, within limits.

Both methods derive their result from the table alone, so a batch whose ends are in a checkpoint can
be planned again at any time:

    advance(start, limits)   the end of the next batch
    units(start, end)        what to read for the batch

The next existing version takes the place of a version that was cleaned up. So versions can be
missing in two ways:

    after 4, existing: 4, 7, 8    a gap: the net changes from 4 to 7 bridge it
    after 4, existing: 7, 8       a loss: the changes of 5 to 7 are unknown

A loss is an error, unless `fail_on_data_loss` is false; then the batch starts after 7. A gap is an
error as well, unless `fail_on_data_loss` is false or the follower is a consumer, whose tag keeps
the version before the gap: net changes omit only the intermediate steps. Gaps and losses that are
not errors are logged as warnings. A limit never splits the net changes that bridge a gap, because
positions in them would change their meaning when more versions are removed.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import LogState
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from lance_stream.feed.change_units import ChangeUnit
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.following.appended_fragments import AppendedRows, walk_appended
from lance_stream.feed.following.existing_versions import ExistingVersions
from lance_stream.feed.following.newest_version import NewestVersion
from lance_stream.feed.following.positions import NO_LIMITS, Limits, Position
from lance_stream.feed.following.snapshots import Snapshot
from lance_stream.feed.intervals import first_without_gaps
from lance_stream.feed.rules import NET_CHANGES, NO_DEDUPLICATION, FeedRules
from lance_stream.feed.steps import VersionChanges, check_has_feed, walk
from lance_stream.read.units import sizes_of
from lance_stream.snapshot.references import Refs, refs_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import LONG_AGO
from lance_stream.table.changes.appended import appended_fragments
from lance_stream.table.feature_flags import check_readable
from lance_stream.table.version_marks import mark_of

_log = logging.getLogger(__name__)

MAX_CACHED_STEPS: Final = 64
MAX_CACHED_ROW_CHANGES: Final = 1 << 22
"""The maximum number of cached steps, and of their row changes (or one larger step)."""

NUM_PREFETCHED_VERSIONS: Final = 4
"""How many manifests are read concurrently if there is no limit on the number of versions."""

MAX_UNCHANGED_VERSIONS: Final = 256
"""The maximum number of versions without row changes in a limited batch; bounds its time."""

MAX_COUNTED_PER_LAG: Final = 8
"""The maximum number of versions whose rows are counted for one report of a stream's lag."""


@dataclass(frozen=True)
class FollowerRules:
    """The settings of a follower of a table.

    Attributes:
        feed: The settings of the feed; net changes are those of each batch. Its columns are
            ignored, because they are passed with each batch.
        only_appended: Whether the follower reads appended rows only, and a version that changes
            existing rows is an error.
        skip_change_commits: Whether such a version is skipped instead.
        fail_on_data_loss: Whether missing versions are an error.
        is_consumer: Whether a tag keeps the follower's version, so that a gap after it is not an
            error.
    """

    feed: FeedRules
    only_appended: bool = False
    skip_change_commits: bool = False
    fail_on_data_loss: bool = True
    is_consumer: bool = False


@dataclass(frozen=True)
class Lag:
    """The distance of a position from the newest version.

    Attributes:
        newest: The newest version.
        versions: The number of versions that have not been read.
        rows: The number of rows that they have in the feed; None until all have been counted.
    """

    newest: int
    versions: int
    rows: int | None


class Step(Protocol):
    """The changes of one version: `steps.VersionChanges` or `appended_fragments.AppendedRows`."""

    @property
    def newer(self) -> TableVersion:
        """The version."""
        ...

    @property
    def num_row_changes(self) -> int:
        """The number of row changes."""
        ...

    def num_rows(self, start: int = 0, stop: int | None = None) -> int:
        """Return the number of rows of a range of row changes."""
        ...

    def units(self, start: int = 0, stop: int | None = None) -> Iterator[ChangeUnit]:
        """Yield the work units that read a range of row changes."""
        ...

    def units_by_pairs(self, start: int, stop: int | None) -> Iterator[ChangeUnit]:
        """Yield the work units between two positions of an earlier release."""
        ...


def all_columns_of(last: TableVersion) -> FeedColumns:
    """Return all columns of the last version of a batch."""
    return FeedColumns(last, None)


class TableFollower:
    """Follows the changes of a table, from position to position.

    State between calls is caching only; it never changes a result.

    Args:
        uri: The location of the table.
        storage_options: Settings of its store.
        rules: The follower's settings.
    """

    def __init__(
        self, uri: str, storage_options: Mapping[str, Any] | None, rules: FollowerRules
    ) -> None:
        self.uri = uri
        self._storage_options = storage_options
        self.rules = rules
        self._log = open_log(uri, storage_options)
        self.store = self._log.store
        self._refs: Refs | None = None
        self._newest = NewestVersion(self._log)
        self._rows_of: dict[int, int] = {}
        self._cached_steps: dict[int, VersionChanges | AppendedRows] = {}
        self._planned: tuple[Position, Position, ExistingVersions] | None = None
        self._last_history: ExistingVersions | None = None
        self._warned: set[tuple[str, str]] = set()

    @property
    def newest_seen(self) -> int:
        """The newest version as of the last poll; reads nothing."""
        return self._newest.version

    @property
    def refs(self) -> Refs:
        """The references of the table, or of its branch."""
        if self._refs is None:
            self._refs = refs_of(self._log)
        return self._refs

    def list_newest(self) -> int:
        """List the newest version; unlike a poll, this always finds it.

        Raises:
            NotFoundError: The table does not exist.
        """
        return self._newest.list()

    def position_after(self, version: int) -> Position:
        """Return the position after all row changes of a version.

        Args:
            version: A version; 0 is before the first.
        """
        return self._history().position(version)

    def table(self, version: int | None = None) -> TableVersion:
        """Return a version; the newest one by default.

        Raises:
            NotFoundError: It does not exist.
        """
        history = self._last_history
        if history is None or version is None or version > history.newest.version:
            history = self._history()
        return history.newest if version is None else history.at(version)

    def advance(
        self, start: Position, limits: Limits = NO_LIMITS, through: int | None = None
    ) -> Position:
        """Return the end of the next batch; `start` itself if nothing is new.

        Args:
            start: The end of the previous batch.
            limits: The maximum size of the batch.
            through: The last version to read; None for the newest.

        Raises:
            NotFoundError: The table was deleted or re-created; or a version no longer exists.
            InvalidInputError: The follower reads appended rows only, and a version changes others.
        """
        newest = self._newest.poll()
        if newest < start.last_version:
            raise self._recreated_error(start)
        through = newest if through is None else max(min(newest, through), start.version)
        if not start.is_snapshot and through == start.version:
            if newest == start.version and start.mark not in ("", self._newest.mark):
                raise self._recreated_error(start)
            return start
        history = self._history(self._newest.listing)
        self._check_mark(history, start)
        self._cached_steps = {
            version: step
            for version, step in self._cached_steps.items()
            if start.version < version and start.mark
        }
        if start.is_snapshot:
            end = self._advance_snapshot(history, start, limits, through)
        elif start.counts_pairs:
            end = history.position(start.version + 1)  # switches to row changes
        elif limits.is_unlimited:
            # Net changes cannot be split: the rest of a version comes before those of later ones.
            is_inside = start.num_delivered and self.rules.feed.is_net
            end = history.position(start.version + 1 if is_inside else through)
        else:
            end = self._advance_within_limits(history, start, limits, through)
        self._planned = start, end, history
        return end

    def units(
        self,
        start: Position,
        end: Position,
        columns_of: Callable[[TableVersion], FeedColumns] = all_columns_of,
    ) -> list[ChangeUnit]:
        """Return what to read between two positions, in the feed's order.

        Args:
            start: The end of the previous batch.
            end: The end of this batch.
            columns_of: Returns the feed's columns, given the batch's last version.

        Raises:
            NotFoundError: The table was deleted or re-created; or a version no longer exists.
            UnsupportedFeatureError: The table has no stable row ids.
            InvalidInputError: The follower reads appended rows only, and a version changes others.
            CorruptDataError: `end` cannot be the end of a batch that starts at `start`.
        """
        if start == end:
            return []
        if end.is_snapshot and not start.is_snapshot:
            raise CorruptDataError(f"a snapshot cannot come after changes: {end} after {start}")
        if not start.is_snapshot and _sort_key(start) >= _sort_key(end):
            # A query that starts at the newest version determines its start again after a restart;
            # its first batch, which the checkpoint has, is empty.
            return []
        history = self._history_for(start, end)
        for position in (start, end):
            if position.last_version > history.newest.version:
                raise self._recreated_error(position)
            self._check_mark(history, position)
        if start.is_snapshot:
            return self._snapshot_units(history, start, end, columns_of)
        return self._change_units(history, start, end, columns_of)

    def lag(self, position: Position) -> Lag:
        """Return the distance of a position from the newest version, as of the last poll.

        Each call counts the rows of a few versions only, and caches the counts.
        """
        newest = self._newest.version
        versions = max(newest - position.version, 0)
        if not versions and not position.is_snapshot:
            return Lag(newest, 0, 0)
        try:
            history = self._last_history
            if history is None or history.newest.version != newest:
                history = self._history()
            return Lag(newest, versions, self._row_lag(history, position, newest))
        except (NotFoundError, InvalidInputError):
            return Lag(newest, versions, None)  # the next batch reports the error

    # --- the end of a batch

    def _advance_snapshot(
        self, history: ExistingVersions, start: Position, limits: Limits, through: int
    ) -> Position:
        version, first = start.version or through, start.num_delivered
        if not history.has(version):
            self._report_loss(
                f"version {version}, of which {first} rows have been read as a snapshot, no longer "
                "exists",
                history,
                f"a new snapshot, of version {through}, repeats these rows",
            )
            version, first = through, 0
        if limits.rows is None and limits.size_bytes is None:
            return history.position(version)
        snapshot = Snapshot(history.at(version))
        stop = snapshot.stop_within(first, limits.rows, limits.size_bytes)
        if stop >= snapshot.num_rows:
            return history.position(version)
        return replace(history.position(version), num_delivered=stop, is_snapshot=True)

    def _advance_within_limits(
        self, history: ExistingVersions, start: Position, limits: Limits, through: int
    ) -> Position:
        """Return the end of a batch within limits, after at least one row change.

        Versions without row changes do not count towards the limit of versions.
        """
        version, first = self._resume(history, start)
        rows, size_bytes, versions = limits.rows, limits.size_bytes, limits.versions
        unchanged = MAX_UNCHANGED_VERSIONS
        prefetched_through = version + (versions or NUM_PREFETCHED_VERSIONS)
        history.prefetch(version, min(through, prefetched_through))
        is_first = True
        for step, is_bridge in self._steps(history, version, through):
            if step.newer.version >= prefetched_through:  # few changes so far
                prefetched_through = step.newer.version + 2 * (prefetched_through - start.version)
                history.prefetch(step.newer.version, min(through, prefetched_through))
            stop, cost = _stop_within(step, first, rows, size_bytes)
            if stop < step.num_row_changes:
                if is_bridge and not is_first:
                    break
                if not is_bridge:
                    if is_first:
                        stop = max(stop, first + 1)
                    elif stop == first or self.rules.feed.is_net:
                        break  # the net changes of several versions cannot be split
                    if stop < step.num_row_changes:
                        return history.position(version, stop)
            version = step.newer.version
            if not step.num_row_changes:
                unchanged -= 1
            elif versions is not None:
                versions -= 1
            rows = None if rows is None else rows - step.num_rows(first)
            size_bytes = None if size_bytes is None else size_bytes - cost
            quotas = (versions, rows, size_bytes, unchanged)
            is_full = any(quota is not None and quota <= 0 for quota in quotas)
            if is_full or (first and self.rules.feed.is_net):
                break
            first, is_first = 0, False
        return history.position(version)

    # --- the work units of a batch

    def _snapshot_units(
        self,
        history: ExistingVersions,
        start: Position,
        end: Position,
        columns_of: Callable[[TableVersion], FeedColumns],
    ) -> list[ChangeUnit]:
        version = end.version
        first = start.num_delivered if start.version == version else 0
        stop = end.num_delivered if end.is_snapshot else None
        if not history.has(version):
            if stop is None:
                version, first = history.next_existing(version), 0
                instead = f"the rows of version {version} are read instead"
            else:
                instead = "its rows are skipped, and a new snapshot follows"
            self._report_loss(
                f"version {end.version}, which is needed for a snapshot, no longer exists",
                history,
                instead,
            )
            if stop is not None:
                return []
        table = history.at(version)
        if not self.rules.only_appended:
            check_has_feed(table)
        snapshot = Snapshot(table, columns_of(table))
        return list(snapshot.units(first, stop))

    def _change_units(
        self,
        history: ExistingVersions,
        start: Position,
        end: Position,
        columns_of: Callable[[TableVersion], FeedColumns],
    ) -> list[ChangeUnit]:
        part = end.version + 1 if end.num_delivered else 0  # version 0 has no changes
        if not history.has(part):
            # These changes can no longer be determined; the next batch delivers all of them.
            self._report_loss(
                f"the first {end.num_delivered} changes of version {part} are needed, but the "
                "version no longer exists",
                history,
                "they follow in the next batch",
            )
            part = 0
        last = history.at(history.next_existing(part or end.version))
        columns = columns_of(last)
        after, first = self._resume(history, start)
        through = part or end.version
        history.prefetch(after, through)
        if self.rules.feed.is_net and not self.rules.only_appended and not first and not part:
            steps = self._net_steps(history, after, through, columns)
        else:
            steps = self._steps(history, after, through, columns)
        units: list[ChangeUnit] = []
        for step, is_bridge in steps:
            stop = end.num_delivered if step.newer.version == part else None
            first = 0 if is_bridge else first
            counts_pairs = (first and start.counts_pairs) or (stop and end.counts_pairs)
            units += step.units_by_pairs(first, stop) if counts_pairs else step.units(first, stop)
            first = 0
        return units

    def _resume(self, history: ExistingVersions, start: Position) -> tuple[int, int]:
        """Return where a batch starts, with a replacement for a start that no longer exists.

        Args:
            history: The table's versions.
            start: The end of the previous batch.

        Returns:
            The version after which it starts, which exists; and the number of row changes of the
            next version to skip.
        """
        version = start.version
        if not history.has(version):
            next_version = history.next_existing(version)
            self._report_loss(
                f"the changes after version {version} are needed, but that version no longer "
                "exists, so the changes of the next ones are unknown",
                history,
                f"the changes through version {next_version} are skipped",
            )
            return next_version, 0
        if start.num_delivered and not history.has(version + 1):
            self._report_loss(
                f"{start.num_delivered} changes of version {version + 1} have been read, but that "
                "version no longer exists, so the remaining changes are unknown",
                history,
                f"all changes after version {version} follow, which repeats some of them",
            )
            return version, 0
        return version, start.num_delivered

    def _steps(
        self,
        history: ExistingVersions,
        after: int,
        through: int,
        columns: FeedColumns | None = None,
    ) -> Iterator[tuple[Step, bool]]:
        """Yield the changes of each version of an interval, and whether they bridge a gap.

        Args:
            history: The table's versions.
            after: The version after which the interval begins, which exists.
            through: The last version of the interval.
            columns: The feed's columns; None to count rows only.
        """
        columns = columns or FeedColumns(history.newest, ())
        versions = history.between(after, through)
        while versions:
            run = _consecutive(after, versions)
            if run:
                yield from ((step, False) for step in self._walk(history, after, run[-1], columns))
                after, versions = run[-1], versions[len(run) :]
            else:
                self._report_gaps(history, after, versions[:1])
                net_step = self._net_step(history, after, versions[0], columns)
                yield from ((step, True) for step in net_step)
                after, versions = versions[0], versions[1:]

    def _net_steps(
        self, history: ExistingVersions, after: int, through: int, columns: FeedColumns
    ) -> Iterator[tuple[Step, bool]]:
        """Yield the net changes of an interval as one step; see `_steps`."""
        versions = history.between(after, through)
        if versions:
            self._report_gaps(history, after, versions)
            net_step = self._net_step(history, after, versions[-1], columns)
            yield from ((step, False) for step in net_step)

    def _report_gaps(self, history: ExistingVersions, after: int, versions: Sequence[int]) -> None:
        """Report missing versions, as a warning or an error.

        Args:
            history: The table's versions.
            after: The version before the first one.
            versions: The existing versions, ascending.
        """
        for older, newer in zip((after, *versions[:-1]), versions, strict=True):
            if newer == older + 1:
                continue
            if newer == older + 2:
                problem = f"version {older + 1} no longer exists"
            else:
                problem = f"versions {older + 1} to {newer - 1} no longer exist"
            instead = f"the net changes from version {older} to {newer} replace them"
            if self.rules.is_consumer and older:
                self._warn(problem, instead)
            else:
                self._report_loss(
                    f"the changes after version {older} are needed, but {problem}",
                    history,
                    instead,
                )

    def _walk(
        self, history: ExistingVersions, after: int, through: int, columns: FeedColumns
    ) -> Iterator[Step]:
        """Yield the changes of each version, from the cache if possible.

        Without the cache, a large version would be compared again for each batch of its changes.
        """
        while after < through:
            cached = self._cached_steps.get(after + 1)
            if cached is not None and mark_of(cached.newer.manifest) == history.mark(after + 1):
                after += 1
                yield replace(cached, columns=columns)
                continue
            for step in self._walk_uncached(history, after, through, columns):
                after = step.newer.version
                self._cache_step(step)
                yield step
                if after + 1 in self._cached_steps:
                    break

    def _walk_uncached(
        self, history: ExistingVersions, after: int, through: int, columns: FeedColumns
    ) -> Iterator[VersionChanges | AppendedRows]:
        table = history.at(through)
        if not self.rules.only_appended:
            check_has_feed(table)
            rules = replace(self.rules.feed, deduplication_mode=NO_DEDUPLICATION)
            yield from walk(table, after, through, rules, columns)
            return
        backfills = self.rules.feed.column_backfills
        for step in walk_appended(table, after, through, columns, column_backfills=backfills):
            self._check_appended(step)
            yield step

    def _cache_step(self, step: VersionChanges | AppendedRows) -> None:
        num_cached = (
            sum(cached_step.num_row_changes for cached_step in self._cached_steps.values())
            + step.num_row_changes
        )
        if not self._cached_steps or (
            len(self._cached_steps) < MAX_CACHED_STEPS and num_cached <= MAX_CACHED_ROW_CHANGES
        ):
            self._cached_steps[step.newer.version] = step

    def _net_step(
        self, history: ExistingVersions, after: int, through: int, columns: FeedColumns
    ) -> Iterator[Step]:
        newer = history.at(through)
        if not self.rules.only_appended:
            check_has_feed(newer)
            rules = replace(self.rules.feed, deduplication_mode=NET_CHANGES)
            yield from walk(newer, after, through, rules, columns)
            return
        older = history.at(after).manifest if after else None
        backfills = self.rules.feed.column_backfills
        appended = appended_fragments(older, newer.manifest, None, column_backfills=backfills)
        step = AppendedRows(newer, appended, newer.timestamp or LONG_AGO, columns)
        self._check_appended(step)
        yield step

    def _check_appended(self, step: AppendedRows) -> None:
        if step.changes_rows is not None and not self.rules.skip_change_commits:
            raise InvalidInputError(
                f"version {step.newer.version} of {self.uri} changes existing rows: it "
                f"{step.changes_rows}. This stream reads appended rows only. Read all changes with "
                "the option readChangeFeed; or skip such versions with the option "
                "skipChangeCommits, which also omits the rows that they insert"
            )

    # --- lag

    def _row_lag(self, history: ExistingVersions, position: Position, newest: int) -> int | None:
        rows = 0
        if position.is_snapshot and position.version:
            rows = Snapshot(history.at(position.version)).num_rows - position.num_delivered
        elif position.is_snapshot:
            return Snapshot(history.newest).num_rows
        if position.counts_pairs:
            return None  # the next batch counts row changes
        counted = 0
        self._rows_of = {
            version: num_rows
            for version, num_rows in self._rows_of.items()
            if version > position.version
        }
        for version in range(position.version + 1, newest + 1):
            is_part = position.num_delivered and not position.is_snapshot
            is_part = bool(is_part) and version == position.version + 1
            if version not in self._rows_of or is_part:
                if counted == MAX_COUNTED_PER_LAG:
                    return None
                counted += 1
                columns = FeedColumns(history.newest, ())
                (step,) = self._walk(history, version - 1, version, columns)
                self._rows_of[version] = step.num_rows()
                if is_part:
                    rows -= step.num_rows(0, position.num_delivered)
            rows += self._rows_of[version]
        return rows

    # --- the table

    def _history(self, state: LogState | None = None) -> ExistingVersions:
        """Return the versions that exist now, or those of a listing."""
        state = state or self._log.read_state()
        check_readable(state.newest)
        table = TableVersion(
            self.uri, dict(self._storage_options or {}), self.store, self._log, state.newest
        )
        self._last_history = ExistingVersions(table, state)
        return self._last_history

    def _history_for(self, start: Position, end: Position) -> ExistingVersions:
        """Return the versions from which this batch's end was chosen, or those of now."""
        if self._planned is None or self._planned[:2] != (start, end):
            return self._history()
        history = self._planned[2]
        self._planned = None
        return history

    def _check_mark(self, history: ExistingVersions, position: Position) -> None:
        for version, mark in position.marks.items():
            if history.mark(version) not in ("", mark):
                raise self._recreated_error(position)

    def _recreated_error(self, position: Position) -> NotFoundError:
        return NotFoundError(
            f"version {position.last_version} of {self.uri}, up to which changes have been read, "
            "is not the version of that number that exists now: the table was deleted and "
            "re-created, or restored from a copy, or it is another table or branch. Start a new "
            "query, with a new checkpoint; or follow without a position"
        )

    def _report_loss(self, problem: str, history: ExistingVersions, instead: str) -> None:
        """Report lost changes, as a warning or an error."""
        if self.rules.fail_on_data_loss:
            oldest, newest = history.versions[0], history.versions[-1]
            first = first_without_gaps(history.versions) + 1
            raise NotFoundError(
                f"{self.uri}: {problem}. The oldest existing version is {oldest}, the newest "
                f"{newest}. Set failOnDataLoss (fail_on_data_loss) to false to continue anyway "
                f"({instead}); or start a new query with a new checkpoint, either with "
                f"startingVersion {first}, or without it to read a snapshot first. With the "
                "option consumer, cleanup keeps the versions that a stream has not read yet"
            )
        self._warn(problem, instead)

    def _warn(self, problem: str, instead: str) -> None:
        """Log a warning, once."""
        if (problem, instead) not in self._warned:
            self._warned.add((problem, instead))
            _log.warning("%s: %s; %s", self.uri, problem, instead)


def _sort_key(position: Position) -> tuple[int, int]:
    return position.version, position.num_delivered


def _consecutive(after: int, versions: Sequence[int]) -> Sequence[int]:
    """Return the leading versions that follow `after` without a gap."""
    length = 0
    while length < len(versions) and versions[length] == after + 1 + length:
        length += 1
    return versions[:length]


def _stop_within(
    step: Step, first: int, rows: int | None, size_bytes: int | None
) -> tuple[int, int]:
    """Return how many row changes of a step fit the limits.

    Args:
        step: The step.
        first: The first row change to deliver.
        rows: The maximum number of rows.
        size_bytes: The approximate maximum in bytes.

    Returns:
        One past the last row change that fits; and the size in bytes of all row changes from
        `first`, or 0 without a limit in bytes.
    """
    num_rows = step.num_rows(first)
    allowed = num_rows if rows is None else min(rows, num_rows)
    size = 0
    if size_bytes is not None:
        sizes = sizes_of([unit.unit for unit in step.units(first)])
        size = sum(max(size_of_unit, 1) for _, size_of_unit in sizes)
        if size > size_bytes:
            allowed = min(allowed, num_rows * size_bytes // size)
    if allowed >= num_rows:
        return step.num_row_changes, size
    low, high = first, step.num_row_changes  # up to `low`, rows fit; up to `high`, they do not
    while high - low > 1:
        middle = (low + high) // 2
        if step.num_rows(first, middle) <= allowed:
            low = middle
        else:
            high = middle
    return low, size
