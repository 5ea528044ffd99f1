"""Paths of the package that are rarely taken, and how often a run takes them.

A run that never takes one has not tested it, whatever its lives have done. So long runs fail where
one is missing: a threshold has moved, or an action has lost its purpose.
"""

import importlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from inspect import getattr_static
from typing import Any


def _any(_result: Any) -> bool:
    return True


def _something(result: Any) -> bool:
    return bool(result is not None and result is not False)


@dataclass(frozen=True)
class Path:
    """A path.

    Attributes:
        function: The module below the package, and the function or method in it.
        is_taken: Given what it returns, whether the path was taken.
    """

    function: str
    is_taken: Callable[[Any], bool] = _any


PATHS: Mapping[str, Path] = {
    "a run of the key index is written": Path("keys.index.run_files:write_run", _something),
    "a run of the key index is searched": Path("keys.index.run_files:IndexRun.find"),
    "runs of the key index are merged": Path("keys.index.key_index:KeyIndex._merge_all"),
    "a compaction carries keys over": Path("keys.index.remap_keys:_carry"),
    "bounds of keys are saved": Path("keys.bounds.cached_key_bounds:write_bounds"),
    "many names of files are parsed at once": Path("keys.file_columns:_PlainFiles.of"),
    "of many files none has a plain name": Path(
        "keys.file_columns:_PlainFiles.of", lambda files: len(files.owners) == 0
    ),
    "columns are updated in place": Path("row_updates.in_place:write_columns"),
    "an upsert runs in parts": Path("upsert.large.in_parts:upsert_in_parts"),
    "lineage goes into a data file": Path("write.lineage_files:_write"),
    "lineage is read from a data file": Path("snapshot.files.hidden_columns:HiddenColumn._whole"),
    "an index serves a filter": Path("read.indices.candidates:candidate_rows", _something),
    "rows are looked up by an index of row ids": Path("read.take:_should_index", bool),
    "a commit is rebased": Path("commit.rebasing:rebase_transaction"),
    "a compaction follows deletes": Path("maintenance.compaction.compact:_with_deleted_rows"),
    "a batch of the feed ends inside of a version": Path(
        "feed.following.follower:TableFollower.advance", lambda end: end.num_delivered > 0
    ),
    "the feed finds columns before a restore": Path(
        "feed.ancestry:version_restored_by", _something
    ),
    "a batch is found in the ledger": Path("ledger.replay_check:PendingBatch.find_in", _something),
    "a restore by another program has removed a batch": Path(
        "ledger.foreign_restores:find_removed_entry", _something
    ),
}


@contextmanager
def counted(counts: Counter[str]) -> Iterator[None]:
    """Count how often each path is taken."""
    before: list[tuple[Any, str, Any]] = []
    try:
        for function in dict.fromkeys(path.function for path in PATHS.values()):
            names = [name for name, path in PATHS.items() if path.function == function]
            _wrap(function, names, counts, before)
        yield
    finally:
        for owner, name, original in reversed(before):
            setattr(owner, name, original)


def _wrap(
    function: str, names: list[str], counts: Counter[str], before: list[tuple[Any, str, Any]]
) -> None:
    module_name, _, qualified = function.partition(":")
    module = importlib.import_module(f"lance_stream.{module_name}")
    *classes, name = qualified.split(".")
    owner: Any = module
    for class_name in classes:
        owner = getattr(owner, class_name)
    original = getattr_static(owner, name)
    inner = original.__func__ if isinstance(original, classmethod) else original

    @wraps(inner)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        result = inner(*arguments, **named)
        for path in names:
            if PATHS[path].is_taken(result):
                counts[path] += 1
        return result

    replacement = classmethod(wrapped) if isinstance(original, classmethod) else wrapped
    owners = [owner]
    if not classes:
        modules = [m for n, m in sorted(sys.modules.items()) if n.startswith("lance_stream.")]
        owners = [m for m in modules if m.__dict__.get(name) is original]
    for home in owners:
        before.append((home, name, original))
        setattr(home, name, replacement)


def missing(counts: Mapping[str, int]) -> list[str]:
    """Return the paths that were never taken."""
    return [name for name in PATHS if not counts.get(name)]
