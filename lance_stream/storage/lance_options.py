"""Where a store is, and how it is reached, in the words of the reference's own library.

For what the reference does on our behalf. Its object stores and obstore are the same library, so
most settings have the same names and values; credentials are those that were given. If none were
given, the reference looks for them itself, where our libraries look, too: the environment, the
machine.
"""

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.store import Store


class LancePlace(NamedTuple):
    """A table's directory for the reference.

    Attributes:
        uri: A path or URI.
        storage_options: Settings, which may be secret.
    """

    uri: str
    storage_options: dict[str, str]


def in_lances_words(store: Store) -> LancePlace:
    """Return how the reference reaches the directory of a store.

    Raises:
        UnsupportedFeatureError: It cannot: the store is in this process's memory, or on a
            filesystem of fsspec.
        InvalidInputError: A setting has no counterpart there.
    """
    if isinstance(store, LocalStore):
        return LancePlace(store.root, {})
    from lance_stream.storage.objects.object_store import ObjectStore

    if not isinstance(store, ObjectStore):
        raise UnsupportedFeatureError(
            f"pylance cannot read {store.uri}, so it cannot make files of indices there. It reads "
            "local disks, S3, Google Cloud Storage and Azure: move the table to one of them"
        )
    from lance_stream.storage.engine.service import Service

    settings = store.settings
    assert isinstance(settings, Service)
    client = dict(settings.client_options())
    for option in ("root_certificate", "default_headers"):
        if option in client:
            raise InvalidInputError(_UNKNOWN[option])
    said = {
        **{name: client[name] for name in _CLIENT if name in client},
        **settings.config(store.container),
        **_identity(settings),
    }
    return LancePlace(store.uri, {name: _text(value) for name, value in said.items()})


_CLIENT = ("allow_http", "allow_invalid_certificates", "proxy_url")
_UNKNOWN = {
    "root_certificate": (
        "pylance, which makes the files of indices, cannot be given a file of certificates: add "
        "the authority to those of the machine (SSL_CERT_FILE)"
    ),
    "default_headers": (
        "pylance, which makes the files of indices, cannot name a project that pays for its "
        "requests: leave the storage option requester_pays out"
    ),
}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _identity(settings: Any) -> Mapping[str, str]:
    """Return what proves who asks; nothing if the reference has to look for it itself."""
    from lance_stream.storage.engine.azure import AzureSettings
    from lance_stream.storage.engine.google import GoogleSettings

    if isinstance(settings, GoogleSettings):
        name = _OF_GOOGLE.get(settings.login.kind)
        return {} if name is None else {name: settings.login.value}
    if isinstance(settings, AzureSettings):
        return _of_azure(settings.login)
    if settings.anonymous or (settings.key is None and settings.profile is None):
        return {}
    credentials = settings.credentials()
    asyncio.run(credentials.ready())
    found = credentials()
    names = ("access_key_id", "secret_access_key", "token")
    return {name: found[name] for name in names if found.get(name)}


_OF_GOOGLE = {
    "token": "google_storage_token",
    "file": "google_service_account",
    "key": "google_service_account_key",
}


def _of_azure(login: object) -> Mapping[str, str]:
    from lance_stream.storage.engine.azure_login import (
        BearerToken,
        Identity,
        SharedAccess,
        SharedKey,
    )

    if isinstance(login, SharedKey):
        return {"account_key": login.key}
    if isinstance(login, SharedAccess):
        return {"sas_token": login.query}
    if isinstance(login, BearerToken):
        return {"bearer_token": login.token}
    if not isinstance(login, Identity):
        return {}
    given = {
        "tenant_id": login.tenant,
        "client_id": login.client,
        "client_secret": login.secret,
        "authority_host": login.authority,
        "federated_token_file": login.token_file,
        "object_id": login.object_id,
        "msi_resource_id": login.resource_id,
        "use_azure_cli": "true" if login.kind == "cli" else None,
    }
    return {name: value for name, value in given.items() if value is not None}
