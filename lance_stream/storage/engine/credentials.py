"""Credentials: given as they are, or fetched and renewed by the service's own library.

    S3        botocore: profiles, single sign-on, roles of instances, containers and web identities
    Google    google-auth: service accounts, users' credentials, the machine's account
    Azure     azure-identity: client secrets, workload and managed identities, developer tools

obstore has a provider for each. Those of Google and Azure return a token and when it expires, and
are used here. That of S3 is not: it needs boto3, and calls keys valid for half an hour that expire
sooner. None of them is asked again when the service rejects what it returned, and an error of
theirs reaches the caller without its type. So obstore is given what is here: `ready` renews
credentials before a request, and `rejected` has them renewed once.

Libraries block while they renew credentials, so they run in a thread outside the event loop.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol


class Credentials(Protocol):
    """What requests are authorized with."""

    async def ready(self) -> None:
        """Renew them if they are about to expire.

        Raises:
            RefusedError: There are no credentials.
            TryAgainError: Whoever issues them does not answer.
        """
        ...

    @property
    def number(self) -> int:
        """Which credentials a request that is sent now uses: renewed ones have another number."""
        ...

    def rejected(self, number: int, /) -> bool:
        """Note that the service rejected some; return whether other ones may help."""
        ...

    def accepted(self, number: int, /) -> None:
        """Note that the service accepted some."""
        ...

    def __call__(self) -> Mapping[str, Any]:
        """Return them by obstore's names."""
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
        """There are no others."""
        return 0

    def rejected(self, _number: int, /) -> bool:
        """Return False: there are no others."""
        return False

    def accepted(self, _number: int, /) -> None:
        """Do nothing."""

    def __call__(self) -> Mapping[str, Any]:
        """Return them."""
        return {**self._values, "expires_at": None}


class RenewedCredentials:
    """Credentials that are fetched when they are needed, and again before they expire.

    Subclasses fetch them; both methods run in a thread.

    Args:
        renewed_before: How long before they expire they are renewed.
    """

    def __init__(self, renewed_before: timedelta = timedelta(minutes=5)) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._renewed_before = renewed_before
        self._current: Mapping[str, Any] | None = None
        self._is_rejected = False
        self._number = 0
        self._fetched_after_rejection: int | None = None

    @property
    def number(self) -> int:
        """How often some were fetched."""
        return self._number

    def is_valid(self) -> bool:
        """Return whether the current credentials are valid for some more time."""
        ends = None if self._current is None else self._current.get("expires_at")
        return ends is None or datetime.now(UTC) < ends - self._renewed_before

    def fetch(self) -> Mapping[str, Any]:
        """Return new credentials by obstore's names; see `Credentials.ready`."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Renew them if they are about to expire."""
        if not self._has_to_renew():
            return
        async with self._one_at_a_time:
            if self._has_to_renew():
                self._current = await asyncio.to_thread(self.fetch)
                self._number += 1
                self._fetched_after_rejection = self._number if self._is_rejected else None
                self._is_rejected = False

    def _has_to_renew(self) -> bool:
        return self._current is None or self._is_rejected or not self.is_valid()

    def rejected(self, number: int, /) -> bool:
        """Have them renewed once; of many requests that used them, each may try again."""
        if number != self._number or self._is_rejected:
            return True
        self._is_rejected = number != self._fetched_after_rejection
        return self._is_rejected

    def accepted(self, number: int, /) -> None:
        """Note that the service accepted some."""
        if number == self._fetched_after_rejection:
            self._fetched_after_rejection = None

    def __call__(self) -> Mapping[str, Any]:
        """Return them; obstore asks again with the next request."""
        return {**(self._current or {}), "expires_at": datetime.now(UTC)}
