"""The names of storage options. One dict can have the options of several stores.

A setting has fsspec's name, Lance's name, and the names of Lance's stores. Case does not matter.
The tables map names to settings; each store's module interprets the values. A name that no store
has is refused, because it is probably misspelled: if an endpoint were silently ignored, data would
be written to the wrong location. A name of another store is ignored, so that one dict can serve
tables in several stores.
"""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final

from lance_stream.durations import seconds_in
from lance_stream.errors import InvalidInputError
from lance_stream.storage.objects.object_requests import RequestPolicy

_Names = Mapping[str, tuple[str, ...]]

REQUESTS: Final[_Names] = {
    "allow_http": ("allow_http", "aws_allow_http", "google_allow_http", "azure_allow_http"),
    "connect_timeout": ("connect_timeout",),
    "request_timeout": ("request_timeout", "timeout"),
    "max_retries": ("client_max_retries", "object_store_client_max_retries"),
    "retry_timeout": ("client_retry_timeout", "object_store_client_retry_timeout"),
    "max_concurrency": ("max_concurrency",),
    "any_certificate": ("allow_invalid_certificates",),
    "proxy_url": ("proxy_url",),
    "no effect": (
        # fsspec's caches, which are not used
        "use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache",
        "asynchronous", "version_aware", "default_block_size", "default_cache_type",
        "default_fill_cache",
        # an HTTP client that is not used here
        "http1_only", "http2_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle", "http2_max_frame_size", "pool_idle_timeout",
        "pool_max_idle_per_host", "randomize_addresses", "default_content_type", "user_agent",
        "disable_system_certificates", "read_timeout", "download_retry_count",
    ),
}  # fmt: skip
"""Settings of every object service."""

NAMESPACE_TABLE: Final = "namespace_table"
"""The option by which a store fetches credentials from a Lance namespace; `namespaces` sets it."""

_VENDED: Final[_Names] = {NAMESPACE_TABLE: (NAMESPACE_TABLE,)}

S3: Final[_Names] = {
    **REQUESTS,
    **_VENDED,
    "key": ("key", "username", "aws_access_key_id", "access_key_id"),
    "secret": ("secret", "password", "aws_secret_access_key", "secret_access_key"),
    "token": ("token", "aws_session_token", "aws_token", "session_token"),
    "anonymous": ("anon", "aws_skip_signature", "skip_signature"),
    "region": (
        "region", "aws_region", "region_name", "aws_default_region", "default_region",
    ),
    "endpoint": (
        "endpoint_url", "endpoint", "aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3",
        "endpoint_url_s3",
    ),
    "profile": ("profile", "aws_profile"),
    "use_ssl": ("use_ssl",),
    "virtual_hosted": ("aws_virtual_hosted_style_request", "virtual_hosted_style_request"),
    "requester_pays": ("requester_pays", "aws_request_payer", "request_payer"),
    "unsigned_payload": ("aws_unsigned_payload", "unsigned_payload"),
    "encryption": ("aws_server_side_encryption",),
    "encryption_key_id": ("aws_sse_kms_key_id",),
    "encryption_bucket_key": ("aws_sse_bucket_key_enabled",),
    "customer_key": ("aws_sse_customer_key_base64",),
    "certificates": ("aws_ca_bundle",),
    "conditional_put": ("aws_conditional_put", "conditional_put"),
    "refused": ("client_kwargs", "config_kwargs", "s3_additional_kwargs"),
    "no effect": (
        *REQUESTS["no effect"],
        "cache_regions", "local_expiry_check", "fixed_upload_size", "aws_s3_express", "s3_express",
        "aws_disable_tagging", "disable_tagging", "aws_disable_bulk_delete", "disable_bulk_delete",
        "aws_copy_if_not_exists", "copy_if_not_exists", "aws_checksum_algorithm",
        "checksum_algorithm",
    ),
    "in the URI": ("aws_bucket", "aws_bucket_name", "bucket_name", "bucket"),
    "from the environment": (
        "session", "loop", "aws_imdsv1_fallback", "imdsv1_fallback", "aws_metadata_endpoint",
        "metadata_endpoint", "aws_container_credentials_relative_uri",
        "aws_container_credentials_full_uri", "aws_container_authorization_token_file",
        "aws_web_identity_token_file", "aws_role_arn", "aws_role_session_name",
        "aws_endpoint_url_sts",
    ),
}  # fmt: skip
"""Names of s3fs and of Lance's S3."""

GOOGLE: Final[_Names] = {
    **REQUESTS,
    **_VENDED,
    "request_timeout": (*REQUESTS["request_timeout"], "requests_timeout"),
    "token": ("token", "google_storage_token", "google_bearer_token", "bearer_token"),
    "service_account": (
        "google_service_account", "service_account", "google_service_account_path",
        "service_account_path", "google_application_credentials", "application_credentials",
    ),
    "service_account_key": ("google_service_account_key", "service_account_key"),
    "anonymous": ("anon", "google_skip_signature", "skip_signature"),
    "endpoint": ("endpoint_url", "google_base_url", "base_url"),
    "project": ("project", "google_project"),
    "requester_pays": ("requester_pays",),
    "no effect": (
        *REQUESTS["no effect"],
        # gcsfs: the token's scope, checks after a write, caches, created buckets
        "access", "consistency", "check_connection", "secure_serialize", "cache_timeout",
        "default_location", "block_size",
    ),
    "in the URI": ("google_bucket", "google_bucket_name", "bucket_name", "bucket"),
}  # fmt: skip
"""Names of gcsfs and of Lance's Google Cloud Storage."""

AZURE: Final[_Names] = {
    **REQUESTS,
    **_VENDED,
    "connect_timeout": (*REQUESTS["connect_timeout"], "connection_timeout"),
    "account_name": ("account_name", "azure_storage_account_name"),
    "account_key": (
        "account_key", "azure_storage_account_key", "access_key", "azure_storage_access_key",
        "azure_storage_master_key", "master_key",
    ),
    "connection_string": ("connection_string", "azure_storage_connection_string"),
    "sas_token": ("sas_token", "azure_storage_sas_token", "sas_key", "azure_storage_sas_key"),
    "bearer_token": ("bearer_token", "azure_storage_token", "token"),
    "anonymous": ("anon", "azure_skip_signature", "skip_signature"),
    "client_id": ("client_id", "azure_client_id", "azure_storage_client_id"),
    "client_secret": ("client_secret", "azure_client_secret", "azure_storage_client_secret"),
    "tenant_id": (
        "tenant_id", "azure_tenant_id", "azure_storage_tenant_id", "authority_id",
        "azure_authority_id", "azure_storage_authority_id",
    ),
    "authority_host": (
        "authority_host", "azure_authority_host", "azure_storage_authority_host",
    ),
    "token_file": ("federated_token_file", "azure_federated_token_file"),
    "use_cli": ("use_azure_cli", "azure_use_azure_cli"),
    "msi_object_id": ("object_id", "azure_msi_object_id"),
    "msi_resource_id": ("msi_resource_id", "azure_msi_resource_id"),
    "emulator": ("azure_storage_use_emulator", "use_emulator", "object_store_use_emulator"),
    "use_fabric": ("use_fabric_endpoint", "azure_use_fabric_endpoint"),
    "endpoint": ("endpoint", "azure_storage_endpoint", "azure_endpoint"),
    "account_host": ("account_host",),
    "no effect": (
        *REQUESTS["no effect"],
        "blocksize", "location_mode", "assume_container_exists", "socket_timeout", "loop",
        "disable_tagging", "azure_disable_tagging",
    ),
    "in the URI": ("azure_container_name", "container_name"),
    "from the environment": (
        "credential", "request_session", "msi_endpoint", "azure_msi_endpoint",
        "identity_endpoint", "azure_identity_endpoint",
    ),
}  # fmt: skip
"""Names of adlfs and of Lance's Azure Blob Storage."""

CREDENTIALS: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("key", "secret", "token"),
    "google": ("token",),
    "azure": ("account_key", "sas_token", "bearer_token"),
}
"""Settings that are secret and may expire, by store."""

AZURE_ACCOUNT: Final = (
    "account_name", "account_key", "connection_string", "sas_token", "endpoint", "account_host",
)  # fmt: skip
"""Settings of Azure that belong to one account, and are meaningless in another."""

LOCAL: Final[_Names] = {"durable": ("durable",)}
"""Names for local disks."""

FSSPEC: Final[_Names] = {"fsspec": ("fsspec",)}
"""The option with the arguments of an fsspec filesystem: a dict."""

MANIFEST_STORES: Final[_Names] = {
    "manifest_store": ("manifest_store",),
    "dynamodb_endpoint": ("dynamodb_endpoint",),
}
"""Names for external manifest stores, which apply to tables in any store."""

TRUST: Final[_Names] = {"trusted_locations": ("trusted_locations",)}
"""Names of the options of `storage.trust`, for any store."""

STORES: Final[Mapping[str, _Names]] = {
    "local": LOCAL,
    "s3": S3,
    "google": GOOGLE,
    "azure": AZURE,
    "fsspec": FSSPEC,
    "manifest store": MANIFEST_STORES,
    "trust": TRUST,
}
"""The settings of each store, and their names in lower case."""

TITLES: Final[Mapping[str, str]] = {
    "local": "local disks",
    "s3": "S3",
    "google": "Google Cloud Storage",
    "azure": "Azure Blob Storage",
    "fsspec": "filesystems of fsspec",
    "manifest store": "external manifest stores",
    "trust": "trusted locations",
}
"""What messages and the reference call the stores."""

_TIMES: Final[Mapping[str, str]] = {
    "retry_timeout": "total_seconds",
    "request_timeout": "request_seconds",
    "connect_timeout": "connect_seconds",
}
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def take_settings(options: Mapping[str, Any], store: str) -> dict[str, Any]:
    """Return one store's settings from storage options.

    Args:
        options: The user's options; a value of None means not set.
        store: A key of `STORES`.

    Returns:
        The unchanged values, by the names of settings in the store's table. Options without effect
        are omitted.

    Raises:
        InvalidInputError: A name is unknown, or two names of one setting have different values.
    """
    settings: dict[str, Any] = {}
    name_of: dict[str, str] = {}
    setting_of = {name: setting for setting, names in STORES[store].items() for name in names}
    for name, value in options.items():
        setting = setting_of.get(name.lower())
        if setting is None and not is_option(name.lower()):
            raise InvalidInputError(_unknown(name, store))
        if value is None or setting in (None, "no effect"):
            continue
        if setting == "in the URI":
            raise InvalidInputError(
                f"the storage option {name!r} repeats a part of the table's URI: omit it"
            )
        if setting in settings and not _is_same(settings[setting], value):
            raise InvalidInputError(
                f"the storage options {name_of[setting]!r} and {name!r} are the same setting "
                f"of {TITLES[store]}, but have different values: omit one of them"
            )
        assert setting is not None
        settings.setdefault(setting, value)
        name_of.setdefault(setting, name)
    return settings


def as_options(options: object) -> dict[str, Any]:
    """Return a user's storage options; an empty dict for None.

    Raises:
        InvalidInputError: They are not a mapping of names. The message shows no values, which may
            be secret.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise InvalidInputError(
            "storage_options must be a mapping of names to values, such as "
            f"{{'region': 'eu-west-1'}}, not {type(options).__name__}"
        )
    return dict(options)


def as_flag(name: str, value: Any, also: Sequence[str] = ()) -> bool:
    """Return an option's value as true or false.

    Args:
        name: The option.
        value: Its value.
        also: Other valid values of the option, for the message.
    """
    text = str(value).strip().lower()
    if text not in _YES + _NO:
        choices = ", ".join(["true", *also])
        raise InvalidInputError(
            f"the storage option {name!r} must be {choices} or false, not {text[:80]!r}"
        )
    return text in _YES


def as_seconds(name: str, value: Any) -> float:
    """Return an option's value as a time in seconds: 30, "30s", "500ms", "2 minutes"."""
    parsed = seconds_in(str(value))
    if parsed is None or not parsed[0]:
        raise InvalidInputError(
            f"the storage option {name!r} must be a time such as '30s', '500ms' or a number of "
            f"seconds, not {str(value)[:80]!r}"
        )
    return parsed[0]


def as_whole_number(name: str, value: Any, *, at_least: int) -> int:
    """Return an option's value as a whole number."""
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < at_least:
        raise InvalidInputError(
            f"the storage option {name!r} must be a whole number of at least {at_least}, "
            f"not {text[:80]!r}"
        )
    return int(text)


def as_text(name: str, value: Any) -> str:
    """Return an option's value as text. Errors do not show it, because it may be secret."""
    if not isinstance(value, str) or not value:
        raise InvalidInputError(
            f"the storage option {name!r} must be a non-empty string, not {type(value).__name__}"
        )
    return value


def as_mapping(name: str, value: Any) -> dict[str, Any]:
    """Return an option's value as a dict with string keys."""
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InvalidInputError(
            f"the storage option {name!r} must be a dict whose keys are strings, "
            f"not {type(value).__name__}"
        )
    return dict(value)


def connection_of(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the connection settings among those of `REQUESTS`.

    Returns:
        `max_requests_at_once`, `any_certificate` and `proxy_url`, if they are set.
    """
    connection: dict[str, Any] = {}
    if "max_concurrency" in settings:
        connection["max_requests_at_once"] = as_whole_number(
            "max_concurrency", settings["max_concurrency"], at_least=1
        )
    if "any_certificate" in settings:
        connection["any_certificate"] = as_flag(
            "allow_invalid_certificates", settings["any_certificate"]
        )
    if "proxy_url" in settings:
        connection["proxy_url"] = as_text("proxy_url", settings["proxy_url"])
    return connection


def retry_policy_of(settings: Mapping[str, Any]) -> RequestPolicy:
    """Return the limits of requests from the settings of `REQUESTS`."""
    limits: dict[str, Any] = {}
    if "max_retries" in settings:
        retries = as_whole_number("client_max_retries", settings["max_retries"], at_least=0)
        limits["max_attempts"] = retries + 1
    for setting, attribute in _TIMES.items():
        if setting in settings:
            limits[attribute] = as_seconds(REQUESTS[setting][0], settings[setting])
    return RequestPolicy(**limits)


def is_option(name: str) -> bool:
    """Return whether any store has an option with a name, which must be in lower case."""
    return any(name in names for table in STORES.values() for names in table.values())


def is_credential(name: str, store: str) -> bool:
    """Return whether an option of a store is a credential; `store` is a key of `STORES`."""
    return any(name.lower() in STORES[store][setting] for setting in CREDENTIALS.get(store, ()))


def _is_same(one: Any, other: Any) -> bool:
    return bool(one == other) or (
        isinstance(one, str | int | float)
        and isinstance(other, str | int | float)
        and str(one).lower() == str(other).lower()
    )


def _unknown(name: str, store: str) -> str:
    store_names = _all_names(STORES[store].values())
    all_names = _all_names(names for table in STORES.values() for names in table.values())
    near = get_close_matches(name.lower(), store_names, 1) or get_close_matches(
        name.lower(), all_names, 1
    )
    if store == "manifest store":  # these are parsed first, for every store
        hint = (
            f"did you mean {near[0]!r}?" if near else "docs/operations/stores.md lists all options"
        )
        return f"unknown storage option {name!r}: {hint}"
    hint = f"did you mean {near[0]!r}?" if near else f"the options are {', '.join(store_names)}"
    return f"unknown storage option {name!r} for {TITLES[store]}: {hint}"


def _all_names(groups: Iterable[tuple[str, ...]]) -> list[str]:
    return sorted({name for names in groups for name in names})
