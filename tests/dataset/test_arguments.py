"""Arguments of the wrong kind: each is refused by an error of ours, and leaves no file."""

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.dataset import Dataset
from lance_stream.errors import InvalidInputError, NotFoundError

ROWS = pa.table({"id": [1, 2, 3], "x": [1.0, 2.0, 3.0]})
NO_NAMES = [0, 1.5, True, b"id", [None], [1], {"id": "x + 1"}, object(), [["id"]]]
NO_TEXTS = [0, 1.5, True, b"id", ["id"], {"id": 1}, {"id"}, object(), "", " "]
NO_MAPPINGS = [None, 0, True, "id", b"id", ["id"], [("id", "1")], {1: "id"}, {None: "1"}, object()]
MARK = "lance_stream.manifest_store"
NO_FLAGS = [None, 0, 1, "false", "True", b"1", [], ["x"], object()]
NO_LOCATIONS = [None, 0, b"t", ["t"], "", "\0", "\udcff"]
NO_NUMBERS = [None, 0, -1, 1.5, 1.0, float("nan"), True, "1", b"1", [1], {"a": 1}, object()]

REFUSED: dict[str, tuple[Callable[[Dataset, Any], Any], list[Any]]] = {
    "scan": (lambda ds, value: ds.scan(value), [*NO_NAMES, "id"]),
    "scan of a filter": (lambda ds, value: ds.scan(filter=value), NO_TEXTS),
    "scan of a batch size": (lambda ds, value: ds.scan(batch_size=value), NO_NUMBERS[1:]),
    "count_rows": (lambda ds, value: ds.count_rows(value), NO_TEXTS),
    "digest": (lambda ds, value: ds.digest(value), NO_NAMES),
    "take": (lambda ds, value: ds.take([0], columns=value), NO_NAMES),
    "changes": (lambda ds, value: ds.changes(0, columns=value), [*NO_NAMES, "id"]),
    "delete": (lambda ds, value: ds.delete(value), [None, *NO_TEXTS]),
    "take_blobs": (lambda ds, value: ds.take_blobs(value, [0]), [None, *NO_NAMES, "x"]),
    "upsert on": (lambda ds, value: ds.upsert(ROWS, on=value), [None, *NO_NAMES, ["id", "id"]]),
    "upsert except": (lambda ds, value: ds.upsert(ROWS, "id", except_columns=value), NO_NAMES),
    "upsert delete": (lambda ds, value: ds.upsert(ROWS, "id", delete_when=value), NO_TEXTS),
    "update": (lambda ds, value: ds.update(value), NO_MAPPINGS),
    "update of a value": (lambda ds, value: ds.update({"x": value}), [None, *NO_TEXTS]),
    "update where": (lambda ds, value: ds.update({"x": "1"}, where=value), NO_TEXTS),
    "add_columns": (lambda ds, value: ds.add_columns(value), NO_MAPPINGS),
    "add_columns of a value": (lambda ds, value: ds.add_columns({"n": value}), [None, *NO_TEXTS]),
    "drop_columns": (lambda ds, value: ds.drop_columns(value), NO_NAMES),
    "rename_columns": (lambda ds, value: ds.rename_columns(value), NO_MAPPINGS),
    "restore": (
        lambda ds, value: ds.restore(value),
        [number for number in NO_NUMBERS if number != "1"],
    ),
    "compact": (lambda ds, value: ds.compact(value), NO_NUMBERS),
    "update_config": (
        lambda ds, value: ds.update_config(value),
        [*NO_MAPPINGS, {MARK: "sqlite x"}, {MARK: None}],
    ),
    "tag": (lambda ds, value: ds.tags.create(value, 1), [None, *NO_TEXTS]),
    "tag of a version": (lambda ds, value: ds.tags.create("a", value), NO_NUMBERS[1:-5]),
    "tag that moves": (lambda ds, value: ds.tags.update(value, 1), [None, *NO_TEXTS]),
    "tag that goes": (lambda ds, value: ds.tags.delete(value), [None, *NO_TEXTS]),
    "versions": (lambda ds, value: ds.versions(count_rows=value), NO_FLAGS),
    "verify": (lambda ds, value: ds.verify(deep=value), NO_FLAGS),
    "scan of row ids": (lambda ds, value: ds.scan(with_row_id=value), NO_FLAGS),
    "scan of addresses": (lambda ds, value: ds.scan(with_row_address=value), NO_FLAGS),
    "scan of versions": (lambda ds, value: ds.scan(with_row_versions=value), NO_FLAGS),
    "changes of a flag": (lambda ds, value: ds.changes(0, pre_images=value), NO_FLAGS),
    "follow": (lambda ds, value: ds.follow(wait=value), NO_FLAGS),
    "upsert skip": (lambda ds, value: ds.upsert(ROWS, "id", skip_unchanged=value), NO_FLAGS),
    "update_metadata": (lambda ds, value: ds.update_metadata({}, replace=value), NO_FLAGS),
    "clone": (lambda ds, value: ds.shallow_clone(f"{ds.uri}-2", tag_source=value), NO_FLAGS),
    "optimize_indices": (lambda ds, value: ds.optimize_indices(retrain=value), NO_FLAGS),
    "cleanup": (lambda ds, value: ds.cleanup("0s", dry_run=value), NO_FLAGS),
    "cleanup of all": (lambda ds, value: ds.cleanup(delete_unverified=value), NO_FLAGS),
    "replay": (
        lambda ds, value: lance_stream.replay_quarantine(ds.uri, replace_existing=value),
        NO_FLAGS,
    ),
    "quarantine": (
        lambda ds, value: lance_stream.list_quarantine(ds.uri, quarantine=value),
        NO_LOCATIONS[1:],
    ),
    "quarantine of a table": (lambda _, value: lance_stream.list_quarantine(value), NO_LOCATIONS),
    "quarantine with options": (
        lambda ds, value: lance_stream.list_quarantine(ds.uri, storage_options=value),
        NO_MAPPINGS[1:],
    ),
    "history_schema": (lambda ds, value: lance_stream.history_schema(ds.schema, value), NO_TEXTS),
    "open_together": (
        lambda _, value: lance_stream.open_together(value),
        [None, 0, "t", b"t", [0]],
    ),
    "options": (lambda ds, value: lance_stream.open_dataset(ds.uri, None, value), NO_MAPPINGS[1:]),
    "location": (lambda _, value: lance_stream.open_dataset(value), NO_LOCATIONS),
}


@pytest.mark.parametrize("verb", REFUSED)
def test_invalid_arguments_leave_no_files(verb: str, tmp_path: Path) -> None:
    """Each verb must refuse a wrong type by our error before it writes anything."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS.schema).append(ROWS)
    before = {path for path in tmp_path.rglob("*") if path.is_file()}
    call, values = REFUSED[verb]
    for value in values:
        with pytest.raises(InvalidInputError):
            call(ds, value)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *product(["file_version", "primary_key", "config"], [0, 1.5, True, b"a", [None], [1], ...]),
        ("config", {MARK: "sqlite x"}),
        *product(["stable_row_ids"], NO_FLAGS[:-1]),
    ],
    ids=repr,
)
def test_invalid_arguments_create_no_table(argument: str, value: Any, tmp_path: Path) -> None:
    """A folder that was half created would block the corrected call."""
    with pytest.raises(InvalidInputError):
        lance_stream.create_dataset(tmp_path / "t", ROWS.schema, **{argument: value})
    assert not (tmp_path / "t").exists()


def test_columns_may_come_from_an_iterator(tmp_path: Path) -> None:
    """Checking an iterator would use it up, so it must be turned into a list first."""
    ds = lance_stream.create_dataset(tmp_path / "t", ROWS.schema).append(ROWS)
    assert ds.to_table(iter(["x"])) == ROWS.select(["x"])
    assert ds.changes(0, columns=iter(["x"])).read_all().column(0) == ROWS["x"]
    assert ds.upsert(ROWS, on=iter(["id"])).count_rows() == 3


def test_unknown_storage_options_are_refused(tmp_path: Path) -> None:
    """A misspelt option that is ignored shows up only as a refused request or a lost file."""
    with pytest.raises(InvalidInputError, match="unknown storage option 'nope'"):
        lance_stream.open_dataset(tmp_path / "t", storage_options={"nope": "1"})
    with pytest.raises(InvalidInputError, match="did you mean 'durable'"):
        lance_stream.open_dataset(tmp_path / "t", storage_options={"durabel": "1"})
    with pytest.raises(NotFoundError):
        lance_stream.open_dataset(tmp_path / "t", storage_options={"durable": "true"})
