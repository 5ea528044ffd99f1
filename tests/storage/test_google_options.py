"""What URIs, storage options and the environment say of Google Cloud Storage."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.google import (
    DEFAULT_ENDPOINT,
    GoogleSettings,
    Login,
    google_settings,
)
from lance_stream.storage.locations import open_store
from lance_stream.storage.objects.object_store import ObjectStore

KEY = {"type": "service_account", "project_id": "p", "private_key": "very secret"}
EMULATOR = "http://127.0.0.1:4443"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORAGE_EMULATOR_HOST", "GOOGLE_CLOUD_UNIVERSE_DOMAIN"):
        monkeypatch.delenv(name, raising=False)


def login(**options: Any) -> Login:
    return google_settings(options).login


@pytest.mark.parametrize("uri", ["gs://b/some/my%20table", "gcs://b/some/my%20table/"])
def test_uris_name_bucket_and_path(uri: str) -> None:
    """Both schemes and escapes are in use, and equal tables must have an equal URI."""
    store = open_store(uri)
    assert isinstance(store, ObjectStore)
    assert (store.container, store.root) == ("b", "some/my table")
    assert store.uri == "gs://b/some/my%20table"


@pytest.mark.parametrize("uri", ["gs://", "gs://b", "gs://b/", "gs:///t", "gs://b/a/../t"])
def test_incomplete_uris_are_refused(uri: str) -> None:
    """A missing path would make a whole bucket the table, and `..` could leave it."""
    with pytest.raises(InvalidInputError, match="not the URI of a dataset"):
        open_store(uri)


def test_google_itself_is_the_default() -> None:
    """Without options, the credentials of the machine apply."""
    assert google_settings({}) == GoogleSettings()
    assert GoogleSettings().endpoint == DEFAULT_ENDPOINT
    assert GoogleSettings().login.kind == "default"


@pytest.mark.parametrize("name", ["endpoint_url", "google_base_url", "base_url", "ENDPOINT_URL"])
def test_endpoints_have_every_librarys_name(name: str) -> None:
    """Options of gcsfs and of Lance must work unchanged, with a trailing slash or in capitals."""
    settings = google_settings({name: f"{EMULATOR}/"})
    assert settings.endpoint == EMULATOR
    assert settings.where("b") == f"the bucket 'b' of Google Cloud Storage at {EMULATOR}"


def test_the_environments_emulator_is_anonymous(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`STORAGE_EMULATOR_HOST` is the convention of Google's libraries; an explicit endpoint must
    still win over it.
    """
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:4443")
    assert google_settings({}).endpoint == EMULATOR
    assert login() == Login("anonymous")
    assert google_settings({"endpoint_url": DEFAULT_ENDPOINT}).endpoint == DEFAULT_ENDPOINT


def test_invalid_endpoints_do_not_show_passwords() -> None:
    """A URL with user and password is refused by a message that repeats neither."""
    for url in (
        "127.0.0.1:4443",
        "ftp://me:secret@x",
        "http://me:secret@x/?a=b",
        "https://s:secret@x",
    ):
        with pytest.raises(InvalidInputError, match="endpoint") as caught:
            google_settings({"endpoint_url": url})
        assert "secret" not in str(caught.value)


def test_unencrypted_endpoints_can_be_forbidden() -> None:
    """`allow_http` guards against sending a token in clear text; emulators need it to default to
    true.
    """
    assert google_settings({"endpoint_url": EMULATOR, "allow_http": "true"}).endpoint == EMULATOR
    with pytest.raises(InvalidInputError, match="allow_http"):
        google_settings({"endpoint_url": EMULATOR, "allow_http": "false"})


@pytest.mark.parametrize("key", [KEY, json.dumps(KEY)])
@pytest.mark.parametrize("name", ["google_service_account_key", "service_account_key", "token"])
def test_keys_are_json_or_dicts(name: str, key: Any) -> None:
    """gcsfs takes a dict and Lance a text, and both must yield the same key."""
    actual = login(**{name: key})
    assert actual.kind == "key"
    assert json.loads(actual.value) == KEY


def test_key_files_have_every_librarys_name(tmp_path: Path) -> None:
    """gcsfs calls the path `token`, Lance uses three other names; a path is recognised even if
    the file is missing.
    """
    path = tmp_path / "key"
    path.write_text(json.dumps(KEY))
    for name in (
        "google_service_account",
        "service_account_path",
        "google_application_credentials",
        "token",
    ):
        assert login(**{name: str(path)}) == Login("file", str(path))
    assert login(token="/not/there.json") == Login("file", "/not/there.json")


def test_tokens_differ_from_login_methods() -> None:
    """In gcsfs, `token` can also name a way to log in."""
    assert login(token="ya29.x") == login(google_storage_token="ya29.x") == Login("token", "ya29.x")
    assert login(token="anon") == login(google_skip_signature="true") == Login("anonymous")
    assert login(token="google_default").kind == "default"
    assert login(token="cloud").kind == "machine"
    assert login(anon=False).kind == "default"


def test_lances_emulator_key_is_anonymous() -> None:
    """Lance configures an emulator through a fake key with `disable_oauth`, which must not be
    used for signing.
    """
    key = json.dumps({"gcs_base_url": EMULATOR, "disable_oauth": True, "client_email": ""})
    settings = google_settings({"google_service_account_key": key})
    assert (settings.endpoint, settings.login) == (EMULATOR, Login("anonymous"))


def test_refresh_tokens_mark_user_credentials() -> None:
    """gcsfs accepts user credentials without a `type`, which Google's library needs."""
    credentials = {"refresh_token": "r", "client_id": "i", "client_secret": "s"}
    assert json.loads(login(token=credentials).value)["type"] == "authorized_user"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"token": "t", "google_service_account": "f"}, "more than one kind of credentials"),
        ({"token": "t", "anon": True}, "more than one kind of credentials"),
        ({"token": "t", "google_storage_token": "u"}, "'token' and 'google_storage_token'"),
        ({"token": "browser"}, "gcloud auth"),
        ({"token": 7}, "'token' must be a non-empty string"),
        ({"google_service_account_key": "/a/path.json"}, "google_service_account"),
        ({"google_service_account_key": "[" * 3000}, "google_service_account"),
        ({"google_service_account": json.dumps(KEY)}, "google_service_account_key"),
        ({"google_service_acount": "f"}, "did you mean 'google_service_account'"),
        ({"requester_pays": True}, "project"),
        ({"bucket": "b"}, "repeats a part of the table's URI"),
    ],
)
def test_contradictory_options_name_the_remedy(options: dict[str, Any], problem: str) -> None:
    """Of two credentials one would be ignored silently, and a misspelt option would too."""
    with pytest.raises(InvalidInputError, match=problem) as raised:
        google_settings(options)
    assert KEY["private_key"] not in str(raised.value)


def test_requests_can_name_a_payer() -> None:
    """gcsfs' `requester_pays` is a flag or a project, and billing the wrong project would be
    costly.
    """
    assert google_settings({}).user_project is None
    assert google_settings({"requester_pays": "false", "project": "p"}).user_project is None
    assert google_settings({"requester_pays": True, "project": "p"}).user_project == "p"
    assert google_settings({"requester_pays": "payer"}).user_project == "payer"


def test_gcsfs_and_lance_timeouts_agree() -> None:
    """Options of both libraries configure one retry policy, whose attempts are one more than the
    retries.
    """
    retry_policy = google_settings({"requests_timeout": 7, "client_max_retries": "2"}).retry_policy
    assert (retry_policy.request_seconds, retry_policy.max_attempts) == (7, 3)


@pytest.mark.parametrize(
    "options",
    [
        {"token": "very secret"},
        {"token": KEY},
        {"google_service_account_key": json.dumps(KEY)},
        {"proxy_url": "http://me:very secret@proxy"},
    ],
)
def test_secrets_reach_workers_but_never_show(options: dict[str, Any]) -> None:
    """Settings are pickled to workers with their secrets, yet appear in messages by `repr`."""
    store = open_store("gs://b/t", options)
    assert isinstance(store, ObjectStore)
    output = f"{store!r} {store.uri} {store.settings!r} {store.settings.where('b')}"
    assert "very secret" not in output
    sent = pickle.loads(pickle.dumps(store))
    assert sent == store
    assert sent.settings == store.settings
    assert hash(sent.settings) == hash(store.settings)


def test_missing_libraries_name_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore is optional, and an ImportError would not tell which extra to install."""
    monkeypatch.delitem(sys.modules, "lance_stream.storage.engine.requests", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'lance-stream\[gcs\]'"):
        GoogleSettings().connect("b")
