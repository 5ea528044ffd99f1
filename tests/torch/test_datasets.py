"""A table as data for PyTorch: order, shards, and resuming."""

import copy
import itertools
import logging
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import CorruptDataError, InvalidInputError, NotFoundError
from tests.recipes import need

torch: Any = need("torch")

from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402  # skipped ...
from torch.utils.data import DataLoader  # noqa: E402  # ... without torch

from lance_stream.torch import ChangeDataset, VersionDataset  # noqa: E402  # needs torch

pytestmark = [pytest.mark.recipes, pytest.mark.nightly]


def rows(start: int, stop: int) -> pa.Table:
    ids = np.arange(start, stop)
    items = pa.array(np.repeat(ids, 4).astype(np.float32))
    return pa.table(
        {
            "id": ids,
            "v": pa.FixedSizeListArray.from_arrays(items, 4),
            "name": [f"n{number}" for number in ids],
            "flag": ids % 2 == 0,
        }
    )


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return a table of several fragments, some of whose rows are deleted."""
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, rows(0, 100))
    for start in range(100, 300, 50):
        ds = ds.append(rows(start, start + 50))
    ds.delete("id % 10 = 3")
    return uri


def ids_of(batches: Any) -> list[int]:
    return [int(number) for batch in batches for number in batch["id"]]


LIVE = [number for number in range(300) if number % 10 != 3]


def test_columns_become_tensors(uri: str) -> None:
    """Vectors are matrices, and texts, which torch lacks, are lists."""
    batch = next(iter(VersionDataset(uri, batch_rows=8)))
    assert batch["id"].dtype == torch.int64
    assert batch["v"].shape == (8, 4)
    assert batch["flag"].dtype == torch.bool
    assert batch["name"][:2] == ["n0", "n1"]
    torch.testing.assert_close(batch["v"][:, 0], batch["id"].float())


def test_nulls_in_numbers_are_refused(tmp_path: Path) -> None:
    """A null would become NaN or an arbitrary number without a word."""
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, pa.table({"x": [1, None]}))
    with pytest.raises(InvalidInputError, match=r"column 'x' has nulls.*Dataset.update"):
        next(iter(VersionDataset(uri)))
    ds.update({"x": "0"}, "x IS NULL")
    assert next(iter(VersionDataset(uri)))["x"].tolist() == [1, 0]


def test_rows_come_once_in_table_order(uri: str) -> None:
    """Without a seed the order is that of a scan."""
    assert ids_of(VersionDataset(uri, batch_rows=7, chunk_rows=20)) == LIVE


def test_a_seed_determines_each_epochs_order(uri: str) -> None:
    """Experiments must be repeatable, while no two epochs have the same order."""
    first, second = (VersionDataset(uri, seed=5, chunk_rows=20) for _ in range(2))
    orders = [ids_of(first) for _ in range(2)]
    assert [ids_of(second) for _ in range(2)] == orders
    assert all(sorted(order) == LIVE for order in orders)
    assert orders[0] != orders[1] != LIVE


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_and_workers_share_the_rows(uri: str, num_workers: int) -> None:
    """No row is seen twice in an epoch, and all ranks get as many rows as the others."""
    shares = []
    for rank in range(3):
        dataset = VersionDataset(uri, seed=1, chunk_rows=20, rank=rank, world_size=3)
        loader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            multiprocessing_context="spawn" if num_workers else None,
        )
        shares.append(ids_of(loader))
    seen = list(itertools.chain(*shares))
    assert len({len(share) for share in shares}) == 1
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(LIVE)
    assert len(LIVE) - len(seen) < 3 * max(num_workers, 1)


@pytest.mark.parametrize("create", [VersionDataset, partial(ChangeDataset, wait=False)])
def test_spawned_workers_know_their_rank(uri: str, create: Any) -> None:
    """A spawned worker has no process group, so all ranks would train on the same rows."""
    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    try:
        loader = DataLoader(
            create(uri), batch_size=None, num_workers=1, multiprocessing_context="spawn"
        )
        share = ids_of(loader)
        assert share == ids_of(create(uri, rank=1, world_size=2))
        assert 0 < len(share) < len(LIVE)
    finally:
        torch.distributed.destroy_process_group()


def test_training_resumes_within_an_epoch(uri: str) -> None:
    """A job that is preempted after any batch continues with the next one."""
    whole = list(VersionDataset(uri, seed=3, batch_rows=6, chunk_rows=20))
    for num_done in range(0, len(whole), 5):
        dataset = VersionDataset(uri, seed=3, batch_rows=6, chunk_rows=20)
        batches = iter(dataset)
        for _ in range(num_done):
            next(batches)
        resumed = VersionDataset(uri, chunk_rows=20, batch_rows=6)
        resumed.load_state_dict(dataset.state_dict())
        assert ids_of(resumed) == ids_of(whole[num_done:])
        assert sorted(ids_of(resumed)) == LIVE  # the next epoch


@pytest.mark.parametrize("is_persistent", [False, True])
def test_set_epoch_shuffles_workers_rows(uri: str, is_persistent: bool) -> None:
    """A worker has a copy of the dataset: without shared memory, each epoch had the first order."""
    options: dict[str, Any] = {"seed": 5, "chunk_rows": 20}
    expected = [ids_of(dataset) for dataset in itertools.repeat(VersionDataset(uri, **options), 2)]
    loader = DataLoader(
        copy.deepcopy(VersionDataset(uri, **options)),
        batch_size=None,
        num_workers=1,
        persistent_workers=is_persistent,
        multiprocessing_context="spawn",
    )
    for epoch in (1, 0):
        loader.dataset.set_epoch(epoch)
        if is_persistent:
            next(iter(loader))  # an abandoned pass
        assert ids_of(loader) == expected[epoch]


def test_workers_warn_of_a_repeated_epoch(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Training on one order in all epochs would not be noticed."""
    worker = SimpleNamespace(id=0, num_workers=1)
    monkeypatch.setattr("lance_stream.torch.get_worker_info", lambda: worker)
    dataset = VersionDataset(uri, seed=5)
    with caplog.at_level(logging.WARNING, "lance_stream.torch"):
        list(dataset)
        dataset.set_epoch(0)  # on purpose
        list(dataset)
        assert not caplog.messages
        list(dataset)
    assert "epoch 0 of" in caplog.text
    assert "call set_epoch" in caplog.text


def worker_of(
    dataset: Any, monkeypatch: pytest.MonkeyPatch, worker_id: int = 0, num_workers: int = 1
) -> Any:
    """Return the copy of a dataset that a worker has, and let this process be that worker."""
    worker = SimpleNamespace(id=worker_id, num_workers=num_workers)
    monkeypatch.setattr("lance_stream.torch.get_worker_info", lambda: worker)
    return copy.copy(dataset)  # which shares its tensors


def test_workers_store_epochs_not_yet_begun(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader's state has workers that have returned nothing of the epoch but all of the last."""
    dataset = VersionDataset(uri, seed=3, batch_rows=6)
    with monkeypatch.context() as patch:
        worker = worker_of(dataset, patch)
        whole = [ids_of(worker)]
    dataset.set_epoch(1)
    with monkeypatch.context() as patch:
        worker_of(dataset, patch)
        batches = iter(worker)
        state = worker.state_dict()
        whole.append(ids_of(batches))
        resumed = worker_of(VersionDataset(uri, batch_rows=6), patch)
        resumed.load_state_dict(state)
        assert ids_of(resumed) == whole[1] != whole[0]


def test_set_epoch_ends_workers_states(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state stored at the end of an epoch would leave the workers without rows in the next."""
    options: dict[str, Any] = {"seed": 3, "batch_rows": 6}
    with monkeypatch.context() as patch:
        worker = worker_of(VersionDataset(uri, **options), patch)
        whole = ids_of(worker)
        state = worker.state_dict()
    for epoch, expected in ((None, []), (0, []), (1, LIVE)):
        dataset = VersionDataset(uri, **options)
        if epoch is not None:
            dataset.set_epoch(epoch)
        with monkeypatch.context() as patch:
            resumed = worker_of(dataset, patch)
            resumed.load_state_dict(state)
            rest = ids_of(resumed)
        assert sorted(rest) == expected
        assert rest != whole


@pytest.mark.parametrize("num_workers", [1, 2])
def test_workers_refuse_states_without_workers(
    uri: str, monkeypatch: pytest.MonkeyPatch, num_workers: int
) -> None:
    """Each worker would skip as many rows as one process has returned, in each epoch again."""
    dataset = VersionDataset(uri, batch_rows=6)
    begin = dataset.state_dict()
    next(iter(dataset))
    for state, is_refused in ((begin, False), (dataset.state_dict(), True)):
        dataset.load_state_dict(state)
        for number in range(num_workers):
            with monkeypatch.context() as patch:
                worker = worker_of(dataset, patch, number, num_workers)
                if is_refused:
                    with pytest.raises(InvalidInputError, match="6 rows done by a process without"):
                        iter(worker)
                else:
                    assert len(ids_of(worker)) == len(LIVE) // num_workers
    assert len(ids_of(dataset)) == len(LIVE) - 6


def test_states_without_workers_progress_are_refused(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state of the process that trains would begin the epoch again: rows are seen twice."""
    datasets = VersionDataset(uri, batch_rows=6), ChangeDataset(uri, wait=False, max_rows=6)
    for dataset in datasets:
        begin = dataset.state_dict()
        with monkeypatch.context() as patch:
            worker = worker_of(dataset, patch)
            next(iter(worker))
            assert worker.state_dict() != begin
        with pytest.raises(InvalidInputError, match="only they know how many rows"):
            dataset.state_dict()
        dataset.load_state_dict(begin)
        assert dataset.state_dict() == begin
    with monkeypatch.context() as patch:
        next(iter(worker_of(datasets[0], patch)))
    datasets[0].set_epoch(1)
    assert datasets[0].state_dict()["epoch"] == 1


def test_an_abandoned_pass_begins_again(uri: str) -> None:
    """A loop that breaks off sees the epoch's rows again, as it does with workers."""
    dataset = VersionDataset(uri, seed=3, batch_rows=6, chunk_rows=20)
    next(iter(dataset))
    assert sorted(ids_of(dataset)) == LIVE
    assert dataset.state_dict()["epoch"] == 1


def test_set_epoch_continues_a_state(uri: str) -> None:
    """The loop of a resumed training begins with the epoch that was interrupted."""
    options: dict[str, Any] = {"seed": 3, "batch_rows": 6, "chunk_rows": 20}
    dataset = VersionDataset(uri, **options)
    dataset.set_epoch(4)
    batches = list(dataset)
    dataset.set_epoch(4)
    next(iter(dataset))
    for epoch, num_done in ((4, 1), (5, 0)):
        resumed = VersionDataset(uri, **options)
        resumed.load_state_dict(dataset.state_dict())
        resumed.set_epoch(epoch)
        expected = ids_of(batches[num_done:])
        assert (ids_of(resumed) == expected) is (epoch == 4)


def test_recorded_runs_are_replayed_exactly(uri: str) -> None:
    """Later commits and a compaction change nothing about a version."""
    options: dict[str, Any] = {"batch_rows": 16, "chunk_rows": 32}
    dataset = VersionDataset(uri, seed=9, **options)
    batches = list(dataset)
    dataset.set_epoch(0)
    next(iter(dataset))
    state = dataset.state_dict()
    ds = lance_stream.open_dataset(uri)
    for number in range(1000):
        ds = ds.append(rows(1000 + number, 1001 + number))
    ds.compact().update({"flag": "NOT flag"})
    resumed = VersionDataset(uri, **options)
    resumed.load_state_dict(state)
    assert ids_of(resumed) == ids_of(batches[1:])
    replayed = VersionDataset(uri, version=dataset.version, seed=9, **options)
    for batch, again in zip(batches, replayed, strict=True):
        assert batch["name"] == again["name"]
        assert all(torch.equal(batch[name], again[name]) for name in ("id", "v", "flag"))


def test_states_of_other_data_are_refused(uri: str) -> None:
    """The rows done in another order are other rows."""
    state = VersionDataset(uri, chunk_rows=20).state_dict()
    with pytest.raises(InvalidInputError, match="chunk_rows"):
        VersionDataset(uri, chunk_rows=30).load_state_dict(state)
    with pytest.raises(InvalidInputError, match="as many ranks and workers"):
        VersionDataset(uri, chunk_rows=20, rank=0, world_size=2).load_state_dict(state)
    with pytest.raises(InvalidInputError, match="is_even"):
        VersionDataset(uri, chunk_rows=20, is_even=False).load_state_dict(state)
    changes = ChangeDataset(uri, wait=False)
    with pytest.raises(InvalidInputError, match="as many ranks and workers"):
        ChangeDataset(uri, rank=0, world_size=2, wait=False).load_state_dict(changes.state_dict())


def test_states_of_replaced_tables_are_refused(uri: str) -> None:
    """A table created at the same location has versions of the same numbers."""
    dataset = VersionDataset(uri)
    version = dataset.version
    shutil.rmtree(uri)
    ds = lance_stream.create_dataset(uri, rows(500, 900))
    while ds.version < version:
        ds = ds.append(rows(0, 1))
    with pytest.raises(NotFoundError, match="deleted and re-created"):
        VersionDataset(uri).load_state_dict(dataset.state_dict())
    with pytest.raises(NotFoundError, match="deleted and re-created"):
        next(iter(dataset))


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("rows_done", -6),
        ("rows_done", len(LIVE) + 1),
        ("rows_done", "6"),
        ("epoch", None),
        ("seed", -1),
        ("version", None),
    ],
)
def test_damaged_states_are_refused(uri: str, entry: str, value: Any) -> None:
    """Rows would be repeated or skipped, or an error without a cause would end the first pass."""
    dataset = VersionDataset(uri)
    state = dataset.state_dict()
    with pytest.raises(InvalidInputError, match=entry):
        dataset.load_state_dict({**state, entry: value})
    assert dataset.state_dict() == state


@pytest.mark.parametrize("position", [None, 5, "gold", "{}"])
def test_damaged_positions_are_refused(uri: str, position: Any) -> None:
    """Without a position, all rows of the table would be read again."""
    dataset = ChangeDataset(uri, wait=False)
    state = dataset.state_dict()
    with pytest.raises(CorruptDataError, match="is not a position"):
        dataset.load_state_dict({**state, "position": position})
    assert dataset.state_dict() == state


def test_states_outlive_a_mount(uri: str) -> None:
    """A job that is started again may find the table at another path."""
    other = Path(uri).rename(f"{uri}2")
    Path(uri).symlink_to(other)
    for create in (VersionDataset, partial(ChangeDataset, wait=False)):
        options: dict[str, Any] = {"columns": ["id"]}
        dataset = create(uri, **options)
        next(iter(dataset))
        resumed = create(str(other), **options)
        resumed.load_state_dict(dataset.state_dict())
        assert ids_of(resumed) == []


@pytest.mark.parametrize("state", [None, {}, {"uri": "t"}])
def test_what_is_no_state_is_refused(uri: str, state: Any) -> None:
    """A checkpoint may have the state of another part of the training under this name."""
    for dataset in (VersionDataset(uri), ChangeDataset(uri, wait=False)):
        with pytest.raises(InvalidInputError, match="state_dict"):
            dataset.load_state_dict(state)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"batch_rows": 0}, InvalidInputError),
        ({"chunk_rows": 2.5}, InvalidInputError),
        ({"seed": -1}, InvalidInputError),
        ({"seed": "x"}, InvalidInputError),
        ({"rank": 1}, InvalidInputError),
        ({"rank": 2, "world_size": 2}, InvalidInputError),
        ({"rank": 0, "world_size": 0}, InvalidInputError),
        ({"rank": "0", "world_size": 1}, InvalidInputError),
        ({"columns": ["nothing"]}, NotFoundError),
        ({"version": 99}, NotFoundError),
    ],
)
def test_bad_arguments_are_refused(
    uri: str, arguments: dict[str, Any], error: type[Exception]
) -> None:
    """A wrong argument shows before the training has begun."""
    with pytest.raises(error):
        VersionDataset(uri, **arguments)


def test_changes_continue_at_a_position(uri: str) -> None:
    """A model that learns from changes sees each of them once, also after a restart."""
    options: dict[str, Any] = {"wait": False, "max_rows": 40, "columns": ["id"]}
    dataset = ChangeDataset(uri, **options)
    seen = ids_of(itertools.islice(iter(dataset), 3))
    lance_stream.open_dataset(uri).append(rows(500, 510))
    resumed = ChangeDataset(uri, **options)
    resumed.load_state_dict(dataset.state_dict())
    assert seen + ids_of(resumed) == [*LIVE, *range(500, 510)]


def test_new_workers_warn_of_repeated_changes(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker's position ends with the worker, and the next pass has all rows once more."""
    dataset = ChangeDataset(uri, wait=False)
    worker = worker_of(dataset, monkeypatch)
    with caplog.at_level(logging.WARNING, "lance_stream.torch"):
        assert [len(ids_of(worker)) for _ in range(2)] == [len(LIVE), 0]  # a persistent worker
        assert not caplog.messages
        assert len(ids_of(worker_of(dataset, monkeypatch))) == len(LIVE)
    assert "persistent_workers=True" in caplog.text


@pytest.mark.parametrize("columns", [["id"], ["id", "_change_type"]])
def test_ranks_share_changes_by_row(uri: str, columns: list[str]) -> None:
    """The changes of one row stay together, in their order, whichever columns are selected."""
    batches = [
        list(ChangeDataset(uri, rank=rank, world_size=2, wait=False, columns=columns))
        for rank in range(2)
    ]
    if len(columns) > 1:
        assert list(batches[0][0]) == columns
    shares = [ids_of(batches_of_rank) for batches_of_rank in batches]
    assert sorted(shares[0] + shares[1]) == LIVE
    assert min(map(len, shares)) > 0


def test_ranks_read_selected_fields_only(tmp_path: Path) -> None:
    """A rank that adds the row ids to its columns must not add the rest of a struct."""
    uri = str(tmp_path / "t")
    points = [{"x": number, "y": -number} for number in range(10)]
    lance_stream.create_dataset(uri, pa.table({"id": range(10), "point": points}))
    columns = ["point.x", "_change_type"]
    for rank in range(2):
        dataset = ChangeDataset(uri, rank=rank, world_size=2, wait=False, columns=columns)
        (batch,) = dataset
        assert list(batch) == ["point", "_change_type"]
        assert set(map(len, batch["point"])) == {1}


def test_a_pass_follows_renamed_columns(uri: str) -> None:
    """A loop that reads the changes once an hour continues after a column was renamed."""
    dataset = ChangeDataset(uri, wait=False)
    assert "flag" in next(iter(dataset))
    ds = lance_stream.open_dataset(uri).rename_columns({"flag": "is_even"})
    ds.update({"is_even": "true"}, "id = 1")
    (batch,) = dataset
    assert batch["is_even"].tolist() == [False, True]
