"""Row checks: find the rows of a batch that do not fit their table, or fail a user's condition.

A row is bad for the first of these reasons:

    null key      a key column of an upsert is null
    null          a column, or a part of one, is null that must not be null
    type          a value does not fit the column's type: it is out of range, has another length,
                  or is a string that is not UTF-8
    <a check>     a user's condition is not true for the row

The verdict on a row depends only on the row, the table's columns and the rules, so it is the same
in all processes. A condition is evaluated on the values as they would be stored. If it is null for
a row, it is not true, as in Delta's constraints and in filters: the rows that pass are those that
`scan(filter=condition)` selects. A row that deletes has a key and no values, so only its key and
its sequence are checked.

Problems of the batch as a whole are always an error: a column that the table lacks, a missing
column, a type that could lose values, a condition with an unknown column.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.arrays import Mask
from lance_stream.arrow_streams import decode_batches, encode_batches
from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.expressions.predicates import (
    bind,
    evaluate_predicate,
    parse_expression,
    parse_predicate,
    with_fixed_time,
)
from lance_stream.ledger.row_digests import NO_ROWS, digest_of
from lance_stream.schema.column_paths import resolve_name
from lance_stream.write.arrow_input import without_views
from lance_stream.write.casting import ForbiddenNullError, cast_column, check_castable
from lance_stream.write.rows_as_json import rows_to_json

NULL_KEY: Final = "null key"
NULL: Final = "null"
TYPE: Final = "type"

BUILT_IN_REASONS: Final = (NULL_KEY, NULL, TYPE)

BAD_ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("reason", pa.string(), nullable=False),
        pa.field("column", pa.string()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("row", pa.string(), nullable=False),
        pa.field("types", pa.string(), nullable=False),
        pa.field("deletes", pa.bool_(), nullable=False),
        pa.field("rows", pa.int64(), nullable=False),
    ]
)
"""Bad rows: the reason, the column, a message, the row as JSON and its types (see `rows_as_json`),
whether the row deletes, and a row count: 1, or that of all rows with the reason if they are only
counted.
"""

MAX_BAD_BYTES: Final = 256 << 20
"""The maximum size in bytes of a batch's bad rows, which the driver holds in memory."""


@dataclass(frozen=True)
class Check:
    """A condition that every row must meet.

    Attributes:
        name: The name; by default the condition.
        condition: A SQL condition, in the dialect of filters.
        spelled: Maps names in the condition to the batch's columns, where these differ.
    """

    name: str
    condition: str
    spelled: tuple[tuple[str, str], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The top-level columns that the condition names."""
        paths = parse_expression(self.condition).paths
        return tuple(dict.fromkeys(path[0] for path in paths))

    def column_of(self, name: str) -> str:
        """Return the batch's column for a name in the condition."""
        return dict(self.spelled).get(name, name)

    def with_columns(self, spelled_as: Callable[[str], str]) -> "Check":
        """Return the check for a batch that may spell its columns differently.

        Args:
            spelled_as: Returns the batch's column for a name.

        Raises:
            InvalidInputError: A name has no column; the message names the check.
        """
        try:
            spelled = tuple((name, spelled_as(name)) for name in self.columns)
            return replace(self, condition=with_fixed_time(self.condition), spelled=spelled)
        except InvalidInputError as error:
            raise InvalidInputError(f"the check {self.name!r:.200}: {error}") from None


def as_checks(expect: object) -> tuple[Check, ...]:
    """Return the user's conditions: one, several, or a mapping from names to conditions.

    Raises:
        InvalidInputError: They have another type, one cannot be parsed, or a name occurs twice.
    """
    if expect is None:
        return ()
    if isinstance(expect, str):
        named: list[tuple[object, object]] = [(expect, expect)]
    elif isinstance(expect, Mapping):
        named = list(expect.items())
    elif isinstance(expect, Iterable) and not isinstance(expect, bytes):
        named = [(condition, condition) for condition in expect]
    else:
        named = [(expect, expect)]
    checks = []
    for name, condition in named:
        if not isinstance(name, str) or not name.strip() or not isinstance(condition, str):
            raise InvalidInputError(
                "expect must be a condition, several, or a mapping from names to conditions: "
                f"expect={{'price': 'price >= 0'}}; not {expect!r:.200}"
            )
        check = Check(name, condition)
        if not check.columns:
            raise InvalidInputError(
                f"the check {name!r} ({condition!r:.200}) names no column, so it has the same "
                "result for all rows"
            )
        if name in BUILT_IN_REASONS:
            raise InvalidInputError(
                f"a check cannot be named {name!r}, which is a built-in reason; choose another "
                f"name: expect={{'{name} check': {condition!r:.100}}}"
            )
        checks.append(check)
    names = [check.name for check in checks]
    if len(set(names)) != len(names):
        raise InvalidInputError(f"expect has a check twice: {', '.join(names)}")
    return tuple(checks)


class CheckedBatch(NamedTuple):
    """A batch after the checks.

    Attributes:
        good: The rows to write.
        bad: The bad rows, as `BAD_ROWS_SCHEMA`.
    """

    good: pa.RecordBatch
    bad: pa.RecordBatch


@dataclass(frozen=True)
class RowRules:
    """The rules for the rows of a batch; picklable.

    Attributes:
        stored: The table's columns that the batch has.
        checks: The user's conditions.
        keys: The key columns of an upsert; a null in them is refused.
        sequence_by: The column that orders the rows of one key, if there is one.
        deletes: A boolean column of the batch, true for rows that delete; None without deletes.
        casts: Whether good rows are returned in the table's types, without other columns.
        keeps_rows: Whether bad rows are kept; if not, they are counted, with one example.
        hidden: Columns of the batch that bad rows do not include.
    """

    stored: pa.Schema
    checks: tuple[Check, ...] = ()
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    deletes: str | None = None
    casts: bool = True
    keeps_rows: bool = False
    hidden: tuple[str, ...] = ()

    @property
    def checked_columns(self) -> frozenset[str]:
        """The batch's columns that the conditions name."""
        return frozenset(check.column_of(name) for check in self.checks for name in check.columns)

    def check_batch(self, incoming: pa.Schema) -> None:
        """Raise unless batches with these columns can be checked.

        Raises:
            InvalidInputError: A column does not fit the table, or a condition is invalid.
        """
        stored = [field for field in incoming if field.name in self.stored.names]
        check_castable(pa.schema(stored), self.stored)
        fields = [
            self.stored.field(field.name) if field.name in self.stored.names else field
            for field in incoming
            if field.name not in self.hidden
        ]
        for check in self.checks:
            _check_condition(check, pa.schema(fields))

    def judge(self, batch: pa.RecordBatch) -> CheckedBatch:
        """Split a batch into good rows, and bad rows with their reasons.

        Args:
            batch: The batch as received; `check_batch` has accepted its columns.

        Raises:
            InvalidInputError: A bad row cannot be stored.
        """
        judging = _Judging(self, batch)
        columns = judging.cast_columns()
        for check in self.checks:
            judging.evaluate(check, columns)
        good = judging.is_good()
        if good.all():
            return CheckedBatch(self._good(batch, columns), _NO_BAD_ROWS)
        rows = batch.filter(pa.array(good))
        if self.casts:
            good_rows = np.flatnonzero(good)
            columns = {name: column.of_rows(good_rows) for name, column in columns.items()}
        return CheckedBatch(self._good(rows, columns), judging.bad_rows())

    def _good(self, rows: pa.RecordBatch, columns: "Mapping[str, _Column]") -> pa.RecordBatch:
        if not self.casts:
            return rows
        names = [name for name in rows.schema.names if name in columns]
        fields = [self.stored.field(name) for name in names]
        return pa.RecordBatch.from_arrays(
            [columns[name].values for name in names], schema=pa.schema(fields)
        )


@dataclass(frozen=True)
class _Column:
    """The values of a column for some rows, in the table's type.

    Attributes:
        rows: The rows, ascending; None for all.
        values: The values of these rows.
    """

    rows: npt.NDArray[np.int64] | None
    values: pa.Array

    def of_rows(self, rows: npt.NDArray[np.int64]) -> "_Column":
        """Return the values of some of the rows."""
        positions = rows if self.rows is None else np.searchsorted(self.rows, rows)
        return _Column(rows, self.values.take(pa.array(positions)))


class _Judging:
    """Checks the rows of one batch, reason by reason."""

    def __init__(self, rules: RowRules, batch: pa.RecordBatch) -> None:
        self._rules = rules
        self._batch = batch
        self._reasons: dict[int, tuple[str, str | None, str]] = {}
        num_rows = batch.num_rows
        self._deletes: Mask = np.zeros(num_rows, np.bool_)
        if rules.deletes is not None:
            marks = batch.column(rules.deletes).fill_null(False)
            self._deletes = np.asarray(marks.to_numpy(zero_copy_only=False), np.bool_)

    def is_good(self) -> Mask:
        good = np.ones(self._batch.num_rows, np.bool_)
        good[list(self._reasons)] = False
        return good

    def bad_rows(self) -> pa.RecordBatch:
        """Return the bad rows; or one example per reason, with the number of rows."""
        hidden = [name for name in self._rules.hidden if name in self._batch.schema.names]
        visible = self._batch.drop_columns(hidden) if hidden else self._batch
        reasons = sorted(self._reasons.items())
        counts: Counter[tuple[str, str | None]] = Counter()
        if not self._rules.keeps_rows:
            first: dict[tuple[str, str | None], tuple[int, tuple[str, str | None, str]]] = {}
            for row, reason in reasons:
                counts[reason[:2]] += 1
                first.setdefault(reason[:2], (row, reason))
            reasons = list(first.values())
        rows = [row for row, _ in reasons]
        texts, types = rows_to_json(visible.take(pa.array(rows, pa.int64())))
        return pa.RecordBatch.from_arrays(
            [
                pa.array([reason for _, (reason, _, _) in reasons], pa.string()),
                pa.array([column for _, (_, column, _) in reasons], pa.string()),
                pa.array([message for _, (_, _, message) in reasons], pa.string()),
                pa.array(texts, pa.string()),
                pa.array([types] * len(rows), pa.string()),
                pa.array(self._deletes[rows]),
                pa.array([counts.get(reason[:2], 1) for _, reason in reasons], pa.int64()),
            ],
            schema=BAD_ROWS_SCHEMA,
        )

    def cast_columns(self) -> dict[str, _Column]:
        """Return the stored columns in the table's types, for the rows that are good so far.

        Keys and sequences are cast for all rows, other columns only for rows that do not delete.
        """
        rules = self._rules
        columns: dict[str, _Column] = {}
        for name in rules.keys:
            column = self._batch.column(name)
            if column.null_count:
                missing = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
                self._mark(
                    missing, NULL_KEY, name, "the key is null, and null does not equal any value"
                )
        for name in self._batch.schema.names:
            if name in rules.stored.names:
                always = name in rules.keys or name == rules.sequence_by
                columns[name] = self._cast(name, None if always else self._deletes)
        return columns

    def _cast(self, name: str, rejected: Mask | None) -> _Column:
        target, values = self._rules.stored.field(name), self._batch.column(name)
        rows: npt.NDArray[np.int64] | None = None
        if rejected is not None and rejected.any():
            rows = np.flatnonzero(~rejected)
            values = values.take(pa.array(rows))
        if name in self._rules.keys and values.null_count:  # already marked
            rows = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            values = values.take(pa.array(rows))
        try:
            return _Column(rows, _fitted(values, target))
        except InvalidInputError:
            bad = dict(_unfit(values, target))
        positions = np.array(sorted(bad), np.int64)
        for index in positions.tolist():
            row = index if rows is None else int(rows[index])
            self._mark([row], *bad[index])
        good_rows = np.delete(np.arange(len(values)), positions)
        values = _rows_alone(values, good_rows)
        return _Column(good_rows if rows is None else rows[good_rows], _fitted(values, target))

    def evaluate(self, check: Check, columns: Mapping[str, _Column]) -> None:
        """Mark the rows for which a condition is not true, or cannot be evaluated."""
        is_candidate = self.is_good() & ~self._deletes
        if is_candidate.all():  # so that no column lacks a row
            rows = None
            candidates = np.arange(self._batch.num_rows)
        else:
            rows = candidates = np.flatnonzero(is_candidate)
        if not len(candidates):
            return
        arrays, names = [], []
        for name in check.columns:
            input_column = check.column_of(name)
            column = columns.get(input_column)
            if column is not None:
                arrays.append(column.values if rows is None else column.of_rows(rows).values)
            else:
                values = self._batch.column(input_column)
                arrays.append(values if rows is None else values.take(pa.array(rows)))
            names.append(name)
        for index, message in _not_true(check, pa.RecordBatch.from_arrays(arrays, names)):
            column_name = check.column_of(names[0]) if len(names) == 1 else None
            self._mark([int(candidates[index])], check.name, column_name, message)

    def _mark(self, rows: Iterable[Any], reason: str, column: str | None, message: str) -> None:
        for row in rows:
            self._reasons.setdefault(int(row), (reason, column, message))


def _fitted(values: pa.Array, target: pa.Field) -> pa.Array:
    """Cast values to a table's type.

    Raises:
        InvalidInputError: A value does not fit, or is a string that is not UTF-8.
    """
    fitted = cast_column(values, target)
    if _holds_text(target.type):
        try:
            fitted.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(f"column {target.name!r}: {error}") from None
    return fitted


def _holds_text(arrow: pa.DataType) -> bool:
    if isinstance(arrow, pa.BaseExtensionType):
        return _holds_text(arrow.storage_type)
    if pa.types.is_dictionary(arrow):
        return _holds_text(arrow.value_type)
    if pa.types.is_string(arrow) or pa.types.is_large_string(arrow):
        return True
    return any(_holds_text(arrow.field(index).type) for index in range(arrow.num_fields))


def _rows_alone(values: pa.Array, rows: npt.NDArray[np.int64]) -> pa.Array:
    """Return the values of some rows, without the items and dictionary values of other rows.

    Arrow validates the children and the dictionary of a slice as a whole.
    """
    chosen = values.take(pa.array(rows))
    if pa.types.is_dictionary(chosen.type):
        with suppress(pa.ArrowIndexError):  # an invalid index, which the cast reports
            return chosen.dictionary_decode()
    return chosen


def _unfit(values: pa.Array, target: pa.Field) -> Iterator[tuple[int, tuple[str, str | None, str]]]:
    """Find values that do not fit by bisection; yield their positions and reasons."""
    pending = [(0, len(values))]
    while pending:
        start, stop = pending.pop()
        if stop == start:
            continue
        try:
            _fitted(_rows_alone(values, np.arange(start, stop)), target)
        except InvalidInputError as error:
            if stop - start == 1:
                reason = NULL if isinstance(error, ForbiddenNullError) else TYPE
                yield start, (reason, target.name, str(error))
            else:
                middle = (start + stop) // 2
                pending += [(start, middle), (middle, stop)]


def _not_true(check: Check, rows: pa.RecordBatch) -> Iterator[tuple[int, str]]:
    """Yield the rows for which a condition is not true, with a message."""
    expression = bind(check.condition, rows.schema)
    pending = [(0, rows.num_rows)]
    while pending:
        start, stop = pending.pop()
        try:
            met = evaluate_predicate(expression, rows.slice(start, stop - start))
        except InvalidInputError as error:
            if stop - start == 1:
                yield start, f"the condition cannot be evaluated: {error}"
            else:
                middle = (start + stop) // 2
                pending += [(start, middle), (middle, stop)]
            continue
        if met.true_count == len(met):
            continue
        is_null = met.is_null().to_numpy(zero_copy_only=False)
        is_true = met.fill_null(False).to_numpy(zero_copy_only=False)
        for index in np.flatnonzero(~is_true).tolist():
            what = "null" if is_null[index] else "false"
            yield start + index, f"the condition {check.condition!r:.500} is {what}"


def _check_condition(check: Check, batch_schema: pa.Schema) -> None:
    names = check.columns
    missing = [name for name in names if check.column_of(name) not in batch_schema.names]
    if missing:
        raise InvalidInputError(
            f"the check {check.name!r:.200} names the column {missing[0]!r}, which the batch does "
            f"not have; it has: {', '.join(batch_schema.names)}"
        )
    schema = pa.schema(
        [batch_schema.field(check.column_of(name)).with_name(name) for name in names]
    )
    try:
        parse_predicate(check.condition, schema)
    except LanceStreamError as error:
        raise InvalidInputError(
            f"the check {check.name!r:.200} is not a condition on the batch's rows: {error}"
        ) from None


def resolve_columns(schema: pa.Schema, checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks for rows whose columns may differ in case."""
    names = schema.names
    return tuple(
        check.with_columns(lambda name: resolve_name(name, names) or name) for check in checks
    )


REMEDY_OF_VERBS: Final = (
    "Correct or filter out these rows, or change the check or the column. A streaming sink can "
    'quarantine them: lance_sink(bad_rows="quarantine")'
)


def refuse_bad_rows(
    rows: pa.RecordBatchReader, table: pa.Schema, checks: Sequence[Check], uri: str
) -> Iterator[pa.RecordBatch]:
    """Return the batches' good rows; after the last one, raise if there were bad rows.

    Args:
        rows: The rows as received.
        table: The table's columns.
        checks: The user's conditions.
        uri: The location of the table, for errors.

    Raises:
        InvalidInputError: There are bad rows, or the columns do not fit the table or the
            conditions.
    """
    stored = pa.schema([field for field in table if field.name in rows.schema.names])
    rules = RowRules(stored, resolve_columns(rows.schema, checks), casts=False)
    rules.check_batch(without_views(rows.schema))
    return _refuse(rows, rules, uri)


def _refuse(
    batches: Iterable[pa.RecordBatch], rules: RowRules, uri: str
) -> Iterator[pa.RecordBatch]:
    bad, num_rows = BadRows(), 0
    for received in batches:
        plain = without_views(received.schema)
        batch = received if plain.equals(received.schema) else received.cast(plain)
        good, reasons = rules.judge(batch)
        num_rows += batch.num_rows
        if reasons.num_rows:
            bad.add(reasons)
        yield good
    if bad:
        raise bad.error(uri, num_rows, REMEDY_OF_VERBS)


_NO_BAD_ROWS: Final = pa.RecordBatch.from_arrays(  # from_pylist would load pandas
    [pa.nulls(0, field.type) for field in BAD_ROWS_SCHEMA], schema=BAD_ROWS_SCHEMA
)


class CheckedBatches:
    """Batches that are digested and checked while they are read; yields the good rows.

    Args:
        batches: The rows as received.
        rules: The rules for them; None if all are good.
        helpers: Columns that are not part of the rows' digest.
        drops_helpers: Whether good rows lack these columns.

    Attributes:
        digest: The digest of the rows read so far, good and bad.
        bad: The bad rows so far.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        rules: RowRules | None,
        helpers: Collection[str] = (),
        *,
        drops_helpers: bool = False,
    ) -> None:
        self._batches = batches
        self._rules = rules
        self._helpers = helpers
        self._drops_helpers = drops_helpers
        self._schema: pa.Schema | None = None
        self.digest = NO_ROWS
        self.bad = BadRows()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            good = batch if self._rules is None else self._good(batch, self._rules)
            self.digest += digest_of(self._without_helpers(batch))
            yield self._without_helpers(good) if self._drops_helpers else good

    def _good(self, batch: pa.RecordBatch, rules: RowRules) -> pa.RecordBatch:
        if self._schema is None or not batch.schema.equals(self._schema):
            rules.check_batch(batch.schema)
            self._schema = batch.schema
        good, bad = rules.judge(batch)
        if bad.num_rows:
            self.bad.add(bad)
        return good

    def _without_helpers(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        helpers = [name for name in batch.schema.names if name in self._helpers]
        return batch.drop_columns(helpers) if helpers else batch


@dataclass
class BadRows:
    """The bad rows of a batch, or of a part of it.

    Attributes:
        batches: As `BAD_ROWS_SCHEMA`.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add some rows.

        Raises:
            InvalidInputError: There are too many bad rows.
        """
        self.batches.append(rows)
        if sum(batch.nbytes for batch in self.batches) > MAX_BAD_BYTES:
            raise InvalidInputError(
                f"more than {MAX_BAD_BYTES >> 20} MB of the batch's rows do not fit the table, for "
                f"example: {_row_text(self.batches[0], 0)}. Nothing was committed. These are too "
                "many for a quarantine: correct the table's columns, the checks or the stream"
            )

    def encode(self) -> bytes:
        """Return the rows as an Arrow stream, for another process; no bytes if there are none."""
        return encode_batches(BAD_ROWS_SCHEMA, self.batches) if self else b""

    def add_encoded(self, data: bytes) -> None:
        """Add the rows that another process has encoded."""
        for batch in decode_batches(data) if data else ():
            self.add(batch)

    def __bool__(self) -> bool:
        return any(batch.num_rows for batch in self.batches)

    @property
    def rows(self) -> pa.Table:
        """All rows, as `BAD_ROWS_SCHEMA`."""
        return pa.Table.from_batches(self.batches, BAD_ROWS_SCHEMA)

    def counts(self) -> dict[str, int]:
        """Return the number of rows per reason, the most frequent one first."""
        counter: Counter[str] = Counter()
        for batch in self.batches:
            pairs = zip(batch["reason"].to_pylist(), batch["rows"].to_pylist(), strict=True)
            for reason, count in pairs:
                counter[reason] += count
        return dict(counter.most_common())

    def error(self, uri: str, num_rows: int, remedy: str) -> InvalidInputError:
        """Return the error for a batch with bad rows that are not quarantined.

        Args:
            uri: The location of the table, for errors.
            num_rows: The number of rows of the batch.
            remedy: The remedy in the message.
        """
        counts = self.counts()
        total = sum(counts.values())
        reasons = []
        for reason in counts:
            batch, index = next(
                (bad_batch, names.index(reason))
                for bad_batch in self.batches
                if reason in (names := bad_batch["reason"].to_pylist())
            )
            reasons.append(
                f"{_phrase(reason, counts[reason])}, for example {_row_text(batch, index)}"
            )
        verb = "does" if total == 1 else "do"
        return InvalidInputError(
            f"{total} of {num_rows} rows {verb} not fit the table {uri}: {'; '.join(reasons)}. "
            f"Nothing was committed. {remedy}"
        )


def _phrase(reason: str, count: int) -> str:
    if reason == NULL_KEY:
        return f"{count} with a null key"
    if reason == NULL:
        return f"{count} with a null in a column that must not be null"
    if reason == TYPE:
        return f"{count} with a value that does not fit its column"
    return f"{count} for which the check {reason!r:.200} is not true"


def _row_text(batch: pa.RecordBatch, index: int) -> str:
    row, message = batch["row"][index].as_py(), batch["message"][index].as_py()
    return f"{row[:500]}{'...' if len(row) > 500 else ''} ({message[:300]})"
