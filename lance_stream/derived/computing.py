"""The work of a worker: reads inputs, and runs the function for rows that are not current.

    read      inputs and state of the rows of a job: no other column
    compare   which rows are not current (`fingerprints`)
    run       the function, in batches; of a batch that it raises for, halves, and halves of these,
              down to the rows that it fails for. What it returns has the shape and the types
              declared, or the function is wrong: halves might fit by accident
    stage     outputs and state, by row id, in a file that no version names, or in memory if small

The driver gets row ids and fingerprints, 16 bytes a row, and where the values are.
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
"""The reason in the quarantine of rows that a function has failed for."""

MAX_IN_MEMORY: Final = 64 << 10
"""Up to how many bytes of values a worker returns instead of writing a file."""

_MAX_ROW_BYTES: Final = 1 << 20

T = TypeVar("T")
R = TypeVar("R")


class Runner(Protocol):
    """Runs a function for each of some items, in this process or in others."""

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
        units: They read the inputs and row ids, and the state, if it is in the same table.
        store: Where values are staged.
        stored_states: Of a separate table: (n,) ascending row ids, and (n,) i64 their states.
    """

    units: tuple[WorkUnit, ...]
    store: Store
    stored_states: tuple[RowIds, npt.NDArray[np.int64]] | None = None


@dataclass(frozen=True)
class ComputedValues:
    """What a worker has computed.

    Attributes:
        values: Outputs, kept columns and state, by row id.
        row_ids: (n,) u64, ascending: the rows that were computed, failed ones included.
        fingerprints: (n,) i64, what their inputs were.
        num_checked: How many rows were looked at.
        num_failed: For how many the function failed.
        bad: These, as `row_checks.BAD_ROWS_SCHEMA`.
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
    stored_states: tuple[RowIds, npt.NDArray[np.int64]] | None = None,
) -> list[ComputeJob]:
    """Return the work of checking some rows, in parts of about equal size.

    Args:
        table: The version that they are read from.
        declaration: What is computed.
        rows: The rows.
        num_workers: How many workers there are.
        store: Where values are staged.
        stored_states: See `ComputeJob`; of all rows.
    """
    total = sum(len(row.offsets) for row in rows)
    size = max(min(-(-total // (3 * num_workers)), 20_000), min(declaration.batch_rows, 256))
    state = () if stored_states is not None else (declaration.state_column,)
    columns = tuple(quote_path((column,)) for column in (*declaration.read_columns, *state))
    jobs: list[ComputeJob] = []
    units: list[WorkUnit] = []
    ids: list[RowIds] = []
    num_rows = 0

    def finish() -> None:
        nonlocal num_rows
        ids_of_unit = None
        if stored_states is not None:
            mine = are_among(stored_states[0], np.sort(np.concatenate(ids)))
            ids_of_unit = stored_states[0][mine], stored_states[1][mine]
        jobs.append(ComputeJob(tuple(units), store, ids_of_unit))
        units.clear()
        ids.clear()
        num_rows = 0

    for row in rows:
        done = 0
        while done < len(row.offsets):
            part = slice(done, done + size - num_rows)
            offsets = row.offsets[part]
            units.append(
                unit_of(
                    table,
                    row.fragment_index,
                    columns=columns,
                    system_columns=(ROW_ID,),
                    offsets=offsets,
                )
            )
            ids.append(row.row_ids[part])
            num_rows += len(offsets)
            done += len(offsets)
            if num_rows >= size:
                finish()
    if units:
        finish()
    return jobs


def compute(declaration: Declaration, job: ComputeJob) -> ComputedValues | LanceStreamError:
    """Check the rows of a job, and compute those that are not current.

    Returns:
        The values, or the error that ends the round. An error is returned, not raised, so that the
        driver learns which files the other workers wrote.
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
    """The rows of one job on their way."""

    def __init__(self, declaration: Declaration) -> None:
        self._declaration = declaration
        self._fingerprint = declaration.fingerprint
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0
        self._done: list[pa.RecordBatch] = []
        self._ids: list[RowIds] = []
        self._fingerprints: list[Fingerprints] = []
        self._bad: list[pa.RecordBatch] = []
        self._messages: list[str] = []
        self._num_checked = 0
        self._num_failed = 0

    def check(self, batch: pa.RecordBatch, stored_states: tuple[RowIds, Any] | None) -> None:
        """Keep the rows that are not current, and compute as many as a batch has."""
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
        self._waiting.append(rows)
        self._num_waiting += rows.num_rows
        while self._num_waiting >= declaration.batch_rows:
            self._next(declaration.batch_rows)

    def flush(self) -> None:
        """Compute the rows that are left."""
        while self._num_waiting:
            self._next(min(self._num_waiting, self._declaration.batch_rows))

    def _next(self, num_rows: int) -> None:
        table = pa.Table.from_batches(self._waiting)
        batch = one_batch_of(table.slice(0, num_rows))
        self._waiting = table.slice(num_rows).to_batches()
        self._num_waiting -= num_rows
        inputs = batch.select(list(self._declaration.inputs))
        results = list(self._apply(inputs))
        outputs = one_batch_of(pa.Table.from_batches([output for output, _ in results]))
        failed = np.concatenate([np.full(output.num_rows, bad) for output, bad in results])
        fingerprints = batch.column(self._declaration.state_column).to_numpy()
        states = np.where(failed, -fingerprints, fingerprints)
        declaration = self._declaration
        copied = [batch.column(name) for name in declaration.copy_columns]
        self._done.append(
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
            self._describe(batch, np.flatnonzero(failed))

    def _apply(self, inputs: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
        """Yield the outputs of rows, in order, and whether the function failed for them."""
        declaration = self._declaration
        try:
            yield call(declaration, inputs), False
            return
        except DerivedFunctionError:  # it returned nonsense, for example: no row is at fault
            raise
        except Exception as error:  # whatever a user's function raises
            if inputs.num_rows == 1:
                self._fail(error)
                yield _nulls(declaration.outputs, 1), True
                return
        half = inputs.num_rows // 2
        yield from self._apply(inputs.slice(0, half))
        yield from self._apply(inputs.slice(half))

    def _fail(self, error: Exception) -> None:
        declaration = self._declaration
        self._num_failed += 1
        text = message_of(error)
        self._messages.append(text)
        if not declaration.quarantines or self._num_failed > declaration.max_failures:
            how_many = (
                "failed for a row"
                if not declaration.quarantines
                else f"failed for more than {declaration.max_failures} rows of a round"
            )
            raise DerivedFunctionError(
                f"the function of the derived column {declaration.name!r}, version "
                f"{declaration.function_version!r}, {how_many}. This round was not "
                f"committed: {text}. Correct the function"
                + (
                    ", or quarantine such rows: on_error='quarantine'"
                    if not declaration.quarantines
                    else ""
                )
            ) from error

    def _describe(self, batch: pa.RecordBatch, failed: npt.NDArray[np.intp]) -> None:
        """Note the rows that failed, as the quarantine keeps them."""
        bad = batch.select([*self._declaration.inputs, ROW_ID]).take(pa.array(failed))
        if bad.nbytes > _MAX_ROW_BYTES * bad.num_rows:
            bad = bad.select([ROW_ID])
        try:
            texts, types = rows_to_json(bad)
        except InvalidInputError:  # JSON cannot hold a column: the row id tells which row it is
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
        """Stage the values, and return what was done."""
        if not self._done:
            return ComputedValues(
                SortedRows(), np.empty(0, np.uint64), np.empty(0, np.int64), self._num_checked, 0
            )
        ids = np.concatenate(self._ids)
        order = np.argsort(ids)
        parts = list(zip(self._done, self._ids, strict=True))
        is_small = sum(values.nbytes for values in self._done) <= MAX_IN_MEMORY
        return ComputedValues(
            sort_rows(parts) if is_small else write_sorted(parts, store),
            ids[order],
            np.concatenate(self._fingerprints)[order],
            self._num_checked,
            self._num_failed,
            pa.Table.from_batches(self._bad, BAD_ROWS_SCHEMA),
        )


def _states_of(ids: RowIds, stored_ids: RowIds, states: npt.NDArray[np.int64]) -> pa.Array:
    if not len(stored_ids):
        return pa.nulls(len(ids), pa.int64())
    positions = np.minimum(np.searchsorted(stored_ids, ids), len(stored_ids) - 1)
    return pa.array(states[positions], mask=stored_ids[positions] != ids)


def _nulls(schema: pa.Schema, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.nulls(count, field.type) for field in schema], schema=schema
    )


# --- the user's function


_SETUPS: Final[dict[tuple[str, ...], Any]] = {}
"""What setups have returned in this process: a model is loaded once, not once in each task."""


def call(declaration: Declaration, inputs: pa.RecordBatch) -> pa.RecordBatch:
    """Return what the function returns for some rows, in the types of the outputs.

    Raises:
        DerivedFunctionError: It returned another number of values, or what does not fit the types;
            it ends the process; or the setup failed.
        Exception: Whatever it raises.
    """
    num_rows = inputs.num_rows
    if num_rows > 1 and any(list_size(output.type) == num_rows for output in declaration.outputs):
        # A square array of a row in each column would have the right shape.
        parts = [call(declaration, inputs.slice(0, 1)), call(declaration, inputs.slice(1))]
        return one_batch_of(pa.Table.from_batches(parts))
    inputs = with_text(inputs)
    arguments = (inputs,) if declaration.setup is None else (inputs, _model_of(declaration))
    try:
        result = _evaluated(declaration.function(*arguments))
    except SystemExit as error:  # in a worker, it would say nothing of the function
        raise _failed(declaration, "function", f"it called sys.exit({error.code!r})") from error
    try:
        return as_outputs(result, declaration.outputs, inputs.num_rows)
    except Exception as error:  # whatever conversions of pyarrow and of the user's objects raise
        raise DerivedFunctionError(
            f"the function of the derived column {declaration.name!r}, version "
            f"{declaration.function_version!r}, returned no valid values for "
            f"{counted(inputs.num_rows, 'row')}: {message_of(error)}. This round was not "
            "committed. The function must return a value for each row, in the order of the rows; "
            "None, or an exception, for a row without a value"
        ) from error


def _evaluated(outputs: Any) -> Any:
    """Return what a function returned, generators as lists: their errors are the function's."""
    if isinstance(outputs, Iterator):
        return list(outputs)
    if isinstance(outputs, dict) and any(isinstance(value, Iterator) for value in outputs.values()):
        return {name: _evaluated(value) for name, value in outputs.items()}
    return outputs


def _model_of(declaration: Declaration) -> Any:
    setup = declaration.setup
    names = getattr(setup, "__module__", ""), getattr(setup, "__qualname__", "")
    key = (declaration.name, declaration.fingerprint, *names)
    if key not in _SETUPS:
        assert setup is not None  # its caller looked
        _SETUPS.clear()  # models are large, and one function runs at a time
        try:
            _SETUPS[key] = setup()
        except SystemExit as error:
            raise _failed(declaration, "setup", f"it called sys.exit({error.code!r})") from error
        except Exception as error:
            raise _failed(declaration, "setup", message_of(error)) from error
    return _SETUPS[key]


def _failed(declaration: Declaration, what: str, why: str) -> DerivedFunctionError:
    return DerivedFunctionError(
        f"the {what} of the derived column {declaration.name!r} failed: {why}. This round was "
        "not committed"
    )


# --- staged values


@dataclass(frozen=True)
class StagedValues:
    """Computed values of some rows; picklable, also as what `row_updates.in_place` calls.

    Attributes:
        store: The store of staged files.
        files: They have the values of the rows, and of others.
        row_ids: (n,) u64, the rows wanted, in this order.
        columns: The columns wanted.
    """

    store: Store
    files: tuple[SortedRows, ...]
    row_ids: RowIds
    columns: tuple[str, ...]

    def of(self, part: slice) -> "StagedValues":
        """Return those of some of the rows, without the files that have none of them."""
        ids = self.row_ids[part]
        least, most = ids.min(), ids.max()
        files = [
            file
            for file in self.files
            if len(file.words)
            and file.words[:, 0].min() <= most
            and file.words[:, 1].max() >= least
        ]
        return replace(self, files=tuple(files), row_ids=ids)

    def __call__(self, _stored: pa.RecordBatch, which: slice) -> pa.RecordBatch:
        """Return the values of some of the rows; see `in_place.NewValues`."""
        row_ids = self.row_ids[which]
        words = WordRange(int(row_ids.min()), int(row_ids.max()))
        rows: list[pa.RecordBatch] = []
        ids: list[RowIds] = []
        sorted_ids = np.sort(row_ids)
        for file in self.files:
            for batch, rows_of_file in file.read_with_words(self.store, words):
                mine = np.flatnonzero(are_among(rows_of_file, sorted_ids))
                if len(mine):
                    rows.append(batch.select(list(self.columns)).take(pa.array(mine)))
                    ids.append(rows_of_file[mine])
        read_ids = np.concatenate(ids)
        order = np.argsort(read_ids)
        positions = order[np.searchsorted(read_ids, row_ids, sorter=order)]
        return one_batch_of(pa.Table.from_batches(rows)).take(pa.array(positions))
