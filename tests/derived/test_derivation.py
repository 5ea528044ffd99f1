"""Derived columns: what is computed, read and committed."""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import lance
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import (
    CommitConflictError,
    CorruptDataError,
    DerivedFunctionError,
    InvalidInputError,
    NotFoundError,
    derive,
)
from lance_stream.byte_ranges import ByteRange
from lance_stream.derived import computing, derivation, same_table
from lance_stream.derived.computing import Local
from lance_stream.derived.derivation import Derivation
from lance_stream.derived.progress import read_progress
from lance_stream.derived.reports import DerivedCommit, DerivedStatus
from lance_stream.retries import RetryPolicy
from lance_stream.row_updates.in_place import write_columns
from lance_stream.storage.local_store import LocalStore
from tests.guarded import unlocked_uses

T = TypeVar("T")
R = TypeVar("R")

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("price", pa.float64()),
    ]
)
LENGTH = {"length": pa.int64()}


class Lengths:
    """A function that returns the length of each text, and counts its calls."""

    def __init__(self, bad: str = "bad") -> None:
        self.bad = bad
        self.seen: list[str | None] = []

    def __call__(self, batch: pa.RecordBatch) -> list[int | None]:
        texts = batch["text"].to_pylist()
        self.seen += texts
        if self.bad in texts:
            raise ValueError(f"{self.bad!r} has no length")
        return [None if text is None else len(text) for text in texts]


def rows(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    return pa.table([ids, [f"text {n}" for n in ids], [float(n) for n in ids]], schema=SCHEMA)


def new_table(path: Path, *parts: tuple[int, int]) -> str:
    uri = str(path / "t.lance")
    ds = lance_stream.create_dataset(uri, SCHEMA)
    for start, stop in parts:
        ds = ds.append(rows(start, stop))
    return uri


def lengths_of(uri: str) -> dict[int, int | None]:
    columns = lance_stream.open_dataset(uri).to_table(["id", "length"]).to_pydict()
    return dict(zip(columns["id"], columns["length"], strict=True))


def test_only_changed_rows_are_computed(tmp_path: Path) -> None:
    """The function may be an expensive model, so updates of other columns and moved rows must
    not call it.
    """
    uri = new_table(tmp_path, (0, 10_000), (10_000, 20_000))
    function = Lengths()
    lengths = derive(uri, LENGTH, function, "text", function_version="1")
    assert lengths.run().num_computed == 20_000
    ds = lance_stream.open_dataset(uri)
    changed = list(range(0, 20_000, 100))
    texts = pa.table({"id": changed, "text": ["changed"] * len(changed)})
    ds = ds.upsert(texts, on="id").update({"price": "price + 1"}, where="id % 7 = 0").compact()
    function.seen.clear()
    result = lengths.run()
    assert function.seen == ["changed"] * 200
    assert (result.num_computed, result.num_written, result.num_commits) == (200, 200, 1)
    assert lengths_of(uri) == {n: 7 if n % 100 == 0 else len(f"text {n}") for n in range(20_000)}
    assert lengths.run().version is None
    assert lance_stream.open_dataset(uri).verify() == []


def test_changes_elsewhere_read_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The field ids of changed files show that no input has changed."""
    uri = new_table(tmp_path, (0, 1000))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    lengths.run()
    ds = lance_stream.open_dataset(uri)
    ds.upsert(pa.table({"id": range(1000), "price": [0.5] * 1000}), on="id")  # in place
    read = watch_data_files(monkeypatch)
    assert lengths.run().num_checked == 0
    assert read == []


def watch_data_files(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the size of each range of a data file that is read from now on."""
    read: list[int] = []
    real = LocalStore.read_ranges

    def read_ranges(store: LocalStore, path: str, ranges: Sequence[ByteRange]) -> Any:
        if path.startswith("data/"):
            read.extend(span.stop - span.start for span in ranges)
        return real(store, path, ranges)

    monkeypatch.setattr(LocalStore, "read_ranges", read_ranges)
    return read


@pytest.mark.parametrize("file_version", ["2.0", "2.2"])
def test_blobs_are_neither_read_nor_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_version: str
) -> None:
    """Images may be a thousand times larger than the derived value, and rewriting rows would
    copy them.
    """
    metadata = {"lance-encoding:blob": "true"}
    schema = SCHEMA.append(pa.field("image", pa.large_binary(), metadata=metadata))
    uri = str(tmp_path / "t.lance")
    ds = lance_stream.create_dataset(uri, schema, file_version=file_version)
    images = pa.array([np.random.default_rng(n).bytes(200_000) for n in range(40)])
    ds = ds.append(rows(0, 40).append_column("image", images.cast(pa.large_binary())))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    read = watch_data_files(monkeypatch)
    assert lengths.run().num_in_place == 40
    ds = lance_stream.open_dataset(uri).upsert(pa.table({"id": [3], "text": ["x"]}), on="id")
    read.clear()
    result = lengths.run()
    assert (result.num_computed, result.num_in_place) == (1, 1)
    assert 0 < sum(read) < 100_000
    assert lengths_of(uri)[3] == 1


def test_new_rows_read_no_other_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are written in a file beside the existing ones, so vectors of the rows need not
    be read.
    """
    uri = str(tmp_path / "t.lance")
    wide = SCHEMA.append(pa.field("vector", pa.list_(pa.float32(), 2000)))
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.ones(2000 * 300, np.float32)), 2000)
    ds = lance_stream.create_dataset(uri, wide)
    ds.append(rows(0, 300).append_column("vector", vectors))
    read = watch_data_files(monkeypatch)
    assert derive(uri, LENGTH, Lengths(), "text", function_version="1").run().num_computed == 300
    assert 0 < sum(read) < 200_000  # the vectors are 2.4 MB


def test_new_derivations_have_all_rows_pending(tmp_path: Path) -> None:
    """A new derivation has all rows before it, and no failure."""
    uri = new_table(tmp_path, (0, 100))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    assert lengths.status() == DerivedStatus(2, None, None, False, 100, 100, 0)


def test_backfills_start_with_the_newest_rows(tmp_path: Path) -> None:
    """Fresh rows matter most to users, so a backfill works backwards and lets the stream's rows
    go first.
    """
    uri = new_table(tmp_path, (0, 100))
    derive(uri, LENGTH, Lengths(), "text", function_version="1").run()
    seen: list[str] = []

    def negative(batch: pa.RecordBatch) -> pa.Array:
        seen.extend(batch["text"].to_pylist())
        return pa.array([-len(text) for text in batch["text"].to_pylist()])

    again = derive(uri, LENGTH, negative, "text", function_version="2", rows_per_commit=40)
    first = again.run(max_commits=1)
    assert (first.num_computed, first.num_pending) == (40, 60)
    assert set(seen) == {f"text {n}" for n in range(60, 100)}
    status = again.status()
    assert (status.num_pending, status.num_current, status.function_version) == (60, 40, "2")
    assert status.is_same_function
    assert not status.is_current
    # The stream goes on: what it brings comes before the rest of the backfill.
    lance_stream.open_dataset(uri).append(rows(100, 110)).update({"text": "'new'"}, "id = 5")
    seen.clear()
    again.run(max_commits=1)
    newest = {"new", *(f"text {n}" for n in range(100, 110))}
    assert set(seen) == newest | {f"text {n}" for n in range(31, 60)}
    again.run()
    assert len(seen) == 60 + 10
    assert lengths_of(uri) == {n: -3 if n == 5 else -len(f"text {n}") for n in range(110)}
    assert again.status().is_current


def test_interrupted_backfills_resume_their_work(tmp_path: Path) -> None:
    """Days of computing must not start over because a process was restarted."""
    uri = new_table(tmp_path, (0, 100))
    function = Lengths()
    for _ in range(3):  # as many processes
        derive(uri, LENGTH, function, "text", function_version="1", rows_per_commit=30).run(1)
    assert len(function.seen) == 90
    derive(uri, LENGTH, function, "text", function_version="1", rows_per_commit=30).run()
    assert sorted(filter(None, function.seen)) == sorted(f"text {n}" for n in range(100))


def test_failing_rows_wait_for_another_function(tmp_path: Path) -> None:
    """A row that fails is quarantined and tried again only if its input or the function changes."""
    uri = new_table(tmp_path, (0, 50))
    ds = lance_stream.open_dataset(uri).update({"text": "'bad'"}, where="id IN (7, 21)")
    function = Lengths()
    lengths = derive(uri, LENGTH, function, "text", function_version="1")
    assert lengths.run().num_failed == 2
    actual = lengths_of(uri)
    assert (actual[7], actual[21], actual[8]) == (None, None, 6)
    (bad,) = lance_stream.list_quarantine(uri)
    assert (bad.num_rows, bad.state, bad.reason) == (2, "ready", "function failed")
    assert bad.message == "ValueError: 'bad' has no length"
    assert '"text": "bad"' in bad.row
    assert lengths.status().num_failed == 2
    # They are not tried again for nothing, nor replayed as if they were rows of a sink.
    ds = lance_stream.open_dataset(uri).update({"price": "0"}, where="id < 30")
    function.seen.clear()
    assert lengths.run().num_computed == 0
    replayed = lance_stream.replay_quarantine(uri)
    assert replayed.rows_replayed == 0
    assert "change its version" in next(iter(replayed.rows_remaining))
    # A new text is tried; a new function tries all.
    ds = lance_stream.open_dataset(uri).update({"text": "'good'"}, where="id = 7")
    assert lengths.run().num_computed == 1
    assert ds.verify() == []
    mended = derive(uri, LENGTH, Lengths("none"), "text", function_version="2")
    assert mended.run().num_failed == 0
    assert lengths_of(uri)[21] == 3
    assert lance_stream.list_quarantine(uri) == []
    assert mended.status().num_failed == 0


def test_too_many_failures_are_an_error(tmp_path: Path) -> None:
    """A missing model is not the fault of rows, which must not fill the quarantine."""
    uri = new_table(tmp_path, (0, 50))

    def broken(batch: pa.RecordBatch) -> pa.Array:
        raise KeyError("no such model")

    lengths = derive(uri, LENGTH, broken, "text", function_version="1", max_failures=20)
    with pytest.raises(DerivedFunctionError, match=r"more than 20 rows .*no such model"):
        lengths.run()
    assert lance_stream.list_quarantine(uri) == []
    strict = derive(uri, LENGTH, Lengths("text 3"), "text", function_version="1", on_error="raise")
    with pytest.raises(DerivedFunctionError, match=r"failed for a row. .*'text 3' has no length"):
        strict.run()
    assert strict.status().num_pending == 50
    # Nothing was computed, so no column was added: other types may be declared now.
    assert lance_stream.open_dataset(uri).schema.names == SCHEMA.names
    text = {"length": pa.string()}
    derive(uri, text, lambda b: b["text"], "text", function_version="1").run()
    assert lance_stream.open_dataset(uri).to_table()["length"].type == pa.string()


@pytest.mark.parametrize(("num_rows", "is_refused"), [(1, False), (2, True)])
def test_failures_of_all_rows_blame_functions(
    tmp_path: Path, num_rows: int, is_refused: bool
) -> None:
    """A single failing row may be bad data, but two of two indicate a wrong function."""
    uri = new_table(tmp_path, (0, num_rows))
    column = derive(uri, LENGTH, lambda _: 1 / 0, "text", function_version="1")
    if is_refused:
        with pytest.raises(DerivedFunctionError, match="for all 2 rows"):
            column.run()
    else:
        assert column.run().num_failed == 1


def test_functions_that_never_succeeded_are_blamed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a small table, all rows may fail without reaching the limit."""
    uri = new_table(tmp_path, (0, 5))

    def misspelt(batch: pa.RecordBatch) -> list[int]:
        return [len(txt) for txt in batch["txt"].to_pylist()]

    def run(function: Any, version: str = "1") -> Any:
        return derive(uri, LENGTH, function, "text", function_version=version).run()

    everything = r"for all 5 rows .* never succeeded. .* not committed. Correct .* KeyError: .*txt"
    with pytest.raises(DerivedFunctionError, match=everything):
        run(misspelt)
    assert lance_stream.list_quarantine(uri) == []
    assert run(Lengths()).num_failed == 0  # the same version, as nothing was committed for it
    with pytest.raises(DerivedFunctionError, match="for all 5 rows"):
        run(misspelt, "2")
    assert lengths_of(uri)[3] == len("text 3")
    # A function that has succeeded is right, and rows that it fails for are wrong.
    lance_stream.open_dataset(uri).update({"text": "'bad'"}, where="id IN (1, 2)")
    assert run(Lengths()).num_failed == 2
    assert "failed for 2 of 2 rows" in caplog.text
    # Without an entry it is not known that the function is the same, but it may well be.
    ds = lance_stream.open_dataset(uri).update_config({"lance_stream.derived.length": None})
    ds.update({"text": "'bad'"}, where="id IN (3, 4)")
    assert run(Lengths()).num_failed == 2
    # Also after rounds without a row.
    empty = str(tmp_path / "empty.lance")
    lance_stream.create_dataset(empty, SCHEMA)
    derive(empty, LENGTH, misspelt, "text", function_version="1").run()
    lance_stream.open_dataset(empty).append(rows(0, 5))
    with pytest.raises(DerivedFunctionError, match="for all 5 rows"):
        derive(empty, LENGTH, misspelt, "text", function_version="1").run()


@pytest.mark.parametrize(
    ("returned", "output_type"),
    [
        (lambda n: pd.DataFrame({"length": [7] * n, "other": ["x"] * n}), pa.int64()),
        (lambda n: pd.Series([7] * n), pa.int64()),
        (lambda n: [7.0] * n, pa.int64()),
        (lambda n: ([7.0, None] for _ in range(n)), pa.list_(pa.int8(), 2)),
    ],
)
def test_functions_may_return_many_containers(
    tmp_path: Path, returned: Any, output_type: pa.DataType
) -> None:
    """Users return what their library yields: frames, series, lists or iterators."""
    uri = new_table(tmp_path, (0, 3))
    lengths = derive(
        uri, {"length": output_type}, lambda b: returned(b.num_rows), "text", function_version="1"
    )
    assert lengths.run().num_failed == 0
    expected = 7 if output_type == pa.int64() else [7, None]
    assert set(map(str, lengths_of(uri).values())) == {str(expected)}


VECTOR = {"length": pa.list_(pa.float64(), 2)}


@pytest.mark.parametrize(
    ("returned", "outputs", "problem"),
    [
        (None, LENGTH, "an array or list with a value of 'length' for each row, got None"),
        ("text", LENGTH, "for each row, got a str"),
        ([1.5] * 4, LENGTH, "'length' do not fit the type int64: 1.5 would become 1"),
        ([[0.25, 0.5]] * 4, {"length": pa.list_(pa.int8(), 2)}, "0.25 would become 0"),
        ([[1]], {"length": pa.int64(), "more": pa.int64()}, "DataFrame with the columns length, m"),
        ([1], LENGTH, "expected 4 values of 'length' of the type int64, got 1 in a list"),
        (pa.array([1] * 5), LENGTH, "expected 4 values .*, got 5 in a Int64Array"),
        ({1, 2, 3, 4}, LENGTH, "got a set, which has no order"),
        (frozenset([1, 2, 3, 4]), LENGTH, "got a frozenset, which has no order"),
        (np.zeros((2, 4)), VECTOR, r"got a numpy array of the shape \(2, 4\)"),
        (np.zeros((4, 3)), VECTOR, r"got a numpy array of the shape \(4, 3\)"),
        (np.zeros((4, 1)), LENGTH, r"got a numpy array of the shape \(4, 1\)"),
        (np.zeros((4, 2, 1)), VECTOR, "do not fit the type fixed_size_list"),
        (np.array(7.0), LENGTH, "'length'"),
        ([[1.0, 2.0, 3.0]] * 4, VECTOR, "do not fit the type fixed_size_list"),
        (pa.array(["x"] * 4), LENGTH, "length"),
        ({"other": [1] * 4}, LENGTH, "the column 'length' is missing"),
        ({"length": {7}}, LENGTH, "got a set"),
    ],
)
@pytest.mark.parametrize("is_beside", [False, True])
def test_invalid_results_fail_at_once(
    tmp_path: Path, returned: Any, outputs: Any, problem: str, is_beside: bool
) -> None:
    """The wrong type or number of values is a mistake in the function, which no retry by row can
    correct.
    """
    uri = new_table(tmp_path, (0, 4))
    calls: list[int] = []

    def function(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        return returned

    target = str(tmp_path / "beside.lance") if is_beside else None
    wrong = derive(uri, outputs, function, "text", function_version="1", target=target)
    with pytest.raises(DerivedFunctionError, match=f"{problem}.*not committed") as caught:
        wrong.run()
    assert "lance_stream" not in str(caught.value)
    assert calls == [4]
    assert lance_stream.list_quarantine(target or uri) == []
    assert lance_stream.open_dataset(uri).schema.names == SCHEMA.names


def test_transposed_arrays_are_refused(tmp_path: Path) -> None:
    """When the batch is halved to find failing rows, a transposed array may fit by chance."""
    uri = new_table(tmp_path, (0, 64))

    def transposed(batch: pa.RecordBatch) -> Any:
        prices = batch["price"].to_numpy()
        return np.stack([prices, prices + 0.5])

    with pytest.raises(DerivedFunctionError, match=r"expected 64 values .* shape \(2, 64\)"):
        derive(uri, VECTOR, transposed, "price", function_version="1").run()
    assert lance_stream.open_dataset(uri).schema.names == SCHEMA.names


@pytest.mark.parametrize("is_right", [True, False])
def test_square_results_are_not_transposed(tmp_path: Path, is_right: bool) -> None:
    """A batch with as many rows as a list has values is computed in two parts, which reveals a
    transposed array.
    """
    uri = new_table(tmp_path, (0, 6))
    sizes: list[int] = []

    def doubled(batch: pa.RecordBatch) -> Any:
        sizes.append(batch.num_rows)
        prices = batch["price"].to_numpy()
        values = np.stack([prices, prices + 0.5])
        return values.T if is_right else values

    derived = derive(uri, VECTOR, doubled, "price", function_version="1", batch_rows=2)
    if not is_right:
        with pytest.raises(DerivedFunctionError, match=r"expected 1 value .* shape \(2, 1\)"):
            derived.run()
        assert lance_stream.open_dataset(uri).schema.names == SCHEMA.names
        return
    derived.run()
    assert sizes == [1] * 6
    rows = lance_stream.open_dataset(uri).to_table().to_pylist()
    assert [row["length"] for row in rows] == [[row["price"], row["price"] + 0.5] for row in rows]


def test_setups_run_once_and_may_fail(tmp_path: Path) -> None:
    """Loading a model takes minutes, and its failure concerns no row; `sys.exit` must not end
    the process.
    """
    uri = new_table(tmp_path, (0, 50))
    loaded: list[int] = []

    def load() -> dict[str, int]:
        loaded.append(1)
        return {"factor": 10}

    def scaled(batch: pa.RecordBatch, model: dict[str, int]) -> Any:
        return np.array([len(text) for text in batch["text"].to_pylist()]) * model["factor"]

    derive(
        uri,
        LENGTH,
        scaled,
        "text",
        function_version="a",
        setup=load,
        batch_rows=10,
        rows_per_commit=20,
    ).run()
    assert loaded == [1]
    assert lengths_of(uri)[3] == 60

    def cannot() -> None:
        raise OSError("no disk")

    with pytest.raises(DerivedFunctionError, match=r"setup .* failed: OSError: no disk"):
        derive(uri, LENGTH, scaled, "text", function_version="b", setup=cannot).run()
    with pytest.raises(DerivedFunctionError, match=r"setup .* failed: it called sys\.exit\('x'\)"):
        derive(uri, LENGTH, scaled, "text", function_version="b", setup=lambda: sys.exit("x")).run()
    with pytest.raises(DerivedFunctionError, match=r"function .* called sys\.exit\(0\)"):
        derive(uri, LENGTH, lambda _: sys.exit(0), "text", function_version="b").run()


def test_branches_derive_their_columns_independently(tmp_path: Path) -> None:
    """A branch inherits what was computed, and from then on both sides have their own progress."""
    uri = new_table(tmp_path, (0, 50))
    main = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    assert main.run().num_computed == 50
    lance_stream.open_dataset(uri).branches.create("dev")
    dev = derive(f"{uri}/tree/dev", LENGTH, Lengths(), "text", function_version="1")
    assert dev.run().num_computed == 0  # what the branch starts from is current
    lance_stream.open_dataset(uri, branch="dev").update({"text": "'four'"}, where="id = 3")
    assert dev.run().num_computed == 1
    assert lengths_of(f"{uri}/tree/dev")[3] == 4
    assert main.run().num_checked == 0
    assert lengths_of(uri)[3] != 4


def test_derivations_take_several_columns(tmp_path: Path) -> None:
    """Results of one call belong together, in any order of names."""
    uri = new_table(tmp_path, (0, 20))
    outputs = pa.schema([("both", pa.string()), ("vector", pa.list_(pa.float32(), 3))])

    def function(batch: pa.RecordBatch) -> dict[str, Any]:
        pairs = zip(batch["text"].to_pylist(), batch["price"].to_pylist(), strict=True)
        return {
            "vector": np.tile(batch["price"].to_numpy()[:, None], (1, 3)),
            "both": [f"{text} {price}" for text, price in pairs],
        }

    both = derive(uri, outputs, function, ["text", "price"], function_version="1", name="pair")
    both.run()
    lance_stream.open_dataset(uri).update({"price": "99"}, where="id = 4")
    assert both.run().num_computed == 1
    ds = lance_stream.open_dataset(uri)
    actual = ds.to_table(filter="id = 4").to_pylist()[0]
    assert (actual["both"], actual["vector"]) == ("text 4 99.0", [99.0, 99.0, 99.0])
    assert ds.schema.names[-1] == "pair_state"


def test_the_feed_shows_only_computed_rows(tmp_path: Path) -> None:
    """Consumers of the derived column must not receive the whole table after each run."""
    uri = new_table(tmp_path, (0, 300))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    lengths.run()
    ds = lance_stream.open_dataset(uri).update({"text": "'four'"}, where="id = 12")
    result = lengths.run()
    feed = lance_stream.open_dataset(uri).changes(ds.version, columns=["id", "length"])
    actual = feed.read_all().to_pylist()
    assert [(row["_change_type"], row["id"], row["length"]) for row in actual] == [
        ("update_preimage", 12, 7),
        ("update_postimage", 12, 4),
    ]
    assert result.num_commits == 1


def test_dropped_columns_are_computed_again(tmp_path: Path) -> None:
    """Users drop the column to start over, with or without its state."""
    uri = new_table(tmp_path, (0, 30))
    function = Lengths()
    lengths = derive(uri, LENGTH, function, "text", function_version="1")
    lengths.run()
    for dropped in (["length"], ["length", "length_state"]):
        lance_stream.open_dataset(uri).drop_columns(dropped)
        function.seen.clear()
        assert lengths.run().num_computed == 30
        assert lengths_of(uri)[4] == 6


def test_removed_states_are_computed_again(tmp_path: Path) -> None:
    """Users set the state to null to have a row computed again."""
    uri = new_table(tmp_path, (0, 30))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    lengths.run()
    lance_stream.open_dataset(uri).update({"length_state": "NULL", "length": "-1"}, "id = 3")
    assert lengths.run().num_computed == 1
    assert lengths_of(uri)[3] == 6


@pytest.mark.oracle
def test_foreign_restores_do_not_stop_derivations(tmp_path: Path) -> None:
    """Lance's restore brings back an old ledger, and the versions in between have been cleaned
    up.
    """
    uri = new_table(tmp_path, (0, 30))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    lengths.run()
    for number in range(3):
        lance_stream.open_dataset(uri).update({"text": f"'{number}'"}, where=f"id = {number}")
    lengths.run()
    ds = lance_stream.open_dataset(uri)
    ds.tags.create("kept", 4)
    ds.update({"text": "'x'"}, where="id = 5").cleanup(retain_versions=1)
    lance.dataset(uri, version="kept").restore()
    lance_stream.open_dataset(uri).cleanup(retain_versions=1)
    lance_stream.open_dataset(uri).update({"text": "'xyz'"}, where="id = 7")
    lengths.run()
    assert lengths.status().is_current
    rows = lance_stream.open_dataset(uri).to_table().to_pylist()
    assert [row["length"] for row in rows] == [len(row["text"]) for row in rows]


def test_cleaned_up_versions_are_not_needed(tmp_path: Path) -> None:
    """Finding changed rows by their states works without the version of the last run."""
    uri = new_table(tmp_path, (0, 30))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    lengths.run()
    ds = lance_stream.open_dataset(uri).update({"text": "'x'"}, where="id = 3")
    ds.update({"price": "0"}, where="id = 9").cleanup(retain_versions=1)
    assert lengths.run().num_computed == 1
    assert lengths_of(uri)[3] == 1


def test_progress_follows_versions_without_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round compares the versions since the last commit, and a cleanup removes them."""
    monkeypatch.setattr(derivation, "_MAX_VERSIONS_BEHIND", 3)
    uri = new_table(tmp_path, (0, 5))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    lengths.run()
    for number in (1, 2):
        ds = lance_stream.open_dataset(uri).update_config({"number": str(number)})
        assert lengths.run().version is None
    assert lengths.status().through == ds.version - 2
    ds = ds.update_config({"number": "3"})
    assert lengths.run().version == ds.version + 1
    assert lengths.status().through == ds.version + 1
    assert lengths.run().version is None


def test_deleted_rows_end_a_backfill(tmp_path: Path) -> None:
    """Otherwise each round would look for its rows again."""
    uri = new_table(tmp_path, (0, 5))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", rows_per_commit=3)
    assert lengths.run(max_commits=1).num_pending == 2
    lance_stream.open_dataset(uri).delete("id < 2")
    assert lengths.run().version is not None
    config = lance_stream.open_dataset(uri).table.manifest.config
    stored = read_progress(config, "length")
    assert stored is not None
    assert stored.pending == ()
    assert lengths.run().version is None


def test_concurrent_runs_do_not_disturb(tmp_path: Path) -> None:
    """A scheduler may start a run twice, which must neither fail nor compute rows twice."""
    uri = new_table(tmp_path, (0, 60))
    other = derive(uri, LENGTH, Lengths(), "text", function_version="1", rows_per_commit=20)
    is_first = True

    def disturbed(batch: pa.RecordBatch) -> list[int]:
        nonlocal is_first
        if is_first:
            is_first = False
            other.run(max_commits=1)
        return [len(text) for text in batch["text"].to_pylist()]

    result = derive(uri, LENGTH, disturbed, "text", function_version="1", rows_per_commit=20).run()
    assert result.num_computed == 40  # what the other had committed is not computed again
    assert lengths_of(uri) == {n: len(f"text {n}") for n in range(60)}
    config = lance_stream.open_dataset(uri).config
    retained = read_progress(config, "length")
    assert retained is not None
    assert retained.pending == ()


def test_separate_targets_follow_the_source(tmp_path: Path) -> None:
    """With a target the source stays unwritten, and deletes, updates and moved rows are followed
    by row id.
    """
    uri = new_table(tmp_path, (0, 50))
    beside = str(tmp_path / "lengths.lance")
    function = Lengths()
    lengths = derive(
        uri, LENGTH, function, "text", function_version="1", target=beside, copy_columns=["id"]
    )
    version = lance_stream.open_dataset(uri).version
    lengths.run()
    assert lance_stream.open_dataset(uri).version == version  # the source is not written
    ds = lance_stream.open_dataset(uri).delete("id IN (3, 4)").update({"text": "'x'"}, "id = 9")
    ds = ds.update({"price": "0"}, where="id < 20")
    function.seen.clear()
    result = lengths.run()
    assert (function.seen, result.num_deleted) == (["x"], 2)
    expected = {n: 1 if n == 9 else len(f"text {n}") for n in range(50) if n not in (3, 4)}
    assert lengths_of(beside) == expected
    ds.compact().delete("id = 5")
    assert (lengths.run().num_deleted, function.seen) == (1, ["x"])
    assert lance_stream.open_dataset(beside).verify() == []
    assert lengths.status().is_current


def test_copied_keys_are_ordinary_columns(tmp_path: Path) -> None:
    """The sink declares the key of an upsert as the primary key, also in a struct; the target has
    a key of its own.
    """
    key = pa.field("n", pa.int64(), False, {"lance-schema:unenforced-primary-key": "true"})
    schema = SCHEMA.append(pa.field("part", pa.struct([key]), nullable=False))
    uri, beside = str(tmp_path / "t.lance"), str(tmp_path / "lengths.lance")
    parts = pa.array([{"n": 0}, {"n": 1}], schema.field("part").type)
    ds = lance_stream.create_dataset(uri, schema, primary_key="id")
    ds.append(rows(0, 2).append_column(schema.field("part"), parts))
    copied = ["id", "part"]
    derive(
        uri, LENGTH, Lengths(), "text", function_version="1", target=beside, copy_columns=copied
    ).run()
    assert lengths_of(beside) == {0: 6, 1: 6}
    assert lance_stream.open_dataset(beside).verify() == []


def test_status_needs_no_target_table(tmp_path: Path) -> None:
    """Before the first run all rows are pending, and the table with the values does not exist."""
    beside = str(tmp_path / "lengths.lance")
    uri = new_table(tmp_path, (0, 50))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", target=beside)
    status = lengths.status()
    assert (status.num_rows, status.num_pending, status.is_current) == (50, 50, False)
    assert not (tmp_path / "lengths.lance").exists()


def test_recreated_sources_are_computed_again(tmp_path: Path) -> None:
    """A new table reuses row ids, so results of the old one must not be kept."""
    import shutil

    uri = new_table(tmp_path, (0, 50))
    beside = str(tmp_path / "lengths.lance")
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", target=beside)
    lengths.run()
    shutil.rmtree(uri)
    new_table(tmp_path, (100, 120))
    lengths.run()
    actual = lance_stream.open_dataset(beside).to_table()
    assert sorted(actual["length"].to_pylist()) == [8] * 20
    assert actual.num_rows == 20


def test_queries_follow_until_they_stop(tmp_path: Path) -> None:
    """A started derivation must see new rows, and must not be woken by its own commits."""
    uri = new_table(tmp_path, (0, 50))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", rows_per_commit=20)
    query = lengths.start(interval_seconds=0.02)
    assert query.wait_until_idle(60)
    lance_stream.open_dataset(uri).append(rows(50, 60))
    is_done = threading.Event()
    for _ in range(600):
        if lengths_of(uri).get(55) is not None:
            break
        is_done.wait(0.05)
    assert lengths_of(uri)[55] == 7
    assert query.wait_until_idle(60)
    version = lance_stream.open_dataset(uri).version
    assert query.wait_until_idle(60)
    assert lance_stream.open_dataset(uri).version == version  # its own commits are no news
    query.stop()
    assert not query.is_active
    assert query.exception is None


def test_failed_queries_give_their_reason(tmp_path: Path) -> None:
    """The error happens in a thread, and must reach the caller who waits for the query."""
    uri = new_table(tmp_path, (0, 5))
    query = derive(
        uri, LENGTH, Lengths("text 3"), "text", function_version="1", on_error="raise"
    ).start()
    with pytest.raises(DerivedFunctionError, match="text 3"):
        query.await_termination(60)
    assert not query.is_active


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"inputs": []}, "at least one input"),
        ({"inputs": ["length"]}, "'length' occurs more than once"),
        ({"outputs": {}}, "outputs must be a mapping from names to Arrow types"),
        ({"outputs": None}, "outputs must be a mapping from names to Arrow types"),
        (
            {"outputs": {"length": pa.string_view()}},
            "tables cannot store views: declare it as string",
        ),
        ({"copy_columns": ["source_row_id"]}, "already has a column 'source_row_id'"),
        ({"outputs": {"length": float}}, "outputs must be a mapping from names to Arrow types"),
        ({"storage_options": "region"}, "storage_options must be a mapping"),
        ({"copy_columns": 7, "target": "x"}, "copy_columns must be a list"),
        ({"max_failures": 0}, "max_failures is at least 1 row"),
        ({"function": 7}, "must take a pyarrow.RecordBatch"),
        ({"function_version": 1}, "function_version must be a string"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"rows_per_commit": 0}, "a commit has"),
        ({"setup": 3}, "setup must be a function"),
        ({"copy_columns": ["id"]}, "set target"),
        ({"name": ""}, "the name must be a string"),
    ],
)
def test_invalid_arguments_of_derive_are_refused(
    tmp_path: Path, arguments: dict[str, Any], problem: str
) -> None:
    """Mistakes must surface before the first call of an expensive function."""
    all_arguments: dict[str, Any] = {
        "outputs": LENGTH,
        "function": Lengths(),
        "inputs": ["text"],
        "function_version": "1",
        **arguments,
    }
    with pytest.raises(InvalidInputError, match=problem):
        derive(str(tmp_path), **all_arguments)


def test_failing_generators_fail_one_row(tmp_path: Path) -> None:
    """A generator raises outside of the function's call, while its values are read."""
    uri = new_table(tmp_path, (0, 20))

    def generated(batch: pa.RecordBatch) -> Iterator[int]:
        for text in batch["text"].to_pylist():
            if text == "text 7":
                raise ValueError("seven")
            yield len(text)

    def mapped(batch: pa.RecordBatch) -> dict[str, Iterator[int]]:
        return {"length": generated(batch)}

    for version, function in ("1", generated), ("2", mapped):
        lengths = derive(uri, LENGTH, function, "text", function_version=version)
        assert (lengths.run().num_failed, lengths_of(uri)[8]) == (1, 6)


def test_sessions_belong_to_sparks_derive() -> None:
    """Two functions have the same name, and the message shows the call of the right one."""
    session = type("SparkSession", (), {"__module__": "pyspark.sql.session"})()
    with pytest.raises(InvalidInputError, match=r"lance_stream\.spark\.derive\(spark, uri"):
        derive(session, "t.lance", LENGTH, Lengths(), inputs="text", function_version="1")  # type: ignore[misc]  # the mistake


def test_invalid_limits_of_rounds_are_refused(tmp_path: Path) -> None:
    """Zero commits would do nothing, and a NaN interval would never wait."""
    lengths = derive(new_table(tmp_path, (0, 5)), LENGTH, Lengths(), "text", function_version="1")
    for number in (0, "x"):
        with pytest.raises(InvalidInputError, match="max_commits must be an integer of at least 1"):
            lengths.run(max_commits=number)  # type: ignore[arg-type]  # that is the case
    for wrong in ("1", -1, float("nan"), True):
        with pytest.raises(InvalidInputError, match="interval_seconds must be a number"):
            lengths.start(wrong)  # type: ignore[arg-type]  # that is the case


def test_one_copied_column_needs_no_list(tmp_path: Path) -> None:
    """A string is also a sequence of letters, which must not be treated as columns."""
    uri, beside = new_table(tmp_path, (0, 5)), str(tmp_path / "beside.lance")
    derive(
        uri, LENGTH, Lengths(), "text", function_version="1", target=beside, copy_columns="price"
    ).run()
    assert "price" in lance_stream.open_dataset(beside).schema.names


def test_unsuitable_tables_are_refused(tmp_path: Path) -> None:
    """Missing inputs, other types and missing row ids must be named before anything is written."""
    uri = new_table(tmp_path, (0, 5))
    with pytest.raises(NotFoundError, match="no column 'texts'"):
        derive(uri, LENGTH, Lengths(), "texts", function_version="1").run()
    with pytest.raises(InvalidInputError, match="price"):
        derive(uri, {"price": pa.string()}, Lengths(), "text", function_version="1").run()
    with pytest.raises(InvalidInputError, match=r"no column 'source_row_id'"):
        derive(uri, LENGTH, Lengths(), "text", function_version="1", target=uri).run()
    plain = str(tmp_path / "plain.lance")
    lance_stream.create_dataset(plain, SCHEMA, stable_row_ids=False).append(rows(0, 5))
    with pytest.raises(InvalidInputError, match="no stable row ids"):
        derive(plain, LENGTH, Lengths(), "text", function_version="1").run()


def test_damaged_progress_names_the_remedy(tmp_path: Path) -> None:
    """The entry is stored in the table's configuration, where anybody can edit it; other
    derivations must go on.
    """
    uri = new_table(tmp_path, (0, 5))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    lengths.run()
    key = "lance_stream.derived.length"
    for damaged in ("[" * 3000, "[]", "{", '{"function": 1}'):
        lance_stream.open_dataset(uri).update_config({key: damaged})
        with pytest.raises(CorruptDataError, match=r"is damaged: .*Remove it"):
            lengths.run()
        # It does not disturb other derivations.
        derive(uri, {"n": pa.int64()}, Lengths(), "text", function_version="1").run()
    lance_stream.open_dataset(uri).update_config({key: None})
    assert lengths.run().num_computed == 0


def test_new_functions_start_with_everything_pending(tmp_path: Path) -> None:
    """No row has a value of the new function yet, whatever the old one has computed."""
    uri = new_table(tmp_path, (0, 10))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1")
    before = lengths.status()
    assert (before.through, before.function_version, before.num_pending) == (None, None, 10)
    assert not before.is_current
    lengths.run()
    result = lengths.status()
    assert (result.function_version, result.is_same_function, result.num_pending) == ("1", True, 0)
    assert result.is_current
    changed = derive(uri, LENGTH, Lengths(), "text", function_version="2")
    status = changed.status()
    assert (status.function_version, status.is_same_function) == ("1", False)
    assert (status.num_pending, status.num_current, status.is_current) == (10, 0, False)
    lance_stream.open_dataset(uri).delete("id < 10")
    empty = changed.status()
    assert (empty.num_pending, empty.is_current) == (0, False)
    changed.run()
    assert changed.status().is_current


def test_results_of_rounds_add_up() -> None:
    """Counts are sums; the versions and pending rows are those of the later commit."""
    names = [field.name for field in fields(DerivedCommit)]
    first = DerivedCommit(**{name: 1 << shift for shift, name in enumerate(names)})
    later = DerivedCommit(**{name: 1000 << shift for shift, name in enumerate(names)})
    total = first + later
    latest = {"version", "source_version", "num_pending"}
    for shift, name in enumerate(names):
        expected = 1000 << shift if name in latest else 1001 << shift
        assert getattr(total, name) == expected, name
    assert (first + replace(later, version=None)).version == first.version


def test_stopped_queries_have_ended(tmp_path: Path) -> None:
    """A query without an interval looks for the next version at once, until it is stopped."""
    uri = new_table(tmp_path, (0, 5))
    query = derive(uri, LENGTH, Lengths(), "text", function_version="1").start(0)
    assert query.wait_until_idle(60)
    assert not query.await_termination(0.01)
    query.stop()
    assert query.await_termination(60)


@pytest.mark.parametrize("more", [0, 1])
def test_large_failed_rows_are_named_only(
    tmp_path: Path, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarantine with the inputs of many failed rows would be as large as the table."""
    uri = new_table(tmp_path, (0, 3))
    row = pa.record_batch({"text": ["text 1"], "_rowid": pa.array([1], pa.uint64())})
    monkeypatch.setattr(computing, "_MAX_ROW_BYTES", row.take(pa.array([0])).nbytes - more)
    derive(uri, LENGTH, Lengths("text 1"), "text", function_version="1").run()
    (bad,) = lance_stream.list_quarantine(uri)
    assert ("text 1" in bad.row) == (not more)
    assert '"_rowid": 1' in bad.row


def test_derivations_may_share_a_quarantine(tmp_path: Path) -> None:
    """Another one than the one next to the table gets its failed rows, and loses those of
    earlier functions.
    """
    uri, location = new_table(tmp_path, (0, 3)), str(tmp_path / "bad rows")
    derive(uri, LENGTH, Lengths("text 1"), "text", function_version="1", quarantine=location).run()
    assert lance_stream.list_quarantine(uri) == []
    assert lance_stream.open_dataset(location).count_rows() == 1
    derive(uri, LENGTH, Lengths("none"), "text", function_version="2", quarantine=location).run()
    assert lance_stream.open_dataset(location).count_rows() == 0


@pytest.mark.parametrize("kind", ["alone", "beside a writer", "separate table"])
def test_queries_follow_every_foreign_version(tmp_path: Path, kind: str) -> None:
    """A query skips the version that it has just committed, and no version of others, whatever
    number its own commit has in a separate table.
    """
    uri, target = new_table(tmp_path, (0, 5)), str(tmp_path / "beside.lance")
    function = Lengths()

    def beside(batch: pa.RecordBatch) -> list[int | None]:
        if kind == "beside a writer" and "x" in batch["text"].to_pylist():
            lance_stream.open_dataset(uri).update({"text": "'xy'"}, where="id = 2")
        return function(batch)

    table: dict[str, Any] = {}
    if kind == "separate table":
        table = {"target": target, "copy_columns": ["id"]}
    lengths = derive(uri, LENGTH, beside, "text", function_version="1", **table)
    lengths.run()
    ds = lance_stream.open_dataset(uri).update({"text": "'x'"}, where="id = 1")
    values = lance_stream.open_dataset(target if table else uri)
    while values.version < ds.version:  # so that its next version has the source's next number
        values = values.update_config({"n": str(values.version)})
    report, version = lengths._follow(ds.version - 1)
    assert report is not None
    assert report.source_version == ds.version
    assert report.version == ds.version + (2 if kind == "beside a writer" else 1)
    assert version == ds.version + (kind == "alone")
    progress = read_progress(lance_stream.open_dataset(values.uri).config, "length")
    assert progress is not None
    assert progress.through == version
    if table:
        assert lengths._follow(version) == (None, version)
        lance_stream.open_dataset(uri).update({"text": "'xy'"}, where="id = 2")
    if kind != "alone":
        report, version = lengths._follow(version)
        assert report is not None
        assert report.num_computed == 1
    assert lengths._follow(version) == (None, version)
    expected = {0: 6, 1: 1, 2: 6 if kind == "alone" else 2, 3: 6, 4: 6}
    assert lengths_of(values.uri) == expected


def test_queries_continue_with_pending_rows(tmp_path: Path) -> None:
    """The rest of a table must not wait for the next version of the source."""
    uri = new_table(tmp_path, (0, 5))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", rows_per_commit=3)
    first, version = lengths._follow(None)
    assert first is not None
    assert (first.num_computed, first.num_pending, version) == (3, 2, -1)
    second, version = lengths._follow(version)
    assert second is not None
    assert (second.num_computed, second.num_pending, version) == (2, 0, second.version)
    assert lengths._follow(version) == (None, version)


def test_one_round_runs_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run beside a query of the same process would compute the same rows twice."""
    uses = unlocked_uses(monkeypatch, Derivation, {"_run_round"})
    uri = new_table(tmp_path, (0, 5))
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", rows_per_commit=3)
    assert lengths._follow(None)[1] == -1
    assert lengths.run().num_pending == 0
    assert uses == set()


@pytest.mark.parametrize("event", ["restore", "drop", "swap"])
def test_events_while_computing_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """A restore brings back rows that were not computed yet, and their versions are old; values
    may belong to columns that have gone, or have changed their names.
    """
    monkeypatch.setattr(  # the restored rows are in a fragment that was replaced
        same_table,
        "fragments_that_stay",
        lambda _table, addresses, *_, **__: np.zeros(len(addresses), bool),
    )
    uri = str(tmp_path / "t.lance")
    ds = lance_stream.create_dataset(uri, pa.table({"a": [1, 2, 3], "b": [10, 20, 30]}))
    events: list[Callable[[], object]] = []

    def quotients(batch: pa.RecordBatch) -> list[str]:
        while events:
            events.pop()()
        return [f"{row['a']}/{row['b']}" for row in batch.to_pylist()]

    derived = derive(uri, {"text": pa.string()}, quotients, ["a", "b"], function_version="1")
    derived.run()
    pending = lance_stream.open_dataset(uri).update({"a": "7"}, where="b = 10")
    derived.run()
    ds = lance_stream.open_dataset(uri).update({"a": "8"}, where="b = 20")
    events.append(
        {
            "restore": lambda: ds.restore(pending.version),
            "drop": lambda: ds.drop_columns(["text", "text_state"]),
            "swap": lambda: ds.rename_columns({"a": "b", "b": "a"}),
        }[event]
    )
    derived.run()
    assert not events
    assert derived.status().is_current
    for row in lance_stream.open_dataset(uri).to_table().to_pylist():
        assert row["text"] == f"{row['a']}/{row['b']}"


class BusyTable(Local):
    """A runner beside which something else happens, once the rows are computed or written."""

    def __init__(self, event: Callable[[], object], step: str, num_events: int = 1) -> None:
        self.event, self.step, self.num_events = event, step, num_events

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        results = super().__call__(function, items)
        if (function is write_columns) == (self.step == "write") and self.num_events:
            self.num_events -= 1
            self.event()
        return results


@pytest.mark.parametrize(("num_conflicts", "is_refused"), [(2, False), (3, True)])
def test_conflicts_write_the_values_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_conflicts: int, is_refused: bool
) -> None:
    """Values are expensive, and a busy table must neither lose them nor keep a run busy forever."""
    monkeypatch.setattr(derivation, "_MAX_ATTEMPTS", 3)
    monkeypatch.setattr(derivation, "_RETRIES", RetryPolicy(3, 0, 0))
    uri, function = new_table(tmp_path, (0, 5)), Lengths()
    ids = iter(range(5))

    def change() -> None:
        lance_stream.open_dataset(uri).update({"text": "'x'"}, where=f"id = {next(ids)}")

    declaration = derive(uri, LENGTH, function, "text", function_version="1").declaration
    lengths = Derivation(uri, declaration, runner=BusyTable(change, "write", num_conflicts))
    if is_refused:
        with pytest.raises(CommitConflictError):
            lengths.run()
    else:
        result = lengths.run(max_commits=1)
        assert (result.num_computed, result.num_written) == (5, 3)
    assert len(function.seen) == 5
    lengths.run()
    assert lengths_of(uri) == {n: 1 if n < num_conflicts else 6 for n in range(5)}
    assert lance_stream.open_dataset(uri).verify() == []


@pytest.mark.parametrize("is_beside", [False, True])
def test_rounds_of_others_are_not_counted(tmp_path: Path, is_beside: bool) -> None:
    """Another process commits the same round after the last look at the table, so that only the
    ledger knows of it.
    """
    uri, target = new_table(tmp_path, (0, 5)), str(tmp_path / "beside.lance") if is_beside else None
    other = derive(uri, LENGTH, Lengths(), "text", function_version="1", target=target)
    other.run()
    # Beside the table no row is computed, so that there are no values to write, either.
    column = "price" if is_beside else "text"
    lance_stream.open_dataset(uri).update({column: "NULL"}, where="id = 3")
    runner = BusyTable(other.run, "compute" if is_beside else "write")
    result = Derivation(uri, other.declaration, target, runner=runner).run()
    assert not runner.num_events
    assert (result.version, result.num_commits, result.num_checked) == (None, 0, 0)


def test_rounds_without_changes_commit_progress(tmp_path: Path) -> None:
    """A row that is gone from both tables would be missed in the target again and again."""
    uri, target = new_table(tmp_path, (0, 5)), str(tmp_path / "beside.lance")
    lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", target=target)
    lengths.run()
    lance_stream.open_dataset(uri).delete("id = 3")
    ds = lance_stream.open_dataset(target).delete("source_row_id = 3")
    result = lengths.run()
    assert (result.version, result.num_commits, result.num_deleted) == (ds.version + 1, 1, 0)
    assert lengths.run().version is None


def test_status_needs_no_state_column(tmp_path: Path) -> None:
    """The columns may be dropped, and the progress remains until the next run."""
    uri = new_table(tmp_path, (0, 5))
    lengths = derive(uri, LENGTH, Lengths("text 1"), "text", function_version="1")
    lengths.run()
    assert (lengths.status().num_pending, lengths.status().num_failed) == (0, 1)
    lance_stream.open_dataset(uri).drop_columns(["length", "length_state"])
    assert (lengths.status().num_pending, lengths.status().num_failed) == (5, 0)


def test_failures_of_any_part_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The parts of other workers may have no failure."""
    uri = new_table(tmp_path, (0, 9))
    lengths = derive(uri, LENGTH, Lengths("text 8"), "text", function_version="1", batch_rows=1)
    assert lengths.run().num_failed == 1
    assert "1 of 9 rows, which are quarantined; first error: ValueError: 'text 8'" in caplog.text


def test_vectors_of_one_are_arrays(tmp_path: Path) -> None:
    """The array of one row is as wide as it is long, and cannot be divided."""
    uri = new_table(tmp_path, (0, 3))
    declaration = derive(
        outputs={"length": pa.list_(pa.float64(), 1)},
        function=lambda batch: batch["price"].to_numpy()[:, None],
        inputs="price",
        function_version="1",
        batch_rows=1,
        uri=uri,
    )
    assert declaration.run().num_computed == 3
    stored = lance_stream.open_dataset(uri).to_table(["price", "length"]).to_pylist()
    assert [row["length"] == [row["price"]] for row in stored] == [True] * 3


def test_representations_name_tables_and_columns(tmp_path: Path) -> None:
    """Logs of a program with several derivations show which one ended."""
    uri = str(tmp_path)
    for target, where in ((None, ""), ("beside", " in 'beside'")):
        lengths = derive(uri, LENGTH, Lengths(), "text", function_version="1", target=target)
        start = f"<Derivation 'length'{where} of text in {uri!r}"
        assert repr(lengths) == f"{start}, function version '1'>"
