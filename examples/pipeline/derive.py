"""A part: computes the embedding of each article whose text has changed, in the same table.

    python -m examples.pipeline.derive

Rows of which only a price or a state changed are not computed. How far it is, the table itself
says: no checkpoint is kept. It also creates the indices, once there are enough rows (the sink keeps
them fresh), and removes old versions.
"""

import signal
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa

import lance_stream
from examples.pipeline import figures
from examples.pipeline.embedding import DIMENSIONS, VERSION, embed
from examples.pipeline.searching import create_indices
from examples.pipeline.settings import Settings
from examples.pipeline.waiting import wait_for
from lance_stream import Derivation, derive

CLEANUP_SECONDS = 600
RETENTION = timedelta(hours=1)
"""How long versions are kept that are not the newest; longer than any reader takes."""


def embeddings_of(table: str) -> Derivation:
    """Return the declaration of the column `embedding`."""
    return derive(
        table,
        {"embedding": pa.list_(pa.float32(), DIMENSIONS)},
        embed,
        ["title", "body"],
        function_version=VERSION,
    )


def main() -> None:
    """Run until SIGTERM."""
    settings = Settings.read()
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    versions = Path(settings.table, "_versions")
    wait_for(lambda: bool(stopped) or any(versions.glob("*.manifest")), "the first batch")
    derivation = embeddings_of(settings.table)
    report = settings.figures("derive")
    totals = {name: value for name, value in figures.read(report).items() if name != "written_at"}
    has_indices = False
    cleaned = 0.0
    while not stopped:
        if time.monotonic() - cleaned > CLEANUP_SECONDS:
            lance_stream.open_dataset(settings.table).cleanup(older_than=RETENTION)
            cleaned = time.monotonic()
        started = time.time()
        result = derivation.run()
        seconds = time.time() - started
        if result.num_commits:
            counts = {
                "pieces": result.num_commits,
                "checked": result.num_checked,
                "computed": result.num_computed,
                "written": result.num_written,
                "in_place": result.num_in_place,
                "seconds": seconds,
            }
            totals = {name: totals.get(name, 0) + number for name, number in counts.items()}
        if not has_indices:
            has_indices = create_indices(settings.table)
        figures.write(report, {**totals, "has_indices": has_indices})
        if not result.num_commits:
            time.sleep(0.2)


if __name__ == "__main__":
    main()
