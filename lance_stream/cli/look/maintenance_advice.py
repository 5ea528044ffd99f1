"""What care a table needs now: each need in one line, with the command that meets it.

A table that needs nothing has none. The needs follow from what `describe` has read anyway, and from
one more listing if there are many versions.

    compact          small fragments could be merged, or many rows are deleted
    indices          rows are missing from an index, so that searches scan them
    cleanup          old versions could be removed
    consumers        a consumer that makes no progress holds many versions
    stable row ids   the table has none: there is no change feed
    ledger           entries of many streams are part of each version
    lineage          each version stores the ids and versions of many rows one by one
    manifest names   the early naming scheme: each look for the newest version lists all
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
from lance_stream.maintenance.compaction.plan import MOST_DEAD, CompactionRules, plan
from lance_stream.maintenance.consumers import Consumer, is_consumers
from lance_stream.snapshot.references import Branch
from lance_stream.snapshot.timestamps import moment_at
from lance_stream.table.ledger_entries import PREFIX
from lance_stream.table.lineage_limits import inline_bytes, is_misplaced
from lance_stream.table.paths import VERSIONS_DIRECTORY, NamingScheme, parse_manifest_name
from lance_stream.write.lineage_files import limit_of

FEWER_FRAGMENTS: Final = 10
"""From so many fragments less on, a compaction is worth mentioning."""

MANY_DEAD: Final = 1000
"""From so many deleted rows on, it is, too, if they are a tenth of the rows to rewrite."""

UNINDEXED_ROWS: Final = 1000
UNINDEXED_SHARE: Final = 0.1
"""From so many rows on that an index misses, if they are this share of all, it is."""

OLD_VERSIONS: Final = 10
MANY_VERSIONS: Final = 1000
"""From so many removable old versions on, or so many versions of any age, a cleanup is."""

FAR_BEHIND: Final = 100
LONG_SILENT: Final = timedelta(days=7)
"""A consumer is mentioned if it is so many versions behind, or has read none for so long."""

LARGE_LEDGER: Final = 1 << 18
"""From so many bytes on, the ledger is mentioned: each version stores it again."""

LARGE_LINEAGE: Final = 4 << 20
"""From so many bytes of lineage on, it is mentioned, for the same reason."""

_EARLY_FILE_VERSIONS: Final = ("0.1", "legacy", "2.0")


@dataclass(frozen=True)
class Need:
    """Something that the table needs.

    Attributes:
        name: What it is about; see above.
        message: What was found.
        command: What to run; None if nothing here meets it.
    """

    name: str
    message: str
    command: str | None


def needs_of(ds: Dataset, beside: Surroundings, now: datetime) -> list[Need]:
    """Return what a table needs.

    Args:
        ds: The newest version.
        beside: What is beside it.
        now: The time.
    """
    needs: list[Need] = []
    for rule in _RULES:
        needs += rule(ds, beside, now)
    return needs


def _run(ds: Dataset, words: str) -> str:
    """Return a command for the table; the marks around the URI are those of a shell."""
    verb, _, options = words.partition(" ")
    return " ".join(filter(None, ["lance-stream", verb, shlex.quote(ds.uri), options]))


def _compaction(ds: Dataset, _beside: Surroundings, _now: datetime) -> Iterator[Need]:
    groups = plan(ds.table, CompactionRules())
    if not groups:
        return
    chosen = [place for group in groups for place in group]
    physical, live = (int(row_count[chosen].sum()) for row_count in ds.table.row_counts)
    dead = physical - live
    is_dead = dead > MOST_DEAD * physical
    if len(chosen) - len(groups) < FEWER_FRAGMENTS and not (is_dead and dead >= MANY_DEAD):
        return
    message = f"{output.count(len(chosen), 'fragment')} could be {len(groups)}"
    if is_dead:
        message += f", without {output.count(dead, 'deleted row')} ({dead / physical:.0%})"
    yield Need("compact", message, _run(ds, "compact"))


def _indices(ds: Dataset, _beside: Surroundings, _now: datetime) -> Iterator[Need]:
    behind = [
        each
        for each in ds.index_coverage()
        if each.rows_indexed is not None
        and each.rows_unindexed is not None
        and each.rows_unindexed >= UNINDEXED_ROWS
        and each.rows_unindexed >= UNINDEXED_SHARE * (each.rows_indexed + each.rows_unindexed)
    ]
    if behind:
        worst = max(behind, key=lambda each: each.rows_unindexed or 0)
        rows = output.count(worst.rows_unindexed or 0, "row")
        message = f"the index {worst.name} misses {rows}, which each search scans"
        if len(behind) > 1:
            message += f" (of {len(behind)} indices that are behind)"
        command = f"lance-stream indices optimize {shlex.quote(ds.uri)}"
        yield Need("indices", message, command)


def _old_versions(ds: Dataset, beside: Surroundings, now: datetime) -> Iterator[Need]:
    versions = beside.versions
    if len(versions) < OLD_VERSIONS:
        return
    limit = (now - DEFAULT_AGE).timestamp()
    modified = {each.path: each.modified for each in ds.table.store.list(VERSIONS_DIRECTORY)}
    path = ds.table.log.manifest_path
    is_held = _held(beside, ds.branch)
    old = [
        version
        for version in versions[:-1]
        if modified.get(path(version), limit) < limit and not is_held(version)
    ]
    if len(old) >= OLD_VERSIONS:
        message = (
            f"{len(old)} versions are older than {DEFAULT_AGE.days} days, and nothing needs them"
        )
        yield Need("cleanup", message, _run(ds, "cleanup"))
    elif len(versions) >= MANY_VERSIONS:
        message = f"there are {len(versions)} versions, none of them old"
        yield Need("cleanup", message, _run(ds, "cleanup --older-than 1d"))


def _held(beside: Surroundings, branch: str | None) -> Callable[[int], bool]:
    """Return whether a tag, a branch or a consumer needs a version."""
    own = [tag for tag in beside.tags.tags if tag.branch == branch]
    single = {each.version for each in own if not is_consumers(each.name)} | {
        each.parent_version
        for each in beside.branches.values()
        if isinstance(each, Branch) and each.parent == branch
    }
    first = min((consumer.version for consumer in beside.consumers), default=None)
    return lambda version: version in single or (first is not None and version >= first)


def _consumers(ds: Dataset, beside: Surroundings, now: datetime) -> Iterator[Need]:
    for consumer in beside.consumers:
        behind = sum(version > consumer.version for version in beside.versions)
        silent = _silence(consumer, now)
        if behind >= FAR_BEHIND or (behind and silent is not None and silent >= LONG_SILENT):
            since = "" if silent is None else f", and has read none for {_as_text(silent)}"
            yield Need(
                "consumers",
                f"the consumer {consumer.name} is {output.count(behind, 'version')} behind{since}: "
                "cleanup keeps them for it. If it is no longer used, drop it",
                f"lance-stream consumers drop {shlex.quote(ds.uri)} {shlex.quote(consumer.name)}",
            )


def _silence(consumer: Consumer, now: datetime) -> timedelta | None:
    last = consumer.updated_at or consumer.created_at
    return None if last is None else now - last


def _as_text(age: timedelta) -> str:
    if age >= timedelta(days=1):
        return output.count(age.days, "day")
    return output.count(max(age // timedelta(minutes=1), 0), "minute")


def _row_ids(ds: Dataset, _beside: Surroundings, _now: datetime) -> Iterator[Need]:
    if not ds.has_stable_row_ids:
        yield Need(
            "stable row ids",
            "rows have no stable ids, so there is no change feed",
            _run(ds, "migrate stable-row-ids"),
        )


def _ledger(ds: Dataset, _beside: Surroundings, _now: datetime) -> Iterator[Need]:
    entries = {key: value for key, value in ds.config.items() if key.startswith(PREFIX)}
    num_bytes = sum(len(key) + len(value) for key, value in entries.items())
    if num_bytes >= LARGE_LEDGER:
        yield Need(
            "ledger",
            f"each version stores {output.size(num_bytes)} for {len(entries)} streams. Of streams "
            "that will never run again, the entries can be removed: "
            f"ds.update_config({{'{PREFIX}<app id>': None}})",
            None,
        )


def _lineage(ds: Dataset, _beside: Surroundings, _now: datetime) -> Iterator[Need]:
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
    found = f"each version stores {output.size(num_bytes)} of row ids and row versions"
    if limit is None:
        found += ". Data files can hold them, if all readers know this feature of Lance"
        yield Need("lineage", found, _run(ds, "migrate lineage-files"))
    else:
        found += ", which a compaction moves into data files"
        yield Need("lineage", found, _run(ds, "compact"))


def _manifest_names(ds: Dataset, beside: Surroundings, _now: datetime) -> Iterator[Need]:
    name = ds.table.log.manifest_path(ds.version).rpartition("/")[2]
    parsed = parse_manifest_name(name)
    if (
        parsed is not None
        and parsed.scheme is NamingScheme.V1
        and len(beside.versions) >= FAR_BEHIND
    ):
        yield Need(
            "manifest names",
            f"manifests have early names: each look for news lists all {len(beside.versions)}",
            _run(ds, "migrate manifest-names"),
        )


def _file_version(ds: Dataset, _beside: Surroundings, _now: datetime) -> Iterator[Need]:
    if ds.file_version in _EARLY_FILE_VERSIONS:
        yield Need(
            "file version",
            f"new files are written in the early version {ds.file_version}; rows can be copied to "
            "a new table: lance_stream.create_dataset(uri, ds)",
            None,
        )


_RULES: Final[tuple[Callable[[Dataset, Surroundings, datetime], Iterator[Need]], ...]] = (
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


def as_values(needs: Sequence[Need]) -> list[dict[str, Any]]:
    """Return needs as values of JSON."""
    return [{"name": need.name, "message": need.message, "command": need.command} for need in needs]


def now_of(now_nanos: Callable[[], int]) -> datetime:
    """Return the time of a clock."""
    return moment_at(now_nanos() // 1000)
