"""Writes computed values to a separate table: one row for each row of the source.

    source_row_id   the row of the source, by its stable row id
    kept columns    copies of columns of the source: its key, for example
    outputs, state  as in the same table

The source is not written. A row of the source that is deleted, or gets another row id, leaves the
table beside. Its values are those of the source's version that the entry in its config names.
"""

from collections.abc import Callable, Mapping, Sequence

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
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.system_columns import DELETES
from lance_stream.snapshot.opening import open_newest
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.manifest import Manifest
from lance_stream.upsert.attempts import UpsertResult
from lance_stream.upsert.incoming import UpsertRules
from lance_stream.upsert.upsert import upsert
from lance_stream.verbs.columns.add_columns import add_missing_columns
from lance_stream.verbs.columns.drop_columns import drop_columns
from lance_stream.verbs.create import create_table, plan_table


def schema_of(source: TableVersion, declaration: Declaration) -> pa.Schema:
    """Return the columns of the separate table."""
    columns = source.arrow_schema
    copied = [columns.field(name).with_nullable(True) for name in declaration.copy_columns]
    row_id = pa.field(SOURCE_ROW_ID, pa.int64(), nullable=False)
    return pa.schema([row_id, *copied, *declaration.written])


def open_target(
    uri: str, source: TableVersion, declaration: Declaration, options: Mapping[str, object]
) -> TableVersion:
    """Return the separate table, created if there is none, with all columns.

    Raises:
        InvalidInputError: There is another table, or one with columns of others or of other types.
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
        except InvalidInputError:  # another process was faster
            table = open_newest(uri, storage_options=dict(options))
    if SOURCE_ROW_ID not in table.schema.names:
        raise InvalidInputError(
            f"the table {uri} has no column {SOURCE_ROW_ID!r}, so derive() did not create it. Use "
            "another location, target=..."
        )
    check_columns(table, declaration)
    names = table.schema.names
    if missing_columns(table, declaration) and declaration.state_column in names:
        table = drop_columns(table, [declaration.state_column])  # it says that the values are there
    elif set(expected.names) <= set(names):
        return table
    return add_missing_columns(table, expected)


def stored_states(
    table: TableVersion, declaration: Declaration, rows: Sequence[CandidateRows]
) -> tuple[RowIds, npt.NDArray[np.int64]]:
    """Return (n,) row ids of the source, ascending, and (n,) their states in the separate table.

    Rows without a state are left out.

    Args:
        table: The table beside.
        declaration: What is computed.
        rows: The rows of the source that are to be checked.
    """
    row_ids = np.sort(np.concatenate([np.empty(0, np.uint64), *(row.row_ids for row in rows)]))
    ids, states = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    if len(row_ids):
        where = f"{SOURCE_ROW_ID} BETWEEN {int(row_ids[0])} AND {int(row_ids[-1])}"
        columns = [SOURCE_ROW_ID, quote_path((declaration.state_column,))]
        for batch in scan(table, columns, where):
            ids_of_batch = batch.column(0).to_numpy().astype(np.uint64)
            state = batch.column(1)
            mine = np.isin(ids_of_batch, row_ids) & state.is_valid().to_numpy(zero_copy_only=False)
            ids.append(ids_of_batch[mine])
            states.append(state.fill_null(0).to_numpy()[mine])
    id_parts = np.concatenate(ids)
    order = np.argsort(id_parts)
    return id_parts[order], np.concatenate(states)[order]


def deleted_rows(table: TableVersion, source: TableVersion, before: TableVersion | None) -> RowIds:
    """Return which rows the separate table has of rows that the source has no more.

    Args:
        table: The table beside.
        source: The newest version of the source.
        before: The version that the separate table was made from; None if it is unknown: then all
            row ids of the separate table are read.
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
    """Return the row ids of fragments that have other deleted rows, or are gone."""
    now = source.manifest.fragments
    id_parts = [np.empty(0, np.uint64)]
    for index, fragment_id in enumerate(before.manifest.fragments.ids):
        at = now.index_by_id.get(fragment_id)
        raw = before.manifest.fragments.raw(index)
        if at is not None and now.raw(at) == raw:
            continue
        then = before.manifest.fragments[index]
        if at is not None and now[at].deletion_file == then.deletion_file:
            continue
        deleted = before.deleted_offsets(then)
        id_parts.append(np.delete(before.row_ids(then).to_array(), deleted.astype(np.int64)))
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
    """Commit computed values and deletes, with the progress.

    Args:
        table: The table beside.
        declaration: What was computed.
        store: Where the values are staged.
        computed: The values.
        deleted: Row ids of the source whose rows go.
        micro_batch: Identifies the commit.
        config_entries: The progress.
        check: Checks the newest version before each attempt.
        environment: The clock and randomness.
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
        kinds = {field.name: field.type for field in table.arrow_schema}
        batches.append(
            pa.RecordBatch.from_arrays(
                [
                    *(pa.nulls(len(deleted), kinds[name]) for name in columns),
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
