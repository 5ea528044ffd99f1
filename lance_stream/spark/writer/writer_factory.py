"""Chooses the writer of the format "lance", with the plan of its tasks."""

from dataclasses import replace

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.session.source_state import SourceState
from lance_stream.spark.session.user_errors import without_traceback
from lance_stream.spark.versions import check_stream_writers
from lance_stream.spark.writer.checked_rows import Job, RowChecks, plan_checks
from lance_stream.spark.writer.lance_writer import BatchWriter, StreamWriter, check_spark_mode, plan


@without_traceback
def batch_writer(source: SourceState, schema: StructType, overwrite: bool) -> DataSourceWriter:
    """Return the writer of a batch, with the plan of its tasks."""
    arguments = _arguments(source, streaming=False)
    check_spark_mode(arguments, streaming=False, overwrite=overwrite)
    return BatchWriter(*_plan(source, arguments, schema, overwrite))


@without_traceback
def stream_writer(
    source: SourceState, schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer of a micro-batch."""
    check_stream_writers()
    arguments = _arguments(source, streaming=True)
    check_spark_mode(arguments, streaming=True, overwrite=overwrite)
    overwrite = overwrite if arguments.mode is None else arguments.mode == "overwrite"
    return StreamWriter(*_plan(source, arguments, schema, overwrite))


def _plan(
    source: SourceState, arguments: WriterArguments, schema: StructType, overwrite: bool
) -> tuple[Job, RowChecks]:
    is_exact = source.session_options.case_sensitive
    job = plan(arguments, schema, overwrite, case_sensitive=is_exact)
    return job, plan_checks(arguments, job, schema, case_sensitive=is_exact)


def _arguments(source: SourceState, *, streaming: bool) -> WriterArguments:
    namespace = source.session_options.namespace
    arguments = parse_writer_options(source.options, streaming, namespace)
    options = source.session_options.options_for(arguments.uri, arguments.storage_options)
    return replace(arguments, storage_options=options)
