"""Chooses the writer of the format "lance", with the plan of its tasks."""

from dataclasses import replace

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from lance_stream.ledger.micro_batches import MicroBatch
from lance_stream.spark.arguments.options import WriteOptions, parse_write_options
from lance_stream.spark.session.source_state import SourceState
from lance_stream.spark.session.user_errors import plainly
from lance_stream.spark.writer.checked_rows import Job, RowChecks, plan_checks
from lance_stream.spark.writer.lance_writer import BatchWriter, StreamWriter, check_mode, plan


@plainly
def batch_writer(source: SourceState, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of a batch, with the plan of its tasks."""
    asked = _asked(source, streaming=False)
    check_mode(asked, streaming=False, overwrite=overwrite)
    job, checks = _plan(source, asked, schema, overwrite)
    if asked.txn_app_id is None or asked.txn_version is None:
        return BatchWriter(job, None, checks)
    may_differ = asked.replays_may_differ
    numbered = MicroBatch(asked.txn_app_id, asked.txn_version, may_differ=may_differ)
    return BatchWriter(job, numbered, checks)


@plainly
def stream_writer(
    source: SourceState, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer of a micro-batch."""
    asked = _asked(source, streaming=True)
    check_mode(asked, streaming=True, overwrite=overwrite)
    overwrite = overwrite if asked.mode is None else asked.mode == "overwrite"
    job, checks = _plan(source, asked, schema, overwrite)
    return StreamWriter(
        job,
        asked.app_id,
        may_differ=asked.replays_may_differ,
        late_start=asked.late_start,
        checks=checks,
    )


def _plan(
    source: SourceState, asked: WriteOptions, schema: StructType, overwrite: bool
) -> tuple[Job, RowChecks | None]:
    is_exact = source.session_options.case_sensitive
    job = plan(asked, schema, overwrite, case_sensitive=is_exact)
    return job, plan_checks(asked, job, schema, case_sensitive=is_exact)


def _asked(source: SourceState, *, streaming: bool) -> WriteOptions:
    asked = parse_write_options(source.options, streaming=streaming)
    options = source.session_options.options_for(asked.uri, asked.storage_options)
    return replace(asked, storage_options=options)
