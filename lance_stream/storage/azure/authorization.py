"""Who asks Azure Blob Storage: what is added to a request so that the service knows its caller.

    shared key          a signature over the request, by the account's key
    shared access       a token that stands in the URL
    bearer token        given, or had from Microsoft Entra by azure-identity, and renewed in time
    nobody              public containers

What a request signs is this text, a line each; those that are not named here stay empty, for such
headers are never sent:

     1  PUT                                 9  If-Match
     4  Content-Length, if it is not 0     10  If-None-Match
     6  Content-Type                       13  on: each x-ms- header as name:value, sorted

and after them "/{account}{path of the URL}" and each part of its query as name:value, sorted.

Source: "Authorize with Shared Key" of the service's REST reference, for versions from 2015-02-21.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Final, Protocol
from urllib.parse import parse_qsl, quote

from lance_stream.errors import InvalidInputError
from lance_stream.storage.object_requests import RefusedError, TryAgainError

API_VERSION: Final = "2023-11-03"
"""The version of the service's interface that is spoken; Lance's own client speaks it, too."""

_SCOPE: Final = "https://storage.azure.com/.default"
# A token is renewed so many seconds before it ends.
_RENEWED_BEFORE_SECONDS: Final = 300


@dataclass
class BlobRequest:
    """One HTTP request.

    Attributes:
        method: GET, HEAD, PUT or DELETE.
        path: Of the URL, percent-encoded, from "/" on.
        query: Of the URL, not encoded.
        headers: By their names as they are sent.
        data: The body.
    """

    method: str
    path: str
    query: dict[str, str] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes | memoryview = b""

    @property
    def target(self) -> str:
        """The URL from its path on."""
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in self.query.items())
        return f"{self.path}?{query}" if query else self.path


class Authorization(Protocol):
    """Adds to a request what says whose it is."""

    async def authorize(self, request: BlobRequest) -> None:
        """Add to the headers or the query of a request that is otherwise complete.

        Raises:
            RefusedError: There are no credentials to be had.
            TryAgainError: Whoever hands them out does not answer.
        """
        ...

    def source_query(self) -> str:
        """Return what a URL in a header has to end with, so that the service may read there."""
        ...

    async def close(self) -> None:
        """Let connections go."""
        ...


class Credentials(Protocol):
    """Whose requests they are, as settings: hashable, picklable, nothing secret in its `repr`."""

    def connect(self) -> Authorization:
        """Return what authorizes requests; called on the event loop's thread."""
        ...

    @property
    def travels_openly(self) -> bool:
        """Whether who reads a request could use what authorizes it."""
        ...


def date_and_version() -> dict[str, str]:
    """Return the headers that every request has."""
    return {"x-ms-date": formatdate(usegmt=True), "x-ms-version": API_VERSION}


@dataclass(frozen=True)
class SharedKey:
    """The key of a storage account.

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

    def connect(self) -> Authorization:
        """Return what signs requests."""
        return _Signing(self)

    def signature(self, request: BlobRequest) -> str:
        """Return the signature of a request, in base64."""
        headers = {name.lower(): value.strip() for name, value in request.headers.items()}
        size = len(request.data)
        signed = [
            request.method,
            "",
            "",
            str(size) if size else "",
            "",
            headers.get("content-type", ""),
            "",
            "",
            headers.get("if-match", ""),
            headers.get("if-none-match", ""),
            "",
            "",
            *(f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")),
            f"/{self.account}{request.path}",
            *(f"{name}:{value}" for name, value in sorted(request.query.items())),
        ]
        key = base64.b64decode(self.key)
        digest = hmac.new(key, "\n".join(signed).encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()


@dataclass(frozen=True)
class SharedAccess:
    """A shared access signature: what stands behind the "?" of the URL that was handed out."""

    query: str = field(repr=False)
    travels_openly = True

    def __post_init__(self) -> None:
        if "sig" not in dict(parse_qsl(self.query.removeprefix("?"))):
            raise InvalidInputError(
                "the shared access signature has no part 'sig=': give what stands behind the '?' "
                "of the URL that was handed out, all of it"
            )

    def connect(self) -> Authorization:
        """Return what adds the signature to the URL."""
        return _Adding(dict(parse_qsl(self.query.removeprefix("?"), keep_blank_values=True)))


@dataclass(frozen=True)
class BearerToken:
    """A token of Microsoft Entra for https://storage.azure.com, which nobody renews."""

    token: str = field(repr=False)
    travels_openly = True

    def connect(self) -> Authorization:
        """Return what adds the token."""
        return _Bearing(None, self.token)


@dataclass(frozen=True)
class Identity:
    """An identity of Microsoft Entra, whose tokens azure-identity fetches.

    Args:
        kind: "default" (the chain of azure-identity: environment, workload, managed identity,
            developer tools), "client secret", "workload", "managed" or "cli".
        tenant: The tenant's id.
        client: The client's id: of the application, or of the managed identity.
        secret: The client's secret.
        authority: The host that hands out tokens, if it is not login.microsoftonline.com.
        token_file: Where a workload's own token lies.
        object_id: Of a managed identity, in place of its client's id.
        resource_id: Of a managed identity, in place of its client's id.
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

    def connect(self) -> Authorization:
        """Return what adds tokens, and renews them.

        Raises:
            InvalidInputError: azure-identity is not installed, or finds the settings wrong.
        """
        try:
            from azure.identity import aio as identity  # imported when it is used
        except ImportError:
            raise InvalidInputError(
                "credentials of Microsoft Entra need azure-identity, which comes with "
                "pip install 'lance-stream[azure]'. Or give an account key or a SAS token"
            ) from None
        try:
            return _Bearing(self._credential(identity), None)
        except ValueError as error:
            raise InvalidInputError(
                f"azure-identity finds the credentials incomplete: {error}"
            ) from None

    def _credential(self, identity: Any) -> Any:
        authority = {"authority": self.authority} if self.authority else {}
        if self.kind == "client secret":
            return identity.ClientSecretCredential(
                self.tenant, self.client, self.secret, **authority
            )
        if self.kind == "workload":
            return identity.WorkloadIdentityCredential(
                tenant_id=self.tenant,
                client_id=self.client,
                token_file_path=self.token_file,
                **authority,
            )
        if self.kind == "cli":
            return identity.AzureCliCredential()
        if self.kind == "managed":
            others = {"object_id": self.object_id, "resource_id": self.resource_id}
            other = {name: value for name, value in others.items() if value}
            return identity.ManagedIdentityCredential(
                client_id=self.client, identity_config=other or None
            )
        return identity.DefaultAzureCredential(
            **authority, **({"managed_identity_client_id": self.client} if self.client else {})
        )


@dataclass(frozen=True)
class Nobody:
    """Requests that say nothing of their caller, for public containers."""

    travels_openly = False

    def connect(self) -> Authorization:
        """Return what adds nothing."""
        return _Adding({})


class _Signing:
    def __init__(self, key: SharedKey) -> None:
        self._key = key

    async def authorize(self, request: BlobRequest) -> None:
        signature = self._key.signature(request)
        request.headers["Authorization"] = f"SharedKey {self._key.account}:{signature}"

    def source_query(self) -> str:
        return ""

    async def close(self) -> None:
        return


class _Adding:
    def __init__(self, query: Mapping[str, str]) -> None:
        self._query = query

    async def authorize(self, request: BlobRequest) -> None:
        request.query.update(self._query)

    def source_query(self) -> str:
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in self._query.items())
        return f"?{query}" if query else ""

    async def close(self) -> None:
        return


class _Bearing:
    """Adds a token, fetched by one request at a time and kept until shortly before its end."""

    def __init__(self, credential: Any, token: str | None) -> None:
        self._credential = credential
        self._token = token
        self._ends = float("inf") if credential is None else 0.0
        self._fetching = asyncio.Lock()

    async def authorize(self, request: BlobRequest) -> None:
        if time.time() > self._ends - _RENEWED_BEFORE_SECONDS:
            async with self._fetching:
                if time.time() > self._ends - _RENEWED_BEFORE_SECONDS:
                    await self._fetch()
        request.headers["Authorization"] = f"Bearer {self._token}"

    async def _fetch(self) -> None:
        from azure.core import exceptions  # comes with azure-identity

        try:
            token = await self._credential.get_token(_SCOPE)
        except exceptions.ClientAuthenticationError as error:
            raise RefusedError(
                f"no token could be had from Microsoft Entra: {str(error)[:1000]}. Give an account "
                "key (account_key), a SAS token (sas_token), or tenant_id, client_id and "
                "client_secret; anon='true' for public containers"
            ) from None
        except (exceptions.ServiceRequestError, exceptions.ServiceResponseError) as error:
            if self._ends > time.time():
                return
            raise TryAgainError(f"Microsoft Entra gave no token: {str(error)[:300]}") from None
        self._token, self._ends = token.token, token.expires_on

    def source_query(self) -> str:
        return ""

    async def close(self) -> None:
        if self._credential is not None:
            await self._credential.close()
