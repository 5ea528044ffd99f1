"""Claims of replays: which quarantined rows a replay moves to the table.

A replay moves rows in steps and can be killed at any moment:

    1  claim    mark the rows with the number of the replay
    2  commit   write them to the table, and the number to its ledger, in one version
    3  delete   delete the rows with the number from the quarantine

The next replay first resolves the claims of earlier ones. If the table's ledger has the number, the
claimed rows are deleted. Otherwise the number is added to the ledger without rows, so that a replay
that is still running can no longer commit it, and the claim is removed from the rows.
"""

from collections.abc import Sequence
from typing import Final

from lance_stream.environment import Environment
from lance_stream.errors import InvalidInputError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.ledger.row_digests import NO_ROWS
from lance_stream.read.scan import scan
from lance_stream.schema.system_columns import ROW_ID
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries
from lance_stream.verbs.append import append_fragments
from lance_stream.verbs.delete import delete
from lance_stream.verbs.update import update

APP_ID: Final = "lance_stream.quarantine"
"""The app id of replays in the ledger of the table."""

UNCLAIMED: Final = "replay IS NULL"
"""A condition on the quarantine's columns."""


def next_number(table: TableVersion, environment: Environment) -> int:
    """Return the number of a new replay: ascending, and different in each process."""
    newest = newest_version_of(table)
    entry = ledger_entries.read_entry(newest.manifest.config, APP_ID)
    after = -1 if entry is None else entry.batch_id
    return max(environment.now_nanos(), after + 1 + environment.random_id() % 1024)


def claim(
    bad: TableVersion, row_ids: Sequence[int], number: int, environment: Environment
) -> tuple[TableVersion, set[int]]:
    """Claim rows for a replay, and return the quarantine's new version and the claimed row ids.

    Rows that another replay has claimed or moved in the meantime are not among them.
    """
    id_list = ", ".join(map(str, row_ids))
    unclaimed = f"{UNCLAIMED} AND {ROW_ID} IN ({id_list})"
    claimed = update(bad, {"replay": str(number)}, unclaimed, environment)
    claimed_ids: set[int] = set()
    for batch in scan(claimed, ["replay"], _has(number), with_row_id=True):
        claimed_ids.update(batch.column(ROW_ID).to_pylist())
    return claimed, claimed_ids


def delete_claimed(bad: TableVersion, number: int, environment: Environment) -> TableVersion:
    """Delete the rows of a replay, which the table has."""
    return delete(bad, _has(number), environment)


def resolve_claims(
    table: TableVersion, bad: TableVersion, environment: Environment
) -> TableVersion:
    """Finish or undo interrupted replays, and return the quarantine's newest version.

    Raises:
        InvalidInputError: It is unknown whether a replay has committed its rows.
    """
    claims: set[int] = set()
    for batch in scan(bad, ["replay"], "replay IS NOT NULL"):
        claims.update(batch.column(0).to_pylist())
    for number in sorted(claims):
        if _is_committed(table, number, environment):
            bad = delete_claimed(bad, number, environment)
        else:
            bad = update(bad, {"replay": "NULL"}, _has(number), environment)
    return bad


def _is_committed(table: TableVersion, number: int, environment: Environment) -> bool:
    """Return whether a table has the rows of a replay; if not, keep it from committing them.

    Raises:
        InvalidInputError: The ledger no longer has the replay's entry.
    """
    fence = PendingBatch.of(APP_ID, number, digest=NO_ROWS)
    newest = append_fragments(
        newest_version_of(table), [], fence, environment=environment, even_without_rows=True
    ).table
    entry = ledger_entries.read_entry(newest.manifest.config, APP_ID)
    entries = () if entry is None else (entry, *entry.recent)
    for entry in entries:
        if entry.batch_id == number:
            return bool(entry.num_rows)
    is_shortened = len(entries) == 1 and ledger_entries.is_silent(entries[0], newest.version)
    is_complete = len(entries) <= ledger_entries.MAX_RECENT and not is_shortened
    if is_complete or entries[-1].batch_id < number:
        return False
    raise InvalidInputError(
        f"it is unknown whether the table {table.uri} has the rows of replay {number}: too many "
        "other replays or commits have followed it. Check whether the table has these rows. If it "
        f"does, delete the rows with replay = {number} from the quarantine; otherwise set that "
        "column to NULL"
    )


def _has(number: int) -> str:
    return f"replay = {number}"
