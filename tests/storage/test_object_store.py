"""What `ObjectStore` asks of a service, and what it makes of the answers, without a server."""

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise

import pytest

from lance_stream.byte_ranges import ByteRange
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CorruptDataError,
    NotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.storage import store as store_module
from lance_stream.storage.objects import clients, object_store, object_writer, retries
from lance_stream.storage.objects.object_requests import (
    MissingError,
    RefusedError,
    RequestPolicy,
    TryAgainError,
)
from lance_stream.storage.objects.retries import with_retries
from tests.contracts.object_service import ObjectService, Watch
from tests.contracts.stores import StoreContract

QUICK = RequestPolicy(max_attempts=4, first_delay_seconds=0.001, request_seconds=5)


class TestObjectStore(StoreContract):
    @pytest.fixture
    def store(self) -> object_store.ObjectStore:  # type: ignore[override]  # a Store it is
        return ObjectService().store()


@pytest.fixture
def service() -> ObjectService:
    return ObjectService()


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(object_writer, "PART_BYTES", 1000)
    return 1000


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(object_store, "PIECE_BYTES", 1000)
    return 1000


def failing(error: Exception, *kinds: str, times: int = 1) -> Watch:
    """Return what raises an error at the first requests of some kinds."""
    remaining = [times]

    def fail(kind: str, _key: str) -> None:
        if kind in kinds and remaining[0] > 0:
            remaining[0] -= 1
            raise error

    return fail


def test_long_ranges_are_read_in_pieces(service: ObjectService, small_pieces: int) -> None:
    """Pieces are read in parallel and must meet without gaps at every boundary, also past the
    end of the file.
    """
    data = os.urandom(10_500)
    store = service.store()
    store.write("a", data)
    for start, stop in [(0, 1000), (0, 1001), (64, 10_500), (1, 11_000), (9000, 99_999)]:
        (buffer,) = store.read_ranges("a", [ByteRange(start, stop)])
        assert bytes(buffer) == data[start:stop]
        assert buffer.readonly
    assert store.read_ranges("a", [ByteRange(20_000, 30_000)]) == [b""]
    assert store.read("a") == data


def test_unbounded_ranges_request_sizes_first(service: ObjectService) -> None:
    """A corrupt offset must not allocate a buffer of 2**60 bytes."""
    store = service.store()
    store.write("a", b"12345678")
    service.clear()
    assert bytes(store.read_ranges("a", [ByteRange(4, 1 << 60)])[0]) == b"5678"
    assert service.kinds() == {"head": 1, "get": 1}
    assert store.read_ranges("a", [ByteRange(1 << 50, 1 << 60)]) == [b""]


def test_only_long_files_need_their_size(service: ObjectService, small_pieces: int) -> None:
    """A file that fits into one piece is read by one request."""
    store = service.store()
    for size, kinds in [
        (0, {"get": 1}),
        (999, {"get": 1}),
        (1000, {"get": 1, "head": 1}),
        (3500, {"get": 4, "head": 1}),
    ]:
        store.write("a", bytes(size))
        service.clear()
        assert store.read("a") == bytes(size)
        assert service.kinds() == kinds


def test_whole_files_have_a_limit(
    service: ObjectService, small_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size comes with the answer's header, so an oversized file costs one request and no
    memory.
    """
    monkeypatch.setattr(store_module, "MAX_WHOLE_BYTES", 3000)
    store = service.store()
    store.write("a", bytes(3000))
    store.write("b", bytes(3001))
    assert store.read("a") == bytes(3000)
    service.clear()
    with pytest.raises(CorruptDataError, match="3,001 bytes"):
        store.read("b")
    assert service.kinds() == {"get": 1, "head": 1}


def test_readers_share_the_request_limit(service: ObjectService, small_pieces: int) -> None:
    """The limit protects the machine's sockets and the service, so it must hold for all threads
    together.
    """
    store = service.store(max_requests_at_once=5)
    store.write("a", bytes(50_000))
    service.seconds = 0.002
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: store.read("a"), range(8)))
    assert service.max_at_once == 5


def test_the_first_error_cancels_other_requests(service: ObjectService, small_pieces: int) -> None:
    """After a refusal the remaining pieces are useless, and reading on would cost time and
    money.
    """
    store = service.store(max_requests_at_once=2)
    store.write("a", bytes(100_000))
    service.clear()
    service.seconds = 0.005
    service.before = failing(RefusedError("no"), "get")
    with pytest.raises(StoreRefusedError):
        store.read_ranges("a", [ByteRange(0, 100_000)])
    time.sleep(0.05)
    assert service.kinds()["get"] < 10


def test_files_of_many_parts_are_whole(service: ObjectService, small_parts: int) -> None:
    """Writes of any size must be cut into equal parts in the right order, since services refuse
    parts of varying size.
    """
    data = os.urandom(60_123)
    with service.store().open_writer("a") as writer:
        for start, stop in pairwise([0, 1, 1000, 1001, 5000, 5000, 40_000, len(data)]):
            writer.write(data[start:stop])
    assert service.store().read("a") == data
    sizes = [request.num_bytes for request in service.requests if request.kind == "part"]
    assert sizes == [1000] * 60 + [123]
    assert service.uploads == {}


def test_one_part_files_take_one_request(service: ObjectService, small_parts: int) -> None:
    """A multipart upload costs three requests, and most files of a stream are small."""
    with service.store().open_writer("a") as writer:
        writer.write(bytes(small_parts))
    assert service.kinds() == {"put": 1}


@pytest.mark.parametrize("kind", ["start upload", "part", "complete"])
def test_failed_uploads_leave_nothing(service: ObjectService, small_parts: int, kind: str) -> None:
    """Parts of an unfinished upload are invisible but paid for, so every step that fails must
    abort the upload.
    """
    service.before = failing(TryAgainError("503"), kind)

    def write() -> None:
        with service.store(retry_policy=QUICK).open_writer("data/a") as writer:
            writer.write(bytes(5500))

    with pytest.raises(StoreUnavailableError, match=r"data/a.*503.*write it again"):
        write()
    assert service.objects == {}
    assert service.uploads == {}


def test_writes_after_an_error_repeat_it(service: ObjectService, small_parts: int) -> None:
    """The failed upload leaves nothing."""
    service.before = failing(RefusedError("403"), "part", times=99)
    writer = service.store().open_writer("a")

    def write() -> None:
        for _ in range(20):
            writer.write(bytes(1000))

    with pytest.raises(StoreRefusedError, match="403"):
        write()
    writer.abort()
    assert service.objects == {}
    assert service.uploads == {}


def test_s3_express_buckets_are_listed_whole(
    service: ObjectService,
) -> None:
    """Directory buckets list names in no order."""
    store = object_store.ObjectStore(service.store().settings, "bucket--az1--x-s3", "t")
    for name in "cab":
        store.write(f"v/{name}", b"")
    service.objects = dict(reversed(service.objects.items()))
    assert not store.lists_in_order
    assert store.list_names("v", 2) == ["a", "b"]


def test_folder_markers_are_not_files(service: ObjectService) -> None:
    """Consoles of clouds create empty objects named after folders, and a listing must not
    present them as files.
    """
    store = service.store()
    service.objects["t/v/"] = b""
    service.objects["t/"] = b""
    store.write("v/1", b"")
    assert store.list_names("v", 1) == ["1"]
    assert [file.path for file in store.list()] == ["v/1"]


def test_names_with_equal_bytes_are_ours(service: ObjectService) -> None:
    """After a lost reply the retry meets its own file, and equal bytes prove that the commit
    succeeded.
    """
    store = service.store(retry_policy=QUICK)
    service.after = failing(TryAgainError("cut"), "put once")
    assert store.create_once("v/1", b"ours")
    assert service.kinds() == {"put once": 2, "get": 1}
    assert not store.create_once("v/1", b"theirs")


def test_vanished_names_are_retried(service: ObjectService) -> None:
    """If the other file vanishes before it can be compared, the name is free again."""
    store = service.store(retry_policy=QUICK)
    store.write("v/1", b"theirs")

    def vanish(kind: str, key: str) -> None:
        if kind == "get":
            service.objects.pop(key, None)

    service.before = vanish
    assert store.create_once("v/1", b"ours")
    assert service.objects["t/v/1"] == b"ours"


# Retries


def run(ask: Callable[[int], object], policy: RequestPolicy, environment: Environment) -> object:
    async def request(attempt: int) -> object:
        return ask(attempt)

    what, whom = "GET of 'a'", "the service"
    return asyncio.run(with_retries(request, policy, what, whom, environment=environment))


def make_waits(chance: float = 1.0) -> tuple[list[float], Environment]:
    """Return how long is waited, and an environment in which that takes no time."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    return waited, replace(
        MACHINE, chance=lambda: chance, monotonic=lambda: sum(waited), sleep_async=sleep
    )


def refuse_before(last: int, error: Exception) -> Callable[[int], int]:
    def ask(attempt: int) -> int:
        if attempt < last:
            raise error
        return attempt

    return ask


def test_waits_double_up_to_a_bound() -> None:
    """Each wait is random below the doubled delay."""
    waits, environment = make_waits()
    policy = RequestPolicy(max_attempts=9, first_delay_seconds=1, max_delay_seconds=10)
    assert run(refuse_before(7, TryAgainError("503")), policy, environment) == 7
    assert waits == [1, 2, 4, 8, 10, 10]
    waits, environment = make_waits(chance=0.25)
    run(refuse_before(4, TryAgainError("503")), policy, environment)
    assert waits == [0.25, 0.5, 1]


def test_requested_delays_are_bounded() -> None:
    """`Retry-After` is respected, but a service must not be able to suspend a stream for
    minutes.
    """
    waits, environment = make_waits()
    policy = RequestPolicy(first_delay_seconds=0.001, max_delay_seconds=5)
    run(refuse_before(2, TryAgainError("503", after_seconds=3)), policy, environment)
    run(refuse_before(2, TryAgainError("503", after_seconds=1000)), policy, environment)
    assert waits == [3, 5]


def test_a_minute_of_unavailability_is_tolerated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The service refuses each connection at once, as while it is restarted."""
    waits, environment = make_waits(chance=0.5)

    def ask(attempt: int) -> int:
        if sum(waits) < 60:
            raise TryAgainError("connection refused")
        return attempt

    assert run(ask, RequestPolicy(), environment) > 8
    assert caplog.text.count("5 attempts in") == 1
    assert "(limits: 60 attempts and 120 s)" in caplog.text
    waits.clear()
    with pytest.raises(StoreUnavailableError, match="connection refused"):
        run(refuse_before(999, TryAgainError("connection refused")), RequestPolicy(), environment)
    assert 100 < sum(waits) <= 120


def test_no_attempt_begins_after_the_deadline() -> None:
    """Waiting for an attempt that may not start any more would only delay the error."""
    waits, environment = make_waits()
    policy = RequestPolicy(max_attempts=99, total_seconds=2)
    with pytest.raises(
        StoreUnavailableError,
        match=r"the service: 1 attempt in .* 99 attempts and 2 s.*client_retry",
    ):
        run(refuse_before(9, TryAgainError("503", after_seconds=3)), policy, environment)
    assert waits == []


def test_errors_state_request_service_and_attempts() -> None:
    """A user needs to know what was tried, where and how often; as `OSError` it is also handled
    by generic code.
    """
    _waits, environment = make_waits()
    with pytest.raises(StoreUnavailableError) as caught:
        run(
            refuse_before(9, TryAgainError("503 SlowDown")),
            RequestPolicy(max_attempts=3),
            environment,
        )
    assert "GET of 'a' failed at the service: 3 attempts in" in str(caught.value)
    assert "503 SlowDown" in str(caught.value)
    assert isinstance(caught.value, OSError)


def test_final_answers_are_not_retried() -> None:
    """Both answers are final: retrying them would only slow down each probe for a new version."""
    waits, environment = make_waits()
    with pytest.raises(StoreRefusedError, match=r"the service refused GET of 'a': 403"):
        run(refuse_before(9, RefusedError("403")), RequestPolicy(), environment)
    with pytest.raises(MissingError):
        run(refuse_before(9, MissingError("404")), RequestPolicy(), environment)
    assert waits == []


def test_large_bodies_have_more_time() -> None:
    """A fixed time limit would make every upload of a large part fail on a slow line."""

    async def slow(_attempt: int) -> int:
        await asyncio.sleep(0.1)
        return 1

    policy = RequestPolicy(max_attempts=1, request_seconds=0.02)
    with pytest.raises(StoreUnavailableError, match=r"none within 0\.02 s"):
        asyncio.run(with_retries(slow, policy, "PUT", "the service"))
    num_bytes = int(10 * retries.SLOWEST_BYTES_PER_SECOND)
    assert asyncio.run(with_retries(slow, policy, "PUT", "x", num_bytes=num_bytes)) == 1


# Clients


def test_threads_and_stores_share_a_connection(service: ObjectService) -> None:
    """Connecting performs TLS handshakes and fetches credentials, so stores with equal settings
    must not repeat it.
    """
    connected: list[int] = []
    settings = service.store().settings
    kind = type(settings)
    connect = kind.connect
    store = object_store.ObjectStore(settings, "bucket", "t")
    store.write("a", b"x")

    def counted(self: object, container: str) -> object:
        connected.append(threading.get_ident())
        return connect(self, container)  # type: ignore[arg-type]  # it is one

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "connect", counted)
        with ThreadPoolExecutor(8) as threads:
            stores = [object_store.ObjectStore(settings, "new", f"t{n}") for n in range(8)]
            list(threads.map(lambda store: store.exists("a"), stores))
    assert len(connected) == 1
    assert connected[0] != threading.get_ident()


def test_idle_connections_are_closed(
    service: ObjectService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long-running driver must not collect connections, nor close one that has a request under
    way.
    """
    closed: list[int] = []

    async def close(self: ObjectService) -> None:
        closed.append(id(self))

    monkeypatch.setattr(ObjectService, "close", close)
    monkeypatch.setattr(clients, "_connections", {})
    old, other = service.store(), ObjectService().store()
    old.exists("a")
    other.exists("a")
    assert closed == []
    monkeypatch.setattr(clients, "_IDLE_SECONDS", 0.0)
    monkeypatch.setattr(service, "seconds", 0.2)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(old.exists, "a")
        time.sleep(0.1)  # it is in use when the third is made, and the second is not
        ObjectService().store().exists("a")
        assert not answer.result()
    assert closed == [id(other.settings.connect(""))]
    assert not old.exists("a")


def test_missing_files_are_named_by_uri(service: ObjectService) -> None:
    """A path alone does not tell which bucket or table it is in."""
    with pytest.raises(NotFoundError, match="test://bucket/t/data/a"):
        service.store().read("data/a")
