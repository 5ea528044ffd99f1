"""The work of a worker: reads inputs, and runs the function for rows that are not current.

    read      the inputs and state of the rows of a job, and no other column
    compare   determines which rows are not current (`fingerprints`)
    run       calls the function, in batches. If it raises for a batch, it is called for both halves
              of the batch, and so on, down to the rows for which it fails. If it returns another
              shape or type than declared, the round fails, because a half might fit by accident
    stage     stores outputs and state by row id, in a file that no version references, or in memory
              if they are small

The driver receives row ids and fingerprints, 16 bytes per row, and the locations of the values.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import RowIds
from lance_stream.derived.candidates import CandidateRows
from lance_stream.derived.declaration import Declaration
from lance_stream.derived.fingerprints import Fingerprints, are_stale, fingerprints_of
from lance_stream.derived.returned import as_outputs, counted, list_size, message_of, one_batch_of
from lance_stream.errors import DerivedFunctionError, InvalidInputError, LanceStreamError
from lance_stream.read.unit_rows import read_units
from lance_stream.read.units import WorkUnit, unit_of
from lance_stream.row_updates.staged_files import SortedRows, WordRange, sort_rows, write_sorted
from lance_stream.schema.column_paths import quote_path
from lance_stream.schema.system_columns import ROW_ID
from lance_stream.schema.types.json_columns import with_text
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.store import Store
from lance_stream.table.lineage.ascending import are_among
from lance_stream.write.row_checks import BAD_ROWS_SCHEMA
from lance_stream.write.rows_as_json import rows_to_json

REASON: Final = "function failed"
"""The reason in the quarantine of rows for which a function has failed."""

MAX_IN_MEMORY: Final = 64 << 10
"""Up to this size, a worker returns values instead of writing a file."""

_MAX_ROW_BYTES: Final = 1 << 20

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs a function for each item, in this process or in others."""

    num_workers: int

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the function's results, in order."""


class Local:
    """Runs everything in the calling thread."""

    num_workers = 1

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the function's results, in order."""
        return [function(item) for item in items]


@dataclass(frozen=True)
class ComputeJob:
    """Rows that one worker checks; picklable.

    Attributes:
        units: Work units that read the inputs and row ids, and the state if it is in the same
            table.
        store: The store for staged values.
        stored_states: The states in a separate table: (n,) u64 ascending row ids, and (n,) i64
            states; None for the same table.
    """

    units: tuple[WorkUnit, ...]
    store: Store
    stored_states: tuple[RowIds, npt.NDArray[np.int64]] | None


@dataclass(frozen=True)
class ComputedValues:
    """The result of a job.

    Attributes:
        values: Outputs, copied columns and state, by row id.
        row_ids: (n,) u64 row ids of the computed rows, including failed ones, ascending.
        fingerprints: (n,) i64 fingerprints of their inputs.
        num_checked: The number of rows that were checked.
        num_failed: The number of rows for which the function failed.
        bad: The failed rows, with schema `row_checks.BAD_ROWS_SCHEMA`.
    """

    values: SortedRows
    row_ids: RowIds
    fingerprints: Fingerprints
    num_checked: int
    num_failed: int
    bad: pa.Table = field(default_factory=BAD_ROWS_SCHEMA.empty_table)


def compute_jobs(
    table: TableVersion,
    declaration: Declaration,
    rows: Sequence[CandidateRows],
    num_workers: int,
    store: Store,
    stored_states: tuple[RowIds, npt.NDArray[np.int64]] | None,
) -> list[ComputeJob]:
    """Divide the rows to check into jobs of about equal size.

    Args:
        table: The version from which rows are read.
        declaration: The derived columns.
        rows: The rows to check.
        num_workers: The number of workers.
        store: The store for staged values.
        stored_states: See `ComputeJob`; for all rows.
    """
    total = sum(len(rows_of_fragment.offsets) for rows_of_fragment in rows)
    size = max(min(-(-total // (3 * num_workers)), 20_000), min(declaration.batch_rows, 256))
    state = () if stored_states is not None else (declaration.state_column,)
    columns = tuple(quote_path((column,)) for column in (*declaration.read_columns, *state))
    jobs: list[ComputeJob] = []
    units: list[WorkUnit] = []
    ids: list[RowIds] = []
    num_rows = 0

    def finish_job() -> None:
        nonlocal num_rows
        states_of_job = None
        if stored_states is not None:
            in_job = are_among(stored_states[0], np.sort(np.concatenate(ids)))
            states_of_job = stored_states[0][in_job], stored_states[1][in_job]
        jobs.append(ComputeJob(tuple(units), store, states_of_job))
        units.clear()
        ids.clear()
        num_rows = 0

    for rows_of_fragment in rows:
        start = 0
        while start < len(rows_of_fragment.offsets):
            part = slice(start, start + size - num_rows)
            offsets = rows_of_fragment.offsets[part]
            units.append(
                unit_of(
                    table,
                    rows_of_fragment.fragment_index,
                    columns=columns,
                    system_columns=(ROW_ID,),
                    offsets=offsets,
                )
            )
            ids.append(rows_of_fragment.row_ids[part])
            num_rows += len(offsets)
            start += len(offsets)
            if num_rows >= size:
                finish_job()
    if units:
        finish_job()
    return jobs


def compute(declaration: Declaration, job: ComputeJob) -> ComputedValues | LanceStreamError:
    """Check the rows of a job, and compute those that are not current.

    Returns:
        The values, or the error that ends the round. Errors are returned, not raised, so that the
        driver gets the names of the files that other workers wrote.
    """
    try:
        return _compute(declaration, job)
    except LanceStreamError as error:
        return error


def _compute(declaration: Declaration, job: ComputeJob) -> ComputedValues:
    run = _Run(declaration)
    for batch in read_units(job.units):
        run.check(batch, job.stored_states)
    run.flush()
    return run.result(job.store)


class _Run:
    """The state of one job."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._fingerprint = declaration.fingerprint
        self._pending: list[pa.RecordBatch] = []
        self._num_pending = 0
        self._results: list[pa.RecordBatch] = []
        self._ids: list[RowIds] = []
        self._fingerprints: list[Fingerprints] = []
        self._bad: list[pa.RecordBatch] = []
        self._messages: list[str] = []
        self._num_checked = 0
        self._num_failed = 0

    def check(self, batch: pa.RecordBatch, stored_states: tuple[RowIds, Any] | None) -> None:
        """Collect the rows that are not current, and compute all full batches of them."""
        declaration = self._declaration
        self._num_checked += batch.num_rows
        inputs = batch.select(list(declaration.read_columns))
        expected = fingerprints_of(inputs, self._fingerprint)
        ids = batch.column(ROW_ID).to_numpy()
        stored = (
            batch.column(declaration.state_column)
            if stored_states is None
            else _states_of(ids, *stored_states)
        )
        stale = np.flatnonzero(are_stale(stored, expected))
        if not len(stale):
            return
        rows = inputs.take(pa.array(stale))
        rows = rows.append_column(ROW_ID, pa.array(ids[stale]))
        rows = rows.append_column(declaration.state_column, pa.array(expected[stale]))
        self._pending.append(rows)
        self._num_pending += rows.num_rows
        while self._num_pending >= declaration.batch_rows:
            self._compute_batch(declaration.batch_rows)

    def flush(self) -> None:
        """Compute the remaining rows."""
        while self._num_pending:
            self._compute_batch(min(self._num_pending, self._declaration.batch_rows))

    def _compute_batch(self, num_rows: int) -> None:
        table = pa.Table.from_batches(self._pending)
        batch = one_batch_of(table.slice(0, num_rows))
        self._pending = table.slice(num_rows).to_batches()
        self._num_pending -= num_rows
        inputs = batch.select(list(self._declaration.inputs))
        results = list(self._apply(inputs))
        outputs = one_batch_of(pa.Table.from_batches([output for output, _ in results]))
        failed = np.concatenate([np.full(output.num_rows, bad) for output, bad in results])
        fingerprints = batch.column(self._declaration.state_column).to_numpy()
        states = np.where(failed, -fingerprints, fingerprints)
        declaration = self._declaration
        copied = [batch.column(name) for name in declaration.copy_columns]
        self._results.append(
            pa.RecordBatch.from_arrays(
                [*outputs.columns, *copied, pa.array(states)],
                [
                    *outputs.schema.names,
                    *self._declaration.copy_columns,
                    self._declaration.state_column,
                ],
            )
        )
        ids = batch.column(ROW_ID).to_numpy()
        self._ids.append(ids)
        self._fingerprints.append(fingerprints)
        if failed.any():
            self._add_bad_rows(batch, np.flatnonzero(failed))

    def _apply(self, inputs: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the outputs of rows, in order, and whether the function failed for them."""
        declaration = self._declaration
        try:
            yield call(declaration, inputs), False
            return
        except DerivedFunctionError:  # such as a wrong number of values: not the fault of a row
            raise
        except Exception as error:  # any error of the user's function
            if inputs.num_rows == 1:
                self._record_failure(error)
                yield _null_outputs(declaration.outputs, 1), True
                return
        half = inputs.num_rows // 2
        yield from self._apply(inputs.slice(0, half))
        yield from self._apply(inputs.slice(half))

    def _record_failure(self, error: Exception) -> None:
        declaration = self._declaration
        self._num_failed += 1
        text = message_of(error)
        self._messages.append(text)
        if not declaration.quarantines or self._num_failed > declaration.max_failures:
            problem, alternative = "a row", ", or quarantine such rows with on_error='quarantine'"
            if declaration.quarantines:
                problem, alternative = f"more than {declaration.max_failures} rows of a round", ""
            raise DerivedFunctionError(
                f"the function of the derived column {declaration.name!r}, version "
                f"{declaration.function_version!r}, failed for {problem}. This round was not "
                f"committed: {text}. Correct the function{alternative}"
            ) from error

    def _add_bad_rows(self, batch: pa.RecordBatch, failed: npt.NDArray[np.intp]) -> None:
        """Collect the rows that failed, in the form of the quarantine."""
        bad = batch.select([*self._declaration.inputs, ROW_ID]).take(pa.array(failed))
        if bad.nbytes > _MAX_ROW_BYTES * bad.num_rows:
            bad = bad.select([ROW_ID])
        try:
            texts, types = rows_to_json(bad)
        except InvalidInputError:  # a column has no JSON form; the row id identifies the row
            texts, types = rows_to_json(bad.select([ROW_ID]))
        count = bad.num_rows
        messages, self._messages = self._messages, []
        self._bad.append(
            pa.RecordBatch.from_arrays(
                [
                    pa.array([REASON] * count),
                    pa.array([self._declaration.name] * count),
                    pa.array(messages),
                    pa.array(texts),
                    pa.array([types] * count),
                    pa.array([False] * count),
                    pa.array([1] * count, pa.int64()),
                ],
                schema=BAD_ROWS_SCHEMA,
            )
        )

    def result(self, store: Store) -> ComputedValues:
        """Stage the values, and return the result of the job."""
        if not self._results:
            return ComputedValues(
                SortedRows(), np.empty(0, np.uint64), np.empty(0, np.int64), self._num_checked, 0
            )
        ids = np.concatenate(self._ids)
        order = np.argsort(ids)
        parts = list(zip(self._results, self._ids, strict=True))
        is_small = sum(values.nbytes for values in self._results) <= MAX_IN_MEMORY
        return ComputedValues(
            sort_rows(parts) if is_small else write_sorted(parts, store),
            ids[order],
            np.concatenate(self._fingerprints)[order],
            self._num_checked,
            self._num_failed,
            pa.Table.from_batches(self._bad, BAD_ROWS_SCHEMA),
        )


def _states_of(ids: RowIds, stored_ids: RowIds, states: npt.NDArray[np.int64]) -> pa.Array:
    """Return the stored state of each row id; null for those that are not stored."""
    if not len(stored_ids):
        return pa.nulls(len(ids), pa.int64())
    positions = np.minimum(np.searchsorted(stored_ids, ids), len(stored_ids) - 1)
    return pa.array(states[positions], mask=stored_ids[positions] != ids)


def _null_outputs(schema: pa.Schema, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(count, field.type) for field in schema], schema=schema
    )


# --- the user's function


_SETUPS: Final[dict[tuple[str, ...], Any]] = {}
"""The result of the setup in this process: a model is loaded once, not once per task."""


def call(declaration: Declaration, inputs: pa.RecordBatch) -> pa.RecordBatch:
    """Call the function, and convert its result to the types of the outputs.

    Raises:
        DerivedFunctionError: The function returned a wrong number of values, or values that do not
            fit the types; it called `sys.exit`; or the setup failed.
        Exception: Any error that the function raises.
    """
    num_rows = inputs.num_rows
    if num_rows > 1 and any(list_size(output.type) == num_rows for output in declaration.outputs):
        # A square array whose columns are the values of rows would have the right shape, too.
        parts = [call(declaration, inputs.slice(0, 1)), call(declaration, inputs.slice(1))]
        return one_batch_of(pa.Table.from_batches(parts))
    inputs = with_text(inputs)
    arguments = (inputs,) if declaration.setup is None else (inputs, _model_of(declaration))
    try:
        result = _evaluate(declaration.function(*arguments))
    except SystemExit as error:  # would end the worker without a reason
        raise _function_error(
            declaration, "function", f"it called sys.exit({error.code!r})"
        ) from error
    try:
        return as_outputs(result, declaration.outputs, inputs.num_rows)
    except Exception as error:  # any error of pyarrow or of the user's objects
        raise DerivedFunctionError(
            f"the function of the derived column {declaration.name!r}, version "
            f"{declaration.function_version!r}, returned invalid values for "
            f"{counted(inputs.num_rows, 'row')}: {message_of(error)}. This round was not "
            "committed. The function must return a value for each row, in the order of the rows; "
            "for a row without a value, it must return None or raise an exception"
        ) from error


def _evaluate(outputs: Any) -> Any:
    """Return the result of a function with generators as lists, so that it raises their errors."""
    if isinstance(outputs, Iterator):
        return list(outputs)
    if isinstance(outputs, dict) and any(isinstance(value, Iterator) for value in outputs.values()):
        return {name: _evaluate(value) for name, value in outputs.items()}
    return outputs


def _model_of(declaration: Declaration) -> Any:
    setup = declaration.setup
    names = getattr(setup, "__module__", ""), getattr(setup, "__qualname__", "")
    key = (declaration.name, declaration.fingerprint, *names)
    if key not in _SETUPS:
        assert setup is not None  # the caller checks this
        _SETUPS.clear()  # models are large, and one function runs at a time
        try:
            _SETUPS[key] = setup()
        except SystemExit as error:
            raise _function_error(
                declaration, "setup", f"it called sys.exit({error.code!r})"
            ) from error
        except Exception as error:
            raise _function_error(declaration, "setup", message_of(error)) from error
    return _SETUPS[key]


def _function_error(declaration: Declaration, kind: str, reason: str) -> DerivedFunctionError:
    return DerivedFunctionError(
        f"the {kind} of the derived column {declaration.name!r} failed: {reason}. This round was "
        "not committed"
    )


# --- staged values


@dataclass(frozen=True)
class StagedValues:
    """The computed values of rows; a picklable `row_updates.in_place.NewValues`.

    Attributes:
        store: The store of staged files.
        files: The files that contain the values of these rows, and of others.
        row_ids: (n,) u64 row ids, in the order of the result.
        columns: The columns to read.
    """

    store: Store
    files: tuple[SortedRows, ...]
    row_ids: RowIds
    columns: tuple[str, ...]

    def of(self, part: slice) -> "StagedValues":
        """Return the values of a range of the rows, without files that have none of them."""
        ids = self.row_ids[part]
        lowest, highest = ids.min(), ids.max()
        files = [
            file
            for file in self.files
            if len(file.words)
            and file.words[:, 0].min() <= highest
            and file.words[:, 1].max() >= lowest
        ]
        return replace(self, files=tuple(files), row_ids=ids)

    def __call__(self, _stored: pa.RecordBatch, part: slice) -> pa.RecordBatch:
        """Return the values of a range of the rows; see `in_place.NewValues`."""
        row_ids = self.row_ids[part]
        words = WordRange(int(row_ids.min()), int(row_ids.max()))
        rows: list[pa.RecordBatch] = []
        ids: list[RowIds] = []
        sorted_ids = np.sort(row_ids)
        for file in self.files:
            for batch, ids_of_batch in file.read_with_words(self.store, words):
                matches = np.flatnonzero(are_among(ids_of_batch, sorted_ids))
                if len(matches):
                    rows.append(batch.select(list(self.columns)).take(pa.array(matches)))
                    ids.append(ids_of_batch[matches])
        # The values are in the order of files; return them in the order of `row_ids`.
        read_ids = np.concatenate(ids)
        order = np.argsort(read_ids)
        positions = order[np.searchsorted(read_ids, row_ids, sorter=order)]
        return one_batch_of(pa.Table.from_batches(rows)).take(pa.array(positions))
