"""A part of the pipeline: a process, and how one sees that it works."""

import signal
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Part:
    """One process.

    Attributes:
        name: As in the report.
        command: The program and its arguments.
        answers: Whether it works; an error means that it does not.
        prepare: Makes what it finds, before each start.
        needs: Parts that have to work before its first start.
        environment: Variables besides those of the supervisor.
        user: Whom it runs as; "" for the same user.
        stop_signal: Ends it in order.
        start_seconds: How long it may take until it answers.
        hung: Whether it does nothing any more, though it runs.
    """

    name: str
    command: list[str]
    answers: Callable[[], bool]
    prepare: Callable[[], None] = lambda: None
    needs: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    user: str = ""
    stop_signal: signal.Signals = signal.SIGTERM
    start_seconds: float = 120
    hung: Callable[[], bool] = lambda: False
