"""Credentials: fixed, or fetched and renewed by the service's own library.

    S3        botocore: profiles, single sign-on, roles of instances, containers and web identities
    Google    google-auth: service accounts, users' credentials, the machine's account
    Azure     azure-identity: client secrets, workload and managed identities, developer tools

obstore has a credential provider for each. Those of Google and Azure return a token with its expiry
and are used here. That of S3 is not: it needs boto3, and treats keys as valid for half an hour even
if they expire sooner. obstore does not call a provider again after a rejection, and loses the type
of a provider's error. So obstore gets the classes of this module: `ready` renews credentials before
a request, and `rejected` requests one renewal.

Libraries block while they renew credentials, so they run in a thread outside the event loop.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol


class Credentials(Protocol):
    """Authorizes requests."""

    async def ready(self) -> None:
        """Renew the credentials if they are about to expire.

        Raises:
            RefusedError: There are no credentials.
            TryAgainError: The issuer does not respond.
        """
        ...

    @property
    def number(self) -> int:
        """The number of the current credentials; each renewal has another number."""
        ...

    def rejected(self, number: int, /) -> bool:
        """Record that the service rejected these credentials; return whether to retry."""
        ...

    def accepted(self, number: int, /) -> None:
        """Record that the service accepted these credentials."""
        ...

    def __call__(self) -> Mapping[str, Any]:
        """Return the credentials by obstore's names."""
        ...


class FixedCredentials:
    """Credentials that are not renewed.

    Args:
        values: The credentials, by obstore's names.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    async def ready(self) -> None:
        """Do nothing."""

    @property
    def number(self) -> int:
        """Always 0: there are no other credentials."""
        return 0

    def rejected(self, _number: int, /) -> bool:
        """Return False: there are no other credentials."""
        return False

    def accepted(self, _number: int, /) -> None:
        """Do nothing."""

    def __call__(self) -> Mapping[str, Any]:
        """Return the credentials."""
        return {**self._values, "expires_at": None}


class RenewedCredentials:
    """Credentials that are fetched on first use, and again before they expire.

    Subclasses implement `fetch` and may override `is_valid`.

    Args:
        renewed_before: The time before their expiry at which they are renewed.
    """

    def __init__(self, renewed_before: timedelta = timedelta(minutes=5)) -> None:
        self._renewal_lock = asyncio.Lock()
        self._renewed_before = renewed_before
        self._current: Mapping[str, Any] | None = None
        self._is_rejected = False
        self._number = 0
        self._fetched_after_rejection: int | None = None

    @property
    def number(self) -> int:
        """The number of fetches so far."""
        return self._number

    def is_valid(self) -> bool:
        """Return whether the current credentials stay valid long enough."""
        expiry = None if self._current is None else self._current.get("expires_at")
        return expiry is None or datetime.now(UTC) < expiry - self._renewed_before

    def fetch(self) -> Mapping[str, Any]:
        """Return new credentials by obstore's names, in a thread; see `Credentials.ready`."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Renew the credentials if they are about to expire."""
        if not self._must_renew():
            return
        async with self._renewal_lock:
            if self._must_renew():
                self._current = await asyncio.to_thread(self.fetch)
                self._number += 1
                self._fetched_after_rejection = self._number if self._is_rejected else None
                self._is_rejected = False

    def _must_renew(self) -> bool:
        return self._current is None or self._is_rejected or not self.is_valid()

    def rejected(self, number: int, /) -> bool:
        """Request one renewal; all requests that used the credentials may be retried."""
        if number != self._number or self._is_rejected:
            return True
        self._is_rejected = number != self._fetched_after_rejection
        return self._is_rejected

    def accepted(self, number: int, /) -> None:
        """Record that the service accepted these credentials."""
        if number == self._fetched_after_rejection:
            self._fetched_after_rejection = None

    def __call__(self) -> Mapping[str, Any]:
        """Return the credentials; obstore calls this for every request."""
        return {**(self._current or {}), "expires_at": datetime.now(UTC)}
