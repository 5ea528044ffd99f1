"""The change feed on a cluster, as a batch and as a stream, before and after a compaction."""

from typing import Any

import lance
import pytest

from tests.cluster.drivers import Site
from tests.cluster.events import Rows
from tests.cluster.jobs import stream_job
from tests.cluster.standalone import Worker

pytestmark = [pytest.mark.cluster, pytest.mark.server("moto")]

COLUMNS = ("id", "key", "seq", "value")
RANGES = [[1, 2], [2, 4], [3, 3], [1, 4]]


def test_the_feed_is_the_difference_of_snapshots(site: Site) -> None:
    """While it is read, executors are killed."""
    site.add_events(seed=7)
    table = f"{site.folder}/upsert"
    look = {"kind": "feed", "table": table, "ranges": RANGES}
    site.run([stream_job("upsert", site.folder)])
    site.proxy.clear()
    deaths: list[int] = []

    def kill(worker: Worker) -> None:
        deaths.append(worker.kill_executors())

    for at in (2, 12):
        site.at_data("upsert", at, kill)
    said = site.run(
        [
            {**look, "name": "before"},
            {"kind": "compact", "table": table, "target_rows": 60},
            {**look, "name": "after"},
        ]
    )
    assert len(deaths) == 2
    assert all(deaths)
    site.check("upsert")
    site.check_who_reads()
    (compacted,) = [each["version"] for each in said if "compacted" in each]
    assert compacted > len(site.batches), "there was something to compact"
    ranges = [each for each in said if "feed" in each]
    assert len(ranges) == 2 * len(RANGES)
    for each in ranges:
        before = snapshot(site, each["first"] - 1)
        assert after(before, each["rows"]) == snapshot(site, each["last"]), each["first"]
    for each in said:
        if "streamed" in each:
            assert after({}, each["rows"]) == snapshot(site, compacted)


def snapshot(site: Site, version: int) -> dict[int, dict[str, Any]]:
    """Return the rows of a version by their row ids, as pylance reads them."""
    if not version:
        return {}
    options = site.bucket.storage_options
    ds = lance.dataset(f"{site.folder}/upsert", version=version, storage_options=options)
    rows = ds.to_table(with_row_id=True).to_pylist()
    return {row["_rowid"]: {name: row[name] for name in COLUMNS} for row in rows}


def after(before: dict[int, dict[str, Any]], changes: Rows) -> dict[int, dict[str, Any]]:
    """Return rows after the changes of a feed, which must fit them."""
    rows = dict(before)
    for change in sorted(changes, key=lambda each: each["_commit_version"]):
        row_id, kind = change["_rowid"], change["_change_type"]
        row = {name: change[name] for name in COLUMNS}
        if kind in ("delete", "update_preimage"):
            assert rows.pop(row_id) == row
        else:
            assert row_id not in rows
            rows[row_id] = row
    return rows
