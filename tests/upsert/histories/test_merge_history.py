"""Events that a history refuses, and the counts of the rows that it changes."""

import uuid

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.upsert.histories.merge_history import prepare_events
from lance_stream.upsert.rules import END_AT, START_AT, HistoryRules, UpsertRules
from lance_stream.upsert.upsert import upsert

COLUMNS = pa.schema([pa.field("id", pa.int64(), False), pa.field("city", pa.string())])
HISTORY = lance_stream.history_schema(COLUMNS, pa.int64())
RULES = UpsertRules(
    ("id",),
    sequence_by="seq",
    delete_when="city = 'gone'",
    except_columns=("seq",),
    history=HistoryRules(),
)


def events(*values: tuple[int, str, int | None], **others: list[int]) -> pa.Table:
    names = ("id", "city", "seq")
    columns = {name: [row[at] for row in values] for at, name in enumerate(names)}
    return pa.table(columns | others)


@pytest.mark.parametrize(
    ("data", "table", "error"),
    [
        (events((1, "A", 1)), COLUMNS, "table has no __START_AT and no __END_AT"),
        (events((1, "A", 1), **{START_AT: [1]}), HISTORY, "reserved for histories"),
        (events((1, "A", 1), **{END_AT: [1]}), HISTORY, "reserved for histories"),
        (events((1, "A", 1), (2, "A", None)), HISTORY, r"1 rows have no 'seq', .*\(id=2\)"),
        (events((1, "A", 1), town=[1]), HISTORY, "Exclude the column with except_column_list"),
        (
            events((1, "A", 1)),
            lance_stream.history_schema(COLUMNS, pa.map_(pa.string(), pa.int64())),
            "'__START_AT' cannot order rows",
        ),
    ],
)
def test_unfit_events_are_refused(data: pa.Table, table: pa.Schema, error: str) -> None:
    """Nothing is written of a batch whose events have no place in the history."""
    (batch,) = data.to_batches()
    with pytest.raises(InvalidInputError, match=error):
        prepare_events(batch, table, RULES)


@pytest.fixture
def table() -> TableVersion:
    """The rows of a key from 1 to 5, from 5 to 9, and since 9."""
    created = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", HISTORY).table
    return upsert(created, events((1, "A", 1), (1, "B", 5), (1, "C", 9)), RULES).table


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        ((1, "D", 11), (1, 1, 0, 0)),  # the last row ends
        ((1, "D", 7), (1, 1, 0, 1)),  # the second row ends, the third one stays
        ((1, "gone", 9), (0, 0, 1, 1)),  # the third row was none, the second one stays
        ((1, "C", 9), (0, 0, 0, 2)),  # again
        ((1, "A", 0), (1, 0, 0, 2)),  # the first row begins earlier
        ((2, "A", 0), (0, 1, 0, 0)),
    ],
)
def test_only_rows_around_events_count(
    table: TableVersion, event: tuple[int, str, int], counts: tuple[int, ...]
) -> None:
    """The report has the rows that an event may have changed, by what became of them."""
    result = upsert(table, events(event), RULES)
    reported = (result.num_updated, result.num_inserted, result.num_deleted, result.num_unchanged)
    assert reported == counts
    assert result.is_new == (counts[:3] != (0, 0, 0))


def test_batches_may_have_no_events(table: TableVersion) -> None:
    """A stream commits batches without rows, too."""
    result = upsert(table, events((1, "D", 7)).slice(1), RULES)
    assert (result.is_new, result.num_rows, result.num_unchanged) == (False, 0, 0)
