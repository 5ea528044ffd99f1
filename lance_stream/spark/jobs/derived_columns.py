"""Derived columns whose function runs in Spark's workers.

The rounds are those of `lance_stream.derived`: the driver plans from manifests and commits. A task
reads the inputs of its rows from the table's files, runs the function (`arrow_jobs`, Spark's
`mapInArrow`), and stages the values in a file; other tasks write them as columns, one fragment
each. The driver receives 16 bytes a row. For a separate table, values pass through it, by rounds.

A function is pickled by value if it is defined in a notebook or a script, as Spark does with its
own; so is a `setup`, which each Python worker calls once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.cloudpickle import dumps
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lance_stream.derived.declaration import Declaration, Outputs, declare
from lance_stream.derived.derivation import Derivation, check_copied_columns
from lance_stream.errors import DerivedFunctionError, InvalidInputError
from lance_stream.spark.jobs.arrow_jobs import described, run_in_tasks, slots_of
from lance_stream.spark.session.python_check import check_workers_python, explain_worker_errors
from lance_stream.spark.session.session_settings import (
    check_session,
    locate_in_session,
    options_in_session,
)
from lance_stream.spark.session.user_errors import without_our_frames
from lance_stream.storage.locations import check_is_shared, text_of
from lance_stream.storage.namespaces.locating import TableId
from lance_stream.storage.options.names import as_options

T = TypeVar("T")
R = TypeVar("R")

_SLOTS_IF_UNKNOWN = 8

_DIED: Final = "Python worker exited unexpectedly"
"""What Spark reports of a worker that was killed or crashed."""


class ByTasks:
    """Runs work in the tasks of a session; see `computing.Runner`.

    Args:
        spark: The session.
        description: Of its jobs, for Spark's UI.
    """

    def __init__(self, spark: SparkSession, description: str) -> None:
        self.num_workers = slots_of(spark) or _SLOTS_IF_UNKNOWN
        self._spark = spark
        self._description = description

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the function's results, in order; each item is a task.

        Raises:
            DerivedFunctionError: A Python worker died.
        """
        try:
            with explain_worker_errors(), described(self._spark, self._description):
                return run_in_tasks(self._spark, items, function)
        except (Py4JJavaError, PySparkException) as error:
            if _DIED not in str(error):
                raise
            raise DerivedFunctionError(
                "a Python worker of Spark died while it computed derived columns, most often for "
                "lack of memory or by a crash in native code. This round was not committed. "
                "Reduce batch_rows, or give workers more memory; "
                "'spark.python.worker.faulthandler.enabled' shows where native code crashes"
            ) from error


@without_our_frames
def derive(
    spark: SparkSession,
    uri: str | os.PathLike[str] | None,
    outputs: Outputs,
    function: Callable[..., Any],
    inputs: Sequence[str] | str,
    *,
    function_version: str,
    target: str | os.PathLike[str] | None = None,
    name: str | None = None,
    setup: Callable[[], Any] | None = None,
    copy_columns: Sequence[str] = (),
    batch_rows: int = 1024,
    rows_per_commit: int = 100_000,
    max_failures: int = 1000,
    on_error: str = "quarantine",
    quarantine: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    table_id: TableId | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> Derivation:
    """Declare columns that a function computes from other columns, in Spark's workers.

    Nothing is computed before `run` or `start`, which call the function for the rows whose inputs
    have changed, and for all rows if `function_version` has changed. Each round commits values and
    progress together: if the driver is killed, only the current round is computed again.

        embeddings = derive(
            spark, "docs.lance", {"embedding": pa.list_(pa.float32(), 384)}, embed,
            inputs=["text"], function_version="all-MiniLM-L6-v2", setup=load_model,
        )
        embeddings.run()                       # a batch: all rows that are out of date
        query = embeddings.start()             # alongside a stream that writes the table
        embeddings.status()

    Args:
        spark: The session.
        uri: The location of the table with the inputs, for the driver and for all workers. It must
            have stable row ids.
        outputs: The columns that are computed: a mapping from names to types, a `pyarrow.Field`, a
            list of fields, or a schema. They become new, nullable columns of the table.
        function: Takes a `pyarrow.RecordBatch` with n rows of the inputs, and returns n values: an
            Arrow array, a numpy array with one row per value, or a list; for several outputs, a
            mapping or a RecordBatch. A value must not depend on the other rows of the call.
        inputs: The columns that the function receives. No others are read.
        function_version: A string. If it changes, all rows are computed again, in rounds.
        target: The location of a separate table for the values; None for the same table.
        name: Identifies the derivation in its table; by default the name of the first output.
        setup: Called once in each Python worker, for example to load a model. Its result is the
            function's second argument.
        copy_columns: Columns of the source to copy to a separate table, such as its key.
        batch_rows: The maximum number of rows in one call of the function.
        rows_per_commit: The maximum number of rows that one commit checks.
        max_failures: The maximum number of rows in a commit for which the function may fail.
        on_error: "quarantine" stores null for rows for which the function raises, and quarantines
            them; "raise" ends the run at the first such row.
        quarantine: The location of the quarantine for failed rows; by default next to the table.
        storage_options: Settings of the store. If none of them give credentials or an endpoint,
            Spark's own settings apply, as for `lance_sink`.
        table_id: The table's name in a Lance namespace, with `uri` None; see `lance_sink`.
        namespace: The namespace.

    Raises:
        InvalidInputError: An argument is invalid; or the workers cannot run this package.
    """
    check_session(spark, "derive(spark, uri, ...)")
    uri, storage_options = locate_in_session(spark, uri, storage_options, table_id, namespace)
    declaration = declare(
        outputs,
        function,
        inputs,
        function_version=function_version,
        name=name,
        setup=setup,
        copy_columns=copy_columns,
        batch_rows=batch_rows,
        rows_per_commit=rows_per_commit,
        max_failures=max_failures,
        on_error=on_error,
    )
    check_copied_columns(declaration, target)
    _check_can_be_sent(declaration)
    check_workers_python(spark, only_tasks=True)
    check_is_shared(uri)
    location = text_of(uri)
    options = options_in_session(spark, location, as_options(storage_options))
    runner = ByTasks(spark, f"lance-stream: derive {declaration.name} of {location}")
    target_uri = None if target is None else text_of(target)
    return Derivation(location, declaration, target_uri, options, quarantine, runner)


def _check_can_be_sent(declaration: Declaration) -> None:
    """Raise unless the function can be pickled, as it is when a task begins.

    Raises:
        InvalidInputError: It refers to a session, a lock or the like.
    """
    for what, function in ("function", declaration.function), ("setup", declaration.setup):
        try:
            dumps(function)  # type: ignore[no-untyped-call]  # PySpark has no types there
        except Exception as error:  # whatever an object's own pickling raises
            raise InvalidInputError(
                f"the {what} of the derived column {declaration.name!r} refers to an object that "
                f"cannot be sent to Spark's workers: {error}. Create the object in setup=..., "
                "which every worker calls, or in the function itself"
            ) from error
