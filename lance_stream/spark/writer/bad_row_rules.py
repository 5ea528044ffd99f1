"""The treatment of bad rows, by the sink and by the format as a writer."""

from typing import TYPE_CHECKING, Any

from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.spark.arguments.writer_arguments import WriterArguments

if TYPE_CHECKING:
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch


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
