"""Recommends maintenance for a table: a line for each recommendation, with the command to run.

The recommendations follow from what `describe` reads anyway, and from one more listing if there are
many versions.

    compact          small fragments could be merged, or many rows are deleted
    indices          an index lacks many rows, so that searches scan them
    cleanup          old versions could be removed
    consumers        a consumer that makes no progress holds many versions
    stable row ids   the table has none, and therefore no change feed
    ledger           every version stores the ledger entries of many streams
    lineage          every version lists the ids and versions of many rows individually
    manifest names   the early naming scheme: finding the newest version lists all of them
    file version     new files are written in an early file version
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from lance_stream.cli import output
from lance_stream.cli.look.description import Surroundings
from lance_stream.dataset import Dataset
from lance_stream.maintenance.cleanup import DEFAULT_AGE
from lance_stream.maintenance.compaction.plan import MAX_DELETED_FRACTION, CompactionRules, plan
from lance_stream.maintenance.consumers import Consumer, is_consumers
from lance_stream.snapshot.references import Branch
from lance_stream.snapshot.timestamps import moment_at
from lance_stream.table.config.ledger_entries import PREFIX
from lance_stream.table.config.lineage_limits import inline_bytes, is_misplaced
from lance_stream.table.paths import VERSIONS_DIRECTORY, NamingScheme, parse_manifest_name
from lance_stream.write.lineage_files import limit_of

FEWER_FRAGMENTS: Final = 10
"""Recommend a compaction that saves at least this many fragments."""

MANY_DELETED_ROWS: Final = 1000
"""Or one that drops this many deleted rows, if they are a tenth of the rows to rewrite."""

UNINDEXED_ROWS: Final = 1000
UNINDEXED_SHARE: Final = 0.1
"""Recommend updating an index that lacks this many rows and this fraction of all rows."""

OLD_VERSIONS: Final = 10
MANY_VERSIONS: Final = 1000
"""Recommend a cleanup from this many removable old versions, or versions of any age, on."""

LARGE_LAG: Final = 100
LONG_SILENT: Final = timedelta(days=7)
"""Mention a consumer that is this many versions behind, or has been silent for this long."""

LARGE_LEDGER: Final = 1 << 18
"""Mention a ledger of at least this many bytes: every version stores it again."""

LARGE_LINEAGE: Final = 4 << 20
"""Mention lineage of at least this many bytes, for the same reason."""

_EARLY_FILE_VERSIONS: Final = ("0.1", "legacy", "2.0")


@dataclass(frozen=True)
class Recommendation:
    """Something to do for the table.

    Attributes:
        name: The subject; see above.
        message: The observation.
        command: The command to run; None if no command does it.
    """

    name: str
    message: str
    command: str | None


def recommendations_for(
    ds: Dataset, surroundings: Surroundings, now: datetime
) -> list[Recommendation]:
    """Return the recommendations for a table.

    Args:
        ds: The newest version.
        surroundings: Its tags, branches, consumers and versions.
        now: The time.
    """
    recommendations: list[Recommendation] = []
    for rule in _RULES:
        recommendations += rule(ds, surroundings, now)
    return recommendations


def _run(ds: Dataset, words: str) -> str:
    """Return a command for the table, with the URI quoted for a shell."""
    verb, _, options = words.partition(" ")
    return " ".join(filter(None, ["lance-stream", verb, shlex.quote(ds.uri), options]))


def _compaction(
    ds: Dataset, _surroundings: Surroundings, _now: datetime
) -> Iterator[Recommendation]:
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
    yield Recommendation("compact", message, _run(ds, "compact"))


def _indices(ds: Dataset, _surroundings: Surroundings, _now: datetime) -> Iterator[Recommendation]:
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


def _old_versions(
    ds: Dataset, surroundings: Surroundings, now: datetime
) -> Iterator[Recommendation]:
    versions = surroundings.versions
    if len(versions) < OLD_VERSIONS:
        return
    limit = (now - DEFAULT_AGE).timestamp()
    modified = {file.path: file.modified for file in ds.table.store.list(VERSIONS_DIRECTORY)}
    path = ds.table.log.manifest_path
    is_protected = _protection_test(surroundings, ds.branch)
    old = [
        version
        for version in versions[:-1]
        if modified.get(path(version), limit) < limit and not is_protected(version)
    ]
    if len(old) >= OLD_VERSIONS:
        message = f"{len(old)} unreferenced versions are older than {DEFAULT_AGE.days} days"
        yield Recommendation("cleanup", message, _run(ds, "cleanup"))
    elif len(versions) >= MANY_VERSIONS:
        message = f"there are {len(versions)} versions, none of them old"
        yield Recommendation("cleanup", message, _run(ds, "cleanup --older-than 1d"))


def _protection_test(surroundings: Surroundings, branch: str | None) -> Callable[[int], bool]:
    """Return a test for versions that a tag, a branch or a consumer needs."""
    tags = [tag for tag in surroundings.tags.tags if tag.branch == branch]
    single = {tag.version for tag in tags if not is_consumers(tag.name)} | {
        child.parent_version
        for child in surroundings.branches.values()
        if isinstance(child, Branch) and child.parent == branch
    }
    first = min((consumer.version for consumer in surroundings.consumers), default=None)
    return lambda version: version in single or (first is not None and version >= first)


def _consumers(ds: Dataset, surroundings: Surroundings, now: datetime) -> Iterator[Recommendation]:
    for consumer in surroundings.consumers:
        lag = sum(version > consumer.version for version in surroundings.versions)
        silent = _silence(consumer, now)
        if lag >= LARGE_LAG or (lag and silent is not None and silent >= LONG_SILENT):
            since = "" if silent is None else f", and has been silent for {_as_text(silent)}"
            yield Recommendation(
                "consumers",
                f"the consumer {consumer.name} is {output.count(lag, 'version')} behind{since}: "
                "cleanup keeps them for it. Drop it if it is no longer used",
                f"lance-stream consumers drop {shlex.quote(ds.uri)} {shlex.quote(consumer.name)}",
            )


def _silence(consumer: Consumer, now: datetime) -> timedelta | None:
    last = consumer.updated_at or consumer.created_at
    return None if last is None else now - last


def _as_text(age: timedelta) -> str:
    if age >= timedelta(days=1):
        return output.count(age.days, "day")
    return output.count(max(age // timedelta(minutes=1), 0), "minute")


def _row_ids(ds: Dataset, _surroundings: Surroundings, _now: datetime) -> Iterator[Recommendation]:
    if not ds.has_stable_row_ids:
        yield Recommendation(
            "stable row ids",
            "rows have no stable ids, so there is no change feed",
            _run(ds, "migrate stable-row-ids"),
        )


def _ledger(ds: Dataset, _surroundings: Surroundings, _now: datetime) -> Iterator[Recommendation]:
    entries = {key: value for key, value in ds.config.items() if key.startswith(PREFIX)}
    num_bytes = sum(len(key) + len(value) for key, value in entries.items())
    if num_bytes >= LARGE_LEDGER:
        yield Recommendation(
            "ledger",
            f"every version stores {output.size(num_bytes)} for {len(entries)} streams. Remove the "
            "entries of streams that will never run again: "
            f"ds.update_config({{'{PREFIX}<app id>': None}})",
            None,
        )


def _lineage(ds: Dataset, _surroundings: Surroundings, _now: datetime) -> Iterator[Recommendation]:
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
        message += ". Data files can hold them, if all readers support this feature of Lance"
        yield Recommendation("lineage", message, _run(ds, "migrate lineage-files"))
    else:
        message += ", which a compaction moves into data files"
        yield Recommendation("lineage", message, _run(ds, "compact"))


def _manifest_names(
    ds: Dataset, surroundings: Surroundings, _now: datetime
) -> Iterator[Recommendation]:
    name = ds.table.log.manifest_path(ds.version).rpartition("/")[2]
    parsed = parse_manifest_name(name)
    if (
        parsed is not None
        and parsed.scheme is NamingScheme.V1
        and len(surroundings.versions) >= LARGE_LAG
    ):
        yield Recommendation(
            "manifest names",
            f"manifests have early names: every poll lists all {len(surroundings.versions)}",
            _run(ds, "migrate manifest-names"),
        )


def _file_version(
    ds: Dataset, _surroundings: Surroundings, _now: datetime
) -> Iterator[Recommendation]:
    if ds.file_version in _EARLY_FILE_VERSIONS:
        yield Recommendation(
            "file version",
            f"new files are written in the early version {ds.file_version}. To change it, copy the "
            "rows to a new table: lance_stream.create_dataset(uri, ds)",
            None,
        )


_RULES: Final[tuple[Callable[[Dataset, Surroundings, datetime], Iterator[Recommendation]], ...]] = (
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


def now_of(now_nanos: Callable[[], int]) -> datetime:
    """Return the time of a clock."""
    return moment_at(now_nanos() // 1000)
