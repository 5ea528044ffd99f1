"""What memory tests may take: a process of theirs stays below a limit.

The test during which its process comes above it fails. Whenever a process has grown by some 100 MB,
what its tests have freed goes back to the system: allocators keep it otherwise, and add it up.
"""

import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

LIMIT_BYTES = 1_500_000_000
GROWTH_BYTES = 100_000_000


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
    """Give back to the system what no object uses any more (Linux)."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
