"""Azure's driver on Azurite, and through a proxy that counts requests and injects faults."""

import base64
import hashlib
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import NotFoundError, StoreRefusedError, StoreUnavailableError
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store
from tests.contracts.object_stores import ObjectStoreContract
from tests.contracts.stores import StoreContract
from tests.servers.azurite_blobs import ACCOUNT, KEY, Azurite
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import Act, CutAfter, CutBefore, CutBody, Forge, Shorten

WRONG_KEY = base64.b64encode(b"wrong").decode()
QUICK = {"client_max_retries": "3", "client_retry_timeout": "20s"}


@pytest.mark.repeats_contract
class TestAzureStore(ObjectStoreContract):
    secret_options: ClassVar = ("account_key",)
    lost_once_is_taken: ClassVar = Forge(409)
    conflict: ClassVar = Forge(409, "PendingCopyOperation")

    @pytest.fixture
    def bucket(self, azure_container: Bucket) -> Bucket:
        return azure_container

    def num_uploads(self, bucket: Bucket) -> int:  # noqa: ARG002  # no bucket has any
        return 0  # blocks belong to a blob's name, and no upload is ever begun

    def test_an_objects_end_takes_one_request(self, behind: Store, proxy: FaultProxy) -> None:
        """The service has no ranges from the end: one request reads an object of that length."""
        data = os.urandom(100_000)
        behind.write("a", data)
        for num_bytes, num_requests in ((200_000, 1), (100_000, 1), (65_536, 2), (1, 2), (0, 1)):
            proxy.clear()
            end, size = behind.read_end("a", num_bytes)
            assert (bytes(end), size) == (data[len(data) - min(num_bytes, len(data)) :], len(data))
            assert proxy.kinds() == {"get": num_requests}


@pytest.mark.repeats_contract
class TestAzureStoreOfAWholeContainer(StoreContract):
    @pytest.fixture
    def store(self, azure_container: Bucket) -> Store:
        uri = f"abfss://{azure_container.name}@{ACCOUNT}.dfs.core.windows.net"
        return open_store(uri, azure_container.storage_options)


@pytest.fixture
def proxy(azurite: Azurite) -> Iterator[FaultProxy]:
    with FaultProxy(azurite.endpoint) as fault_proxy:
        yield fault_proxy


@pytest.fixture
def store(proxy: FaultProxy, azure_container: Bucket) -> Store:
    return open_by(proxy, azure_container)


def open_by(proxy: FaultProxy, container: Bucket, **options: Any) -> Store:
    endpoint = f"{proxy.url}/{ACCOUNT}"
    credentials = {} if {"sas_token", "anon"} & options.keys() else {"account_key": KEY}
    return open_store(
        f"{container.uri}/{uuid.uuid4()}",
        {"account_name": ACCOUNT, "endpoint": endpoint, **QUICK, **credentials, **options},
    )


def service_of(azurite: Azurite) -> Any:
    blob = pytest.importorskip("azure.storage.blob", reason="the azure extra is not installed")
    return blob.BlobServiceClient.from_connection_string(azurite.connection_string)


def blob_of(azurite: Azurite, container: Bucket, store: Store, path: str) -> Any:
    key = f"{store.uri.rpartition('/')[2]}/{path}"
    return service_of(azurite).get_blob_client(container.name, key)


def test_calls_cost_one_request_apiece(store: Store, proxy: FaultProxy) -> None:
    """Requests are what a service charges for, and what a slow network multiplies."""
    calls = {
        "put": lambda: store.write("v/a", bytes(100_000)),
        "put once": lambda: store.create_once("v/b", b"b"),
        "get": lambda: store.read("v/a"),
        "head": lambda: store.exists("v/a"),
        "list": lambda: store.list_names("v", 1),
        "copy": lambda: store.copy("v/a", "v/c"),
        "delete": lambda: store.delete("v/c"),
    }
    for kind, call in calls.items():
        proxy.clear()
        call()
        assert proxy.kinds() == {kind: 1}
    proxy.clear()
    store.read_ranges("v/a", [ByteRange(0, 10), ByteRange(50_000, 50_010)])
    assert proxy.kinds() == {"get": 1}


def test_ends_of_changing_files_are_consistent(store: Store, proxy: FaultProxy) -> None:
    """The end and the size that are returned are those of one state of the file."""
    store.write("a", b"old" * 1000)
    proxy.add(Act(lambda _request: store.write("a", b"newer" * 1000)), kind="get", at=2)
    end, size = store.read_end("a", 10)
    assert (bytes(end), size) == (b"newernewer", 5000)


def test_only_we_retry_lost_replies(store: Store, proxy: FaultProxy) -> None:
    """obstore must not resend a request by itself, or a lost reply would look like a lost race."""
    store.write("warm", b"")  # the connection is a kept one
    for fault in (CutAfter(), CutAfter(reset=True), Forge(500, landed=True), Forge(503)):
        name = f"v/{uuid.uuid4()}"
        proxy.clear()
        proxy.add(fault, kind="put once")
        assert store.create_once(name, b"mine")
        assert proxy.kinds()["put once"] == 2, proxy.story()
        assert not store.create_once(name, b"theirs")
        assert store.read(name) == b"mine"


@pytest.mark.parametrize("fault", [CutBefore(), CutBody(), Shorten(), Forge(503), Forge(429)])
def test_bad_responses_to_reads_are_retried(store: Store, proxy: FaultProxy, fault: Any) -> None:
    """Truncated, cut and throttled answers to a GET are routine in the cloud and must never
    reach the reader as data.
    """
    data = os.urandom(50_000)
    store.write("a", data)
    for read in (
        lambda: store.read_ranges("a", [ByteRange(10, 40_000)])[0] == data[10:40_000],
        lambda: store.read_end("a", 1000)[0] == data[-1000:],
    ):
        proxy.clear()
        proxy.add(fault, kind="get")
        assert read()
        assert proxy.kinds()["get"] >= 2


def test_attempts_end_at_busy_services(
    store: Store, proxy: FaultProxy, azure_container: Bucket
) -> None:
    """The error says what was requested of which service, and how often."""
    proxy.add(Forge(503), times=None)
    with pytest.raises(StoreUnavailableError) as caught:
        store.read("data/a")
    for part in ("of 'data/a'", azure_container.name, proxy.url, "4 attempts", "503 ServerBusy"):
        assert part in str(caught.value)
    assert proxy.kinds() == {"get": 4}


def test_all_calls_name_a_missing_container(
    azure_container: Bucket,
) -> None:
    """A missing container must not look like a missing file: that would make a table appear
    empty or new.
    """
    store = open_store("az://no-such-container/t", azure_container.storage_options)
    for ask in (
        lambda: store.read("a"),
        lambda: store.read_ranges("a", [ByteRange(0, 1)]),
        lambda: store.read_end("a", 10),
        lambda: store.list(),
        lambda: store.list_names("v", 1),
        lambda: store.write("a", b""),
        lambda: store.create_once("a", b""),
        lambda: store.copy("a", "b"),
        lambda: store.write("a", bytes(20 << 20)),
    ):
        with pytest.raises(
            StoreRefusedError, match=r"'no-such-container'.*there is no such container"
        ):
            ask()


@pytest.mark.parametrize("options", [{"account_key": WRONG_KEY}, {"anon": "true"}])
def test_wrong_credentials_are_not_shown(
    proxy: FaultProxy, azure_container: Bucket, options: dict[str, str]
) -> None:
    """Retrying cannot correct a key, and an error message ends up in logs where a key must not
    be.
    """
    store = open_by(proxy, azure_container, **options)
    for ask in (lambda: store.read("a"), lambda: store.create_once("a", b""), store.list):
        proxy.clear()
        with pytest.raises(StoreRefusedError, match="credentials") as caught:
            ask()
        assert WRONG_KEY not in str(caught.value)
        assert sum(proxy.kinds().values()) == 1


def test_shared_access_signatures_serve_all_requests(
    azurite: Azurite, proxy: FaultProxy, azure_container: Bucket
) -> None:
    """No error shows the signature."""
    blob = pytest.importorskip("azure.storage.blob", reason="the azure extra is not installed")
    token = blob.generate_container_sas(
        ACCOUNT,
        azure_container.name,
        KEY,
        permission=blob.ContainerSasPermissions(True, True, True, True),
        expiry="2099-01-01T00:00:00Z",
    )
    # Azurite copies from its own host only, which is not the proxy's.
    store = open_by(proxy, azure_container, sas_token=token, endpoint=azure_container.endpoint)
    assert store.create_once("v/1", b"first")
    assert not store.create_once("v/1", b"second")
    store.copy("v/1", "v/2")
    assert store.list_names("v") == ["1", "2"]
    assert store.read("v/2") == b"first"
    with store.open_writer("large") as writer:
        writer.write(bytes(20 << 20))
    store = open_by(proxy, azure_container, sas_token=token)
    signature = token.partition("sig=")[2][:20]
    for fault in (CutBefore(), CutBody(), Forge(403), Forge(302)):
        proxy.clear()
        proxy.add(fault, times=None)
        with pytest.raises((StoreRefusedError, StoreUnavailableError)) as caught:
            store.read("v/1")
        error: BaseException | None = caught.value
        while error is not None:
            assert signature not in f"{error!r} {error}"
            error = error.__cause__ or error.__context__


def test_aborted_uploads_leave_nothing_visible(store: Store, proxy: FaultProxy) -> None:
    """Blocks that were uploaded but never committed must not appear in listings, nor break the
    next write of the same name.
    """
    writer = store.open_writer("a")
    writer.write(bytes(40 << 20))
    deadline = time.monotonic() + 20
    while not any(request.status == 201 for request in proxy.seen("part")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    writer.abort()
    assert not store.exists("a")
    assert store.list() == []
    with store.open_writer("a") as writer:
        writer.write(b"small")
    assert store.read("a") == b"small"


def test_names_may_contain_any_characters(store: Store) -> None:
    """Names are escaped in the URL, in the signature and in the XML of listings, and all three
    have to agree.
    """
    names = ["a b", "a%20b", "a+b", "ä€漢", "q?x=1&y#z", "p%", "=~!*'();:@$,[]", "dot.", "..."]
    for name in names:
        store.write(f"v/{name}", name.encode())
    assert store.list_names("v") == sorted(names)
    for name in names:
        store.copy(f"v/{name}", f"w/{name}")
        assert store.read(f"w/{name}") == name.encode()
        store.delete(f"v/{name}")
    assert store.list_names("v") == []


def test_leased_blobs_are_refused_but_taken(
    azurite: Azurite, store: Store, azure_container: Bucket
) -> None:
    """A lease of another program blocks writing the blob, while create-once must see that its
    name exists.
    """
    store.write("v/1", b"theirs")
    lease = blob_of(azurite, azure_container, store, "v/1").acquire_lease(-1)
    assert not store.create_once("v/1", b"mine")
    with pytest.raises(StoreRefusedError, match="holds a lease on the blob"):
        store.write("v/1", b"mine")
    with pytest.raises(StoreRefusedError, match="a lease on the blob"):
        store.delete("v/1")
    assert store.read("v/1") == b"theirs"
    lease.release()
    store.write("v/1", b"mine")


def test_files_with_snapshots_are_not_deleted(
    azurite: Azurite, store: Store, azure_container: Bucket
) -> None:
    """The error names the snapshots as the reason."""
    store.write("a", b"a")
    blob_of(azurite, azure_container, store, "a").create_snapshot()
    with pytest.raises(StoreRefusedError, match="delete the snapshots"):
        store.delete("a")
    assert store.exists("a")


def test_listings_state_md5s_of_created_files(
    store: Store, proxy: FaultProxy, azure_container: Bucket
) -> None:
    """The service returns the MD5 on request; obstore does not ask for it."""
    store.write("v/1", b"first")
    store.create_once("v/2", b"second")
    actual = {file.path: file.etag for file in store.list("v")}
    assert actual["v/2"] == hashlib.md5(b"second").hexdigest()
    assert actual["v/1"] not in ("", hashlib.md5(b"first").hexdigest())
    assert '"' not in actual["v/1"]
    store.write("v/2", b"another")
    assert store.list("v")[1].etag not in ("", actual["v/2"])


def test_copying_a_missing_file_names_it(store: Store) -> None:
    """Azure reports a missing source of a copy with its own code, which must become
    `NotFoundError` like that of a read.
    """
    with pytest.raises(NotFoundError, match=r"no file .*/missing"):
        store.copy("missing", "b")
    assert not store.exists("b")


@pytest.mark.parametrize(
    ("status", "code", "remedy"),
    [
        (403, "AuthenticationFailed", "Correct account_key or sas_token"),
        (403, "KeyBasedAuthenticationNotPermitted", "does not accept account keys"),
        (403, "AuthorizationPermissionMismatch", "Storage Blob Data Contributor"),
        (403, "SomethingNew", "Check account_key, sas_token or the identity"),
        (401, "NoAuthenticationInformation", "Set account_key, sas_token or an identity"),
        (409, "PublicAccessNotPermitted", "Set account_key, sas_token or an identity"),
        (404, "ContainerNotFound", "there is no such container"),
        (404, "FilesystemNotFound", "there is no such container"),
        (409, "ContainerBeingDeleted", "there is no such container"),
        (404, "ResourceNotFound", "cannot be read without credentials"),
        (409, "BlobImmutableDueToPolicy", "forbids changing or deleting"),
        (412, "LeaseIdMissing", "holds a lease on the blob"),
        (400, "InvalidBlobOrBlock", "another program left uncommitted"),
        (400, "InvalidResourceName", "the name is invalid"),
        (307, "", "redirects requests"),
        (400, "SomethingNew", "does not accept this request"),
    ],
)
def test_refusals_are_immediate_and_helpful(
    store: Store, proxy: FaultProxy, status: int, code: str, remedy: str
) -> None:
    """A configuration error costs one request, and its message names the option or role that
    corrects it.
    """
    for ask in (
        lambda: store.create_once("v/1", b"x"),
        lambda: store.write("v/1", b"x"),
        lambda: store.read("v/1"),
        lambda: store.list("v"),
    ):
        proxy.clear()
        proxy.add(Forge(status, code or " "), times=None)
        with pytest.raises(StoreRefusedError, match=remedy):
            ask()
        assert sum(proxy.kinds().values()) == 1


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (500, "OperationTimedOut"),
        (500, "InternalError"),
        (503, "ServerBusy"),
        (503, "SomethingNew"),
        (502, ""),
        (504, ""),
        (408, ""),
        (429, ""),
        (409, "PendingCopyOperation"),
        (400, "Md5Mismatch"),
    ],
)
def test_transient_refusals_are_retried(
    store: Store, proxy: FaultProxy, status: int, code: str
) -> None:
    """These codes are documented as temporary, so a single one must not fail a commit or a read."""
    proxy.add(Forge(status, code or " "))
    assert store.create_once("v/1", b"x")
    proxy.add(Forge(status, code or " "))
    assert store.read("v/1") == b"x"
    assert proxy.kinds() == {"put once": 2, "get": 2}


@pytest.mark.parametrize("code", ["BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"])
def test_every_conflict_response_means_taken(store: Store, proxy: FaultProxy, code: str) -> None:
    """Azure reports a name in use by several codes with 409 or 412; mistaking one for a failure
    would lose the answer of a commit.
    """
    store.write("v/1", b"theirs")
    for status in (409, 412):
        proxy.clear()
        proxy.add(Forge(status, code), kind="put once")
        assert not store.create_once("v/1", b"mine")
        assert proxy.kinds() == {"put once": 1, "get": 1}
