"""Several tables are committed together: all of them, or none."""

import pickle
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.commit.commit_groups import (
    CommitGroup,
    Member,
    read_latest_together,
    run_together,
)
from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.manifest_stores import retrying
from lance_stream.commit.manifest_stores.protocol import ManifestItem, ManifestStore
from lance_stream.errors import (
    CommitUncertainError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.snapshot import opening
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.objects.object_requests import RequestPolicy
from lance_stream.upsert.rules import UpsertRules
from tests.commit.table_groups import SCHEMA, Prepare, TableGroup, in_sqlite
from tests.commit.tables import create
from tests.contracts.watched_stores import WatchedManifests, WatchedStore
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import KEY_ID, SECRET, DynamoTable
from tests.servers.store_faults import CutAfter, CutBefore, Forge
from tests.upsert.large.running_parts import upsert_by_parts


@pytest.fixture
def group(tmp_path: Path) -> TableGroup:
    group = in_sqlite(tmp_path)
    group.create()
    return group


class SharedWatch:
    """One watched manifest store for all tables of a commit: a group has to have one."""

    def __init__(
        self,
        before: Callable[[str, int], None] = lambda _call, _version: None,
        after: Callable[[str, int], None] = lambda _call, _version: None,
    ) -> None:
        self.store: WatchedManifests | None = None
        self._before, self._after = before, after
        self._lock = threading.Lock()

    def __call__(self, _name: str, table: TableVersion) -> None:
        log: Any = table.log
        with self._lock:
            self.store = self.store or WatchedManifests(log.manifests, self._before, self._after)
        log.manifests = self.store

    @property
    def puts(self) -> list[str]:
        assert self.store is not None
        return [call for call, _ in self.store.calls if call.startswith("put") and "all" in call]


@pytest.mark.floors
def test_batches_are_committed_to_all_tables(group: TableGroup) -> None:
    """One request has to publish all tables, since a crash between two requests would leave half a
    batch.
    """
    watch = SharedWatch()
    outcomes = group.commit(0, prepare=watch)
    assert {name: outcome.is_new for name, outcome in outcomes.items()} == {
        "orders": True,
        "lines": True,
    }
    assert watch.puts == ["put_all_if_not_exist"]
    assert group.batches() == [[0], [0]]
    assert [
        lance_stream.open_dataset(uri, storage_options=group.options).verify()
        for uri in group.uris.values()
    ] == [[], []]


@pytest.mark.floors
def test_a_repeated_batch_changes_nothing(group: TableGroup) -> None:
    """Spark repeats a batch after a crash, and every table of the group must recognize it."""
    group.commit(0)
    outcomes = group.commit(0)
    assert not any(outcome.is_new for outcome in outcomes.values())
    assert group.batches() == [[0], [0]]


def test_group_writes_only_the_missing_batch(group: TableGroup) -> None:
    """A stream may have written one table before it wrote both."""
    one = TableGroup({"orders": group.uris["orders"]}, group.options)
    one.commit(0)
    outcomes = group.commit(0)
    assert [outcomes[name].is_new for name in group.uris] == [False, True]
    assert group.batches() == [[0], [0]]


def test_empty_tables_are_omitted(group: TableGroup) -> None:
    """A group's batch often has rows for some of the tables only."""
    outcomes = group.commit(0, only={"lines": 0})
    assert [outcomes[name].is_new for name in group.uris] == [True, False]
    assert group.batches() == [[0], []]


def test_member_tasks_read_their_table(group: TableGroup) -> None:
    """On a cluster, tasks get the table of a large upsert, but not the lock of its group."""
    group.commit(0)

    def upsert_rows(name: str, member: Member) -> TableVersion:
        table = opening.open_newest(group.uris[name], storage_options=group.options)
        rows = pa.table({"batch": [0, 1, 2], "name": ["new"] * 3}, SCHEMA)
        joined = replace(table, log=member.join(table.log))
        return upsert_by_parts(joined, rows, UpsertRules(("batch",))).table

    run_together({name: partial(upsert_rows, name) for name in group.uris})
    assert group.batches() == [[0, 1, 2], [0, 1, 2]]


def test_copies_of_a_member_publish_nothing(group: TableGroup) -> None:
    """A version that a task published alone would be half a batch."""
    (member,) = CommitGroup(["orders"]).members.values()
    log: Any = lance_stream.open_dataset(group.uris["orders"], None, group.options).table.log
    copy = pickle.loads(pickle.dumps(log.published_by(member)))
    with pytest.raises(AssertionError, match="'orders' belongs to the process of its group"):
        copy.publisher.put_if_not_exists(log.manifests, log.base_uri, None)


def test_tables_are_created_together(tmp_path: Path) -> None:
    """A table's first version is published like any other."""
    group = in_sqlite(tmp_path)
    stopped = threading.Event()

    def stop_at_second(name: str, _table: TableVersion) -> None:
        if name == "lines":
            stopped.set()
            raise InvalidInputError("no")

    from lance_stream.ledger.replay_check import PendingBatch
    from lance_stream.verbs.append import append_fragments, write_input
    from lance_stream.verbs.create import plan_table

    def create(name: str, prepare: Prepare, member: Member) -> None:
        table = plan_table(group.uris[name], SCHEMA, storage_options=group.options)
        prepare(name, table)
        rows = pa.table({"batch": [0], "name": [name]}, SCHEMA)
        fragments = write_input(table, rows)
        joined = replace(table, log=member.join(table.log))
        append_fragments(joined, fragments, PendingBatch.of("s", 0))

    def create_all(prepare: Prepare) -> None:
        run_together(
            {name: lambda member, name=name: create(name, prepare, member) for name in group.uris}
        )

    with pytest.raises(InvalidInputError, match="no"):
        create_all(stop_at_second)
    with pytest.raises(NotFoundError):
        group.batches()
    create_all(lambda _name, _table: None)
    assert group.batches() == [[0], [0]]


@pytest.mark.floors
def test_a_failing_table_stops_the_others(group: TableGroup) -> None:
    """The other table has prepared its files by then, which must be deleted so that the repetition
    starts afresh.
    """

    def fail(name: str, _table: TableVersion) -> None:
        if name == "lines":
            raise InvalidInputError("this batch does not fit")

    with pytest.raises(InvalidInputError, match="does not fit") as caught:
        group.commit(0, prepare=fail)
    assert "'lines', which is committed together with 1 others" in str(caught.value.__notes__)
    assert group.batches() == [[], []]
    data = Path(group.uris["orders"]) / "data"
    assert not list(data.iterdir())  # those of the other table, too
    assert not list(data.parent.glob("_versions/*.manifest-*"))
    group.commit(0)
    assert group.batches() == [[0], [0]]


def test_tables_wait_for_a_losing_member(group: TableGroup) -> None:
    """Only the table whose version is taken is planned again."""
    num_plans = dict.fromkeys(group.uris, 0)
    races = iter([1, 2, 3])

    def overtake(call: str, _version: int) -> None:
        if call == "put_all_if_not_exist" and next(races, None):
            ds = lance_stream.open_dataset(group.uris["orders"], storage_options=group.options)
            ds.append(pa.table({"batch": [-1], "name": ["other"]}, SCHEMA))

    watch = SharedWatch(before=overtake)

    def count(name: str, table: TableVersion) -> None:
        watch(name, table)

        def staged(call: str, path: str) -> None:
            if call == "write" and ".manifest-" in path:
                num_plans[name] += 1

        log: Any = table.log
        log.store = WatchedStore(log.store, before=staged)

    group.commit(0, prepare=count)
    assert num_plans == {"orders": 4, "lines": 1}
    assert group.batches() == [[-1, -1, -1, 0], [0]]


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.floors
def test_lost_answers_are_resolved(group: TableGroup, times: int) -> None:
    """The transaction was committed, but the connection broke before the answer arrived."""
    remaining = [1] * times

    def lose(call: str, _version: int) -> None:
        if call == "put_all_if_not_exist" and remaining:
            remaining.pop()
            raise StoreUnavailableError("the answer was lost")

    outcomes = group.commit(0, prepare=SharedWatch(after=lose))
    assert all(outcome.is_new for outcome in outcomes.values())
    assert group.batches() == [[0], [0]]


@pytest.mark.parametrize("times", [1, 3])
def test_lost_requests_are_sent_again(group: TableGroup, times: int) -> None:
    """A request that never arrived must not fail the batch."""
    remaining = [1] * times

    def lose(call: str, _version: int) -> None:
        if call == "put_all_if_not_exist" and remaining:
            remaining.pop()
            raise StoreUnavailableError("the request was lost")

    group.commit(0, prepare=SharedWatch(before=lose))
    assert group.batches() == [[0], [0]]


def test_an_unknown_outcome_deletes_nothing(group: TableGroup) -> None:
    """The store stays away after a commit, and the repeated batch finds its result."""
    unreachable = threading.Event()

    def lose(call: str, _version: int) -> None:
        if call == "put_all_if_not_exist":
            unreachable.set()
        if unreachable.is_set():
            raise StoreUnavailableError("gone")

    with pytest.raises(CommitUncertainError):
        group.commit(
            0,
            prepare=SharedWatch(
                before=lambda c, v: lose(c, v) if unreachable.is_set() else None, after=lose
            ),
        )
    assert group.batches() == [[0], [0]]
    assert not any(outcome.is_new for outcome in group.commit(0).values())


def test_failures_after_unclear_answers_delete_nothing(group: TableGroup) -> None:
    """The request of an aborted commit may still arrive, and its files must exist then."""
    late: list[tuple[ManifestStore, Mapping[str, ManifestItem]]] = []

    class Delaying:
        """Passes on all but the first transaction, which it keeps for later."""

        def __init__(self, inner: ManifestStore) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def put_all_if_not_exist(self, items: Mapping[str, ManifestItem]) -> frozenset[str]:
            late.append((self.inner, items))
            raise StoreUnavailableError("no answer")

        def get(self, base_uri: str, version: int) -> ManifestItem | None:
            if late and base_uri.endswith("lines"):
                raise StoreUnavailableError("no answer")  # so this table gives up
            return self.inner.get(base_uri, version)

    shared: list[Any] = []
    lock = threading.Lock()

    def delay(_name: str, table: TableVersion) -> None:
        log: Any = table.log
        with lock:
            if not shared:
                shared.append(Delaying(log.manifests))
        log.manifests = shared[0]

    with pytest.raises(CommitUncertainError):
        group.commit(0, prepare=delay)
    assert group.batches() == [[], []]
    manifests, items = late[0]
    assert manifests.put_all_if_not_exist(items) == frozenset()
    assert group.batches() == [[0], [0]]


def test_refusals_are_raised_once(group: TableGroup) -> None:
    """A refusal is final, and retrying it or committing one table alone would break the group."""

    def refuse(call: str, _version: int) -> None:
        if call == "put_all_if_not_exist":
            raise StoreRefusedError("you may not do this")

    with pytest.raises(StoreRefusedError, match="may not"):
        group.commit(0, prepare=SharedWatch(before=refuse))
    assert group.batches() == [[], []]


@pytest.mark.parametrize("name", ["orders", "lines"])
@pytest.mark.parametrize("call", ["put_if_exists", "create_once", "delete"])
def test_readers_finish_interrupted_group_commits(group: TableGroup, name: str, call: str) -> None:
    """One table's writer dies between the transaction and its last step, which
    a reader completes.
    """

    class Died(BaseException):
        pass

    def die(which: str, path: str | int) -> None:
        if which == call and (isinstance(path, int) or path.startswith("_versions/")):
            raise Died

    watch = SharedWatch()

    def prepare(of: str, table: TableVersion) -> None:
        log: Any = table.log
        watch(of, table)
        if of == name:
            log.store = WatchedStore(log.store, before=die)

    if call == "put_if_exists":  # its failure is only logged, so the thread itself has to end
        watch = SharedWatch(before=die)
    with pytest.raises(Died):
        group.commit(0, prepare=prepare)
    assert group.batches() == [[0], [0]]
    assert not any(outcome.is_new for outcome in group.commit(0).values())
    group.commit(1)
    assert group.batches() == [[0, 1], [0, 1]]


def test_two_drivers_commit_a_batch_once(group: TableGroup) -> None:
    """Drivers of one query can overlap after a network partition, also when they commit several
    tables.
    """
    for batch_id in range(5):
        line = threading.Barrier(4)

        def commit(_: int, batch_id: int = batch_id, line: threading.Barrier = line) -> int:
            line.wait()
            return sum(outcome.is_new for outcome in group.commit(batch_id).values())

        with ThreadPoolExecutor(4) as drivers:
            assert sum(drivers.map(commit, range(4))) == 2
    assert group.batches() == [[0, 1, 2, 3, 4]] * 2


def test_streams_with_shared_tables_never_deadlock(tmp_path: Path) -> None:
    """Any of the streams may lose in one table while the others wait."""
    group = in_sqlite(tmp_path, "a", "b", "c")
    group.create()
    torn: list[Any] = []
    ended = threading.Event()

    def write(stream: int) -> None:
        names = [*group.uris][stream % 3 :] + [*group.uris][: stream % 3]
        pair = TableGroup({name: group.uris[name] for name in names}, group.options)
        for batch_id in range(5):
            pair.commit(batch_id, app_id=f"stream {stream}")

    def read() -> None:
        while not ended.is_set():
            batches = group.batches()
            if batches[1:] != batches[:-1]:
                torn.append(batches)

    with ThreadPoolExecutor(4) as threads:
        reading = threads.submit(read)
        try:
            list(threads.map(write, range(3)))
        finally:
            ended.set()
        reading.result()
    assert torn == []
    assert group.batches() == [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4]] * 3


def test_foreign_versions_delay_one_table(group: TableGroup) -> None:
    """The foreign version wins the final name, and the batch is still committed once to each
    table.
    """
    foreign: list[int] = []

    def bypass(call: str, _version: int) -> None:
        if call == "put_all_if_not_exist" and not foreign:
            foreign.append(1)
            directory = Path(group.uris["orders"]) / "_versions"
            (newest,) = directory.glob("*.manifest")
            from lance_stream.table.paths import NamingScheme, manifest_path

            data = newest.read_bytes()
            target = Path(group.uris["orders"]) / manifest_path(2, NamingScheme.V2)
            target.write_bytes(_as_version_2(data))

    group.commit(0, prepare=SharedWatch(before=bypass))
    assert group.batches() == [[0], [0]]
    ds = lance_stream.open_dataset(group.uris["orders"], storage_options=group.options)
    assert ds.version == 3


def _as_version_2(data: bytes) -> bytes:
    from dataclasses import replace

    from lance_stream.table.manifest import decode_manifest, encode_manifest

    return encode_manifest(replace(decode_manifest(data), version=2, transaction_file=""))


# --- refusals


def test_tables_without_manifest_stores_are_refused(tmp_path: Path) -> None:
    """Versions in separate directories cannot be published by one request."""
    uris = [str(tmp_path / name) for name in ("a", "b")]
    for uri in uris:
        lance_stream.create_dataset(uri, SCHEMA)
    with pytest.raises(InvalidInputError, match=r"in its own directory.*manifest_store"):
        lance_stream.open_together(uris)


def test_missing_manifest_store_options_are_refused(tmp_path: Path) -> None:
    """The table names its store, and reading its directory alone could miss the newest version."""
    uris = [str(tmp_path / name) for name in ("a", "b")]
    options = {"manifest_store": f"sqlite://{tmp_path}/m.db"}
    for uri in uris:
        lance_stream.create_dataset(uri, SCHEMA, storage_options=options)
    with pytest.raises(InvalidInputError, match=r"'sqlite .*the storage option manifest_store is"):
        lance_stream.open_together(uris)
    assert len(lance_stream.open_together(uris, options)) == 2


def test_tables_in_two_stores_are_refused(tmp_path: Path) -> None:
    """No transaction spans two databases, and the same table twice would publish one version
    twice.
    """
    from lance_stream.commit.commit_groups import check_can_commit_together
    from lance_stream.commit.opening import open_log

    logs = {
        name: open_log(tmp_path / name, {"manifest_store": f"sqlite://{tmp_path}/{name}.db"})
        for name in ("a", "b")
    }
    with pytest.raises(InvalidInputError, match=r"'a' is in .*a\.db, and 'b' in .*b\.db"):
        check_can_commit_together(logs)
    same = {
        name: open_log(tmp_path / "t", {"manifest_store": f"sqlite://{tmp_path}/m.db"})
        for name in ("a", "b")
    }
    with pytest.raises(InvalidInputError, match="are the same table"):
        check_can_commit_together(same)


def test_open_together_refuses_invalid_lists(group: TableGroup) -> None:
    """A single location is an iterable of characters, so it has to be refused explicitly."""
    uri = group.uris["orders"]
    with pytest.raises(InvalidInputError, match="a list of locations"):
        lance_stream.open_together(uri, group.options)
    with pytest.raises(InvalidInputError, match="occurs twice"):
        lance_stream.open_together([uri, uri], group.options)
    with pytest.raises(InvalidInputError, match="None is not the path"):
        lance_stream.open_together([uri, None], group.options)  # type: ignore[list-item]  # the mistake
    assert lance_stream.open_together([], group.options) == []


def test_missing_tables_are_not_found(group: TableGroup, tmp_path: Path) -> None:
    """The error must name which of the tables is missing."""
    with pytest.raises(NotFoundError, match="nowhere"):
        lance_stream.open_together([group.uris["orders"], str(tmp_path / "nowhere")], group.options)


def test_members_need_a_manifest_store() -> None:
    """A member that publishes in its directory would commit alone."""
    member = CommitGroup(["a table"]).members["a table"]
    with pytest.raises(InvalidInputError, match=r"'a table', .* publishes its versions in its own"):
        member.join(create(1))


def test_lost_manifests_are_named_together(group: TableGroup) -> None:
    """The other table's version alone would be half of a batch."""
    group.commit(0)
    logs = [opening.open_newest(uri, group.options).log for uri in group.uris.values()]
    assert [manifest.version for manifest in read_latest_together(logs)] == [2, 2]
    logs[1].store.delete(logs[1].manifest_path(2))
    with pytest.raises(CorruptDataError, match="Open the tables one at a time"):
        read_latest_together(logs)


def test_tables_new_to_stores_are_refused(tmp_path: Path) -> None:
    """Their versions in the directory may belong to any version of the other table."""
    group = in_sqlite(tmp_path)
    lance_stream.create_dataset(group.uris["orders"], SCHEMA)
    lance_stream.create_dataset(group.uris["lines"], SCHEMA, storage_options=group.options)
    with pytest.raises(NotFoundError, match="Commit to the table once"):
        group.batches()
    group.commit(0)
    assert group.batches() == [[0], [0]]


def test_groups_refuse_members_in_two_stores(tmp_path: Path) -> None:
    """The check must also hold where the members open their stores late, or each table would
    commit alone.
    """
    lines = in_sqlite(tmp_path, "lines")
    (tmp_path / "other").mkdir()
    orders = in_sqlite(tmp_path / "other", "orders")
    for value in (lines, orders):
        value.create()
    work = {
        name: lambda member, name=name, of=of: of._append(
            name, 0, 1, lambda _name, _table: None, "s", member
        )
        for name, of in (("lines", lines), ("orders", orders))
    }
    with pytest.raises(InvalidInputError, match="cannot commit together"):
        run_together(work)
    assert lines.batches() == orders.batches() == [[]]


# --- servers


FEW = RequestPolicy(max_attempts=3, first_delay_seconds=0.001, total_seconds=20)


@pytest.fixture
def few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrying, "POLICY", FEW)


@pytest.fixture(
    params=[
        pytest.param("dynamodb_table", marks=pytest.mark.server("moto")),
        pytest.param("dynamodb_local_table", marks=pytest.mark.server("dynamodb_local", "moto")),
    ]
)
def dynamo(request: pytest.FixtureRequest) -> DynamoTable:
    table = request.getfixturevalue(request.param)
    assert isinstance(table, DynamoTable)
    return table


@pytest.mark.parametrize(
    "fault",
    [
        CutBefore,
        CutAfter,
        lambda: Forge(503),
        lambda: Forge(500, landed=True),
        lambda: Forge(400, "TransactionConflictException"),
    ],
    ids=["cut before", "cut after", "503", "500 and done all the same", "conflict"],
)
def test_faults_of_dynamodb_are_overcome(
    dynamo: DynamoTable, tmp_path: Path, fault: Callable[[], Any], few_attempts: None
) -> None:
    """An error may come before or after the transaction took effect, and the batch must be
    committed once in both cases.
    """
    with FaultProxy(dynamo.endpoint) as proxy:
        group = in_dynamodb(dynamo, tmp_path, proxy.url)
        group.create()
        proxy.clear()
        proxy.add(fault(), kind="TransactWriteItems", at=1, times=1)
        outcomes = group.commit(0)
        assert all(outcome.is_new for outcome in outcomes.values())
        assert group.batches() == [[0], [0]]
        assert proxy.kinds()["TransactWriteItems"] >= 1


@pytest.mark.parametrize("fault", [CutBefore, lambda: Forge(200), lambda: Forge(503)])
def test_dynamodb_snapshots_overcome_faults(
    dynamo: DynamoTable, tmp_path: Path, fault: Callable[[], Any], few_attempts: None
) -> None:
    """Readers take one snapshot of all tables, and an empty answer must not look like missing
    tables.
    """
    with FaultProxy(dynamo.endpoint) as proxy:
        group = in_dynamodb(dynamo, tmp_path, proxy.url)
        group.create()
        group.commit(0)
        proxy.clear()
        proxy.add(fault(), kind="TransactGetItems", at=1, times=1)
        assert group.batches() == [[0], [0]]
        assert proxy.kinds()["TransactGetItems"] == 2


def in_dynamodb(table: DynamoTable, folder: Path, endpoint: str) -> TableGroup:
    uris = {name: str(folder / name) for name in ("orders", "lines")}
    options = {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "dynamodb_endpoint": endpoint,
        "manifest_store": f"dynamodb://{table.name}?region=us-east-1",
    }
    return TableGroup(uris, options)


@pytest.mark.server("moto")
def test_dynamodb_refuses_too_many_tables(dynamodb_table: DynamoTable) -> None:
    """DynamoDB limits the items of a transaction, and its own error would not name the number of
    tables.
    """
    manifests = manifests_of(in_dynamodb(dynamodb_table, Path("/x"), dynamodb_table.endpoint))
    items = {f"t{number}": ManifestItem(1, f"t{number}/x", 1) for number in range(101)}
    with pytest.raises(InvalidInputError, match="at most 100 tables, not 101"):
        manifests.put_all_if_not_exist(items)
    with pytest.raises(InvalidInputError, match="at most 50 tables, not 101"):
        manifests.latest_of_all(list(items))
    items.popitem()
    assert manifests.put_all_if_not_exist(items) == frozenset()
    few = list(items)[:12]  # moto allows 25 reads in a transaction
    assert len(manifests.latest_of_all(few)) == 12


def manifests_of(group: TableGroup) -> ManifestStore:
    from lance_stream.commit.opening import open_log

    log = open_log(group.uris["orders"], group.options)
    assert isinstance(log, ExternalLog)
    return log.manifests
