"""Copies of tables: made faster than the tables themselves."""

import uuid

import lance_stream
from lance_stream import Dataset
from lance_stream.storage.locations import open_store


def copy_of(ds: Dataset) -> Dataset:
    """Return a table in memory that has the same files, all written now."""
    uri = f"memory://{uuid.uuid4()}/t"
    store = open_store(uri)
    for file in ds.table.store.list():
        store.write(file.path, ds.table.store.read(file.path))
    return lance_stream.open_dataset(uri)
