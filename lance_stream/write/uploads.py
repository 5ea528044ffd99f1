"""Closes files in the background, which uploads their last bytes.

    write the rows    close the file  ─────────────────────────┐
                      the transaction's file ─► newest version ─┴─► publish

A data file is not read before a version references it, so it need not be complete earlier. On
remote stores this saves the time of a request per append, and on a disk that flushes files, that of
two flushes.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from lance_stream.storage.store import FileWriter, Store

_THREADS = 4


class Uploads:
    """Closes files in the background, or immediately if that is fast.

    As a context manager, it exits when all files are closed or have failed.

    Args:
        store: The store of the files.
    """

    def __init__(self, store: Store) -> None:
        self._threads = ThreadPoolExecutor(_THREADS) if store.closes_slowly else None
        self._pending: list[Future[None]] = []

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    def wait_for_all(self) -> bool:
        """Wait until all files are closed or have failed; return whether all are closed."""
        wait(self._pending)
        return not any(future.exception() for future in self._pending)

    @contextmanager
    def closing(self, file: FileWriter) -> Iterator[FileWriter]:
        """Close a file after the body, or discard it if the body raises."""
        try:
            yield file
        except BaseException:
            file.abort()
            raise
        if self._threads is None:
            file.close()
        else:
            self._pending.append(self._threads.submit(file.close))

    def wait(self) -> None:
        """Wait until all files are complete.

        Raises:
            Exception: A file could not be written.
        """
        wait(self._pending)
        for future in self._pending:
            future.result()
