"""A table as data for PyTorch: the rows of one version, or a followed table.

    VersionDataset   one version: shuffled by a seed, sharded, resumable within an epoch
    ChangeDataset    a followed table: its rows, then its changes, from a position on

Both are `IterableDataset`s of batches (so a `DataLoader` needs `batch_size=None`), and both have
`state_dict` and `load_state_dict`. Workers and ranks share the rows among themselves. With several
workers, `torchdata`'s `StatefulDataLoader` collects the states of all of them.

The order of a version's rows is a function of the version, the seed and the epoch: chunks of
adjacent rows are drawn in random order, and the rows within each are shuffled. So the same three
numbers give the same batches, whatever has been committed since. Tag the version, so that a
cleanup keeps it.

Needs torch, which `lance-stream[torch]` installs; nothing else in the package imports it.
"""

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from lance_stream.arguments import as_count, as_number
from lance_stream.dataset import Dataset, open_dataset
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.schema.system_columns import ROW_ID
from lance_stream.snapshot.resolving import VersionSpec
from lance_stream.table.version_marks import mark_of

_log = logging.getLogger(__name__)

Tensors: TypeAlias = dict[str, Any]
"""A batch: tensors of numbers, booleans and vectors by column; lists of other values."""

BATCH_ROWS: Final = 1024
CHUNK_ROWS: Final = 8192
"""Adjacent rows that are read together, and shuffled among themselves."""


def to_tensors(rows: pa.Table | pa.RecordBatch) -> Tensors:
    """Return the columns of some rows as tensors.

    Args:
        rows: n rows.

    Returns:
        For each column: (n,) numbers or booleans, (n, size) vectors, or n other values in a list.

    Raises:
        InvalidInputError: A column of numbers has nulls, which tensors cannot hold.
    """
    return {
        name: _as_tensor(name, column)
        for name, column in zip(rows.schema.names, rows.columns, strict=True)
    }


def _as_tensor(name: str, column: pa.Array | pa.ChunkedArray) -> Any:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = array.type
    is_vector = pa.types.is_fixed_size_list(kind) and _is_number(kind.value_type)
    if not (is_vector or _is_number(kind)):
        return array.to_pylist()
    items = array.flatten() if is_vector else array
    if array.null_count or items.null_count:
        raise InvalidInputError(
            f"column {name!r} has nulls, which a tensor cannot hold: select rows without them "
            f'(filter="{name} IS NOT NULL"), or leave the column out'
        )
    numbers = np.array(items.to_numpy(zero_copy_only=False))  # a copy, which torch may write to
    return torch.from_numpy(numbers.reshape(len(array), kind.list_size) if is_vector else numbers)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _shard(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return the number of this worker among the workers of all ranks, and how many there are."""
    if rank is None or world_size is None:
        is_distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        rank = torch.distributed.get_rank() if is_distributed else 0
        world_size = torch.distributed.get_world_size() if is_distributed else 1
    worker = get_worker_info()
    worker_id, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
    return rank * num_workers + worker_id, world_size * num_workers


def _check_ranks(rank: int | None, world_size: int | None) -> None:
    if rank is None and world_size is None:
        return
    if rank is None or world_size is None:
        raise InvalidInputError("rank and world_size go together; by default torch.distributed's")
    num_ranks = as_number(world_size)
    if num_ranks is None or num_ranks < 1:
        raise InvalidInputError(f"world_size must be a whole number from 1, not {world_size!r}")
    if (number := as_number(rank)) is None or not 0 <= number < num_ranks:
        raise InvalidInputError(f"rank must be from 0 to {num_ranks - 1}, not {rank!r}")


def _check_state(
    state: Mapping[str, Any], current: Mapping[str, Any], names: Sequence[str]
) -> None:
    """Check that a state is of a dataset with the same rows in the same order.

    Args:
        state: The state.
        current: The state of this dataset.
        names: The entries that must be equal.

    Raises:
        InvalidInputError: The state is of another dataset, or not a state.
    """
    if not isinstance(state, Mapping) or current.keys() - state.keys():
        raise InvalidInputError(
            f"{state!r:.200} is not what state_dict returned: a state has {', '.join(current)}"
        )
    for name in names:
        if state[name] != current[name]:
            raise InvalidInputError(
                f"the state has {name}={state[name]!r}, this dataset {current[name]!r}: other "
                "rows would be skipped. Create the dataset as for the state, with as many "
                "ranks and workers"
            )


class VersionDataset(IterableDataset[Tensors]):
    """The rows of one version, in batches.

    Each iteration returns the rows of the current epoch. In this process, the epoch advances when
    its rows have been returned. The workers of a `DataLoader` do not advance it: call `set_epoch`
    before each pass, as for torch's `DistributedSampler`.

    Args:
        uri: The table's location.
        version: A version, tag or time; None for the newest, which is fixed by this call.
        columns: As in `Dataset.scan`.
        batch_rows: The number of rows of a batch; the last batch of each chunk may have fewer.
        seed: The seed of the random order of rows; None for the order of the table.
        chunk_rows: The number of adjacent rows that are read together and shuffled among
            themselves. Larger chunks are mixed better and take more memory.
        rank: The number of this process among those of the training; None for that of
            torch.distributed.
        world_size: The number of processes; None for that of torch.distributed.
        is_even: Whether all ranks and workers get the same number of rows. Then the remaining rows,
            fewer than there are workers, are left out.
        storage_options: Settings of the store.

    Raises:
        NotFoundError: There is no such table, version or column.
        InvalidInputError: An argument is invalid.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        version: VersionSpec = None,
        columns: Sequence[str] | None = None,
        batch_rows: int = BATCH_ROWS,
        seed: int | None = None,
        chunk_rows: int = CHUNK_ROWS,
        rank: int | None = None,
        world_size: int | None = None,
        is_even: bool = True,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        _check_ranks(rank, world_size)
        if seed is not None:
            seed = _as_unsigned(seed, "seed")
        ds = open_dataset(uri, storage_options=storage_options)
        ds = ds if version is None else ds.checkout(version)
        ds.take([], columns=columns)  # raises if a column does not exist
        self.uri, self.version = ds.uri, ds.version
        self.num_rows = ds.count_rows()
        self._mark = mark_of(ds.table.manifest)
        self._storage_options = storage_options
        self._columns = columns
        self._batch_rows = as_count(batch_rows, "a batch has")
        self._chunk_rows = as_count(chunk_rows, "a chunk has")
        self._rank, self._world_size, self._is_even = rank, world_size, is_even
        self._seed = seed
        # The epoch, and one past the last epoch that worker 0 completed; shared with the workers.
        self._epochs = torch.zeros(2, dtype=torch.int64).share_memory_()
        self._progress = (0, 0)  # the epoch and its returned rows, in this process
        self._is_resumed = False

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        """Share the epoch of an unpickled or copied dataset with its workers, too."""
        self.__dict__.update(attributes)
        self._epochs.share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, also in the workers of a `DataLoader`.

        With a seed, each epoch has another order of rows. If a state of this epoch has just been
        loaded, the epoch continues after it.

        Raises:
            InvalidInputError: The epoch is not a whole number from 0.
        """
        epoch = _as_unsigned(epoch, "epoch")
        self._epochs.copy_(torch.tensor([epoch, 0]))
        if not self._is_resumed or self._progress[0] != epoch:
            self._progress, self._is_resumed = (epoch, 0), False

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of this worker: the version, the order, and the number of rows."""
        epoch, num_returned = self._progress
        return {
            "uri": self.uri,
            "version": self.version,
            "mark": self._mark,
            "seed": self._seed,
            "epoch": epoch,
            "chunk_rows": self._chunk_rows,
            "is_even": self._is_even,
            "shard": list(_shard(self._rank, self._world_size)),
            "rows_done": num_returned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batches of a state, in its version.

        Raises:
            InvalidInputError: The state is of another table, or of rows in another order.
            NotFoundError: The version no longer exists, or the table was replaced by another one.
        """
        _check_state(state, self.state_dict(), ("uri", "chunk_rows", "is_even", "shard"))
        ds = self._open(state["version"], state["mark"])
        self.version, self._mark, self.num_rows = ds.version, state["mark"], ds.count_rows()
        self._seed = state["seed"]
        self._progress, self._is_resumed = (state["epoch"], state["rows_done"]), True
        if get_worker_info() is None:
            self._epochs.copy_(torch.tensor([state["epoch"], 0]))

    def __iter__(self) -> Iterator[Tensors]:
        """Yield this worker's batches of the epoch; after `load_state_dict`, the remaining ones."""
        worker = get_worker_info()
        if not self._is_resumed:
            self._progress = (int(self._epochs[0]), 0)
            if worker is not None and worker.id == 0:
                self._warn_of_repetition()
        self._is_resumed = False
        epoch = self._progress[0]
        ds = self._open(self.version, self._mark)
        reader = ThreadPoolExecutor(1, thread_name_prefix="lance-stream-torch")
        pending: Future[pa.Table] | None = None
        try:
            for positions in chain(self._remaining_chunks(), [None]):
                following = None
                if positions is not None:
                    following = reader.submit(ds.take, positions, columns=self._columns)
                if pending is not None:
                    yield from self._batches(pending.result())
                pending = following
        finally:
            reader.shutdown(wait=False, cancel_futures=True)
        if worker is None:
            self._progress = (epoch + 1, 0)
            self._epochs[0] = epoch + 1
        elif worker.id == 0:
            self._epochs[1] = epoch + 1

    def _warn_of_repetition(self) -> None:
        epoch, next_epoch = self._epochs.tolist()
        if self._seed is not None and next_epoch > epoch:
            _log.warning(
                "epoch %d of %s is read again in the same order: call set_epoch before each pass "
                "of a DataLoader that has workers",
                epoch,
                self.uri,
            )

    def _batches(self, chunk: pa.Table) -> Iterator[Tensors]:
        for start in range(0, chunk.num_rows, self._batch_rows):
            rows = chunk.slice(start, self._batch_rows)
            epoch, num_returned = self._progress
            self._progress = (epoch, num_returned + rows.num_rows)
            yield to_tensors(rows)

    def _remaining_chunks(self) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the positions of the rows that this worker has not yet returned, by chunk."""
        shard, num_shards = _shard(self._rank, self._world_size)
        first = shard * self.num_rows // num_shards
        stop = (shard + 1) * self.num_rows // num_shards
        if self._is_even:
            share = self.num_rows // num_shards
            first, stop = shard * share, (shard + 1) * share
        epoch, num_returned = self._progress
        first += num_returned
        starts = np.arange(0, self.num_rows, self._chunk_rows)
        if self._seed is not None:
            starts = np.random.default_rng([self._seed, epoch]).permutation(starts)
        begun = 0  # rows of the chunks before, in this order
        for start in starts.tolist():
            size = min(self._chunk_rows, self.num_rows - start)
            low, high = max(first - begun, 0), min(stop - begun, size)
            if low < high:
                rows = np.arange(start, start + size)
                if self._seed is not None:
                    rows = np.random.default_rng([self._seed, epoch, start]).permutation(rows)
                yield rows[low:high]
            begun += size

    def _open(self, version: int, mark: str) -> Dataset:
        ds = open_dataset(self.uri, storage_options=self._storage_options).checkout(version)
        if mark_of(ds.table.manifest) != mark:
            raise NotFoundError(
                f"version {version} of {self.uri} is not the one of the training: the table was "
                "deleted and re-created, or restored from a copy. Start a new training with its "
                "current rows"
            )
        return ds


def _as_unsigned(value: object, argument: str) -> int:
    number = as_number(value)
    if number is None or number < 0:
        raise InvalidInputError(f"{argument} must be a whole number from 0, not {value!r:.200}")
    return number


class ChangeDataset(IterableDataset[Tensors]):
    """The rows and changes of a followed table, in batches.

    Each worker reads the whole feed, and keeps its share of the rows, chosen by row id. Each
    iteration continues at the position. The position of a `DataLoader`'s worker ends with the
    worker: pass `persistent_workers=True`, or use a `StatefulDataLoader`.

    Args:
        uri: The table's location.
        rank: The number of this process among those of the training; None for that of
            torch.distributed.
        world_size: The number of processes; None for that of torch.distributed.
        storage_options: Settings of the store.
        **options: Arguments of `Dataset.follow`, such as `columns`, `filter`, `wait` and
            `max_rows`.

    Raises:
        InvalidInputError: An argument is invalid.
        NotFoundError: There is no such table or column.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        rank: int | None = None,
        world_size: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        _check_ranks(rank, world_size)
        if options.get("consumer") is not None:
            raise InvalidInputError(
                "the position is part of the dataset's state, so it takes no consumer"
            )
        ds = open_dataset(uri, storage_options=storage_options)
        with ds.follow(**options) as stream:  # raises if an option is invalid
            self._position, self._names = stream.position, stream.schema.names
        self.uri = ds.uri
        self._storage_options, self._options = storage_options, options
        self._rank, self._world_size = rank, world_size

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch."""
        shard = list(_shard(self._rank, self._world_size))
        return {"uri": self.uri, "shard": shard, "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position.

        Raises:
            InvalidInputError: The state is of another table, or of other rows.
        """
        _check_state(state, self.state_dict(), ("uri", "shard"))
        self._position = state["position"]

    def __iter__(self) -> Iterator[Tensors]:
        """Yield the batches of this worker after the position."""
        shard, num_shards = _shard(self._rank, self._world_size)
        ds = open_dataset(self.uri, storage_options=self._storage_options)
        options = {**self._options, "after": self._position}
        if num_shards > 1 and ROW_ID not in self._names:
            options["columns"] = [*self._names, ROW_ID]
        with ds.follow(**options) as stream:
            for batch in stream:
                self._position = batch.position
                rows = batch.rows
                if num_shards > 1:
                    row_ids = rows.column(ROW_ID).to_numpy()
                    rows = rows.filter(pa.array(row_ids % num_shards == shard))
                if rows.num_rows:
                    yield to_tensors(rows.select(self._names))
