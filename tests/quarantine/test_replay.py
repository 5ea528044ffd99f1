"""Rows leave the quarantine for the table, each exactly once."""

import base64
import itertools
import json
import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.cli import main as program
from lance_stream.environment import MACHINE
from lance_stream.errors import (
    CommitConflictError,
    CorruptDataError,
    InvalidInputError,
    RetryableConflictError,
)
from lance_stream.ledger.foreign_restores import MAX_UNCHECKED_VERSIONS
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import digest_of
from lance_stream.quarantine import quarantine_writer
from lance_stream.quarantine import replay as replaying
from lance_stream.quarantine.claims import APP_ID, _is_committed
from lance_stream.quarantine.corrections import corrected
from lance_stream.quarantine.quarantine_writer import QuarantineBatch, publish
from lance_stream.quarantine.recorded_rules import parse_rules
from lance_stream.quarantine.table import (
    QUARANTINE_SCHEMA,
    TABLE_KEY,
    normalized,
    open_quarantine,
    quarantine_uri,
)
from lance_stream.storage.local_store import LocalStore
from lance_stream.table import paths
from lance_stream.table.config import ledger_entries
from lance_stream.verbs.append import append, append_fragments
from lance_stream.write.row_checks import BadRows, CheckedBatches, RowRules, as_checks

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.uint8())])
WIDE = pa.schema([("id", pa.int64()), ("x", pa.int16())])


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    uri = str(tmp_path / "t.lance")
    lance_stream.create_dataset(uri, COLUMNS)
    return uri


def rules_of(mode="append", sequence_by=None, expect=(), on=(), **more):
    return {
        "mode": mode,
        "on": list(on),
        "sequence_by": sequence_by,
        "except_columns": [],
        "expect": {
            check.name: {"condition": check.condition, "columns": {}} for check in as_checks(expect)
        },
        **more,
    }


def types_of(*kinds):
    schema = pa.schema([(name, kind) for name, kind in zip(("x", "id"), kinds, strict=False)])
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def take_in(uri, batch_id, rows, *, schema=WIDE, expect=(), dies=None, app_id="app", **rules):
    """Do what a sink does with a batch; it may die before its commit ("staged") or after it."""
    table_columns = lance_stream.open_dataset(uri).table.arrow_schema
    columns = pa.schema([field for field in table_columns if field.name in schema.names])
    batch = pa.RecordBatch.from_pylist(rows, schema)
    sorting = RowRules(columns, as_checks(expect), keeps_rows=True)
    checked = CheckedBatches([batch], sorting)
    good = pa.Table.from_batches(list(checked))
    table = lance_stream.open_dataset(uri).table
    quarantine = QuarantineBatch(quarantine_uri(uri), {}, MicroBatch(app_id, batch_id))
    quarantine.begin(table)
    quarantine.stage(checked.bad, rules_of(expect=expect, **rules), table)
    if dies == "staged":
        return
    identity = PendingBatch.of(app_id, batch_id, digest=checked.digest, quarantined=quarantine.file)
    if good.num_rows:
        append(table, good, identity)
    else:
        append_fragments(table, [], identity, even_without_rows=True)
    if dies != "committed":
        quarantine.publish(table)


def rows_of(uri):
    rows = lance_stream.open_dataset(uri).to_table().to_pylist()
    return sorted((row["id"], row["x"]) for row in rows)


def num_quarantined(uri):
    return lance_stream.open_dataset(quarantine_uri(uri)).count_rows()


def test_rows_stay_until_they_fit(uri: str) -> None:
    """Each replay takes the rows that a fix repairs, and the others must neither get lost nor
    block them.
    """
    take_in(uri, 0, [{"id": 1, "x": 1}, {"id": 2, "x": 300}, {"id": None, "x": 2}])
    assert rows_of(uri) == [(1, 1)]
    result = lance_stream.replay_quarantine(uri)
    assert result == lance_stream.ReplayResult(0, {"type": 1, "null": 1})
    result = lance_stream.replay_quarantine(uri, fix={"x": "x % 200"})
    assert (result.rows_replayed, result.rows_remaining) == (1, {"null": 1})
    result = lance_stream.replay_quarantine(
        uri, fix=lambda rows: rows.set_column(0, "id", rows["id"].fill_null(7))
    )
    assert (result.rows_replayed, result.rows_remaining) == (1, {})
    assert rows_of(uri) == [(1, 1), (2, 100), (7, 2)]
    assert num_quarantined(uri) == 0
    assert lance_stream.replay_quarantine(uri) == lance_stream.ReplayResult()
    assert lance.dataset(uri).to_table().num_rows == 3
    assert lance.dataset(quarantine_uri(uri)).count_rows() == 0


def test_locations_may_be_path_objects(uri: str) -> None:
    """All other functions accept them, too."""
    take_in(uri, 0, [{"id": 1, "x": 300}])
    (group,) = lance_stream.list_quarantine(Path(uri), quarantine=Path(quarantine_uri(uri)))
    assert group.num_rows == 1
    assert lance_stream.replay_quarantine(Path(uri), fix={"x": "x % 200"}).rows_replayed == 1
    assert rows_of(uri) == [(1, 100)]


def test_replays_succeed_after_schema_evolution(uri: str) -> None:
    """Widening the column is often the fix, and it needs no change of the rows."""
    take_in(uri, 0, [{"id": 1, "x": 300}])
    lance_stream.open_dataset(uri).drop_columns("x").add_columns(pa.field("x", pa.int32()))
    assert lance_stream.replay_quarantine(uri).rows_replayed == 1
    assert rows_of(uri) == [(1, 300)]


def test_dropped_columns_keep_rows_in_quarantine(uri: str) -> None:
    """Dropping the values silently would lose data that the user may still want."""
    take_in(uri, 0, [{"id": 1, "x": 300}])
    lance_stream.open_dataset(uri).drop_columns("x")
    (problem,) = lance_stream.replay_quarantine(uri).rows_remaining
    assert "no column 'x'" in problem
    result = lance_stream.replay_quarantine(uri, fix=lambda rows: rows.drop_columns(["x"]))
    assert result.rows_replayed == 1


def test_recorded_checks_apply_by_default(uri: str) -> None:
    """A replay must not let a row past the check that refused it, unless the user replaces the
    checks.
    """
    take_in(uri, 0, [{"id": 1, "x": 3}, {"id": 2, "x": 2}], expect={"large": "x > 9"})
    assert lance_stream.replay_quarantine(uri).rows_remaining == {"large": 2}
    result = lance_stream.replay_quarantine(uri, expect="x > 2")
    assert (result.rows_replayed, result.rows_remaining) == (1, {"x > 2": 1})
    assert lance_stream.replay_quarantine(uri, expect={}).rows_replayed == 1
    assert rows_of(uri) == [(1, 3), (2, 2)]


def test_only_selected_rows_are_replayed(uri: str) -> None:
    """A fix usually suits the rows of one batch or reason."""
    take_in(uri, 0, [{"id": 1, "x": 1}], expect={"large": "x > 9"})
    take_in(uri, 1, [{"id": 2, "x": 1}], expect={"large": "x > 9"})
    result = lance_stream.replay_quarantine(uri, where="batch_id = 1", expect={})
    assert result.rows_replayed == 1
    assert rows_of(uri) == [(2, 1)]


def test_json_is_fixed_as_text(tmp_path: Path) -> None:
    """Quarantined values have arrived as text, while checks see what the table would store."""
    uri = str(tmp_path / "json.lance")
    lance_stream.create_dataset(uri, pa.schema([("id", pa.int64()), ("j", pa.json_())]))
    columns = pa.schema([("id", pa.int64()), ("j", pa.string())])
    take_in(uri, 0, [{"id": 1, "j": "{a:1}"}], schema=columns)
    assert num_quarantined(uri) == 1
    with pytest.raises(InvalidInputError, match="uses 'j', which is JSON"):
        lance_stream.replay_quarantine(uri, fix={"j": "'1'"}, expect="length(j) > 1")
    fix = {"j": "concat('[', length(j), ']')"}
    result = lance_stream.replay_quarantine(uri, fix=fix, expect="j IS NOT NULL")
    assert result.rows_replayed == 1
    assert lance_stream.open_dataset(uri).to_table()["j"].to_pylist() == ["[5]"]


def test_uncommitted_batches_are_never_listed(uri: str) -> None:
    """Spark repeats the batch, perhaps by a sink with other checks, whose bad rows count."""
    rows = [{"id": 1, "x": 1}, {"id": 2, "x": 300}]
    take_in(uri, 0, rows, dies="staged")
    assert lance_stream.list_quarantine(uri) == []
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}) == lance_stream.ReplayResult()
    take_in(uri, 0, rows, expect="x > 1")
    assert [(batch.reason, batch.num_rows) for batch in lance_stream.list_quarantine(uri)] == [
        ("type", 1),
        ("x > 1", 1),
    ]
    assert lance_stream.replay_quarantine(uri, fix={"x": "5"}).rows_replayed == 2
    assert rows_of(uri) == [(1, 5), (2, 5)]


def bad(number):
    return [{"id": number, "x": number}, {"id": -number, "x": 300 + number}]


def states_of(uri):
    return sorted(
        (json.loads(group.row)["x"], group.state) for group in lance_stream.list_quarantine(uri)
    )


@pytest.mark.parametrize("reader", ["list", "replay", "next batch", "good batch", "same batch"])
def test_quarantine_completes_after_killed_sinks(uri: str, reader: str) -> None:
    """A sink may die between its commit and the quarantine's, and the next process completes it."""
    take_in(uri, 0, bad(1))
    take_in(uri, 1, bad(2), dies="committed")
    assert num_quarantined(uri) == 1
    expected = [(301, "ready"), (302, "ready")]
    if reader == "replay":
        assert lance_stream.replay_quarantine(uri, where="batch_id = 9").rows_replayed == 0
    elif reader == "next batch":
        take_in(uri, 2, bad(3))
        expected.append((303, "ready"))
    elif reader == "good batch":  # by a sink without a quarantine, and then by one with
        good = pa.Table.from_pylist([{"id": 3, "x": 3}], COLUMNS)
        append(lance_stream.open_dataset(uri).table, good, micro_batch(2, good))
        take_in(uri, 3, bad(4))
        expected.append((304, "ready"))
    elif reader == "same batch":
        publish(quarantine_uri(uri), {}, lance_stream.open_dataset(uri).table, "app")
    assert states_of(uri) == expected
    assert num_quarantined(uri) == (1 if reader == "list" else len(expected))
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == len(expected)


def micro_batch(number: int, rows: pa.Table) -> PendingBatch:
    return PendingBatch.of("app", number, digest=digest_of(rows))


def test_good_batches_only_read_the_quarantine(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most batches have no bad row, and each request of theirs delays the next batch."""
    take_in(uri, 0, bad(1))
    table = lance_stream.open_dataset(uri).table
    requests: list[str] = []
    for name in ("list_names", "read", "read_ranges", "write", "create_once", "delete"):
        monkeypatch.setattr(LocalStore, name, logged(getattr(LocalStore, name), requests))
    quarantine = QuarantineBatch(quarantine_uri(uri), {}, MicroBatch("app", 1))
    quarantine.begin(table)
    quarantine.stage(BadRows(), rules_of(), table)
    quarantine.publish(table)
    assert requests == ["list_names", "read_ranges"]


def logged(function: Callable[..., Any], requests: list[str]) -> Callable[..., Any]:
    """Return a function that records its name before it does its work."""

    def call(*args: Any, **kwargs: Any) -> Any:
        requests.append(function.__name__)
        return function(*args, **kwargs)

    return call


def test_first_replays_create_the_quarantine(uri: str) -> None:
    """The very first sink with bad rows dies before there is a quarantine."""
    take_in(uri, 0, bad(1), dies="committed")
    assert states_of(uri) == [(301, "ready")]
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == 1
    assert rows_of(uri) == [(-1, 1), (1, 1)]


def test_cleanup_keeps_staged_rows_in_ledgers(uri: str) -> None:
    """Staged rows exist nowhere else until they are in the quarantine; those of killed attempts
    are useless.
    """
    take_in(uri, 0, bad(1), dies="staged")
    take_in(uri, 0, bad(2), dies="committed")
    staged = Path(uri, paths.QUARANTINED_ROWS_DIRECTORY)
    assert len(list(staged.iterdir())) == 2
    lance_stream.open_dataset(uri).cleanup(timedelta(0), delete_unverified=True)
    assert len(list(staged.iterdir())) == 1
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == 1
    assert list(staged.iterdir()) == []


def test_forgotten_streams_quarantine_rows_again(uri: str) -> None:
    """The user starts the stream from the beginning, so its bad rows are found again, and those
    from before must not be replayed, too.
    """
    rows = [{"id": 1, "x": 301}, {"id": 2, "x": 302}]
    take_in(uri, 0, rows)
    lance_stream.replay_quarantine(uri, where="row LIKE '%301%'", fix={"x": "1"})
    ds = lance_stream.open_dataset(uri).delete("true")
    ds.update_config({"lance_stream.ledger.app": None})
    take_in(uri, 0, rows)
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == 2
    assert rows_of(uri) == [(1, 1), (2, 1)]
    assert states_of(uri) == [(302, "stale")]


def test_forgotten_streams_keep_earlier_rows(uri: str) -> None:
    """The stream goes on after its last batch, so the bad rows of earlier ones never come again;
    a second start at an earlier batch, before anything is committed, brings some again.
    """
    for number in range(4):
        take_in(uri, number, bad(number + 1))
    lance_stream.open_dataset(uri).update_config({"lance_stream.ledger.app": None})
    take_in(uri, 4, bad(5), dies="staged")
    assert [state for _, state in states_of(uri)] == ["ready"] * 4
    for number in (2, 3, 4):
        take_in(uri, number, bad(number + 1))
    expected = [(301, "ready"), (302, "ready"), (303, "stale"), (304, "stale")]
    expected += [(303, "ready"), (304, "ready"), (305, "ready")]
    assert sorted(states_of(uri)) == sorted(expected)
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == 5
    assert [row for row in rows_of(uri) if row[0] < 0] == [(-5 + n, 1) for n in range(5)]


def test_batches_after_restores_are_quarantined_once(uri: str) -> None:
    """A restore by another program and a cleanup leave no trace of the last batch, which is then
    written again; its bad rows and its ledger entry are those of the second time.
    """
    for number in range(2):
        take_in(uri, number, bad(number + 1))
    version = lance_stream.open_dataset(uri).version
    for number in (2, 3):
        take_in(uri, number, bad(number + 1))
    for number in range(MAX_UNCHECKED_VERSIONS):
        lance_stream.open_dataset(uri).update_config({"number": str(number)})
    rival = lance.dataset(uri)
    rival.checkout_version(version).restore()
    lance.dataset(uri).cleanup_old_versions(timedelta(0), delete_unverified=True)
    for number in (3, 4):
        take_in(uri, number, bad(number + 1))
    expected = [(301, "ready"), (302, "ready"), (303, "ready"), (304, "ready"), (304, "stale")]
    assert states_of(uri) == [*expected, (305, "ready")]


@pytest.mark.parametrize("batches", [[], [0], [0, 1], [1]])
def test_rows_of_replaced_tables_stay_stale(uri, batches):
    """The table is re-created under the same app id while its quarantine remains."""
    for number in range(4):
        take_in(uri, number, bad(number + 1))
    shutil.rmtree(uri)
    lance_stream.create_dataset(uri, COLUMNS)
    for number in range(3):
        rows = bad(11 + number) if number in batches else [{"id": number, "x": 0}]
        take_in(uri, number, rows)
    old = [(301 + number, "stale") for number in range(4)]
    assert states_of(uri) == old + [(311 + number, "ready") for number in batches]
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == len(batches)
    for number in range(3, 6):
        take_in(uri, number, bad(11 + number))
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == 3
    assert {row[0] for row in rows_of(uri) if row[0] < 0} == {-14, -15, -16} | {
        -11 - number for number in batches
    }
    assert num_quarantined(uri) == 4


@pytest.mark.parametrize("version", [2, 3])
def test_foreign_restores_repeat_no_quarantined_row(uri: str, version: int) -> None:
    """The restored ledger names a file whose rows were added long ago, or none."""
    for number in range(3):
        take_in(uri, number, bad(number + 1))
    rival = lance.dataset(uri)
    rival.checkout_version(version).restore()
    states = [(301, "ready"), (302, "ready"), (303, "ready")]
    assert states_of(uri) == states
    take_in(uri, 3, bad(4))
    assert states_of(uri) == [*states, (304, "ready")]


@pytest.mark.parametrize("moment", range(8))
@pytest.mark.parametrize("dies", ["committed", None])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.some_cases(one_in=6)
def test_overtaken_drivers_add_no_row_twice(uri, monkeypatch, is_first, dies, moment):
    """At each call of the slower driver the faster one publishes the same rows, and may go on."""
    if not is_first:
        take_in(uri, 0, bad(1))
    take_in(uri, 1, bad(2), dies="committed")
    names = ["open_quarantine", "newest_version_of", "staged_rows", "write_input", "commit_planned"]
    real = {name: getattr(quarantine_writer, name) for name in names}
    calls = itertools.count()

    def before(function):
        def call(*args, **kwargs):
            if next(calls) == moment:
                with monkeypatch.context() as undone:
                    for name, value in real.items():
                        undone.setattr(quarantine_writer, name, value)
                    take_in(uri, 2, bad(3), dies=dies)
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patched:
        for name, function in real.items():
            patched.setattr(quarantine_writer, name, before(function))
        publish(quarantine_uri(uri), {}, lance_stream.open_dataset(uri).table, "app")
    if next(calls) <= moment:
        take_in(uri, 2, bad(3))
    expected = [] if is_first else [301]
    assert states_of(uri) == [(x, "ready") for x in [*expected, 302, 303]]
    result = lance_stream.replay_quarantine(uri, fix={"x": "1"})
    assert result.rows_replayed == len(expected) + 2
    assert num_quarantined(uri) == 0


def test_replayed_upserts_respect_their_sequence(uri: str) -> None:
    """Newer changes of the key have arrived in the meantime and must win."""
    lance_stream.open_dataset(uri).add_columns(pa.field("lsn", pa.int64()))
    schema = WIDE.append(pa.field("lsn", pa.int64()))
    by_key = {"schema": schema, "mode": "upsert", "on": ["id"], "sequence_by": "lsn"}
    take_in(uri, 0, [{"id": 1, "x": 300, "lsn": 5}, {"id": 2, "x": 300, "lsn": 5}], **by_key)
    newer = pa.table({"id": [1], "x": pa.array([9], pa.uint8()), "lsn": [7]})
    lance_stream.open_dataset(uri).upsert(newer, on="id", sequence_by="lsn")
    assert lance_stream.replay_quarantine(uri, fix={"x": "1"}).rows_replayed == 2
    assert rows_of(uri) == [(1, 9), (2, 1)]
    assert num_quarantined(uri) == 0


def test_replays_obey_the_upserts_conditions(uri: str) -> None:
    """A row that comes from the quarantine is judged like any other."""
    by_key = {
        "mode": "upsert",
        "on": ["id"],
        "sequence_by": "x",
        "when_matched": "source.x = 2 * target.x",
        "when_not_matched": "ignore",
    }
    lance_stream.open_dataset(uri).append(
        pa.table({"id": [1, 2], "x": pa.array([1, 1], pa.uint8())})
    )
    rows = [{"id": 1, "x": 302}, {"id": 2, "x": 303}, {"id": 3, "x": 302}]
    take_in(uri, 0, rows, **by_key)
    lance_stream.replay_quarantine(uri, fix={"x": "x - 300"})
    assert rows_of(uri) == [(1, 2), (2, 1)]


def test_unordered_upserts_need_replace_existing(uri: str) -> None:
    """Without a sequence an old row could overwrite a newer one."""
    by_key = {"mode": "upsert", "on": ["id"]}
    take_in(uri, 0, [{"id": 1, "x": 300}], **by_key)
    take_in(uri, 1, [{"id": 1, "x": 301}], **by_key)
    (problem,) = lance_stream.replay_quarantine(uri, fix={"x": "x - 299"}).rows_remaining
    assert "replace_existing" in problem
    result = lance_stream.replay_quarantine(uri, fix={"x": "x - 299"}, replace_existing=True)
    assert result.rows_replayed == 2
    assert rows_of(uri) == [(1, 2)]


@pytest.mark.some_cases(one_in=4)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("commits", [1, 2])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_killed_replays_are_repeated_safely(
    uri: str, monkeypatch: pytest.MonkeyPatch, when: str, commits: int, mode: str
) -> None:
    """The process dies before or after each version that a replay publishes,
    and then runs again.
    """
    by_key = {"mode": "upsert", "on": ["id"], "sequence_by": "x"} if mode == "upsert" else {}
    bad = [{"id": number, "x": 300 + number} for number in range(3)]
    publish = LocalStore.create_once
    deaths = 0
    for last in itertools.count():
        take_in(uri, last, [{"id": 100 + last, "x": 1}, *bad], **by_key)
        published = 0

        def die(store, path, *args, last=last, **kwargs):
            nonlocal published
            is_version = path.endswith(".manifest")
            published += is_version
            if is_version and published == last + 1 and when == "before":
                raise Killed
            is_published = publish(store, path, *args, **kwargs)
            if is_version and published == last + 1:
                raise Killed
            return is_published

        monkeypatch.setattr(LocalStore, "create_once", die)
        try:
            lance_stream.replay_quarantine(uri, fix={"x": "x - 299"})
        except Killed:
            deaths += 1
        else:
            monkeypatch.undo()
            break
        monkeypatch.undo()
        for _ in range(commits):
            lance_stream.replay_quarantine(uri, fix={"x": "x - 299"})
    assert deaths >= 3
    rounds = 1 if mode == "upsert" else last + 1
    expected = [(row["id"], row["x"] - 299) for row in bad] * rounds
    expected += [(100 + number, 1) for number in range(last + 1)]
    assert rows_of(uri) == sorted(expected)
    assert num_quarantined(uri) == 0


def test_forgotten_replays_are_not_repeated(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One replay dies after its commit, another one commits, and then nobody replays for a long
    time.
    """
    take_in(uri, 0, [{"id": 1, "x": 300}])

    def die(*_args):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(replaying, "delete_claimed", die)
        with pytest.raises(Killed):
            lance_stream.replay_quarantine(uri, fix={"x": "1"})
    row = pa.Table.from_pylist([{"id": 9, "x": 9}], COLUMNS)
    table = lance_stream.open_dataset(uri).table
    late = PendingBatch.of(APP_ID, 1 << 62, digest=digest_of(row))
    append(table, row, late)
    monkeypatch.setattr(ledger_entries, "MAX_SILENT_VERSIONS", 0)
    append(table, row, PendingBatch.of("other", 0, digest=digest_of(row)))
    append(table, row, PendingBatch.of("other", 1, digest=digest_of(row)))
    with pytest.raises(InvalidInputError, match="unknown whether"):
        lance_stream.replay_quarantine(uri, fix={"x": "1"})
    assert rows_of(uri) == [(1, 1), (9, 9), (9, 9), (9, 9)]


def test_replays_before_a_known_one_continue(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One replay dies before its commit, and another one commits. The ledger still lists all
    replays, so the first one is certainly not among them.
    """
    take_in(uri, 0, [{"id": 1, "x": 300}])

    def die(*_args, **_kwargs):
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(replaying, "append", die)
        with pytest.raises(Killed):
            lance_stream.replay_quarantine(uri, fix={"x": "1"})
    row = pa.Table.from_pylist([{"id": 9, "x": 9}], COLUMNS)
    table = lance_stream.open_dataset(uri).table
    append(table, row, PendingBatch.of(APP_ID, 1 << 62, digest=digest_of(row)))
    lance_stream.replay_quarantine(uri, fix={"x": "1"})
    assert rows_of(uri) == [(1, 1), (9, 9)]
    assert num_quarantined(uri) == 0


def test_late_replays_lose_claimed_rows(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay stops between claim and commit, and another one takes over with another result."""
    take_in(uri, 0, [{"id": 1, "x": 300}, {"id": 2, "x": 301}])
    commit = replaying.append
    calls = []

    def be_late(*args, **kwargs):
        monkeypatch.setattr(replaying, "append", commit)
        calls.append(lance_stream.replay_quarantine(uri, fix={"x": "x - 299"}))
        return commit(*args, **kwargs)

    monkeypatch.setattr(replaying, "append", be_late)
    with pytest.raises(CommitConflictError, match="another replay"):
        lance_stream.replay_quarantine(uri, fix={"x": "7"})
    assert calls[0].rows_replayed == 2
    lance_stream.replay_quarantine(uri, fix={"x": "9"})
    assert rows_of(uri) == [(1, 1), (2, 2)]


def test_the_command_line_lists_and_replays(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Operators repair rows without writing Python, and scripts rely on output and exit codes."""
    take_in(uri, 0, [{"id": 1, "x": 1}, {"id": 2, "x": 2}], expect={"large": "x > 9"})
    assert program.main(["quarantine", "list", uri]) == 0
    row = capsys.readouterr().out.splitlines()[1]
    assert row.split()[:5] == ["app", "0", "large", "2", "ready"]
    assert program.main(["quarantine", "list", uri, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_rows"] == 2
    assert program.main(["quarantine", "replay", uri, "--set", "x=x + 8"]) == 0
    assert capsys.readouterr().out == "replayed 1 row\n1 row remaining: large\n"
    replay = ["quarantine", "replay", uri, "--json", "--where", "reason = 'large'", "--no-checks"]
    assert program.main(replay) == 0
    assert json.loads(capsys.readouterr().out)["rows_replayed"] == 1
    assert rows_of(uri) == [(1, 1), (2, 10)]
    for words in (["--set", "x"], ["--no-checks", "--expect", "x > 1"]):
        assert program.main(["quarantine", "replay", uri, *words]) == 2
    assert program.main(["quarantine", "list", f"{uri}x"]) == 3


def test_the_command_line_lists_branch_quarantines(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A branch has its own quarantine, which the main table's listing does not show."""
    lance_stream.open_dataset(uri).branches.create("dev")
    branch = lance_stream.open_dataset(uri, branch="dev")
    take_in(branch.uri, 0, [{"id": 1, "x": 300}])
    assert program.main(["quarantine", "list", uri, "--json"]) == 0
    assert capsys.readouterr().out == ""
    assert program.main(["quarantine", "list", uri, "--branch", "dev", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_rows"] == 1


def test_quarantines_of_branches_must_be_named(
    uri: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sink of a branch needs a location outside of the table, so an empty list would be wrong,
    and rows that a killed sink has staged must not go elsewhere.
    """
    lance_stream.open_dataset(uri).branches.create("dev")
    take_in(lance_stream.open_dataset(uri, branch="dev").uri, 0, bad(1), dies="committed")
    for act in (lance_stream.list_quarantine, lance_stream.replay_quarantine):
        with pytest.raises(InvalidInputError, match="Pass that location as the quarantine"):
            act(uri, branch="dev")
        act(uri, branch="main")
    bad_rows = f"{uri}-bad-rows"
    (group,) = lance_stream.list_quarantine(uri, branch="dev", quarantine=bad_rows)
    assert group.num_rows == 1
    replayed = lance_stream.replay_quarantine(
        uri, branch="dev", quarantine=bad_rows, fix={"x": "1"}
    )
    assert replayed.rows_replayed == 1
    assert program.main(["quarantine", "list", uri, "--branch", "dev"]) == 2
    assert "Pass that location as the quarantine" in capsys.readouterr().err


def test_missing_quarantines_need_no_replay(uri: str) -> None:
    """A scheduled replay runs before the first bad row has created the quarantine."""
    assert lance_stream.list_quarantine(uri) == []
    assert lance_stream.replay_quarantine(uri) == lance_stream.ReplayResult()


@pytest.mark.parametrize(
    ("name", "problem"),
    [("a", "'app_id' is missing"), ("app_id", "'app_id' has another type")],
)
def test_other_tables_are_no_quarantine(uri: str, name: str, problem: str) -> None:
    """A table that happens to have the name must not be read or deleted from."""
    lance_stream.create_dataset(quarantine_uri(uri), pa.schema([(name, pa.int64())]))
    for act in (lance_stream.list_quarantine, lance_stream.replay_quarantine):
        with pytest.raises(InvalidInputError, match=f"is not a quarantine: the column {problem}"):
            act(uri)


def test_quarantine_has_two_nullable_columns(uri: str) -> None:
    """A reason may concern no single column, and most rows were never replayed."""
    take_in(uri, 0, bad(1))
    schema = lance_stream.open_dataset(quarantine_uri(uri)).schema
    assert {field.name for field in schema if field.nullable} == {"column", "replay"}


def test_quarantines_name_their_own_table(uri: str) -> None:
    """Passing the quarantine's location instead of the table's is a likely mistake."""
    take_in(uri, 0, [{"id": 1, "x": 300}])
    for act in (lance_stream.list_quarantine, lance_stream.replay_quarantine):
        with pytest.raises(InvalidInputError, match=r"is itself the quarantine of '.*t\.lance'"):
            act(quarantine_uri(uri))


def test_quarantines_belong_to_one_table(uri: str, tmp_path: Path) -> None:
    """Rows of another table must never be replayed into this one, even if
    default names coincide.
    """
    take_in(uri, 0, [{"id": 1, "x": 300}])
    other = str(tmp_path / "other.lance")
    lance_stream.create_dataset(other, COLUMNS)
    with pytest.raises(InvalidInputError, match="is the quarantine of"):
        lance_stream.replay_quarantine(other, quarantine=quarantine_uri(uri))
    twin = uri.removesuffix(".lance")
    lance_stream.create_dataset(twin, COLUMNS)
    assert quarantine_uri(twin) == quarantine_uri(uri)
    with pytest.raises(InvalidInputError, match="is the quarantine of"):
        lance_stream.list_quarantine(twin)


def test_quarantines_move_with_their_table(uri: str, tmp_path: Path) -> None:
    """Tables are moved along with the folder that holds their quarantine."""
    take_in(uri, 0, [{"id": 1, "x": 300}])
    moved = tmp_path / "moved"
    moved.mkdir()
    for value in (uri, quarantine_uri(uri)):
        Path(value).rename(moved / Path(value).name)
    assert lance_stream.replay_quarantine(str(moved / "t.lance"), fix={"x": "1"}).rows_replayed == 1


@pytest.mark.parametrize(
    "values",
    [
        {"row": "'x'"},
        {"row": """'{"id": 1.5, "x": 3}'"""},
        {"row": """'{"id": 1, "x": true}'"""},
        {"row": """'{"id": 1, "x": 3}'""", "types": f"'{types_of(pa.string())}'"},
        {"row": """'{"id": 1, "x": 3}'""", "types": f"'{types_of(pa.date32())}'"},
        {"types": "'x'"},
        {"types": "''"},
        {"types": f"'{types_of()}'"},
        {"rules": "'x'"},
        {"rules": "'{}'"},
        *(
            {"rules": f"'{json.dumps(rules_of() | number)}'"}
            for number in (
                {"tombstones": "x"},
                {"tombstones": True},
                {"tombstones": 1e300},
                {"tombstones": -1},
                {"tombstones": float("nan")},
                {"except_columns": ["x", "x"]},
                {"except_columns": [1]},
                {"except_columns": "x"},
                {"on": [1]},
                {"on": {}},
                {"sequence_by": 1},
                {"sequence_by": ["x"]},
                {"expect": []},
                {"expect": None},
            )
        ),
    ],
)
def test_damaged_quarantine_rows_are_refused(uri: str, values: dict[str, str]) -> None:
    """Rows, types and rules are stored as text that anything could have changed, and a guess would
    store wrong values.
    """
    take_in(uri, 0, [{"id": 1, "x": 300}])
    lance_stream.open_dataset(quarantine_uri(uri)).update(values)
    with pytest.raises(CorruptDataError, match="quarantine"):
        lance_stream.replay_quarantine(uri)
    assert rows_of(uri) == []


@pytest.mark.parametrize(
    "age",
    [None, timedelta(0), timedelta(hours=1), timedelta(seconds=0.5), timedelta.max],
)
def test_recorded_tombstone_ages_are_read(age: timedelta | None) -> None:
    """A sink records how long it remembers deletes, and its rows must be replayed alike."""
    seconds = None if age is None else age.total_seconds()
    assert parse_rules(json.dumps(rules_of(tombstones=seconds))).tombstones == age


def test_fixes_that_drop_keys_change_nothing(uri: str) -> None:
    """An upsert without its key would have to guess which row to update."""
    take_in(uri, 0, [{"id": 1, "x": 300}], mode="upsert", on=["id"], sequence_by="id")
    result = lance_stream.replay_quarantine(uri, fix=lambda rows: rows.drop_columns(["id"]))
    assert result.rows_remaining == {"they have no column 'id', which an upsert needs": 1}
    assert (rows_of(uri), num_quarantined(uri)) == ([], 1)


def test_invalid_replay_arguments_are_refused(uri: str) -> None:
    """A mistake in a fix or a selection must not be applied to any row."""
    take_in(uri, 0, [{"id": 1, "x": 300}])
    for arguments, problem in (
        ({"where": "nothing = 1"}, "nothing"),
        ({"fix": {"x": "x +"}}, "SQL"),
        ({"fix": lambda _rows: None}, "as many"),
        ({"fix": "x = 1"}, "fix must be a mapping"),
        ({"fix": {"x": "1000000"}}, "do not fit int16"),
        ({"expect": 5}, "expect"),
    ):
        with pytest.raises(lance_stream.LanceStreamError, match=problem):
            lance_stream.replay_quarantine(uri, **arguments)


@pytest.mark.parametrize("rows_per_commit", [1, 10_000])
def test_later_batches_win_at_ties(
    uri: str, rows_per_commit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink replaces a row by one of a later batch with the same sequence; in one batch, two
    such rows are an error, which must not block a replay of both batches.
    """
    monkeypatch.setattr(replaying, "ROWS_PER_COMMIT", rows_per_commit)
    schema = pa.schema([("id", pa.int64()), ("x", pa.int16()), ("seq", pa.int64())])
    lance_stream.open_dataset(uri).add_columns(pa.schema([("seq", pa.int64())]))
    for number, rows in enumerate([[(1, 303), (2, 301)], [(1, 301), (3, 301)], [(1, 302)]]):
        batch = [{"id": key, "x": x, "seq": 5} for key, x in rows]
        take_in(uri, number, batch, schema=schema, mode="upsert", on=["id"], sequence_by="seq")
    assert lance_stream.replay_quarantine(uri, fix={"x": "x - 300"}).rows_replayed == 5
    assert rows_of(uri) == [(1, 2), (2, 1), (3, 1)]


@pytest.mark.parametrize("sequence_by", ["seq", None])
def test_ambiguous_rows_block_no_others(uri: str, sequence_by: str | None) -> None:
    """The sink compares only good rows, so a batch may have quarantined two rows for one change;
    which one counts, only the user knows.
    """
    schema = pa.schema([("id", pa.int64()), ("x", pa.int16()), ("seq", pa.int64())])
    lance_stream.open_dataset(uri).add_columns(pa.schema([("seq", pa.int64())]))
    rows = [{"id": key, "x": x, "seq": 5} for key, x in [(1, 301), (2, 302), (1, 303)]]
    rules = {"mode": "upsert", "on": ["id"], "sequence_by": sequence_by}
    take_in(uri, 0, rows, schema=schema, **rules)

    def replay(fix: str) -> lance_stream.ReplayResult:
        return lance_stream.replay_quarantine(uri, fix={"x": fix}, replace_existing=True)

    result = replay("x - 300")
    assert (result.rows_replayed, [*result.rows_remaining.values()]) == (1, [2])
    assert rows_of(uri) == [(2, 2)]
    assert states_of(uri) == [(301, "ready")]
    if sequence_by is not None:
        assert replay("7") == lance_stream.ReplayResult(2, {})
        assert rows_of(uri) == [(1, 7), (2, 2)]


def replayed(table: lance_stream.Dataset, number: int) -> lance_stream.Dataset:
    """Commit a row as a replay with a number does."""
    row = pa.Table.from_pylist([{"id": number, "x": 1}], COLUMNS)
    append(table.table, row, PendingBatch.of(APP_ID, number, digest=digest_of(row)))
    return lance_stream.open_dataset(table.uri)


@pytest.mark.parametrize(
    ("num_replays", "number", "is_committed"),
    [
        (0, 5, False),
        (8, 5, False),  # the ledger has all replays
        (9, 5, None),
        (9, 10, True),
        (9, 15, False),
        (10, 10, None),
        (10, 15, None),
        (10, 20, True),
        (10, 25, False),
        (10, 100, True),
        (10, 105, False),
    ],
)
def test_ledgers_tell_which_replays_committed(
    uri: str, num_replays: int, number: int, is_committed: bool | None
) -> None:
    """The ledger lists the last nine replays, here 10, 20, and so on. A replay is only repeated or
    removed if it certainly is, or is not, among all of them.
    """
    ds = lance_stream.open_dataset(uri)
    for index in range(num_replays):
        ds = replayed(ds, 10 * (index + 1))
    if is_committed is None:
        with pytest.raises(InvalidInputError, match=f"rows of replay {number}: too many"):
            _is_committed(ds.table, number, MACHINE)
        return
    for _ in range(2):  # asking again has the same result
        assert _is_committed(ds.table, number, MACHINE) is is_committed
    assert len(rows_of(uri)) == num_replays


def test_silent_ledgers_still_list_replays(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the next commit of any stream shortens them."""
    ds = replayed(replayed(lance_stream.open_dataset(uri), 10), 20)
    ds = ds.append(pa.Table.from_pylist([{"id": 9, "x": 9}], COLUMNS))
    monkeypatch.setattr(ledger_entries, "MAX_SILENT_VERSIONS", 0)
    assert not _is_committed(ds.table, 5, MACHINE)
    assert _is_committed(ds.table, 10, MACHINE)


def test_fixes_may_change_any_column() -> None:
    """An expression replaces a column, or adds one behind the others."""
    rows = pa.table({"a": [1, 2], "b": [3, 4]})
    for fix, expected in (
        (None, {"a": [1, 2], "b": [3, 4]}),
        ({"a": "a + b"}, {"a": [4, 6], "b": [3, 4]}),
        ({"b": "-b"}, {"a": [1, 2], "b": [-3, -4]}),
        ({"c": "a * 2"}, {"a": [1, 2], "b": [3, 4], "c": [2, 4]}),
        (lambda table: table.select(["b"]), {"b": [3, 4]}),
    ):
        assert list(corrected(rows, fix).to_pydict().items()) == list(expected.items())
    for result, problem in ((rows[:1], "returned 1"), (None, "returned NoneType")):
        with pytest.raises(InvalidInputError, match=f"it received 2 and {problem}"):
            corrected(rows, lambda _, result=result: result)


@pytest.mark.parametrize(
    "change", [{"mode": "merge"}, {"mode": None}, {"sequence_by": 1}, {"expect": []}, {"on": "id"}]
)
def test_unknown_rules_are_damage(change) -> None:
    """A row must be written as its sink would have, or not at all."""
    assert parse_rules(json.dumps(rules_of())).mode == "append"
    with pytest.raises(CorruptDataError, match="the rules of a quarantined row are damaged"):
        parse_rules(json.dumps(rules_of() | change))


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("drops", [False, True])
def test_columns_of_checks_are_not_stored(uri: str, mode: str, drops: bool) -> None:
    """A sink may check and order by columns that the table lacks; a fix may drop them."""
    by_key = {"on": ["id"], "sequence_by": "id"} if mode == "upsert" else {}
    schema = pa.schema([*WIDE, ("source", pa.string())])
    rows = [{"id": 1, "x": 300, "source": "s"}]
    take_in(uri, 0, rows, schema=schema, mode=mode, except_columns=["source"], **by_key)

    def fix(rows: pa.Table) -> pa.Table:
        rows = rows.set_column(rows.schema.get_field_index("x"), "x", pa.array([7], pa.int16()))
        return rows.drop_columns(["source"]) if drops else rows

    assert lance_stream.replay_quarantine(uri, fix=fix).rows_replayed == 1
    assert rows_of(uri) == [(1, 7)]


def test_upserts_may_lack_columns(tmp_path: Path) -> None:
    """The columns that their rows lack keep their values, also those that must not be null."""
    uri = str(tmp_path / "t.lance")
    schema = pa.schema([*COLUMNS, pa.field("name", pa.string(), nullable=False)])
    rows = pa.table([[1, 2], [8, 9], ["a", "b"]], schema=schema)
    lance_stream.create_dataset(uri, rows)
    take_in(uri, 0, [{"id": 2, "x": 300}], mode="upsert", on=["id"], sequence_by="id")
    assert lance_stream.replay_quarantine(uri, fix={"x": "x - 299"}).rows_replayed == 1
    expected = [{"id": 1, "x": 8, "name": "a"}, {"id": 2, "x": 1, "name": "b"}]
    assert lance_stream.open_dataset(uri).to_table().sort_by("id").to_pylist() == expected


def test_quarantines_have_stable_row_ids(uri: str) -> None:
    """A replay claims rows by their ids."""
    location = quarantine_uri(uri)
    config = {TABLE_KEY: normalized(uri)}
    assert open_quarantine(location, {}, uri) is None
    lance_stream.create_dataset(location, QUARANTINE_SCHEMA, config=config, stable_row_ids=False)
    with pytest.raises(InvalidInputError, match="is not a quarantine: it has no stable row ids"):
        open_quarantine(location, {}, uri)


def test_any_quarantine_can_be_opened(uri: str) -> None:
    """A caller that knows only the quarantine asks for no table."""
    take_in(uri, 0, bad(1))
    location = quarantine_uri(uri)
    for table_uri in (uri, None):
        assert open_quarantine(location, {}, table_uri) is not None
    with pytest.raises(InvalidInputError, match="is the quarantine of"):
        open_quarantine(location, {}, f"{uri}_other")


def test_replays_without_claims_commit_nothing(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replay may claim all rows between the scan and the claim."""
    take_in(uri, 0, [{"id": 1, "x": 300}])
    version = lance_stream.open_dataset(uri).version
    with monkeypatch.context() as patched:
        patched.setattr(replaying, "claim", lambda bad, *_: (bad, set()))
        assert lance_stream.replay_quarantine(uri, fix={"x": "x - 299"}).rows_replayed == 0
    assert lance_stream.open_dataset(uri).version == version
    assert lance_stream.replay_quarantine(uri, fix={"x": "x - 299"}).rows_replayed == 1


def test_overtaken_publications_are_repeated(uri: str) -> None:
    """A file is published only if the quarantine still has the name that it had before."""
    manifest = lance_stream.open_dataset(uri).update_config({"k": "name"}).table.manifest
    for key, value in (("k", "name"), ("other", "")):
        quarantine_writer._check_unchanged(manifest, key, value)
    for key, value in (("k", "before"), ("k", ""), ("other", "name")):
        with pytest.raises(RetryableConflictError, match="another driver has written"):
            quarantine_writer._check_unchanged(manifest, key, value)
