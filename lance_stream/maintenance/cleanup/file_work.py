"""Lists and deletes files, in this process or where `FileWork` says: the part tasks can do."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from lance_stream.storage.store import Store, StoredFile


@dataclass(frozen=True, slots=True)
class FileWork:
    """The part of a cleanup that the tasks of a cluster can do.

    Attributes:
        list_folders: Returns the files below each folder of a store; raises an error rather than
            returning only a part of them.
        delete: Deletes files of a store, in any order. Some may no longer exist.
    """

    list_folders: Callable[[Store, Sequence[str]], Iterable[Iterable[StoredFile]]]
    delete: Callable[[Store, Sequence[str]], None]


def list_locally(store: Store, folders: Sequence[str]) -> Iterator[list[StoredFile]]:
    """List folders in this process, one after another."""
    yield from map(store.list, folders)


def delete_locally(store: Store, paths: Sequence[str]) -> None:
    """Delete files in this process, in `num_readers` threads."""
    with ThreadPoolExecutor(
        store.num_readers, thread_name_prefix="lance-stream-cleanup"
    ) as threads:
        for _ in threads.map(store.delete, paths):
            pass


LOCAL: Final = FileWork(list_locally, delete_locally)
"""All work in this process."""
