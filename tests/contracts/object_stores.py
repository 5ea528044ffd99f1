"""What every object service's store must keep to, beyond `StoreContract`.

A service's tests inherit `ObjectStoreContract` and give it a bucket:

    class TestS3Store(ObjectStoreContract):
        @pytest.fixture
        def bucket(self, s3_bucket: Bucket) -> Bucket:
            return s3_bucket

What else a service may say stands at the top of the class. The races are run in a small form;
LANCE_STREAM_RACES=16x200 runs them with 16 racers and 200 rounds.
"""

import gc
import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pytest

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.storage.locations import open_store
from lance_stream.storage.objects.object_store import ObjectStore
from lance_stream.storage.store import Store
from tests.contracts.stores import StoreContract
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import CutAfter, CutBefore, CutBody, Forge, Hold, Shorten
from tests.servers.store_requests import StoreRequest

NUM_RACERS, NUM_ROUNDS = map(int, os.environ.get("LANCE_STREAM_RACES", "8x6").split("x"))

ODD_NAMES = [
    "a b",
    " a ",
    "a%20b",
    "100%",
    "a+b",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
    "e\N{COMBINING ACUTE ACCENT}",
    "\N{HIRAGANA LETTER A}\N{GRINNING FACE}",
    "a&b=c;d,e",
    "'single' \"double\"",
    "~!@$()[]{}^`",
    "a#b?c",
    "a:b|c<d>",
    "*",
    ".hidden",
    "..a",
]


ON_EVERY_SERVICE = pytest.mark.each_service
"""With --quick, too, this runs on each service, which answers in a way of its own."""


@pytest.mark.filterwarnings("ignore:.*use of fork\\(\\) may lead to deadlocks")
class ObjectStoreContract(StoreContract):
    secret_options: ClassVar[Sequence[str]] = ()
    """Options of the bucket whose values must never be shown."""

    conflict: ClassVar[Forge | None] = None
    """Its response when two create a name at once, and one should try again."""

    @pytest.fixture
    def bucket(self) -> Bucket:
        raise NotImplementedError

    @pytest.fixture
    def small_pages(self) -> tuple[Bucket, int]:
        """A bucket whose listings come in pages of few keys, and how many."""
        pytest.skip("the server cannot make its pages small")

    def num_uploads(self, bucket: Bucket) -> int:
        """Return how many uploads were begun in the bucket, and neither finished nor aborted."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, bucket: Bucket) -> ObjectStore:  # type: ignore[override]  # a Store it is
        return store_in(bucket)

    @pytest.fixture
    def proxy(self, bucket: Bucket) -> Iterator[FaultProxy]:
        parts = urlsplit(bucket.endpoint)
        with FaultProxy(f"{parts.scheme}://{parts.netloc}") as proxy:
            yield proxy

    @pytest.fixture
    def behind(self, bucket: Bucket, proxy: FaultProxy) -> ObjectStore:
        """The same store, reached through the proxy."""
        return store_at(bucket, proxy.url)

    # Names

    @pytest.mark.each_service
    @pytest.mark.parametrize("name", ODD_NAMES)
    def test_names_can_have_any_characters(self, store: ObjectStore, name: str) -> None:
        """Clients escape names differently, and a wrong escape leads to another object."""
        path = f"{name}/x {name}"
        assert store.create_once(path, b"once")
        assert not store.create_once(path, b"twice")
        assert store.read(path) == b"once"
        assert store.list_names(name) == [f"x {name}"]
        assert [file.path for file in store.list()] == [path]
        store.copy(path, f"copy of {name}")
        assert store.read(f"copy of {name}") == b"once"
        store.delete(path)
        assert [file.path for file in store.list()] == [f"copy of {name}"]

    @pytest.mark.parametrize("name", ["a\tb", "a\x1bb", "a\nb", "a//b", "a/./b"])
    def test_impossible_names_are_refused(self, store: ObjectStore, name: str) -> None:
        """Services normalise such names and would answer for another object."""
        requests: list[Callable[[], object]] = [
            lambda: store.read(name),
            lambda: store.read_end(name, 1),
            lambda: store.exists(name),
            lambda: store.create_once(name, b"x"),
            lambda: store.list_names(name),
            lambda: store.copy(name, "b"),
            lambda: store.delete(name),
        ]
        for request in requests:
            with pytest.raises(StoreRefusedError, match="control character") as raised:
                request()
            assert str(raised.value).isprintable()

    @pytest.mark.each_service
    def test_a_stores_uri_survives_odd_roots(self, bucket: Bucket) -> None:
        """The URI of a store below a directory with odd characters opens the same store."""
        store = open_store(f"{bucket.uri}/100%25 a+b%20\N{SNOWMAN}/t", bucket.storage_options)
        store.write("data/a", b"1")
        again = open_store(store.uri, bucket.storage_options)
        assert again == store
        assert again.read("data/a") == b"1"
        above = open_store(f"{bucket.uri}/100%25 a+b%20%E2%98%83", bucket.storage_options)
        assert [file.path for file in above.list()] == ["t/data/a"]

    @pytest.mark.each_service
    def test_neighbours_with_equal_prefixes_are_unlisted(self, bucket: Bucket) -> None:
        """Services list by prefix, and a cleanup would delete files of the neighbour."""
        store, neighbour = store_in(bucket, "dir/t"), store_in(bucket, "dir/t2")
        neighbour.write("v/1", b"")
        assert store.list() == []
        assert store.list_names("v") == []

    # Reading

    @pytest.mark.each_service
    def test_an_objects_end_takes_one_request(self, behind: ObjectStore, proxy: FaultProxy) -> None:
        """Opening a file must not need a request for its size."""
        data = os.urandom(1000)
        behind.write("a", data)
        behind.write("empty", b"")
        for path, num_bytes, whole in [
            ("a", 100, data), ("a", 1000, data), ("a", 5000, data), ("empty", 16, b""),
        ]:  # fmt: skip
            proxy.clear()
            end, size = behind.read_end(path, num_bytes)
            assert bytes(end) == whole[-num_bytes:]
            assert size == len(whole)
            # Of an empty object some servers answer the end by all of it.
            assert sum(proxy.kinds().values()) <= (1 if whole else 2), proxy.story()

    def test_near_ranges_share_one_request(self, behind: ObjectStore, proxy: FaultProxy) -> None:
        """A request costs more than the bytes of a small gap, while distant ranges are read in
        parallel.
        """
        data = os.urandom(1 << 20) * 3
        behind.write("a", data)
        proxy.clear()
        near = [ByteRange(1000 * i, 1000 * i + 10) for i in range(100)]
        far = [ByteRange(2_000_000, 2_000_500)]
        buffers = behind.read_ranges("a", near + far)
        assert [bytes(buffer) for buffer in buffers] == [data[r.start : r.stop] for r in near + far]
        assert proxy.kinds() == {"get": 2}, proxy.story()

    def test_long_ranges_arrive_as_one_buffer(self, behind: ObjectStore, proxy: FaultProxy) -> None:
        """A long range is fetched in pieces."""
        data = os.urandom(1 << 20) * 20
        behind.write("a", data)
        proxy.clear()
        whole, middle = behind.read_ranges(
            "a", [ByteRange(0, len(data)), ByteRange(12_345_671, 12_345_701)]
        )
        assert bytes(whole) == data
        assert bytes(middle) == data[12_345_671:12_345_701]
        assert 2 <= proxy.kinds()["get"] <= 4, proxy.story()
        assert bytes(behind.read_ranges("a", [ByteRange(5, 1 << 40)])[0]) == data[5:]
        assert behind.read("a") == data

    @pytest.mark.each_service
    def test_a_missing_object_is_not_retried(self, behind: ObjectStore, proxy: FaultProxy) -> None:
        """Absence is an answer, and waiting would delay every look for a newer version."""
        for attempt in (
            lambda: behind.read("a"),
            lambda: behind.read_end("a", 10),
            lambda: behind.size("a"),
            lambda: behind.read_ranges("a", [ByteRange(0, 1)]),
            lambda: behind.copy("a", "b"),
        ):
            proxy.clear()
            with pytest.raises(NotFoundError, match="a"):
                attempt()
            assert sum(proxy.kinds().values()) == 1, proxy.story()

    # Listing

    @pytest.mark.each_service
    def test_first_names_are_right_across_pages(self, small_pages: tuple[Bucket, int]) -> None:
        """Services list in pages, with folders in between."""
        bucket, page = small_pages
        store = store_in(bucket)
        names = [f"{number:03}" for number in range(3 * page + 1)]
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda name: store.write(f"v/{name}", b""), names))
            list(threads.map(lambda name: store.write(f"v/{name}x/deeper", b""), names[::3]))
        for limit in (1, page - 1, page, page + 1, len(names), 1000, None):
            assert store.list_names("v", limit) == names[:limit]
        assert len(store.list("v")) == len(names) + len(names[::3])

    @pytest.mark.each_service
    def test_the_first_names_are_one_request(self, behind: ObjectStore, proxy: FaultProxy) -> None:
        """The newest version is the first name, however many there are."""
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(lambda n: behind.write(f"v/{n:03}", b""), range(30)))
        proxy.clear()
        assert behind.list_names("v", 3) == ["000", "001", "002"]
        assert proxy.kinds() == {"list": 1}, proxy.story()

    # Large objects

    def test_one_request_creates_large_objects(
        self, behind: ObjectStore, bucket: Bucket, proxy: FaultProxy
    ) -> None:
        """Only a single request carries the condition that the name is new."""
        first, second = (os.urandom(1 << 20) * 20 for _ in range(2))
        assert behind.create_once("v/1", first)
        assert proxy.kinds() == {"put once": 1}
        assert not behind.create_once("v/1", second)
        assert not behind.create_once("v/1", b"small")
        assert behind.read("v/1") == first
        assert behind.create_once("v/1", first)  # as if an answer had been lost
        behind.write("v/1", second)
        assert behind.read("v/1") == second
        assert self.num_uploads(bucket) == 0

    def test_one_writer_creates_a_large_object(self, store: ObjectStore) -> None:
        """Slow uploads widen the window in which two writers could win."""
        check_race_of_threads(store, num_racers=4, num_rounds=3, num_bytes=17 << 20)

    def test_files_are_sent_while_being_written(
        self, behind: ObjectStore, proxy: FaultProxy
    ) -> None:
        """A writer that collects the file would need its size in memory."""
        piece = os.urandom(777_777)
        proxy.clear()
        with behind.open_writer("data/a") as writer:
            for _ in range(80):
                writer.write(piece)
            assert proxy.num_bytes()[0] > 10 << 20, proxy.story()
            assert behind.list_names("data") == []
        assert behind.read("data/a") == piece * 80

    @pytest.mark.each_service
    def test_an_aborted_writer_leaves_no_upload(self, store: ObjectStore, bucket: Bucket) -> None:
        """Services charge for unfinished uploads, which no listing shows."""
        writer = store.open_writer("data/a")
        for _ in range(3):
            writer.write(bytes(10 << 20))
        writer.abort()
        writer.abort()
        with pytest.raises(ValueError, match="closed"):
            writer.write(b"x")
        assert self.num_uploads(bucket) == 0
        assert store.list() == []

    def test_failing_parts_leave_no_upload(
        self, behind: ObjectStore, bucket: Bucket, proxy: FaultProxy
    ) -> None:
        """A part that is lost silently would make a damaged file."""
        proxy.add(Forge(403), matches=lambda request: request.num_bytes_sent > 1 << 20, times=None)

        def write() -> None:
            with behind.open_writer("data/a") as writer:
                for _ in range(12):
                    writer.write(bytes(10 << 20))

        with pytest.raises(StoreRefusedError, match="data/a"):
            write()
        assert behind.list() == []
        assert self.num_uploads(bucket) == 0

    # Races

    def test_one_thread_creates_a_name(self, store: ObjectStore) -> None:
        """A check before the write, instead of a condition, would let two of them win."""
        check_race_of_threads(store, num_racers=NUM_RACERS, num_rounds=NUM_ROUNDS, num_bytes=5000)

    def test_one_process_creates_a_name(self, store: ObjectStore) -> None:
        """Only the service can decide between processes."""
        check_race_of_processes(store, num_racers=NUM_RACERS, num_rounds=NUM_ROUNDS, num_bytes=5000)

    # Faults

    @pytest.mark.each_service
    def test_lost_replies_are_no_lost_races(self, behind: ObjectStore, proxy: FaultProxy) -> None:
        """A retry meets the writer's own object and must recognise it."""
        proxy.add(CutAfter(), kind="put once")
        assert behind.create_once("v/1", b"ours")
        assert behind.list_names("v") == ["1"]
        proxy.clear()
        proxy.add(CutAfter(), kind="put once")
        assert not behind.create_once("v/1", b"theirs")
        assert behind.read("v/1") == b"ours"

    def test_large_writes_survive_lost_replies(
        self, behind: ObjectStore, bucket: Bucket, proxy: FaultProxy
    ) -> None:
        """The retry of a large write meets the writer's own object, and must recognise it."""
        ours, theirs = (os.urandom(1 << 20) * 17 for _ in range(2))
        rules = [proxy.add(CutAfter(), kind="put once")]
        assert behind.create_once("v/1", ours)
        proxy.clear()
        rules.append(proxy.add(CutAfter(), kind="put once"))
        assert not behind.create_once("v/1", theirs)
        assert behind.read("v/1") == ours
        with behind.open_writer("data/a") as writer:
            proxy.clear()
            rules.append(proxy.add(CutAfter(), matches=_completes))
            writer.write(ours)
        assert behind.read("data/a") == ours
        assert [rule.num_fired for rule in rules] == [1, 1, 1]
        assert self.num_uploads(bucket) == 0

    @pytest.mark.parametrize(
        "fault", [pytest.param(Forge(503), marks=ON_EVERY_SERVICE), CutBefore(), CutAfter()]
    )
    @pytest.mark.parametrize("kind", ["start upload", "part", "complete"])
    def test_every_upload_request_is_retried(
        self, behind: ObjectStore, proxy: FaultProxy, kind: str, fault: Any
    ) -> None:
        """An upload has several kinds of requests, each of which can fail."""
        rule = proxy.add(fault, kind=kind)
        data = os.urandom(1 << 20) * 17
        with behind.open_writer("data/a") as writer:
            writer.write(data)
        assert behind.read("data/a") == data
        assert rule.num_fired == (kind in proxy.kinds()), proxy.story()

    @pytest.mark.parametrize(
        "fault",
        [
            Forge(500),
            pytest.param(Forge(503), marks=ON_EVERY_SERVICE),
            Forge(429),
            CutBefore(),
            CutBefore(reset=True),
            CutAfter(),
        ],
    )
    def test_a_third_attempt_can_succeed(
        self, behind: ObjectStore, proxy: FaultProxy, fault: Any
    ) -> None:
        """Services fail in series when they are overloaded."""
        for attempt in every_request(behind):
            proxy.clear()
            proxy.add(fault, times=2)
            attempt()
            assert sum(proxy.kinds().values()) >= 3, proxy.story()

    @pytest.mark.each_service
    def test_conflicts_of_concurrent_creates_are_retried(
        self, behind: ObjectStore, proxy: FaultProxy
    ) -> None:
        """The answer means that another request is in progress, not that the name exists."""
        if self.conflict is None:
            pytest.skip("the service has no such answer")
        proxy.add(self.conflict, kind="put once", times=2)
        assert behind.create_once("v/1", b"x")
        assert proxy.kinds()["put once"] == 3

    @pytest.mark.parametrize("fault", [CutBody(), Shorten()])
    def test_truncated_responses_are_requested_again(
        self, behind: ObjectStore, proxy: FaultProxy, fault: Any
    ) -> None:
        """A short answer must never be taken for a short file."""
        data = os.urandom(300_000)
        behind.write("a", data)
        for read in (
            lambda: behind.read("a"),
            lambda: bytes(behind.read_end("a", 300_000)[0]),
            lambda: bytes(behind.read_ranges("a", [ByteRange(0, 300_000)])[0]),
        ):
            proxy.clear()
            proxy.add(fault, kind="get")
            assert read() == data

    def test_timed_out_requests_are_retried(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """A connection can hang without an error."""
        store = store_at(bucket, proxy.url, request_timeout="400ms")
        store.write("a", b"x")
        proxy.add(Hold(5), kind="get")
        begin = time.monotonic()
        assert store.read("a") == b"x"
        assert 0.3 < time.monotonic() - begin < 4

    def test_requests_wait_for_returning_services(
        self, behind: ObjectStore, proxy: FaultProxy
    ) -> None:
        """Spark's tasks depend on it: they are tried once on a local master."""
        settings: Any = behind.settings
        soon = replace(settings.retry_policy, first_delay_seconds=0.001, max_delay_seconds=0.03)
        store = replace(behind, settings=replace(settings, retry_policy=soon))
        proxy.add(CutBefore(reset=True), times=20)
        with store.open_writer("data/a") as writer:
            writer.write(b"x")
        assert bytes(store.read("data/a")) == b"x"
        assert len(proxy.requests) > 20

    def test_exhausted_retries_state_their_number(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """The user learns how long was tried, and for which object."""
        store = store_at(bucket, proxy.url, client_max_retries="2")
        proxy.add(Forge(503), times=None)
        for path, attempt in [
            ("data/a", lambda: store.read("data/a")),
            ("data/b", lambda: store.write("data/b", b"x")),
            ("v/1", lambda: store.create_once("v/1", b"x")),
            ("v", lambda: store.list_names("v")),
        ]:
            with pytest.raises(StoreUnavailableError, match="3 attempts") as caught:
                attempt()
            assert path in str(caught.value)
            assert bucket.name in str(caught.value)
            assert "503" in str(caught.value)
            assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args

    def test_an_unreachable_service_is_named(self, bucket: Bucket) -> None:
        """A wrong endpoint is the usual cause."""
        store = store_at(bucket, "http://127.0.0.1:1", client_max_retries="1")
        with pytest.raises(StoreUnavailableError, match=r"127\.0\.0\.1:1.* 2 attempts"):
            store.read("a")

    def test_retries_end_at_the_deadline(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """A task that waits for hours blocks the whole stream."""
        store = store_at(bucket, proxy.url, client_max_retries="1000", client_retry_timeout="1s")
        proxy.add(Forge(503), times=None)
        begin = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            store.read("a")
        assert time.monotonic() - begin < 15  # of the hours that 1000 attempts would take

    @pytest.mark.each_service
    def test_a_refusal_is_not_retried(self, behind: ObjectStore, proxy: FaultProxy) -> None:
        """Waiting does not grant missing permissions."""
        for attempt in every_request(behind):
            proxy.clear()
            proxy.add(Forge(403), times=None)
            with pytest.raises(StoreRefusedError, match="403"):
                attempt()
            assert sum(proxy.kinds().values()) == 1, proxy.story()

    @pytest.mark.each_service
    def test_a_missing_bucket_names_the_remedy(self, bucket: Bucket) -> None:
        """The service's own answer resembles that for a missing object."""
        store = open_store(bucket.uri.replace(bucket.name, "no-such-bucket") + "/t",
                           bucket.storage_options)  # fmt: skip
        for attempt in (
            lambda: store.create_once("v/1", b""),
            lambda: store.write("a", b""),
            lambda: store.list_names("v"),
        ):
            with pytest.raises(StoreRefusedError, match="no-such-bucket"):
                attempt()

    # Processes and threads

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_used_stores_work_in_child_processes(self, store: ObjectStore, method: str) -> None:
        """Connections and threads do not survive a fork."""
        store.write("a", b"before")
        child = multiprocessing.get_context(method).Process(target=_use_in_child, args=(store, 0))
        child.start()
        child.join(60)
        assert child.exitcode == 0
        assert store.list_names("v") == ["0"]
        assert store.read("a") == b"before"

    def test_forked_children_are_refused_at_once(
        self, behind: ObjectStore, proxy: FaultProxy
    ) -> None:
        """The child's requests would wait forever for threads that only its parent has.

        The parent continues.
        """
        behind.write("a", bytes(100_000))
        proxy.latency_seconds = 0.05
        with ThreadPoolExecutor(4) as threads:
            reads = [threads.submit(behind.read, "a") for _ in range(20)]
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    os._exit(_exit_code_of(lambda: _be_refused(behind)))
                assert _join(child, 20) == 0
            assert all(read.result(60) == bytes(100_000) for read in reads)

    def test_many_threads_share_a_store(self, store: ObjectStore) -> None:
        """Answers must not be exchanged between threads."""

        def use(number: int) -> bytes:
            store.write(f"a/{number}", str(number).encode() * 1000)
            return store.read(f"a/{number}")

        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(use, range(64)))
        assert answers == [str(number).encode() * 1000 for number in range(64)]

    def test_two_services_are_two_stores(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """Caches are keyed by stores, and equal names exist on several services."""
        here, again = store_in(bucket), store_in(bucket)
        assert here == again
        assert hash(here) == hash(again)
        assert here != store_at(bucket, proxy.url)
        assert here != store_in(bucket, "other/t")

    # Secrets

    @pytest.mark.each_service
    def test_secrets_stay_hidden(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """Logs and error messages contain these texts."""
        assert self.secret_options, "the service's tests have to say what is secret"
        store = store_at(bucket, proxy.url, client_max_retries="0")
        texts = [repr(store), str(store), repr(store.settings), store.uri]
        attempts = every_request(store)
        for fault in (Forge(403), Forge(503), CutBefore()):
            for attempt in attempts:
                proxy.clear()
                proxy.add(fault, times=None)
                try:
                    attempt()
                except Exception as error:
                    texts += [repr(error), *traceback.format_exception(error)]
        for option in self.secret_options:
            secret = bucket.storage_options[option]
            assert len(secret) > 8
            assert not [value for value in texts if secret in value]


def store_in(bucket: Bucket, root: str = "some where/t") -> ObjectStore:
    """Return a store in a bucket."""
    store = open_store(f"{bucket.uri}/{root}", bucket.storage_options)
    assert isinstance(store, ObjectStore)
    return store


def store_at(bucket: Bucket, url: str, **more: str | None) -> ObjectStore:
    """Return the same store, with its service at another place."""
    here, there = urlsplit(bucket.endpoint).netloc, urlsplit(url).netloc
    options = {k: v.replace(here, there) for k, v in bucket.storage_options.items()}
    store = open_store(f"{bucket.uri}/some where/t", {**options, **more})
    assert isinstance(store, ObjectStore)
    return store


def _completes(request: StoreRequest) -> bool:
    return request.kind.startswith("complete")  # some services get the condition earlier


def every_request(store: Store) -> list[Callable[[], object]]:
    """Return what sends each kind of small request once; what is asked for is there."""
    store.write("every/a", b"0123456789")
    numbers = iter(range(1000))
    return [
        lambda: store.read("every/a"),
        lambda: store.read_end("every/a", 3),
        lambda: store.read_ranges("every/a", [ByteRange(1, 3)]),
        lambda: store.size("every/a"),
        lambda: store.list_names("every"),
        lambda: store.list_names("every", 1),
        lambda: store.list(),
        lambda: store.write("every/b", b"x"),
        lambda: store.create_once(f"every/once-{next(numbers)}", os.urandom(10)),
        lambda: store.copy("every/a", "every/c"),
        lambda: store.delete("every/c"),
    ]


def check_race_of_threads(
    store: Store, *, num_racers: int, num_rounds: int, num_bytes: int
) -> None:
    """Check that one of the threads that create a name succeeds, in each round, and is kept."""
    start = threading.Barrier(num_racers)
    won: list[tuple[int, int]] = []

    def race(me: int) -> None:
        won.extend((number, me) for number in _rounds(store, me, start, num_rounds, num_bytes))

    with ThreadPoolExecutor(num_racers) as threads:
        list(threads.map(race, range(num_racers)))
    _check(store, won, num_rounds, num_bytes)


def check_race_of_processes(
    store: Store, *, num_racers: int, num_rounds: int, num_bytes: int
) -> None:
    """Check the same of processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    start, wins = context.Barrier(num_racers), context.Queue()
    children = [
        context.Process(target=_race, args=(store, me, start, wins, num_rounds, num_bytes))
        for me in range(num_racers)
    ]
    for child in children:
        child.start()
    won = [win for _ in children for win in wins.get(timeout=600)]
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * num_racers
    _check(store, won, num_rounds, num_bytes)


def _race(store: Store, me: int, start: Any, wins: Any, num_rounds: int, num_bytes: int) -> None:
    wins.put([(number, me) for number in _rounds(store, me, start, num_rounds, num_bytes)])


def _rounds(store: Store, me: int, start: Any, num_rounds: int, num_bytes: int) -> Iterator[int]:
    for number in range(num_rounds):
        start.wait(120)
        if store.create_once(f"v/{number}", _bytes_of(me, number, num_bytes)):
            yield number


def _bytes_of(racer: int, number: int, num_bytes: int) -> bytes:
    return (b"%d wins %d. " % (racer, number)) * (num_bytes // 12)


def _check(store: Store, won: list[tuple[int, int]], num_rounds: int, num_bytes: int) -> None:
    assert sorted(number for number, _ in won) == list(range(num_rounds))
    assert len(store.list_names("v")) == num_rounds
    for number, winner in won:
        assert store.read(f"v/{number}") == _bytes_of(winner, number, num_bytes)


def _use_in_child(store: Store, number: int) -> None:
    assert store.exists("a")
    assert store.create_once(f"v/{number}", str(number).encode())
    assert not store.create_once(f"v/{number}", b"again")
    assert store.read(f"v/{number}") == str(number).encode()
    gc.collect()


def _be_refused(store: Store) -> None:
    with pytest.raises(InvalidInputError, match="forkserver"):
        store.read("a")
    gc.collect()


def _exit_code_of(act: Callable[[], object]) -> int:
    try:
        act()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _join(child: int, timeout_seconds: float = 60) -> int:
    end = time.monotonic() + timeout_seconds
    while time.monotonic() < end:
        ended_child, status = os.waitpid(child, os.WNOHANG)
        if ended_child:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    raise AssertionError(f"the child did not end within {timeout_seconds} s")
