"""Decides which micro-batch may create a table."""

from lance_stream.ledger.messages import missing_table
from lance_stream.ledger.micro_batch import MicroBatch


def check_may_create(uri: str, batch: MicroBatch, *, late_start: bool) -> None:
    """Raise if a batch of a streaming query would create a table without the batches before it.

    The first batch of a query creates its table, even without rows. So if there is no table at a
    later batch, it was deleted, or moved, or the query wrote elsewhere before. Batch ids that are
    not Spark's, without a query id, may begin anywhere.

    Args:
        uri: The location that has no table.
        batch: The batch.
        late_start: Whether the user allows a later batch to create the table.

    Raises:
        NotFoundError: It would.
    """
    if not late_start and batch.query_id and batch.batch_id:
        raise missing_table(uri, batch)
