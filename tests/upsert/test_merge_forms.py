"""Upserts that leave updates or inserts out: `when_matched` and `when_not_matched`."""

import uuid
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset, InvalidInputError, NotFoundError
from lance_stream.upsert import attempts
from lance_stream.upsert.large.staged_rows import stage_rows, upsert_staged
from lance_stream.upsert.rules import UpsertRules, check_conditions, with_one_time

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("price", pa.float64()),
        pa.field("place", pa.struct([("zip", pa.string()), ("town", pa.string())])),
    ]
)


def rows(prices: dict[int, float | None], zip_code: str = "1") -> pa.Table:
    structs = [{"zip": zip_code, "town": "t"} for _ in prices]
    return pa.table({"id": [*prices], "price": [*prices.values()], "place": structs}, schema=SCHEMA)


@pytest.fixture
def ds() -> Dataset:
    """Keys 1 and 2 in one fragment, key 3 in another."""
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/table", rows({1: 10, 2: 20}))
    return dataset.append(rows({3: 30}))


def prices(ds: Dataset) -> dict[int, float | None]:
    table = ds.to_table(["id", "price"]).sort_by("id")
    return dict(zip(table["id"].to_pylist(), table["price"].to_pylist(), strict=True))


def test_ignoring_matches_inserts_only_new_keys(ds: Dataset) -> None:
    """Events that may arrive twice keep the values of their first arrival."""
    after = ds.upsert(rows({2: 99, 4: 40}), "id", when_matched="ignore")
    assert prices(after) == {1: 10, 2: 20, 3: 30, 4: 40}


def test_ignoring_new_keys_inserts_nothing(ds: Dataset) -> None:
    """Corrections of rows that may have been deleted must not bring them back."""
    after = ds.upsert(rows({2: 99, 4: 40}), "id", when_not_matched="ignore")
    assert prices(after) == {1: 10, 2: 99, 3: 30}


def test_conditions_compare_incoming_and_stored_rows(ds: Dataset) -> None:
    """A condition that is null is no reason to update, as everywhere in SQL."""
    data = rows({1: 5, 2: 25, 3: None, 4: 40})
    after = ds.upsert(data, "id", when_matched="source.price > target.price")
    assert prices(after) == {1: 10, 2: 25, 3: 30, 4: 40}


def test_conditions_select_the_inserted_rows(ds: Dataset) -> None:
    """There is no stored row to compare with, so the condition sees the incoming row alone."""
    after = ds.upsert(rows({1: 5, 4: 40, 5: 50}), "id", when_not_matched="source.price > 45")
    assert prices(after) == {1: 5, 2: 20, 3: 30, 5: 50}


def test_without_any_effect_nothing_is_committed(ds: Dataset) -> None:
    """An upsert that changes nothing must not add a version."""
    after = ds.upsert(rows({1: 5, 4: 4}), "id", when_matched="ignore", when_not_matched="ignore")
    assert (after.version, prices(after)) == (ds.version, prices(ds))


def test_ignored_rows_keep_ids_and_stamps(ds: Dataset) -> None:
    """Ignored rows are neither part of the version nor of its change feed."""
    after = ds.upsert(rows({1: 5, 2: 25}), "id", when_matched="source.price > target.price")
    changes = after.changes(ds.version).read_all()
    assert changes["id"].to_pylist() == [2, 2]
    stamps = after.to_table(["id"], with_row_id=True, with_row_versions=True).sort_by("id")
    assert stamps["_rowid"].to_pylist() == [0, 1, 2]
    assert stamps["_row_last_updated_at_version"].to_pylist() == [1, 3, 2]


def test_conditions_see_unstored_columns(ds: Dataset) -> None:
    """An operation or a priority belongs to the change and not to the row."""
    data = rows({1: 5, 2: 6, 4: 7}).append_column("force", pa.array([True, False, False]))
    after = ds.upsert(
        data,
        "id",
        except_columns="force",
        when_matched="source.force OR source.price > target.price",
        when_not_matched="source.force",
    )
    assert prices(after) == {1: 5, 2: 20, 3: 30}


def test_conditions_see_struct_fields(ds: Dataset) -> None:
    """Fields of structs are named by their paths, in incoming and stored rows."""
    condition = "source.place.zip <> target.place.zip"
    after = ds.upsert(rows({1: 5}, "2"), "id", when_matched=condition)
    assert prices(after)[1] == 5
    assert prices(after.upsert(rows({1: 7}, "2"), "id", when_matched=condition))[1] == 5


def test_conditions_see_stored_types(ds: Dataset) -> None:
    """An incoming column that is all null has no fields, but the table's type does."""
    data = rows({1: 5, 4: 40}).set_column(2, "place", pa.nulls(2))
    condition = "source.place.zip IS NULL AND target.place.zip = '1'"
    assert prices(ds.upsert(data, "id", when_matched=condition)) == {1: 5, 2: 20, 3: 30, 4: 40}


def test_conditions_see_types_of_excepted_columns(ds: Dataset) -> None:
    """The table may have a column of the same name with another type."""
    data = rows({1: 5, 2: 6}).set_column(2, "place", pa.array([1, 2]))
    after = ds.upsert(data, "id", except_columns="place", when_matched="source.place > 1")
    assert prices(after) == {1: 10, 2: 6, 3: 30}


def test_conditions_follow_the_rules_of_filters(ds: Dataset) -> None:
    """Names match in any case, and all rows see one current time."""
    condition = "SOURCE.Price > target.PRICE AND current_timestamp() > TIMESTAMP '2020-01-01'"
    after = ds.upsert(rows({1: 15, 2: 5}), "id", when_matched=condition)
    assert prices(after) == {1: 15, 2: 20, 3: 30}
    after = after.upsert(rows({4: 4}), "id", when_not_matched="Source.PRICE > 5")
    assert prices(after) == {1: 15, 2: 20, 3: 30}


@pytest.mark.parametrize("holds", [True, False, None])
def test_conditions_may_name_no_column(ds: Dataset, holds: bool | None) -> None:
    """A program may turn a rule off by a constant, and null is not true."""
    condition = {True: "1 = 1", False: "1 = 2", None: "CAST(NULL AS BOOLEAN)"}[holds]
    data = rows({1: 11, 4: 40})
    after = ds.upsert(data, "id", when_matched=condition)
    assert prices(after) == {1: 11 if holds else 10, 2: 20, 3: 30, 4: 40}
    after = ds.checkout(ds.version).upsert(rows({5: 50}), "id", when_not_matched=condition)
    assert (5 in prices(after)) == bool(holds)


def test_broken_conditions_are_refused_early() -> None:
    """A stream must not start with a condition that its first batch refuses."""
    check_conditions(None, None)
    check_conditions("update", "insert")
    check_conditions("ignore", "ignore")
    check_conditions("source.price > target.price", "source.price > 1")
    for conditions in ("source.price >", None), (None, "source.price >"):
        with pytest.raises(InvalidInputError):
            check_conditions(*conditions)


def test_missing_conditions_are_the_default() -> None:
    """The function fixes the current time of a condition, and leaves everything else."""
    assert with_one_time(None, "update") == "update"
    for condition in "update", "ignore", "source.price > 1":
        assert with_one_time(condition, "update") == condition
    fixed = with_one_time("source.at > current_timestamp()", "update")
    assert "current_timestamp" not in fixed


def test_deletes_ignore_conditions_of_updates(ds: Dataset) -> None:
    """The condition is about updates, while `delete_when` decides which rows delete."""
    data = rows({1: 0, 2: 99, 4: 40})
    after = ds.upsert(data, "id", delete_when="price = 0", when_matched="ignore")
    assert prices(after) == {2: 20, 3: 30, 4: 40}


def test_conditions_see_the_newest_row(ds: Dataset) -> None:
    """Conditions apply after the order, so an older row never replaces the newest one."""
    data = pa.concat_tables([rows({1: 15}), rows({1: 5})]).append_column("at", pa.array([1, 2]))
    rules = {"sequence_by": "at", "except_columns": "at"}
    after = ds.upsert(data, "id", **rules, when_matched="source.price > target.price")  # type: ignore[arg-type]  # texts
    assert prices(after) == prices(ds)


def test_unchanged_rows_are_skipped_after_conditions(ds: Dataset) -> None:
    """Both rules leave rows untouched, and the counts must tell them apart."""
    data = rows({1: 10, 2: 25, 3: 5})
    after = ds.upsert(data, "id", skip_unchanged=True, when_matched="source.price >= target.price")
    assert after.changes(ds.version).read_all()["id"].to_pylist() == [2, 2]


def test_duplicate_rows_are_compared_separately(ds: Dataset) -> None:
    """A table may have several rows of a key, and each is compared with the incoming row."""
    doubled = ds.append(rows({1: 100}))
    after = doubled.upsert(rows({1: 50}), "id", when_matched="source.price > target.price")
    assert sorted(after.to_table(filter="id = 1")["price"].to_pylist()) == [50, 100]


def test_concurrent_inserts_of_keys_are_seen(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan for the newer version decides, so a key that another writer has inserted is a
    match.
    """
    plan_update = attempts.plan_update

    def late(*args: Any, **named: Any) -> Any:
        monkeypatch.setattr(attempts, "plan_update", plan_update)
        plan = plan_update(*args, **named)
        ds.upsert(rows({4: 1, 1: 1}), "id")
        return plan

    monkeypatch.setattr(attempts, "plan_update", late)
    after = ds.upsert(rows({4: 40, 1: 5}), "id", when_matched="source.price > 2 * target.price")
    assert prices(after) == {1: 5, 2: 20, 3: 30, 4: 40}


def test_batch_parts_obey_the_same_rules(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches are decided by ranges of keys with the same function."""
    monkeypatch.setattr("lance_stream.upsert.large.staged_rows.MAX_ROWS", 2)
    data = rows({1: 5, 2: 25, 3: 35, 4: 40, 5: 50})
    rules = UpsertRules(
        ("id",), when_matched="source.price > target.price", when_not_matched="source.id = 5"
    )
    staged = stage_rows(data.to_batches(), ds.table.store, ds.schema, rules)
    result = upsert_staged(ds.table, [staged], rules, data.column_names, None)
    assert prices(Dataset(result.table)) == {1: 10, 2: 25, 3: 35, 5: 50}
    assert (result.num_inserted, result.num_updated, result.num_ignored) == (1, 2, 2)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("when_matched", "price > 1"),
        ("when_matched", "source.cost > target.price"),
        ("when_matched", "source IS NOT NULL"),
        ("when_matched", "source.price + 1"),
        ("when_matched", "insert"),
        ("when_matched", 5),
        ("when_not_matched", "target.price > 1"),
        ("when_not_matched", "update"),
        ("when_not_matched", True),
    ],
)
def test_impossible_conditions_are_refused(ds: Dataset, argument: str, value: Any) -> None:
    """A condition is checked before anything is read, and the note lists what it may name."""
    with pytest.raises((InvalidInputError, NotFoundError)) as raised:
        ds.upsert(rows({1: 5}), "id", **{argument: value})
    assert argument in "".join(raised.value.__notes__)


def test_fields_missing_from_data_are_refused(ds: Dataset) -> None:
    """They would be null in every row, so naming one is a mistake."""
    data = pa.table({"id": [1], "place": [{"zip": "2"}]})
    with pytest.raises(NotFoundError, match="town"):
        ds.upsert(data, "id", when_matched="source.place.town = 't'")
    after = ds.upsert(data, "id", when_matched="source.place.zip <> target.place.zip")
    assert after.to_table(filter="id = 1")["place"].to_pylist() == [{"zip": "2", "town": "t"}]
