"""The contenders: each with a table of its own, with the verbs of a table's life.

A contender's name is `ours` or `pylance`, alone or with when it compacts: `ours:20` after every 20
batches, `ours:auto` when it pays. `ours-spilled` and `pylance-spilled` have a table whose long
lineage goes into data files. Compaction follows its batch and is timed apart: beside the next
batch it would take the machine from the contender whose turn is next.
"""

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa

import lance_stream
from benchmarks.long_life.workload import Workload
from lance_stream.maintenance.compaction.automatic import AUTO
from lance_stream.maintenance.compaction.background import BackgroundCompaction
from lance_stream.snapshot.opening import open_newest
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.write.phases import Phases

Figures = dict[str, float]


class Contender:
    """One program with one table.

    Args:
        folder: The folder of its table.
        workload: The table's life.
        every: After how many batches it compacts, or "auto"; None for never.
    """

    def __init__(self, folder: Path, workload: Workload, every: int | str | None) -> None:
        self.folder = folder / "table.lance"
        self.uri = str(self.folder)
        self.workload = workload
        self.every = every
        self.num_batches = 0
        self._previous_files: set[str] = set()

    def create(self, rows: pa.Table) -> None:
        """Create the table with its first rows."""
        raise NotImplementedError

    def upsert(self, rows: pa.Table) -> None:
        """Update and insert the rows of a batch."""
        raise NotImplementedError

    def compact(self) -> None:
        """Compact the table, if it is time to."""
        raise NotImplementedError

    def cleanup(self) -> None:
        """Remove all versions but the newest."""
        raise NotImplementedError

    def open(self, version: int) -> Any:
        """Open a version."""
        raise NotImplementedError

    def read_key(self, dataset: Any, key: object) -> int:
        """Read the row of a key; return how many rows there are."""
        raise NotImplementedError

    def read_changes(self, dataset: Any) -> int:
        """Read the feed of the version; return how many changes there are."""
        raise NotImplementedError

    def begin(self) -> None:
        """Create the table."""
        self.create(self.workload.first_rows())

    def next_batch(self) -> Figures:
        """Write the next batch, then compact; return the milliseconds, also of the CPU."""
        self.num_batches += 1
        rows = self.workload.batch(self.num_batches)
        figures = _timed("batch", partial(self.upsert, rows))
        return figures | _timed("compaction", self.compact)

    def state(self) -> Figures:
        """Return sizes of the table, and how many bytes were written since the last call."""
        manifests = self.folder.glob("_versions/*.manifest")
        newest = max(manifests, key=lambda manifest: _version_of(manifest))
        sizes = {path.name: path.stat().st_size for path in self.folder.glob("data/*")}
        written = sum(size for name, size in sizes.items() if name not in self._previous_files)
        self._previous_files = set(sizes)
        fragments = lance.dataset(self.uri).get_fragments()
        rows = sum(fragment.metadata.physical_rows for fragment in fragments)
        return {
            "manifest bytes": newest.stat().st_size,
            "fragments": len(fragments),
            "dead rows": rows - self.workload.num_rows(self.num_batches),
            "bytes written": written,
        }

    def reads(self, batches: int, count: int) -> Figures:
        """Read the newest versions; return medians. In a process that only reads.

        They are milliseconds of the process's CPU, as waiting for others says nothing.

        Args:
            batches: How many batches the table has had.
            count: How many versions are opened, and keys are read.
        """
        versions = sorted(map(_version_of, self.folder.glob("_versions/*.manifest")))[1:]
        figures: dict[str, list[float]] = {"open": [], "feed": [], "point read": []}
        newest: Any = None
        for version in versions[-count:]:
            took, newest = _call(partial(self.open, version))
            figures["open"].append(took)
            took, num_changes = _call(partial(self.read_changes, newest))
            if num_changes:  # a compaction has none
                figures["feed"].append(took)
        for key in self.workload.some_keys(count, batches):
            took, num_rows = _call(partial(self.read_key, newest, key))
            figures["point read"].append(took)
            if num_rows != 1:
                raise RuntimeError(f"{num_rows} rows of {self.uri} have the key {key!r}")
        return {name: statistics.median(figure) for name, figure in figures.items() if figure}

    def check(self) -> None:
        """Raise unless the table has the rows of all batches.

        Raises:
            RuntimeError: It has not.
        """
        values = self.open(0).to_table(columns=["value"])["value"].to_numpy()
        actual = len(values), int(values.sum())
        batches = self.num_batches
        expected = self.workload.num_rows(batches), self.workload.sum_of_values(batches)
        if actual != expected:
            raise RuntimeError(f"{self.uri} has {actual} as rows and sum, not {expected}")


class Ours(Contender):
    """lance-stream."""

    def __init__(self, folder: Path, workload: Workload, every: int | str | None) -> None:
        super().__init__(folder, workload, every)
        self._compaction = None if every is None else BackgroundCompaction(every)
        self._lookup_seconds: float | None = None

    def create(self, rows: pa.Table) -> None:
        """Create the table."""
        lance_stream.create_dataset(self.uri, rows.schema, primary_key=["key"]).append(rows)

    def upsert(self, rows: pa.Table) -> None:
        """Upsert on the newest version, which a batch of the sink opens, too."""
        phases = Phases()
        upsert(open_newest(self.uri), rows, UpsertRules(("key",)), phases=phases)
        self._lookup_seconds = phases.seconds["scan"]

    def compact(self) -> None:
        """Compact as the sink does."""
        if self._compaction is not None:
            self._compaction.after_batch(
                self.num_batches - 1,
                partial(open_newest, self.uri),
                lookup_seconds=self._lookup_seconds,
            )
            self._compaction.wait()
            last = self._compaction.last_round
            if last is not None and last.error is not None:
                raise last.error

    def cleanup(self) -> None:
        """Remove all versions but the newest."""
        lance_stream.open_dataset(self.uri).cleanup(retain_versions=1)

    def open(self, version: int) -> lance_stream.Dataset:
        """Open a version; 0 for the newest."""
        return lance_stream.open_dataset(self.uri, version=version or None)

    def read_key(self, dataset: lance_stream.Dataset, key: object) -> int:
        """Read a row."""
        num_rows: int = dataset.to_table(filter=f"key = {key!r}").num_rows
        return num_rows

    def read_changes(self, dataset: lance_stream.Dataset) -> int:
        """Read the feed, without pre-images, which pylance does not return."""
        changes = dataset.changes(dataset.version - 1, pre_images=False)
        return sum(change.num_rows for change in changes)


class Pylance(Contender):
    """pylance, on one handle, so that it keeps what it has cached."""

    def create(self, rows: pa.Table) -> None:
        """Create the table."""
        self._dataset = lance.write_dataset(rows, self.uri, enable_stable_row_ids=True)

    def upsert(self, rows: pa.Table) -> None:
        """Merge the rows in."""
        merge = self._dataset.merge_insert("key")
        merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def compact(self) -> None:
        """Compact everything that its defaults select."""
        if isinstance(self.every, int) and self.num_batches % self.every == 0:
            self._dataset.optimize.compact_files()

    def cleanup(self) -> None:
        """Remove all versions but the newest."""
        self._dataset.cleanup_old_versions(older_than=timedelta(0))

    def open(self, version: int) -> lance.LanceDataset:
        """Open a version; 0 for the newest."""
        return lance.dataset(self.uri, version=version or None)

    def read_key(self, dataset: lance.LanceDataset, key: object) -> int:
        """Read a row."""
        return int(dataset.to_table(filter=f"key = {key!r}").num_rows)

    def read_changes(self, dataset: lance.LanceDataset) -> int:
        """Read inserted and updated rows."""
        newest = dataset.version
        delta = dataset.delta(begin_version=newest - 1, end_version=newest)
        readers = (delta.get_inserted_rows(), delta.get_updated_rows())
        return sum(int(batch.num_rows) for reader in readers for batch in reader)


class OursSpilled(Ours):
    """lance-stream, with long lineage in data files."""

    def create(self, rows: pa.Table) -> None:
        """Create the table."""
        ds = lance_stream.create_dataset(
            self.uri, rows.schema, primary_key=["key"], config=_SPILLED
        )
        ds.append(rows)


class PylanceSpilled(Pylance):
    """pylance, with long lineage in data files."""

    def create(self, rows: pa.Table) -> None:
        """Create the table."""
        super().create(rows)
        self._dataset.update_config(_SPILLED)


_SPILLED = {"lance.row_lineage.spill": "true"}

PROGRAMS: dict[str, type[Contender]] = {
    "ours": Ours,
    "pylance": Pylance,
    "ours-spilled": OursSpilled,
    "pylance-spilled": PylanceSpilled,
}


def contender(name: str, folder: Path, workload: Workload) -> Contender:
    """Return a contender by its name.

    Raises:
        ValueError: There is none of this name.
    """
    program, _, text = name.partition(":")
    if program not in PROGRAMS:
        raise ValueError(f"{name!r} is not one of {list(PROGRAMS)}, alone or as in ours:20")
    every = text if text == AUTO else int(text) if text else None
    return PROGRAMS[program](folder / name.replace(":", "-"), workload, every)


def _version_of(manifest: Path) -> int:
    number = int(manifest.stem)
    return (1 << 64) - 1 - number if number >> 63 else number


def _call(run: Callable[[], Any]) -> tuple[float, Any]:
    """Return milliseconds of this process's CPU, and what a function returns."""
    start = time.process_time()
    result = run()
    return 1000 * (time.process_time() - start), result


def _timed(name: str, run: Callable[[], object]) -> Figures:
    """Return milliseconds of a function: elapsed, and of this process's CPU."""
    start = time.perf_counter()
    cpu, _ = _call(run)
    return {f"{name} ms": 1000 * (time.perf_counter() - start), f"{name} CPU ms": cpu}
