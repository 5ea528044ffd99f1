"""The engine's use of the environment, what it shows to whom, and how it renews credentials."""

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from obstore.auth.azure import AzureCredentialProvider
from obstore.auth.google import GoogleCredentialProvider

from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import (
    InvalidInputError,
    NotFoundError,
    StoreRefusedError,
    StoreUnavailableError,
)
from lance_stream.storage.engine.aws import AwsCredentials
from lance_stream.storage.engine.credentials import RenewedCredentials
from lance_stream.storage.engine.responses import Dialect, classify_error
from lance_stream.storage.locations import open_store
from lance_stream.storage.objects.object_requests import RefusedError, TryAgainError
from lance_stream.storage.objects.object_store import ObjectStore
from lance_stream.storage.store import Store
from tests.contracts.object_stores import store_at
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.store_faults import CutBefore, Forge

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def proxy(s3_bucket: Bucket) -> Iterator[FaultProxy]:
    with FaultProxy(s3_bucket.endpoint) as proxy:
        yield proxy


def test_options_and_environment_are_not_mixed(
    s3_bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine also reads AWS variables by itself; a token of another account from there would
    spoil explicit keys.
    """
    for name, value in {
        "AWS_ENDPOINT_URL_S3": NOWHERE,
        "AWS_ENDPOINT": NOWHERE,
        "AWS_SESSION_TOKEN": "of-another-account",
        "AWS_ACCESS_KEY_ID": "of-another-account",
        "AWS_SECRET_ACCESS_KEY": "of-another-account",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REQUEST_PAYER": "true",
        "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
        "AWS_BUCKET": "another",
    }.items():
        monkeypatch.setenv(name, value)
    store_at(s3_bucket, proxy.url).write("a", b"x")
    (request,) = proxy.requests
    assert request.target.startswith(f"/{s3_bucket.name}/")
    assert s3_bucket.storage_options["aws_access_key_id"] in request.headers["authorization"]
    assert not {"x-amz-security-token", "x-amz-request-payer"} & set(request.headers)


def test_azure_ignores_the_environments_other_account(
    azure_container: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine also reads Azure variables by itself; a credential of another account must not
    replace the explicit key.
    """
    for name, value in {
        "AZURE_STORAGE_SAS_KEY": "sig=another",
        "AZURE_STORAGE_TOKEN": "another",
        "AZURE_STORAGE_USE_EMULATOR": "true",
        "AZURE_USE_FABRIC_ENDPOINT": "true",
        "AZURE_SKIP_SIGNATURE": "true",
    }.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"{azure_container.uri}/t", azure_container.storage_options)
    assert store.create_once("a", b"x")


def test_s3_settings_accompany_each_write(s3_bucket: Bucket, proxy: FaultProxy) -> None:
    """Encryption, payer and session token are headers of the request, and one that is missing
    stores data unencrypted or is refused.
    """
    store = store_at(
        s3_bucket,
        proxy.url,
        aws_session_token="token",
        aws_request_payer="requester",
        aws_server_side_encryption="sse-kms",
        aws_sse_kms_key_id="id",
        aws_unsigned_payload="true",
    )
    store.write("a", b"x")
    headers = proxy.requests[0].headers
    assert headers["x-amz-security-token"] == "token"
    assert headers["x-amz-request-payer"] == "requester"
    assert headers["x-amz-server-side-encryption"] == "aws:kms"
    assert headers["x-amz-server-side-encryption-aws-kms-key-id"] == "id"
    assert headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"


def test_errors_never_show_proxy_passwords(s3_bucket: Bucket) -> None:
    """The engine's errors contain the URL of the proxy, and a chained cause would print it into
    a log.
    """
    options = {"proxy_url": "http://user:hushhush@127.0.0.1:9", "client_max_retries": "0"}
    store = open_store(f"{s3_bucket.uri}/t", {**s3_bucket.storage_options, **options})
    with pytest.raises(StoreUnavailableError) as caught:
        store.read("a")
    error: BaseException | None = caught.value
    while error is not None:
        assert "hushhush" not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__
    assert isinstance(store, ObjectStore)
    assert "hushhush" not in repr(store.settings)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_takes_no_data_along(s3_bucket: Bucket, proxy: FaultProxy, status: int) -> None:
    """Reads do follow a redirect, which obstore does not let us forbid."""
    store = store_at(s3_bucket, proxy.url, client_max_retries="0")
    with FaultProxy(s3_bucket.endpoint) as other:
        elsewhere = f"http://localhost:{urlsplit(other.url).port}/{s3_bucket.name}/b"
        for ask in (
            lambda: store.write("a", b"x"),
            lambda: store.create_once("a", b"x"),
            lambda: store.read("a"),
            lambda: store.list(),
        ):
            proxy.clear()
            proxy.add(Forge(status, headers=(("Location", elsewhere),)), times=None)
            with pytest.raises((StoreRefusedError, StoreUnavailableError, NotFoundError)):
                ask()
        assert all(request.method == "GET" for request in other.requests)
        assert not [request for request in other.requests if "authorization" in request.headers]


def test_a_missing_certificate_file_is_named(s3_bucket: Bucket) -> None:
    """Without the path in the message a user cannot tell which of several settings is wrong."""
    options = {**s3_bucket.fsspec_options, "aws_ca_bundle": "/no/such.pem"}
    with pytest.raises(InvalidInputError, match=r"/no/such\.pem"):
        open_store(f"{s3_bucket.uri}/t", options).read("a")


# Credentials that are renewed


class Renewed(RenewedCredentials):
    """Keys that are new each time, and valid until the test says otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.num_fetched = 0
        self.good = True
        self.error: Exception | None = None

    def is_valid(self) -> bool:
        return self.good

    def fetch(self) -> Mapping[str, Any]:
        if self.error is not None:
            raise self.error
        self.num_fetched += 1
        key = f"KEY{self.num_fetched}"
        return {"access_key_id": key, "secret_access_key": "secret", "token": None}


@pytest.fixture
def renewed(monkeypatch: pytest.MonkeyPatch) -> Renewed:
    credentials = Renewed()
    monkeypatch.setattr(
        "lance_stream.storage.engine.s3.S3Settings.credentials", lambda _settings: credentials
    )
    return credentials


@pytest.fixture
def store(s3_bucket: Bucket, proxy: FaultProxy, renewed: Renewed) -> Store:
    return store_at(s3_bucket, proxy.url, client_max_retries="3")


def keys_of(proxy: FaultProxy) -> list[str]:
    return [request.headers["authorization"].partition("=")[2][:4] for request in proxy.requests]


def test_keys_are_fetched_again_on_expiry(
    store: Store, proxy: FaultProxy, renewed: Renewed
) -> None:
    """Temporary keys are reused while they are valid and replaced when not: fetching for every
    request would throttle the role's server.
    """
    for _ in range(3):
        store.write("a", b"x")
    renewed.good = False
    store.write("a", b"x")
    renewed.good = True
    store.read("a")
    assert keys_of(proxy) == ["KEY1", "KEY1", "KEY1", "KEY2", "KEY2"]


def test_rejected_keys_are_renewed_once(store: Store, proxy: FaultProxy, renewed: Renewed) -> None:
    """A key can be revoked before it expires, so one refusal fetches a new key, and a second one
    is final.
    """
    proxy.add(Forge(401))
    store.write("a", b"x")
    assert keys_of(proxy) == ["KEY1", "KEY2"]
    proxy.clear()
    proxy.add(Forge(401), times=None)
    with pytest.raises(StoreRefusedError, match="401"):
        store.write("a", b"x")
    assert keys_of(proxy) == ["KEY2", "KEY3"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ExpiredToken"),
        (400, "InvalidToken"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
    ],
)
@pytest.mark.parametrize("verb", ["read", "write", "list", "delete"])
def test_expired_s3_keys_are_renewed_once(
    store: Store, proxy: FaultProxy, status: int, code: str, verb: str
) -> None:
    """S3 reports an expired key by several codes and statuses, and every kind of request has to
    recover from all of them.
    """
    verbs: dict[str, Callable[[], object]] = {
        "read": lambda: store.read("a"),
        "write": lambda: store.write("a", b"y"),
        "list": lambda: store.list_names(""),
        "delete": lambda: store.delete("b"),
    }
    store.write("a", b"x")
    proxy.clear()
    proxy.add(Forge(status, code))
    verbs[verb]()
    assert keys_of(proxy) == ["KEY1", "KEY2"]
    proxy.clear()
    proxy.add(Forge(status, code), times=None)
    with pytest.raises(StoreRefusedError, match=code):
        verbs[verb]()
    assert keys_of(proxy) == ["KEY2", "KEY3"]


def test_expired_keys_are_renewed_for_head(store: Store, proxy: FaultProxy) -> None:
    """An answer to HEAD has no body with a code, so its bare status 400 must be enough to try a
    new key.
    """
    store.write("a", b"x")
    proxy.clear()
    proxy.add(Forge(400))
    assert store.size("a") == 1
    assert keys_of(proxy) == ["KEY1", "KEY2"]


def test_expired_keys_fail_no_parallel_request(store: Store, proxy: FaultProxy) -> None:
    """Requests that are under way when the keys expire must all be repeated with the one new
    key.
    """
    store.write("a", bytes(40 << 20))
    proxy.clear()
    proxy.choose = lambda request: (
        Forge(400, "ExpiredToken") if "KEY1" in request.headers["authorization"] else None
    )
    ranges = [ByteRange(start << 20, (start << 20) + 9) for start in range(0, 40, 2)]
    assert [len(span) for span in store.read_ranges("a", ranges)] == [9] * len(ranges)
    assert keys_of(proxy).count("KEY1") > 1
    assert set(keys_of(proxy)) == {"KEY1", "KEY2"}


def test_failing_key_requests_raise_our_errors(
    store: Store, proxy: FaultProxy, renewed: Renewed
) -> None:
    """An error of the credentials' source must say whether it is final or was retried, and must
    not send an unsigned request.
    """
    renewed.error = RefusedError("no such profile")
    with pytest.raises(StoreRefusedError, match="no such profile"):
        store.read("a")
    renewed.error = TryAgainError("the role's server does not answer")
    with pytest.raises(StoreUnavailableError, match=r"4 attempts in.*does not answer"):
        store.read("a")
    assert proxy.requests == []


def test_an_aws_profile_supplies_all_settings(
    s3_bucket: Bucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A profile holds keys, region and endpoint, and using only its keys would address the wrong
    service.
    """
    (tmp_path / "config").write_text(
        f"[profile ours]\nregion = eu-west-7\nservices = local\n"
        f"[services local]\ns3 =\n  endpoint_url = {proxy.url}\n"
    )
    (tmp_path / "credentials").write_text(
        "[ours]\naws_access_key_id = OFPROFILE\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    open_store(f"{s3_bucket.uri}/t", {"profile": "ours"}).write("a", b"x")
    authorization = proxy.requests[-1].headers["authorization"]
    assert "OFPROFILE/" in authorization
    assert "/eu-west-7/s3/" in authorization


def test_missing_credentials_name_the_remedy() -> None:
    """An unsigned request would be refused with a message about access instead of about the
    credentials.
    """
    assert os.environ["AWS_EC2_METADATA_DISABLED"] == "true"
    with pytest.raises(RefusedError, match="no credentials: the remedy"):
        AwsCredentials(None, "the remedy").fetch()
    with pytest.raises(RefusedError, match="no-such-profile"):
        AwsCredentials("no-such-profile", "").fetch()


# What an error's text says


@pytest.mark.parametrize(
    ("text", "meaning", "reason"),
    [
        (
            "Error performing GET https://a/b?sig=HUSH - HTTP error: error sending request\n\n"
            'Debug source:\nkind: Connect, message: "Connection refused"',
            TryAgainError,
            "no response: Connection refused",
        ),
        (
            "Error performing GET https://a/b?sig=HUSH - HTTP error\n\nDebug source:\n"
            "invalid peer certificate: UnknownIssuer",
            RefusedError,
            "certificate of the service is not trusted",
        ),
        ("Something new about https://a/b?sig=HUSH", TryAgainError, "no response"),
        ("non-2xx status code: 503 Busy: " + "[" * 3000, TryAgainError, "503"),
    ],
)
def test_errors_show_only_their_reason(text: str, meaning: type[Exception], reason: str) -> None:
    """The engine's texts contain signed URLs, which are credentials, and pages of debugging
    output.
    """
    actual = classify_error(OSError(text), Dialect())
    assert isinstance(actual, meaning)
    assert reason in str(actual)
    assert "HUSH" not in str(actual)


def test_broken_uploads_explain_how_to_continue(s3_bucket: Bucket, proxy: FaultProxy) -> None:
    """A file that failed part way must be written again, so the message names it and the option
    for more attempts, and no rest of it stays.
    """
    store = store_at(s3_bucket, proxy.url, client_max_retries="1")
    proxy.add(CutBefore(), kind="part", times=None)

    def write() -> None:
        with store.open_writer("data/a") as writer:
            writer.write(bytes(20 << 20))

    with pytest.raises(StoreUnavailableError, match=r"data/a.*client_max_retries"):
        write()
    assert store.list() == []


def test_a_broken_upload_ends_in_time(s3_bucket: Bucket, proxy: FaultProxy) -> None:
    """The time limit covers the whole upload, not only the start of each attempt."""
    store = store_at(s3_bucket, proxy.url, client_max_retries="8", client_retry_timeout="1s")
    proxy.add(Forge(503), kind="start upload", times=None)

    def write() -> None:
        with store.open_writer("data/a") as writer:
            writer.write(bytes(20 << 20))

    with pytest.raises(StoreUnavailableError, match=r"data/a.*503.*client_retry_timeout"):
        write()
    assert proxy.kinds()["start upload"] <= 2 * 9


# obstore's providers of credentials


def test_obstores_azure_provider_returns_entras_token() -> None:
    """obstore's provider can be used as it is: it returns a token for storage, with its expiry."""
    requests: list[tuple[Any, ...]] = []

    class Entra:
        def get_token(self, *scopes: str, **_options: object) -> SimpleNamespace:
            requests.append(scopes)
            return SimpleNamespace(token="T", expires_on=2_000_000_000)

    token = AzureCredentialProvider(Entra())()  # type: ignore[arg-type]  # it is like one
    ends = datetime.fromtimestamp(2_000_000_000, UTC)
    assert token == {"token": "T", "expires_at": ends}
    assert requests == [("https://storage.azure.com/.default",)]


def test_obstores_google_provider_refreshes_credentials() -> None:
    """obstore's provider can be used as it is: it returns a new token for each call, with its
    expiry.
    """

    class Credentials:
        token, expiry = "old", datetime(2033, 5, 18, 3, 33, 20)  # as google-auth has it

        def refresh(self, _request: object) -> None:
            self.token = "new"

    provider = GoogleCredentialProvider(Credentials(), request=object())  # type: ignore[arg-type]  # like them
    assert provider() == {
        "token": "new",
        "expires_at": datetime(2033, 5, 18, 3, 33, 20, tzinfo=UTC),
    }


def test_tokens_are_renewed_before_they_expire() -> None:
    """A token that expires in transit would fail a request."""

    class Tokens(RenewedCredentials):
        def __init__(self) -> None:
            super().__init__(timedelta(minutes=5))
            self.ends = [datetime.now(UTC) + timedelta(minutes=minutes) for minutes in (4, 60, 60)]

        def fetch(self) -> Mapping[str, Any]:
            return {"token": "T", "expires_at": self.ends.pop(0)}

    async def use(credentials: Tokens) -> list[int]:
        numbers = []
        for _ in range(4):
            await credentials.ready()
            numbers.append(credentials.number)
        return numbers

    assert asyncio.run(use(Tokens())) == [1, 2, 2, 2]
