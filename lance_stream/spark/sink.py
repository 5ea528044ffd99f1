"""The sink: one micro-batch becomes one version of a Lance table, exactly once.

    batch N of a stream
        |  is it in the table's ledger?  then nothing is done
        |  do the columns fit?           else nothing is done, and the error says why
        v
    one Spark job: each task writes its Arrow batches into data files, and sends back what it wrote
        |  no version names the files yet: nobody sees them
        v
    one commit: the new fragments, and the ledger's entry for batch N

Spark calls the sink once for a batch, and again after a restart when it does not know whether the
batch was done: after a crash, but after an orderly stop as well. The ledger stands in the same
manifest as the rows, so a batch is in with its entry, or not at all.
"""

import logging
import pickle
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StructField, StructType

from lance_stream.dataset.append import append_fragments, write_target
from lance_stream.dataset.casting import check_castable
from lance_stream.dataset.create import create_table
from lance_stream.dataset.micro_batches import MicroBatch, find_taken_in
from lance_stream.dataset.opening import open_table
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.write_fragments import WriteTarget, delete_files, write_fragments
from lance_stream.errors import (
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    UnsupportedFeatureError,
)
from lance_stream.file.versions import FileVersion
from lance_stream.spark.arrow_jobs import ArrowFunction, map_in_arrow, settings
from lance_stream.spark.spark_types import stored_schema
from lance_stream.table.fragments import Fragment, decode_fragment, encode_fragment
from lance_stream.table.ledger import LedgerEntry

_log = logging.getLogger("lance_stream.spark.sink")

MODES: Final = {
    "append": None,
    "upsert": "upserts come with a later version of lance-stream; `mode='append'` is supported",
    "overwrite": "overwriting comes with a later version of lance-stream; `mode='append'` is "
    "supported",
}
"""What a batch does to the table, and why it is refused where it is."""

RECORDS_PER_BATCH: Final = "100000"
"""Rows of an Arrow batch on its way to a worker: fewer and larger than Spark's 10,000."""

BYTES_PER_TASK: Final = 32 << 20
"""Less data than this is not worth a second task: each costs a round through Python."""

SLOW_SECONDS: Final = 1.0
"""A write that takes longer is busy with computing the rows, and needs all the tasks it can get."""

CREATE_OPTIONS: Final = ("schema", "primary_key", "config", "stable_row_ids")
"""What `create_options` may hold."""


def lance_sink(
    uri: str,
    mode: str = "append",
    on: str | Sequence[str] | None = None,
    sequence_by: str | None = None,
    delete_when: str | None = None,
    except_columns: Sequence[str] | None = None,
    schema_evolution: str = "none",
    app_id: str | None = None,
    compact_every: int | None = None,
    file_version: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    create_options: Mapping[str, Any] | None = None,
) -> "LanceSink":
    """Return a function for `writeStream.foreachBatch` that puts a stream into a Lance table.

    Each micro-batch becomes one version, exactly once: a batch that Spark runs again is left out.
    An empty batch makes no version. The table is made with the first row, with stable row ids.

    Columns are matched by name. A missing nullable column becomes nulls; an unknown column, a type
    that narrows, or a null where none may be is refused, and nothing is written. What Spark loses
    of the table's types (fixed-size lists, unsigned integers, float16, units, zones) is given back.

    Args:
        uri: Where the table lies, for the driver and for all workers.
        mode: "append".
        on: For upserts, which come later.
        sequence_by: For upserts, which come later.
        delete_when: For upserts, which come later.
        except_columns: Comes later.
        schema_evolution: "none"; "add_columns" comes later.
        app_id: The name under which the table remembers this stream's batches. By default the
            streaming query's own id, which is as old as its checkpoint. One of your own survives
            a lost checkpoint, and is needed through Spark Connect, where Spark does not tell the
            query's id.
        compact_every: Comes later.
        file_version: Of a new table's data files, for example "2.1"; by default "2.2".
        storage_options: Settings of the store.
        create_options: How a new table is made: `schema` (a `pyarrow.Schema` to use instead of
            the DataFrame's; for example with fixed-size lists), `primary_key`, `config`,
            `stable_row_ids`.

    Raises:
        InvalidInputError: An argument makes no sense.
        UnsupportedFeatureError: An argument asks for what comes later.
    """
    later = {
        "on": on,
        "sequence_by": sequence_by,
        "delete_when": delete_when,
        "except_columns": except_columns,
        "compact_every": compact_every,
    }
    if mode not in MODES:
        raise InvalidInputError(f"mode is one of {', '.join(map(repr, MODES))}, not {mode!r}")
    if (refusal := MODES[mode]) is not None:
        raise UnsupportedFeatureError(f"lance_sink(mode={mode!r}): {refusal}")
    for name, value in later.items():
        if value is not None:
            raise UnsupportedFeatureError(
                f"lance_sink({name}={value!r}) comes with a later version of lance-stream"
            )
    if schema_evolution == "add_columns":
        raise UnsupportedFeatureError(
            "lance_sink(schema_evolution='add_columns') comes with a later version of "
            "lance-stream; the columns of the table are fixed when it is made"
        )
    if schema_evolution != "none":
        raise InvalidInputError(f"schema_evolution is 'none', not {schema_evolution!r}")
    if app_id is not None and (not isinstance(app_id, str) or not app_id.strip()):
        raise InvalidInputError(f"app_id is a name, not {app_id!r}")
    unknown = sorted(set(create_options or {}) - set(CREATE_OPTIONS))
    if unknown:
        raise InvalidInputError(
            f"create_options has no {', '.join(map(repr, unknown))}; it has: "
            f"{', '.join(CREATE_OPTIONS)}"
        )
    if file_version is not None:
        FileVersion.parse(file_version).check_supported()
    return LanceSink(
        uri=uri,
        app_id=app_id,
        file_version=file_version,
        storage_options=dict(storage_options or {}),
        create_options=dict(create_options or {}),
    )


@dataclass(frozen=True)
class SinkCommit:
    """What became of a micro-batch.

    Attributes:
        batch_id: Its number.
        app_id: The stream's name in the table's ledger.
        version: The version that holds the batch; None for an empty batch.
        skipped: Whether the table had the batch already, so that nothing was written.
        rows_inserted: Rows that came into the table.
        rows_updated: Rows that were changed; always 0 in mode "append".
        rows_deleted: Rows that were taken out; always 0 in mode "append".
        num_files: How many data files were written.
        bytes_written: Their size.
        seconds: How long each phase took: "plan" (the ledger, the schema), "write" (the Spark
            job), "commit".
    """

    batch_id: int
    app_id: str
    version: int | None = None
    skipped: bool = False
    rows_inserted: int = 0
    rows_updated: int = 0
    rows_deleted: int = 0
    num_files: int = 0
    bytes_written: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)


class LanceSink:
    """A function of a micro-batch and its number; see `lance_sink`, which makes it.

    Holds plain values only: Spark Connect pickles it and calls it in another process.

    Attributes:
        last_commit: What became of the last batch that this object was called with.
    """

    def __init__(
        self,
        uri: str,
        app_id: str | None,
        file_version: str | None,
        storage_options: dict[str, Any],
        create_options: dict[str, Any],
    ) -> None:
        self.uri = uri
        self.app_id = app_id
        self.file_version = file_version
        self.storage_options = storage_options
        self.create_options = create_options
        self.last_commit: SinkCommit | None = None
        self._few_tasks_help = True

    def __repr__(self) -> str:
        app = "" if self.app_id is None else f", app_id={self.app_id!r}"
        return f"lance_sink({self.uri!r}{app})"

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Put a micro-batch into the table, unless it is in.

        Args:
            df: Its rows.
            batch_id: Its number in the stream; a later batch has a larger one.

        Raises:
            InvalidInputError: The rows do not fit the table, the stream has no name, or the
                number belongs to another query's batch. Nothing was committed.
            CommitError: The rows were written, but did not become a version.
        """
        clock = _Clock()
        batch = self._identify(df, batch_id)
        commit = SinkCommit(batch_id, batch.app_id)
        with clock.phase("plan"):
            table = self._open()
            entry = None if table is None else find_taken_in(table, batch)
            if table is not None and entry is not None:
                _check_is_replay(table, entry, batch, df)
            elif table is not None:
                check_castable(stored_schema(df.schema), table.arrow_schema)
            elif not df.isEmpty():
                table = self._create(df)
        if entry is not None:
            commit = replace(commit, version=entry.version, skipped=True)
        elif table is not None:
            with clock.phase("write"):
                fragments = self._write(df, table)
            if fragments:
                with clock.phase("commit"):
                    commit = _commit(table, fragments, batch, commit)
                _remember(table, batch, df)
        self.last_commit = replace(commit, seconds=clock.seconds)
        _log.info("%s: %s", self.uri, self.last_commit)

    def _identify(self, df: DataFrame, batch_id: int) -> MicroBatch:
        query_id = _local_property(df, "sql.streaming.queryId")
        app_id = self.app_id or query_id
        if not app_id:
            raise InvalidInputError(
                "the sink does not know which stream this batch belongs to: Spark did not tell the "
                "id of a streaming query. It does so in the thread that runs foreachBatch, but not "
                "through Spark Connect, not in threads of your own, and not outside of a streaming "
                "query. Give the stream a name: lance_sink(uri, app_id='...')"
            )
        return MicroBatch(app_id, batch_id, query_id)

    def _open(self) -> TableVersion | None:
        try:
            return open_table(self.uri, storage_options=self.storage_options)
        except NotFoundError:
            return None

    def _create(self, df: DataFrame) -> TableVersion:
        """Make the table, or open what another writer has made meanwhile."""
        options = dict(self.create_options)
        schema = options.pop("schema", None)
        if schema is None:
            schema = stored_schema(df.schema)
        check_castable(stored_schema(df.schema), schema)
        try:
            return create_table(
                self.uri,
                schema,
                file_version=self.file_version,
                storage_options=self.storage_options,
                **options,
            )
        except InvalidInputError:
            table = self._open()
            if table is None:
                raise
            return table

    def _write(self, df: DataFrame, table: TableVersion) -> list[Fragment]:
        """Write the rows into data files that no version names yet."""
        target = write_target(table)
        num_tasks = self._number_of_tasks()
        if num_tasks is not None:
            df = df.coalesce(num_tasks)
        start = time.perf_counter()
        with settings(df.sparkSession, {_RECORDS_PER_BATCH: RECORDS_PER_BATCH}):
            rows = map_in_arrow(df, _writing(target), _OUTCOME).collect()
        if num_tasks is not None and time.perf_counter() - start > SLOW_SECONDS:
            self._few_tasks_help = False
        fragments = [decode_fragment(bytes(row.fragment)) for row in rows if row.fragment]
        for row in rows:
            if row.error is not None:
                delete_files(table.store, fragments)
                raise pickle.loads(row.error)
        return fragments

    def _number_of_tasks(self) -> int | None:
        """Return how many tasks write a batch at most; None for as many as it has partitions.

        A stream's batches resemble each other, so the last one's size tells. But fewer tasks also
        compute the rows, and where that is the work they must not be fewer: a batch that takes
        long keeps its partitions, and so do all after the first one that took long with few.
        """
        last = self.last_commit
        if last is None or not last.num_files or not self._few_tasks_help:
            return None
        if last.seconds["write"] > SLOW_SECONDS:
            return None
        return max(1, -(-last.bytes_written // BYTES_PER_TASK))


def _commit(
    table: TableVersion, fragments: Sequence[Fragment], batch: MicroBatch, commit: SinkCommit
) -> SinkCommit:
    done = append_fragments(table, fragments, batch)
    if not done.is_new:  # another driver was faster
        return replace(commit, version=done.taken_in_before, skipped=True)
    return replace(
        commit,
        version=done.table.version,
        rows_inserted=sum(each.physical_rows for each in fragments),
        num_files=len(fragments),
        bytes_written=sum(file.size_bytes for each in fragments for file in each.files),
    )


class _Written(NamedTuple):
    """The last batch that this process has put into a table for a stream."""

    run_id: str
    batch_id: int
    df: DataFrame


# By table and app id; only there to tell a replay from a second call.
_WRITTEN: dict[tuple[str, str], _Written] = {}


def _remember(table: TableVersion, batch: MicroBatch, df: DataFrame) -> None:
    run_id = _run_of(df)
    if run_id:
        _WRITTEN[table.store.uri, batch.app_id] = _Written(run_id, batch.batch_id, df)


def _run_of(df: DataFrame) -> str:
    """Return the run of a streaming query that gave a batch; empty outside of one."""
    if _is_in_connect_stream():
        return "this process"  # Spark Connect starts one for each run
    return _local_property(df, "spark.jobGroup.id")


def _is_in_connect_stream() -> bool:
    """Return whether this is the process in which Spark Connect runs a query's foreachBatch."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name.endswith(".foreach_batch_worker")


def _check_is_replay(
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
    last = _WRITTEN.get((table.store.uri, batch.app_id))
    if last is None or last.batch_id != batch.batch_id:
        return
    if last.run_id == _run_of(df) and not last.df.sameSemantics(df):
        raise InvalidInputError(
            f"batch {batch.batch_id} of app id {batch.app_id!r} was put into {table.uri} just now, "
            "and these are other rows: they would be taken for the same batch, and left out. Put "
            "both DataFrames together with unionByName() before the sink, or give each its own "
            "sink with its own app_id"
        )


_RECORDS_PER_BATCH: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_OUTCOME: Final = StructType(
    [StructField("fragment", BinaryType()), StructField("error", BinaryType())]
)
_OUTCOME_SCHEMA: Final = pa.schema([("fragment", pa.binary()), ("error", pa.binary())])


def _writing(target: WriteTarget) -> ArrowFunction:
    """Return the function that writes one partition in a worker; one row a file comes back.

    An error of ours comes back as a row, too: it would be the same at the second try, so Spark
    need not make one, and the driver can raise it as what it is. Others are Spark's to handle.
    """

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            fragments = write_fragments(batches, target)
            rows = [{"fragment": encode_fragment(each)} for each in fragments]
        except LanceStreamError as error:
            error.add_note("while a Spark task wrote its part of a batch; nothing was committed")
            rows = [{"error": pickle.dumps(error)}]
        if rows:
            yield pa.RecordBatch.from_pylist(rows, schema=_OUTCOME_SCHEMA)

    return write


def _local_property(df: DataFrame, name: str) -> str:
    """Return what Spark tells the thread that runs foreachBatch; empty where it does not."""
    with suppress(Exception):  # Spark Connect has no SparkContext, and says so in many ways
        return df.sparkSession.sparkContext.getLocalProperty(name) or ""
    return ""


class _Clock:
    """Seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = time.perf_counter() - start
