"""Settings of Azure Blob Storage, from URIs, storage options and the environment.

    az://container/path         the account is given by an option, or by the environment
    abfs://, abfss://           the same; or with the account, as Spark users write it:
    abfss://container@account.dfs.core.windows.net/path
    wasb://, wasbs://           container@account.blob.core.windows.net/path
    adl://, azure://            as az://; other clouds' hosts in place of core.windows.net

An account may be named by the URI, by the option account_name, by a connection string and by an
endpoint; it is refused if they differ. Settings without an option come from the environment, by
adlfs's names; its credentials are used for its own account only.

Credentials, the first that is given: a connection string, an account key, a SAS token, a bearer
token, a client's secret, a workload's token file, the Azure CLI; anon for none; otherwise the chain
of azure-identity.
"""

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.answers import Dialect
from lance_stream.storage.engine.connection import connection_options
from lance_stream.storage.engine.credentials import Credentials, GivenCredentials
from lance_stream.storage.extras import brought_by
from lance_stream.storage.object_requests import ObjectRequests, Patience
from lance_stream.storage.object_store import ObjectStore
from lance_stream.storage.options.names import (
    as_count,
    as_flag,
    as_text,
    patience_of,
    take_settings,
)
from lance_stream.storage.store import Store

_MOST_AT_ONCE: Final = 64
_PUBLIC_CLOUD: Final = "core.windows.net"
_EMULATOR_ACCOUNT: Final = "devstoreaccount1"
# The emulator's key is the same everywhere, and is in its documentation.
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
"""The environment variables for settings without an option: adlfs's, and Lance's in capitals."""

_WHO: Final = (
    "connection_string", "account_key", "sas_token", "bearer_token", "client_id", "client_secret",
    "tenant_id", "token_file", "use_cli", "anonymous", "emulator", "msi_object_id",
    "msi_resource_id",
)  # fmt: skip


class Login(Protocol):
    """Whose requests they are, as settings: hashable, picklable, nothing secret in its `repr`."""

    def connect(self) -> Credentials:
        """Return what proves it."""
        ...

    @property
    def travels_openly(self) -> bool:
        """Whether who reads a request could use what proves it."""
        ...


@dataclass(frozen=True)
class SharedKey:
    """The key of a storage account, which signs each request.

    Args:
        account: The account.
        key: Its key, in base64.
    """

    account: str
    key: str = field(repr=False)
    travels_openly = False

    def __post_init__(self) -> None:
        try:
            base64.b64decode(self.key, validate=True)
        except binascii.Error:
            raise InvalidInputError(
                f"the account key of the storage account {self.account!r} is not base64: it may "
                "be cut short, or be something else"
            ) from None

    def connect(self) -> Credentials:
        """Return the key."""
        return GivenCredentials({"access_key": self.key})


@dataclass(frozen=True)
class SharedAccess:
    """A shared access signature: what follows the "?" of the URL that was handed out."""

    query: str = field(repr=False)
    travels_openly = True

    def __post_init__(self) -> None:
        if "sig" not in dict(self._parts()):
            raise InvalidInputError(
                "the shared access signature has no part 'sig=': give what stands behind the '?' "
                "of the URL that was handed out, all of it"
            )

    def connect(self) -> Credentials:
        """Return the signature."""
        return GivenCredentials({"sas_token": self._parts()})

    def _parts(self) -> list[tuple[str, str]]:
        return parse_qsl(self.query.removeprefix("?"), keep_blank_values=True)


@dataclass(frozen=True)
class BearerToken:
    """A token of Microsoft Entra for https://storage.azure.com, which is not renewed."""

    token: str = field(repr=False)
    travels_openly = True

    def connect(self) -> Credentials:
        """Return the token."""
        return GivenCredentials({"token": self.token})


@dataclass(frozen=True)
class Identity:
    """An identity of Microsoft Entra, whose tokens azure-identity fetches.

    Args:
        kind: "default" (the chain of azure-identity: environment, workload, managed identity,
            developer tools), "client secret", "workload", "managed" or "cli".
        tenant: The tenant's id.
        client: The client's id: of the application, or of the managed identity.
        secret: The client's secret.
        authority: The host that issues tokens, if it is not login.microsoftonline.com.
        token_file: The file with a workload's own token.
        object_id: Of a managed identity, instead of its client's id.
        resource_id: Of a managed identity, instead of its client's id.
    """

    kind: str = "default"
    tenant: str | None = None
    client: str | None = None
    secret: str | None = field(default=None, repr=False)
    authority: str | None = None
    token_file: str | None = None
    object_id: str | None = None
    resource_id: str | None = None
    travels_openly = True

    def connect(self) -> Credentials:
        """Return the object that fetches and renews tokens.

        Raises:
            InvalidInputError: azure-identity is not installed, or rejects the settings.
        """
        try:
            from lance_stream.storage.engine.azure_login import AzureCredentials
        except ImportError:
            raise InvalidInputError(
                "credentials of Microsoft Entra need azure-identity, which comes with "
                "pip install 'lance-stream[azure]'. Or give an account key or a SAS token"
            ) from None
        return AzureCredentials(self)


@dataclass(frozen=True)
class Nobody:
    """Requests that say nothing of their caller, for public containers."""

    travels_openly = False

    def connect(self) -> Credentials:
        """Return nothing that says anything."""
        return GivenCredentials({"token": ""})


@dataclass(frozen=True)
class AzureSettings:
    """How an account is reached.

    Attributes:
        scheme: The scheme of its URIs.
        account: Its name.
        endpoint: The service's URL, without "/" at the end.
        login: The credentials.
        patience: How long and how often requests are tried.
        max_requests_at_once: Maximum number of concurrent requests of a process.
        any_certificate: Whether the service's certificate is not verified.
        proxy_url: A proxy; None for the environment's.
    """

    scheme: str
    account: str
    endpoint: str
    login: Login
    patience: Patience = field(default_factory=Patience)
    max_requests_at_once: int = _MOST_AT_ONCE
    any_certificate: bool = False
    proxy_url: str | None = field(default=None, repr=False)

    knows_suffixes = False

    @property
    def dialect(self) -> Dialect:
        """What it says in words of its own."""
        return _DIALECT

    @property
    def resumes_listings(self) -> bool:
        """Whether a listing may begin behind a name: older versions of the service know no such."""
        return False

    def connect(self, container: str) -> ObjectRequests:
        """Return what sends requests to a container; see `ServiceSettings.connect`."""
        with brought_by("azure", "tables on Azure"):
            from lance_stream.storage.engine.requests import EngineRequests
        return EngineRequests(self, _name_of(container))

    def is_sure_to_create_once(self) -> bool | None:
        """Whether the service keeps conditions."""
        return True

    def client_options(self) -> Mapping[str, Any]:
        """Return how it is connected to, in obstore's words."""
        return connection_options(self.endpoint, self.any_certificate, self.proxy_url)

    def credentials(self) -> Credentials:
        """Return what proves who asks."""
        return self.login.connect()

    def open(self, container: str, **how: Any) -> Any:
        """Return obstore's own store of a container."""
        from obstore.store import AzureStore

        config: Any = {
            "account_name": self.account,
            "endpoint": self.endpoint,
            "use_emulator": False,
            "use_fabric_endpoint": False,
            "skip_signature": isinstance(self.login, Nobody),
            "disable_tagging": True,
        }
        return AzureStore(container, config=config, **how)

    def where(self, container: str) -> str:
        """Return in words who is asked."""
        return f"the container {_name_of(container)!r} of Azure Blob Storage at {self.endpoint}"


def open_azure(
    scheme: str, rest: str, options: Mapping[str, Any], environment: Mapping[str, str] | None = None
) -> Store:
    """Return the store of a URI.

    Args:
        scheme: The text before "://".
        rest: The text after the ":".
        options: Storage options.
        environment: Settings without an option; the process's environment by default.

    Raises:
        InvalidInputError: The URI or an option is invalid, or they contradict each other.
    """
    uri = f"{scheme}:{rest}"
    place, _, path = rest.removeprefix("//").partition("/")
    container, at, host = place.rpartition("@") if "@" in place else (place, "", "")
    root = unquote(path).strip("/")
    if not container or (at and not host) or any(part in ("..", ".") for part in root.split("/")):
        raise InvalidInputError(
            f"{uri!r} is not the URI of a dataset on Azure: az://container/path, or "
            "abfss://container@account.dfs.core.windows.net/path"
        )
    if "." in container:
        raise InvalidInputError(
            f"{uri!r} names the host {container!r} where a container stands: "
            f"abfss://container@{container}/path"
        )
    settings = azure_settings(
        scheme, host, options, os.environ if environment is None else environment
    )
    # The host stays in the store's URI, so that the URI alone leads back to it.
    return ObjectStore(settings, place, root)


def azure_settings(
    scheme: str, host: str, options: Mapping[str, Any], environment: Mapping[str, str]
) -> AzureSettings:
    """Return how an account is reached.

    Args:
        scheme: The scheme of its URIs.
        host: The URI's host, after the "@"; empty if it has none.
        options: Storage options.
        environment: Settings without an option.

    Raises:
        InvalidInputError: An option is invalid, or they contradict each other.
    """
    given = take_settings(options, "azure")
    if "from the environment" in given:
        raise InvalidInputError(
            "objects and endpoints of identities cannot be sent to workers as storage options: "
            "leave them to the environment, or give account_key, sas_token, or tenant_id, "
            "client_id and client_secret"
        )
    from_host = _endpoint_of(host)
    taken = _with_environment(given, from_host, environment)
    connection = _connection(taken.get("connection_string"))
    emulator = _flag(taken, "emulator") or connection.pop("emulator", "") == "true"
    endpoint = _endpoint(taken, connection, from_host, emulator, environment)
    named = {
        "the URI": from_host[1],
        "account_name": _text(taken, "account_name"),
        "the connection string": connection.get("account"),
        "the endpoint": _account_of(endpoint) if endpoint else None,
    }
    account = _agreed(named) or (_EMULATOR_ACCOUNT if emulator else None)
    if account is None:
        raise InvalidInputError(
            "no storage account is named: give the storage option account_name, or name it in the "
            "URI: abfss://container@account.dfs.core.windows.net/path"
        )
    endpoint = _with_account(endpoint or f"https://{account}.blob.{_PUBLIC_CLOUD}", account)
    login = _login(taken, connection, account, emulator)
    _check_openness(endpoint, login, taken)
    return AzureSettings(
        scheme,
        account,
        endpoint,
        login,
        patience_of(taken),
        as_count("max_concurrency", taken.get("max_concurrency", _MOST_AT_ONCE), at_least=1),
        _flag(taken, "any_certificate"),
        _text(taken, "proxy_url"),
    )


def _with_environment(
    given: Mapping[str, Any],
    from_host: tuple[str | None, str | None],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """Return options, completed from the environment."""
    found = {
        setting: value
        for setting, names in _ENVIRONMENT.items()
        if (value := next((environment[each] for each in names if environment.get(each)), None))
    }
    account = from_host[1] or given.get("account_name")
    theirs = found.get("account_name") or _connection(found.get("connection_string")).get("account")
    is_other = bool(account and theirs and account != theirs)
    if any(each in given for each in _WHO) or is_other:
        for each in (*_WHO, "endpoint"):
            found.pop(each, None)
    if "connection_string" in given or account:
        found.pop("account_name", None)
    if from_host[0] or "endpoint" in given or "account_host" in given:
        found.pop("endpoint", None)
    return {**found, **given}


def _connection(text: Any) -> dict[str, str]:
    """Parse a connection string: account, key, sas, endpoint, emulator."""
    if text is None:
        return {}
    parts = [each.partition("=") for each in str(text).split(";") if each.strip()]
    values = {name.strip().lower(): value.strip() for name, _, value in parts}
    if not all(equals for _, equals, _ in parts) or not values:
        raise InvalidInputError(
            "the storage option connection_string is not one: it reads "
            "'DefaultEndpointsProtocol=https;AccountName=...;AccountKey=...'"
        )
    account = values.get("accountname")
    endpoint = values.get("blobendpoint")
    if endpoint is None and account and "endpointsuffix" in values:
        protocol = values.get("defaultendpointsprotocol", "https")
        endpoint = f"{protocol}://{account}.blob.{values['endpointsuffix']}"
    found = {
        "account": account,
        "key": values.get("accountkey"),
        "sas": values.get("sharedaccesssignature"),
        "endpoint": endpoint,
        "emulator": values.get("usedevelopmentstorage"),
    }
    return {name: value for name, value in found.items() if value}


def _endpoint_of(host: str) -> tuple[str | None, str | None]:
    """Return the endpoint and the account that a URI's host names."""
    if not host:
        return None, None
    account, dot, _ = host.partition(".")
    if not dot:
        # As some write it: container@account
        return None, account
    return f"https://{_blob_host(host)}", account


def _blob_host(host: str) -> str:
    """Return the host with the blob interface for one of ADLS Gen2."""
    return host.replace(".dfs.", ".blob.", 1)


def _endpoint(
    taken: Mapping[str, Any],
    connection: Mapping[str, str],
    from_host: tuple[str | None, str | None],
    emulator: bool,
    environment: Mapping[str, str],
) -> str | None:
    """Return the endpoint that is named; None for the account's default one."""
    text = _text(taken, "endpoint") or _text(taken, "account_host") or connection.get("endpoint")
    if text is None and emulator:
        text = environment.get("AZURITE_BLOB_STORAGE_URL") or _EMULATOR_ENDPOINT
    if text is None and _flag(taken, "use_fabric"):
        text = _ONELAKE
    if text is None:
        return from_host[0]
    url = urlsplit(text if "://" in text else f"https://{text}")
    if url.scheme not in ("http", "https") or not url.hostname or url.query or url.username:
        raise InvalidInputError(
            "the endpoint of Azure Blob Storage is a URL such as "
            "https://account.blob.core.windows.net, without a query: a SAS token is the storage "
            "option sas_token"
        )
    return f"{url.scheme}://{_blob_host(url.netloc)}{url.path.rstrip('/')}"


def _account_of(endpoint: str) -> str | None:
    """Return the account that an endpoint names, if it does."""
    url = urlsplit(endpoint)
    if url.path:
        return url.path.split("/")[1]
    account, _, domain = (url.hostname or "").partition(".")
    return account if ".blob." in f".{domain}" else None


def _with_account(endpoint: str, account: str) -> str:
    """Return an endpoint, with the account in its path if the host is not the account's."""
    url = urlsplit(endpoint)
    host = url.hostname or ""
    by_path = host == "localhost" or host.replace(".", "").isdecimal() or ":" in host
    return f"{endpoint}/{account}" if by_path and not url.path else endpoint


def _agreed(named: Mapping[str, str | None]) -> str | None:
    """Return the account, if all settings that name one agree."""
    accounts = {who: account for who, account in named.items() if account}
    if len(set(accounts.values())) > 1:
        told = ", ".join(f"{who} names {account!r}" for who, account in accounts.items())
        raise InvalidInputError(
            f"the storage account is named twice, and differently: {told}. Leave all but one out"
        )
    return next(iter(accounts.values()), None)


def _login(
    taken: Mapping[str, Any], connection: Mapping[str, str], account: str, emulator: bool
) -> Login:
    key = connection.get("key") or _text(taken, "account_key")
    if key:
        return SharedKey(account, key)
    sas = connection.get("sas") or _text(taken, "sas_token")
    if sas:
        return SharedAccess(sas)
    if token := _text(taken, "bearer_token"):
        return BearerToken(token)
    if _flag(taken, "anonymous"):
        return Nobody()
    if emulator:
        return SharedKey(account, _EMULATOR_KEY)
    return _identity(taken)


def _identity(taken: Mapping[str, Any]) -> Identity:
    tenant, client, secret = (
        _text(taken, each) for each in ("tenant_id", "client_id", "client_secret")
    )
    authority = _text(taken, "authority_host")
    if secret:
        if not (tenant and client):
            raise InvalidInputError(
                "the storage option client_secret needs tenant_id and client_id beside it"
            )
        return Identity("client secret", tenant, client, secret, authority)
    if token_file := _text(taken, "token_file"):
        return Identity("workload", tenant, client, None, authority, token_file)
    if _flag(taken, "use_cli"):
        return Identity("cli")
    object_id, resource_id = _text(taken, "msi_object_id"), _text(taken, "msi_resource_id")
    if object_id or resource_id:
        return Identity("managed", client=client, object_id=object_id, resource_id=resource_id)
    return Identity("default", tenant, client, None, authority)


def _check_openness(endpoint: str, login: Login, taken: Mapping[str, Any]) -> None:
    """Refuse to send credentials that could be intercepted and used.

    Raises:
        InvalidInputError: The endpoint is plain HTTP on another machine, the credentials are sent
            with each request as they are, and no option allows that.
    """
    url = urlsplit(endpoint)
    is_near = url.hostname in ("localhost", "127.0.0.1", "::1")
    is_seen = url.scheme == "http" and login.travels_openly and not is_near
    if is_seen and not _flag(taken, "allow_http"):
        raise InvalidInputError(
            f"{endpoint} is plain HTTP, and everybody on the way could read the token that goes "
            "with each request. Use https://, or set the storage option allow_http"
        )


def _name_of(place: str) -> str:
    """Return the container's name from its form in a URI: container@host."""
    return place.partition("@")[0]


def _text(taken: Mapping[str, Any], setting: str) -> str | None:
    value = taken.get(setting)
    return None if value is None else as_text(setting, value)


def _flag(taken: Mapping[str, Any], setting: str) -> bool:
    return as_flag(setting, taken.get(setting, "false"))


_LEASED: Final = "another program holds a lease on the blob: let it end, or break it"
_DIALECT: Final = Dialect(
    taken=frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"}),
    conflicts_pass=False,
    later=frozenset(
        {"PendingCopyOperation", "Md5Mismatch", "Crc64Mismatch", "OperationTimedOut", "ServerBusy"}
    ),
    no_bucket=frozenset(
        {
            "ContainerNotFound",
            "FilesystemNotFound",
            "ContainerBeingDeleted",
            "ContainerDisabled",
            "ResourceNotFound",
        }
    ),
    ways_out={
        "404": "there is no such container. Create it, or correct the URI",
        "ResourceNotFound": (
            "there is no such container, or nobody may read it without credentials"
        ),
        "AuthenticationFailed": (
            "the credentials are wrong or have ended, or this machine's clock is. Correct "
            "account_key or sas_token"
        ),
        "KeyBasedAuthenticationNotPermitted": (
            "the account takes no account keys. Give tenant_id, client_id and client_secret, or "
            "none of them for the identity of this machine"
        ),
        "AuthorizationPermissionMismatch": (
            "the identity may not do this. Give it the role Storage Blob Data Contributor"
        ),
        "AuthorizationFailure": (
            "the credentials are wrong, or the account's network rules keep this machine out"
        ),
        "NoAuthenticationInformation": (
            "nobody may do this without credentials. Give account_key, sas_token or an identity"
        ),
        "PublicAccessNotPermitted": (
            "the account lets nobody in without credentials. Give account_key, sas_token or an "
            "identity"
        ),
        "BlobImmutableDueToPolicy": "a policy of the container forbids to change or delete blobs",
        "InvalidResourceName": (
            "the service allows no such name. A container's has 3 to 63 lower-case letters, digits "
            "and hyphens"
        ),
        "409": (
            "a lease, a snapshot or a policy keeps the blob as it is: end the lease, delete the "
            "snapshots"
        ),
        "InvalidBlobType": "a page or append blob of that name is there: delete it",
        "InvalidBlobOrBlock": (
            "another program left blocks of that name, whose ids have another length: they go "
            "after a week, or with a small blob that is written there"
        ),
        **dict.fromkeys(
            ("LeaseIdMissing", "LeaseIdMismatchWithBlobOperation", "LeaseLost"), _LEASED
        ),
        **dict.fromkeys(
            ("401", "403"),
            "the credentials do not allow it. Check account_key, sas_token or the identity",
        ),
        "301": "correct the storage option endpoint",
    },
)

OPEN_AZURE: Final[Mapping[str, Callable[[str, Mapping[str, Any]], Store]]] = {
    scheme: partial(open_azure, scheme)
    for scheme in ("az", "abfs", "abfss", "azure", "adl", "wasb", "wasbs")
}
"""What opens each kind of URI; given what follows the ":", and the options."""
