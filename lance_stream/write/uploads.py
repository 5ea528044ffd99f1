"""Files whose last bytes are on their way while other things are done.

    write the rows    close the file  ─────────────────────────┐
                      the transaction's file ─► newest version ─┴─► publish

Nobody reads a data file before a version names it, so it has to be whole by then, and no sooner.
On stores that are far this takes a request's time off an append.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager

from lance_stream.storage.store import NUM_READERS, FileWriter, Store

_THREADS = 4


class Uploads:
    """Closes files beside the one who writes them; one after the other where a store is near.

    As a context manager it ends when all are closed, or are known not to be.

    Args:
        store: Where the files are written.
    """

    def __init__(self, store: Store) -> None:
        is_far = store.num_readers > NUM_READERS
        self._threads = ThreadPoolExecutor(_THREADS) if is_far else None
        self._under_way: list[Future[None]] = []

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, *_: object) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)

    def settle(self) -> bool:
        """Wait until all files are closed, or known not to be there; return whether all are."""
        wait(self._under_way)
        return not any(each.exception() for each in self._under_way)

    @contextmanager
    def closing(self, file: FileWriter) -> Iterator[FileWriter]:
        """Close a file after the body, or leave nothing of it behind where the body raises."""
        try:
            yield file
        except BaseException:
            file.abort()
            raise
        if self._threads is None:
            file.close()
        else:
            self._under_way.append(self._threads.submit(file.close))

    def wait(self) -> None:
        """Wait until all files are there.

        Raises:
            OSError: Or another: one could not be written.
        """
        wait(self._under_way)
        for each in self._under_way:
            each.result()
