"""The feed of each operation, committed by us and by pylance: all changes, and nothing else."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, UnsupportedFeatureError

pytestmark = pytest.mark.oracle

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())])
Event = tuple[str, int, Any]


def rows(**columns: list[Any]) -> pa.Table:
    return pa.table(columns, schema=pa.schema([SCHEMA.field(name) for name in columns]))


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Version 2 inserts ids 0 to 3 with x = 0, version 3 inserts 4 and 5 in another fragment."""
    where = str(tmp_path / "table")
    dataset = lance_stream.create_dataset(where, SCHEMA)
    dataset.append(rows(id=[0, 1, 2, 3], x=[0] * 4)).append(rows(id=[4, 5], x=[0] * 2))
    return where


def events(uri: str, after: int = 3, through: int | None = None, **options: Any) -> list[Event]:
    """Return each change as its type, the row, and the value of x; both values for an update."""
    read = lance_stream.open_dataset(uri).changes(after, through, **options).read_all()
    kinds = [change_type.removesuffix("image") for change_type in read["_change_type"].to_pylist()]
    return list(zip(kinds, read["id"].to_pylist(), read["x"].to_pylist(), strict=True))


def updates(ids: list[int], before: Any, after: Any) -> list[Event]:
    return [
        (kind, id_, x)
        for kind, x in (("update_pre", before), ("update_post", after))
        for id_ in ids
    ]


def ours(uri: str) -> Dataset:
    return lance_stream.open_dataset(uri)


def pylance_upserts(uri: str, data: pa.Table) -> None:
    merge = lance.dataset(uri).merge_insert("id").when_matched_update_all()
    merge.when_not_matched_insert_all().execute(data)


def replace_column(uri: str, fragment_id: int, values: list[int]) -> None:
    """Replace the file of column x of a fragment, and stamp all rows as updated."""
    ds = lance.dataset(uri)
    path = Path(uri) / "data" / "replaced.lance"
    with lance.file.LanceFileWriter(str(path), version=ds.data_storage_version) as writer:
        writer.write_batch(pa.table({"x": pa.array(values)}))
    file = lance.fragment.DataFile("replaced.lance", [1], [0], 2, 2)
    group = lance.LanceOperation.DataReplacementGroup(fragment_id, file)
    operation = lance.LanceOperation.DataReplacement([group])
    lance.LanceDataset.commit(uri, operation, read_version=ds.version)


def rewrite_column(uri: str, data: pa.Table, *, stamped: bool) -> None:
    """Update some rows of fragment 0 in place, in a new file of the column."""
    ds = lance.dataset(uri)
    fragment = ds.get_fragments()[0]
    update = fragment.update_columns(data, left_on="id", right_on="id", with_offsets=stamped)
    operation = lance.LanceOperation.Update(
        updated_fragments=[update[0]],
        fields_modified=update[1],
        update_mode="rewrite_columns",
        updated_fragment_offsets={fragment.fragment_id: update[2]} if stamped else None,
    )
    lance.LanceDataset.commit(uri, operation, read_version=ds.version)


Verb = Callable[[str], object]
APPEND: dict[str, Verb] = {
    "we": lambda uri: ours(uri).append(rows(id=[9], x=[1])),
    "pylance": lambda uri: lance.write_dataset(rows(id=[9], x=[1]), uri, mode="append"),
}
UPDATE: dict[str, Verb] = {
    "we": lambda uri: ours(uri).update({"x": "7"}, where="id IN (1, 4)"),
    "pylance": lambda uri: lance.dataset(uri).update({"x": "7"}, where="id IN (1, 4)"),
}
UPSERT: dict[str, Verb] = {
    "we": lambda uri: ours(uri).upsert(rows(id=[9, 1], x=[7, 7]), on="id"),
    "pylance": lambda uri: pylance_upserts(uri, rows(id=[9, 1], x=[7, 7])),
}
DELETE: dict[str, Verb] = {
    "we": lambda uri: ours(uri).delete("id IN (1, 4, 5)"),
    "pylance": lambda uri: lance.dataset(uri).delete("id IN (1, 4, 5)"),
}
OVERWRITE: dict[str, Verb] = {
    "we": lambda uri: ours(uri).overwrite(rows(id=[0, 9], x=[1, 1])),
    "pylance": lambda uri: lance.write_dataset(rows(id=[0, 9], x=[1, 1]), uri, mode="overwrite"),
}
NOTHING: dict[str, Verb] = {
    "we compact": lambda uri: ours(uri).compact(),
    "pylance compacts": lambda uri: lance.dataset(uri).optimize.compact_files(),
    "we configure": lambda uri: ours(uri).update_config({"a": "b"}),
    "pylance configures": lambda uri: lance.dataset(uri).update_config({"a": "b"}),
    "pylance indexes": lambda uri: lance.dataset(uri).create_scalar_index("id", "BTREE"),
    "we add nulls": lambda uri: ours(uri).add_columns(pa.field("y", pa.string())),
    "pylance adds nulls": lambda uri: lance.dataset(uri).add_columns(pa.field("y", pa.string())),
    "we rename": lambda uri: (
        ours(uri).add_columns(pa.field("y", pa.int8())).rename_columns({"y": "z"})
    ),
    "we drop": lambda uri: ours(uri).add_columns(pa.field("y", pa.int8())).drop_columns(["y"]),
    "pylance updates no row": lambda uri: lance.dataset(uri).update({"x": "1"}, where="id > 99"),
    "pylance deletes no row": lambda uri: lance.dataset(uri).delete("id > 99"),
    "we restore what is there": lambda uri: ours(uri).restore(3),
}
ALL_OLD: list[Event] = [("delete", number, 0) for number in range(6)]

WRITERS = pytest.mark.parametrize("writer", ["we", "pylance"])


@WRITERS
def test_appends_show_only_inserts(uri: str, writer: str) -> None:
    """The simplest operation fixes the form of an event, for both writers."""
    APPEND[writer](uri)
    assert events(uri) == [("insert", 9, 1)]


@WRITERS
def test_updates_span_several_fragments(uri: str, writer: str) -> None:
    """Updated rows move to a new fragment and must not appear as deletes and inserts."""
    UPDATE[writer](uri)
    assert events(uri) == updates([1, 4], 0, 7)


@WRITERS
def test_upserts_show_updates_before_inserts(uri: str, writer: str) -> None:
    """The order of events in a version is part of the contract."""
    UPSERT[writer](uri)
    assert events(uri) == [*updates([1], 0, 7), ("insert", 9, 7)]


def test_deletes_precede_updates_and_inserts(uri: str) -> None:
    """A consumer that applies changes in order must not delete what the version inserted."""
    data = rows(id=[9, 1, 4], x=[7, 7, 7]).append_column("op", pa.array(["i", "u", "d"]))
    ours(uri).upsert(data, on="id", delete_when="op = 'd'", except_columns=["op"])
    assert events(uri) == [("delete", 4, 0), *updates([1], 0, 7), ("insert", 9, 7)]


@WRITERS
def test_deletes_include_whole_fragments(uri: str, writer: str) -> None:
    """A removed fragment leaves no deletion file to compare."""
    DELETE[writer](uri)
    assert len(ours(uri).table.manifest.fragments) == 1
    assert events(uri) == [("delete", number, 0) for number in (1, 4, 5)]


@WRITERS
def test_reinserted_keys_are_other_rows(uri: str, writer: str) -> None:
    """Identity is the row id, not the key."""
    DELETE[writer](uri)
    ours(uri).append(rows(id=[4], x=[1]))
    read = ours(uri).changes(3).read_all()
    again = read.filter(pa.compute.field("id") == 4)
    assert again["_change_type"].to_pylist() == ["delete", "insert"]
    assert len(set(again["_rowid"].to_pylist())) == 2
    net = events(uri, deduplication_mode="netChanges")
    assert net == [("delete", 1, 0), ("delete", 4, 0), ("delete", 5, 0), ("insert", 4, 1)]


@WRITERS
def test_overwrites_delete_before_they_insert(uri: str, writer: str) -> None:
    """A consumer that applies changes in order must not delete the new rows."""
    OVERWRITE[writer](uri)
    assert events(uri) == [*ALL_OLD, ("insert", 0, 1), ("insert", 9, 1)]


@WRITERS
def test_restores_delete_update_and_insert(uri: str, writer: str) -> None:
    """A restore changes rows in all three ways, and undoes the net change of what it reverts."""
    ds = ours(uri).update({"x": "7"}, where="id = 1").delete("id = 5")
    ds.append(rows(id=[9], x=[1]))
    if writer == "we":
        ours(uri).restore(3)
    else:
        lance.dataset(uri, version=3).restore()
    assert events(uri, 6) == [("delete", 9, 1), *updates([1], 7, 0), ("insert", 5, 0)]
    assert events(uri, 3, deduplication_mode="netChanges") == []


@pytest.mark.parametrize("what", NOTHING)
def test_operations_without_row_changes_are_silent(uri: str, what: str) -> None:
    """Compaction, configuration and metadata must not wake consumers."""
    NOTHING[what](uri)
    assert ours(uri).version > 3
    assert events(uri) == []
    assert events(uri, deduplication_mode="netChanges") == []


def test_replaced_columns_update_whole_fragments(uri: str) -> None:
    """Pylance replaces a column's file without saying which values differ."""
    replace_column(uri, 1, [7, 7])
    assert events(uri) == updates([4, 5], 0, 7)


def test_rows_rewritten_in_place_are_updates(uri: str) -> None:
    """Row versions show which rows of a rewritten column have changed."""
    rewrite_column(uri, rows(id=[1, 3], x=[7, 7]), stamped=True)
    assert events(uri) == updates([1, 3], 0, 7)


def test_unstamped_rewrites_update_whole_fragments(uri: str) -> None:
    """Without row versions, any row of the fragment may have changed; extra updates are safe."""
    rewrite_column(uri, rows(id=[1], x=[7]), stamped=False)
    assert events(uri) == [
        *(("update_pre", number, 0) for number in range(4)),
        *(("update_post", number, 7 if number == 1 else 0) for number in range(4)),
    ]


def test_compacted_unstamped_rewrites_are_net_changes(uri: str) -> None:
    """A compaction hides the rewritten file, and the change must still be seen between both
    ends.
    """
    rewrite_column(uri, rows(id=[1], x=[7]), stamped=False)
    ours(uri).compact()
    net = events(uri, deduplication_mode="netChanges", pre_images=False)
    assert net == [("update_post", number, 7 if number == 1 else 0) for number in range(4)]


def test_restores_revert_compacted_unstamped_rewrites(
    uri: str,
) -> None:
    """The restored rows differ from the newest ones, although their row versions do not."""
    rewrite_column(uri, rows(id=[1], x=[7]), stamped=False)
    ours(uri).compact().restore(3)
    last = ours(uri).version
    assert [event for event in events(uri, last - 1) if event[1] == 1] == updates([1], 7, 0)


def test_untouched_rows_are_not_net_changes(uri: str) -> None:
    """Rows that share a fragment with a rewritten row have not changed."""
    rewrite_column(uri, rows(id=[1], x=[7]), stamped=True)
    ours(uri).update({"x": "8"}, where="id = 1")
    assert events(uri, deduplication_mode="netChanges") == updates([1], 0, 8)


def add_values(uri: str, writer: str) -> None:
    if writer == "we":
        ours(uri).add_columns({"y": "id + 1"})
    else:
        lance.dataset(uri).add_columns({"y": "id + 1"})


@WRITERS
def test_filled_columns_update_every_row(uri: str, writer: str) -> None:
    """A computed column changes every row; its pre-images have null."""
    add_values(uri, writer)
    read = ours(uri).changes(3).read_all()
    assert read["_change_type"].to_pylist() == ["update_preimage"] * 6 + ["update_postimage"] * 6
    assert read["y"].to_pylist() == [None] * 6 + [number + 1 for number in range(6)]


@WRITERS
def test_column_backfills_can_be_omitted(uri: str, writer: str) -> None:
    """Consumers that do not read the new column must not receive the whole table again."""
    add_values(uri, writer)
    ours(uri).update({"x": "7"}, where="id = 1").compact()
    for mode in ("none", "netChanges"):
        options = {"column_backfills": False, "deduplication_mode": mode}
        assert events(uri, **options) == updates([1], 0, 7)
        assert events(uri, 3, 4, **options) == []


def test_casts_are_not_backfills(uri: str) -> None:
    """A cast updates every row, also for consumers that leave backfills out."""
    for data_type in (pa.int32(), pa.int64()):
        lance.dataset(uri).alter_columns({"path": "x", "data_type": data_type})
    assert events(uri, 4, column_backfills=False) == updates([*range(6)], 0, 0)


@pytest.mark.floors
@pytest.mark.parametrize("moved", [False, True])
def test_restoring_a_dropped_column_updates_rows(uri: str, moved: bool) -> None:
    """Its values return, with or without a compaction between, unless backfills are left out."""
    lance.dataset(uri).drop_columns(["x"])
    if moved:
        ours(uri).compact()
    last = ours(uri).restore(3).version
    assert events(uri, last - 1) == updates([*range(6)], None, 0)
    assert events(uri, last - 1, column_backfills=False) == []


def test_updates_can_be_deletes_and_inserts(uri: str) -> None:
    """Some consumers cannot apply updates, and `compute_updates=False` splits them."""
    UPSERT["we"](uri)
    assert events(uri, compute_updates=False) == [
        ("delete", 1, 0),
        ("insert", 1, 7),
        ("insert", 9, 7),
    ]


def test_net_changes_show_rows_once(uri: str) -> None:
    """Several updates of a row become one; a row that was inserted and deleted does not appear."""
    ds = ours(uri).update({"x": "7"}, where="id < 2").update({"x": "8"}, where="id < 3")
    ds.delete("id = 0").append(rows(id=[9, 10], x=[1, 1])).delete("id = 9").compact()
    net = events(uri, deduplication_mode="netChanges")
    assert sorted(net) == [("delete", 0, 0), ("insert", 10, 1), *sorted(updates([1, 2], 0, 8))]


def test_migration_to_row_ids_changes_nothing(tmp_path: Path) -> None:
    """The migration changes metadata only, and versions before it have no feed."""
    plain = str(tmp_path / "plain")
    lance.write_dataset(rows(id=[0, 1, 2], x=[0] * 3), plain, max_rows_per_file=2)
    lance.dataset(plain).delete("id = 1")
    first = lance_stream.migrate_to_stable_row_ids(plain).version
    ours(plain).update({"x": "7"}, where="id = 2")
    assert events(plain, first - 1) == events(plain, first) == updates([2], 0, 7)
    with pytest.raises(UnsupportedFeatureError, match=r"version 1 has no .* migrate"):
        events(plain, 0)
