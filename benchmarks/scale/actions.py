"""What is measured on a forged table, and on a forged history."""

import pickle
import random
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from io import StringIO
from itertools import count as counter
from types import MappingProxyType
from typing import Final

import pyarrow as pa

import lance_stream
from benchmarks.scale.forging import SCHEMA, rows
from lance_stream.cli.main import main as command_line
from lance_stream.feed.following.follower import FollowerRules, TableFollower
from lance_stream.feed.following.positions import Limits, Position
from lance_stream.feed.rules import FeedRules
from lance_stream.maintenance.compaction.automatic import CompactionTrigger
from lance_stream.maintenance.compaction.plan import CompactionRules, plan
from lance_stream.monitoring.series import collect
from lance_stream.snapshot.opening import open_newest

NEW_KEYS: Final = 1 << 40
"""No forged fragment has keys from here on."""

NUM_APPENDED: Final = 100
"""How many versions of ten rows follow the forged one; their keys start with `NEW_KEYS`."""

Action = Callable[[str], object]

_CALLS: Final = counter(1)


def append_versions(uri: str) -> None:
    """Append the rows of `NUM_APPENDED` versions."""
    ds = lance_stream.open_dataset(uri)
    for number in range(NUM_APPENDED):
        ds = ds.append(rows(NEW_KEYS + 10 * number, 10))


def _some_row_id(uri: str) -> int:
    """Return the id of a live row, another one in each version and at each call."""
    manifest = lance_stream.open_dataset(uri).table.manifest
    num_rows = int(manifest.fragments.numbers.physical_rows.sum())
    return random.Random(1000 * manifest.version + next(_CALLS)).randrange(1, num_rows, 100)


def open_dataset(uri: str) -> object:
    """Open the table."""
    return lance_stream.open_dataset(uri)


def append(uri: str) -> object:
    """Append ten rows."""
    ds = lance_stream.open_dataset(uri)
    return ds.append(rows(2 * NEW_KEYS + 10 * ds.version, 10))


def upsert(uri: str) -> object:
    """Upsert 1,000 keys, of which the newest versions have written 900."""
    first = NEW_KEYS + 100 * next(_CALLS)
    return lance_stream.open_dataset(uri).upsert(rows(first, 1000), on=["key"])


def delete_keys(uri: str) -> object:
    """Delete 100 keys that the newest versions have written."""
    batch = rows(NEW_KEYS + 100 * next(_CALLS), 100)
    batch = batch.append_column("gone", pa.array([True] * 100))
    return lance_stream.open_dataset(uri).upsert(
        batch, on=["key"], delete_when="gone", except_columns=["gone"]
    )


def delete_row(uri: str) -> object:
    """Delete a row by its id."""
    return lance_stream.open_dataset(uri).delete(f"_rowid = {_some_row_id(uri) + 1}")


def compaction_decision(uri: str) -> object:
    """Decide whether a stream's background compaction begins."""
    return CompactionTrigger(CompactionRules(max_deleted_fraction=0.25, by_steps=True)).reason(
        open_newest(uri)
    )


def compaction_plan(uri: str) -> object:
    """Plan a compaction of everything."""
    return plan(open_newest(uri), CompactionRules(target_rows=1 << 20))


def one_version(uri: str) -> object:
    """Read the feed of the newest version."""
    ds = lance_stream.open_dataset(uri)
    return ds.changes(ds.version - 1).read_all()


def many_versions(uri: str) -> object:
    """Read the feed of the 100 newest versions."""
    ds = lance_stream.open_dataset(uri)
    return ds.changes(ds.version - 100).read_all()


def point_read(uri: str) -> object:
    """Read a row by its id."""
    return lance_stream.open_dataset(uri).take(row_ids=[_some_row_id(uri)])


def point_filter(uri: str) -> object:
    """Read a row by a filter on its id."""
    return lance_stream.open_dataset(uri).to_table(filter=f"_rowid = {_some_row_id(uri)}")


def by_position(uri: str) -> object:
    """Read a row by its position in the table."""
    return lance_stream.open_dataset(uri).take(row_offsets=[_some_row_id(uri) // 2])


def count_rows(uri: str) -> object:
    """Count the rows."""
    return lance_stream.open_dataset(uri).count_rows()


def list_versions(uri: str) -> object:
    """List the newest 100 versions."""
    return lance_stream.open_dataset(uri).versions(100)


def show(uri: str) -> object:
    """Run `lance-stream show`."""
    with redirect_stdout(StringIO()) as text:
        command_line(["show", uri])
    return text


def list_fragments(uri: str) -> object:
    """List the fragments, as the SQL function does."""
    from lance_stream.spark.source.table_functions import rows_of_fragments

    return sum(1 for _ in rows_of_fragments(open_newest(uri)))


def scan_plan(uri: str) -> object:
    """Plan Spark's tasks for a scan, and pickle each of them."""
    from lance_stream.spark.arguments.reader_options import ReaderOptions
    from lance_stream.spark.source.table_reader import TableReader

    options = ReaderOptions(uri, columns=("key",), only_by_tasks=True)
    tasks = TableReader(options, None, SCHEMA).partitions()
    sizes = [len(pickle.dumps(task)) for task in tasks]
    return {"tasks": len(sizes), "bytes": sum(sizes), "largest": max(sizes)}


def snapshot_plan(uri: str) -> object:
    """Plan the first batch of a feed's snapshot, of a million rows."""
    follower = TableFollower(uri, None, FollowerRules(FeedRules()))
    start = Position(0, 0, is_snapshot=True)
    return follower.units(start, follower.advance(start, Limits(rows=1_000_000)))


def cleanup_plan(uri: str) -> object:
    """Find what a cleanup of all old versions would remove."""
    return lance_stream.open_dataset(uri).cleanup("0s", dry_run=True)


def verify(uri: str) -> object:
    """Verify the newest version: every file is opened."""
    findings = lance_stream.open_dataset(uri).verify()
    assert not findings, findings[:3]
    return findings


TABLE: Final[Mapping[str, Action]] = MappingProxyType(
    {
        "open": open_dataset,
        "append 10 rows": append,
        "upsert 1,000 keys": upsert,
        "delete 100 keys": delete_keys,
        "delete a row id": delete_row,
        "decide on compaction": compaction_decision,
        "plan a compaction": compaction_plan,
        "feed of a version": one_version,
        "feed of 100 versions": many_versions,
        "read a row id": point_read,
        "filter on a row id": point_filter,
        "read a position": by_position,
        "count rows": count_rows,
        "versions(100)": list_versions,
        "show": show,
        "list fragments": list_fragments,
        "plan a scan": scan_plan,
        "plan a snapshot": snapshot_plan,
        "plan a cleanup": cleanup_plan,
        "verify": verify,
    }
)
"""What is done with a table of many fragments."""


def feed_in_pages(uri: str) -> object:
    """Follow the feed from the beginning, 1,000 versions at a time; nothing is read."""
    follower = TableFollower(uri, None, FollowerRules(FeedRules()))
    position, num_units = follower.position_after(1), 0
    while (end := follower.advance(position, Limits(versions=1000))) != position:
        num_units += len(follower.units(position, end))
        position = end
    return num_units


def all_versions(uri: str) -> object:
    """List all versions, with the rows that each has changed."""
    return lance_stream.open_dataset(uri).versions()


def log(uri: str) -> object:
    """Run `lance-stream log`, for all versions."""
    with redirect_stdout(StringIO()) as text:
        command_line(["log", uri, "--limit", "1000000"])
    return text


def report(uri: str) -> object:
    """Collect the numbers of a report of all versions."""
    return collect(open_newest(uri), None)


def cleanup(uri: str) -> object:
    """Remove the oldest half of the versions."""
    ds = lance_stream.open_dataset(uri)
    return ds.cleanup(retain_versions=max(len(ds.table.log.versions()) // 2, 1))


HISTORY: Final[Mapping[str, Action]] = MappingProxyType(
    {
        "open": open_dataset,
        "append 10 rows": append,
        "feed of a version": one_version,
        "feed of all, in pages": feed_in_pages,
        "versions()": all_versions,
        "log": log,
        "report": report,
        "show": show,
        "plan a cleanup": cleanup_plan,
        "cleanup of half": cleanup,
    }
)
"""What is done with a table of many versions."""
