"""The identity of a micro-batch: its stream and its batch id.

The transaction that commits a micro-batch has its identity in three properties, and a uuid that is
derived from it. So a reader of the history recognizes the batch (see `foreign_restores`).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lance_stream.errors import InvalidInputError
from lance_stream.table.config.ledger_entries import MAX_BATCH_ID, config_key

APP_ID: Final = "lance_stream.app_id"
BATCH_ID: Final = "lance_stream.batch_id"
QUERY_ID: Final = "lance_stream.query_id"
"""Properties of the transaction that commits a micro-batch."""

# The UUID namespace of this library: random, and never changed, because the uuids of all sinks
# depend on it.
_NAMESPACE: Final = bytes.fromhex("6f1d3a4c9b5e4f0c8a7e2d9c51b0e3f4")


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """The identity of a micro-batch.

    Attributes:
        app_id: The stream.
        batch_id: The batch id, from 0.
        query_id: The streaming query's id; empty if the batch did not come from a query.
        rules: A fingerprint of the rules under which its rows are applied; empty if unknown.
    """

    app_id: str
    batch_id: int
    query_id: str = ""
    rules: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.batch_id <= MAX_BATCH_ID:
            raise InvalidInputError(f"{self.batch_id} is not a batch id: batch ids start at 0")

    @property
    def uuid(self) -> str:
        """The uuid of the transaction that commits the batch."""
        return derive_uuid(self.app_id, self.batch_id)

    @property
    def properties(self) -> dict[str, str]:
        """The properties of the transaction that commits the batch."""
        properties = {APP_ID: self.app_id, BATCH_ID: str(self.batch_id)}
        return {**properties, QUERY_ID: self.query_id} if self.query_id else properties


def derive_uuid(app_id: str, batch_id: int) -> str:
    """Return the uuid of the transaction that commits a batch.

    Source:
        RFC 9562, version 5: SHA-1 of a namespace and a name. The name is the batch id in decimal,
        a colon, and the app id in UTF-8.

    Raises:
        InvalidInputError: The app id is empty, or not valid text.
    """
    config_key(app_id)
    digest = hashlib.sha1(
        _NAMESPACE + f"{batch_id}:{app_id}".encode(), usedforsecurity=False
    ).digest()
    number = int.from_bytes(digest[:16], "big")
    number = number & ~(0xF << 76) | 5 << 76
    number = number & ~(0x3 << 62) | 2 << 62
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def fingerprint(rules: Mapping[str, Any]) -> str:
    """Return 16 hexadecimal digits that identify rules, by their names and values.

    A rule that is None, False or empty counts as absent.
    """
    present = {name: value for name, value in rules.items() if value}
    text = json.dumps(present, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
