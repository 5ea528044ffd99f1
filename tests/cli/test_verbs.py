"""The command line: what each verb prints, and its exit code."""

import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lance_stream
from lance_stream import Dataset
from lance_stream.cli import main as program
from lance_stream.cli import output
from lance_stream.cli.commands import ALIASES
from lance_stream.cli.read.values import rows_of
from lance_stream.environment import MACHINE, Environment
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.maintenance.consumers import record_progress
from lance_stream.quarantine.quarantine_writer import QuarantineBatch
from lance_stream.quarantine.table import quarantine_uri
from lance_stream.table.config.ledger_entries import LedgerEntry, config_entries
from lance_stream.verbs.append import append
from lance_stream.write.row_checks import CheckedBatches, RowRules, as_checks
from tests.golden.archives import unpack
from tests.golden.test_old_writers import FOLDER as OLD_WRITERS

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "name": [f"n{id_}" for id_ in ids]}, schema=SCHEMA)


@pytest.fixture
def ds() -> Dataset:
    """Five versions: none, three rows, two more, one changed and moved, one deleted."""
    uri = f"memory://{uuid.uuid4()}/t"
    dataset = lance_stream.create_dataset(uri, SCHEMA, config={"team": "blue"})
    dataset = dataset.append(rows(1, 2, 3)).append(rows(4, 5))
    return dataset.update({"id": "id", "name": "'new'"}, "id = 2").delete("id = 4")


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def naps() -> list[Callable[[], object]]:
    """What happens while a command sleeps, one act at a time; then it is interrupted."""
    return []


@pytest.fixture
def environment(naps: list[Callable[[], object]]) -> Environment:
    """An environment in which a command sleeps through `naps`."""

    def sleep(_seconds: float) -> None:
        if not naps:
            raise KeyboardInterrupt
        naps.pop(0)()

    return replace(MACHINE, sleep=sleep)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], environment: Environment) -> Run:
    """Return a function that runs a command and returns its exit code, stdout and stderr."""

    def run_it(*words: str) -> tuple[int, str, str]:
        code = program.main(list(words), environment)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run_it


def answer(run: Run, *words: str) -> str:
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    return out


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# --- show, log


def test_show_describes_the_table(run: Run, ds: Dataset) -> None:
    """`show` is the first command for an unknown table, so every fact has to agree with the
    dataset.
    """
    ds.tags.create("gold", 2)
    record_progress(ds.table.refs, "totals", 3)
    printed = answer(run, "show", ds.uri)
    lines = [" ".join(line.split()) for line in printed.splitlines()]
    assert f"{ds.uri} at version 5 of {ds.timestamp:%Y-%m-%d %H:%M:%SZ}" in lines
    assert "5 versions, 1 to 5; file version 2.2, with stable row ids" in lines
    assert any(
        line.startswith("4 rows and 2 deleted in 3 fragments; 3 data files") for line in lines
    )
    for line in ("id int64 not null", "name string", "team blue", "gold 2"):
        assert line in lines
    assert any(line.startswith("totals version 3 2 versions 20") for line in lines)


def test_show_admits_unknown_sizes(run: Run, tmp_path: Path) -> None:
    """Old writers did not record the size of files, and 0 bytes would be wrong."""
    with tarfile.open(OLD_WRITERS / "0.10.18.tar.xz") as tar:
        unpack(tar, tmp_path)
    uri = str(min(tmp_path.glob("*/table.lance")))
    assert json.loads(answer(run, "show", uri, "--json"))["data_bytes"] is None
    assert "of unknown size, " in answer(run, "show", uri)


def test_show_prints_all_metadata(run: Run, ds: Dataset) -> None:
    """What programs store with the table should be visible to people."""
    ds.update_metadata({"owner": "ana"}, schema={"source": "shop"}, fields={"id": {"unit": "1"}})
    lines = [" ".join(line.split()) for line in answer(run, "show", ds.uri).splitlines()]
    for line in ("table owner ana", "schema source shop", "column id unit 1"):
        assert line in lines
    (_, _, column) = json.loads(answer(run, "show", ds.uri, "--json"))["metadata"]
    assert column == {"of": "column", "column": "id", "key": "unit", "value": "1"}


def test_show_can_print_json(run: Run, ds: Dataset) -> None:
    """Monitoring scripts read these fields, whose names must not change."""
    record_progress(ds.table.refs, "totals", 4)
    printed = json.loads(answer(run, "show", ds.uri, "--json"))
    assert printed["versions"] == {"count": 5, "oldest": 1, "newest": 5}
    assert (printed["num_rows"], printed["num_deleted_rows"], printed["num_fragments"]) == (4, 2, 3)
    assert printed["columns"][0] == {"name": "id", "type": "int64", "nullable": False}
    assert printed["config"] == {"team": "blue"}
    assert printed["data_bytes"] == sum(
        file.size_bytes for file in ds.table.store.list("data") if file.path.endswith(".lance")
    )
    (consumer,) = printed["consumers"]
    assert (consumer["name"], consumer["version"], consumer["versions_behind"]) == ("totals", 4, 1)


def test_show_lists_streams_indices_and_tombstones(run: Run, ds: Dataset) -> None:
    """Entries of the package in the config are shown by their meaning and not as raw text."""
    data = pa.table({"id": [9], "name": ["x"], "op": ["d"]})
    ds = ds.upsert(data, "id", "name", "op = 'd'", "op", tombstones="7 days")
    ds.update_config(config_entries("orders", LedgerEntry(7, "q", 6, 3, "0f" * 16)))
    printed = json.loads(answer(run, "show", ds.uri, "--json"))
    assert printed["remembered_deletes"] == {"on": ["id"], "sequence_by": "name", "num_rows": 1}
    (stream,) = printed["streams"]
    assert stream == {
        "app_id": "orders",
        "batch": 7,
        "version": 6,
        "query": "q",
        "rows": 3,
        "digest": "0f" * 16,
    }
    assert printed["config"] == {"team": "blue"}
    assert "1 tombstone by id, ordered by name" in answer(run, "show", ds.uri)


@pytest.mark.parametrize("version", ["2", "gold", "moment"])
def test_show_takes_an_older_version(run: Run, ds: Dataset, version: str) -> None:
    """A version may be a number, a tag or a time, in every command."""
    ds.tags.create("gold", 2)
    if version == "moment":
        when = ds.checkout(2).timestamp
        assert when is not None
        version = when.isoformat()
    printed = json.loads(answer(run, "show", ds.uri, "--json", "--version", version))
    assert (printed["version"], printed["num_rows"]) == (2, 3)


def test_log_lists_versions_newest_first(run: Run, ds: Dataset) -> None:
    """The counts come from manifests and must agree with what each operation did."""
    lines = [line.split() for line in answer(run, "log", ds.uri).splitlines()]
    assert lines[0] == ["VERSION", "COMMITTED", "OPERATION", "ROWS", "CHANGES"]
    assert [(line[0], *line[3:]) for line in lines[1:]] == [
        ("5", "Delete", "4", "-1"),
        ("4", "Update", "5", "~1"),
        ("3", "Append", "5", "+2"),
        ("2", "Append", "3", "+3"),
        ("1", "Create", "0"),
    ]
    limited = objects(answer(run, "log", ds.uri, "--json", "--limit", "2"))
    assert [(row["version"], row["operation"]) for row in limited] == [
        (5, "Delete"),
        (4, "Update"),
    ]


def test_log_names_streams_and_batches(run: Run, ds: Dataset) -> None:
    """A version of a stream shows which one, and not the properties by which the ledger works."""
    more = rows(31, 32)
    batch = PendingBatch.of("orders", 7, "query", digest=digest_of(more))
    append(ds.table, more, micro_batch=batch)
    header, newest, older, *_ = answer(run, "log", ds.uri).splitlines()
    assert header.split()[-2:] == ["STREAM", "BATCH"]
    assert newest.split()[-2:] == ["orders", "7"]
    assert older.split()[-1] == "-1"  # and no stream
    assert "digest" not in newest


@pytest.mark.parametrize(("alias", "command"), list(ALIASES.items()))
def test_other_formats_names_of_commands_work(run: Run, alias: str, command: str) -> None:
    """Users of Delta or Iceberg type the names that they know from there."""
    usage, *text = answer(run, alias, "--help").splitlines()
    assert usage.startswith(f"Usage: lance-stream {alias} ")
    assert text == answer(run, command, "--help").splitlines()[1:]


def test_log_counts_restored_rows_on_request(run: Run, ds: Dataset) -> None:
    """Counting a restore compares two versions, which is too expensive to do for every listing."""
    ds.restore(3)
    (listed,) = objects(answer(run, "log", ds.uri, "--json", "-n", "1"))
    (counted,) = objects(answer(run, "log", ds.uri, "--json", "-n", "1", "--count-rows"))
    assert (listed["rows_inserted"], counted["rows_inserted"]) == (None, 1)


# --- changes


def test_changes_prints_the_feed(run: Run, ds: Dataset) -> None:
    """The printed changes must be the rows of the Python API."""
    printed = objects(answer(run, "changes", ds.uri, "--after", "2", "--format", "json"))
    expected = ds.changes(after=2).read_all().to_pylist()
    assert len(printed) == len(expected) == 5
    for row in expected:
        row["_commit_timestamp"] = row["_commit_timestamp"].isoformat()
    assert printed == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--after", "3"], ["update_preimage", "update_postimage", "delete"]),
        (["--after", "3", "--no-pre-images"], ["update_postimage", "delete"]),
        (["--after", "1", "--through", "2"], 3 * ["insert"]),
        (["--after", "gold", "--through", "3"], 2 * ["insert"]),
        (["--after", "1", "--net"], 4 * ["insert"]),
        (["--after", "3", "--filter", "id = 4"], ["delete"]),
        (
            ["--filter", "_change_type = 'delete' OR _commit_version = 2"],
            [*3 * ["insert"], "delete"],
        ),
        (["--after", "5"], []),
    ],
)
def test_changes_takes_an_interval(
    run: Run, ds: Dataset, words: list[str], expected: list[str]
) -> None:
    """`--after` excludes its version and `--through` includes it, for numbers and tags."""
    ds.tags.create("gold", 2)
    printed = objects(answer(run, "changes", ds.uri, *words, "--format", "json"))
    assert [row["_change_type"] for row in printed] == expected


def test_filters_may_use_unselected_columns(run: Run, ds: Dataset) -> None:
    """A filter is applied to whole rows, before columns are selected."""
    words = ["--columns", "name", "--filter", "id > 3 AND _commit_version > 0", "--format", "json"]
    printed = objects(answer(run, "changes", ds.uri, *words))
    assert [row["name"] for row in printed] == ["n4", "n5", "n4"]
    assert "id" not in printed[0]


def test_filters_may_use_unselected_struct_fields(run: Run, tmp_path: Path) -> None:
    """Fields of structs are read separately, so the filter's field has to be read in addition."""
    struct = pa.struct([("x", pa.int64()), ("y", pa.string())])
    uri = str(tmp_path / "nested")
    table = lance_stream.create_dataset(uri, pa.schema([("id", pa.int64()), ("s", struct)]))
    table.append(pa.table({"id": [1, 2], "s": [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]}))
    words = ["--columns", "id,s.x", "--filter", "s.y = 'a'", "--format", "json"]
    (printed,) = objects(answer(run, "changes", uri, *words))
    assert (printed["id"], printed["s"]) == (1, {"x": 1})


def test_following_survives_renamed_columns(
    run: Run, ds: Dataset, naps: list[Callable[[], object]]
) -> None:
    """The columns and filter of the command keep the meaning that they had at its start."""
    naps += [
        lambda: ds.rename_columns({"id": "n", "name": "label"}),
        lambda: ds.checkout(None).append(rows(77, 78).rename_columns(["n", "label"])),
    ]
    words = ["--columns", "name", "--filter", "id = 77", "--follow", "--format", "json"]
    _, out, _ = run("changes", ds.uri, *words)
    assert [row["name"] for row in objects(out)] == ["n77"]


def test_dropped_columns_stop_following(
    run: Run, ds: Dataset, naps: list[Callable[[], object]]
) -> None:
    """Printing nulls for a dropped column would go unnoticed in a pipe."""
    naps += [lambda: ds.drop_columns(["name"])]
    code, _, err = run("changes", ds.uri, "--columns", "name", "--follow")
    assert (code, "column 'name' no longer exists" in err) == (2, True)


def test_changes_have_the_last_versions_columns(run: Run, ds: Dataset) -> None:
    """Columns that were dropped or cast after the interval belong to it."""
    expected = ds.changes(0, 3).read_all()["name"].to_pylist()
    ds.alter_columns({"path": "name", "data_type": pa.large_string()}).drop_columns(["name"])
    words = ["changes", ds.uri, "--through", "3", "--json"]
    for others in ([], ["--columns", "id,name"], ["--filter", "name != 'x'"], ["--net"]):
        printed = objects(answer(run, *words, *others))
        assert [row["name"] for row in printed] == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--after", "6"], "cannot follow memory://.* after version 6: its newest version is 5"),
        (["--after", "2999-01-01"], "--after is 2999-01-01.* in the future; .* omit --after"),
        (["--after", "4", "--through", "3"], "after version 4, but --through is version 3"),
        (["--after", "0", "--through", "2999-01-01"], "--through is 2999-01-01.* in the future"),
    ],
)
def test_following_needs_a_possible_interval(
    run: Run, ds: Dataset, words: list[str], message: str
) -> None:
    """With any other interval the command would wait forever, or skip changes without a message."""
    code, out, problem = run("changes", ds.uri, "--follow", *words)
    assert (code, out) == (2, "")
    assert re.search(message, problem)


def test_changes_through_missing_versions_name_others(run: Run, ds: Dataset) -> None:
    """The remedy is that of the Python API: a snapshot, and the changes after it."""
    ds.cleanup(older_than="0 seconds", retain_versions=2)
    code, _, problem = run("changes", ds.uri, "--through", "3")
    assert code == 3
    assert "need version 3, which has been cleaned up" in problem
    code, _, problem = run("changes", ds.uri, "--through", "9")
    assert (code, "the newest version is 5" in problem) == (2, True)


def test_changes_show_chosen_change_columns(run: Run, ds: Dataset) -> None:
    """A narrow terminal leaves columns out, and `--columns` has to bring each of them back."""
    names = "_commit_timestamp,id,_change_type"
    printed = objects(answer(run, "changes", ds.uri, "--columns", names, "--format", "json"))
    assert list(printed[0]) == ["id", "_commit_timestamp", "_change_type"]
    assert [row["id"] for row in printed[:3]] == [1, 2, 3]
    only = objects(answer(run, "changes", ds.uri, "--columns", "_change_type", "--format", "json"))
    assert [list(row.values()) for row in only[:2]] == [["insert"], ["insert"]]


def test_watch_prints_each_state_as_json(
    run: Run, ds: Dataset, naps: list[Callable[[], object]]
) -> None:
    """A program that watches a table needs its versions, rates and lags without parsing text."""
    record_progress(ds.table.refs, "totals", 4)
    naps += [lambda: ds.append(rows(6, 7))]
    code, out, _ = run("watch", ds.uri, "--json", "-n", "2")
    before, after = objects(out)
    assert code == 130
    assert [state["version"] for state in (before, after)] == [5, 6]
    assert [version["version"] for version in after["versions"]] == [6, 5]
    assert (after["rows"], after["deleted_rows"]) == (6, 2)
    assert after["rows_per_second"]["inserted"] > 0 == after["rows_per_second"]["updated"]
    (lag,) = after["consumers"]
    assert (lag["name"], lag["versions"], lag["rows"]) == ("totals", 2, 3)


def test_watch_prints_rates_without_separators(run: Run, ds: Dataset) -> None:
    """All other numbers of the view are printed without them."""
    ds.append(rows(6)).append(rows(*range(100, 50_100)))
    assert re.search(r"inserted \d{4,}, updated", answer(run, "watch", ds.uri, "--once", "-n", "2"))


def test_watch_shows_phases_of_logs(run: Run, ds: Dataset, tmp_path: Path) -> None:
    """Only the sink's log tells which phase of a batch takes long."""
    log = tmp_path / "sink.log"
    entry = {"table": ds.uri, "version": 5, "seconds": {"scan": 0.25, "commit": 1.5}}
    log.write_text(f"INFO lance_sink {json.dumps(entry)}\n")
    out = answer(run, "watch", ds.uri, "--once", "--sink-log", str(log))
    assert "newest batch: scan 0.250 s, commit 1.500 s" in out
    assert "newest batch" not in answer(run, "watch", ds.uri, "--once")


def test_changes_can_print_a_table(run: Run, ds: Dataset) -> None:
    """Long and multi-line values must not break the alignment of a table."""
    ds.append(rows(7).set_column(1, "name", pa.array([60 * "é" + "\n"])))
    lines = answer(run, "changes", ds.uri, "--after", "3").splitlines()
    assert lines[0].split()[:4] == ["id", "name", "_change_type", "_commit_version"]
    assert [line.split()[2] for line in lines[1:4]] == [
        "update_preimage",
        "update_postimage",
        "delete",
    ]
    assert lines[4].split()[1] == 39 * "é" + "…"
    assert (
        len({line.index(str(number)) for line, number in zip(lines[1:3], (4, 4), strict=True)}) == 1
    )


def test_changes_can_stream_arrow(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even an empty interval must produce a stream with the schema."""
    for words, num_changes in ((["--after", "2"], 5), (["--after", "5"], 0)):
        printed = io.TextIOWrapper(io.BytesIO())
        monkeypatch.setattr(sys, "stdout", printed)
        assert program.main(["changes", ds.uri, *words, "--format", "arrow"]) == 0
        table = pa.ipc.open_stream(printed.buffer.getvalue()).read_all()
        assert table.equals(ds.changes(after=int(words[1])).read_all())
        assert table.num_rows == num_changes


def test_following_prints_new_versions(
    run: Run, ds: Dataset, naps: list[Callable[[], object]]
) -> None:
    """Each version must be printed once and in order, and `--through` ends the command."""
    naps += [partial(ds.append, rows(number)) for number in range(10, 13)]
    words = ["--after", "4", "--through", "8", "--follow", "--format", "json"]
    printed = objects(answer(run, "changes", ds.uri, *words))
    assert [(row["_commit_version"], row["id"]) for row in printed] == [
        (5, 4),
        (6, 10),
        (7, 11),
        (8, 12),
    ]


def test_following_runs_until_interrupted(
    run: Run, ds: Dataset, naps: list[Callable[[], object]]
) -> None:
    """Without `--after` following begins with the next version."""
    naps += [lambda: None, lambda: ds.append(rows(77)), lambda: None]
    code, out, err = run("changes", ds.uri, "--follow", "--format", "json")
    assert (code, err) == (130, "")
    assert [row["id"] for row in objects(out)] == [77]


@pytest.mark.parametrize("num_versions", [0, 1, 3], ids=["fewer", "as many", "more"])
def test_following_notices_a_restored_copy(
    run: Run, tmp_path: Path, naps: list[Callable[[], object]], num_versions: int
) -> None:
    """A restored copy continues with the same numbers for other contents."""
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, rows(1).schema)
    shutil.copytree(uri, tmp_path / "copy")

    def restore_copy() -> None:
        shutil.rmtree(uri)
        shutil.copytree(tmp_path / "copy", uri)
        for number in range(num_versions):
            lance_stream.open_dataset(uri).append(rows(100 + number))

    naps += [lambda: ds.append(rows(77)), restore_copy]
    code, out, err = run("changes", uri, "--follow", "--format", "json")
    assert (code, [row["id"] for row in objects(out)]) == (3, [77])
    assert "version 2" in err
    assert "restored from a copy" in err


def test_following_shows_added_columns(
    run: Run, ds: Dataset, naps: list[Callable[[], object]]
) -> None:
    """A table for people repeats its header when the columns change."""
    naps += [
        lambda: ds.append(rows(77)),
        lambda: ds.checkout(None).add_columns(pa.field("x", pa.int8())),
        lambda: ds.checkout(None).append(rows(78)),
    ]
    _, out, _ = run("changes", ds.uri, "--follow", "--format", "table")
    assert [line.split()[0] for line in out.splitlines()] == ["id", "77", "id", "78"]
    assert out.splitlines()[2].split()[2] == "x"


def test_arrow_streams_end_when_columns_change(
    ds: Dataset,
    naps: list[Callable[[], object]],
    environment: Environment,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A stream of Arrow has one schema, so it has to end with a readable rest."""
    naps += [
        lambda: ds.append(rows(77)),
        lambda: ds.checkout(None).add_columns(pa.field("x", pa.int8())),
    ]
    printed = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", printed)
    words = ["changes", ds.uri, "--follow", "--format", "arrow"]
    assert program.main(words, environment) == 2
    assert "the columns of the table changed" in capsys.readouterr().err
    assert pa.ipc.open_stream(printed.buffer.getvalue()).read_next_batch().num_rows == 1


# --- taking care


def test_compact_reports_its_work(run: Run, ds: Dataset) -> None:
    """A second run has nothing to do and says so without a new version."""
    assert answer(run, "compact", ds.uri) == "committed version 6: compacted 3 fragments to 1\n"
    assert answer(run, "compact", ds.uri) == "nothing to compact at version 6\n"
    assert ds.checkout(None).to_table()["id"].to_pylist() == [1, 3, 5, 2]


def test_cleanup_reports_what_it_removed(run: Run, ds: Dataset) -> None:
    """The report has to agree between a dry run and the real run, and name what is retained and
    why.
    """
    ds.tags.create("gold", 2)
    assert answer(run, "cleanup", ds.uri, "--older-than", "7d").startswith(
        "removed 0 versions, 0 files, 0 bytes"
    )
    printed = answer(run, "cleanup", ds.uri, "--retain-versions", "1", "--dry-run")
    assert printed.startswith("would remove 3 versions, ")
    assert "kept 1 for the tag gold" in printed
    assert len(ds.versions()) == 5
    printed = json.loads(answer(run, "cleanup", ds.uri, "--older-than", "0s", "--json"))
    assert (printed["versions"], printed["protected"], printed["is_dry_run"]) == (
        [1, 3, 4],
        {"gold": 1},
        False,
    )
    assert [version.version for version in ds.versions()] == [2, 5]


def test_verify_exits_1_on_violations(run: Run, ds: Dataset) -> None:
    """Monitoring relies on the exit code, which differs from those of errors."""
    assert answer(run, "verify", ds.uri) == f"{ds.uri} is valid at version 5\n"
    assert answer(run, "verify", ds.uri, "--json", "--version", "2") == ""
    path = ds.table.store.list("data")[0].path
    ds.table.store.write(path, b"?")
    code, out, err = run("verify", ds.uri)
    assert (code, err) == (1, "")
    assert "data files: fragment" in out
    code, out, _ = run("verify", ds.uri, "--json")
    assert code == 1
    assert {row["rule"] for row in objects(out)} >= {"data files"}


def test_indices_are_listed_and_updated(run: Run, tmp_path: Path) -> None:
    """The share of indexed rows must change from the listing before to the one after the update."""
    uri = str(tmp_path / "indexed")
    lance_stream.create_dataset(uri, pa.table({"id": [1, 2], "name": ["a", "b"]}))
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    lance_stream.open_dataset(uri).append(pa.table({"id": [3], "name": ["c"]}))
    lines = [line.split() for line in answer(run, "indices", "list", uri).splitlines()]
    assert lines[1][:6] == ["id_idx", "BTREE", "id", "2", "1", "66.7%"]
    description = json.loads(answer(run, "show", uri, "--json"))
    assert description["indices"][0]["rows_unindexed"] == 1
    result = json.loads(answer(run, "indices", "optimize", uri, "--json"))
    assert result == {"is_committed": True, "version": 4, "indices": ["id_idx"]}
    assert answer(run, "indices", "optimize", uri) == (
        "all indices are up to date with version 4\n"
    )
    index = json.loads(answer(run, "indices", "list", uri, "--json"))
    assert (index["rows_indexed"], index["rows_unindexed"], index["fraction"]) == (3, 0, 1.0)
    lance_stream.open_dataset(uri).append(pa.table({"id": [4], "name": ["d"]}))
    assert answer(run, "indices", "optimize", uri, "--index", "id_idx") == (
        "committed version 6: id_idx\n"
    )


def test_consumers_can_be_listed_and_dropped(run: Run, ds: Dataset) -> None:
    """A forgotten consumer can only be removed by this command."""
    record_progress(ds.table.refs, "totals", 2)
    lines = answer(run, "consumers", "list", ds.uri).splitlines()
    assert lines[1].split()[:3] == ["totals", "2", "3"]
    assert answer(run, "consumers", "drop", ds.uri, "totals") == "dropped the consumer totals\n"
    assert len(answer(run, "consumers", "list", ds.uri).splitlines()) == 1


def test_streams_can_be_listed_and_forgotten(run: Run, ds: Dataset) -> None:
    """Errors about batches advise to forget a stream, whose rows have to stay."""
    uri = ds.uri
    append(ds.table, rows(6, 7), PendingBatch.of("orders", 3, "a query"))
    (line,) = answer(run, "streams", "list", uri).splitlines()[1:]
    assert line.split()[:4] == ["orders", "3", "6", "?"]
    assert json.loads(answer(run, "streams", "list", uri, "--json"))["query"] == "a query"
    assert answer(run, "streams", "forget", uri, "orders") == (
        "committed version 7: forgot the stream orders\n"
    )
    assert len(answer(run, "streams", "list", uri).splitlines()) == 1
    assert lance_stream.open_dataset(uri).count_rows() == 6
    code, _, error = run("streams", "forget", uri, "orders")
    assert code == 3
    assert "has no stream 'orders'; its streams are none" in error


def test_forgotten_streams_lose_no_bad_rows(run: Run, ds: Dataset) -> None:
    """A sink died before it published its bad rows, which only the ledger's entry names."""
    checked = CheckedBatches(rows(6, -7).to_batches(), RowRules(ds.schema, as_checks("id > 0")))
    good = pa.Table.from_batches(list(checked))
    batch = MicroBatch("orders", 3)
    quarantine = QuarantineBatch(quarantine_uri(ds.uri), {}, batch)
    rules = {"mode": "append", "on": [], "sequence_by": None, "except_columns": [], "expect": {}}
    quarantine.stage(checked.bad, rules, ds.table)
    append(ds.table, good, PendingBatch(batch, checked.digest, quarantine.file))
    answer(run, "streams", "forget", ds.uri, "orders")
    (group,) = lance_stream.list_quarantine(ds.uri)
    assert (group.batch_id, group.num_rows, group.state) == (3, 1, "ready")


def test_a_folder_of_tables_names_them(run: Run, tmp_path: Path) -> None:
    """Users of a database point at its folder first."""
    for name in ("orders.lance", "events.lance"):
        lance_stream.create_dataset(str(tmp_path / name), SCHEMA)
    (tmp_path / "logs").mkdir()
    for command in ("show", "head"):
        code, out, error = run(command, str(tmp_path))
        assert (code, out) == (3, "")
        assert "The folder has tables: events.lance, orders.lance\n" in error


# --- how it ends


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["changes", "URI", "--after", "9"], 2, "after version 9"),
        (["changes", "URI", "--filter", "id ="], 2, "is not a SQL expression"),
        (["changes", "URI", "--interval", "0"], 2, "--interval must be greater than 0"),
        (["cleanup", "URI", "--older-than", "soon"], 2, "'soon' is not an age"),
        (["cleanup", "URI", "--retain-versions", "0"], 2, "0 is not a positive whole number"),
        (["show", "URI", "-o", "secret shhh"], 2, "a storage option must be KEY=VALUE"),
        (["ls", "--namespace", "header.Authorization shhh"], 2, "a namespace must be KEY=VALUE"),
        (["show", "URI", "--version", "2020-01-01"], 3, "at 2020-01-01T00:00:00+00:00"),
        (["consumers", "drop", "URI", "a b"], 2, "cannot be the name of a consumer"),
        (["frobnicate", "URI"], 2, "there is no command 'frobnicate'"),
        ([], 2, "Usage: lance-stream"),
        (["show", "memory://nobody/nothing"], 3, "there is no dataset at"),
        (["show", "URI", "--version", "99"], 3, "has no version 99"),
        (["show", "URI", "--version", "2026-13-01"], 3, "and ISO 8601 on the command line"),
        (["head", "URI", "--json", "--format", "arrow"], 2, "omit one of them"),
        (["changes", "URI", "--after", "silver"], 3, "tag 'silver' does not exist"),
        (["changes", "URI", "--columns", "nope"], 3, "nope"),
        (["indices", "optimize", "URI"], 4, "pylance cannot read memory://"),
        (["consumers", "drop", "URI", "nobody"], 3, "there is no consumer 'nobody'"),
        (["show", "hdfs://namenode/t"], 4, "abfss://"),
    ],
)
def test_failures_have_messages_and_exit_codes(
    run: Run, ds: Dataset, words: list[str], code: int, message: str
) -> None:
    """Scripts tell wrong usage, missing objects and unsupported features apart by the exit code."""
    got, out, err = run(*[ds.uri if word == "URI" else word for word in words])
    assert (got, out) == (code, "")
    assert message in err
    assert "shhh" not in err


def test_damage_is_reported_with_its_location(run: Run, ds: Dataset) -> None:
    """The user needs the path of the damaged file in order to restore it."""
    path = ds.table.log.manifest_path(5)
    ds.table.store.write(path, ds.table.store.read(path)[:-4])
    code, _, err = run("log", ds.uri)
    assert code == 4
    assert f"\n  manifest {ds.uri}/{path}" in err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (lance_stream.CommitUncertainError("?"), 5),
        (lance_stream.RetryableConflictError("?", 3), 5),
        (lance_stream.LanceStreamError("?"), 1),
        (PermissionError("?"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_every_error_has_an_exit_code(
    run: Run, ds: Dataset, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    """A conflict can be retried by a script while other errors cannot."""

    def fail(*_: object, **__: object) -> Dataset:
        raise error

    monkeypatch.setattr(Dataset, "cleanup", fail)
    assert run("cleanup", ds.uri)[0] == code


PROCESS = """
import atexit, runpy, sys
atexit.register(lambda: "pyspark" in sys.modules and sys.stderr.write("Spark was loaded"))
runpy.run_module("lance_stream.cli", run_name="__main__")
"""


def test_a_closed_pipe_ends_the_process(
    tmp_path: Path,
) -> None:
    """`head` closes the pipe early, and the process must end quietly; it loads no Spark either."""
    ds = lance_stream.create_dataset(tmp_path / "t", SCHEMA).append(rows(*range(20_000)))
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, "changes", ds.uri, "--format", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert json.loads(process.stdout.readline())["id"] == 0
    process.stdout.close()
    assert process.wait() == 0
    assert process.stderr.read() == ""
    process.stderr.close()


def test_the_console_script_is_this_program() -> None:
    """A module that moves would break the installed command and no import in the tests."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["lance-stream"].partition(":")
    assert f"{module}:{function}" == "lance_stream.cli.start:main"
    assert callable(getattr(import_module(module), function))


# --- what is printed


def test_all_kinds_of_values_become_json() -> None:
    """JSON lacks most types of the format, and an unexpected one must not fail the output."""
    nested = pa.struct([pa.field("b", pa.binary()), pa.field("t", pa.list_(pa.time64("us")))])
    batch = pa.record_batch(
        {
            "ns": pa.array([1_500_000_000_000_000_001], pa.timestamp("ns")),
            "day": pa.array([1], pa.date32()),
            "d": pa.array(["1.50"]).cast(pa.decimal128(5, 2)),
            "f": pa.array([float("inf")]),
            "n": pa.array([{"b": b"\x00\xff", "t": [3_600_000_000]}], nested),
            "age": pa.array([timedelta(days=1)]),
            "none": pa.nulls(1),
            "m": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int8())),
        }
    )
    (row,) = rows_of(batch)
    assert json.loads(output.to_json(row)) == {
        "ns": "2017-07-14T02:40:00.000000001",
        "day": "1970-01-02",
        "d": "1.50",
        "f": "inf",
        "n": {"b": "AP8=", "t": ["01:00:00"]},
        "age": "1 day, 0:00:00",
        "none": None,
        "m": [["k", 1]],
    }


@pytest.mark.floors
@pytest.mark.parametrize("zone", ["Asia/Tokyo", "+09:00", "Nowhere/Else", "\x1b[2J"])
def test_times_are_printed_in_utc_everywhere(zone: str) -> None:
    """A column's zone may be unknown to this machine or hostile text, at any nesting depth."""
    micros, nanos = pa.timestamp("us", zone), pa.timestamp("ns", zone)
    nested = pa.struct([pa.field("l", pa.list_(micros)), pa.field("m", pa.map_(pa.int8(), micros))])
    batch = pa.record_batch(
        {
            "us": pa.array([0], pa.int64()).cast(micros),
            "ns": pa.array([1], pa.int64()).cast(nanos),
            "f": pa.array([[0]], pa.list_(pa.int64(), 1)).cast(pa.list_(micros, 1)),
            "big": pa.array([[0]], pa.large_list(pa.int64())).cast(pa.large_list(micros)),
            "n": pa.array(
                [{"l": [0], "m": [(1, 0)]}],
                pa.struct([("l", pa.list_(pa.int64())), ("m", pa.map_(pa.int8(), pa.int64()))]),
            ).cast(nested),
        }
    )
    start = "1970-01-01T00:00:00+00:00"
    (row,) = rows_of(batch)
    assert json.loads(output.to_json(row)) == {
        "us": start,
        "ns": "1970-01-01T00:00:00.000000001+00:00",
        "f": [start],
        "big": [start],
        "n": {"l": [start], "m": [[1, start]]},
    }


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1234, "1.23 kB"), (10**17, "100 PB")],
)
def test_sizes_are_printed_with_few_digits(num_bytes: int, text: str) -> None:
    """People compare sizes at a glance."""
    assert output.size(num_bytes) == text


def test_timestamps_are_printed_in_utc() -> None:
    """The local zone of the machine would make two reports differ."""
    assert output.moment(datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)) == "2026-01-02 03:04:05Z"
    assert output.moment(None) == "-"


def test_verify_compares_rows_with_other_tables(run: Run, ds: Dataset, tmp_path: Path) -> None:
    """The other table may be another version, a replica or a Parquet file."""
    same = pa.Table.from_batches(reversed(ds.to_table().to_batches()), ds.schema)
    replica = lance_stream.create_dataset(tmp_path / "replica", ds.schema).append(same)
    pq.write_table(same, tmp_path / "same.parquet")
    for other in (replica.uri, str(tmp_path / "same.parquet")):
        assert "the rows are the same" in answer(run, "verify", ds.uri, "--against", other)
    code, out, _ = run("verify", ds.uri, "--against", ds.uri, "--against-version", "2")
    assert (code, "the rows differ" in out) == (1, True)
    code, out, _ = run("verify", ds.uri, "--columns", "id")
    assert code != 0
    changed = replica.update({"name": "'another'"}, where="id = 2")
    code, out, _ = run("verify", ds.uri, "--against", changed.uri)
    assert (code, out.splitlines()[-1]) == (1, "the rows differ in name")


def test_parquet_files_may_have_different_columns(run: Run, tmp_path: Path) -> None:
    """Partition columns come from folder names, and older files lack columns that are then null."""
    whole = pa.table({"id": [1, 2, 3], "name": [None, None, "c"], "day": [7, 7, 8]})
    ds = lance_stream.create_dataset(tmp_path / "whole", whole.schema).append(whole)
    folder = tmp_path / "folder"
    for rows_of_day, day in ((slice(0, 2), 7), (slice(2, 3), 8)):
        (folder / f"day={day}").mkdir(parents=True)
        part = whole.slice(rows_of_day.start, rows_of_day.stop - rows_of_day.start).drop_columns(
            "day"
        )
        columns_of_day = part.drop_columns("name") if day == 7 else part
        pq.write_table(columns_of_day, folder / f"day={day}" / "part.parquet")
    assert answer(run, "verify", ds.uri, "--against", str(folder)).endswith("same\n")
    for name in ("name", "day"):
        chosen = ("--columns", name, "--against", str(folder))
        assert answer(run, "verify", ds.uri, *chosen).endswith("same\n")
    shorter = lance_stream.create_dataset(tmp_path / "shorter", whole.schema).append(whole)
    for name in ("name", "day"):
        shorter = shorter.drop_columns(name)
        code, out, _ = run("verify", shorter.uri, "--against", str(folder))
        assert (code, name in out.splitlines()[-1]) == (1, True)
    code, _, error = run("verify", ds.uri, "--columns", "other", "--against", str(folder))
    assert (code != 0, "other" in error) == (True, True)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
@pytest.mark.parametrize(
    "words", [["show"], ["show", "--json"], ["changes"], ["changes", "--format", "json"]], ids=str
)
def test_unencodable_output_is_escaped(
    words: list[str], encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal with a narrow encoding must not end a command with a UnicodeEncodeError."""
    rows = pa.table({"ü": ["日本"]})
    uri = str(tmp_path / "t")
    lance_stream.create_dataset(uri, rows.schema).append(rows)
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding))
    assert program.main([words[0], uri, *words[1:]]) == 0
    if words == ["show", "--json"]:
        assert "ü" in str(json.loads(printed.getvalue()))
    elif "json" in words:
        (row,) = map(json.loads, printed.getvalue().splitlines())
        assert row["ü"] == "日本"
    elif words == ["changes"]:
        assert rb"\u65e5\u672c" in printed.getvalue()


def test_missing_stdout_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons start programs without stdout."""
    lance_stream.create_dataset(tmp_path / "t", pa.schema([("id", pa.int64())]))
    monkeypatch.setattr(sys, "stdout", None)
    assert program.main(["log", str(tmp_path / "t")]) == 0


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf"])
def test_the_poll_interval_is_validated(
    seconds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interval of zero or NaN would poll the store without pause."""
    lance_stream.create_dataset(tmp_path / "t", pa.schema([("id", pa.int64())]))
    words = ["changes", str(tmp_path / "t"), "--follow", "--through", "1", "--interval", seconds]
    assert program.main(words) == 2
    assert "--interval" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["3", "007", "2026-11-05"])
def test_prefix_reaches_tags_resembling_versions(run: Run, ds: Dataset, name: str) -> None:
    """A number or time takes precedence, so such tags need the prefix `tag:`, which the error
    mentions.
    """
    ds.tags.create(name, 2)
    ds.tags.create("99", 1)
    assert json.loads(run("show", ds.uri, "--version", f"tag:{name}", "--json")[1])["version"] == 2
    code, out, _ = run("changes", ds.uri, "--after", f"tag:{name}", "--through", "3", "--json")
    assert (code, len(out.splitlines())) == (0, 2)
    code, _, problem = run("show", ds.uri, "--version", "99")
    assert code == 3
    assert "There is a tag of this name: tag:99" in problem


def test_messages_recommend_commands_not_python(run: Run, ds: Dataset) -> None:
    """A user of the command line cannot follow advice that is Python code."""
    ds.branches.create("dev")
    ds.checkout(("dev", None)).tags.create("gold")
    bare = lance_stream.create_dataset(f"{ds.uri}.bare", SCHEMA, stable_row_ids=False)
    for words, advice in (
        (["branches", "create", ds.uri, "dev"], "lance-stream branches delete URI dev"),
        (["branches", "create", ds.uri, "dev"], "--branch dev"),
        (["branches", "delete", ds.uri, "dev", "--yes"], "lance-stream tags delete URI NAME"),
        (["clone", ds.uri, f"{ds.uri}/tree/x"], "lance-stream branches create URI NAME VERSION"),
        (["changes", bare.uri], "lance-stream migrate URI stable-row-ids"),
    ):
        code, _, problem = run(*words)
        assert code in (2, 3, 4), problem
        assert advice in problem
        assert "ds." not in problem
        assert "open_dataset(" not in problem
        assert "lance_stream." not in problem


def test_following_needs_a_future_end(run: Run, ds: Dataset) -> None:
    """An end in the past would wait forever."""
    code, out, problem = run("changes", ds.uri, "--follow", "--through", "3", "--net")
    assert (code, out) == (2, "")
    assert "add --after" in problem
    assert run("changes", ds.uri, "--follow", "--through", "3", "--after", "0", "--net")[0] == 0


INTERRUPTED = """
import sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "lance_stream.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
from lance_stream.cli.start import main
sys.exit(main())
"""


def test_interrupts_during_imports_are_quiet() -> None:
    """Imports take long enough for a user to press Ctrl-C."""
    process = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")
