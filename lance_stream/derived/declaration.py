"""The declaration of derived columns: a function over Arrow batches, inputs, outputs, version."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import pyarrow as pa

from lance_stream.arguments import as_count, as_names, repeated_names
from lance_stream.errors import InvalidInputError
from lance_stream.write.arrow_input import without_views

Outputs: TypeAlias = pa.Field | pa.Schema | Mapping[str, pa.DataType] | Sequence[pa.Field]
"""Columns that a function computes: names and types."""

SOURCE_ROW_ID: Final = "source_row_id"
"""The column of a separate table with the row id of the source row."""

STATE_SUFFIX: Final = "_state"


@dataclass(frozen=True)
class Declaration:
    """A function, and the columns that it computes from others.

    Attributes:
        name: Identifies it in the table; the name of the first output unless given.
        inputs: The columns that the function gets, in this order.
        outputs: The columns that it returns, all nullable.
        function: Takes a `pyarrow.RecordBatch` of the inputs, and what the setup returned, if there
            is one; returns the outputs.
        function_version: A new one computes all rows anew.
        setup: Called once in each worker process: loads a model, for example.
        copy_columns: Columns of the source that a separate table has, too.
        batch_rows: How many rows the function gets at once, at most.
        rows_per_commit: How many rows one commit checks, at most.
        max_failures: How many rows of a round may fail before it is an error.
        quarantines: Whether rows that fail are quarantined; otherwise the first one is an error.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: pa.Schema
    function: Callable[..., Any]
    function_version: str
    setup: Callable[[], Any] | None = None
    copy_columns: tuple[str, ...] = ()
    batch_rows: int = 1024
    rows_per_commit: int = 100_000
    max_failures: int = 1000
    quarantines: bool = True

    @property
    def state_column(self) -> str:
        """The column that says from which inputs a row was computed; see `fingerprints`."""
        return self.name + STATE_SUFFIX

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that are read: a change of one of them computes the row anew."""
        return tuple(dict.fromkeys((*self.inputs, *self.copy_columns)))

    @property
    def written(self) -> pa.Schema:
        """The columns that are written: outputs and state."""
        return self.outputs.append(pa.field(self.state_column, pa.int64()))

    @property
    def app_id(self) -> str:
        """What the ledger and the quarantine know it by."""
        return f"derived column {self.name}"

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits: the function's version, the inputs and the outputs."""
        parts = [
            self.function_version,
            *self.read_columns,
            *(f"{output.name}: {output.type}" for output in self.outputs),
        ]
        text = "\0".join(parts)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def declare(
    outputs: Outputs,
    function: Callable[..., Any],
    inputs: Sequence[str] | str,
    *,
    function_version: str,
    name: str | None = None,
    setup: Callable[[], Any] | None = None,
    copy_columns: Sequence[str] = (),
    batch_rows: int = 1024,
    rows_per_commit: int = 100_000,
    max_failures: int = 1000,
    on_error: str = "quarantine",
) -> Declaration:
    """Return a checked declaration; see `derivation.derive` for the arguments.

    Raises:
        InvalidInputError: An argument is invalid; the message says which, and what it should be.
    """
    columns = _as_fields(outputs)
    input_names = as_names(inputs, "inputs")
    copied = as_names(copy_columns, "copy_columns")
    if not input_names:
        raise InvalidInputError("a derived column needs at least one input: inputs=['text']")
    if not callable(function):
        raise InvalidInputError(
            "the function must take a pyarrow.RecordBatch of the inputs and return the outputs; "
            f"it is a {type(function).__name__}"
        )
    if setup is not None and not callable(setup):
        raise InvalidInputError("setup must be a function without arguments, or None")
    if not isinstance(function_version, str) or not function_version:
        raise InvalidInputError(
            "function_version must be a string such as '1' or the name of a model; a change "
            f"computes all rows again. It is {function_version!r:.100}"
        )
    name = columns[0].name if name is None else name
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"the name must be a string, not {name!r:.100}")
    names = [*(column.name for column in columns), name + STATE_SUFFIX]
    repeated = repeated_names([*names, *input_names]) or repeated_names([*names, *copied])
    if repeated:
        raise InvalidInputError(
            f"the column {repeated[0]!r} occurs more than once among the inputs, the outputs and "
            f"{name + STATE_SUFFIX!r}, the state column"
        )
    if SOURCE_ROW_ID in copied:
        raise InvalidInputError(
            f"a separate table has its own column {SOURCE_ROW_ID!r}: rename the source's column "
            "before you copy it"
        )
    if on_error not in ("quarantine", "raise"):
        raise InvalidInputError(f"on_error must be 'quarantine' or 'raise', not {on_error!r:.100}")
    return Declaration(
        name,
        input_names,
        pa.schema(columns),
        function,
        function_version,
        setup,
        copied,
        as_count(batch_rows, "a batch has"),
        as_count(rows_per_commit, "a commit has"),
        as_count(max_failures, "max_failures is"),
        on_error == "quarantine",
    )


def _as_fields(outputs: Outputs) -> list[pa.Field]:
    try:
        if isinstance(outputs, pa.Field):
            fields = [outputs]
        elif isinstance(outputs, Mapping):
            fields = [pa.field(name, kind) for name, kind in outputs.items()]
        else:
            fields = list(outputs)
    except (TypeError, ValueError):  # a type of Python or numpy, or nothing to iterate over
        fields = []
    if not fields or not all(isinstance(field, pa.Field) for field in fields):
        raise InvalidInputError(
            "outputs must be names and Arrow types, such as {'embedding': "
            "pa.list_(pa.float32(), 384)}, a pyarrow.Field, or several in a list or a schema, not "
            f"{outputs!r:.200}"
        )
    for field, plain in zip(fields, without_views(pa.schema(fields)), strict=True):
        if field.type != plain.type:
            raise InvalidInputError(
                f"the output {field.name!r} is {field.type}, and tables have no views: declare it "
                f"as {str(plain.type).replace('large_', '')}. The function may return views"
            )
    return [field.with_nullable(True) for field in fields]
