"""Each row is judged by itself, however the rows arrive."""

import json
import pickle
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import InvalidInputError
from lance_stream.ledger.row_digests import digest_of
from lance_stream.write import row_checks
from lance_stream.write.row_checks import (
    BadRows,
    Check,
    CheckedBatches,
    RowRules,
    as_checks,
    resolve_columns,
)

TABLE = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        pa.field("small", pa.uint8()),
        pa.field("price", pa.decimal128(4, 2)),
        pa.field("vector", pa.list_(pa.float32(), 2)),
        pa.field("name", pa.string(), nullable=False),
    ]
)
INCOMING = pa.schema(
    [
        ("id", pa.int32()),
        ("small", pa.int16()),
        ("price", pa.decimal128(6, 2)),
        ("vector", pa.list_(pa.float32())),
        ("name", pa.string()),
        ("_deletes", pa.bool_()),
    ]
)
CHECKS = as_checks({"cheap": "price < 50", "short": "name LIKE '__'"})
RULES = RowRules(TABLE, CHECKS, keys=("id",), deletes="_deletes", keeps_rows=True, casts=False)


def reason_of(row):
    """Why a row is bad, by the definition."""
    if row["id"] is None:
        return "null key"
    if row["_deletes"]:
        return None
    if row["small"] is not None and not 0 <= row["small"] <= 255:
        return "type"
    if row["price"] is not None and abs(row["price"]) >= 100:
        return "type"
    if row["vector"] is not None and len(row["vector"]) != 2:
        return "type"
    if row["name"] is None:
        return "null"
    if row["price"] is None or row["price"] >= 50:
        return "cheap"
    if len(row["name"]) != 2:
        return "short"
    return None


ROWS = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(0, 9),
        "small": st.none() | st.integers(-1, 300),
        "price": st.none() | st.decimals(-200, 200, places=2),
        "vector": st.none() | st.lists(st.just(1.0), min_size=1, max_size=3),
        "name": st.sampled_from([None, "ab", "abc"]),
        "_deletes": st.sampled_from([None, False, False, True]),
    }
)


@settings(max_examples=25, deadline=None)
@given(st.lists(ROWS, max_size=12), st.integers(1, 5))
def test_batching_does_not_change_verdicts(rows, batch_rows):
    """Compared with a plain definition on random rows: Spark decides on batch sizes, which must
    not matter.
    """
    batches = [
        pa.RecordBatch.from_pylist(rows[start : start + batch_rows], INCOMING)
        for start in range(0, len(rows), batch_rows)
    ]
    checked = CheckedBatches(batches, pickle.loads(pickle.dumps(RULES)))
    good = [row for batch in checked for row in batch.to_pylist()]
    assert good == [row for row in rows if reason_of(row) is None]
    bad = checked.bad.rows.to_pylist()
    expected = [reason for row in rows if (reason := reason_of(row))]
    assert [row["reason"] for row in bad] == expected
    names = [json.loads(row["row"])["name"] for row in bad]
    assert names == [row["name"] for row in rows if reason_of(row)]
    whole = pa.Table.from_batches(batches, INCOMING).combine_chunks().to_batches()
    assert not rows or checked.digest == digest_of(whole[0])


def test_batches_are_digested_while_read():
    """Reading the rows twice would double the cost of a batch, and without rules they must pass
    through unchanged.
    """
    table = pa.table({"id": [1, None, 3, 4], "name": ["a", "b", None, "d"]})
    plain = CheckedBatches(table.to_batches(max_chunksize=3), None)
    assert pa.Table.from_batches(list(plain)) == table
    assert plain.digest == digest_of(table)
    assert not plain.bad
    without_names = digest_of(table.drop_columns(["name"]))
    for arguments, names in (({}, ["id", "name"]), ({"drops_helpers": True}, ["id"])):
        helped = CheckedBatches(table.to_batches(), None, ["name"], **arguments)
        assert pa.Table.from_batches(list(helped)) == table.select(names)
        assert helped.digest == without_names


@settings(max_examples=10, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=12))
def test_counting_equals_collecting_bad_rows(rows):
    """The cheap count must agree with the full list of bad rows."""
    batch = pa.RecordBatch.from_pylist(rows, INCOMING)
    counting = RowRules(TABLE, CHECKS, keys=("id",), deletes="_deletes", casts=False)
    bad = BadRows([counting.judge(batch).bad])
    expected = Counter(reason for row in rows if (reason := reason_of(row)))
    assert bad.counts() == dict(expected)


def test_good_rows_have_the_tables_types():
    """The writer behind the check expects the stored types."""
    rows = [{"id": 1, "small": 2, "price": None, "vector": [1.0, 2.0], "name": "ab"}]
    batch = pa.RecordBatch.from_pylist(rows, INCOMING).drop_columns(["_deletes"])
    good = RowRules(TABLE).judge(batch).good
    assert good.schema.types == TABLE.types


def test_null_conditions_are_not_met():
    """A condition passes only if it is true, unlike a CHECK constraint in SQL."""
    rules = RowRules(pa.schema([("a", pa.int64())]), as_checks("a >= 0"))
    batch = pa.RecordBatch.from_pydict({"a": [1, None, -1]})
    verdict = rules.judge(batch)
    assert verdict.good.column(0).to_pylist() == [1]
    assert verdict.bad["message"].to_pylist() == ["the condition 'a >= 0' is null"]
    rules = replace(rules, keeps_rows=True)
    assert rules.judge(batch[1:]).bad["message"].to_pylist() == [
        "the condition 'a >= 0' is null",
        "the condition 'a >= 0' is false",
    ]
    rules = RowRules(rules.stored, as_checks("a IS NULL OR a >= 0"))
    assert rules.judge(batch).good.column(0).to_pylist() == [1, None]


def test_failing_conditions_reject_only_their_row():
    """One bad value must not fail the batch of all others."""
    rules = RowRules(pa.schema([("a", pa.string())]), as_checks("CAST(a AS bigint) > 0"))
    batch = pa.RecordBatch.from_pydict({"a": ["1", "x", "2"]})
    verdict = rules.judge(batch)
    assert verdict.good.column(0).to_pylist() == ["1", "2"]
    assert "cannot be evaluated" in verdict.bad["message"][0].as_py()


def test_conditions_of_one_column_blame_it() -> None:
    """If a condition names two columns, nobody can tell which of them is wrong."""
    columns = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    rules = RowRules(columns, as_checks({"one": "a > 0", "two": "a > b"}))
    bad = rules.judge(pa.RecordBatch.from_pydict({"a": [0, 1, 3], "b": [0, 1, 2]})).bad
    assert bad.select(["reason", "column"]).to_pylist() == [
        {"reason": "one", "column": "a"},
        {"reason": "two", "column": None},
    ]


def test_struct_parts_match_in_any_case():
    """The check of the columns accepts the name, so the check of the rows has to find it, too."""
    schema = pa.schema([("S", pa.struct([("Part", pa.int64())]))])
    rules = RowRules(schema, resolve_columns(schema, as_checks({"high": "s.part > 1"})))
    rules.check_batch(schema)
    batch = pa.RecordBatch.from_pylist([{"S": {"Part": 1}}, {"S": {"Part": 2}}], schema)
    assert rules.judge(batch).good.to_pylist() == [{"S": {"Part": 2}}]


def test_invalid_utf8_does_not_fit():
    """Arrow does not validate text, and other readers would fail on it."""
    plain = pa.array([b"ok", b"\xff"])
    text = pa.Array.from_buffers(pa.string(), 2, plain.buffers())
    verdict = RowRules(pa.schema([("s", pa.string())])).judge(
        pa.RecordBatch.from_arrays([text], ["s"])
    )
    assert verdict.good.column(0).to_pylist() == ["ok"]
    assert verdict.bad["reason"].to_pylist() == ["type"]


@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_invalid_text_rejects_only_its_row(kind, casts):
    """Arrow validates all items of a nested column, of which a row is a slice, and all values of a
    dictionary.
    """
    offsets = pa.array([0, 2, 3, 5], pa.int32() if kind == pa.string() else pa.int64())
    buffers = [None, offsets.buffers()[1], pa.py_buffer(b"ok\xffgo")]
    text = pa.Array.from_buffers(kind, 3, buffers)
    numbers, starts = pa.array([0, 1, 2], pa.int8()), [0, 1, 2, 3]
    for column in (
        text,
        pa.DictionaryArray.from_arrays(numbers, text),
        pa.StructArray.from_arrays([text], ["s"]),
        pa.ListArray.from_arrays(starts, text),
        pa.FixedSizeListArray.from_arrays(text, 1),
        pa.MapArray.from_arrays(starts, text, numbers),
        pa.StructArray.from_arrays([pa.ListArray.from_arrays(starts, text)], ["l"]),
    ):
        rules = RowRules(pa.schema([("s", column.type)]), keeps_rows=True, casts=casts)
        verdict = rules.judge(pa.RecordBatch.from_arrays([column], ["s"]))
        assert verdict.bad["reason"].to_pylist() == ["type"]
        good = column.take(pa.array([0, 2])).to_pylist()
        assert verdict.good.column(0).to_pylist() == good
        if casts:
            verdict.good.validate(full=True)


def test_good_rows_lack_helper_columns():
    """They are no columns of the table; and a batch may lack a column that is hidden."""
    stored = pa.schema([("a", pa.int64())])
    rules = RowRules(
        stored, as_checks("a > 0"), deletes="_deletes", hidden=("_deletes", "_at"), keeps_rows=True
    )
    batch = pa.RecordBatch.from_pydict({"_deletes": [False, False], "a": [1, -1]})
    verdict = rules.judge(batch)
    assert verdict.good.to_pylist() == [{"a": 1}]
    assert verdict.bad["row"].to_pylist() == ['{"a": -1}']


def test_each_batch_must_fit():
    """A source may change its columns in the middle."""
    rules = RowRules(pa.schema([("a", pa.int64())]), as_checks("a > 0"), casts=False)
    first = pa.RecordBatch.from_pydict({"a": [1]})
    other = pa.RecordBatch.from_pydict({"a": ["1"]})
    batches = iter(CheckedBatches([first, first, other], rules))
    assert [next(batches), next(batches)] == [first, first]
    with pytest.raises(InvalidInputError, match="column 'a' is string"):
        next(batches)


def test_bad_rows_have_a_maximum_size(monkeypatch):
    """The driver holds them in memory."""
    rules = RowRules(pa.schema([pa.field("a", pa.int64(), nullable=False)]))
    bad = rules.judge(pa.RecordBatch.from_pydict({"a": [None]}, pa.schema({"a": pa.int64()}))).bad
    monkeypatch.setattr(row_checks, "MAX_BAD_BYTES", 2 * bad.nbytes)
    rows = BadRows()
    rows.add(bad)
    rows.add(bad)
    with pytest.raises(InvalidInputError, match=r"rows do not fit the table, for example: .*null"):
        rows.add(bad)


def test_bad_rows_travel_as_bytes():
    """Tasks send them to the driver, which names an example of each reason."""
    stored = pa.schema([pa.field("a", pa.int8(), nullable=False)])
    rules = RowRules(stored, as_checks("a > 0"), casts=False)
    sent, received = BadRows(), BadRows()
    assert sent.encode() == b""
    received.add_encoded(b"")
    assert received.batches == []
    for value in None, -1, 300:
        batch = pa.RecordBatch.from_pydict({"a": pa.array([value], pa.int64())})
        sent.add(rules.judge(batch).bad)
    received.add_encoded(sent.encode())
    assert received.rows == sent.rows
    assert received.counts() == {"null": 1, "a > 0": 1, "type": 1}
    message = str(received.error("t", 9, "Repair them."))
    assert message.startswith("3 of 9 rows do not fit the table t: 1 with a null in a column that")
    assert "1 for which the check 'a > 0' is not true, for example {\"a\": -1} (" in message
    assert '1 with a value that does not fit its column, for example {"a": 300} (' in message
    assert message.endswith("Nothing was committed. Repair them.")


def test_nulls_in_required_parts_are_reported():
    """Nullability applies at each level of a struct."""
    part = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    batch = pa.RecordBatch.from_pydict(
        {"s": pa.array([{"x": 1}, {"x": None}, None], pa.struct([("x", pa.int64())]))}
    )
    verdict = RowRules(pa.schema([("s", part)])).judge(batch)
    assert verdict.good.column(0).to_pylist() == [{"x": 1}, None]
    assert verdict.bad["reason"].to_pylist() == ["null"]


def test_conditions_take_several_forms() -> None:
    """Most rows have none, and a condition without a name is its own."""
    assert as_checks(None) == as_checks([]) == as_checks({}) == ()
    one, two = Check("a > 0", "a > 0"), Check("small", "b < 9")
    assert as_checks("a > 0") == as_checks(["a > 0"]) == (one,)
    assert as_checks({"a > 0": "a > 0", "small": "b < 9"}) == (one, two)


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        (5, "expect must be"),
        ([1], "expect must be"),
        ({"a": None}, "expect must be"),
        ({"": "a > 0"}, "expect must be"),
        (b"a > 0", "expect must be"),
        (b"", "expect must be"),
        ("a >", "is not a SQL expression"),
        ("true", "names no column"),
        ("null", "names no column"),
        ({"null": "a > 0"}, "built-in reason"),
        (["a > 0", "a > 0"], "twice"),
    ],
)
def test_invalid_conditions_are_refused(expect, problem):
    """A condition without a column or name is a mistake that would pass or refuse every row."""
    with pytest.raises(InvalidInputError, match=problem):
        as_checks(expect)


@pytest.mark.parametrize(
    ("condition", "problem"),
    [("b > 0", "names the column 'b'"), ("a + 1", "has the type int64"), ("a > 'x'", "check")],
)
def test_conditions_must_fit_the_columns(condition, problem):
    """The mistake must surface before the first row, not as a reason of every row."""
    schema = pa.schema([("a", pa.int64())])
    with pytest.raises(InvalidInputError, match=problem):
        RowRules(schema, as_checks(condition)).check_batch(schema)


@pytest.mark.parametrize(
    ("ids", "counted"), [([1, None], "1 of 2 rows does not"), ([None, None], "2 of 2 rows do not")]
)
def test_errors_count_rows_in_words(ids: list[int | None], counted: str) -> None:
    """The first words of the message are what a log shows."""
    table = pa.schema([pa.field("id", pa.int32(), nullable=False)])
    checked = CheckedBatches([pa.RecordBatch.from_pydict({"id": ids}, table)], RowRules(table))
    assert len(list(checked)) == 1
    assert counted in str(checked.bad.error("t", 2, ""))
    assert checked.bad.rows.num_rows == 1  # an example


@pytest.mark.parametrize("column", ["id", "at"])
def test_deletes_need_fitting_keys_and_sequences(column):
    """A delete finds its row by the key, and is ordered by its sequence number."""
    stored = pa.schema([("id", pa.int32()), ("at", pa.int32()), ("small", pa.int8())])
    incoming = pa.schema([(name, pa.int64()) for name in stored.names] + [("_deletes", pa.bool_())])
    rules = RowRules(stored, keys=("id",), sequence_by="at", deletes="_deletes", casts=False)
    row = {"id": 1, "at": 1, "small": 1 << 40, "_deletes": True}
    batch = pa.RecordBatch.from_pylist([row, row | {column: 1 << 40}], incoming)
    verdict = rules.judge(batch)
    assert verdict.good.num_rows == 1
    assert verdict.bad["column"].to_pylist() == [column]
