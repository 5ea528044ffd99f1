"""A cluster's settings for a location, translated into storage options."""

import json
import logging
import re
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.spark.session import hadoop_settings
from lance_stream.spark.session.hadoop_settings import HADOOP_NAMES, storage_options_of, store_of
from lance_stream.storage.options.names import take_settings
from lance_stream.storage.protocols import PROTOCOLS

S3A = {
    "fs.s3a.endpoint": "http://127.0.0.1:9000",
    "fs.s3a.access.key": "key",
    "fs.s3a.secret.key": "shhh",
}
OF_S3A = {
    "aws_endpoint": "http://127.0.0.1:9000",
    "allow_http": "true",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "shhh",
}
# As Hadoop's own defaults are: they stand in every session's settings.
DEFAULTS = {
    "fs.s3a.path.style.access": "false",
    "fs.s3a.connection.ssl.enabled": "true",
    "fs.s3a.aws.credentials.provider": """
    org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider,
    org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider,
    software.amazon.awssdk.auth.credentials.EnvironmentVariableCredentialsProvider,
    org.apache.hadoop.fs.s3a.auth.IAMInstanceCredentialsProvider
  """,
    "fs.gs.auth.type": "COMPUTE_ENGINE",
}
KEYS = {"aws_access_key_id": "key", "aws_secret_access_key": "shhh"}
S3A_CLASSES = "org.apache.hadoop.fs.s3a"
AZURE = "fs.azure.account"
HOST = "acct.dfs.core.windows.net"
ABFSS = f"abfss://box@{HOST}/t"
LOGIN = "https://login.microsoftonline.com/our-tenant/oauth2/token"

SETTINGS: dict[str, tuple[str, dict[str, str], dict[str, str]]] = {
    "nothing is said": ("s3://b/t", DEFAULTS, {}),
    "a local table has no such settings": ("/data/t", S3A, {}),
    "keys and an endpoint": ("s3a://b/t", {**DEFAULTS, **S3A}, OF_S3A),
    "an external manifest store's table": ("s3+ddb://b/t?ddbTableName=T", S3A, OF_S3A),
    "a session's token": (
        "s3://b/t",
        {**DEFAULTS, **S3A, "fs.s3a.session.token": "tok"},
        {**OF_S3A, "aws_session_token": "tok"},
    ),
    "a token without a list of providers": (
        "s3n://b/t",
        {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "shhh", "fs.s3a.session.token": "tok"},
        {**KEYS, "aws_session_token": "tok"},
    ),
    "half of a key is none": ("s3://b/t", {"fs.s3a.access.key": "key"}, {}),
    "an endpoint without a scheme": (
        "s3://b/t",
        {**DEFAULTS, "fs.s3a.endpoint": "minio:9000"},
        {"aws_endpoint": "https://minio:9000"},
    ),
    "an endpoint without a scheme, and without TLS": (
        "s3://b/t",
        {"fs.s3a.endpoint": "minio:9000", "fs.s3a.connection.ssl.enabled": "false"},
        {"aws_endpoint": "http://minio:9000", "allow_http": "true"},
    ),
    "Amazon's central endpoint": ("s3://b/t", {"fs.s3a.endpoint": "s3.amazonaws.com"}, {}),
    "an endpoint of Amazon's that names its region": (
        "s3://b/t",
        {"fs.s3a.endpoint": "s3.eu-central-1.amazonaws.com"},
        {
            "aws_endpoint": "https://s3.eu-central-1.amazonaws.com",
            "aws_region": "eu-central-1",
        },
    ),
    "a region": ("s3://b/t", {"fs.s3a.endpoint.region": "eu-west-1"}, {"aws_region": "eu-west-1"}),
    "a region that Amazon's chain finds": ("s3://b/t", {"fs.s3a.endpoint.region": "sdk"}, {}),
    "buckets in the path": (
        "s3://b/t",
        {"fs.s3a.path.style.access": "true"},
        {"aws_virtual_hosted_style_request": "false"},
    ),
    "a bucket's own settings go before the others": (
        "s3a://our.bucket/t",
        {
            **S3A,
            "fs.s3a.bucket.our.bucket.access.key": "its",
            "fs.s3a.bucket.our.bucket.secret.key": "own",
            "fs.s3a.bucket.other.access.key": "another's",
        },
        {**OF_S3A, "aws_access_key_id": "its", "aws_secret_access_key": "own"},
    ),
    "nobody": (
        "s3://b/t",
        {"fs.s3a.aws.credentials.provider": f"{S3A_CLASSES}.AnonymousAWSCredentialsProvider"},
        {"aws_skip_signature": "true"},
    ),
    "keys that come behind nobody are not used": (
        "s3://b/t",
        {
            "fs.s3a.access.key": "key",
            "fs.s3a.secret.key": "shhh",
            "fs.s3a.aws.credentials.provider": f"{S3A_CLASSES}.AnonymousAWSCredentialsProvider,"
            f"{S3A_CLASSES}.SimpleAWSCredentialsProvider",
        },
        {"aws_skip_signature": "true"},
    ),
    "keys that no provider asks for are not used": (
        "s3://b/t",
        {
            "fs.s3a.access.key": "key",
            "fs.s3a.secret.key": "shhh",
            "fs.s3a.aws.credentials.provider": "com.amazonaws."
            "auth.InstanceProfileCredentialsProvider",
        },
        {},
    ),
    "a profile": (
        "s3://b/t",
        {
            "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.auth."
            "ProfileAWSCredentialsProvider",
            "fs.s3a.auth.profile.name": "batch",
        },
        {"aws_profile": "batch"},
    ),
    "encryption, and who pays": (
        "s3://b/t",
        {
            "fs.s3a.encryption.algorithm": "SSE-KMS",
            "fs.s3a.encryption.key": "arn:aws:kms:1",
            "fs.s3a.requester.pays.enabled": "true",
        },
        {
            "aws_server_side_encryption": "aws:kms",
            "aws_sse_kms_key_id": "arn:aws:kms:1",
            "aws_request_payer": "true",
        },
    ),
    "an account's key": (ABFSS, {f"{AZURE}.key.{HOST}": "shhh"}, {"account_key": "shhh"}),
    "an account's key under the other service's name": (
        ABFSS,
        {f"{AZURE}.key.acct.blob.core.windows.net": "shhh"},
        {"account_key": "shhh"},
    ),
    "another account's key": (ABFSS, {f"{AZURE}.key.other.dfs.core.windows.net": "shhh"}, {}),
    "an account's key, of a URI without an account": (
        "az://box/t",
        {f"{AZURE}.key.{HOST}": "shhh"},
        {"account_name": "acct", "account_key": "shhh"},
    ),
    "one of several accounts is not guessed": (
        "az://box/t",
        {f"{AZURE}.key.{HOST}": "shhh", f"{AZURE}.key.other.dfs.core.windows.net": "shhh"},
        {},
    ),
    "a signature": (
        ABFSS,
        {f"{AZURE}.auth.type.{HOST}": "SAS", f"fs.azure.sas.fixed.token.{HOST}": "?sv=1&sig=x"},
        {"sas_token": "sv=1&sig=x"},
    ),
    "a signature of one container": (
        "wasbs://box@acct.blob.core.windows.net/t",
        {
            "fs.azure.sas.box.acct.blob.core.windows.net": "sv=1&sig=x",
            "fs.azure.sas.other.acct.blob.core.windows.net": "sv=1&sig=y",
        },
        {"sas_token": "sv=1&sig=x"},
    ),
    "a client's secret": (
        ABFSS,
        {
            f"{AZURE}.auth.type": "OAuth",
            f"{AZURE}.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2."
            "ClientCredsTokenProvider",
            f"{AZURE}.oauth2.client.id": "we",
            f"{AZURE}.oauth2.client.secret.{HOST}": "shhh",
            f"{AZURE}.oauth2.client.endpoint": LOGIN,
        },
        {
            "azure_client_id": "we",
            "azure_client_secret": "shhh",
            "azure_tenant_id": "our-tenant",
        },
    ),
    "the machine's identity": (
        ABFSS,
        {
            f"{AZURE}.auth.type": "OAuth",
            f"{AZURE}.oauth.provider.type": "org.apache.hadoop.fs.azurebfs.oauth2.MsiTokenProvider",
        },
        {},
    ),
    "a key file": (
        "gs://b/t",
        {**DEFAULTS, "fs.gs.auth.service.account.json.keyfile": "/etc/key.json"},
        {"google_service_account": "/etc/key.json"},
    ),
    "a key file under its older name": (
        "gcs://b/t",
        {"google.cloud.auth.service.account.json.keyfile": "/etc/key.json"},
        {"google_service_account": "/etc/key.json"},
    ),
    "Google's machine": ("gs://b/t", DEFAULTS, {}),
    "nobody, at an endpoint of its own": (
        "gs://b/t",
        {
            "fs.gs.auth.type": "UNAUTHENTICATED",
            "fs.gs.storage.root.url": "http://127.0.0.1:4443/",
            "fs.gs.project.id": "p",
        },
        {
            "google_skip_signature": "true",
            "google_base_url": "http://127.0.0.1:4443",
            "allow_http": "true",
            "google_project": "p",
        },
    ),
    "Google's usual endpoint": (
        "gs://b/t",
        {"fs.gs.storage.root.url": "https://storage.googleapis.com/"},
        {},
    ),
}


@pytest.mark.parametrize(("uri", "settings", "expected"), SETTINGS.values(), ids=SETTINGS)
def test_hadoop_settings_become_storage_options(
    uri: str, settings: dict[str, str], expected: dict[str, str]
) -> None:
    """A cluster that reaches a store through Hadoop must reach it through this package as well,
    and the pattern that selects settings must match all of them.
    """
    options = storage_options_of({**settings, "fs.defaultFS": "file:///"}, uri)
    assert options == expected
    assert len(take_settings(options, store_of(uri))) == len(options), "each is known to the store"
    assert all(re.fullmatch(HADOOP_NAMES, name) for name in settings)


def test_only_local_schemes_map_to_local() -> None:
    """A scheme that is added to the protocols but not here would be read without the cluster's
    credentials.
    """
    for scheme in PROTOCOLS:
        is_local = scheme in ("", "file", "memory")
        location = f"{scheme}://box/t" if scheme else "/box/t"
        assert (store_of(location) == "local") == is_local, scheme


def test_private_keys_become_a_service_account() -> None:
    """Hadoop takes the parts of a service account as separate settings with escaped newlines, and
    the store's client expects one JSON document.
    """
    settings = {
        "fs.gs.auth.service.account.email": "us@project.iam",
        "fs.gs.auth.service.account.private.key.id": "17",
        "fs.gs.auth.service.account.private.key": r"-----BEGIN-----\nshhh\n-----END-----",
    }
    assert all(re.fullmatch(HADOOP_NAMES, name) for name in settings)
    (text,) = storage_options_of(settings, "gs://b/t").values()
    account: dict[str, Any] = json.loads(text)
    assert account["client_email"] == "us@project.iam"
    assert account["private_key"].splitlines() == ["-----BEGIN-----", "shhh", "-----END-----"]


def test_unsupported_encryption_is_refused() -> None:
    """Without an error files would be written unencrypted although the cluster's settings demand
    encryption.
    """
    settings = {"fs.s3a.encryption.algorithm": "CSE-KMS", "fs.s3a.encryption.key": "shhh"}
    with pytest.raises(InvalidInputError, match=r"'CSE-KMS'.*written without it") as raised:
        storage_options_of(settings, "s3://b/t")
    assert "shhh" not in str(raised.value)


@pytest.mark.parametrize(
    ("uri", "settings", "named"),
    [
        ("s3://b/t", {"fs.s3a.aws.credentials.provider": "com.our.Vault"}, "com.our.Vault"),
        (ABFSS, {f"{AZURE}.auth.type": "Custom", f"{AZURE}.key": "shhh"}, "custom"),
        ("gs://b/t", {"fs.gs.auth.type": "USER_CREDENTIALS"}, "USER_CREDENTIALS"),
    ],
)
def test_unsupported_credential_providers_warn_once(
    uri: str, settings: dict[str, str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A provider in Java cannot be called from here, and the warning explains the later refusal
    without showing a secret or flooding the log.
    """
    hadoop_settings._warn.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert [storage_options_of(settings, uri) for _ in range(2)] == [{}, {}]
    (record,) = caplog.records
    assert named in record.getMessage()
    assert "shhh" not in caplog.text
