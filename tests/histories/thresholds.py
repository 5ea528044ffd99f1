"""Limits that are lowered, so that tables of a hundred rows take the paths of large ones.

Each life draws one of the values; None leaves the package's own.
"""

import importlib
import random
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from tests.keys.index.small_runs import restart

THRESHOLDS: Mapping[str, list[Any]] = {
    "keys.file_columns._FEW": [0, 2, None],
    "keys.file_columns._MAX_KINDS": [2, None],
    "table.fragments.fragment_list._MIN_BULK": [0, 2, None],
    "keys.index.run_format.CHUNK_ROWS": [16, None],
    "keys.index.run_files._MANY_CHUNKS": [1, None],
    "keys.index.key_index.MIN_SAVED_ROWS": [20, 50, None],
    "keys.index.key_index.MIN_SHARED_ROWS": [1, None],
    "keys.index.key_index.MAX_SAVED_ROWS": [40, None],
    "keys.index.key_index.MAX_MERGED_KEYS": [200, None],
    "keys.bounds.cached_key_bounds.MIN_UNSAVED_WORK": [1, None],
    "keys.index.sorted_words.MANY_WORDS": [1, None],
    "keys.stored_sequences._MIN_ROWS_PER_MATCH": [0, 3, None],
    "row_updates.in_place_costs:FragmentCosts.is_cheaper_in_place": ["always", None, None],
    "row_updates.staged_files.MIN_ROWS": [1, 3],
    "row_updates.staged_files.BUNDLES_PER_BATCH": [3, None],
    "upsert.large.staged_rows.SORTED_BATCH_BYTES": [1, 2000, None],
    "upsert.large.staged_rows.MAX_BYTES": [1000, None],
    "upsert.large.staged_rows._MAX_INLINE_BYTES": [0, 3000, None],
    "read.take.FEW_IDS": [0, 2, None],
    "read.take.FEW_FRAGMENTS": [1, None],
    "read.skipping.page_skipping._FEW_MEMBERS": [0, 1, None],
    "read.indices.candidates.MIN_COVERED_ROWS": [0],
    "read.indices.candidates.MAX_READ_PART": [1e9],
    "read.indices.candidates.MAX_MATCHED_PART": [1e9, None],
    "read.fragment.MAX_EXPECTED_ROWS": [1, None],
    "read.page_cache.REQUEST_BYTES": [1, None],
    "table.lineage.row_ids._MAX_PIECES": [2, None],
    "table.manifest._FEW_FIELDS": [1, None],
    "file.v2_1.layouts.full_zip.zipped_items._MANY_ROWS": [2, None],
    "feed.following.follower.MAX_CACHED_STEPS": [1, None],
    "feed.following.follower.NUM_PREFETCHED_VERSIONS": [1, None],
    "maintenance.compaction.row_order.SHORT_LINEAGE": [0, None],
    "maintenance.compaction.row_order.MIN_GAIN": [1.01, None],
    "maintenance.compaction.automatic.BATCHES_BETWEEN_CHECKS": [1],
    "maintenance.compaction.automatic.FAN_IN": [2, 4],
    "maintenance.compaction.automatic.SMALL_MANIFEST": [0, 4096],
    "ledger.foreign_restores.MAX_UNCHECKED_VERSIONS": [0, 1, None],
    "table.config.ledger_entries.MAX_RECENT": [1, 2, None],
    "commit.committer.MAX_INLINE_TRANSACTION_BYTES": [0, None],
    "read.prefetch.ThreadPoolExecutor": [*9 * ["inline"], None],
    "threads.ThreadPoolExecutor": [*9 * ["inline"], None],
}


class InlinePool:
    """Calls functions at once instead of in threads, which take longer to start than to read."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> "InlinePool":
        return self

    def __exit__(self, *_: object) -> None: ...

    def shutdown(self, *_: object, **__: object) -> None: ...

    def submit(self, function: Any, *arguments: Any, **named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments, **named))
        except Exception as error:
            future.set_exception(error)
        return future


VALUES = {"inline": InlinePool, "always": property(lambda _: True)}
"""Values that limits name."""


def draw_limits(dice: random.Random) -> dict[str, Any]:
    drawn = {name: dice.choice(values) for name, values in THRESHOLDS.items()}
    return {name: value for name, value in drawn.items() if value is not None}


@contextmanager
def lowered(limits: Mapping[str, Any]) -> Iterator[None]:
    """Set limits, wherever they were imported to, and forget what the process remembers."""
    before: list[tuple[Any, str, Any]] = []
    restart()
    try:
        for path, value in limits.items():
            home, name = _home_of(path)
            original = getattr(home, name)
            for module in _modules_with(name, original, home):
                before.append((module, name, original))
                setattr(module, name, VALUES.get(value, value))
        yield
    finally:
        for module, name, original in reversed(before):
            setattr(module, name, original)
        restart()


def _home_of(path: str) -> tuple[Any, str]:
    """Return the module, or after a colon the class, that has a limit, and the limit's name."""
    module_path, _, in_class = path.partition(":")
    if in_class:
        class_name, _, name = in_class.partition(".")
        return getattr(importlib.import_module(f"lance_stream.{module_path}"), class_name), name
    module_path, _, name = path.rpartition(".")
    return importlib.import_module(f"lance_stream.{module_path}"), name


def _modules_with(name: str, value: Any, home: Any) -> list[Any]:
    """Return the modules that import a limit: those with the same value of the same name."""
    modules = [m for n, m in sorted(sys.modules.items()) if n.startswith("lance_stream.")]
    is_private = name.startswith("_") or name == "ThreadPoolExecutor" or isinstance(home, type)
    return [home] if is_private else [m for m in modules if m.__dict__.get(name, _NONE) is value]


_NONE = object()
