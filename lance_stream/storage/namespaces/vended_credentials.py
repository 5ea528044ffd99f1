"""Credentials that a Lance namespace vends for a table, renewed before they expire."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from lance_stream.errors import LanceStreamError, StoreUnavailableError
from lance_stream.storage.engine.credentials import (
    Credentials,
    FixedCredentials,
    RenewedCredentials,
)
from lance_stream.storage.namespaces.client import NamespaceTable, describe
from lance_stream.storage.objects.object_requests import RefusedError, TryAgainError
from lance_stream.storage.options.names import is_credential

_RENEWED_BEFORE: Final = timedelta(minutes=5)
_SHARE_OF_LIFE: Final = 4
"""Credentials that are valid for less than 20 minutes are renewed in the last quarter of that time.
"""


class VendedCredentials(RenewedCredentials):
    """The credentials of a table in a namespace.

    Args:
        table: The value of the storage option `namespace_table`.
        read: Returns the credentials that a service finds in storage options.
    """

    def __init__(self, table: str, read: Callable[[Mapping[str, Any]], Credentials]) -> None:
        super().__init__(_RENEWED_BEFORE)
        self._table = NamespaceTable.decode(table)
        self._read = read

    def fetch(self) -> Mapping[str, Any]:
        """Return new credentials; if the namespace is unavailable, current ones that are valid."""
        try:
            location = describe(self._table)
        except StoreUnavailableError as error:
            current = self._current
            if current and not self._is_rejected and datetime.now(UTC) < current["expires_at"]:
                return current
            raise TryAgainError(str(error)) from error
        except LanceStreamError as error:
            raise RefusedError(str(error)) from error
        credentials = self._read(location.options)
        if not isinstance(credentials, FixedCredentials):
            raise RefusedError(
                f"the namespace vended no credentials for the table {self._table.name!r}: check "
                "this program's permissions there, or set credentials as storage options"
            )
        if location.expires_at is not None:
            lifetime = location.expires_at - datetime.now(UTC)
            self._renewed_before = min(_RENEWED_BEFORE, lifetime / _SHARE_OF_LIFE)
        return {**credentials(), "expires_at": location.expires_at}


def vended_options(table: str, store: str) -> Mapping[str, str]:
    """Return current credentials of a table by pylance's names.

    Args:
        table: The value of the storage option `namespace_table`.
        store: A key of `options.names.STORES`.
    """
    options = describe(NamespaceTable.decode(table)).options
    return {name: value for name, value in options.items() if is_credential(name, store)}
