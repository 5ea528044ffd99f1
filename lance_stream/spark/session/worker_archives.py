"""Keeps Spark's workers from reading archives again and again.

Before each task, PySpark 4.1 makes a worker reread the directory of every zip archive that Python
has imported from: Spark's own, and its core jar with thousands of entries, once for each folder in
them. That took 150 of the 200 ms of CPU of a task. Python keeps those readers in a cache
(`sys.path_importer_cache`) and recreates them when an import needs one, from directories in memory.
So each task clears them at its end, and the next one has nothing to read.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa


def forgetting_archives(
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Wrap a function so that it clears the worker's cached readers of zip archives at the end.

    The result is pickled by value: a worker need not import this package for it.
    """

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import sys
        import zipimport

        yield from function(batches)
        for path, reader in list(sys.path_importer_cache.items()):
            if isinstance(reader, zipimport.zipimporter):
                sys.path_importer_cache.pop(path, None)

    return run


def then_forget_archives(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield a task's batches, then clear the worker's cached readers of zip archives."""
    return forgetting_archives(iter)(batches)


def forget_archives() -> None:
    """Clear the worker's cached readers of zip archives: Spark reuses the worker."""
    deque(then_forget_archives(()), maxlen=0)
