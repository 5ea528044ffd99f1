"""`head` and `query`: the rows that a table has, in the order that was asked for."""

import io
import json
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.cli import main as program
from lance_stream.storage.memory_store import MemoryStore
from tests.feed.test_intervals import at, table_at

ROWS = pa.table(
    {
        "id": range(300),
        "price": [None if number % 11 == 0 else float(number * 7 % 100) for number in range(300)],
        "name": [f"n{number % 13}" for number in range(300)],
        "at": pa.array(range(300), pa.timestamp("us")),
        "tags": [[number] for number in range(300)],
        "address": [{"city": f"c{number % 5}"} for number in range(300)],
    }
)


BY_ID = [("id", "ascending")]


@pytest.fixture
def ds() -> Dataset:
    """Several fragments, with deleted rows."""
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", ROWS.slice(0, 100))
    return dataset.append(ROWS.slice(100, 150)).append(ROWS.slice(250)).delete("id % 10 = 3")


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    assert program.main([*words, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_head_prints_the_first_rows(ds: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Deleted rows do not count, and columns and versions must be selectable."""
    assert [row["id"] for row in printed(capsys, "head", ds.uri)] == [
        0, 1, 2, 4, 5, 6, 7, 8, 9, 10
    ]  # fmt: skip
    assert printed(capsys, "head", ds.uri, "-n", "1", "--columns", "address.city, id") == [
        {"address": {"city": "c0"}, "id": 0}
    ]
    assert len(printed(capsys, "head", ds.uri, "--limit", "100000")) == 270
    assert printed(capsys, "head", ds.uri, "--version", "1", "-n", "5")[3]["id"] == 3


def test_columns_align_across_batches(ds: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows arrive in several batches, and columns must be aligned across them."""
    assert (
        program.main(["query", ds.uri, "--where", "id > 95", "-n", "20", "--columns", "id,name"])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert len({line.index("n") for line in lines}) == 1


@pytest.mark.floors
@pytest.mark.parametrize("limit", [None, 1, 25, 1000])
@pytest.mark.parametrize(
    ("order", "keys"),
    [
        ("id desc", [("id", "descending")]),
        ("price, id", [("price", "ascending"), *BY_ID]),
        ("name DESC, price asc,id", [("name", "descending"), ("price", "ascending"), *BY_ID]),
    ],
)
def test_rows_are_sorted_as_requested(
    order: str,
    keys: list[tuple[str, str]],
    limit: int | None,
    ds: Dataset,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Sorting with a limit merges batches and must agree with sorting the whole table."""
    words = ["query", ds.uri, "--where", "id > 20", "--columns", "id", "--order-by", order]
    records = printed(capsys, *words, *([] if limit is None else ["--limit", str(limit)]))
    expected = ds.to_table(filter="id > 20").sort_by(keys)["id"].to_pylist()[:limit]
    assert records == [{"id": value} for value in expected]


def test_limited_sorts_keep_few_rows(
    ds: Dataset, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A table may be larger than memory while the user asks for three rows of it."""
    from lance_stream.cli.read import rows_printed

    batch_sizes = []
    in_order = rows_printed._in_order
    monkeypatch.setattr(
        rows_printed,
        "_in_order",
        lambda *arguments: batch_sizes.append(arguments[0].num_rows) or in_order(*arguments),
    )
    printed(capsys, "query", ds.uri, "--order-by", "id desc", "--limit", "3")
    assert batch_sizes
    assert max(batch_sizes) <= 150 + 3  # the largest fragment, and those that are kept


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--order-by", "id downwards"], 2, "no column 'id downwards'"),
        (["--order-by", "id,"], 2, "--order-by must be a list of columns"),
        (["--order-by", "nope"], 2, "no column 'nope'"),
        (["--order-by", "tags"], 2, "cannot sort"),
        (["--where", "id >"], 2, "is not a SQL expression"),
        (["--where", "nope = 1"], 3, "nope"),
        (["--where", "idd = 1"], 3, "(did you mean 'id'?)"),
        (["--where", 'id = "x"'], 2, "compares int64 with string"),
        (["--columns", "nope"], 3, "nope"),
        (["--columns", "idd"], 3, "(did you mean 'id'?)"),
        (["--limit", "x"], 2, "'x' is not a valid whole number"),
        (["--limit", "-3"], 2, "not a positive whole number"),
    ],
)
def test_invalid_queries_are_explained(
    words: list[str], code: int, message: str, ds: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts depend on the exit code, and nothing may appear on stdout."""
    assert program.main(["query", ds.uri, *words]) == code
    out, err = capsys.readouterr()
    assert (out, message in err) == ("", True)


def test_rows_are_counted(ds: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain count prints only the number, which scripts assign to a variable."""
    assert printed(capsys, "query", ds.uri, "--count") == [{"num_rows": 270}]
    assert program.main(["query", ds.uri, "--count", "--where", "id < 20"]) == 0
    assert capsys.readouterr().out == "18\n"


def test_row_ids_are_added(ds: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    """Row ids relate rows of a query to those in the change feed."""
    records = printed(capsys, "query", ds.uri, "--columns", "id", "--with-row-id", "-n", "4")
    assert [(row["id"], row["_rowid"]) for row in records] == [(0, 0), (1, 1), (2, 2), (4, 4)]


def test_rows_can_be_streamed_as_arrow(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other programs read the stream from a pipe and need the exact schema."""
    stdout = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", stdout)
    assert program.main(["query", ds.uri, "--where", "id > 50", "--format", "arrow"]) == 0
    table = pa.ipc.open_stream(stdout.buffer.getvalue()).read_all()
    assert table.equals(ds.to_table(filter="id > 50"))


def test_blobs_are_described_without_reading(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Printing a blob would fill the terminal and read gigabytes."""
    field = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})
    rows = pa.table([pa.array([b"x" * (1 << 20)], pa.large_binary())], pa.schema([field]))
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows)
    (row,) = printed(capsys, "head", ds.uri)
    assert row["blob"]["size"] == 1 << 20


def counting(method: Callable[..., Any], counts: Counter[str]) -> Callable[..., Any]:
    def counted(*arguments: Any, **more: Any) -> Any:
        counts[method.__name__] += 1
        return method(*arguments, **more)

    return counted


def test_show_costs_few_requests(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cost must not grow with the number of versions and fragments."""
    small = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", ROWS)
    large = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", ROWS.slice(0, 1))
    for number in range(1, 60):
        large = large.append(ROWS.slice(number, 1))
    counts: Counter[str] = Counter()
    for name in ("read", "read_range", "read_ranges", "list", "list_names", "list_files", "exists"):
        if hasattr(MemoryStore, name):
            monkeypatch.setattr(MemoryStore, name, counting(getattr(MemoryStore, name), counts))
    costs = []
    for ds in (small, large):
        counts.clear()
        assert program.main(["show", ds.uri]) == 0
        costs.append(sum(counts.values()))
    assert 3 < costs[0] <= costs[1] <= costs[0] + 1 <= 12, counts


@pytest.mark.floors
def test_missing_choices_share_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Click lists the choices on several lines, which breaks the rule of one
    paragraph per error.
    """
    assert program.main(["completion"]) == 2
    assert "Choose from: bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["querry"], "Did you mean query"),
        (["compacy", "x"], "Did you mean compact"),
        (["query", "x", "--wher", "a = 1"], "there is no dataset"),  # an abbreviation
        (["query", "x", "--wheer", "a = 1"], "--where"),
        (["tags", "crate", "x"], "Did you mean create"),
        (["cleanup", "x", "--re", "3"], "there is no dataset"),
        (["cleanup", "x", "--de", "3"], "--de"),  # --delete-unverified or --debug
        (["--jsn"], "no such option"),
        (["versions", "x"], "Did you mean log?"),
        (["count", "x"], "Did you mean query --count?"),
        (["undo", "x"], "Did you mean restore?"),
        (["delete", "x", "id = 1"], "Did you mean ds.delete(predicate) in Python?"),
        (["search", "x"], "there is no command 'search'.\n"),
        (["query", "x", "--filter=a = 1"], "Did you mean '--where'?"),
        (["changes", "x", "--since", "2026-01-01"], "Did you mean '--after'?"),
        (["verify", "x", "--since", "2026-01-01"], "no such option '--since'"),
        (["cleanup", "x", "--keep", "3"], "Did you mean '--retain-versions'?"),
        (["verify", "x", "--keep", "3"], "no such option '--keep'"),
        (["restore", "x", "--version", "1"], "VERSION is an argument, written without a name"),
    ],
)
def test_mistyped_words_get_suggestions(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unique abbreviations are accepted, ambiguous ones are not, and typing errors get the nearest
    word.
    """
    code = program.main(words)
    out, err = capsys.readouterr()
    assert (code in (2, 3), out, message in err) == (True, "", True), err


def test_folders_list_their_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users who forgot the name of a table look for it with `ls`."""
    for name in ("b.lance", "a"):
        lance_stream.create_dataset(tmp_path / "tables" / name, pa.table({"id": [1]}))
    assert program.main(["ls", str(tmp_path / "tables")]) == 0
    assert capsys.readouterr().out == "a\nb.lance\n"
    monkeypatch.chdir(tmp_path / "tables")
    assert program.main(["ls", "--json"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [
        {"name": "a"},
        {"name": "b.lance"},
    ]
    assert program.main(["ls", str(tmp_path)]) == 3
    assert "there are no tables directly in the folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "versions"),
    [
        (["--after", "{before}"], [1, 2]),
        (["--after", "{second}"], [2]),
        (["--after", "{after}"], []),
        (["--after", "{before}", "--through", "{first}"], [1]),
    ],
)
def test_changes_since_a_time(
    words: list[str], versions: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users ask for the changes of a day more often than for those of a version."""
    ds = lance_stream.create_dataset(tmp_path / "t", pa.table({"id": [1]}))
    ds = ds.append(pa.table({"id": [2]}))
    first, second = (version.timestamp for version in ds.versions())
    day = timedelta(days=1)
    times = {"first": first, "second": second, "before": first - day, "after": second + day}
    texts = {name: moment.isoformat() for name, moment in times.items()}
    assert (
        program.main(["changes", ds.uri, "--json", *(word.format(**texts) for word in words)]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["_commit_version"] for line in lines] == versions


@pytest.mark.parametrize("end", [0, 20, 50, 70])
def test_changes_until_a_time_match_python(end: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The clocks of writers differ, and both must put a version into the same interval."""
    ds = table_at(0, 50, 12, 60)
    changes = ds.changes(0, at(end)).read_all()
    lines = printed(capsys, "changes", ds.uri, "--through", at(end).isoformat())
    assert [line["id"] for line in lines] == changes["id"].to_pylist()
