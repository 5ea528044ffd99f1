"""Credentials of Azure: an account key, a SAS token, a bearer token, an Entra identity, or none.

azure-identity fetches the tokens of Microsoft Entra. It is imported when a token is needed.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol
from urllib.parse import parse_qsl

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.credentials import (
    Credentials,
    FixedCredentials,
    RenewedCredentials,
)
from lance_stream.storage.namespaces.vended_credentials import VendedCredentials, vended_options
from lance_stream.storage.objects.object_requests import RefusedError, TryAgainError
from lance_stream.storage.options.names import take_settings


class Login(Protocol):
    """Settings for authorizing requests: hashable, picklable, without secrets in `repr`."""

    def connect(self) -> Credentials:
        """Return the credentials."""
        ...

    def lance_options(self) -> Mapping[str, str]:
        """Return the credentials by pylance's names; empty if pylance has to find them itself."""
        ...

    @property
    def is_bearer(self) -> bool:
        """Whether anyone who can read a request could use its credentials."""
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
    is_bearer = False

    def __post_init__(self) -> None:
        try:
            base64.b64decode(self.key, validate=True)
        except binascii.Error:
            raise InvalidInputError(
                f"the key of the storage account {self.account!r} is not valid base64: it is "
                "truncated, or it is not an account key"
            ) from None

    def connect(self) -> Credentials:
        """Return the key."""
        return FixedCredentials({"access_key": self.key})

    def lance_options(self) -> Mapping[str, str]:
        """Return the key by pylance's name."""
        return {"account_key": self.key}


@dataclass(frozen=True)
class SharedAccess:
    """A shared access signature: the query of the issued URL."""

    query: str = field(repr=False)
    is_bearer = True

    def __post_init__(self) -> None:
        if "sig" not in dict(self._parts()):
            raise InvalidInputError(
                "the shared access signature has no part 'sig=': use everything after the '?' of "
                "the issued URL"
            )

    def connect(self) -> Credentials:
        """Return the signature."""
        return FixedCredentials({"sas_token": self._parts()})

    def lance_options(self) -> Mapping[str, str]:
        """Return the signature by pylance's name."""
        return {"sas_token": self.query}

    def _parts(self) -> list[tuple[str, str]]:
        return parse_qsl(self.query.removeprefix("?"), keep_blank_values=True)


@dataclass(frozen=True)
class BearerToken:
    """A token of Microsoft Entra for https://storage.azure.com, which is not renewed."""

    token: str = field(repr=False)
    is_bearer = True

    def connect(self) -> Credentials:
        """Return the token."""
        return FixedCredentials({"token": self.token})

    def lance_options(self) -> Mapping[str, str]:
        """Return the token by pylance's name."""
        return {"bearer_token": self.token}


@dataclass(frozen=True)
class VendedLogin:
    """Credentials that the namespace of a table vends; see `storage.namespaces`.

    Args:
        account: The storage account.
        table: The table in its namespace.
    """

    account: str
    table: str = field(repr=False)
    is_bearer = True

    def connect(self) -> Credentials:
        """Return the object that fetches and renews them."""
        return VendedCredentials(self.table, self._read)

    def _read(self, options: Mapping[str, Any]) -> Credentials:
        settings = take_settings(options, "azure")
        if "account_key" in settings:
            return SharedKey(self.account, settings["account_key"]).connect()
        if "sas_token" in settings:
            return SharedAccess(settings["sas_token"]).connect()
        if "bearer_token" in settings:
            return BearerToken(settings["bearer_token"]).connect()
        raise RefusedError(f"the namespace vended no credentials of the account {self.account!r}")

    def lance_options(self) -> Mapping[str, str]:
        """Return current credentials by pylance's names."""
        return vended_options(self.table, "azure")


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
        token_file: The file with the token of a workload.
        object_id: The object id of a managed identity, instead of its client id.
        resource_id: The resource id of a managed identity, instead of its client id.
    """

    kind: str = "default"
    tenant: str | None = None
    client: str | None = None
    secret: str | None = field(default=None, repr=False)
    authority: str | None = None
    token_file: str | None = None
    object_id: str | None = None
    resource_id: str | None = None
    is_bearer = True

    def connect(self) -> Credentials:
        """Return the object that fetches and renews tokens.

        Raises:
            InvalidInputError: azure-identity is not installed, or rejects the settings.
        """
        try:
            return AzureCredentials(self)
        except ImportError:
            raise InvalidInputError(
                "credentials of Microsoft Entra require azure-identity: pip install "
                "'lance-stream[azure]'. Alternatively, use an account key or a SAS token"
            ) from None

    def lance_options(self) -> Mapping[str, str]:
        """Return the identity by pylance's names."""
        options = {
            "tenant_id": self.tenant,
            "client_id": self.client,
            "client_secret": self.secret,
            "authority_host": self.authority,
            "federated_token_file": self.token_file,
            "object_id": self.object_id,
            "msi_resource_id": self.resource_id,
            "use_azure_cli": "true" if self.kind == "cli" else None,
        }
        return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class Anonymous:
    """Requests without credentials, for public containers."""

    is_bearer = False

    def connect(self) -> Credentials:
        """Return no credentials."""
        return FixedCredentials({"token": ""})

    def lance_options(self) -> Mapping[str, str]:
        """Return no options."""
        return {}


class AzureCredentials(RenewedCredentials):
    """A bearer token, renewed before it expires.

    Args:
        identity: The identity.

    Raises:
        ImportError: azure-identity is not installed.
        InvalidInputError: azure-identity reports that the settings are incomplete.
    """

    def __init__(self, identity: Identity) -> None:
        from obstore.auth.azure import AzureCredentialProvider

        super().__init__()
        try:
            self._provider = AzureCredentialProvider(_credential(identity))
        except ValueError as error:
            raise InvalidInputError(
                f"the storage options of a Microsoft Entra identity are incomplete: {error}"
            ) from None

    def fetch(self) -> Mapping[str, Any]:
        """Return a new token; without a response, the current one if it is still valid."""
        from azure.core import exceptions

        try:
            return self._provider()
        except exceptions.ClientAuthenticationError as error:
            raise RefusedError(
                f"Microsoft Entra did not issue a token: {str(error)[:1000]}. Set the storage "
                "options account_key, or sas_token, or tenant_id, client_id and client_secret; for "
                "public containers, anon='true'"
            ) from None
        except (exceptions.ServiceRequestError, exceptions.ServiceResponseError) as error:
            current = self._current
            if current is not None and datetime.now(UTC) < current["expires_at"]:
                return current
            raise TryAgainError(f"Microsoft Entra did not respond: {str(error)[:300]}") from None


def _credential(login: Identity) -> Any:
    from azure import identity

    authority: dict[str, Any] = {"authority": login.authority} if login.authority else {}
    if login.kind == "client secret":
        secret = (login.tenant or "", login.client or "", login.secret or "")
        return identity.ClientSecretCredential(*secret, **authority)
    if login.kind == "workload":
        return identity.WorkloadIdentityCredential(
            tenant_id=login.tenant,
            client_id=login.client,
            token_file_path=login.token_file,
            **authority,
        )
    if login.kind == "cli":
        return identity.AzureCliCredential()
    if login.kind == "managed":
        others = {"object_id": login.object_id, "resource_id": login.resource_id}
        other = {name: value for name, value in others.items() if value}
        return identity.ManagedIdentityCredential(
            client_id=login.client, identity_config=other or None
        )
    return identity.DefaultAzureCredential(
        **authority, **({"managed_identity_client_id": login.client} if login.client else {})
    )
