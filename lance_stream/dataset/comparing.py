"""Comparing tables, and other rows, by one number: the digest of their rows.

Where two digests differ, a second pass says which columns have other values on the two sides, as
far as that can be seen of a column alone: values may also be the same, but belong to other rows.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyarrow.dataset import dataset

from lance_stream.dataset.row_digests import NO_ROWS, RowsDigest, add_up, digest_of
from lance_stream.errors import InvalidInputError, NotFoundError

Rows = Callable[[], Iterable[pa.RecordBatch]]
"""Gives some rows, each time that it is called."""


@dataclass(frozen=True)
class Comparison:
    """What two sides have in common.

    Attributes:
        ours: The digest of the rows of one side.
        theirs: The digest of the rows of the other.
        columns: The columns whose values differ, by name; empty where the sides are the same, or
            where the same values belong to other rows.
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
    one, other = digest_batches(ours()), digest_batches(theirs())
    if one == other:
        return Comparison(one, other)
    columns, others = _digests_of_columns(ours()), _digests_of_columns(theirs())
    differing = [
        name
        for name in {**columns, **others}
        if columns.get(name, NO_ROWS).lanes != others.get(name, NO_ROWS).lanes
    ]
    return Comparison(one, other, tuple(differing))


def read_parquet(path: str, columns: list[str] | None = None) -> Iterable[pa.RecordBatch]:
    """Return the rows of a parquet file, or of the parquet files of a folder, on local disk.

    Raises:
        NotFoundError: There is none.
        InvalidInputError: It is no parquet file, or lacks a column.
    """
    try:
        found = dataset(path, format="parquet")
        if not found.files:
            raise NotFoundError(f"there is no parquet file in {path}")
        batches: Iterable[pa.RecordBatch] = found.to_batches(columns=columns)
    except FileNotFoundError:
        raise NotFoundError(f"there is neither a table nor a parquet file at {path}") from None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(f"{path} cannot be read as parquet: {error}") from None
    return batches


def _digests_of_columns(batches: Iterable[pa.RecordBatch]) -> dict[str, RowsDigest]:
    digests: dict[str, RowsDigest] = {}
    for batch in batches:
        for name in batch.schema.names:
            found = digest_of(batch.select([name]))
            digests[name] = digests.get(name, NO_ROWS) + found
    return digests
