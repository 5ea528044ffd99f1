import uuid
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.incoming import check_names
from lance_stream.upsert.rules import END_AT, SEQUENCE, START_AT, HistoryRules, UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from lance_stream.write.row_checks import Check
from tests.sampling import ALL_CASES

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("seq", pa.int64()),
        pa.field("x", pa.float64()),
        pa.field("tags", pa.list_(pa.string())),
    ]
)
CDC = UpsertRules(("id",), sequence_by="seq", delete_when="op = 'd'", except_columns=("op",))

changes = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 9),
            "seq": st.integers(0, 20),
            "x": st.sampled_from([None, 0.0, 1.5, float("nan")]),
            "tags": st.sampled_from([None, [], ["a"], ["a", None]]),
            "op": st.sampled_from(["u", "u", "d", None]),
        }
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda row: (row["id"], row["seq"]),
)
WITH_OP = SCHEMA.append(pa.field("op", pa.string()))


def new_table() -> TableVersion:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA).table


def content(table: TableVersion) -> list[dict[str, Any]]:
    rows = lance_stream.Dataset(table).to_table().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


@settings(max_examples=40 if ALL_CASES else 20, deadline=None)
@given(st.lists(changes, min_size=1, max_size=4), st.booleans())
def test_cdc_batches_match_a_dictionary(
    batches: list[list[dict[str, Any]]], skip_unchanged: bool
) -> None:
    """Random changes in any batches must leave the rows and counts of the
    simplest possible model.
    """
    table = new_table()
    model: dict[int, dict[str, Any]] = {}
    rules = UpsertRules(**{**CDC.__dict__, "skip_unchanged": skip_unchanged})
    for rows in batches:
        newest = {}
        for row in sorted(rows, key=lambda row: row["seq"]):
            newest[row["id"]] = row
        late = len(rows) - len(newest)
        inserted = deleted = 0
        for key, row in newest.items():
            stored = {name: row[name] for name in SCHEMA.names}
            if key in model and row["seq"] < model[key]["seq"]:
                late += 1
            elif row["op"] == "d":
                deleted += model.pop(key, None) is not None
            else:
                inserted += key not in model
                model[key] = stored
        result = upsert(table, pa.Table.from_pylist(rows, WITH_OP), rules)
        assert (result.num_inserted, result.num_deleted, result.num_late) == (
            inserted,
            deleted,
            late,
        )
        table = result.table
        assert repr(content(table)) == repr([model[key] for key in sorted(model)])
    assert verify(table) == []


def small() -> TableVersion:
    rows = {"id": [1, 2, 3], "seq": [5, 5, None], "x": [1.0, float("nan"), None]}
    return append(new_table(), pa.table({**rows, "tags": [["a"], None, []]})).table


def test_unchanged_rows_can_be_skipped() -> None:
    """A batch without a real change must not add a version; nulls and NaN compare as values."""
    table = small()
    same = pa.Table.from_pylist(content(table), SCHEMA)
    rules = UpsertRules(("id",), skip_unchanged=True)
    result = upsert(table, same, rules)
    assert (result.num_updated, result.table.version) == (0, table.version)
    changed = same.set_column(2, "x", pa.array([1.0, 2.0, None]))
    result = upsert(table, changed, rules)
    assert (result.num_updated, result.table.version) == (1, table.version + 1)


def test_missing_columns_keep_their_values() -> None:
    """Existing rows keep the values of columns that the batch lacks, and new rows get nulls."""
    result = upsert(small(), pa.table({"id": [9, 2], "x": [9.0, 8.0]}), UpsertRules(("id",)))
    assert repr(content(result.table)) == repr(
        [
            {"id": 1, "seq": 5, "x": 1.0, "tags": ["a"]},
            {"id": 2, "seq": 5, "x": 8.0, "tags": None},
            {"id": 3, "seq": None, "x": None, "tags": []},
            {"id": 9, "seq": None, "x": 9.0, "tags": None},
        ]
    )


def test_unknown_columns_list_the_existing_ones() -> None:
    """The list lets the user see a misspelt name at a glance."""
    schema = pa.schema([("id", pa.int64()), ("price", pa.float64()), ("name", pa.string())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    message = "no column 'prize'; it has: id, price, name"
    with pytest.raises(InvalidInputError, match=message):
        ds.upsert(pa.table({"id": [1], "prize": [2.0]}), on="id")


def test_stored_null_sequences_are_the_oldest() -> None:
    """Rows from before the column existed have no sequence, and any change must be able to update
    them.
    """
    rows = pa.table({"id": [3], "seq": [-7], "x": [1.0]})
    result = upsert(small(), rows, UpsertRules(("id",), sequence_by="seq"))
    assert (result.num_updated, result.num_late) == (1, 0)


def test_deletes_need_only_the_key() -> None:
    """Change events of deletes often carry only the key, and a repeated one must change nothing."""
    rows = pa.table({"id": [1, 7], "op": ["d", "d"]})
    rules = UpsertRules(("id",), delete_when="op = 'd'", except_columns=("op",))
    result = upsert(small(), rows, rules)
    assert (result.num_deleted, [row["id"] for row in content(result.table)]) == (1, [2, 3])
    again = upsert(result.table, rows, rules)
    assert again.table.version == result.table.version


def test_all_rows_of_a_key_change() -> None:
    """Nothing enforces unique keys in a table, and updating one of two rows would leave them
    contradictory.
    """
    table = append(small(), pa.table({"id": [1], "x": [0.0]})).table
    result = upsert(table, pa.table({"id": [1], "x": [4.0]}), UpsertRules(("id",)))
    assert [row["x"] for row in content(result.table)][:2] == [4.0, 4.0]
    assert result.num_updated == 2


@pytest.mark.parametrize(
    ("rows", "rules", "match"),
    [
        ({"id": [1, 1]}, UpsertRules(("id",)), "1 keys occur more than once"),
        ({"id": [1, None]}, UpsertRules(("id",)), "1 of 2 rows have no key"),
        ({"id": [1]}, UpsertRules(()), "at least one key column"),
        ({"id": [1]}, UpsertRules(("key",)), "'key', is not in the table"),
        ({"x": [1.0]}, UpsertRules(("id",)), "'id', is not in the data"),
        ({"x": [1.0]}, UpsertRules(("x",)), "'x' cannot be a key"),
        ({"id": [1]}, UpsertRules(("id",), sequence_by="at"), "'at', is not in the data"),
        ({"id": [1]}, UpsertRules(("id",), except_columns=("op",)), "'op', is not in the data"),
        ({"id": [1]}, UpsertRules(("id",), except_columns=("id",)), "cannot be left out"),
        ({"id": [1], "op": ["d"]}, UpsertRules(("id",)), "no column 'op'"),
        ({"id": [1], "x": ["one"]}, UpsertRules(("id",)), "'x' is string"),
        ({"id": [1]}, UpsertRules(("id",), delete_when="op = 'd'"), "op"),
        (
            {"id": [1], "seq": [1]},
            UpsertRules(("id",), sequence_by="seq", tombstones=timedelta(days=1)),
            "delete_when",
        ),
        (
            {"id": [1], "seq": [1]},
            UpsertRules(("id",), delete_when="seq = 1", tombstones=timedelta(days=1)),
            "sequence_by",
        ),
    ],
)
def test_invalid_rows_change_nothing(rows: dict[str, Any], rules: UpsertRules, match: str) -> None:
    """A batch is applied as a whole or not at all, and the error names the column."""
    table = small()
    with pytest.raises((InvalidInputError, lance_stream.NotFoundError), match=match):
        upsert(table, pa.table(rows), rules)
    assert open_newest(table) == table.version


@pytest.mark.parametrize(
    ("batch", "table", "rules", "match"),
    [
        (["id", "x", "x"], ["id", "x"], {}, "the column 'x' occurs more than once"),
        (["id"], ["id", "x", "x"], {}, "'x'"),
        (["id", "at"], ["id", "at", SEQUENCE], {"sequence_by": "at"}, "does not set"),
        (["id", SEQUENCE], ["id", SEQUENCE], {"sequence_by": SEQUENCE}, ""),
        (["id"], ["id", SEQUENCE], {}, ""),
        (["id", "at"], ["id", "at"], {"sequence_by": "at"}, ""),
        (["id"], ["id", START_AT, END_AT], {}, "would change all rows of a key"),
        (["id"], ["id", START_AT, END_AT], {"history": HistoryRules()}, ""),
        (["id", START_AT], ["id", START_AT, END_AT], {}, ""),
        (["id"], ["id", START_AT], {}, ""),
        (["id"], ["id", END_AT], {}, ""),
    ],
)
def test_names_have_to_fit_the_table(
    batch: list[str], table: list[str], rules: dict[str, Any], match: str
) -> None:
    """An upsert by names that mean something else in the table would change the wrong rows."""
    data, stored = (
        pa.schema([pa.field(name, pa.int64()) for name in names]) for names in (batch, table)
    )
    if not match:
        check_names(data, stored, UpsertRules(("id",), **rules))
        return
    with pytest.raises(InvalidInputError, match=match):
        check_names(data, stored, UpsertRules(("id",), **rules))


def test_checks_hold_for_all_rows() -> None:
    """One bad row refuses the batch, deletes need not meet a check, and columns may be missing."""
    table = small()
    rules = UpsertRules(("id",), delete_when="x = 99")
    checks = [Check("limit", "x < 5")]
    good = pa.table({"id": [1, 2, 7], "x": [2.0, 99.0, 4.5]})
    bad = pa.table({"id": [1, 7, 8], "x": [2.0, 5.0, 6.0]})
    with pytest.raises(InvalidInputError, match=r"2 of 3 rows.*limit"):
        upsert(table, bad, rules, checks=checks)
    assert open_newest(table) == table.version
    stored = content(upsert(table, good, rules, checks=checks).table)
    assert {row["id"]: row["x"] for row in stored}[7] == 4.5
    assert 2 not in {row["id"] for row in stored}
    assert upsert(table, bad, rules).num_inserted == 1


def open_newest(table: TableVersion) -> int:
    return table.log.latest()


def test_concurrent_row_updates_are_serialized() -> None:
    """The later upsert is re-planned and updates the row that the earlier one wrote."""
    table = small()
    stale = table
    upsert(table, pa.table({"id": [1], "x": [2.0]}), UpsertRules(("id",)))
    result = upsert(stale, pa.table({"id": [1, 2], "x": [3.0, 3.0]}), UpsertRules(("id",)))
    assert [row["x"] for row in content(result.table)][:2] == [3.0, 3.0]
    assert result.table.version == table.version + 2


def test_dataset_verbs_upsert_update_and_restore() -> None:
    """The change feed over several verbs must list each change once and in order."""
    ds = lance_stream.Dataset(small())
    changed = ds.upsert(pa.table({"id": [3, 4], "x": [3.5, 4.5]}), on=["id"])
    assert changed.update({"x": "x + 1"}, where="id > 2").version == ds.version + 2
    assert changed.compact().version == ds.version + 3
    final = changed.restore(ds.version)
    assert final.version == ds.version + 4
    assert repr(content(final.table)) == repr(content(ds.table))
    feed = final.changes(ds.version, pre_images=False).read_all().to_pydict()
    assert feed["_change_type"] == [
        "update_postimage", "insert", "update_postimage", "update_postimage",
        "delete", "update_postimage",
    ]  # fmt: skip
    assert feed["_commit_version"] == [3, 3, 4, 4, 6, 6]
    with pytest.raises(lance_stream.NotFoundError, match="99"):
        final.restore(99)


def test_single_names_need_no_list() -> None:
    """`on` and `except_columns` accept one name as a string."""
    rows = pa.table({"id": [1, 7], "x": [9.0, 8.0], "op": ["u", "u"]})
    ds = lance_stream.Dataset(small()).upsert(rows, on="id", except_columns="op")
    assert {row["id"]: row["x"] for row in content(ds.table)}[7] == 8.0
    assert ds.to_table(filter="id = 1")["x"].to_pylist() == [9.0]


@pytest.mark.parametrize("tombstones", [None, "7 days"])
def test_equal_sequences_let_the_later_win(
    tombstones: str | None,
) -> None:
    """Of two batches the later one wins, unless a delete is remembered."""

    def batch(x: float, op: str = "u") -> pa.Table:
        row = {"id": 1, "seq": 5, "x": x, "tags": None, "op": op}
        return pa.Table.from_pylist([row], WITH_OP)

    def put(ds: lance_stream.Dataset, data: pa.Table) -> lance_stream.Dataset:
        return ds.upsert(
            data,
            on="id",
            sequence_by="seq",
            delete_when="op = 'd'",
            except_columns="op",
            tombstones=tombstones,
        )

    ds = put(put(lance_stream.Dataset(new_table()), batch(1.0)), batch(2.0))
    assert ds.to_table()["x"].to_pylist() == [2.0]
    ds = put(ds, batch(3.0, op="d"))
    assert ds.to_table()["x"].to_pylist() == []
    ds = put(ds, batch(4.0))
    assert ds.to_table()["x"].to_pylist() == ([4.0] if tombstones is None else [])


def test_only_skipped_rows_count_as_unchanged() -> None:
    """Without `skip_unchanged` rows are written again even if they are the same."""
    rows = pa.Table.from_pylist([{"id": 1, "seq": 5, "x": 1.0, "tags": None}], SCHEMA)
    rules = UpsertRules(("id",))
    table = upsert(new_table(), rows, rules).table
    result = upsert(table, rows, rules)
    assert (result.num_updated, result.num_unchanged) == (1, 0)
    result = upsert(result.table, rows, replace(rules, skip_unchanged=True))
    assert (result.num_updated, result.num_unchanged) == (0, 1)


def test_equal_sequences_in_batches_are_refused() -> None:
    """Only a change feed says that a delete is the later of two rows."""
    rows = [{"id": 1, "seq": 5, "x": 1.0, "tags": None, "op": op} for op in "ud"]
    with pytest.raises(InvalidInputError, match="seq"):
        upsert(new_table(), pa.Table.from_pylist(rows, WITH_OP), CDC)


def test_later_calls_win_over_newer_versions() -> None:
    """Versions of a feed are compared within one call only."""

    def change(x: float, version: int) -> pa.Table:
        row = {"id": 1, "seq": 5, "x": x, "_change_type": "insert", "_commit_version": version}
        return pa.Table.from_pylist([row])

    ds = lance_stream.Dataset(new_table()).apply_changes(change(1.0, 7), on="id")
    assert ds.apply_changes(change(2.0, 6), on="id").to_table()["x"].to_pylist() == [2.0]
