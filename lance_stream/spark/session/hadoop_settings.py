"""Converts Hadoop's settings to storage options, so that a Spark cluster's settings apply here.

A cluster's settings name each store's credentials and endpoint, for Hadoop's own connectors
(`fs.s3a.*`, `fs.azure.*`, `fs.gs.*`). They become the storage options of a location:

    s3, s3a, s3n, s3+ddb    fs.s3a.bucket.BUCKET.X, or else fs.s3a.X
    abfs, abfss, az, wasb   fs.azure.X.ACCOUNT.dfs.core.windows.net, or else fs.azure.X
    gs, gcs                 fs.gs.X, and google.cloud.X as in older connectors

Credential providers that are not supported (an assumed role, a custom class) are left to the
provider chain of the store's library: environment, profile, instance. A warning states this once.

Pure, except for that warning: code with a session reads its settings (`HADOOP_NAMES`).
"""

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from lance_stream.errors import InvalidInputError
from lance_stream.storage.protocols import store_kind_of

_log = logging.getLogger(__name__)

HADOOP_NAMES: Final = (
    r"fs\.s3a\.(bucket\..+\.)?(access\.key|secret\.key|session\.token|endpoint|endpoint\.region"
    r"|path\.style\.access|connection\.ssl\.enabled|aws\.credentials\.provider|auth\.profile\.name"
    r"|encryption\.algorithm|encryption\.key|server-side-encryption-algorithm"
    r"|server-side-encryption\.key|requester\.pays\.enabled)"
    r"|fs\.azure\.(account\.(key|auth\.type|oauth\.provider\.type"
    r"|oauth2\.(client\.id|client\.secret|client\.endpoint|msi\.tenant))(\..+)?|sas\..+)"
    r"|fs\.gs\.(auth\.[a-z.]+|project\.id|storage\.root\.url|requester\.pays\.mode)"
    r"|google\.cloud\.auth\.[a-z.]+"
)
"""The names of all settings that are used; a regular expression for a whole name."""

SECRET_NAMES: Final = (
    "fs.s3a.access.key",
    "fs.s3a.secret.key",
    "fs.s3a.session.token",
    "fs.azure.account.oauth2.client.secret",
    "fs.azure.account.key",
)
"""Settings that may be stored in a credential file, which the settings name (a provider path)."""


class _Target(NamedTuple):
    store: str
    container: str
    host: str


def store_of(location: str) -> str:
    """Return the store whose options apply to a location, by its name in `options.names`."""
    return _target(location).store


def storage_options_of(settings: Mapping[str, str], location: str) -> dict[str, str]:
    """Return the storage options that Hadoop's settings contain for a location.

    Args:
        settings: By Hadoop's names, without the prefix "spark.hadoop."; others are ignored.
        location: A path or URI.

    Returns:
        Under Lance's names for them; empty if there are no settings for the location, and for
        local paths.

    Raises:
        InvalidInputError: The settings require an unknown encryption.
    """
    target = _target(location)
    present = {name: value.strip() for name, value in settings.items() if value and value.strip()}
    read = _BY_STORE.get(target.store)
    return {} if read is None else dict(read(present, target))


_Options: TypeAlias = Iterator[tuple[str, str]]
_Get: TypeAlias = Callable[[str], str]
"""Returns a setting by the store-independent part of its name; empty if there is none."""


# --- S3


class _InBucket:
    """The settings of one bucket: its own, or else the general ones."""

    def __init__(self, settings: Mapping[str, str], bucket: str) -> None:
        self._settings = settings
        self._bucket = bucket

    def __getitem__(self, name: str) -> str:
        of_bucket = self._settings.get(f"fs.s3a.bucket.{self._bucket}.{name}", "")
        return of_bucket or self._settings.get(f"fs.s3a.{name}", "")


_AMAZONS_HOST = re.compile(r"s3[.-]([a-z]{2}(?:-[a-z]+)+-\d+)\.amazonaws\.com(?:\.cn)?")
_ENCRYPTIONS: Final = {"AES256": "AES256", "SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}


def _of_s3(all_settings: Mapping[str, str], target: _Target) -> _Options:
    settings = _InBucket(all_settings, target.container)
    yield from _s3_credentials(settings)
    host = settings["endpoint"]
    region = settings["endpoint.region"]
    if host and "://" not in host:
        is_plain = settings["connection.ssl.enabled"].lower() == "false"
        host = f"{'http' if is_plain else 'https'}://{host}"
    amazons = _AMAZONS_HOST.fullmatch(urlsplit(host).hostname or "")
    if host and urlsplit(host).hostname != "s3.amazonaws.com":  # the default endpoint
        yield "aws_endpoint", host
        if host.startswith("http://"):
            yield "allow_http", "true"
    if region and region != "sdk":  # leaves the region to Amazon's own chain
        yield "aws_region", region
    elif amazons:
        yield "aws_region", amazons[1]
    if settings["path.style.access"].lower() == "true":
        yield "aws_virtual_hosted_style_request", "false"
    algorithm = settings["encryption.algorithm"] or settings["server-side-encryption-algorithm"]
    if algorithm in _ENCRYPTIONS:
        yield "aws_server_side_encryption", _ENCRYPTIONS[algorithm]
        key = settings["encryption.key"] or settings["server-side-encryption.key"]
        if key and algorithm != "AES256":
            yield "aws_sse_kms_key_id", key
    elif algorithm:
        raise InvalidInputError(
            f"fs.s3a.encryption.algorithm is {algorithm!r}, which lance-stream does not support, "
            "so files would be written without it. Supported are AES256, SSE-KMS and DSSE-KMS. To "
            "write without encryption, set storage options with their own credentials"
        )
    if settings["requester.pays.enabled"].lower() == "true":
        yield "aws_request_payer", "true"


_KEYS = ("SimpleAWSCredentialsProvider", "BasicAWSCredentialsProvider")
_KEYS_WITH_TOKEN = ("TemporaryAWSCredentialsProvider",)
_ANONYMOUS = ("AnonymousAWSCredentialsProvider", "AnonymousCredentialsProvider")
_PROFILE = ("ProfileCredentialsProvider", "ProfileAWSCredentialsProvider")
_CHAIN = (
    "EnvironmentVariableCredentialsProvider",
    "SystemPropertiesCredentialsProvider",
    "SystemPropertyCredentialsProvider",
    "IAMInstanceCredentialsProvider",
    "InstanceProfileCredentialsProvider",
    "ContainerCredentialsProvider",
    "EC2ContainerCredentialsProviderWrapper",
    "WebIdentityTokenCredentialsProvider",
    "WebIdentityTokenFileCredentialsProvider",
    "DefaultAWSCredentialsProviderChain",
    "DefaultCredentialsProvider",
)
"""Providers whose sources the store's own library searches as well."""


def _s3_credentials(settings: _InBucket) -> _Options:
    """Yield the credentials of the first provider in the list that has any."""
    key, secret, token = settings["access.key"], settings["secret.key"], settings["session.token"]
    keys = [("aws_access_key_id", key), ("aws_secret_access_key", secret)] if key and secret else []
    listed = settings["aws.credentials.provider"]
    if not listed:
        yield from keys
        if keys and token:
            yield "aws_session_token", token
        return
    library_decides = False
    for name in re.split(r"[\s,]+", listed.strip(" ,")):
        kind = name.rpartition(".")[2]
        if kind in _KEYS and keys:
            yield from keys
            return
        if kind in _KEYS_WITH_TOKEN and keys and token:
            yield from (*keys, ("aws_session_token", token))
            return
        if kind in _PROFILE:
            profile = settings["auth.profile.name"]
            if profile:
                yield "aws_profile", profile
            return
        if kind in _ANONYMOUS and not library_decides:
            yield "aws_skip_signature", "true"
            return
        if kind in _CHAIN:
            library_decides = True
        elif kind not in (*_KEYS, *_KEYS_WITH_TOKEN, *_ANONYMOUS):
            library_decides = True
            _warn(f"{name} of fs.s3a.aws.credentials.provider")


# --- Azure


def _of_azure(settings: Mapping[str, str], target: _Target) -> _Options:
    host = target.host or _only_host(settings)
    account = host.partition(".")[0]
    if not account:
        return
    if not target.host:
        yield "account_name", account

    def get(name: str) -> str:
        """Return a setting of this account, under any of its possible names."""
        for suffix in _account_suffixes(host):
            value = settings.get(f"fs.azure.{name}.{suffix}", "")
            if value:
                return value
        return settings.get(f"fs.azure.{name}", "")

    kind = get("account.auth.type").lower()
    if kind == "oauth":
        yield from _azure_oauth(get)
    elif kind == "custom" or kind.startswith("userboundsas"):
        _warn(f"{kind} of fs.azure.account.auth.type")
    else:
        sas = _azure_sas(settings, get, target.container, host)
        key = "" if kind == "sas" else get("account.key")
        if key:
            yield "account_key", key
        elif sas and kind != "sharedkey":
            yield "sas_token", sas.removeprefix("?")


def _azure_oauth(get: _Get) -> _Options:
    provider = get("account.oauth.provider.type").rpartition(".")[2]
    identity, secret = get("account.oauth2.client.id"), get("account.oauth2.client.secret")
    if provider in ("", "ClientCredsTokenProvider") and identity and secret:
        tenant = urlsplit(get("account.oauth2.client.endpoint")).path.strip("/").partition("/")[0]
        tenant = tenant or get("account.oauth2.msi.tenant")
        if tenant:
            yield "azure_client_id", identity
            yield "azure_client_secret", secret
            yield "azure_tenant_id", tenant
            return
    if provider not in ("MsiTokenProvider", "WorkloadIdentityTokenProvider"):
        _warn(f"{provider or 'OAuth without a client'} of fs.azure.account.oauth.provider.type")


def _azure_sas(settings: Mapping[str, str], get: _Get, container: str, host: str) -> str:
    account = host.partition(".")[0]
    for suffix in ("blob.core.windows.net", "dfs.core.windows.net"):
        value = settings.get(f"fs.azure.sas.{container}.{account}.{suffix}", "")
        if value:
            return value
    return get("sas.fixed.token")


def _account_suffixes(host: str) -> tuple[str, ...]:
    """Return the suffixes of a setting's name for one account, the most specific first."""
    account, _, domain = host.partition(".")
    domain = domain.partition(".")[2] or "core.windows.net"
    return (host, f"{account}.dfs.{domain}", f"{account}.blob.{domain}", account)


def _only_host(settings: Mapping[str, str]) -> str:
    """Return the only account in the settings, for a URI without one; empty if there are more."""
    pattern = re.compile(r"fs\.azure\.account\.[a-z0-9.]*?\.([a-z0-9]{3,24})\.((?:dfs|blob)\..+)")
    hosts = {
        match[1]: f"{match[1]}.{match[2]}" for match in map(pattern.fullmatch, settings) if match
    }
    return next(iter(hosts.values())) if len(hosts) == 1 else ""


# --- Google


def _of_google(settings: Mapping[str, str], _target: _Target) -> _Options:
    def get(name: str) -> str:
        """Return a setting of the connector, under its newer or older name."""
        return settings.get(f"fs.gs.{name}", "") or settings.get(f"google.cloud.{name}", "")

    kind = get("auth.type").upper()
    email, key = get("auth.service.account.email"), get("auth.service.account.private.key")
    if kind == "UNAUTHENTICATED" or get("auth.null.enable").lower() == "true":
        yield "google_skip_signature", "true"
    elif get("auth.service.account.json.keyfile"):
        yield "google_service_account", get("auth.service.account.json.keyfile")
    elif email and key:
        account = {
            "type": "service_account",
            "client_email": email,
            "private_key_id": get("auth.service.account.private.key.id"),
            "private_key": key.replace("\\n", "\n"),
            "token_uri": "https://oauth2.googleapis.com/token",
        }
        yield "google_service_account_key", json.dumps(account)
    elif kind in ("USER_CREDENTIALS", "ACCESS_TOKEN_PROVIDER"):
        _warn(f"{kind} of fs.gs.auth.type")
    elif get("auth.service.account.keyfile"):
        _warn("the P12 file of fs.gs.auth.service.account.keyfile")
    root = get("storage.root.url")
    if root and urlsplit(root).hostname != "storage.googleapis.com":
        yield "google_base_url", root.rstrip("/")
        if root.startswith("http://"):
            yield "allow_http", "true"
    if get("project.id"):
        yield "google_project", get("project.id")
    if get("requester.pays.mode").upper() in ("AUTO", "ENABLED", "CUSTOM"):
        yield "requester_pays", "true"


_BY_STORE: Final[Mapping[str, Callable[[Mapping[str, str], _Target], _Options]]] = {
    "s3": _of_s3,
    "azure": _of_azure,
    "google": _of_google,
}


# --- locations


def _target(location: str) -> _Target:
    scheme, separator, rest = location.partition("://")
    kind = store_kind_of(scheme.lower()) if separator else None
    store = "local" if kind is None or kind.is_machine_local else kind.name
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    container, _, host = authority.partition("@")
    return _Target(store, container, host if store == "azure" else "")


@cache  # so that each is logged once per process
def _warn(what: str) -> None:
    _log.warning(
        "%s is not supported outside of Hadoop and is ignored: the store's library looks for "
        "credentials in the environment, in profiles and on the machine. To override this, set "
        "storage options",
        what,
    )
