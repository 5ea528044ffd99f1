"""A store on which calls fail at random, or at one of which others write or the process dies."""

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any, Final
from unittest.mock import patch

from lance_stream.errors import NotFoundError
from lance_stream.storage.local_store import LocalFileWriter, LocalStore

CALLS: Final = (
    "list",
    "list_names",
    "list_files",
    "read",
    "read_ranges",
    "read_end",
    "exists",
    "delete",
)
READS: Final = ("read", "read_ranges", "read_end")
FOLDERS: Final = (
    "_refs",
    "_refs/tags",
    "_refs/branches",
    "tree",
    "tree/dev",
    "_transactions",
    "_versions",
    "data",
    "_deletions",
)


WRITER_CALLS: Final = (
    "read_ranges",
    "read",
    "read_end",
    "list",
    "create_once",
    "open_writer",
    "write",
    "delete",
)


class DiedError(BaseException):
    """A process has died at a call to its store; what it does after that does not count."""


_IS_ANOTHER: ContextVar[bool] = ContextVar("another process calls the store", default=False)


@contextmanager
def another_process() -> Iterator[None]:
    """Let a process that does not die make the calls within a `with`: a rival, or the kit."""
    token = _IS_ANOTHER.set(True)
    try:
        yield
    finally:
        _IS_ANOTHER.reset(token)


@contextmanager
def dying(at: int, *, done: bool) -> Iterator[None]:
    """Let this process die at the n-th call to the store, which is done or not; or later."""
    remaining = [at]

    def dies(inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if _IS_ANOTHER.get():
                return inner(*arguments, **named)
            remaining[0] -= 1
            if remaining[0] < 0 or (remaining[0] == 0 and not done):
                remaining[0] = 0
                raise DiedError
            answer = inner(*arguments, **named)
            if remaining[0] <= 0:
                raise DiedError
            return answer

        return call

    with ExitStack() as stack:
        for owner, names in ((LocalStore, WRITER_CALLS), (LocalFileWriter, ("close",))):
            for name in names:
                stack.enter_context(patch.object(owner, name, dies(getattr(owner, name))))
        yield


class Trouble:
    """Lets calls of the store fail at random, and others in at one of them, within a `with`."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._share = dice.choice([0, 0, 0.005, 0.02, 0.1, 0.3])
        # all kinds of calls, or one: where most fail, a cleanup does not come far
        self._kinds = dice.choice([(*CALLS, "scandir"), ("scandir",), (dice.choice(CALLS),)])
        # or what fails each time: a folder cannot be listed, a manifest is listed and not there
        self._folder = dice.choice([*[None] * 9, *FOLDERS])
        self._loses_manifests = dice.random() < 0.25
        self._lost: dict[str, bool] = {}
        if self._folder is not None or self._loses_manifests:
            self._share = 0
        self._calls = 0
        self._at: tuple[int, Callable[[], None], bool] | None = None
        self.num_faults = 0
        self._is_off = False
        self._patches: list[Any] = []

    def at(self, call: int, act: Callable[[], None], *, before_deletions: bool = True) -> None:
        """Let others in at the n-th call, or later if that belongs to a deletion and must not."""
        self._at = call, act, before_deletions

    @contextmanager
    def _off(self) -> Iterator[None]:
        self._is_off, before = True, self._is_off
        try:
            yield
        finally:
            self._is_off = before

    def __enter__(self) -> "Trouble":
        for name in CALLS:
            self._patches.append(patch.object(LocalStore, name, self._guard(name)))
        scandir = os.scandir

        def guarded(path: Any) -> Any:
            is_refused = self._folder is not None and str(path).endswith(f"/{self._folder}")
            if is_refused and not self._is_off:
                self.num_faults += 1
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            self._toss(str(path), "scandir")
            return scandir(path)

        self._patches.append(patch.object(os, "scandir", guarded))
        for patcher in self._patches:
            patcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        for patcher in self._patches:
            patcher.stop()

    def _guard(self, name: str) -> Callable[..., Any]:
        real = getattr(LocalStore, name)

        def call(store: LocalStore, *arguments: Any) -> Any:
            if not self._is_off:
                self._calls += 1
                if self._is_due(name):
                    assert self._at is not None
                    (_, act, _), self._at = self._at, None
                    with self._off():
                        act()
                path = str(arguments[0] if arguments else "")
                if name in READS and path.startswith("_versions/") and self._loses_manifests:
                    self._lose(f"{store.root}/{path}")
                self._toss(path, name)
            return real(store, *arguments)

        return call

    def _is_due(self, name: str) -> bool:
        if self._at is None or self._calls <= self._at[0]:
            return False
        return self._at[2] or name not in ("exists", "delete")

    def _lose(self, path: str) -> None:
        if self._lost.setdefault(path, self._dice.random() < 0.3):
            self.num_faults += 1
            raise NotFoundError(f"made up: there is no {path}")

    def _toss(self, what: str, name: str) -> None:
        if self._is_off or name not in self._kinds or self._dice.random() >= self._share:
            return
        self.num_faults += 1
        if name in READS and self._dice.random() < 0.3:
            raise NotFoundError(f"made up: there is no {what}")
        number = self._dice.choice([errno.EIO, errno.EACCES, errno.ESTALE, errno.EMFILE])
        raise OSError(number, os.strerror(number), what)
