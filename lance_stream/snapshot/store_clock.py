"""The clock of a store, for decisions based on the age of its files.

The date of a file is from the clock of its store, but ages are computed with this machine's clock.
If this machine's clock is ahead, files of active writers look old enough to delete, and tombstones
look expired. If it is behind, its tombstones are stamped too early, and expire too early for other
machines. So before anything is removed because of its age, or stamped with the time from which its
age counts, an empty file is written and its date is compared with this machine's clock. The
difference is cached for an hour.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cachetools import TTLCache

from lance_stream.environment import Environment
from lance_stream.storage.store import Store
from lance_stream.table.paths import TOMBSTONES_DIRECTORY

TOLERATED_NANOS: Final = 60 * 10**9
"""The tolerated difference: file dates are in whole seconds, and requests take time."""

_log = logging.getLogger(__name__)
_machine_nanos: Callable[[], int] = time.time_ns
_ahead: Final[TTLCache[str, int]] = TTLCache(maxsize=256, ttl=3600)
_lock: Final = threading.Lock()


def with_store_clock(
    store: Store, environment: Environment, *, may_be_behind: bool = False
) -> Environment:
    """Return an environment whose clock is that of a store.

    The first call in an hour writes, lists and deletes a file.

    Args:
        store: The store of a table.
        environment: The environment of this machine.
        may_be_behind: Whether a clock behind the store's is kept, for ages that are safe to
            underestimate.

    Raises:
        StoreError: The file cannot be written.
    """
    with _lock:
        ahead = _ahead.get(store.uri)
    if ahead is None:
        ahead = _nanos_ahead_of(store, environment)
        with _lock:
            _ahead[store.uri] = ahead
    if abs(ahead) <= TOLERATED_NANOS or (ahead < 0 and may_be_behind):
        return environment
    now = environment.now_nanos
    return replace(environment, now_nanos=lambda: now() - ahead)


def _nanos_ahead_of(store: Store, environment: Environment) -> int:
    path = f"{TOMBSTONES_DIRECTORY}/.clock.{environment.random_id():016x}.tmp"
    before = _machine_nanos()
    store.write(path, b"")  # empty, because cleanup must work on a full disk
    try:
        files = [file for file in store.list_files(TOMBSTONES_DIRECTORY) if file.path == path]
        after = _machine_nanos()
    finally:
        store.delete(path)
    if not files:
        return 0
    modified = int(files[0].modified * 1e9)
    ahead = max(before - modified, min(after - modified, 0))
    if abs(ahead) > TOLERATED_NANOS:
        _log.warning(
            "the clock of this machine is %.0f s %s the clock of %s, which determines the ages of "
            "files and tombstones: correct the machine's clock",
            abs(ahead) / 1e9,
            "ahead of" if ahead > 0 else "behind",
            store.uri,
        )
    return ahead
