"""What memory tests may take: a process of theirs stays below a limit.

The test during which its process comes above it fails. Whenever a process has grown by some 60 MB,
it forgets the keys and sequences that it remembers for its next batches, and what its tests have
freed goes back to the system: allocators keep it otherwise, and add it up. The limit includes what
pylance and the clients of object stores take in the same process: the largest of the four processes
of `make test-ci` reaches 1.5 to 1.8 GB, depending on which tests it runs.
"""

import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lance_stream.keys.index.key_index import clear_key_indices
from lance_stream.snapshot.files.hidden_columns import clear_hidden_columns
from lance_stream.snapshot.files.open_files import clear_deleted_offsets
from lance_stream.table.lineage.row_ids import clear_row_id_cache

LIMIT_BYTES = 2_500_000_000
GROWTH_BYTES = 60_000_000


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    if resident_bytes() > item.config.stash.get(_RESIDENT, 0) + GROWTH_BYTES:
        give_back()
        item.config.stash[_RESIDENT] = resident_bytes()
    is_reported = item.config.stash.get(_REPORTED, False)
    peak = peak_bytes()
    if peak > LIMIT_BYTES and not is_reported:
        item.config.stash[_REPORTED] = True
        pytest.fail(
            f"the tests of this process have taken {peak / 1e6:.0f} MB by now; "
            f"{LIMIT_BYTES / 1e6:.0f} MB is the most that they may",
            pytrace=False,
        )


_REPORTED = pytest.StashKey[bool]()
_RESIDENT = pytest.StashKey[int]()


def peak_bytes() -> int:
    """Return the most memory that this process has had at once, its children not counted."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Return the memory that this process has now; 0 where that is not known, not on Linux."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return 0


def give_back() -> None:
    """Forget what is only kept for later, and give back to the system what is not used (Linux)."""
    clear_key_indices()
    clear_row_id_cache()
    clear_hidden_columns()
    clear_deleted_offsets()
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
