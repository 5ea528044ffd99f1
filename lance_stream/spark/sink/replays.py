"""A batch that comes again: a replay of Spark's, or a second batch under the same number.

Which stream a batch belongs to Spark says in properties of the thread that runs foreachBatch.
"""

import sys
from contextlib import suppress
from typing import NamedTuple

from pyspark.sql import DataFrame

from lance_stream.dataset.micro_batches import MicroBatch
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.errors import InvalidInputError
from lance_stream.table.ledger import LedgerEntry


def identify(df: DataFrame, batch_id: int, app_id: str | None) -> MicroBatch:
    """Return which micro-batch of which stream a DataFrame is.

    Args:
        df: The batch.
        batch_id: Its number.
        app_id: The stream's name, if the user gave it one.

    Raises:
        InvalidInputError: It has no name, and Spark does not tell the query's id.
    """
    query_id = local_property(df, "sql.streaming.queryId")
    name = app_id or query_id
    if not name:
        raise InvalidInputError(
            "the sink does not know which stream this batch belongs to: Spark did not tell the "
            "id of a streaming query. It does so in the thread that runs foreachBatch, but not "
            "through Spark Connect, not in threads of your own, and not outside of a streaming "
            "query. Give the stream a name: lance_sink(uri, app_id='...')"
        )
    return MicroBatch(name, batch_id, query_id)


def local_property(df: DataFrame, name: str) -> str:
    """Return what Spark tells the thread that runs foreachBatch; empty where it does not."""
    with suppress(Exception):  # Spark Connect has no SparkContext, and says so in many ways
        return df.sparkSession.sparkContext.getLocalProperty(name) or ""
    return ""


class _Written(NamedTuple):
    """The last batch that this process has put into a table for a stream."""

    run_id: str
    batch_id: int
    df: DataFrame


# By table and app id; only there to tell a replay from a second call.
_WRITTEN: dict[tuple[str, str], _Written] = {}


def remember(uri: str, batch: MicroBatch, df: DataFrame) -> None:
    """Remember the batch that was put into a table just now."""
    run_id = _run_of(df)
    if run_id:
        _WRITTEN[uri, batch.app_id] = _Written(run_id, batch.batch_id, df)


def _run_of(df: DataFrame) -> str:
    """Return the run of a streaming query that gave a batch; empty outside of one."""
    if _is_in_connect_stream():
        return "this process"  # Spark Connect starts one for each run
    return local_property(df, "spark.jobGroup.id")


def _is_in_connect_stream() -> bool:
    """Return whether this is the process in which Spark Connect runs a query's foreachBatch."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.endswith(".foreach_batch_worker")


def check_is_replay(
    table: TableVersion, entry: LedgerEntry, batch: MicroBatch, df: DataFrame
) -> None:
    """Refuse rows that would be left out as a replay, but are none.

    Spark gives a batch once in a run of a query, so the second call in a run is the user's: trying
    again, with the same rows, or writing two DataFrames into one table.
    """
    if _is_in_connect_stream() and batch.batch_id < entry.batch_id:
        raise InvalidInputError(
            f"batch {batch.batch_id} of app id {batch.app_id!r} has come, but {table.uri} has "
            f"taken in batch {entry.batch_id} already. After a restart Spark gives the last batch "
            "again, but no older one: the checkpoint is new, or an old copy. (Through Spark "
            "Connect the query's id, which would tell, is not known.) Nothing was written. Go on "
            "from the old checkpoint; or, if the rows are not in the table yet, take another app_id"
        )
    last = _WRITTEN.get((table.uri, batch.app_id))
    if last is None or last.batch_id != batch.batch_id:
        return
    if last.run_id == _run_of(df) and not last.df.sameSemantics(df):
        raise InvalidInputError(
            f"batch {batch.batch_id} of app id {batch.app_id!r} was put into {table.uri} just now, "
            "and these are other rows: they would be taken for the same batch, and left out. Put "
            "both DataFrames together with unionByName() before the sink, or give each its own "
            "sink with its own app_id"
        )
