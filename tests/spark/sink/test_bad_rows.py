"""The sink refuses batches with bad rows, or sets these aside and commits the others."""

import json
import random
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.spark import lance_sink
from lance_stream.spark.sink import batch_writing, staged_upserts
from lance_stream.storage.local_store import LocalStore
from tests.spark.sink.few_rows_by_tasks import upsert_by_tasks

pytestmark = pytest.mark.spark

COLUMNS = "id int, x smallint, name string, lsn bigint, op string"
TABLE = pa.schema(
    [
        pa.field("id", pa.int32(), nullable=False),
        ("x", pa.uint8()),
        pa.field("name", pa.string(), nullable=False),
        ("lsn", pa.int64()),
    ]
)
UPSERT = {
    "mode": "upsert",
    "on": "id",
    "sequence_by": "lsn",
    "delete_when": "op = 'd'",
    "except_columns": ["op"],
}
MODES: dict[str, dict[str, Any]] = {
    "append": {"except_columns": ["op"]},
    "overwrite": {"mode": "overwrite", "any_output_mode": True, "except_columns": ["op"]},
    "upsert": UPSERT,
}
EXPECT = {"large": "x IS NULL OR x > 9", "op": "op IN ('u', 'd')"}


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "t.lance")


def reason_of(row: tuple[Any, ...], mode: str) -> str | None:
    """Why a row is bad, by the definition."""
    key, x, name, _, op = row
    if key is None:
        return "null key" if mode == "upsert" else "null"
    if mode == "upsert" and op == "d":
        return None
    if x is not None and not 0 <= x <= 255:
        return "type"
    if name is None:
        return "null"
    if x is not None and x <= 9:
        return "large"
    return None if op in ("u", "d") else "op"


def random_rows(chance: random.Random, batch_id: int) -> list[tuple[Any, ...]]:
    return [
        (
            chance.choice([None, *range(8)]) if chance.random() < 0.3 else number,
            chance.choice([None, 5, 50, 200, 300]),
            chance.choice(["a", "b", "c", None]),
            100 * batch_id + number,
            chance.choice(["u", "u", "u", "d", "z", None]),
        )
        for number in range(12)
    ]


def rows_of(uri: str) -> list[tuple[Any, ...]]:
    rows = lance_stream.open_dataset(uri).to_table().to_pylist()
    return sorted((tuple(row.values()) for row in rows), key=repr)


def expected(mode: str, batches: list[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """Return the rows of a table after the good rows of some batches."""
    good = [[row for row in rows if reason_of(row, mode) is None] for rows in batches]
    if mode == "overwrite":
        return sorted((row[:4] for row in good[-1]), key=repr)
    if mode == "append":
        return sorted((row[:4] for rows in good for row in rows), key=repr)
    table: dict[Any, tuple[Any, ...]] = {}
    for rows in good:
        newest = {row[0]: row for row in sorted(rows, key=lambda row: row[3])}
        for row in newest.values():
            if row[4] == "d":
                table.pop(row[0], None)
            elif row[0] not in table or table[row[0]][3] <= row[3]:
                table[row[0]] = row[:4]
    return sorted(table.values(), key=repr)


@pytest.mark.parametrize("by", ["driver", "tasks"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.some_cases(one_in=2)
@pytest.mark.essential
def test_only_bad_rows_are_quarantined(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch, mode: str, by: str
) -> None:
    """Random batches are compared with a model; every batch is repeated, and finally all bad rows
    are replayed.
    """
    if by == "tasks":
        upsert_by_tasks(monkeypatch)
        # every second batch is processed by the driver
        monkeypatch.setattr(staged_upserts, "driver_is_alone", lambda _: batch_id % 2 == 0)
        monkeypatch.setattr(batch_writing, "SMALL_BATCH_ROWS", 0)
    chance = random.Random(f"{mode} {by}")
    lance_stream.create_dataset(uri, TABLE)
    sink = lance_sink(uri, app_id="app", expect=EXPECT, bad_rows="quarantine", **MODES[mode])
    batches: list[list[tuple[Any, ...]]] = []
    for batch_id in range(3):
        rows = random_rows(chance, batch_id)
        batches.append(rows)
        df = spark.createDataFrame(rows, COLUMNS).coalesce(1)
        sink(df, batch_id)
        bad = [reason for row in rows if (reason := reason_of(row, mode))]
        assert sink.last_commit is not None
        assert sink.last_commit.rows_quarantined == {name: bad.count(name) for name in bad}
        assert sink.last_commit.rows_in == len(rows)
    sink(df, batch_id)
    assert sink.last_commit.skipped
    assert rows_of(uri) == expected(mode, batches)
    assert lance.dataset(uri).count_rows() == len(rows_of(uri))

    aside = lance_stream.open_dataset(quarantine_uri(uri)).to_table().to_pylist()
    quarantined = [
        (row["batch_id"], row["reason"], tuple(json.loads(row["row"]).values())) for row in aside
    ]
    expected_rows = [
        (number, reason, row)
        for number, rows in enumerate(batches)
        for row in rows
        if (reason := reason_of(row, mode))
    ]
    assert sorted(quarantined, key=repr) == sorted(expected_rows, key=repr)
    if mode == "append":

        def fix(rows: pa.Table) -> pa.Table:
            rows = rows.set_column(0, "id", rows["id"].fill_null(0))
            x = [None if value is None else value % 256 for value in rows["x"].to_pylist()]
            rows = rows.set_column(1, "x", pa.array(x, pa.int16()))
            return rows.set_column(2, "name", rows["name"].fill_null("?"))

        result = lance_stream.replay_quarantine(uri, fix=fix, expect={})
        assert (result.rows_replayed, result.rows_remaining) == (len(expected_rows), {})
        assert lance_stream.open_dataset(uri).count_rows() == sum(map(len, batches))


@pytest.mark.floors
@pytest.mark.parametrize("mode", MODES)
def test_batches_with_bad_rows_are_refused(spark: Any, uri: str, mode: str) -> None:
    """The first batch, the tasks and the driver check rows in different code, and none of them may
    let a bad row through.
    """
    sink = lance_sink(uri, app_id="app", expect={"positive": "X > 0"}, **MODES[mode])
    good = spark.createDataFrame([(1, 1, "a", 1, "u"), (2, 2, "b", 1, "u")], COLUMNS)
    bad = spark.createDataFrame([(3, 3, "c", 1, "u"), (4, -4, "d", 1, "u")], COLUMNS)
    problem = r"1 of 2 rows does not fit .*1 for which the check 'positive' is not true.*\"id\": 4"
    with pytest.raises(InvalidInputError, match=problem):
        sink(bad, 0)
    assert not Path(uri, "_versions").exists()
    sink(good, 0)
    before = rows_of(uri)
    for _ in range(2):
        with pytest.raises(InvalidInputError, match=problem):
            sink(bad, 1)
    assert rows_of(uri) == before
    assert not Path(quarantine_uri(uri)).exists()
    files = set(Path(uri, "data").iterdir())
    named = {
        file.path
        for fragment in lance.dataset(uri).get_fragments()
        for file in fragment.data_files()
    }
    assert {file.name for file in files} == named


def test_nulls_in_required_columns_are_refused(spark: Any, uri: str) -> None:
    """A null in a column that is not nullable is a bad row like any other, so the error counts it
    and names the reason.
    """
    lance_stream.create_dataset(uri, TABLE)
    sink = lance_sink(uri, app_id="app", expect="x > 0", except_columns=["op"])
    df = spark.createDataFrame([(1, 1, None, 1, "u"), (2, 2, "b", 1, "u")], COLUMNS)
    with pytest.raises(
        InvalidInputError, match=r"1 of 2 rows .* with a null in a column that must not be null"
    ):
        sink(df, 0)


def test_problems_of_whole_batches_are_refused(spark: Any, uri: str) -> None:
    """A missing column makes every row bad, and a quarantine that takes them all would hide the
    mistake.
    """
    lance_stream.create_dataset(uri, TABLE)
    sink = lance_sink(uri, app_id="app", bad_rows="quarantine")
    for columns, problem in (
        ("id int, y int", "no column 'y'"),
        ("id int", "missing"),
        ("id bigint, name string", "bigint|int64"),
    ):
        row = [(1, "a")] if "name" in columns else [(1, 2)] if "y" in columns else [(1,)]
        with pytest.raises(InvalidInputError, match=problem):
            sink(spark.createDataFrame(row, columns), 0)
    assert not Path(quarantine_uri(uri)).exists()


def test_invalid_checks_and_quarantines_are_refused(spark: Any, uri: str) -> None:
    """A check that cannot be evaluated, or a quarantine that the mode cannot use, must stop the
    stream before it commits a batch unchecked.
    """
    df = spark.createDataFrame([(1, 1, "a", 1, "u")], COLUMNS)
    for expect, problem in (
        ("y > 0", "no column 'y'"),
        ("x + 1", "has the type int64"),
        ("name > 5", "check"),
    ):
        with pytest.raises(InvalidInputError, match=problem):
            lance_sink(uri, app_id="app", expect=expect)(df, 0)
    for arguments, problem in (
        ({"expect": "x >"}, "SQL"),
        ({"bad_rows": "drop"}, "bad_rows must be"),
        ({"bad_rows": {"quarantined": "q.lance"}}, "the location of the quarantine"),
        ({"bad_rows": "quarantine", "branch": "dev"}, "bad rows of a branch"),
        ({"bad_rows": {"quarantine": uri}}, "table itself"),
        ({"mode": "apply_changes", "on": "id", "expect": "x > 0"}, "build on each other"),
        ({"mode": "apply_changes", "on": "id", "bad_rows": "quarantine"}, "build on each other"),
    ):
        with pytest.raises(InvalidInputError, match=problem):
            lance_sink(uri, **arguments)  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_batches_of_bad_rows_are_recorded(spark: Any, uri: str, mode: str) -> None:
    """Without an entry in the ledger a replay would set the same rows aside again; the first batch
    also has to create the table.
    """
    sink = lance_sink(uri, app_id="app", expect="x > 0", bad_rows="quarantine", **MODES[mode])
    df = spark.createDataFrame([(1, -1, "a", 1, "u")], COLUMNS)
    for batch_id in range(2):
        sink(df, batch_id)
        assert sink.last_commit is not None
        assert sink.last_commit.version == batch_id + 1
        sink(df, batch_id)
        assert sink.last_commit.skipped
    assert lance.dataset(uri).count_rows() == 0
    assert [value.state for value in lance_stream.list_quarantine(uri)] == ["ready", "ready"]
    feed = lance_stream.open_dataset(uri).changes(after=1).read_all()
    assert feed.num_rows == 0


@pytest.mark.parametrize("later", ["the same", "another check", "no bad row"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.some_cases(one_in=3)
def test_killed_sinks_quarantine_rows_once(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch, mode: str, when: str, later: str
) -> None:
    """A batch that is repeated after a kill, unchanged or with other checks, must neither lose nor
    duplicate a bad row.
    """
    first = {"large": "x > 9"}
    checks = {"the same": first, "another check": {"larger": "x > 19"}, "no bad row": None}
    rows = [(1, 5, "a", 1, "u"), (2, 15, "a", 1, "u"), (3, 50, "a", 1, "u")]
    df = spark.createDataFrame(rows, COLUMNS).coalesce(1)
    lance_stream.create_dataset(uri, TABLE)
    publish = LocalStore.create_once
    for number in range(2):
        published = 0

        def die(store: Any, path: str, *args: Any, **kwargs: Any) -> Any:
            nonlocal published
            is_version = path.endswith(".manifest")
            published += is_version
            if is_version and published == number + 1 and when == "before":  # noqa: B023  # called in the same round
                raise Killed
            is_published = publish(store, path, *args, **kwargs)
            if is_version and published == number + 1:  # noqa: B023  # called in the same round
                raise Killed
            return is_published

        monkeypatch.setattr(LocalStore, "create_once", die)
        settings = {"app_id": "app", "bad_rows": "quarantine", **MODES[mode]}
        with pytest.raises(Killed):
            lance_sink(uri, expect=first, **settings)(df, number)
        monkeypatch.undo()
        is_done = number == 1 or when == "after"
        sink = lance_sink(uri, expect=checks[later], **settings)
        sink(df, number)
        assert sink.last_commit is not None
        assert sink.last_commit.skipped == is_done
        limit = 9 if is_done or later == "the same" else 19 if later == "another check" else 0
        quarantined = []
        if limit or number:
            aside = lance_stream.open_dataset(quarantine_uri(uri))
            texts = aside.to_table(["row"], filter=f"batch_id = {number}")["row"].to_pylist()
            quarantined = [json.loads(value)["x"] for value in texts]
        assert sorted(quarantined) == [row[1] for row in rows if row[1] <= limit]
    states = {value.state for value in lance_stream.list_quarantine(uri)}
    assert states <= {"ready"}
    if mode == "append":
        result = lance_stream.replay_quarantine(uri, expect={})
        assert result.rows_remaining == {}
        assert sorted(row[1] for row in rows_of(uri)) == [5, 5, 15, 15, 50, 50]


@pytest.mark.essential
def test_a_stream_continues_despite_bad_rows(file_stream: Any, uri: str) -> None:
    """Bad rows must not stop a stream that has a quarantine, and replaying them after a fix must
    complete the table.
    """
    for number in range(3):
        file_stream.add(pa.table({"id": [number, -number - 1]}))
    sink = lance_sink(uri, expect="id >= 0", bad_rows="quarantine")
    file_stream.run(sink)
    assert [row[0] for row in rows_of(uri)] == [0, 1, 2]
    assert sum(batch.num_rows for batch in lance_stream.list_quarantine(uri)) == 3
    assert lance_stream.replay_quarantine(uri, fix={"id": "-id"}).rows_replayed == 3
    assert [row[0] for row in rows_of(uri)] == [0, 1, 1, 2, 2, 3]


def test_invalid_utf8_is_set_aside(spark: Any, uri: str) -> None:
    """Spark's strings may hold any bytes, and a reader of the table could not decode the column if
    one were stored.
    """
    lance_stream.create_dataset(uri, pa.schema([("id", pa.int64()), ("s", pa.string())]))
    df = spark.range(2).selectExpr("id", "if(id = 0, 'ok', cast(X'ff' AS string)) AS s")
    sink = lance_sink(uri, app_id="app", bad_rows="quarantine")
    sink(df, 0)
    assert sink.last_commit is not None
    assert sink.last_commit.rows_quarantined == {"type": 1}
    assert rows_of(uri) == [(0, "ok")]


def test_quarantines_of_other_tables_are_refused(spark: Any, uri: str, tmp_path: Path) -> None:
    """Rows of two tables in one quarantine could be replayed into the wrong table."""
    df = spark.createDataFrame([(1,), (-1,)], "id bigint")
    shared = str(tmp_path / "bad.lance")
    settings = {"app_id": "app", "expect": "id > 0"}
    elsewhere = {"quarantine": shared}
    lance_sink(uri, bad_rows=elsewhere, **settings)(df, 0)
    with pytest.raises(InvalidInputError, match="is the quarantine of"):
        lance_sink(str(tmp_path / "other"), bad_rows=elsewhere, **settings)(df, 0)
    lance_stream.create_dataset(quarantine_uri(uri), TABLE)
    with pytest.raises(InvalidInputError, match="is not a quarantine"):
        lance_sink(uri, bad_rows="quarantine", **settings)(df, 1)
    assert rows_of(uri) == [(1,)]


def test_a_branch_has_its_own_quarantine(spark: Any, uri: str, tmp_path: Path) -> None:
    """Replaying the bad rows of a branch must write to the branch and leave the main table as it
    is.
    """
    ds = lance_stream.create_dataset(uri, pa.table({"id": [0]}))
    ds.branches.create("dev")
    elsewhere = {"quarantine": str(tmp_path / "dev_bad.lance")}
    sink = lance_sink(uri, app_id="app", expect="id > 0", bad_rows=elsewhere, branch="dev")
    sink(spark.createDataFrame([(1,), (-1,)], "id bigint"), 0)
    at = {"branch": "dev", **elsewhere}
    assert [batch.num_rows for batch in lance_stream.list_quarantine(uri, **at)] == [1]
    assert lance_stream.replay_quarantine(uri, fix={"id": "-id"}, **at).rows_replayed == 1
    assert lance_stream.open_dataset(uri, ("dev", None)).count_rows() == 3
    assert rows_of(uri) == [(0,)]


def test_too_many_bad_rows_are_refused(
    spark: Any, uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver holds the bad rows in memory, and so many of them are more likely a wrong check
    than exceptional rows.
    """
    monkeypatch.setattr("lance_stream.write.row_checks.MAX_BAD_BYTES", 1000)
    df = spark.range(100)
    sink = lance_sink(uri, app_id="app", expect="id < 0", bad_rows="quarantine")
    with pytest.raises(InvalidInputError, match="too many for a quarantine"):
        sink(df, 0)
    assert not Path(uri, "_versions").exists()
