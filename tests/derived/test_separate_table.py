"""Values in a separate table follow the rows of their source, whatever happens to its versions."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, derive
from lance_stream.derived.derivation import Derivation
from tests.derived.test_derivation import LENGTH, Lengths, lengths_of, new_table, rows


def lengths_in(uri: str, target: Path, function: Lengths | None = None) -> Derivation:
    return derive(
        uri,
        LENGTH,
        Lengths() if function is None else function,
        "text",
        function_version="1",
        target=str(target),
        copy_columns=["id"],
    )


def expected_of(uri: str) -> dict[int, int]:
    columns = lance_stream.open_dataset(uri).to_table(["id", "text"]).to_pydict()
    return {key: len(text) for key, text in zip(columns["id"], columns["text"], strict=True)}


@pytest.mark.parametrize(
    ("change", "num_computed", "num_deleted"),
    [
        (lambda ds: ds.delete("id < 5"), 0, 5),  # a whole fragment
        (lambda ds: ds.delete("id IN (1, 7)"), 0, 2),
        (lambda ds: ds.delete("id = 1").delete("id < 5"), 0, 5),
        (lambda ds: ds.compact(), 0, 0),
        (lambda ds: ds.delete("id = 7").compact(), 0, 1),
        (lambda ds: ds.delete("id < 5").append(rows(20, 23)), 3, 5),
        (lambda ds: ds.append(rows(20, 21)).delete("id >= 5"), 0, 5),
        (lambda ds: ds.delete("true"), 0, 10),
        (lambda ds: ds.delete("id = 1").restore(ds.version), 0, 0),
    ],
)
def test_deleted_rows_leave_the_target(
    tmp_path: Path, change: Callable[[Dataset], Dataset], num_computed: int, num_deleted: int
) -> None:
    """Only manifests show which rows are gone: fragments are removed, replaced, or have deleted
    rows.
    """
    uri, target = new_table(tmp_path, (0, 5), (5, 10)), tmp_path / "target"
    lengths = lengths_in(uri, target)
    assert lengths.run().num_computed == 10
    change(lance_stream.open_dataset(uri))
    result = lengths.run()
    assert (result.num_computed, result.num_deleted) == (num_computed, num_deleted)
    assert lengths_of(str(target)) == expected_of(uri)
    assert lengths.status().is_current


def test_empty_sources_have_empty_targets(tmp_path: Path) -> None:
    """The first run records the progress, though there is nothing to write."""
    uri, target = new_table(tmp_path), tmp_path / "target"
    lengths = lengths_in(uri, target)
    assert lengths.run().num_computed == 0
    assert lengths_of(str(target)) == {}
    assert lengths.status().is_current
    lance_stream.open_dataset(uri).append(rows(0, 3))
    assert lengths.run().num_computed == 3


@pytest.mark.parametrize("is_cleaned_up", [False, True])
def test_restored_rows_are_computed_again(tmp_path: Path, is_cleaned_up: bool) -> None:
    """They have old row versions, and the version of the values may no longer exist."""
    uri, target = new_table(tmp_path, (0, 5), (5, 10)), tmp_path / "target"
    function = Lengths()
    lengths = lengths_in(uri, target, function)
    before = lance_stream.open_dataset(uri)
    ds = before.update({"text": "'x'"}, where="id = 2").delete("id = 7")
    lengths.run()
    function.seen.clear()
    ds = ds.restore(before.version).delete("id = 8")
    if is_cleaned_up:
        ds.cleanup(retain_versions=1, older_than="0 seconds")
    assert not lengths.status().is_current
    result = lengths.run()
    assert (sorted(map(str, function.seen)), result.num_deleted) == (["text 2", "text 7"], 1)
    assert lengths_of(str(target)) == expected_of(uri)


@pytest.mark.parametrize(
    ("kind", "is_refused"),
    [("moved", False), ("copied", False), ("other", True), ("older", True), ("forgotten", True)],
)
def test_targets_keep_to_one_source(tmp_path: Path, kind: str, is_refused: bool) -> None:
    """Rows of the other source would be deleted, but a table may be moved or copied."""
    (tmp_path / "one").mkdir()
    uri, target = new_table(tmp_path / "one", (0, 3), (3, 6)), tmp_path / "target"
    lengths_in(uri, target).run()
    (tmp_path / "two").mkdir()
    if kind in ("other", "older"):
        other = new_table(tmp_path / "two", *([(0, 3), (3, 6)] if kind == "other" else []))
    else:
        other = str(shutil.copytree(uri, tmp_path / "two" / "t.lance"))
    if kind == "moved":
        shutil.rmtree(uri)
    if kind == "forgotten":
        ds = lance_stream.open_dataset(other).append(rows(6, 7))
        ds.cleanup(retain_versions=1, older_than="0 seconds")
    lengths = lengths_in(other, target)
    if is_refused:
        with pytest.raises(InvalidInputError, match="has the derived column 'length' of"):
            lengths.run()
    else:
        assert lengths.run().num_computed == 0
    assert lengths_of(str(target)) == dict.fromkeys(range(6), 6)


def test_second_processes_compute_nothing_twice(tmp_path: Path) -> None:
    """A round that another process has committed starts over, and finds nothing to do."""
    uri, target = new_table(tmp_path, (0, 5)), tmp_path / "target"

    class Disturbed(Lengths):
        def __call__(self, batch: object) -> list[int | None]:
            if not self.seen:
                lengths_in(uri, target).run()
            return super().__call__(batch)  # type: ignore[arg-type]  # a batch

    result = lengths_in(uri, target, Disturbed()).run()
    assert (result.num_computed, result.num_commits) == (0, 0)
    assert lengths_of(str(target)) == expected_of(uri)
    assert lance_stream.open_dataset(str(target)).verify() == []


def test_replaced_sources_are_pending(tmp_path: Path) -> None:
    """A new table at the location has other rows under the same row ids."""
    uri, target = new_table(tmp_path, (0, 5)), tmp_path / "target"
    lengths = lengths_in(uri, target)
    lengths.run()
    assert lengths.status().num_pending == 0
    shutil.rmtree(uri)
    new_table(tmp_path, (100, 105))
    assert lengths.status().num_pending == 5
