"""What memory tests may take: a process of theirs stays below a limit.

The test during which its process comes above it fails. What a process has once had is mostly kept,
so the cause may also be the sum of the tests before it.
"""

import resource
import sys
from collections.abc import Iterator

import pytest

LIMIT_BYTES = 1_500_000_000


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield
    told = item.config.stash.get(_TOLD, False)
    peak = peak_bytes()
    if peak > LIMIT_BYTES and not told:
        item.config.stash[_TOLD] = True
        pytest.fail(
            f"the tests of this process have taken {peak / 1e6:.0f} MB by now; "
            f"{LIMIT_BYTES / 1e6:.0f} MB is the most that they may",
            pytrace=False,
        )


_TOLD = pytest.StashKey[bool]()


def peak_bytes() -> int:
    """Return the most memory that this process has had at once, its children not counted."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
