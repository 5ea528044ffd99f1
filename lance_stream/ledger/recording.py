"""Creates the ledger's entry of a micro-batch for the version that commits it."""

from dataclasses import replace

from lance_stream.commit.committer import ConfigEntries
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.table.config.ledger_entries import (
    LedgerEntry,
    config_entries,
    read_entry,
    silent_entries,
)
from lance_stream.table.manifest import Manifest


def record(pending: PendingBatch | None) -> ConfigEntries | None:
    """Return the function that creates the ledger's entry of a batch.

    It also shortens the entries of streams that have had no batch for a long time.
    """
    if pending is None:
        return None
    batch, digest = pending.batch, pending.digest
    entry = LedgerEntry(
        batch.batch_id,
        batch.query_id,
        num_rows=None if digest is None else digest.num_rows,
        digest="" if digest is None else digest.text,
        rules=batch.rules,
    )

    def entries(newest: Manifest | None, version: int) -> dict[str, str]:
        config = {} if newest is None else newest.config
        last = read_entry(config, batch.app_id)
        if last is not None and last.batch_id >= entry.batch_id:  # the stream starts over
            last = None
        stream_entry = replace(
            entry,
            version=version,
            recent=() if last is None else last.before(),
            quarantined=pending.quarantined or ("" if last is None else last.quarantined),
        )
        return silent_entries(config, version) | config_entries(batch.app_id, stream_entry)

    return entries
