import base64
import pickle
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.s3 import S3Settings, s3_settings
from lance_stream.storage.locations import open_store
from lance_stream.storage.objects.object_store import ObjectStore

FSSPEC: dict[str, Any] = {
    "key": "AK",
    "secret": "hush-secret",
    "token": "hush-token",
    "endpoint_url": "http://127.0.0.1:9000",
    "region_name": "eu-west-1",
}
LANCE = {
    "aws_access_key_id": "AK",
    "AWS_SECRET_ACCESS_KEY": "hush-secret",
    "aws_session_token": "hush-token",
    "aws_endpoint": "http://127.0.0.1:9000",
    "region": "eu-west-1",
    "allow_http": "true",
}


def store_of(uri: str) -> tuple[str, str]:
    store = open_store(uri)
    assert isinstance(store, ObjectStore)
    return store.container, store.root


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_every_scheme_names_bucket_and_path(scheme: str) -> None:
    """Hadoop's schemes `s3a` and `s3n` name the same object as `s3`, and a bucket may have dots."""
    assert store_of(f"{scheme}://my.bucket/dir/t") == ("my.bucket", "dir/t")


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("a b/t", "a b/t"),
        ("a%20b/t/", "a b/t"),
        ("%C3%A9é+%2B", "éé++"),
        ("100%/50%25", "100%/50%"),
        ("a%2Fb%3Fc", "a/b?c"),
        ("x=1/y:~", "x=1/y:~"),
    ],
)
def test_uri_escapes_are_resolved_once(path: str, key: str) -> None:
    """The reference does the same."""
    assert store_of(f"s3://b/{path}") == ("b", key)
    assert store_of(open_store(f"s3://b/{path}").uri) == ("b", key)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("s3://bucket", "a bucket and a path"),
        ("s3://bucket/", "a bucket and a path"),
        ("s3:///t", "a bucket and a path"),
        ("s3://bucket/a/../t", "empty part"),
        ("s3://bucket/a/%2E%2E/t", "empty part"),
        ("s3://bucket/a//t", "empty part"),
        ("s3://bucket/t?versionId=1", "%3F"),
        ("s3://bucket/t#1", "%23"),
        ("s3://bucket/%FF", "UTF-8"),
    ],
)
def test_invalid_dataset_uris_are_refused(uri: str, problem: str) -> None:
    """Escapes, queries and empty parts would name keys that other tools spell differently."""
    with pytest.raises(InvalidInputError, match=problem):
        open_store(uri)


def test_fsspec_and_lance_names_are_equivalent() -> None:
    """Both vocabularies must yield equal settings, since connections are shared by settings."""
    assert s3_settings(FSSPEC) == s3_settings(LANCE)
    settings = s3_settings(FSSPEC)
    assert (settings.key, settings.secret, settings.token) == ("AK", "hush-secret", "hush-token")
    assert (settings.endpoint, settings.region) == ("http://127.0.0.1:9000", "eu-west-1")


def test_the_environment_is_the_default() -> None:
    """Without options nothing may be fixed, so that the environment and profile decide at
    connection time.
    """
    assert s3_settings({}) == S3Settings()


def test_settings_hash_and_pickle_without_secrets() -> None:
    """Settings are keys of caches and travel to workers, but their text appears in logs."""
    key = base64.b64encode(b"hush-key").decode()
    settings = s3_settings({**FSSPEC, "aws_sse_customer_key_base64": key})
    assert settings.customer_key == key
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(settings) == hash(pickle.loads(pickle.dumps(settings)))
    assert "hush" not in repr(settings)
    assert str(settings.customer_key) not in repr(settings)
    assert "hush" not in settings.where("b")


def test_endpoints_with_passwords_are_refused() -> None:
    """The password is not shown."""
    with pytest.raises(InvalidInputError, match="no password") as caught:
        s3_settings({"endpoint": "https://user:hush@host:1/x"})
    assert "hush" not in str(caught.value)


def test_http_endpoints_can_be_forbidden() -> None:
    """`allow_http` guards against sending data in clear text; MinIO needs it to default to true."""
    assert s3_settings({"endpoint": "http://h"}).endpoint == "http://h"
    with pytest.raises(InvalidInputError, match="allow_http forbids"):
        s3_settings({"endpoint": "http://h", "allow_http": "false"})


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"key": "a"}, "one half of S3's access key"),
        ({"aws_secret_access_key": "a"}, "one half of S3's access key"),
        ({"anon": True, "key": "a", "secret": "b"}, "anonymous access"),
        ({"endpoint": "127.0.0.1:9000"}, "begins with http"),
        ({"region": "a", "region_name": "b"}, "different values"),
        ({"key": "a", "aws_access_key_id": "b"}, "different values"),
        ({"aws_conditional_put": "dynamo:t"}, "ddbTableName"),
        ({"aws_role_arn": "arn:aws:iam::1:role/x"}, "AWS_ROLE_ARN"),
        ({"session": object()}, "AWS_PROFILE"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, Any], problem: str) -> None:
    """Half a key, contradictory names and unsupported sources of credentials must fail with the
    option's name.
    """
    with pytest.raises(InvalidInputError, match=problem):
        s3_settings(options)


def test_retries_and_timeouts_come_from_options() -> None:
    """All object services share these options."""
    policy = s3_settings(
        {"client_max_retries": "2", "request_timeout": "5s", "connect_timeout": 1}
    ).retry_policy
    assert (policy.max_attempts, policy.request_seconds, policy.connect_seconds) == (3, 5, 1)


def test_lances_connection_options_are_understood() -> None:
    """Each of Lance's options must reach its setting, or behaviour would differ between readers
    of one table.
    """
    settings = s3_settings(
        {
            "aws_virtual_hosted_style_request": "true",
            "aws_unsigned_payload": "true",
            "proxy_url": "http://proxy:1",
            "allow_invalid_certificates": "true",
            "aws_server_side_encryption": "sse-kms",
            "aws_sse_kms_key_id": "id",
            "aws_request_payer": "requester",
        }
    )
    assert (settings.virtual_hosted, settings.unsigned_payload) == (True, True)
    assert (settings.proxy_url, settings.any_certificate) == ("http://proxy:1", True)
    assert (settings.encryption, settings.encryption_key_id) == ("aws:kms", "id")
    assert settings.requester_pays


@pytest.mark.parametrize(
    ("options", "instead"),
    [
        ({"client_kwargs": {"endpoint_url": "http://h"}}, "endpoint_url"),
        ({"config_kwargs": {"connect_timeout": 1}}, "connect_timeout"),
        ({"s3_additional_kwargs": {"ServerSideEncryption": "AES256"}}, "aws_server_side"),
    ],
)
def test_botocore_arguments_are_refused(options: dict[str, Any], instead: str) -> None:
    """botocore sends no requests here, so an argument would be ignored or guessed at."""
    (name,) = options
    with pytest.raises(InvalidInputError, match=rf"{name} has arguments of botocore.*{instead}"):
        s3_settings(options)
