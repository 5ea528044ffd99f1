"""The rows for which a batch is refused, and the treatment of bad ones: the same for all writers.

The sink calls these functions from `spark.sink.bad_rows`, the format from `checked_rows`.
"""

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import AUTO_CDC, SINK, WriterArguments
from lance_stream.write.row_checks import BadRows, RowRules

if TYPE_CHECKING:
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch

_REMEDY_OF_SINK: Final = (
    "Correct or filter out these rows before the sink, change the check or the column; or let the "
    'sink quarantine such rows and commit the others: bad_rows="quarantine"'
)
_REMEDY_OF_FORMAT: Final = (
    "Correct or filter out these rows in the query, change the check or the column; or set the "
    "option badRows=quarantine, which stores such rows in a table of their own and commits the "
    "others"
)


def check_rows(arguments: WriterArguments, bad: BadRows, num_rows: int) -> None:
    """Raise if a batch is refused because of its rows; every writer calls it before it commits.

    Args:
        arguments: The arguments of the sink or writer.
        bad: The bad rows of the batch.
        num_rows: The number of its rows, good and bad.

    Raises:
        InvalidInputError: It has bad rows, which are not quarantined.
    """
    if bad and not arguments.quarantines:
        is_sink = arguments.caller in (SINK, AUTO_CDC)
        remedy = _REMEDY_OF_SINK if is_sink else _REMEDY_OF_FORMAT
        raise bad.error(arguments.uri, num_rows, remedy)


def row_rules(arguments: WriterArguments, stored: pa.Schema, deletes: str | None) -> RowRules:
    """Return the rules for each row of a batch.

    Args:
        arguments: The arguments of the sink or writer, with column names as in the batch.
        stored: The table's columns that the batch has.
        deletes: The column of the batch that marks rows that delete; None if there is none.
    """
    return RowRules(
        stored=stored,
        checks=arguments.expect,
        keys=arguments.on,
        sequence_by=arguments.sequence_by,
        deletes=deletes,
        casts=not arguments.is_by_key,
        keeps_rows=arguments.quarantines,
        hidden=() if deletes is None else (deletes,),
    )


def quarantine_batch(arguments: WriterArguments, micro_batch: MicroBatch) -> "QuarantineBatch":
    """Return what quarantines the bad rows of a batch."""
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch

    return QuarantineBatch(arguments.quarantine, arguments.storage_options, micro_batch)


def publish_bad_rows(
    arguments: WriterArguments, micro_batch: MicroBatch, target: TableVersion
) -> None:
    """Add the bad rows of a repeated batch to the quarantine, unless it has them.

    Args:
        arguments: The arguments of the sink or writer.
        micro_batch: The batch; the table has it.
        target: The table, at any version.
    """
    from lance_stream.quarantine.quarantine_writer import publish

    if arguments.quarantines:
        publish(arguments.quarantine, arguments.storage_options, target, micro_batch.app_id)


def recorded_rules(arguments: WriterArguments) -> dict[str, Any]:
    """Return how the rows of a batch are written, for a replay."""
    return {
        "mode": arguments.mode,
        "on": list(arguments.on),
        "sequence_by": arguments.sequence_by,
        "except_columns": list(arguments.except_columns),
        "tombstones": None
        if arguments.tombstones is None
        else arguments.tombstones.total_seconds(),
        "skip_unchanged": arguments.skip_unchanged,
        "when_matched": arguments.when_matched,
        "when_not_matched": arguments.when_not_matched,
        "expect": {
            check.name: {"condition": check.condition, "columns": dict(check.spelled)}
            for check in arguments.expect
        },
    }
