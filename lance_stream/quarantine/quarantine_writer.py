"""Quarantines the bad rows of a batch exactly once, despite kills and concurrent drivers.

    1  stage    write the bad rows to a new file in the table's directory
    2  commit   commit the good rows; the stream's ledger entry names the file, in the same version
    3  publish  add the rows of the file to the quarantine, and the file's name to its config, in
                one version; delete the file

The commit of the table decides which bad rows are valid: if no ledger entry names a file, a killed
attempt left it, and cleanup removes it. After a kill between 2 and 3, the next batch, the repeated
batch or a replay does step 3. It is done if the name in the quarantine's config equals the name in
the ledger. Step 3 commits only if the quarantine still has the name that it had before the table
was read, so a driver that another one has overtaken cannot publish a file twice.
"""

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa

from lance_stream.arrow_streams import decode_batches, encode_batches
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import (
    CommitConflictError,
    LanceStreamError,
    NotFoundError,
    RetryableConflictError,
)
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.quarantine.table import (
    QUARANTINE_SCHEMA,
    TABLE_KEY,
    normalized,
    open_quarantine,
    published_key,
)
from lance_stream.schema.system_columns import ROW_CREATED_AT_VERSION
from lance_stream.snapshot.opening import newest_version_of
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config import ledger_entries
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.rows import Append
from lance_stream.table.paths import quarantined_rows_path
from lance_stream.verbs.append import write_input
from lance_stream.verbs.create import plan_table
from lance_stream.verbs.update import update
from lance_stream.write.arrow_input import one_batch
from lance_stream.write.fragments import delete_files
from lance_stream.write.planning import commit_planned
from lance_stream.write.row_checks import BadRows

_MAX_ATTEMPTS: Final = 20
"""The number of attempts to publish a file while other drivers write to the quarantine."""


@dataclass
class QuarantineBatch:
    """The bad rows of one batch.

    Args:
        uri: The quarantine.
        storage_options: Settings of its store.
        batch: The batch.

    Attributes:
        file: The name of the staged file, for the ledger entry; empty without bad rows.
        counts: The number of bad rows, by reason.
    """

    uri: str
    storage_options: Mapping[str, Any] = field(repr=False)
    batch: MicroBatch
    file: str = ""
    counts: Mapping[str, int] = field(default_factory=dict)

    def begin(self, target: TableVersion) -> None:
        """Publish the file that an earlier batch has staged, before this batch is written.

        Args:
            target: The table, without the batch.

        Raises:
            InvalidInputError: There is another table at the quarantine's location.
        """
        app_id = self.batch.app_id
        quarantine = open_quarantine(self.uri, self.storage_options, target.uri)
        published = _published(quarantine, app_id)
        if published == _staged(target, app_id):
            return
        if publish(self.uri, self.storage_options, target, app_id) or quarantine is None:
            return
        entry = ledger_entries.read_entry(newest_version_of(target).manifest.config, app_id)
        if entry is not None and entry.batch_id >= self.batch.batch_id:  # another driver was faster
            return
        _mark_stale(quarantine, self.batch)
        if entry is not None:  # until then, the stream may still start over at an earlier batch
            _replace_name(quarantine, app_id, published, entry.quarantined)

    def stage(
        self,
        bad: BadRows,
        rules: Mapping[str, Any],
        target: TableVersion,
        environment: Environment = MACHINE,
    ) -> None:
        """Write the bad rows to a file in the table's directory, which replaces an earlier one.

        Args:
            bad: The rows; possibly none.
            rules: The sink's rules for writing them, for a replay.
            target: The table into which they would have been written, at any version.
            environment: The clock.
        """
        self.file, self.counts = "", {}
        if bad:
            name = secrets.token_hex(16)
            rows = _quarantine_rows(bad.rows, self.batch, rules, environment)
            encoded = encode_batches(rows.schema, [one_batch(rows)])
            target.store.write(quarantined_rows_path(name), encoded)
            self.file, self.counts = name, bad.counts()

    def publish(self, target: TableVersion) -> None:
        """Add the batch's rows to the quarantine; the table has committed the batch.

        A batch without bad rows leaves its stream's file, which `begin` has published, as it is.
        """
        if self.file:
            publish(self.uri, self.storage_options, target, self.batch.app_id)


def publish(
    uri: str, storage_options: Mapping[str, Any], target: TableVersion, app_id: str
) -> bool:
    """Add the rows that a stream's ledger entry names to the quarantine, unless it has them.

    Args:
        uri: The quarantine; created if it does not exist.
        storage_options: Settings of its store.
        target: The table, at any version.
        app_id: The stream.

    Returns:
        Whether the quarantine has them. False if their file no longer exists, see `staged_rows`, or
        if the table has no entry for the stream.

    Raises:
        InvalidInputError: There is another table at the quarantine's location.
        CommitError: The rows were not added; the ledger still names them.
    """
    for _ in range(_MAX_ATTEMPTS):
        quarantine = open_quarantine(uri, storage_options, target.uri)
        published = _published(quarantine, app_id)
        name = _staged(newest_version_of(target), app_id)
        if name != published:
            rows = staged_rows(target, name)
            if rows is None:
                return False
            change = published_key(app_id), published, name
            try:
                _append(quarantine or _new_quarantine(uri, storage_options, target), rows, change)
            except RetryableConflictError:
                continue
        if name:
            with suppress(OSError, LanceStreamError):
                target.store.delete(quarantined_rows_path(name))
        return True
    raise CommitConflictError(
        f"other drivers keep writing to the quarantine {uri}. The bad rows of the stream "
        f"{app_id!r} are not lost: the next batch or replay adds them. Run the query in one driver "
        "only"
    )


def staged_rows(target: TableVersion, name: str) -> pa.Table | None:
    """Return the rows of a staged file; None if the file does not exist.

    It is deleted once the quarantine has its rows. A ledger entry can still name it then: after a
    restore by another program, or in a branch or clone of the table.
    """
    if not name:
        return None
    try:
        data = target.store.read(quarantined_rows_path(name))
    except NotFoundError:
        return None
    return pa.Table.from_batches(decode_batches(data))


def unpublished_files(table: TableVersion, quarantine: TableVersion | None) -> dict[str, str]:
    """Return the staged files that a quarantine does not have yet, by stream.

    A file may no longer exist: see `staged_rows`.
    """
    return {
        app_id: entry.quarantined
        for app_id, entry in ledger_entries.read_entries(table.manifest.config).items()
        if entry.quarantined and entry.quarantined != _published(quarantine, app_id)
    }


def _staged(target: TableVersion, app_id: str) -> str:
    """Return the name of the newest file that a stream has staged, or an empty string."""
    entry = ledger_entries.read_entry(target.manifest.config, app_id)
    return "" if entry is None else entry.quarantined


def _published(quarantine: TableVersion | None, app_id: str) -> str:
    """Return the name of a stream's last published file; empty if there is none."""
    return "" if quarantine is None else quarantine.manifest.config.get(published_key(app_id), "")


def _new_quarantine(
    uri: str, storage_options: Mapping[str, Any], target: TableVersion
) -> TableVersion:
    """Return version 0 of the quarantine of a table."""
    config = {TABLE_KEY: normalized(target.uri)}
    return plan_table(uri, QUARANTINE_SCHEMA, config=config, storage_options=dict(storage_options))


def _append(quarantine: TableVersion, rows: pa.Table, change: tuple[str, str, str]) -> None:
    """Append rows, and record the name of their file.

    Args:
        quarantine: The quarantine; version 0 if it does not exist.
        rows: The rows.
        change: The config key of the name, its old value and its new value.

    Raises:
        RetryableConflictError: Another driver has written to the quarantine.
    """
    key, before, name = change
    fragments = write_input(quarantine, rows)
    try:
        commit_planned(
            quarantine,
            Append(tuple(fragments)),
            config_entries=lambda _newest, _version: {key: name},
            check=lambda newest: _check_unchanged(newest, key, before),
        )
    except RetryableConflictError:
        delete_files(quarantine.store, fragments)
        raise


def _check_unchanged(newest: Manifest, key: str, value: str) -> None:
    if newest.config.get(key, "") != value:
        raise RetryableConflictError("another driver has written to the quarantine", newest.version)


def _mark_stale(quarantine: TableVersion, batch: MicroBatch) -> None:
    """Mark the rows that come again: the table was deleted, restored, or has forgotten the stream.

    The stream starts over and quarantines the bad rows of this batch and later ones again. Those of
    earlier batches do not come again, and stay.

    Args:
        quarantine: A version from before the table was read; only its rows are marked.
        batch: The batch with which the stream starts over.
    """
    update(
        quarantine,
        {"stale": "true"},
        f"app_id = {_quoted(batch.app_id)} AND batch_id >= {batch.batch_id} AND NOT stale "
        f"AND {ROW_CREATED_AT_VERSION} <= {quarantine.version}",
    )


def _replace_name(quarantine: TableVersion, app_id: str, published: str, name: str) -> None:
    """Replace the name of a stream's last published file, unless the stream has published another.

    Args:
        quarantine: Any version.
        app_id: The stream.
        published: The name.
        name: The name in the table's ledger, of a file that no longer exists; empty for none.
    """
    key = published_key(app_id)
    with suppress(RetryableConflictError):
        commit_planned(
            newest_version_of(quarantine),
            UpdateConfig(config=MapUpdate(((key, name or None),))),
            check=lambda newest: _check_unchanged(newest, key, published),
        )


def _quarantine_rows(
    bad: pa.Table, batch: MicroBatch, rules: Mapping[str, Any], environment: Environment
) -> pa.Table:
    """Return bad rows in the columns of the quarantine.

    Args:
        bad: The rows, in the columns of `row_checks.BAD_ROWS_SCHEMA`; at least one.
        batch: Their batch.
        rules: The sink's rules for writing them.
        environment: The clock.
    """
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=environment.now_nanos() // 1000)
    values: dict[str, Any] = {
        "app_id": batch.app_id,
        "batch_id": batch.batch_id,
        "stale": False,
        "time": now,
        "rules": json.dumps(rules, sort_keys=True),
        "replay": None,
    }
    columns = [
        pa.chunked_array([pa.array([values[field.name]] * bad.num_rows, field.type)])
        if field.name in values
        else bad[field.name]
        for field in QUARANTINE_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
