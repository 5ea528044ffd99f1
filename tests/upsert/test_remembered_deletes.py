import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream import Dataset
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.environment import Environment
from lance_stream.errors import CommitConflictError, CommitUncertainError, InvalidInputError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.maintenance.verification.verify import verify
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.tombstones import CONFIG_KEY, read_tombstones
from lance_stream.table.paths import TOMBSTONES_DIRECTORY, VERSIONS_DIRECTORY
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.rules import FOR_GOOD, UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.append import append
from tests.commit.tables import make_environment
from tests.contracts.watched_stores import WatchedStore

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("seq", pa.int64()), pa.field("x", pa.string())]
)
INCOMING = SCHEMA.append(pa.field("op", pa.string()))
WEEK = timedelta(days=7)
RULES = UpsertRules(
    ("id",),
    sequence_by="seq",
    delete_when="op = 'd'",
    except_columns=("op",),
    tombstones=WEEK,
)
FORGETFUL = replace(RULES, tombstones=None)

Event = tuple[int, int, str]
"""Key, sequence, and "u" or "d"."""


def new_table(schema: pa.Schema = SCHEMA) -> TableVersion:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema).table


def batch(*events: Event) -> pa.Table:
    rows = [{"id": key, "seq": at, "x": f"{key}@{at}", "op": op} for key, at, op in events]
    return pa.Table.from_pylist(rows, INCOMING)


def take_in(table: TableVersion, *events: Event, **options: Any) -> UpsertResult:
    return upsert(table, batch(*events), options.pop("rules", RULES), **options)


def content(table: TableVersion) -> dict[int, str]:
    newest = Dataset(table).checkout(None)
    return dict(sorted(zip(*newest.to_table(["id", "x"]).to_pydict().values(), strict=True)))


def tombstone_files(table: TableVersion) -> set[str]:
    return {file.path for file in table.store.list(TOMBSTONES_DIRECTORY)}


def named_files(table: TableVersion) -> set[str]:
    tombstones = read_tombstones(Dataset(table).checkout(None).config)
    return (
        {f"{TOMBSTONES_DIRECTORY}/{file.name}" for file in tombstones.files}
        if tombstones
        else set()
    )


events = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 30), st.sampled_from("uud")),
    unique_by=lambda event: event[:2],
    min_size=1,
    max_size=12,
)


def last_state(happened: Sequence[Event]) -> dict[int, str]:
    state: dict[int, str] = {}
    for key, at, op in sorted(happened, key=lambda event: event[1]):
        state.pop(key, None)
        if op == "u":
            state[key] = f"{key}@{at}"
    return dict(sorted(state.items()))


@settings(max_examples=15, deadline=None)
@given(events, st.randoms(use_true_random=False))
def test_events_in_any_order_end_alike(happened: list[Event], dice: random.Random) -> None:
    """Sequences promise that the order of arrival does not matter, and a repeated batch must
    change nothing.
    """
    table = new_table()
    arriving = list(happened)
    dice.shuffle(arriving)
    while arriving:
        size = dice.randint(1, 6)
        result = take_in(table, *arriving[:size])
        again = take_in(result.table, *arriving[:size])
        assert again.num_inserted == again.num_deleted == again.num_remembered == 0
        table, arriving = again.table, arriving[size:]
    assert content(table) == last_state(happened)
    assert named_files(table) <= tombstone_files(table)
    assert verify(table) == []


def on_publication(table: TableVersion, act: Callable[[], object]) -> TableVersion:
    """Return the table with a store that lets another writer publish first, once."""
    store = WatchedStore(table.store)

    def overtake(call: str, path: str) -> None:
        if call == "create_once" and path.startswith(VERSIONS_DIRECTORY):
            store.before = lambda _call, _path: None
            act()

    store.before = overtake
    return replace(table, store=store, log=ObjectStoreLog(store))


@settings(max_examples=15, deadline=None)
@given(events, events, events)
def test_concurrent_writers_end_like_one(
    before: list[Event], ours: list[Event], theirs: list[Event]
) -> None:
    """A delete of one writer may race with an older insert of another one, in either order."""
    order = {event: at for at, event in enumerate([*before, *ours, *theirs])}
    # One sequence for each event: two of a key that are equally new have no order.
    before, ours, theirs = (
        [(key, at * 100 + order[key, at, op], op) for key, at, op in happened]
        for happened in (before, ours, theirs)
    )
    table = take_in(new_table(), *before).table
    results: list[UpsertResult] = []
    stale = on_publication(table, lambda: results.append(take_in(table, *theirs)))
    take_in(stale, *ours)
    if not results:  # nothing of ours was to be published
        take_in(table, *theirs)
    assert content(table) == last_state([*before, *ours, *theirs])
    assert named_files(table) <= tombstone_files(table)


@pytest.mark.parametrize("ours", [(1, 5, "d"), (1, 4, "u")])
def test_deletes_beat_concurrent_older_inserts(ours: Event) -> None:
    """The plan was made before the other event was known, so the commit has to compare again."""
    theirs = (1, 9 - ours[1], "u" if ours[2] == "d" else "d")
    table = take_in(new_table(), (7, 1, "u")).table
    stale = on_publication(table, lambda: take_in(table, theirs))
    result = take_in(stale, ours)
    assert content(table) == {7: "7@1"}
    assert (result.num_deleted, result.num_late) == ((1, 0) if ours[2] == "d" else (0, 1))
    assert tombstone_files(table) == named_files(table)


def test_without_tombstones_late_rows_resurrect() -> None:
    """Both settings must behave as documented, including the fault that tombstones prevent."""
    table = append(new_table(), pa.table({"id": [1], "seq": [1], "x": ["1@1"]})).table
    for rules, expected in ((FORGETFUL, {1: "1@2"}), (RULES, {})):
        table = take_in(table, (1, 9, "d"), rules=rules).table
        result = take_in(table, (1, 2, "u"), rules=rules)
        assert (content(result.table), result.num_late) == (expected, 1 - len(expected))
        table = result.table


def test_early_deletes_win() -> None:
    """The delete arrives before the insert that it deletes."""
    table = new_table()
    result = take_in(table, (1, 5, "d"))
    assert (result.is_new, result.num_deleted, result.num_remembered) == (True, 0, 1)
    assert Dataset(result.table).changes(table.version).read_all().num_rows == 0
    assert verify(result.table) == []
    late = take_in(result.table, (1, 4, "u"), (2, 4, "u"))
    assert (late.num_inserted, late.num_late, content(late.table)) == (1, 1, {2: "2@4"})
    newer = take_in(late.table, (1, 6, "u"))
    assert (newer.num_inserted, content(newer.table)) == (1, {1: "1@6", 2: "2@4"})


def test_ties_with_a_delete_are_late() -> None:
    """A source may deliver the last state of a row with the sequence of its delete."""
    table = take_in(new_table(), (1, 5, "d")).table
    result = take_in(table, (1, 5, "u"))
    assert (result.num_late, result.is_new) == (1, False)


def test_late_deletes_make_no_version() -> None:
    """A repeated delete must not add a version or a file, or a replayed topic would fill the
    table.
    """
    table = take_in(new_table(), (1, 5, "d"), (2, 7, "u")).table
    result = take_in(table, (1, 5, "d"), (2, 6, "d"))
    assert (result.is_new, result.num_late, result.num_remembered) == (False, 2, 0)
    assert tombstone_files(table) == named_files(table)


def test_tombstones_bind_upserts_without_them() -> None:
    """An upsert that remembers no deletes still respects those in the table."""
    table = take_in(new_table(), (1, 5, "d")).table
    result = take_in(table, (1, 4, "u"), (2, 4, "d"), rules=FORGETFUL)
    assert (result.num_late, result.num_remembered, content(result.table)) == (1, 0, {})
    unordered = upsert(table, pa.table({"id": [1], "x": ["new"]}), UpsertRules(("id",)))
    assert content(unordered.table) == {1: "new"}


def test_unstored_sequences_are_remembered() -> None:
    """Without a stored sequence the tombstone alone can tell that a row is late."""
    rules = replace(RULES, except_columns=("op", "seq"))
    table = new_table(pa.schema([SCHEMA.field("id"), SCHEMA.field("x")]))
    table = take_in(table, (1, 5, "d"), rules=rules).table
    assert take_in(table, (1, 4, "u"), rules=rules).num_late == 1
    back = take_in(table, (1, 9, "u"), rules=rules)
    assert content(back.table) == {1: "1@9"}
    late = take_in(back.table, (1, 4, "d"), rules=rules)
    assert (late.num_late, content(late.table)) == (1, {1: "1@9"})


def test_tombstones_need_no_stable_row_ids() -> None:
    """Remembered deletes use keys only, so tables of other writers can have them as well."""
    uri = f"memory://{uuid.uuid4()}/t"
    table = lance_stream.create_dataset(uri, SCHEMA, stable_row_ids=False).table
    table = take_in(table, (1, 1, "u"), (2, 1, "u"), (9, 5, "d")).table
    table = take_in(table, (1, 5, "d")).table
    result = take_in(table, (1, 4, "u"), (9, 4, "u"), (2, 2, "u"))
    assert (result.num_late, content(result.table)) == (2, {2: "2@2"})
    assert verify(result.table) == []


def test_composite_keys_match_in_any_order() -> None:
    """The order in which `on` names the columns does not matter."""
    schema = pa.schema(
        [pa.field("a", pa.string(), False), pa.field("b", pa.int32(), False), SCHEMA.field("seq")]
    )
    table = new_table(schema)
    incoming = schema.append(INCOMING.field("op"))
    rows = {"a": ["x", "x"], "b": [1, 2], "seq": [5, 5], "op": ["d", "u"]}
    table = upsert(table, pa.table(rows, incoming), replace(RULES, on=("b", "a"))).table
    late = pa.table({"a": ["x", "y"], "b": [1, 1], "seq": [4, 4], "op": ["u", "u"]}, incoming)
    result = upsert(table, late, replace(RULES, on=("a", "b")))
    assert (result.num_late, result.num_inserted) == (1, 1)
    keys = Dataset(result.table).to_table(["a", "b"]).to_pylist()
    assert keys == [{"a": "x", "b": 2}, {"a": "y", "b": 1}]


def test_remembered_deletes_expire() -> None:
    """Tombstones would grow forever, and the promise of late rows holds for the given age and no
    longer.
    """
    now = [0]
    environment = make_environment(now_nanos=lambda: now[0])
    table = take_in(new_table(), (1, 5, "d"), environment=environment).table
    now[0] = WEEK // timedelta(microseconds=1) * 1000
    assert take_in(table, (1, 4, "u"), environment=environment).num_late == 1
    now[0] += 1_000_000
    result = take_in(table, (1, 4, "u"), environment=environment)
    assert (result.num_inserted, named_files(result.table)) == (1, set())
    assert len(tombstone_files(result.table)) == 1  # the versions before name it


@pytest.mark.parametrize("age", [None, FOR_GOOD, WEEK])
def test_ages_count_by_the_store(age: timedelta | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose clock is wrong would forget the deletes of others, and only an age needs
    the request for the time.
    """
    table = take_in(new_table(), (1, 5, "d")).table
    uris: list[str] = []

    def with_store_clock(store: Any, environment: Environment) -> Environment:
        uris.append(store.uri)
        return environment

    monkeypatch.setattr("lance_stream.upsert.tombstones.with_store_clock", with_store_clock)
    result = take_in(table, (1, 4, "u"), rules=replace(RULES, tombstones=age))
    assert (result.num_late, content(table)) == (1, {})
    assert uris == ([table.store.uri] if age == WEEK else [])


def test_tombstones_and_ledger_share_a_version() -> None:
    """In separate versions a crash in between would lose either the deletes or the proof of the
    batch.
    """
    table = new_table()
    first = take_in(table, (1, 5, "d"), micro_batch=PendingBatch.of("app", 0))
    assert first.table.version == table.version + 1
    assert set(first.table.manifest.config) == {CONFIG_KEY, "lance_stream.ledger.app"}
    again = take_in(table, (1, 5, "d"), micro_batch=PendingBatch.of("app", 0))
    assert (again.was_already_committed, again.table.version) == (True, first.table.version)
    assert tombstone_files(table) == named_files(table)


def test_second_drivers_leave_no_file() -> None:
    """The driver that loses has already written its tombstone file."""
    table = take_in(new_table(), (9, 1, "d")).table
    micro_batch = PendingBatch.of("app", 0)
    stale = on_publication(table, lambda: take_in(table, (1, 5, "d"), micro_batch=micro_batch))
    result = take_in(stale, (1, 5, "d"), micro_batch=micro_batch)
    assert result.was_already_committed
    assert tombstone_files(table) == named_files(table)
    assert len(named_files(table)) == 2


def test_failed_commits_leave_no_file() -> None:
    """Nothing refers to the tombstone file of a refused commit, so nobody would delete it."""
    table = take_in(new_table(), (1, 5, "d")).table
    stale = on_publication(table, lambda: Dataset(table).restore(1))
    with pytest.raises(CommitConflictError):
        take_in(stale, (2, 5, "d"))
    assert len(tombstone_files(table)) == 1


def test_restores_bring_back_their_tombstones() -> None:
    """The deletes belong to a version as its rows do, and later ones must be forgotten."""
    first = take_in(new_table(), (1, 5, "d")).table
    second = take_in(first, (2, 5, "d")).table
    restored = Dataset(second).restore(first.version).table
    result = take_in(restored, (1, 4, "u"), (2, 4, "u"))
    assert (result.num_late, content(result.table)) == (1, {2: "2@4"})


def test_other_key_columns_are_refused() -> None:
    """Deletes are remembered by one key, so another key is refused before anything is written."""
    table = take_in(new_table(), (1, 5, "d")).table
    files = [file.path for file in table.store.list()]
    rows = batch((1, 6, "d")).append_column("at", pa.array([1]))
    with pytest.raises(InvalidInputError, match=r"by the key \('id'\) in the order of 'seq'"):
        upsert(table, rows, replace(RULES, sequence_by="at", except_columns=("op", "at")))
    assert [file.path for file in table.store.list()] == files


def test_concurrent_writers_with_other_keys_conflict() -> None:
    """Between plan and commit another writer begins to remember deletes by other columns."""
    table = new_table()
    other = replace(RULES, sequence_by="at", except_columns=("op", "at"))
    rows = batch((2, 6, "d")).append_column("at", pa.array([1]))
    stale = on_publication(table, lambda: upsert(table, rows, other))
    with pytest.raises(InvalidInputError, match="in the order of 'at'"):
        take_in(stale, (1, 5, "d"))
    assert tombstone_files(table) == named_files(table)


def test_concurrent_rename_refuses_remembered_deletes() -> None:
    """Deletes name their columns, so a rename that races with the first of them must not go
    unnoticed.
    """
    table = take_in(new_table(), (1, 1, "u")).table
    stale = on_publication(table, lambda: Dataset(table).rename_columns({"seq": "at"}))
    with pytest.raises(InvalidInputError, match="has no column 'seq'"):
        take_in(stale, (1, 5, "d"))
    assert tombstone_files(table) == set()
    assert Dataset(table).checkout(None).to_table()["id"].to_pylist() == [1]


def test_sequences_follow_swapped_names() -> None:
    """By name, later sequences would be compared with remembered ones of the other column."""
    schema = SCHEMA.append(pa.field("at", pa.int64()))
    table = take_in(new_table(schema), (1, 1, "u")).table
    swapped = {"seq": "at", "at": "seq"}
    stale = on_publication(table, lambda: Dataset(table).rename_columns(swapped))
    take_in(stale, (1, 5, "d"), (2, 5, "u"))
    newest = Dataset(table).checkout(None)
    assert newest.to_table(["id", "seq", "at"]).to_pylist() == [{"id": 2, "seq": 5, "at": None}]
    assert named_files(newest.table) == tombstone_files(table)


def test_the_dataset_verb_takes_an_age() -> None:
    """The age is given as text at the public surface, and a later upsert without it still respects
    the deletes.
    """
    ds = Dataset(new_table())
    how: dict[str, Any] = {
        "sequence_by": "seq",
        "delete_when": "op = 'd'",
        "except_columns": ["op"],
    }
    ds = ds.upsert(batch((1, 5, "d")), on=["id"], tombstones="7 days", **how)
    assert ds.upsert(batch((1, 4, "u")), on=["id"], **how).count_rows() == 0
    with pytest.raises(InvalidInputError, match="is not an age"):
        ds.upsert(batch((1, 5, "d")), on=["id"], tombstones="a week", **how)


def watched(table: TableVersion, at: int, act: Callable[[], object]) -> TableVersion:
    """Return the table with a store that acts before one of its calls.

    A commit's last call is the one that publishes; one more is what comes after it.
    """
    store = WatchedStore(table.store)

    def look(_call: str, _path: str) -> None:
        if len(store.calls) == at:
            act()

    def look_after(call: str, path: str) -> None:
        if call == "create_once" and path.endswith(".manifest") and len(store.calls) + 1 == at:
            act()

    store.before, store.after = look, look_after
    return replace(table, store=store, log=ObjectStoreLog(store))


def number_of_calls(*happened: Event, before: Sequence[Event]) -> int:
    store = watched(take_in(new_table(), *before).table, 0, lambda: None)
    take_in(store, *happened, micro_batch=PendingBatch.of("app", 0))
    assert isinstance(store.store, WatchedStore)
    return len(store.store.calls)


BEFORE: list[Event] = [(1, 1, "u"), (2, 1, "u"), (3, 5, "d")]
OURS: list[Event] = [(1, 6, "d"), (3, 4, "u"), (4, 6, "d"), (5, 3, "u"), (6, 7, "u")]
THEIRS: list[Event] = [(1, 5, "u"), (4, 5, "u"), (5, 4, "d"), (6, 6, "d"), (2, 2, "d")]


def test_concurrent_commits_anywhere_end_alike() -> None:
    """Another writer commits before each call to the store in turn."""
    expected = last_state([*BEFORE, *OURS, *THEIRS])
    num_calls = number_of_calls(*OURS, before=BEFORE)
    assert num_calls > 8
    for at in range(1, num_calls + 1):
        table = take_in(new_table(), *BEFORE).table
        stale = watched(table, at, lambda table=table: take_in(table, *THEIRS))
        take_in(stale, *OURS, micro_batch=PendingBatch.of("app", 0))
        assert content(table) == expected
        assert named_files(table) == tombstone_files(table)


class KilledError(BaseException):
    """The process is gone: nothing is cleaned up."""


def test_crashes_anywhere_apply_the_batch_once() -> None:
    """The writer dies at each call to the store in turn, and a second one takes over."""

    def die() -> None:
        raise KilledError

    num_calls = number_of_calls(*OURS, before=BEFORE)
    versions = set()
    for at in range(1, num_calls + 2):
        table = take_in(new_table(), *BEFORE).table
        with pytest.raises(KilledError):
            take_in(watched(table, at, die), *OURS, micro_batch=PendingBatch.of("app", 0))
        versions.add(table.log.latest() - table.version)
        take_in(table, *OURS, micro_batch=PendingBatch.of("app", 0))
        assert table.log.latest() == table.version + 1
        assert content(table) == last_state([*BEFORE, *OURS])
        assert named_files(table) <= tombstone_files(table)
        assert verify(Dataset(table).checkout(None).table) == []
    assert versions == {0, 1}  # some died before, some after the version was there


def test_uncertain_commits_keep_their_file() -> None:
    """The commit may have succeeded, and deleting its tombstones would damage the table."""
    table = take_in(new_table(), (1, 5, "d")).table
    store = WatchedStore(table.store)

    def lose_the_answer(call: str, path: str) -> None:
        if call == "create_once" and path.startswith(VERSIONS_DIRECTORY):
            store.before = fail
            raise OSError("no answer")

    def fail(_call: str, _path: str) -> None:
        raise OSError("no connection")

    store.after = lose_the_answer
    with pytest.raises(CommitUncertainError):
        take_in(replace(table, store=store, log=ObjectStoreLog(store)), (2, 5, "d"))
    assert take_in(table, (2, 4, "u")).num_late == 1
    assert len(named_files(table)) == 2
