"""Compares the rows of tables or parquet files by one number, their digest.

If two digests differ, a second pass compares each column by itself. It finds no column if all have
the same values, but in other combinations of rows.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.ledger.row_digests import NO_ROWS, RowsDigest, add_up, digest_of

Rows = Callable[[], Iterable[pa.RecordBatch]]
"""Returns the rows of one side, on each call."""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two sides.

    Attributes:
        ours: The digest of the rows of one side.
        theirs: The digest of the rows of the other.
        columns: The names of columns whose values differ; empty if the sides are the same, or if
            the same values belong to other rows.
    """

    ours: RowsDigest
    theirs: RowsDigest
    columns: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Whether both sides have the same rows."""
        return self.ours == self.theirs


def digest_batches(batches: Iterable[pa.RecordBatch]) -> RowsDigest:
    """Return the digest of the rows of some batches."""
    return add_up(map(digest_of, batches))


def compare(ours: Rows, theirs: Rows) -> Comparison:
    """Compare the rows of two sides, each of which is read once, or twice if they differ."""
    our_digest, their_digest = digest_batches(ours()), digest_batches(theirs())
    if our_digest == their_digest:
        return Comparison(our_digest, their_digest)
    our_columns, their_columns = _digests_of_columns(ours()), _digests_of_columns(theirs())
    differing = [
        name
        for name in {**our_columns, **their_columns}
        if our_columns.get(name, NO_ROWS).lanes != their_columns.get(name, NO_ROWS).lanes
    ]
    return Comparison(our_digest, their_digest, tuple(differing))


def read_parquet(path: str, columns: list[str] | None) -> Iterable[pa.RecordBatch]:
    """Return the rows of a parquet file, or of the parquet files of a folder, on local disk.

    Each file is read with its own columns: files of one folder may differ, and no column must be
    lost. Subfolders named `name=value` count as columns, too.

    Args:
        path: The file or folder.
        columns: Names of columns, each in at least one file; None for all.

    Raises:
        NotFoundError: There is no such file.
        InvalidInputError: It is not a parquet file, or no file has a column.
    """
    from pyarrow.dataset import dataset  # loads pandas, which is slow

    try:
        partitioning = "hive" if Path(path).is_dir() else None
        parquet = dataset(path, format="parquet", partitioning=partitioning)
        if not parquet.files:
            raise NotFoundError(f"no parquet file exists in {path}")
        files = [_ParquetFile(fragment) for fragment in parquet.get_fragments()]
    except FileNotFoundError:
        raise NotFoundError(f"there is neither a table nor a parquet file at {path}") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"{path} cannot be read as parquet: {error}") from None
    all_columns = dict.fromkeys(name for file in files for name in file.names)
    for name in columns or ():
        if name not in all_columns:
            raise InvalidInputError(
                f"{path} has no column {name!r}; it has: {', '.join(all_columns)}"
            )
    return chain.from_iterable(file.batches(columns) for file in files)


class _ParquetFile:
    """A parquet file of a folder.

    Args:
        file: The fragment of pyarrow's dataset.

    Attributes:
        names: Its columns, and those from the names of its folders.
    """

    def __init__(self, file: Any) -> None:
        from pyarrow.dataset import get_partition_keys

        self._file = file
        self._schema: pa.Schema = file.physical_schema
        keys = get_partition_keys(file.partition_expression)
        self._partition_values = {
            name: keys[name] for name in keys if name not in self._schema.names
        }
        self.names = [*self._schema.names, *self._partition_values]

    def batches(self, columns: list[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield its rows with all of its columns, or with some, null where it lacks them."""
        names = self.names if columns is None else columns
        present = [name for name in names if name in self._schema.names]
        for batch in self._file.to_batches(schema=self._schema, columns=present):
            values = dict(zip(present, batch.columns, strict=True))
            for name in names:
                if name not in values:
                    values[name] = pa.array([self._partition_values.get(name)] * batch.num_rows)
            yield pa.RecordBatch.from_arrays(list(values.values()), names=list(values))


def _digests_of_columns(batches: Iterable[pa.RecordBatch]) -> dict[str, RowsDigest]:
    digests: dict[str, RowsDigest] = {}
    for batch in batches:
        for name in batch.schema.names:
            digest = digest_of(batch.select([name]))
            digests[name] = digests.get(name, NO_ROWS) + digest
    return digests
