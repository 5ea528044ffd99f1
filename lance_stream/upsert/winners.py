"""The winning row of each key, if a batch has several rows of a key: the one to apply."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Positions
from lance_stream.errors import InvalidInputError
from lance_stream.keys.batch_keys import NO_MATCH, KeyLookup, show_key
from lance_stream.keys.value_comparison import dense_ranks, same_rows, show_value


def only_rows(names: Sequence[str], keys: Sequence[pa.Array], lookup: KeyLookup) -> Positions:
    """Return (num_keys,) the row of each key, if no key occurs twice.

    Raises:
        InvalidInputError: A key occurs twice; the message gives the number and an example.
    """
    num_rows = len(lookup.key_of_row)
    if lookup.num_keys != num_rows:
        counts = np.bincount(lookup.key_of_row, minlength=lookup.num_keys)
        row = int(np.argmax(counts[lookup.key_of_row] > 1))
        raise InvalidInputError(
            f"{int(np.count_nonzero(counts > 1))} keys occur more than once in the batch, for "
            f"example {show_key(names, keys, row)} {int(counts[lookup.key_of_row[row]])} times: "
            "it is ambiguous which row to apply. Name the column that orders them (sequence_by), "
            "or keep one row per key"
        )
    return np.arange(num_rows, dtype=np.int64)


def newest_rows(
    batch: pa.RecordBatch,
    names: Sequence[str],
    lookup: KeyLookup,
    sequence_by: str,
    deletes: npt.NDArray[np.bool_],
    *,
    deletes_win: bool = False,
    except_columns: Sequence[str] = (),
) -> Positions:
    """Return (num_keys,) the row with the largest sequence of each key.

    Args:
        batch: (n,) rows.
        names: The key columns.
        lookup: The keys of the batch.
        sequence_by: The column that orders rows of one key.
        deletes: (n,) whether each row deletes its key.
        deletes_win: Whether a delete is newer than other rows with the same sequence.
        except_columns: Columns that are not stored.

    Raises:
        InvalidInputError: A sequence is null; or two rows of a key share the largest sequence but
            differ in their effect: they store different values, or only one of them deletes.
    """
    check_no_null_sequences(batch, names, sequence_by)
    ranks = dense_ranks(batch.column(sequence_by))
    if deletes_win:
        ranks = 2 * ranks + deletes
    best = np.zeros(lookup.num_keys, np.int64)
    np.maximum.at(best, lookup.key_of_row, ranks)
    newest = np.flatnonzero(ranks == best[lookup.key_of_row])
    rows: Positions = np.full(lookup.num_keys, NO_MATCH, np.int64)
    rows[lookup.key_of_row[newest]] = newest
    # Other rows of a key with the same largest sequence must have the same effect.
    twins = newest[rows[lookup.key_of_row[newest]] != newest]
    others = rows[lookup.key_of_row[twins]]
    both_delete = deletes[twins] & deletes[others]
    twins, others = twins[~both_delete], others[~both_delete]
    if len(twins):
        stored = (name for name in batch.schema.names if name not in except_columns)
        effects = batch.select([*dict.fromkeys((*stored, sequence_by))])
        effects = effects.append_column("delete", pa.array(deletes))
        check_same(effects, names, sequence_by, twins, others)
    return rows


def check_no_null_sequences(batch: pa.RecordBatch, names: Sequence[str], sequence_by: str) -> None:
    """Raise if a row has no sequence.

    Args:
        batch: The rows.
        names: The key columns.
        sequence_by: The column that orders rows of one key.

    Raises:
        InvalidInputError: Some rows have none; the message has their number and an example.
    """
    sequence = batch.column(sequence_by)
    if sequence.null_count:
        row = int(np.argmax(pc.is_null(sequence).to_numpy(zero_copy_only=False)))
        text = show_key(names, [batch.column(name) for name in names], row)
        raise InvalidInputError(
            f"{sequence.null_count} rows have no {sequence_by!r}, for example that of {text}: "
            "without it, the newest row of a key is unknown. Fill in the missing values"
        )


def check_same(
    batch: pa.RecordBatch,
    names: Sequence[str],
    sequence_by: str,
    twins: Positions,
    others: Positions,
) -> None:
    """Raise unless every row in `twins` equals its counterpart in `others`.

    Args:
        batch: The rows.
        names: The key columns.
        sequence_by: The column that orders rows of one key.
        twins: (n,) i64 rows.
        others: (n,) i64 rows with the same keys and sequences.

    Raises:
        InvalidInputError: Two rows differ; the message shows their key.
    """
    same = same_rows(batch.take(pa.array(twins)), batch.take(pa.array(others)))
    if not same.all():
        row = int(twins[np.argmin(same)])
        keys = [batch.column(name) for name in names]
        raise InvalidInputError(
            f"two different rows with {show_key(names, keys, row)} have the same {sequence_by!r}, "
            f"{show_value(batch.column(sequence_by)[row])}: which one is newer is ambiguous. "
            "Order them by another column, or keep one row per key"
        )
