"""What URIs, storage options and the environment say of Azure Blob Storage."""

import pickle
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.azure import AzureSettings
from lance_stream.storage.engine.azure_login import (
    Anonymous,
    BearerToken,
    Identity,
    SharedAccess,
    SharedKey,
)
from lance_stream.storage.engine.azure_options import open_azure
from lance_stream.storage.locations import open_store
from lance_stream.storage.objects.object_store import ObjectStore

KEY = "c2VjcmV0LWtleQ=="
SAS = "sv=2023-11-03&sr=c&sp=rwdl&sig=c2VjcmV0%2Bsas%3D"
HOST = "acct.dfs.core.windows.net"
PUBLIC = "https://acct.blob.core.windows.net"


def opened(
    uri: str, options: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> ObjectStore:
    scheme, _, rest = uri.partition(":")
    store = open_azure(scheme, rest, options or {}, environment or {})
    assert isinstance(store, ObjectStore)
    return store


def settings(
    uri: str, options: dict[str, Any] | None = None, environment: dict[str, str] | None = None
) -> AzureSettings:
    actual = opened(uri, options, environment).settings
    assert isinstance(actual, AzureSettings)
    return actual


@pytest.mark.parametrize(
    ("uri", "options", "endpoint"),
    [
        ("az://cont/t", {"account_name": "acct"}, PUBLIC),
        ("abfs://cont/t", {"azure_storage_account_name": "acct"}, PUBLIC),
        ("adl://cont/t", {"ACCOUNT_NAME": "acct"}, PUBLIC),
        (f"abfss://cont@{HOST}/t", {}, PUBLIC),
        (f"abfss://cont@{HOST}/t", {"account_name": "acct"}, PUBLIC),
        (f"az://cont@{HOST}/t", {}, PUBLIC),
        ("wasbs://cont@acct.blob.core.windows.net/t", {}, PUBLIC),
        (
            "abfss://cont@acct.dfs.core.usgovcloudapi.net/t",
            {},
            "https://acct.blob.core.usgovcloudapi.net",
        ),
        (
            "abfss://cont@acct.dfs.core.chinacloudapi.cn/t",
            {},
            "https://acct.blob.core.chinacloudapi.cn",
        ),
        (
            "abfss://cont@acct.z01.dfs.storage.azure.net/t",
            {"account_name": "acct"},
            "https://acct.z01.blob.storage.azure.net",
        ),
        (
            "abfss://space@onelake.dfs.fabric.microsoft.com/lake.Lakehouse/Tables/t",
            {},
            "https://onelake.blob.fabric.microsoft.com",
        ),
        (
            "az://cont/t",
            {"account_name": "acct", "account_host": "acct.blob.core.usgovcloudapi.net"},
            "https://acct.blob.core.usgovcloudapi.net",
        ),
        (
            "az://cont/t",
            {"azure_storage_endpoint": "http://127.0.0.1:10000/acct/"},
            "http://127.0.0.1:10000/acct",
        ),
        (
            "az://cont/t",
            {"account_name": "acct", "azure_endpoint": "http://127.0.0.1:10000"},
            "http://127.0.0.1:10000/acct",
        ),
        (
            f"abfss://cont@{HOST}/t",
            {"endpoint": "http://localhost:10000"},
            "http://localhost:10000/acct",
        ),
        ("az://cont/t", {"endpoint": f"https://{HOST}"}, PUBLIC),
        ("az://cont/t", {"connection_string": f"AccountName=acct;AccountKey={KEY}"}, PUBLIC),
        (
            "az://cont/t",
            {
                "connection_string": "DefaultEndpointsProtocol=https;AccountName=acct;"
                f"AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn"
            },
            "https://acct.blob.core.chinacloudapi.cn",
        ),
        (
            "az://cont/t",
            {"connection_string": f"BlobEndpoint={PUBLIC}/;SharedAccessSignature={SAS}"},
            PUBLIC,
        ),
    ],
)
def test_any_setting_can_name_the_account(uri: str, options: dict[str, Any], endpoint: str) -> None:
    """Users of adlfs, Spark and Lance name the account in the host, an option, an endpoint or a
    connection string.
    """
    actual = settings(uri, {"anon": "true", **options})
    assert actual.endpoint == endpoint
    assert actual.account in ("acct", "onelake")


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        (f"abfss://cont@{HOST}/t", {"account_name": "other"}),
        (f"abfss://cont@{HOST}/t", {"endpoint": "http://127.0.0.1:10000/other"}),
        (
            "az://cont/t",
            {"account_name": "a", "connection_string": "AccountName=b;AccountKey=YQ=="},
        ),
        ("az://cont/t", {"account_name": "a", "endpoint": "https://b.blob.core.windows.net"}),
    ],
)
def test_contradictory_accounts_are_refused(uri: str, options: dict[str, Any]) -> None:
    """Choosing one of two accounts silently could write a table into the wrong one."""
    with pytest.raises(InvalidInputError, match="different storage accounts"):
        settings(uri, options)


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("az://cont/t", {}, "the storage account is missing"),
        ("az:///t", {"account_name": "a"}, "is not the URI of a dataset on Azure"),
        ("abfss://cont@/t", {"account_name": "a"}, "is not the URI of a dataset on Azure"),
        ("az://cont/a/../../b", {"account_name": "a"}, "is not the URI of a dataset on Azure"),
        (f"abfss://{HOST}/cont/t", {}, "has the host .* in place of a container"),
        ("az://cont/t", {"acount_name": "a"}, "did you mean 'account_name'"),
        ("az://cont/t", {"account_name": "a", "account_key": "not base64!"}, "is not valid base64"),
        ("az://cont/t", {"account_name": "a", "sas_token": "nonsense"}, "has no part 'sig='"),
        (
            "az://cont/t",
            {"account_name": "a", "connection_string": "x"},
            "connection_string is invalid",
        ),
        (
            "az://cont/t",
            {"account_name": "a", "client_secret": "x"},
            "requires tenant_id and client",
        ),
        ("az://cont/t", {"account_name": "a", "anon": "maybe"}, "must be true or false"),
        ("az://cont/t", {"account_name": "a", "credential": object()}, "cannot be sent to workers"),
        ("az://cont/t", {"endpoint": f"{PUBLIC}?{SAS}"}, "set a SAS token as the storage option"),
    ],
)
def test_invalid_options_name_the_remedy(uri: str, options: dict[str, Any], message: str) -> None:
    """The message must let a user correct the option without reading the source, and must not
    repeat a secret.
    """
    with pytest.raises(InvalidInputError, match=message) as caught:
        settings(uri, options)
    assert "c2VjcmV0" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "login"),
    [
        ({"account_key": KEY}, SharedKey("acct", KEY)),
        ({"azure_storage_account_key": KEY}, SharedKey("acct", KEY)),
        ({"azure_storage_access_key": KEY}, SharedKey("acct", KEY)),
        ({"connection_string": f"AccountName=acct;AccountKey={KEY}"}, SharedKey("acct", KEY)),
        ({"sas_token": SAS}, SharedAccess(SAS)),
        ({"azure_storage_sas_key": f"?{SAS}"}, SharedAccess(f"?{SAS}")),
        ({"account_key": KEY, "sas_token": SAS}, SharedKey("acct", KEY)),
        ({"azure_storage_token": "token"}, BearerToken("token")),
        ({"anon": True}, Anonymous()),
        ({"azure_skip_signature": "true"}, Anonymous()),
        ({}, Identity()),
        ({"anon": "false"}, Identity()),
        ({"azure_client_id": "c"}, Identity(client="c")),
        ({"use_azure_cli": "true"}, Identity("cli")),
        (
            {"azure_tenant_id": "t", "client_id": "c", "azure_client_secret": "s"},
            Identity("client secret", "t", "c", "s"),
        ),
        (
            {"tenant_id": "t", "client_id": "c", "azure_federated_token_file": "/token"},
            Identity("workload", "t", "c", token_file="/token"),
        ),
        ({"azure_msi_resource_id": "/r"}, Identity("managed", resource_id="/r")),
    ],
)
def test_adlfs_and_lance_credential_names_work(options: dict[str, Any], login: Any) -> None:
    """Options that already work with adlfs or Lance must select the same kind of credentials
    here.
    """
    assert settings("az://cont/t", {"account_name": "acct", **options}).login == login


def test_the_emulator_needs_no_credentials() -> None:
    """Azurite has a published account and key, and its host can be moved by an environment
    variable.
    """
    for options in (
        {"azure_storage_use_emulator": "true"},
        {"connection_string": "UseDevelopmentStorage=true"},
    ):
        actual = settings("az://cont/t", options)
        assert actual.endpoint == "http://127.0.0.1:10000/devstoreaccount1"
        assert actual.account == "devstoreaccount1"
    elsewhere = {"AZURITE_BLOB_STORAGE_URL": "http://127.0.0.1:7"}
    actual = settings("az://cont/t", {"use_emulator": "true"}, elsewhere)
    assert actual.endpoint == "http://127.0.0.1:7/devstoreaccount1"


def test_environment_variables_supplement_options() -> None:
    """The environment fills in only what the options leave open: an explicit credential always
    wins.
    """
    environment = {"AZURE_STORAGE_ACCOUNT_NAME": "acct", "AZURE_STORAGE_ACCOUNT_KEY": KEY}
    assert settings("az://cont/t", {}, environment).login == SharedKey("acct", KEY)
    actual = settings("az://cont/t", {"sas_token": SAS}, environment)
    assert (actual.account, actual.login) == ("acct", SharedAccess(SAS))


def test_environment_credentials_fit_their_own_account() -> None:
    """A key from the environment belongs to the account that is named beside it and must not be
    sent to another one.
    """
    environment = {
        "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=theirs;AccountKey={KEY}",
        "AZURE_STORAGE_SAS_TOKEN": SAS,
    }
    for uri, options in (("az://cont/t", {"account_name": "acct"}), (f"az://cont@{HOST}/t", {})):
        actual = settings(uri, options, environment)
        assert (actual.endpoint, actual.login) == (PUBLIC, Identity())


def test_the_uris_host_overrides_environment_endpoints() -> None:
    """A URI with a host states exactly where the table is, whatever the machine is configured
    for.
    """
    environment = {"AZURE_STORAGE_ENDPOINT": "https://private.example/acct"}
    assert settings("az://cont/t", {}, environment).endpoint == "https://private.example/acct"
    assert settings(f"abfss://cont@{HOST}/t", {}, environment).endpoint == PUBLIC


@pytest.mark.parametrize("options", [{"sas_token": SAS}, {"bearer_token": "t"}, {}])
def test_bearer_secrets_need_encryption(
    options: dict[str, str],
) -> None:
    """An account key only signs requests, and may be used over plain HTTP."""
    endpoint = {"endpoint": "http://store.example/acct"}
    with pytest.raises(InvalidInputError, match="plain HTTP"):
        settings("az://cont/t", {**endpoint, **options})
    assert settings("az://cont/t", {**endpoint, **options, "allow_http": "true"})
    assert settings("az://cont/t", {**endpoint, "account_key": KEY})


def test_settings_hide_secrets_and_pickle() -> None:
    """Settings travel to Spark's workers and appear in error messages: they must survive the
    first and leak nothing in the second.
    """
    for options in (
        {"account_key": KEY},
        {"sas_token": SAS},
        {"bearer_token": "c2VjcmV0"},
        {"tenant_id": "t", "client_id": "c", "client_secret": "c2VjcmV0"},
        {"account_key": KEY, "proxy_url": "http://user:c2VjcmV0@proxy:1"},
    ):
        store = opened("az://cont/t", {"account_name": "acct", **options})
        assert "c2VjcmV0" not in repr(store)
        assert "c2VjcmV0" not in store.settings.where("cont")
        again = pickle.loads(pickle.dumps(store))
        assert again == store
        assert again.settings == store.settings
        assert hash(again.settings) == hash(store.settings)


def test_a_stores_uri_opens_it_again() -> None:
    """Workers and metadata open a table by its store's URI, so escapes and hosts have to survive
    the round trip.
    """
    for uri in ("az://cont/a%20b/t", f"abfss://cont@{HOST}/t%25", f"wasbs://cont@{HOST}/t"):
        store = opened(uri, {"account_name": "acct"})
        assert store.uri == uri
        assert opened(store.uri, {"account_name": "acct"}) == store


def test_times_and_attempts_come_from_options() -> None:
    """Time limits are written as numbers or with units, and a count of retries is one less than
    that of attempts.
    """
    actual = settings(
        "az://cont/t",
        {
            "account_name": "a",
            "timeout": "90s",
            "connection_timeout": "3",
            "client_max_retries": "2",
            "client_retry_timeout": "20",
            "max_concurrency": "4",
        },
    )
    assert (actual.retry_policy.request_seconds, actual.retry_policy.connect_seconds) == (90.0, 3.0)
    assert (actual.retry_policy.max_attempts, actual.retry_policy.total_seconds) == (3, 20.0)
    assert actual.max_requests_at_once == 4


def test_every_uri_opens_without_a_request() -> None:
    """Opening a store must stay free: a driver opens it for planning, before any credentials may
    exist.
    """
    for scheme in ("az", "abfs", "abfss", "azure", "adl", "wasb", "wasbs"):
        store = open_store(f"{scheme}://cont/t", {"account_name": "acct", "anon": "true"})
        assert store.uri == f"{scheme}://cont/t"


def test_equal_containers_make_equal_stores() -> None:
    """A container can be named in several ways; those of other accounts are different."""
    named = opened("az://cont/t", {"account_name": "acct"})
    assert named == opened(f"abfss://cont@{HOST}/t", {"account_key": KEY})
    assert hash(named) == hash(opened(f"abfss://cont@{HOST}/t"))
    for uri, account in (("az://cont/t", "other"), ("az://cont/u", "acct"), ("az://c/t", "acct")):
        assert named != opened(uri, {"account_name": account})


def test_all_spellings_share_one_name() -> None:
    """Two names would let two writers publish versions of one table separately."""
    options = {"account_name": "acct", "account_key": KEY}
    stores = [
        open_store("az://cont/dir/t", options),
        open_store(f"abfss://cont@{HOST}/dir/t", {"account_key": KEY}),
        open_store("wasbs://cont@acct.blob.core.windows.net/dir/t", {"account_key": KEY}),
    ]
    assert {store.shared_uri for store in stores} == {"az://acct/cont/dir/t"}
