"""The function for foreachBatch that applies changes as Spark's AUTO CDC does."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any

from lance_stream.errors import InvalidInputError
from lance_stream.spark.arguments.choices import SCD_MODES
from lance_stream.spark.arguments.writer_arguments import AUTO_CDC
from lance_stream.spark.arguments.writer_calls import arguments_of, check_are_texts, suggest_names
from lance_stream.spark.session.session_settings import locate_written
from lance_stream.spark.sink.lance_sink import LanceSink
from lance_stream.spark.sink.reports import SinkCommit
from lance_stream.storage.namespaces.locating import TableId
from lance_stream.upsert.change_rules import ChangeRules


@suggest_names
def auto_cdc_sink(
    uri: str | os.PathLike[str] | None,
    keys: str | Sequence[str],
    sequence_by: str | Sequence[str],
    stored_as_scd_type: int | str = 1,
    *,
    apply_as_deletes: str | None = None,
    column_list: str | Sequence[str] | None = None,
    except_column_list: str | Sequence[str] | None = None,
    track_history_column_list: str | Sequence[str] | None = None,
    track_history_except_column_list: str | Sequence[str] | None = None,
    tombstones: str | timedelta | None = None,
    schema_evolution: str | Sequence[str] = "none",
    app_id: str | None = None,
    compact: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    create_options: Mapping[str, Any] | None = None,
    any_output_mode: bool = False,
    replays_may_differ: bool = False,
    branch: str | None = None,
    on_commit: Callable[[SinkCommit], object] | None = None,
    keep_indices_fresh: bool | Mapping[str, Any] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> LanceSink:
    """Return a function for `writeStream.foreachBatch` that applies changes as Spark's AUTO CDC.

    The rows of the stream are changes of a source, in any order. The table becomes a slowly
    changing dimension: of type 1, the current row of each key, or of type 2, the history of each
    key, whose rows are valid from `__START_AT` until before `__END_AT`. The first arguments have
    the names and meanings of those of `create_auto_cdc_flow`; columns and conditions are strings.
    See also `Dataset.apply_scd1` and `Dataset.apply_scd2`.

    Each micro-batch becomes one version, exactly once, as with `lance_sink`, which explains the
    arguments after `tombstones`.

    Args:
        uri: The table's location, for the driver and for all workers.
        keys: The key columns; integers, strings, bytes, dates, timestamps, decimals or booleans,
            and never null. They become the primary key of a new table of type 1.
        sequence_by: The column that orders the changes of a key, or several, compared one after
            the other.
        stored_as_scd_type: 1 for the current row of each key, 2 for its history.
        apply_as_deletes: A condition in Spark's SQL on a row, for example "op = 'd'": if true, the
            row deletes its key; a history keeps the deleted row, with an end.
        column_list: The columns of the batch that are stored; by default all.
        except_column_list: Instead, the columns that are not stored.
        track_history_column_list: For type 2: the columns whose changes begin a row of the history;
            by default all that are stored. Changes of other columns replace the value in the
            current row.
        track_history_except_column_list: For type 2: instead, the columns whose changes do not
            begin a row.
        tombstones: How long deletes, and other changes that no row shows, are remembered, for
            example "30 days"; by default forever. Changes that arrive later may be misplaced.
        schema_evolution: How batches may change the table's columns.
        app_id: The stream's id in the table's ledger; by default the streaming query's own id.
        compact: When small fragments are compacted: "auto", or after a number of batches.
        storage_options: Settings of the store.
        create_options: Options for a new table.
        any_output_mode: Accept a query whose output mode does not fit.
        replays_may_differ: Skip a committed batch id even if the batch arrives with different rows.
        branch: The branch to write, which must exist.
        on_commit: Called with the report of each batch.
        keep_indices_fresh: When the table's indices are brought up to date.
        table_id: The table's name in a Lance namespace, with `uri` None.
        namespace: The namespace.

    Raises:
        InvalidInputError: An argument is invalid.
    """
    parameters = locate_written(locals())
    check_are_texts(parameters)
    scd_type = _scd_type(stored_as_scd_type)
    of_changes = {field.name for field in fields(ChangeRules)}
    rules = ChangeRules.of(
        is_history=scd_type == 2,
        **{name: value for name, value in parameters.items() if name in of_changes},
    )
    arguments = arguments_of(
        AUTO_CDC,
        {name: value for name, value in parameters.items() if name not in of_changes},
        mode=SCD_MODES[scd_type],
        on=rules.keys,
        delete_when=rules.apply_as_deletes,
        changes=rules,
    )
    return LanceSink(arguments, on_commit)


def _scd_type(value: object) -> int:
    for scd_type in SCD_MODES:
        if value in (scd_type, str(scd_type)) and not isinstance(value, bool):
            return scd_type
    raise InvalidInputError(
        "stored_as_scd_type is 1, the current row of each key, or 2, the history of each key; not "
        f"{value!r:.200}"
    )
