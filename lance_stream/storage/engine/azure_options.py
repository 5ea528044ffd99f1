"""Settings of Azure Blob Storage, from URIs, storage options and the environment.

    az://container/path         an option or the environment names the account
    abfs://, abfss://           the same; or with the account, as Spark users write it:
    abfss://container@account.dfs.core.windows.net/path
    wasb://, wasbs://           container@account.blob.core.windows.net/path
    adl://, azure://            the same as az://; other clouds have other hosts than
                                core.windows.net

The URI, the option account_name, a connection string and an endpoint can each name the account;
different names are an error. Settings without an option come from the environment, by adlfs's
names; credentials of the environment are used for its own account only.

The first credentials that are set are used: a connection string, an account key, a SAS token, a
bearer token, a client secret, a workload's token file, the Azure CLI; anon for none; otherwise the
default chain of azure-identity.
"""

import os
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.azure import MAX_AT_ONCE, AzureSettings
from lance_stream.storage.engine.azure_login import (
    Anonymous,
    BearerToken,
    Identity,
    Login,
    SharedAccess,
    SharedKey,
    VendedLogin,
)
from lance_stream.storage.objects.object_store import ObjectStore
from lance_stream.storage.options.names import (
    NAMESPACE_TABLE,
    as_flag,
    as_text,
    as_whole_number,
    retry_policy_of,
    take_settings,
)
from lance_stream.storage.store import Store

_PUBLIC_CLOUD: Final = "core.windows.net"
_EMULATOR_ACCOUNT: Final = "devstoreaccount1"
# The key of every emulator, from its documentation.
_EMULATOR_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
_EMULATOR_ENDPOINT: Final = f"http://127.0.0.1:10000/{_EMULATOR_ACCOUNT}"
_ONELAKE: Final = "onelake.blob.fabric.microsoft.com"

_ENVIRONMENT: Final[Mapping[str, tuple[str, ...]]] = {
    "account_name": ("AZURE_STORAGE_ACCOUNT_NAME",),
    "account_key": ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
    "sas_token": ("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    "connection_string": ("AZURE_STORAGE_CONNECTION_STRING",),
    "client_id": ("AZURE_STORAGE_CLIENT_ID",),
    "client_secret": ("AZURE_STORAGE_CLIENT_SECRET",),
    "tenant_id": ("AZURE_STORAGE_TENANT_ID",),
    "anonymous": ("AZURE_STORAGE_ANON",),
    "endpoint": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "emulator": ("AZURE_STORAGE_USE_EMULATOR",),
}
"""The environment variables for settings: adlfs's names, and Lance's in capitals."""

_CREDENTIALS: Final = (
    "connection_string", "account_key", "sas_token", "bearer_token", "client_id", "client_secret",
    "tenant_id", "token_file", "use_cli", "anonymous", "emulator", "msi_object_id",
    "msi_resource_id", NAMESPACE_TABLE,
)  # fmt: skip


def open_azure(
    scheme: str, rest: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Store:
    """Return the store of a URI.

    Args:
        scheme: The text before "://".
        rest: The text after the ":".
        options: Storage options.
        environment: The environment variables; by default those of the process.

    Raises:
        InvalidInputError: The URI or an option is invalid, or they contradict each other.
    """
    uri = f"{scheme}:{rest}"
    authority, _, path = rest.removeprefix("//").partition("/")
    container, at, host = authority.rpartition("@") if "@" in authority else (authority, "", "")
    root = unquote(path).strip("/")
    if not container or (at and not host) or any(part in ("..", ".") for part in root.split("/")):
        raise InvalidInputError(
            f"{uri!r} is not the URI of a dataset on Azure, such as az://container/path or "
            "abfss://container@account.dfs.core.windows.net/path"
        )
    if "." in container:
        raise InvalidInputError(
            f"{uri!r} has the host {container!r} in place of a container. Write "
            f"abfss://container@{container}/path"
        )
    settings = azure_settings(
        scheme, host, options, os.environ if environment is None else environment
    )
    # The host stays in the store's URI, so that the URI alone identifies the store.
    return ObjectStore(settings, authority, root)


def azure_settings(
    scheme: str, host: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> AzureSettings:
    """Return the settings of an account.

    Args:
        scheme: The scheme of its URIs.
        host: The URI's host, after the "@"; empty if it has none.
        options: Storage options.
        environment: The environment variables.

    Raises:
        InvalidInputError: An option is invalid, or options contradict each other.
    """
    settings = take_settings(options, "azure")
    if "from the environment" in settings:
        raise InvalidInputError(
            "credential objects and endpoints of identities cannot be sent to workers as storage "
            "options: configure them in the environment, or set account_key, sas_token, or "
            "tenant_id, client_id and client_secret"
        )
    from_host = _endpoint_of(host)
    completed = _with_environment(settings, from_host, environment)
    connection = _connection(completed.get("connection_string"))
    emulator = _flag(completed, "emulator") or connection.pop("emulator", "") == "true"
    endpoint = _endpoint(completed, connection, from_host, emulator, environment)
    named = {
        "the URI": from_host[1],
        "account_name": _text(completed, "account_name"),
        "the connection string": connection.get("account"),
        "the endpoint": _account_of(endpoint) if endpoint else None,
    }
    account = _agreed(named) or (_EMULATOR_ACCOUNT if emulator else None)
    if account is None:
        raise InvalidInputError(
            "the storage account is missing: set the storage option account_name, or name the "
            "account in the URI: abfss://container@account.dfs.core.windows.net/path"
        )
    endpoint = _with_account(endpoint or f"https://{account}.blob.{_PUBLIC_CLOUD}", account)
    login = _login(completed, connection, account, emulator)
    _check_is_encrypted(endpoint, login, completed)
    return AzureSettings(
        scheme,
        account,
        endpoint,
        login,
        retry_policy_of(completed),
        as_whole_number(
            "max_concurrency", completed.get("max_concurrency", MAX_AT_ONCE), at_least=1
        ),
        _flag(completed, "any_certificate"),
        _text(completed, "proxy_url"),
    )


def _with_environment(
    settings: Mapping[str, Any],
    from_host: tuple[str | None, str | None],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return the options, completed from the environment."""
    variables = {
        setting: value
        for setting, names in _ENVIRONMENT.items()
        if (value := next((environment[name] for name in names if environment.get(name)), None))
    }
    account = from_host[1] or settings.get("account_name")
    connection = _connection(variables.get("connection_string"))
    their_account = variables.get("account_name") or connection.get("account")
    is_other = bool(account and their_account and account != their_account)
    if any(setting in settings for setting in _CREDENTIALS) or is_other:
        for setting in (*_CREDENTIALS, "endpoint"):
            variables.pop(setting, None)
    if "connection_string" in settings or account:
        variables.pop("account_name", None)
    if from_host[0] or "endpoint" in settings or "account_host" in settings:
        variables.pop("endpoint", None)
    return {**variables, **settings}


def _connection(text: Any) -> dict[str, str]:
    """Parse a connection string: account, key, sas, endpoint, emulator."""
    if text is None:
        return {}
    parts = [part.partition("=") for part in str(text).split(";") if part.strip()]
    values = {name.strip().lower(): value.strip() for name, _, value in parts}
    if not all(equals for _, equals, _ in parts) or not values:
        raise InvalidInputError(
            "the storage option connection_string is invalid: expected "
            "'DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...'"
        )
    account = values.get("accountname")
    endpoint = values.get("blobendpoint")
    if endpoint is None and account and "endpointsuffix" in values:
        protocol = values.get("defaultendpointsprotocol", "https")
        endpoint = f"{protocol}://{account}.blob.{values['endpointsuffix']}"
    parsed = {
        "account": account,
        "key": values.get("accountkey"),
        "sas": values.get("sharedaccesssignature"),
        "endpoint": endpoint,
        "emulator": values.get("usedevelopmentstorage"),
    }
    return {name: value for name, value in parsed.items() if value}


def _endpoint_of(host: str) -> tuple[str | None, str | None]:
    """Return the endpoint and the account that a URI's host names."""
    if not host:
        return None, None
    account, dot, _ = host.partition(".")
    if not dot:
        # Some users write container@account.
        return None, account
    return f"https://{_blob_host(host)}", account


def _blob_host(host: str) -> str:
    """Return the host of the blob interface for a host of ADLS Gen2."""
    return host.replace(".dfs.", ".blob.", 1)


def _endpoint(
    settings: Mapping[str, Any],
    connection: Mapping[str, str],
    from_host: tuple[str | None, str | None],
    emulator: bool,
    environment: Mapping[str, str],
) -> str | None:
    """Return the configured endpoint; None for the account's default."""
    text = (
        _text(settings, "endpoint") or _text(settings, "account_host") or connection.get("endpoint")
    )
    if text is None and emulator:
        text = environment.get("AZURITE_BLOB_STORAGE_URL") or _EMULATOR_ENDPOINT
    if text is None and _flag(settings, "use_fabric"):
        text = _ONELAKE
    if text is None:
        return from_host[0]
    url = urlsplit(text if "://" in text else f"https://{text}")
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.username:
        raise InvalidInputError(
            "the endpoint of Azure Blob Storage must be a URL such as "
            "https://account.blob.core.windows.net, without a query: set a SAS token as the "
            "storage option sas_token"
        )
    return f"{url.scheme}://{_blob_host(url.netloc)}{url.path.rstrip('/')}"


def _account_of(endpoint: str) -> str | None:
    """Return the account that an endpoint names; None if it names none."""
    url = urlsplit(endpoint)
    if url.path:
        return url.path.split("/")[1]
    account, _, domain = (url.hostname or "").partition(".")
    return account if ".blob." in f".{domain}" else None


def _with_account(endpoint: str, account: str) -> str:
    """Return an endpoint, with the account in its path if it is not in the host."""
    url = urlsplit(endpoint)
    host = url.hostname or ""
    by_path = host == "localhost" or host.replace(".", "").isdecimal() or ":" in host
    return f"{endpoint}/{account}" if by_path and not url.path else endpoint


def _agreed(named: Mapping[str, str | None]) -> str | None:
    """Return the account that the settings name; None if they name none."""
    accounts = {setting: account for setting, account in named.items() if account}
    if len(set(accounts.values())) > 1:
        names = ", ".join(f"{setting} names {account!r}" for setting, account in accounts.items())
        raise InvalidInputError(
            f"the settings name different storage accounts: {names}. Omit all but one"
        )
    return next(iter(accounts.values()), None)


def _login(
    settings: Mapping[str, Any], connection: Mapping[str, str], account: str, emulator: bool
) -> Login:
    key = connection.get("key") or _text(settings, "account_key")
    if key:
        return SharedKey(account, key)
    sas = connection.get("sas") or _text(settings, "sas_token")
    if sas:
        return SharedAccess(sas)
    if token := _text(settings, "bearer_token"):
        return BearerToken(token)
    if _flag(settings, "anonymous"):
        return Anonymous()
    if table := _text(settings, NAMESPACE_TABLE):
        return VendedLogin(account, table)
    if emulator:
        return SharedKey(account, _EMULATOR_KEY)
    return _identity(settings)


def _identity(settings: Mapping[str, Any]) -> Identity:
    tenant, client, secret = (
        _text(settings, setting) for setting in ("tenant_id", "client_id", "client_secret")
    )
    authority = _text(settings, "authority_host")
    if secret:
        if not (tenant and client):
            raise InvalidInputError(
                "the storage option client_secret requires tenant_id and client_id"
            )
        return Identity("client secret", tenant, client, secret, authority)
    if token_file := _text(settings, "token_file"):
        return Identity("workload", tenant, client, None, authority, token_file)
    if _flag(settings, "use_cli"):
        return Identity("cli")
    object_id, resource_id = _text(settings, "msi_object_id"), _text(settings, "msi_resource_id")
    if object_id or resource_id:
        return Identity("managed", client=client, object_id=object_id, resource_id=resource_id)
    return Identity("default", tenant, client, None, authority)


def _check_is_encrypted(endpoint: str, login: Login, settings: Mapping[str, Any]) -> None:
    """Refuse to send credentials that could be intercepted and used.

    Raises:
        InvalidInputError: The endpoint is plain HTTP on another machine, each request contains the
            credentials themselves, and no option allows that.
    """
    url = urlsplit(endpoint)
    is_local = url.hostname in ("localhost", "127.0.0.1", "::1")
    is_exposed = url.scheme == "http" and login.is_bearer and not is_local
    if is_exposed and not _flag(settings, "allow_http"):
        raise InvalidInputError(
            f"{endpoint} is plain HTTP, so the token in each request could be intercepted. Use "
            "https://, or set the storage option allow_http"
        )


def _text(settings: Mapping[str, Any], setting: str) -> str | None:
    value = settings.get(setting)
    return None if value is None else as_text(setting, value)


def _flag(settings: Mapping[str, Any], setting: str) -> bool:
    return as_flag(setting, settings.get(setting, "false"))
