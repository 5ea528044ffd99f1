"""Following a table: from a position in its history to the next, as far as limits let.

Two questions, each answered from the table alone, so that a batch which a checkpoint names can be
planned again, whatever happened meanwhile:

    advance(start, limits)   how far the next batch goes
    units(start, end)        what has to be read for it

A version that has been cleaned up is stood for by the next one that is left. So there are two kinds
of holes between the versions of a batch:

    after 4, of which   left: 4, 7, 8    a gap: 4 to 7 is bridged by the net changes between them
    after 4, of which   left: 7, 8       a loss: nobody can say any more what 5 to 7 changed

A loss is an error, unless `fail_on_data_loss` is false: then the batch begins at 7. So is a gap,
unless `fail_on_data_loss` is false or a consumer had held the version before it: net changes lose
nothing but the steps in between. Either is said in a warning. A bridge is never cut by a limit:
positions in it would mean something else once more versions are gone.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import Look
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from lance_stream.feed.appended_fragments import AppendedRows, walk_appended
from lance_stream.feed.change_units import ChangeUnit
from lance_stream.feed.columns_of_versions import FeedColumns
from lance_stream.feed.newest_version import NewestVersion
from lance_stream.feed.positions import NO_LIMITS, Limits, Position
from lance_stream.feed.rules import EACH_VERSION, NET_CHANGES, FeedRules
from lance_stream.feed.snapshots import Snapshot
from lance_stream.feed.steps import VersionChanges, check_has_feed, walk
from lance_stream.feed.versions_left import VersionsLeft
from lance_stream.read.units import size_of
from lance_stream.snapshot.references import Refs, refs_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.snapshot.timestamps import LONG_AGO
from lance_stream.table.appended import appended_fragments
from lance_stream.table.feature_flags import check_readable
from lance_stream.table.version_marks import mark_of

_log = logging.getLogger(__name__)

KNOWN: Final = 64
KNOWN_EVENTS: Final = 1 << 22
"""So many steps are remembered at most, with so many events in all, or one that is larger."""

VERSIONS_AHEAD: Final = 4
"""So many manifests are read at once where nobody knows how many the limits let."""

COUNTED_PER_REPORT: Final = 8
"""Of so many versions the rows are counted for one report of how far behind somebody is."""


@dataclass(frozen=True)
class FollowerRules:
    """What somebody who follows a table asks for.

    Attributes:
        feed: What of each change; net changes are those of each batch. Its columns are not looked
            at: they are given with each batch.
        only_appended: Whether rows appended are given instead, and a version that changes others
            is an error.
        skip_change_commits: Whether such a version is passed over.
        fail_on_data_loss: Whether versions that are gone are an error.
        is_consumer: Whether the table holds the version where they stand, so that a gap after it
            is no loss.
    """

    feed: FeedRules
    only_appended: bool = False
    skip_change_commits: bool = False
    fail_on_data_loss: bool = True
    is_consumer: bool = False


@dataclass(frozen=True)
class Behind:
    """How far a position is behind the newest version.

    Attributes:
        newest: The newest version.
        versions: How many versions are yet to be read.
        rows: How many rows they give; None while they have not all been counted.
    """

    newest: int
    versions: int
    rows: int | None


class Step(Protocol):
    """What one version changed: `steps.VersionChanges` or `appended_fragments.AppendedRows`."""

    @property
    def newer(self) -> TableVersion:
        """The version."""
        ...

    @property
    def num_events(self) -> int:
        """How many events there are."""
        ...

    def num_rows(self, start: int = 0, stop: int | None = None) -> int:
        """How many rows some of the events give."""
        ...

    def units(self, start: int = 0, stop: int | None = None) -> Iterator[ChangeUnit]:
        """Yield what reads them."""
        ...


def all_columns_of(last: TableVersion) -> FeedColumns:
    """Return all columns of the last version of a batch."""
    return FeedColumns(last, None)


class TableFollower:
    """Follows the changes of a table, from position to position.

    What is kept between two calls saves work, and never changes an answer.

    Args:
        uri: Where the table lies.
        storage_options: Settings of its store.
        rules: What is asked for.
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
        self._known_steps: dict[int, VersionChanges | AppendedRows] = {}
        self._planned: tuple[Position, Position, VersionsLeft] | None = None
        self._last_history: VersionsLeft | None = None
        self._said: set[tuple[str, str]] = set()

    @property
    def newest_seen(self) -> int:
        """The newest version, as it was seen last; reads nothing."""
        return self._newest.seen

    @property
    def refs(self) -> Refs:
        """The references of the table, or of its branch."""
        if self._refs is None:
            self._refs = refs_of(self._log)
        return self._refs

    def newest_listed(self) -> int:
        """Return the newest version, as a listing says: nothing that is there is missed.

        Raises:
            NotFoundError: There is no table.
        """
        return self._newest.list()

    def after(self, version: int) -> Position:
        """Return the position after all changes of a version.

        Args:
            version: A version; 0 for the time before the first.
        """
        return self._history().position(version)

    def table(self, version: int | None = None) -> TableVersion:
        """Return a version; None for the newest one.

        Raises:
            NotFoundError: It is gone.
        """
        history = self._last_history
        if history is None or version is None or version > history.newest.version:
            history = self._history()
        return history.newest if version is None else history.at(version)

    def advance(
        self, start: Position, limits: Limits = NO_LIMITS, through: int | None = None
    ) -> Position:
        """Return how far the next batch goes; `start` itself where there is nothing new.

        Args:
            start: Everything up to here has been given.
            limits: How much is taken.
            through: No later version is looked at; None for the newest.

        Raises:
            NotFoundError: The table was deleted, or made anew; or a version is gone.
            InvalidInputError: Rows appended are asked for, and a version changes others.
        """
        newest = self._newest.look()
        if newest < start.last_version:
            raise self._made_anew(start)
        through = newest if through is None else max(min(newest, through), start.version)
        if not start.is_snapshot and through == start.version:
            if newest == start.version and start.mark not in ("", self._newest.mark):
                raise self._made_anew(start)
            return start
        history = self._history(self._newest.listed)
        self._check_mark(history, start)
        self._known_steps = {
            version: step
            for version, step in self._known_steps.items()
            if start.version < version and start.mark
        }
        if start.is_snapshot:
            end = self._advance_snapshot(history, start, limits, through)
        elif limits.is_none:
            in_part = start.events and self.rules.feed.is_net  # net changes have no parts
            end = history.position(start.version + 1 if in_part else through)
        else:
            end = self._take(history, start, limits, through)
        self._planned = start, end, history
        return end

    def units(
        self,
        start: Position,
        end: Position,
        columns_of: Callable[[TableVersion], FeedColumns] = all_columns_of,
    ) -> list[ChangeUnit]:
        """Return what has to be read between two positions, in the feed's order.

        Args:
            start: Everything up to here has been given.
            end: Everything up to here is to be given.
            columns_of: Returns the feed's columns, given the batch's last version.

        Raises:
            NotFoundError: The table was deleted, or made anew; or a version is gone.
            UnsupportedFeatureError: The table has no stable row ids.
            InvalidInputError: Rows appended are asked for, and a version changes others.
            CorruptDataError: The positions cannot follow each other.
        """
        if start == end:
            return []
        if end.is_snapshot and not start.is_snapshot:
            raise CorruptDataError(f"a snapshot cannot come after changes: {end} after {start}")
        if not start.is_snapshot and _place(start) >= _place(end):
            # A query that begins at what is newest says something else each time it begins; the
            # batch that began it has been planned, and is empty.
            return []
        history = self._history_for(start, end)
        for position in (start, end):
            if position.last_version > history.newest.version:
                raise self._made_anew(position)
            self._check_mark(history, position)
        if start.is_snapshot:
            return self._snapshot_units(history, start, end, columns_of)
        return self._change_units(history, start, end, columns_of)

    def behind(self, position: Position) -> Behind:
        """Return how far a position is behind the newest version that was seen last.

        Of few versions at a time the rows are counted, and those numbers are kept.
        """
        newest = self._newest.seen
        versions = max(newest - position.version, 0)
        if not versions and not position.is_snapshot:
            return Behind(newest, 0, 0)
        try:
            history = self._last_history
            if history is None or history.newest.version != newest:
                history = self._history()
            return Behind(newest, versions, self._rows_behind(history, position, newest))
        except (NotFoundError, InvalidInputError):
            return Behind(newest, versions, None)  # the next batch says what is wrong

    # --- how far

    def _advance_snapshot(
        self, history: VersionsLeft, start: Position, limits: Limits, through: int
    ) -> Position:
        version, first = start.version or through, start.events
        if not history.has(version):
            self._lose(
                f"the rows of version {version}, of which {first} have been read as a snapshot, "
                "are gone with it",
                history,
                f"a new snapshot is begun, of version {through}: rows come again",
            )
            version, first = through, 0
        if limits.rows is None and limits.size_bytes is None:
            return history.position(version)
        snapshot = Snapshot(history.at(version))
        stop = snapshot.stop_within(first, limits.rows, limits.size_bytes)
        if stop >= snapshot.num_rows:
            return history.position(version)
        return replace(history.position(version), events=stop, is_snapshot=True)

    def _take(
        self, history: VersionsLeft, start: Position, limits: Limits, through: int
    ) -> Position:
        """Return how far the limits let; past one event at least."""
        version, first = self._beginning(history, start)
        rows, size_bytes, versions = limits.rows, limits.size_bytes, limits.versions
        history.read_ahead(version, min(through, version + (versions or VERSIONS_AHEAD)))
        is_first = True
        for step, is_bridge in self._steps(history, version, through):
            stop, cost = _stop_within(step, first, rows, size_bytes)
            if stop < step.num_events:
                if is_bridge and not is_first:
                    break
                if not is_bridge:
                    if is_first:
                        stop = max(stop, first + 1)
                    elif stop == first or self.rules.feed.is_net:
                        break  # net changes of several versions have no parts
                    if stop < step.num_events:
                        return history.position(version, stop)
            version = step.newer.version
            versions = None if versions is None else versions - 1
            rows = None if rows is None else rows - step.num_rows(first)
            size_bytes = None if size_bytes is None else size_bytes - cost
            is_full = any(left is not None and left <= 0 for left in (versions, rows, size_bytes))
            if is_full or (first and self.rules.feed.is_net):
                break
            first, is_first = 0, False
        return history.position(version)

    # --- what is read

    def _snapshot_units(
        self,
        history: VersionsLeft,
        start: Position,
        end: Position,
        columns_of: Callable[[TableVersion], FeedColumns],
    ) -> list[ChangeUnit]:
        version = end.version
        first = start.events if start.version == version else 0
        stop = end.events if end.is_snapshot else None
        if not history.has(version):
            if stop is None:
                version, first = history.stand_in(version), 0
                instead = f"those of version {version} are read instead"
            else:
                instead = "they are passed over, and a new snapshot comes next"
            self._lose(
                f"rows of version {end.version}, which were to be read as a snapshot, are gone "
                "with it",
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
        history: VersionsLeft,
        start: Position,
        end: Position,
        columns_of: Callable[[TableVersion], FeedColumns],
    ) -> list[ChangeUnit]:
        part = end.version + 1 if end.events else None
        if part is not None and not history.has(part):
            # Its part cannot be told any more; the next batch gives all of it.
            self._lose(
                f"the first {end.events} changes of version {part} were to be read, but the "
                "version is gone",
                history,
                "they come with the next batch",
            )
            part = None
        last = history.at(history.stand_in(part or end.version))
        columns = columns_of(last)
        after, first = self._beginning(history, start)
        through = end.version if part is None else part
        history.read_ahead(after, through)
        if self.rules.feed.is_net and not self.rules.only_appended and not first and part is None:
            steps = self._net_steps(history, after, through, columns)
        else:
            steps = self._steps(history, after, through, columns)
        units: list[ChangeUnit] = []
        for step, is_bridge in steps:
            stop = end.events if step.newer.version == part else None
            units += step.units(0 if is_bridge else first, stop)
            first = 0
        return units

    def _beginning(self, history: VersionsLeft, start: Position) -> tuple[int, int]:
        """Return the version after which changes can be told, and how many of the next one's not.

        Args:
            history: The table's versions.
            start: Everything up to here has been given.
        """
        version = start.version
        if not history.has(version):
            left = history.stand_in(version)
            self._lose(
                f"the changes after version {version} are to be read, but that version is gone, "
                "so that nobody can say what was changed in the next ones",
                history,
                f"the changes through version {left} are left out",
            )
            return left, 0
        if start.events and not history.has(version + 1):
            self._lose(
                f"{start.events} changes of version {version + 1} have been read, but that version "
                "is gone, so that nobody can say which are left",
                history,
                f"all changes after version {version} come, and some of them again",
            )
            return version, 0
        return version, start.events

    def _steps(
        self, history: VersionsLeft, after: int, through: int, columns: FeedColumns | None = None
    ) -> Iterator[tuple[Step, bool]]:
        """Yield what each version of an interval changed, and whether it stands for a gap.

        Args:
            history: The table's versions.
            after: The version after which the interval begins; it is there.
            through: Its last version.
            columns: The feed's columns; None where rows are only counted.
        """
        columns = columns or FeedColumns(history.newest, ())
        versions = history.between(after, through)
        done = after
        while versions:
            run = _run(done, versions)
            if run:
                yield from ((each, False) for each in self._walk(history, done, run[-1], columns))
                done, versions = run[-1], versions[len(run) :]
            else:
                self._bridge_gaps(history, done, versions[:1])
                yield from ((each, True) for each in self._net(history, done, versions[0], columns))
                done, versions = versions[0], versions[1:]

    def _net_steps(
        self, history: VersionsLeft, after: int, through: int, columns: FeedColumns
    ) -> Iterator[tuple[Step, bool]]:
        """Yield what all versions of an interval changed together; see `_steps`."""
        versions = history.between(after, through)
        if versions:
            self._bridge_gaps(history, after, versions)
            yield from ((each, False) for each in self._net(history, after, versions[-1], columns))

    def _bridge_gaps(self, history: VersionsLeft, after: int, versions: Sequence[int]) -> None:
        """Say that versions are missing between some; raise if they must not.

        Args:
            history: The table's versions.
            after: The version before the first one.
            versions: Those that are left, ascending.
        """
        for older, newer in zip((after, *versions[:-1]), versions, strict=True):
            if newer == older + 1:
                continue
            gone = f"{older + 1}" if newer == older + 2 else f"{older + 1} to {newer - 1}"
            problem = f"version {gone} gone" if newer == older + 2 else f"versions {gone} gone"
            instead = f"the net changes from version {older} to {newer} stand for them"
            if self.rules.is_consumer and older:
                self._warn(problem, instead)
            else:
                self._lose(
                    f"the changes after version {older} are to be read, but of the next ones "
                    f"{problem}",
                    history,
                    instead,
                )

    def _walk(
        self, history: VersionsLeft, after: int, through: int, columns: FeedColumns
    ) -> Iterator[Step]:
        """Yield what each version changed; what is known from a moment ago is not found out again.

        A batch that ends in the midst of a large version would else compare it for every part.
        """
        while after < through:
            known = self._known_steps.get(after + 1)
            if known is not None and mark_of(known.newer.manifest) == history.mark(after + 1):
                after += 1
                yield replace(known, columns=columns)
                continue
            for step in self._walk_anew(history, after, through, columns):
                after = step.newer.version
                self._remember(step)
                yield step
                if after + 1 in self._known_steps:
                    break

    def _walk_anew(
        self, history: VersionsLeft, after: int, through: int, columns: FeedColumns
    ) -> Iterator[VersionChanges | AppendedRows]:
        table = history.at(through)
        if not self.rules.only_appended:
            check_has_feed(table)
            rules = replace(self.rules.feed, deduplication_mode=EACH_VERSION)
            yield from walk(table, after, through, rules, columns)
            return
        backfills = self.rules.feed.column_backfills
        for step in walk_appended(table, after, through, columns, column_backfills=backfills):
            self._check_appended(step)
            yield step

    def _remember(self, step: VersionChanges | AppendedRows) -> None:
        events = sum(each.num_events for each in self._known_steps.values()) + step.num_events
        if not self._known_steps or (len(self._known_steps) < KNOWN and events <= KNOWN_EVENTS):
            self._known_steps[step.newer.version] = step

    def _net(
        self, history: VersionsLeft, after: int, through: int, columns: FeedColumns
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
                f"version {step.newer.version} of {self.uri} changes rows that were there before: "
                f"it {step.changes_rows}. This stream gives appended rows only. Read all changes "
                "with the option readChangeFeed; or pass over such versions with "
                "skipChangeCommits, which leaves out the rows that they insert, too"
            )

    # --- how far behind

    def _rows_behind(self, history: VersionsLeft, position: Position, newest: int) -> int | None:
        rows = 0
        if position.is_snapshot and position.version:
            rows = Snapshot(history.at(position.version)).num_rows - position.events
        elif position.is_snapshot:
            return Snapshot(history.newest).num_rows
        counted = 0
        for version in [each for each in self._rows_of if each <= position.version]:
            del self._rows_of[version]
        for version in range(position.version + 1, newest + 1):
            is_part = position.events and not position.is_snapshot
            is_part = bool(is_part) and version == position.version + 1
            if version not in self._rows_of or is_part:
                there = history.has(version - 1) and history.has(version)
                if counted == COUNTED_PER_REPORT or not there:
                    return None
                counted += 1
                columns = FeedColumns(history.newest, ())
                (step,) = self._walk(history, version - 1, version, columns)
                self._rows_of[version] = step.num_rows()
                if is_part:
                    rows -= step.num_rows(0, position.events)
            rows += self._rows_of[version]
        return rows

    # --- the table

    def _history(self, look: Look | None = None) -> VersionsLeft:
        """Return the versions that there are now, or were in a look just now."""
        look = look or self._log.look()
        check_readable(look.newest)
        table = TableVersion(
            self.uri, dict(self._storage_options or {}), self.store, self._log, look.newest
        )
        self._last_history = VersionsLeft(table, look)
        return self._last_history

    def _history_for(self, start: Position, end: Position) -> VersionsLeft:
        """Return the table's versions; those that were seen when this batch's end was found."""
        if self._planned is None or self._planned[:2] != (start, end):
            return self._history()
        history = self._planned[2]
        self._planned = None
        return history

    def _check_mark(self, history: VersionsLeft, position: Position) -> None:
        for version, mark in position.marks.items():
            if history.mark(version) not in ("", mark):
                raise self._made_anew(position)

    def _made_anew(self, position: Position) -> NotFoundError:
        return NotFoundError(
            f"version {position.last_version} of {self.uri}, up to which changes have been read, "
            "is not the one that is there now: the table was deleted and made anew, or put back "
            "from a copy. Start a new query, with a new checkpoint"
        )

    def _lose(self, problem: str, history: VersionsLeft, instead: str) -> None:
        """Say what is lost; raise if nothing must be."""
        if self.rules.fail_on_data_loss:
            oldest, newest = history.versions[0], history.versions[-1]
            raise NotFoundError(
                f"{self.uri}: {problem}. The oldest version there is is {oldest}, the newest "
                f"{newest}. Set failOnDataLoss to false to go on all the same ({instead}); or "
                f"start a new query, with a new checkpoint: with startingVersion {oldest + 1}, or "
                "without for a snapshot first. The option consumer makes cleanup keep what a "
                "stream has yet to read"
            )
        self._warn(problem, instead)

    def _warn(self, problem: str, instead: str) -> None:
        """Say something, once."""
        if (problem, instead) not in self._said:
            self._said.add((problem, instead))
            _log.warning("%s: %s; %s", self.uri, problem, instead)


def _place(position: Position) -> tuple[int, int]:
    return position.version, position.events


def _run(after: int, versions: Sequence[int]) -> Sequence[int]:
    """Return the versions at the beginning that follow one without a gap."""
    length = 0
    while length < len(versions) and versions[length] == after + 1 + length:
        length += 1
    return versions[:length]


def _stop_within(
    step: Step, first: int, rows: int | None, size_bytes: int | None
) -> tuple[int, int]:
    """Return how many events of a step the limits let, counted from its beginning; and their size.

    Args:
        step: The step.
        first: Its first event that is to be given.
        rows: So many rows at most.
        size_bytes: About so many bytes at most.

    Returns:
        One past the last event, and how large all from `first` are (0 where it does not matter).
    """
    num_rows = step.num_rows(first)
    allowed = num_rows if rows is None else min(rows, num_rows)
    size = 0
    if size_bytes is not None:
        size = sum(max(size_of(each.unit)[1], 1) for each in step.units(first))
        if size > size_bytes:
            allowed = min(allowed, num_rows * size_bytes // size)
    if allowed >= num_rows:
        return step.num_events, size
    low, high = first, step.num_events  # low gives no more rows than allowed, high gives more
    while high - low > 1:
        middle = (low + high) // 2
        if step.num_rows(first, middle) <= allowed:
            low = middle
        else:
            high = middle
    return low, size
