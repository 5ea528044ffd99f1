"""Writers of the format for a planned job, as Spark's processes have them."""

from typing import Any

from lance_stream.spark.arguments.writer_arguments import STREAM, WriterArguments
from lance_stream.spark.writer.checked_rows import Job, RowChecks
from lance_stream.spark.writer.lance_writer import BatchWriter, StreamWriter


def batch_writer(job: Job) -> BatchWriter:
    return BatchWriter(job, RowChecks(WriterArguments(job.uri)))


def stream_writer(job: Job, app_id: str | None = None, **arguments: Any) -> StreamWriter:
    checks = RowChecks(WriterArguments(job.uri, app_id=app_id, caller=STREAM, **arguments))
    return StreamWriter(job, checks)
