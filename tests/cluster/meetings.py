"""Requests that wait for one another, so that one action happens while all of them are pending.

with three streams, each held at another point of its batch:
    meeting = Meeting(3, driver.kill)
    proxy.add(meeting.fault(CutBefore()), kind="put once", key="a/_versions/")
    proxy.add(meeting.fault(), kind="put once", key="b/_versions/")
    proxy.add(meeting.fault(), key="c/data/")
"""

import threading
from collections.abc import Callable

from tests.servers.store_faults import Act, Fault

SECONDS = 240.0
"""How long a request waits for the others. Time-outs of their clients must be longer."""

PATIENT = {"request_timeout": "600s", "client_retry_timeout": "1800s"}
"""Storage options of these clients."""


class Meeting:
    """A barrier for requests.

    Args:
        num_requests: The number of requests that wait for one another.
        act: Called when all have arrived, before any of them continues.
    """

    def __init__(self, num_requests: int, act: Callable[[], object]) -> None:
        self._barrier = threading.Barrier(num_requests, self._act)
        self._action = act
        self.is_complete = False

    def fault(self, then: Fault | None = None) -> Act:
        """Return the fault of one request: it waits for the others, then meets another fault."""
        return Act(lambda _request: self._barrier.wait(SECONDS), then)

    def _act(self) -> None:
        self._action()
        self.is_complete = True
