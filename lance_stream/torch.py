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
from multiprocessing.context import get_spawning_popen
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from torch.utils.data import IterableDataset, get_worker_info

from lance_stream.arguments import as_count, as_flag, as_number
from lance_stream.change_streams.progress import parse_position
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
            f"column {name!r} has nulls, which a tensor cannot hold: leave it out (columns=[...]), "
            "or use a version in which the nulls have been replaced by a value (Dataset.update)"
        )
    numbers = np.array(items.to_numpy(zero_copy_only=False))  # a copy, which torch may write to
    return torch.from_numpy(numbers.reshape(len(array), kind.list_size) if is_vector else numbers)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


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


class _ShardedDataset(IterableDataset[Tensors]):
    """A dataset whose rows the ranks and workers of a training share.

    Args:
        rank: The number of this process among those of the training; None for that of
            torch.distributed.
        world_size: The number of processes; None for that of torch.distributed.
    """

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        super().__init__()
        _check_ranks(rank, world_size)
        self._rank, self._world_size = rank, world_size
        # Whether workers have begun to read, whose progress this process does not know; shared.
        self._workers_began = torch.zeros(1, dtype=torch.bool).share_memory_()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes; a worker that is spawned is not in the rank's process group."""
        attributes = self.__dict__.copy()
        if self._rank is None and get_spawning_popen() is not None and _is_distributed():
            attributes["_rank"] = torch.distributed.get_rank()
            attributes["_world_size"] = torch.distributed.get_world_size()
        return attributes

    def __setstate__(self, attributes: Mapping[str, Any]) -> None:
        """Share the tensors of an unpickled or copied dataset with its workers, too."""
        self.__dict__.update(attributes)
        for value in attributes.values():
            if isinstance(value, torch.Tensor):
                value.share_memory_()

    def _shard(self) -> tuple[int, int]:
        """Return the number of this worker among those of all ranks, and how many there are."""
        rank, world_size = self._rank, self._world_size
        if rank is None or world_size is None:
            rank = torch.distributed.get_rank() if _is_distributed() else 0
            world_size = torch.distributed.get_world_size() if _is_distributed() else 1
        worker = get_worker_info()
        worker_id, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return rank * num_workers + worker_id, world_size * num_workers

    def _report_begin(self) -> None:
        """Tell the process that trains whether a worker has begun to read."""
        worker = get_worker_info()
        if worker is None or worker.id == 0:
            self._workers_began[0] = worker is not None

    def _check_knows_progress(self) -> None:
        """Check that this process has returned the rows itself, or that none have been.

        Raises:
            InvalidInputError: Workers have returned some.
        """
        if get_worker_info() is None and self._workers_began[0]:
            raise InvalidInputError(
                f"workers of a DataLoader have read {self.uri}, and only they know how many rows "
                "they returned: store the state of a StatefulDataLoader (torchdata), read without "
                "workers, or store the state of a VersionDataset between set_epoch and the pass"
            )


def _is_distributed() -> bool:
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


class VersionDataset(_ShardedDataset):
    """The rows of one version, in batches.

    Each iteration returns the rows of the current epoch. In this process, the epoch advances when
    its rows have been returned. The workers of a `DataLoader` do not advance it: call `set_epoch`
    before each pass, as for torch's `DistributedSampler`.

    Args:
        uri: The table's location.
        version: A version, tag or time; None for the newest, which is fixed by this call. All ranks
            need the same one, so pass it if others write while the training starts.
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
        super().__init__(rank, world_size)
        self._seed = _as_seed(seed)
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
        self._is_even = as_flag("is_even", is_even)
        # The epoch, one past the last epoch that worker 0 completed, and whether the epoch is that
        # of `set_epoch`; shared with the workers.
        self._epochs = torch.zeros(3, dtype=torch.int64).share_memory_()
        self._progress = (0, 0)  # the epoch and its returned rows, in this process
        self._resumed_by: tuple[Any, ...] | None = None  # `_reader` that has loaded `_progress`

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, also in the workers of a `DataLoader`.

        With a seed, each epoch has another order of rows. If a state of this epoch has just been
        loaded, the epoch continues after it.

        Raises:
            InvalidInputError: The epoch is not a whole number from 0.
        """
        epoch = _as_unsigned(epoch, "epoch")
        self._epochs.copy_(torch.tensor([epoch, 0, 1]))
        self._workers_began[0] = False
        if self._resumed_by is None or self._progress[0] != epoch:
            self._progress, self._resumed_by = (epoch, 0), None

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of this worker: the version, the order, and the number of rows.

        Raises:
            InvalidInputError: Workers have begun the epoch, but this process is none of them.
        """
        self._check_knows_progress()
        return self._state()

    def _state(self) -> dict[str, Any]:
        epoch, num_returned = self._progress
        return {
            "uri": self.uri,
            "version": self.version,
            "mark": self._mark,
            "seed": self._seed,
            "epoch": epoch,
            "chunk_rows": self._chunk_rows,
            "is_even": self._is_even,
            "shard": list(self._shard()),
            "rows_done": num_returned,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batches of a state, in its version.

        Raises:
            InvalidInputError: The state is of rows in another order, or damaged.
            NotFoundError: The version no longer exists, or is that of another table.
        """
        _check_state(state, self._state(), ("chunk_rows", "is_even", "shard"))
        version, epoch, num_returned = (
            _as_unsigned(state[name], f"the state's {name}")
            for name in ("version", "epoch", "rows_done")
        )
        seed = _as_seed(state["seed"])
        ds = self._open(version, state["mark"])
        num_rows = ds.count_rows()
        first, stop = self._share(num_rows)
        if num_returned > stop - first:
            raise InvalidInputError(
                f"the state has rows_done={num_returned}, but its ranks and workers get "
                f"{stop - first} rows each of version {version}: the state is damaged"
            )
        self.version, self._mark, self.num_rows = ds.version, state["mark"], num_rows
        self._seed = seed
        self._progress, self._resumed_by = (epoch, num_returned), self._reader()
        if get_worker_info() is None:
            self._epochs.copy_(torch.tensor([epoch, 0, 0]))
            self._workers_began[0] = False

    def __iter__(self) -> Iterator[Tensors]:
        """Return this worker's batches of the epoch; after `load_state_dict`, the remaining ones.

        Raises:
            InvalidInputError: The state was loaded in another process than that of the worker.
        """
        self._begin()  # at once: the state may be stored before the first batch
        return self._read()

    def _reader(self) -> tuple[Any, ...]:
        """Return what distinguishes a process that reads from those that read other rows."""
        return get_worker_info() is not None, *self._shard()

    def _begin(self) -> None:
        """Determine the epoch, and how many of its rows have been returned."""
        epoch, _, is_set = self._epochs.tolist()
        is_resumed = self._resumed_by == self._reader()
        if self._resumed_by and not is_resumed and self._progress[1]:
            raise InvalidInputError(
                f"the loaded state has {self._progress[1]} rows done by a process without workers, "
                "which these workers would all skip: resume without workers, or load the states "
                "of the workers themselves with a StatefulDataLoader (torchdata)"
            )
        if not is_resumed or (is_set and epoch != self._progress[0]):
            self._progress = (epoch, 0)
        self._report_begin()

    def _read(self) -> Iterator[Tensors]:
        self._begin()
        worker = get_worker_info()
        if worker is not None and worker.id == 0 and not self._progress[1]:
            self._warn_of_repetition()
        self._resumed_by = None
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
        epoch, next_epoch, _ = self._epochs.tolist()
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
        first, stop = self._share(self.num_rows)
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

    def _share(self, num_rows: int) -> tuple[int, int]:
        """Return the range of this worker's rows within the order of an epoch."""
        shard, num_shards = self._shard()
        if self._is_even:
            share = num_rows // num_shards
            return shard * share, (shard + 1) * share
        return shard * num_rows // num_shards, (shard + 1) * num_rows // num_shards

    def _open(self, version: int, mark: str) -> Dataset:
        ds = open_dataset(self.uri, storage_options=self._storage_options).checkout(version)
        if mark_of(ds.table.manifest) != mark:
            raise NotFoundError(
                f"version {version} of {self.uri} is not the one of the training: the table was "
                "deleted and re-created, or restored from a copy, or the state is of another "
                "table. Start a new training with the current rows"
            )
        return ds


def _as_seed(value: object) -> int | None:
    return None if value is None else _as_unsigned(value, "seed")


def _as_unsigned(value: object, argument: str) -> int:
    number = as_number(value)
    if number is None or number < 0:
        raise InvalidInputError(f"{argument} must be a whole number from 0, not {value!r:.200}")
    return number


class ChangeDataset(_ShardedDataset):
    """The rows and changes of a followed table, in batches.

    Each worker reads the whole feed, and keeps its share of the rows, chosen by row id. Each
    iteration continues at the position. The position of a `DataLoader`'s worker ends with the
    worker: pass `persistent_workers=True`, also to a `StatefulDataLoader`, which stores positions.

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
        super().__init__(rank, world_size)
        if options.get("consumer") is not None:
            raise InvalidInputError(
                "the position is part of the dataset's state, so it takes no consumer"
            )
        ds = open_dataset(uri, storage_options=storage_options)
        with ds.follow(**options) as stream:  # raises if an option is invalid
            self._position = stream.position
            self._has_row_ids = ROW_ID in stream.schema.names
        self.uri = ds.uri
        self._storage_options, self._options = storage_options, options
        self._has_begun = False  # whether this process has begun to read

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch.

        Raises:
            InvalidInputError: Workers have begun to read, but this process is none of them.
        """
        self._check_knows_progress()
        return self._state()

    def _state(self) -> dict[str, Any]:
        return {"uri": self.uri, "shard": list(self._shard()), "position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at a position.

        Raises:
            InvalidInputError: The state is of other rows.
            CorruptDataError: Its position is damaged.
        """
        _check_state(state, self._state(), ("shard",))
        position = str(state["position"])
        parse_position(position)  # raises if it is damaged
        self._position = position
        if get_worker_info() is None:
            self._workers_began[0] = False

    def __iter__(self) -> Iterator[Tensors]:
        """Yield the batches of this worker after the position."""
        worker = get_worker_info()
        if worker is not None and worker.id == 0 and self._workers_began[0] and not self._has_begun:
            _log.warning(
                "the changes of %s that earlier workers returned are read again: pass "
                "persistent_workers=True to the DataLoader",
                self.uri,
            )
        self._has_begun = True
        self._report_begin()
        shard, num_shards = self._shard()
        ds = open_dataset(self.uri, storage_options=self._storage_options)
        options = {**self._options, "after": self._position}
        needs_row_ids = num_shards > 1 and not self._has_row_ids
        if needs_row_ids:
            options["columns"] = [*options["columns"], ROW_ID]
        with ds.follow(**options) as stream:
            names = stream.schema.names[: -1 if needs_row_ids else None]
            for batch in stream:
                self._position = batch.position
                rows = batch.rows
                if num_shards > 1:
                    row_ids = rows.column(ROW_ID).to_numpy()
                    rows = rows.filter(pa.array(row_ids % num_shards == shard))
                if rows.num_rows:
                    yield to_tensors(rows.select(names))
