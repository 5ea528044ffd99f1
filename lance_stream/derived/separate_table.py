"""Writes computed values to a separate table: one row for each row of the source.

    source_row_id     the stable row id of the row in the source
    copied columns    copies of columns of the source, such as its key
    outputs, state    as in the same table

The source is not written. If a row of the source is deleted, or gets another row id, its row in the
separate table is deleted. The progress in the config of the separate table states the version of
the source to which its values belong.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import RowIds
from lance_stream.commit.committer import ConfigEntries
from lance_stream.derived.candidates import CandidateRows
from lance_stream.derived.computing import ComputedValues, StagedValues
from lance_stream.derived.declaration import SOURCE_ROW_ID, Declaration
from lance_stream.derived.ownership import check_columns, missing_columns
from lance_stream.environment import MACHINE, Environment
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.ledger.replay_check import PendingBatch
from lance_stream.read.row_lookup import find_rows
from lance_stream.read.scan import scan
from lance_stream.schema.arrow_schemas import PRIMARY_KEY_METADATA
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.computed_columns import DECLARED, PREFIXES
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.columns.add_columns import add_missing_columns
from lance_stream.verbs.columns.drop_columns import drop_columns
from lance_stream.verbs.create import create_table, plan_table

_NOT_COPIED: Final = tuple(key.encode() for key in (PRIMARY_KEY_METADATA, DECLARED, *PREFIXES))
"""Prefixes of the metadata keys that state the role of a column in its own table."""


def schema_of(source: TableVersion, declaration: Declaration) -> pa.Schema:
    """Return the columns of the separate table."""
    columns = source.arrow_schema
    copied = [_copied(columns.field(name)).with_nullable(True) for name in declaration.copy_columns]
    row_id = pa.field(SOURCE_ROW_ID, pa.int64(), nullable=False)
    return pa.schema([row_id, *copied, *declaration.written])


def _copied(field: pa.Field) -> pa.Field:
    """Return a column as an ordinary one, neither part of the primary key nor computed."""
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_copied(kind.field(index)) for index in range(kind.num_fields)])
    metadata = {
        key: value
        for key, value in (field.metadata or {}).items()
        if not key.startswith(_NOT_COPIED)
    }
    return pa.field(field.name, kind, field.nullable, metadata)


def open_target(
    uri: str, source: TableVersion, declaration: Declaration, options: Mapping[str, object]
) -> TableVersion:
    """Open the separate table, create it if it does not exist, and add missing columns.

    Raises:
        InvalidInputError: The table was not created by `derive`, or has a column that the
            derivation did not create or that has another type.
    """
    expected = schema_of(source, declaration)
    try:
        table = open_newest(uri, storage_options=dict(options))
    except NotFoundError:
        planned = plan_table(
            uri, expected, primary_key=SOURCE_ROW_ID, storage_options=dict(options)
        )
        try:
            return create_table(planned)
        except InvalidInputError:  # another process has created it
            table = open_newest(uri, storage_options=dict(options))
    if SOURCE_ROW_ID not in table.schema.names:
        raise InvalidInputError(
            f"the table {uri} has no column {SOURCE_ROW_ID!r}, so derive() did not create it. Use "
            "another location as target"
        )
    check_columns(table, declaration)
    names = table.schema.names
    if missing_columns(table, declaration) and declaration.state_column in names:
        # The existing states would be wrong for the new columns.
        table = drop_columns(table, [declaration.state_column])
    elif set(expected.names) <= set(names):
        return table
    return add_missing_columns(table, expected)


def stored_states(
    table: TableVersion, declaration: Declaration, rows: Sequence[CandidateRows]
) -> tuple[RowIds, npt.NDArray[np.int64]]:
    """Return the states of rows in the separate table; rows without a state are left out.

    Args:
        table: The separate table.
        declaration: The derived columns.
        rows: The rows of the source that are to be checked.

    Returns:
        (n,) u64 row ids of the source, ascending; and (n,) i64 states.
    """
    parts = [rows_of_fragment.row_ids for rows_of_fragment in rows]
    row_ids = np.sort(np.concatenate([np.empty(0, np.uint64), *parts]))
    ids, states = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    if len(row_ids):
        where = f"{SOURCE_ROW_ID} BETWEEN {int(row_ids[0])} AND {int(row_ids[-1])}"
        columns = [SOURCE_ROW_ID, quote_path((declaration.state_column,))]
        for batch in scan(table, columns, where):
            ids_of_batch = batch.column(0).to_numpy().astype(np.uint64)
            state = batch.column(1)
            mask = np.isin(ids_of_batch, row_ids) & state.is_valid().to_numpy(zero_copy_only=False)
            ids.append(ids_of_batch[mask])
            states.append(state.fill_null(0).to_numpy()[mask])
    stored_ids = np.concatenate(ids)
    order = np.argsort(stored_ids)
    return stored_ids[order], np.concatenate(states)[order]


def deleted_rows(table: TableVersion, source: TableVersion, before: TableVersion | None) -> RowIds:
    """Return the row ids in the separate table that no longer exist in the source.

    Args:
        table: The separate table.
        source: The newest version of the source.
        before: The version of the source to which the separate table's values belong; None if it
            is unknown, in which case all row ids of the separate table are read.
    """
    if before is None:
        id_parts = [
            batch.column(0).to_numpy().astype(np.uint64) for batch in scan(table, [SOURCE_ROW_ID])
        ]
        ids = np.concatenate([np.empty(0, np.uint64), *id_parts])
    else:
        ids = _ids_to_check(source, before)
    return ids[~find_rows(source, ids)[1]]


def _ids_to_check(source: TableVersion, before: TableVersion) -> RowIds:
    """Return the row ids of fragments that were removed or have other deleted rows."""
    new_fragments = source.manifest.fragments
    id_parts = [np.empty(0, np.uint64)]
    for index, fragment_id in enumerate(before.manifest.fragments.ids):
        new_index = new_fragments.index_by_id.get(fragment_id)
        raw = before.manifest.fragments.raw(index)
        if new_index is not None and new_fragments.raw(new_index) == raw:
            continue
        old = before.manifest.fragments[index]
        if new_index is not None and new_fragments[new_index].deletion_file == old.deletion_file:
            continue
        deleted = before.deleted_offsets(old)
        id_parts.append(np.delete(before.row_ids(old).to_array(), deleted.astype(np.int64)))
    return np.concatenate(id_parts)


def write(
    table: TableVersion,
    declaration: Declaration,
    store: Store,
    computed: Sequence[ComputedValues],
    deleted: RowIds,
    micro_batch: PendingBatch,
    config_entries: ConfigEntries,
    check: Callable[[Manifest], None],
    environment: Environment = MACHINE,
) -> UpsertResult:
    """Commit computed values and deletes together with the progress.

    Args:
        table: The separate table.
        declaration: The derived columns.
        store: The store of the staged values.
        computed: The values.
        deleted: Row ids of the source whose rows are deleted from the separate table.
        micro_batch: Identifies the commit.
        config_entries: The progress.
        check: Checks the newest version before each attempt.
        environment: Provides the clock and randomness.
    """
    columns = (*declaration.outputs.names, *declaration.copy_columns, declaration.state_column)
    batches = []
    for result in computed:
        if len(result.row_ids):
            staged = StagedValues(store, (result.values,), result.row_ids, columns)
            rows = staged(
                pa.RecordBatch.from_pylist([], pa.schema([])), slice(0, len(result.row_ids))
            )
            rows = rows.append_column(SOURCE_ROW_ID, pa.array(result.row_ids.astype(np.int64)))
            batches.append(rows.append_column(DELETES, pa.array(np.zeros(rows.num_rows, bool))))
    if len(deleted):
        types = {field.name: field.type for field in table.arrow_schema}
        batches.append(
            pa.RecordBatch.from_arrays(
                [
                    *(pa.nulls(len(deleted), types[name]) for name in columns),
                    pa.array(deleted.astype(np.int64)),
                    pa.array(np.ones(len(deleted), bool)),
                ],
                [*columns, SOURCE_ROW_ID, DELETES],
            )
        )
    rules = UpsertRules(
        on=(SOURCE_ROW_ID,), delete_when=f"{DELETES} = true", except_columns=(DELETES,)
    )
    schema = pa.schema([(field.name, field.type) for field in batches[0].schema])
    rows = pa.Table.from_batches([batch.cast(schema) for batch in batches])
    return upsert(
        table,
        rows,
        rules,
        micro_batch,
        environment=environment,
        config_entries=config_entries,
        check=check,
    )
