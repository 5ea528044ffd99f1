"""What becomes of bad rows, for the sink and for the format as a writer."""

from typing import TYPE_CHECKING, Any

from lance_stream.ledger.micro_batches import MicroBatch
from lance_stream.spark.arguments.sink_arguments import WritingRules

if TYPE_CHECKING:
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch


def quarantine_batch(arguments: WritingRules, micro_batch: MicroBatch) -> "QuarantineBatch":
    """Return what sets the bad rows of a batch aside."""
    from lance_stream.quarantine.quarantine_writer import QuarantineBatch

    return QuarantineBatch(
        arguments.quarantine,
        arguments.storage_options,
        arguments.uri,
        micro_batch.app_id,
        micro_batch.batch_id,
    )


def recorded_rules(rules: WritingRules) -> dict[str, Any]:
    """Return how the rows of a batch are written, for a replay."""
    return {
        "mode": rules.mode,
        "on": list(rules.on),
        "sequence_by": rules.sequence_by,
        "except_columns": list(rules.except_columns),
        "tombstones": None if rules.tombstones is None else rules.tombstones.total_seconds(),
        "skip_unchanged": rules.skip_unchanged,
        "when_matched": rules.when_matched,
        "when_not_matched": rules.when_not_matched,
        "expect": {
            each.name: {"condition": each.condition, "columns": dict(each.spelled)}
            for each in rules.expect
        },
    }
