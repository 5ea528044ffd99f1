"""Decides which micro-batch may create a table."""

from lance_stream.ledger.messages import missing_table
from lance_stream.ledger.micro_batch import MicroBatch


def check_may_create(uri: str, batch: MicroBatch, *, late_start: bool) -> None:
    """Raise if a batch of a streaming query would create a table without the batches before it.

    The first batch of a query creates its table, even without rows. So if there is no table for a
    later batch, the table was deleted or moved, or the query wrote elsewhere before. Batch ids that
    do not come from Spark, without a query id, may begin with any number.

    Args:
        uri: The location without a table.
        batch: The batch.
        late_start: Whether a later batch may create the table, too.

    Raises:
        NotFoundError: The batch must not create the table.
    """
    if not late_start and batch.query_id and batch.batch_id:
        raise missing_table(uri, batch)
