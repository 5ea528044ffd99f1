"""What proves who asks: given as it is, or renewed in time by the service's own library.

    S3        botocore: profiles, single sign-on, roles of instances, containers and web identities
    Google    google-auth: service accounts, users' credentials, the machine's account
    Azure     azure-identity: client secrets, workload and managed identities, developer tools

obstore asks for them with each request; `ready` renews them before, so that an error on the way is
one of ours. Libraries block while they renew: they run in a thread beside the event loop.
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Protocol


class Credentials(Protocol):
    """What proves who asks."""

    async def ready(self) -> None:
        """Renew them if they are about to end.

        Raises:
            RefusedError: There are none.
            TryAgainError: Whoever hands them out does not answer.
        """
        ...

    @property
    def number(self) -> int:
        """Which ones a request that is sent now goes with: another number for other ones."""
        ...

    def doubt(self, number: int, /) -> bool:
        """Note that those of a number were not accepted; return whether others may help."""
        ...

    def trust(self, number: int, /) -> None:
        """Note that those of a number were accepted."""
        ...

    def __call__(self) -> Mapping[str, Any]:
        """Return them in obstore's words."""
        ...


class GivenCredentials:
    """Credentials that are not renewed.

    Args:
        said: What they are, in obstore's words.
    """

    def __init__(self, said: Mapping[str, Any]) -> None:
        self._said = said

    async def ready(self) -> None:
        """Do nothing."""

    @property
    def number(self) -> int:
        """There are no others."""
        return 0

    def doubt(self, _number: int, /) -> bool:
        """Say that there are no others."""
        return False

    def trust(self, _number: int, /) -> None:
        """Do nothing."""

    def __call__(self) -> Mapping[str, Any]:
        """Return them."""
        return {**self._said, "expires_at": None}


class RenewedCredentials:
    """Credentials that are fetched when they are needed, and again before they end.

    Subclasses say how; both methods run in a thread.
    """

    def __init__(self) -> None:
        self._one_at_a_time = asyncio.Lock()
        self._said: Mapping[str, Any] | None = None
        self._is_doubted = False
        self._number = 0
        self._fetched_in_doubt: int | None = None

    @property
    def number(self) -> int:
        """How often some were fetched."""
        return self._number

    def is_good(self) -> bool:
        """Return whether what was fetched is good for another while."""
        raise NotImplementedError

    def fetch(self) -> Mapping[str, Any]:
        """Return new credentials in obstore's words; see `Credentials.ready`."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Renew them if they are about to end."""
        if self._said is not None and not self._is_doubted and self.is_good():
            return
        async with self._one_at_a_time:
            if self._said is None or self._is_doubted or not self.is_good():
                self._said = await asyncio.to_thread(self.fetch)
                self._number += 1
                self._fetched_in_doubt = self._number if self._is_doubted else None
                self._is_doubted = False

    def doubt(self, number: int, /) -> bool:
        """Renew them once with the next request; of many that went with them, each may try."""
        if number != self._number or self._is_doubted:
            return True
        self._is_doubted = number != self._fetched_in_doubt
        return self._is_doubted

    def trust(self, number: int, /) -> None:
        """Note that those of a number were accepted."""
        if number == self._fetched_in_doubt:
            self._fetched_in_doubt = None

    def __call__(self) -> Mapping[str, Any]:
        """Return them; obstore is to ask again with the next request."""
        return {**(self._said or {}), "expires_at": datetime.now(UTC)}
