"""Which locations a table may name, and which of its reader's options they are opened with."""

from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import (
    CorruptDataError,
    InvalidInputError,
    LanceStreamError,
    UntrustedLocationError,
)
from lance_stream.storage import trust
from lance_stream.storage.locations import open_store
from lance_stream.storage.store import Store

S3: dict[str, Any] = {
    "endpoint_url": "http://127.0.0.1:9000",
    "key": "AKIDTEST",
    "secret": "s3-secret",
}
AZURE: dict[str, Any] = {"account_name": "acct", "sas_token": "sv=1&sig=azure-secret"}
GOOGLE: dict[str, Any] = {"token": "google-secret"}
LOCATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "local": ("/data/t", {}),
    "memory": ("memory://t", {}),
    "s3": ("s3://ours/t", S3),
    "google": ("gs://ours/t", GOOGLE),
    "azure": ("az://ours/t", AZURE),
    "azure by host": ("abfss://ours@acct.dfs.core.windows.net/t", {"account_key": "c2VjcmV0"}),
}


def open_location(kind: str) -> tuple[Store, dict[str, Any]]:
    location, options = LOCATIONS[kind]
    return open_store(location, options), options


@pytest.mark.parametrize(
    ("kind", "location"),
    [
        ("local", "/data/u"),
        ("local", "file:///data/u"),
        ("memory", "memory://u"),
        ("s3", "s3://ours/u"),
        ("s3", "s3a://theirs/u"),
        ("google", "gcs://theirs/u"),
        ("azure", "az://theirs/u"),
        ("azure", "abfss://theirs@acct.dfs.core.windows.net/u"),
        ("azure", "wasbs://theirs@acct.blob.core.windows.net/u"),
        ("azure by host", "abfss://theirs@acct.dfs.core.windows.net/u"),
    ],
)
def test_the_same_service_is_opened(kind: str, location: str) -> None:
    """A table may name other folders and buckets of its own service, since its reader's
    credentials are meant for it.
    """
    store, options = open_location(kind)
    named = trust.open_named(store, location, options)
    assert named == open_store(location, options)


HOSTS = (
    "abfss://c@evil.example/u",
    "abfss://c@acct.dfs.core.windows.net.evil.example/u",
    "abfss://c@acct.evil.example/u",
    "abfss://c@other.dfs.core.windows.net/u",
    "abfss://c@127.0.0.1:8080/u",
    "abfss://c@169.254.169.254/u",
    "abfss://c@localhost:1/u",
    "abfss://c@acct.dfs.core.windows.net@evil.example/u",
    "abfss://c@acct.dfs.core.windows.net:8443/u",
    "webhdfs://127.0.0.1:9870/u",
    "http://127.0.0.1/u",
    "s3+ddb://b/u",
    "dbfs:/u",
)
BUCKETS = (
    "s3://evil.example#/u",
    "s3://evil.example:80/u",
    "s3://a@evil.example/u",
    "s3://evil%2Fexample/u",
    "s3://arn:aws:s3:us-east-1:1:accesspoint/u",
    "s3://a\\b/u",
    "s3://\u2025/u",
    "gs://evil.example?/u",
    "gs://a@b/u",
    "az://evil.example/u",
    "s3:///u",
    "s3://",
    "s3://b/../../u",
    "gs://b/%2e%2e/u",
)
OF_ONE_MACHINE = ("/etc", "file:///etc", "etc", "~/.ssh", "file://localhost/etc", "memory://t")


@pytest.mark.parametrize("kind", LOCATIONS)
@pytest.mark.parametrize("location", [*HOSTS, *BUCKETS])
def test_no_other_host_is_opened(kind: str, location: str) -> None:
    """A manifest is untrusted input: following it to another host could send the reader's
    credentials there.
    """
    store, options = open_location(kind)
    with pytest.raises(LanceStreamError) as raised:
        trust.open_named(store, location, options)
    assert isinstance(raised.value, UntrustedLocationError | CorruptDataError)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "other"),
    [
        (kind, other)
        for kind in LOCATIONS
        for other in LOCATIONS
        if other.partition(" ")[0] not in (kind.partition(" ")[0], "local", "memory")
    ],
)
def test_trusted_services_are_opened(kind: str, other: str) -> None:
    """The reader may allow a location, and even then its credentials for one service never reach
    another.
    """
    store, options = open_location(kind)
    location = LOCATIONS[other][0]
    named_service = other.partition(" ")[0]
    with pytest.raises(UntrustedLocationError, match="trusted_locations="):
        trust.open_named(store, location, options)
    trusting = {**options, "trusted_locations": location.rpartition("/")[0]}
    if named_service == "azure":
        trusting["azure_storage_account_name"] = "acct"
        if "account_name" in options:
            del trusting["account_name"]
    named = trust.open_named(store, location, trusting)
    assert named.uri.partition("://")[2] == location.partition("://")[2]
    assert not ({"google-secret", "s3-secret", "azure-secret"} & set(_texts(named.settings)))  # type: ignore[attr-defined]  # object stores have them


def _texts(settings: Any) -> list[str]:
    """Return what a store's settings would send to its service."""
    secrets = [getattr(settings, name, None) for name in ("key", "secret", "token", "credentials")]
    return [str(getattr(secret, "token", secret)) for secret in secrets]


@pytest.mark.parametrize(
    ("kind", "location"),
    [
        (kind, location)
        for kind in LOCATIONS
        for location in OF_ONE_MACHINE
        if kind != ("memory" if location.startswith("memory") else "local")
    ],
)
def test_locations_on_readers_machine_are_refused(kind: str, location: str) -> None:
    """Only a table on the same machine may name them."""
    store, options = open_location(kind)
    for trusted in (None, location if location.startswith(("/", "file", "memory")) else "/"):
        with pytest.raises(UntrustedLocationError, match=r"the reader's"):
            trust.open_named(store, location, dict(trust.with_trusted(options, trusted) or {}))


def test_secrets_stay_with_their_service() -> None:
    """`token` is a session token at S3 and a bearer token at Google."""
    store = open_store("s3://ours/t", {**S3, "token": "s3-session"})
    options = {**S3, "token": "s3-session", "trusted_locations": "gs://theirs"}
    named = trust.open_named(store, "gs://theirs/u", options)
    assert "s3-session" not in str(vars(named.settings))  # type: ignore[attr-defined]  # object stores have them


def test_secrets_stay_with_their_account() -> None:
    """Trusting a location of another account permits reading it, not handing it the key of the
    first.
    """
    store, options = open_location("azure")
    other = "abfss://theirs@other.dfs.core.windows.net/u"
    trusting = {**options, "anon": "true", "trusted_locations": other}
    named = trust.open_named(store, other, trusting)
    settings = named.settings  # type: ignore[attr-defined]  # object stores have them
    assert settings.account == "other"
    assert "azure-secret" not in str(vars(settings.credentials))


@pytest.mark.parametrize(
    ("trusted", "location", "is_below"),
    [
        ("gs://b/p", "gs://b/p", True),
        ("gs://b/p/", "gcs://b/p/q", True),
        ("gs://b", "gs://b/p", True),
        ("gs://b/p%20q", "gs://b/p q/r", True),
        ("gs://b/p", "gs://b/pq", False),
        ("gs://b/p/q", "gs://b/p", False),
        ("gs://b", "gs://bc/p", False),
        ("gs://b", "s3://b/p", False),
        ("az://c@acct.dfs.core.windows.net", "abfss://c@acct.blob.core.windows.net/p", True),
        ("az://c@acct.dfs.core.windows.net", "abfss://c@acct2.blob.core.windows.net/p", False),
    ],
)
def test_trusted_locations_match_whole_names(trusted: str, location: str, is_below: bool) -> None:
    """A prefix of characters would let `gs://b` trust `gs://bc`, which somebody else may own."""
    store = open_store("/data/t")
    options = {"trusted_locations": [trusted], "anon": "true"}
    if is_below:
        assert trust.open_named(store, location, options)
    else:
        with pytest.raises(UntrustedLocationError):
            trust.open_named(store, location, options)


@pytest.mark.parametrize("trusted", ["", "s3://", "gs:///p", "data", "~/data", [1], 7, {"a": 1}])
def test_invalid_locations_cannot_be_trusted(trusted: Any) -> None:
    """An empty or incomplete location would trust everything below it."""
    with pytest.raises(InvalidInputError, match=r"trusted_locations must be"):
        trust.with_trusted({}, trusted)


def test_trust_is_stated_once() -> None:
    """Of two statements one would be ignored, and the user would not know which."""
    with pytest.raises(InvalidInputError, match="both an argument"):
        trust.with_trusted({"Trusted_Locations": "gs://b"}, ["gs://c"])


def test_raw_bytes_come_from_table_directories(tmp_path: Path) -> None:
    """A column of external bytes could name any file of the reader's disk, also through a link
    inside of the table.
    """
    for folder in ("t", "t2"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_bytes(b"x")
    (tmp_path / "t" / "away").symlink_to(tmp_path / "t2")
    table = open_store(tmp_path / "t")
    trust.check_raw_file(table, table, "x", {})
    for store, path in ((table, "away/x"), (open_store(tmp_path / "t2"), "x")):
        with pytest.raises(UntrustedLocationError, match="any of your files"):
            trust.check_raw_file(table, store, path, {})
        trust.check_raw_file(table, store, path, {"trusted_locations": str(tmp_path / "t2")})
