"""A process that ends at a change to a local store."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from lance_stream.storage.local_store import LocalStore

CHANGES = ("create_once", "write", "delete")


class KilledError(BaseException):
    """The process ends here."""


@contextmanager
def killed_at(number: int, *, before: bool) -> Iterator[list[str]]:
    """Let the process end at a change, before or after it; changes nothing from then on.

    Args:
        number: Which change, from 0.
        before: Whether it ends before this change, or after it.

    Yields:
        The paths of the changes, also of the one at which it ended: more than `number` if it has.
    """
    paths: list[str] = []

    def guard(name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def call(store: LocalStore, path: str, *arguments: Any, **options: Any) -> Any:
            is_over = len(paths) > number
            paths.append(path)
            if is_over or (before and len(paths) > number):
                raise KilledError
            result = real(store, path, *arguments, **options)
            if len(paths) > number:
                raise KilledError
            return result

        return call

    patches = [patch.object(LocalStore, name, guard(name)) for name in CHANGES]
    for span in patches:
        span.start()
    try:
        yield paths
    except KilledError:
        pass
    finally:
        for value in patches:
            value.stop()
