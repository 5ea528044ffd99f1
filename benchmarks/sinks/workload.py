"""The workload of the sinks: a table to load, then small batches to append and to upsert.

    load/    the table, in a few parquet files that form one micro-batch
    append/  parquet files of rows with new ids, one per micro-batch
    upsert/  parquet files, one per micro-batch; most rows have an id of the loaded table

Spark reads files in the order of their modification times. These are set, because small files are
written within the resolution of the clock, and upserts in another order leave other values.

A row is an int64 id, a float64, a string of 12 characters and a list of 16 float32; 96 bytes.
The expected contents of a table are sums that any engine can compute.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "id bigint, value double, name string, vector array<float>"
VECTOR_SIZE = 16
LOAD_FILES = 8
MAX_VALUE = 1 << 28
"""Values are whole numbers below this; 2^25 of them add up exactly in a float64, in any order."""


class Sums(NamedTuple):
    """Sums that check whether a table contains the expected rows.

    Attributes:
        num_rows: The number of rows.
        ids: The sum of their ids.
        values: The sum of their values, which are whole numbers, so that the order of adding
            does not matter.
    """

    num_rows: int
    ids: int
    values: int


@dataclass(frozen=True)
class Workload:
    """Sizes of the workload.

    Attributes:
        table_rows: Rows of the table that is loaded; 0 for none.
        batch_rows: Rows of a batch.
        appends: Batches that are appended.
        upserts: Batches that are upserted.
        updates_share: The share of an upserted batch that has an id of the loaded table.
    """

    table_rows: int
    batch_rows: int
    appends: int
    upserts: int
    updates_share: float = 0.9

    @property
    def updates(self) -> int:
        """How many rows of an upserted batch change a row of the loaded table."""
        return min(int(self.batch_rows * self.updates_share), self.table_rows)

    @property
    def changes(self) -> int:
        """How many changes an upserted batch makes: an update is two, before and after."""
        return self.batch_rows + self.updates

    def write(self, folder: Path) -> Sums:
        """Write the files; return the sums of a table with all of them applied, upserts last.

        Args:
            folder: A folder for each verb is created in it.
        """
        random = np.random.default_rng(0)
        values = {"load": random.integers(0, MAX_VALUE, self.table_rows)}
        stored = values["load"].copy()
        (folder / "load").mkdir(parents=True)
        for number, ids in enumerate(np.array_split(np.arange(self.table_rows), LOAD_FILES)):
            if len(ids):
                _write(folder / "load", number, ids, stored[ids], random)
        next_id = self.table_rows
        new_ids, new_values = 0, 0
        for verb, batches in (("append", self.appends), ("upsert", self.upserts)):
            (folder / verb).mkdir()
            for number in range(batches):
                num_old = self.updates if verb == "upsert" else 0
                old = random.choice(self.table_rows, num_old, replace=False, shuffle=False)
                new = np.arange(next_id, next_id + self.batch_rows - num_old)
                next_id += len(new)
                ids = np.concatenate([old, new])
                values = random.integers(0, MAX_VALUE, len(ids))
                order = random.permutation(len(ids))
                _write(folder / verb, number, ids[order], values[order], random)
                stored[old] = values[: len(old)]
                new_ids += int(new.sum())
                new_values += int(values[len(old) :].sum())
        return Sums(
            next_id,
            int(np.arange(self.table_rows).sum()) + new_ids,
            int(stored.sum()) + new_values,
        )


def _write(
    folder: Path,
    number: int,
    ids: np.ndarray[tuple[int], np.dtype[np.int64]],
    values: np.ndarray[tuple[int], np.dtype[np.int64]],
    random: np.random.Generator,
) -> None:
    letters = random.integers(ord("a"), ord("z") + 1, (len(ids), 12), dtype=np.uint8)
    starts = np.arange(0, 12 * (len(ids) + 1), 12, dtype=np.int32)
    names = pa.StringArray.from_buffers(len(ids), pa.py_buffer(starts), pa.py_buffer(letters))
    floats = pa.array(random.standard_normal(len(ids) * VECTOR_SIZE, dtype=np.float32))
    vectors = pa.ListArray.from_arrays(
        np.arange(0, VECTOR_SIZE * (len(ids) + 1), VECTOR_SIZE, dtype=np.int32), floats
    )
    columns = {"id": ids, "value": values.astype(np.float64), "name": names, "vector": vectors}
    path = folder / f"{number:04}.parquet"
    pq.write_table(pa.table(columns), path)
    os.utime(path, (number, number))
