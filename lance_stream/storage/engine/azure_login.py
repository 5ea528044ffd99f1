"""Tokens of Microsoft Entra for Azure Blob Storage, fetched and renewed by azure-identity."""

import time
from collections.abc import Mapping
from typing import Any, Final

from azure import identity
from azure.core import exceptions

from lance_stream.errors import InvalidInputError
from lance_stream.storage.engine.azure_identities import Identity
from lance_stream.storage.engine.credentials import RenewedCredentials
from lance_stream.storage.object_requests import RefusedError, TryAgainError

_SCOPE: Final = "https://storage.azure.com/.default"
_RENEWED_BEFORE_SECONDS: Final = 300


class AzureCredentials(RenewedCredentials):
    """A bearer token, renewed before it ends.

    Args:
        who: Whose.

    Raises:
        InvalidInputError: azure-identity finds the settings wrong.
    """

    def __init__(self, who: Identity) -> None:
        super().__init__()
        self._ends = 0.0
        try:
            self._credential = _credential(who)
        except ValueError as error:
            raise InvalidInputError(
                f"azure-identity finds the credentials incomplete: {error}"
            ) from None

    def is_good(self) -> bool:
        """Return whether the token is good for another while."""
        return time.time() < self._ends - _RENEWED_BEFORE_SECONDS

    def fetch(self) -> Mapping[str, Any]:
        """Return a new token; the old one, if no answer comes and it is still valid."""
        try:
            token = self._credential.get_token(_SCOPE)
        except exceptions.ClientAuthenticationError as error:
            raise RefusedError(
                f"no token could be had from Microsoft Entra: {str(error)[:1000]}. Give an account "
                "key (account_key), a SAS token (sas_token), or tenant_id, client_id and "
                "client_secret; anon='true' for public containers"
            ) from None
        except (exceptions.ServiceRequestError, exceptions.ServiceResponseError) as error:
            if self._said is not None and time.time() < self._ends:
                return self._said
            raise TryAgainError(f"Microsoft Entra gave no token: {str(error)[:300]}") from None
        self._ends = float(token.expires_on)
        return {"token": token.token}


def _credential(who: Identity) -> Any:
    authority: dict[str, Any] = {"authority": who.authority} if who.authority else {}
    if who.kind == "client secret":
        secret = (who.tenant or "", who.client or "", who.secret or "")
        return identity.ClientSecretCredential(*secret, **authority)
    if who.kind == "workload":
        return identity.WorkloadIdentityCredential(
            tenant_id=who.tenant, client_id=who.client, token_file_path=who.token_file, **authority
        )
    if who.kind == "cli":
        return identity.AzureCliCredential()
    if who.kind == "managed":
        others = {"object_id": who.object_id, "resource_id": who.resource_id}
        other = {name: value for name, value in others.items() if value}
        return identity.ManagedIdentityCredential(
            client_id=who.client, identity_config=other or None
        )
    return identity.DefaultAzureCredential(
        **authority, **({"managed_identity_client_id": who.client} if who.client else {})
    )
