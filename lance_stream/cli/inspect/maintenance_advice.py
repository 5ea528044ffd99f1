"""Recommends maintenance for a table, with the commands to run.

The recommendations are based on what `describe` reads, and on one more listing if there are many
versions.

    compact          small fragments could be merged, or many rows are deleted
    indices          an index lacks many rows, so searches scan them
    cleanup          old versions could be removed
    consumers        a consumer that makes no progress retains many versions
    stable row ids   the table has no stable row ids, and therefore no change feed
    ledger           every version stores the ledger entries of many streams
    lineage          every version lists the ids and versions of many rows individually
    manifest names   with the old naming scheme, finding the newest version lists all of them
    file version     new files are written in an old file version
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lance_stream.cli import output
from lance_stream.cli.inspect.description import TableContext
from lance_stream.dataset import Dataset
from lance_stream.maintenance.cleanup.rules import DEFAULT_AGE
from lance_stream.maintenance.compaction.plan import MAX_DELETED_FRACTION, CompactionRules, plan
from lance_stream.maintenance.consumers import Consumer, is_consumer_tag
from lance_stream.snapshot.references import Branch
from lance_stream.snapshot.timestamps import moment_at
from lance_stream.table.config.ledger_entries import PREFIX
from lance_stream.table.config.lineage_limits import inline_bytes, is_misplaced
from lance_stream.table.paths import VERSIONS_DIRECTORY, NamingScheme, parse_manifest_name
from lance_stream.write.lineage_files import limit_of

FEWER_FRAGMENTS: Final = 10
"""Recommend a compaction that saves at least this number of fragments."""

MANY_DELETED_ROWS: Final = 1000
"""Recommend a compaction that drops this many deleted rows, if a tenth of its rows are deleted."""

UNINDEXED_ROWS: Final = 1000
UNINDEXED_SHARE: Final = 0.1
"""Recommend updating an index that lacks this number of rows and this fraction of all rows."""

OLD_VERSIONS: Final = 10
MANY_VERSIONS: Final = 1000
"""Recommend a cleanup of this number of removable old versions, or of versions of any age."""

LARGE_LAG: Final = 100
LONG_SILENCE: Final = timedelta(days=7)
"""Mention a consumer with this lag in versions, or without progress for this long."""

LARGE_LEDGER: Final = 1 << 18
"""Mention a ledger of at least this number of bytes: every version stores it again."""

LARGE_LINEAGE: Final = 4 << 20
"""Mention lineage of at least this number of bytes, for the same reason."""

_OLD_FILE_VERSIONS: Final = ("0.1", "legacy", "2.0")


@dataclass(frozen=True)
class Recommendation:
    """Recommended maintenance.

    Attributes:
        name: The subject, as listed above.
        message: The observation.
        command: The command to run; None if there is no command for it.
    """

    name: str
    message: str
    command: str | None


def recommendations_for(ds: Dataset, context: TableContext, now: datetime) -> list[Recommendation]:
    """Return the recommendations for a table.

    Args:
        ds: The newest version.
        context: Its tags, branches, consumers and versions.
        now: The current time.
    """
    recommendations: list[Recommendation] = []
    for rule in _RULES:
        recommendations += rule(ds, context, now)
    return recommendations


def _command(ds: Dataset, arguments: str) -> str:
    """Return a command for the table, with the URI quoted for a shell."""
    verb, _, options = arguments.partition(" ")
    return " ".join(filter(None, ["lance-stream", verb, shlex.quote(ds.uri), options]))


def _compaction(ds: Dataset, _context: TableContext, _now: datetime) -> Iterator[Recommendation]:
    groups = plan(ds.table, CompactionRules())
    if not groups:
        return
    chosen = [index for group in groups for index in group]
    physical, live = (int(row_count[chosen].sum()) for row_count in ds.table.row_counts)
    deleted = physical - live
    many_deleted = deleted > MAX_DELETED_FRACTION * physical
    if len(chosen) - len(groups) < FEWER_FRAGMENTS and not (
        many_deleted and deleted >= MANY_DELETED_ROWS
    ):
        return
    message = f"{output.count(len(chosen), 'fragment')} could be {len(groups)}"
    if many_deleted:
        message += f", without {output.count(deleted, 'deleted row')} ({deleted / physical:.0%})"
    yield Recommendation("compact", message, _command(ds, "compact"))


def _indices(ds: Dataset, _context: TableContext, _now: datetime) -> Iterator[Recommendation]:
    stale = [
        index
        for index in ds.index_coverage()
        if index.rows_indexed is not None
        and index.rows_unindexed is not None
        and index.rows_unindexed >= UNINDEXED_ROWS
        and index.rows_unindexed >= UNINDEXED_SHARE * (index.rows_indexed + index.rows_unindexed)
    ]
    if stale:
        worst = max(stale, key=lambda index: index.rows_unindexed or 0)
        rows = output.count(worst.rows_unindexed or 0, "row")
        message = f"the index {worst.name} lacks {rows}, which every search scans"
        if len(stale) > 1:
            message += f" ({len(stale)} indices are out of date)"
        command = f"lance-stream indices optimize {shlex.quote(ds.uri)}"
        yield Recommendation("indices", message, command)


def _old_versions(ds: Dataset, context: TableContext, now: datetime) -> Iterator[Recommendation]:
    versions = context.versions
    if len(versions) < OLD_VERSIONS:
        return
    limit = (now - DEFAULT_AGE).timestamp()
    modified = {file.path: file.modified for file in ds.table.store.list(VERSIONS_DIRECTORY)}
    path = ds.table.log.manifest_path
    is_protected = _protection_test(context, ds.branch)
    old = [
        version
        for version in versions[:-1]
        if modified.get(path(version), limit) < limit and not is_protected(version)
    ]
    if len(old) >= OLD_VERSIONS:
        message = f"{len(old)} unreferenced versions are older than {DEFAULT_AGE.days} days"
        yield Recommendation("cleanup", message, _command(ds, "cleanup"))
    elif len(versions) >= MANY_VERSIONS:
        message = f"there are {len(versions)} versions, few older than {DEFAULT_AGE.days} days"
        yield Recommendation("cleanup", message, _command(ds, "cleanup --older-than 1d"))


def _protection_test(context: TableContext, branch: str | None) -> Callable[[int], bool]:
    """Return a test for versions that a tag, a branch or a consumer needs."""
    tags = [tag for tag in context.tags.tags if tag.branch == branch]
    referenced = {tag.version for tag in tags if not is_consumer_tag(tag.name)} | {
        child.parent_version
        for child in context.branches.values()
        if isinstance(child, Branch) and child.parent == branch
    }
    first = min((consumer.version for consumer in context.consumers), default=None)
    return lambda version: version in referenced or (first is not None and version >= first)


def _consumers(ds: Dataset, context: TableContext, now: datetime) -> Iterator[Recommendation]:
    for consumer in context.consumers:
        lag = sum(version > consumer.version for version in context.versions)
        silence = _time_since_progress(consumer, now)
        if lag >= LARGE_LAG or (lag and silence is not None and silence >= LONG_SILENCE):
            since = (
                "" if silence is None else f", and has made no progress for {_age_text(silence)}"
            )
            yield Recommendation(
                "consumers",
                f"the consumer {consumer.name} is {output.count(lag, 'version')} behind{since}: "
                "cleanup keeps these versions. Drop the consumer if it is no longer used",
                f"lance-stream consumers drop {shlex.quote(ds.uri)} {shlex.quote(consumer.name)}",
            )


def _time_since_progress(consumer: Consumer, now: datetime) -> timedelta | None:
    last = consumer.updated_at or consumer.created_at
    return None if last is None else now - last


def _age_text(age: timedelta) -> str:
    if age >= timedelta(days=1):
        return output.count(age.days, "day")
    return output.count(max(age // timedelta(minutes=1), 0), "minute")


def _row_ids(ds: Dataset, _context: TableContext, _now: datetime) -> Iterator[Recommendation]:
    if not ds.has_stable_row_ids:
        yield Recommendation(
            "stable row ids",
            "the table has no stable row ids, and therefore no change feed",
            _command(ds, "migrate stable-row-ids"),
        )


def _ledger(ds: Dataset, _context: TableContext, _now: datetime) -> Iterator[Recommendation]:
    entries = {key: value for key, value in ds.config.items() if key.startswith(PREFIX)}
    num_bytes = sum(len(key) + len(value) for key, value in entries.items())
    if num_bytes >= LARGE_LEDGER:
        yield Recommendation(
            "ledger",
            f"every version stores {output.size(num_bytes)} for {len(entries)} streams. Forget "
            "those that will never run again: "
            f"lance-stream streams forget {shlex.quote(ds.uri)} APP_ID",
            None,
        )


def _lineage(ds: Dataset, _context: TableContext, _now: datetime) -> Iterator[Recommendation]:
    fragments = ds.table.manifest.fragments
    if sum(map(len, fragments.raws)) < LARGE_LINEAGE:
        return  # without decoding a fragment
    limit = limit_of(ds.table)
    num_bytes = sum(
        inline_bytes(fragment)
        for fragment in fragments
        if limit is None or is_misplaced(fragment, limit)
    )
    if num_bytes < LARGE_LINEAGE:
        return
    message = f"every version stores {output.size(num_bytes)} of row ids and row versions"
    if limit is None:
        message += ". Data files can store them, if all readers support this feature of Lance"
        yield Recommendation("lineage", message, _command(ds, "migrate lineage-files"))
    else:
        message += ". A compaction moves them into data files"
        yield Recommendation("lineage", message, _command(ds, "compact"))


def _manifest_names(ds: Dataset, context: TableContext, _now: datetime) -> Iterator[Recommendation]:
    name = ds.table.log.manifest_path(ds.version).rpartition("/")[2]
    parsed = parse_manifest_name(name)
    if (
        parsed is not None
        and parsed.scheme is NamingScheme.V1
        and len(context.versions) >= LARGE_LAG
    ):
        yield Recommendation(
            "manifest names",
            f"manifests have names of the old scheme: every poll lists all {len(context.versions)}",
            _command(ds, "migrate manifest-names"),
        )


def _file_version(ds: Dataset, _context: TableContext, _now: datetime) -> Iterator[Recommendation]:
    if ds.file_version in _OLD_FILE_VERSIONS:
        yield Recommendation(
            "file version",
            f"new files are written in the old file version {ds.file_version}. To change it, copy "
            "the rows to a new table: lance_stream.create_dataset(uri, ds)",
            None,
        )


_RULES: Final[tuple[Callable[[Dataset, TableContext, datetime], Iterator[Recommendation]], ...]] = (
    _compaction,
    _indices,
    _old_versions,
    _consumers,
    _row_ids,
    _ledger,
    _lineage,
    _manifest_names,
    _file_version,
)


def as_values(recommendations: Sequence[Recommendation]) -> list[dict[str, Any]]:
    """Return recommendations as JSON values."""
    return [
        {
            "name": recommendation.name,
            "message": recommendation.message,
            "command": recommendation.command,
        }
        for recommendation in recommendations
    ]


def current_time(now_nanos: Callable[[], int]) -> datetime:
    """Return the time of a clock."""
    return moment_at(now_nanos() // 1000)
