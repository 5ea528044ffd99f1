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
"""The names and types of the columns that a function computes."""

SOURCE_ROW_ID: Final = "source_row_id"
"""The column of a separate table with the row id of the source row."""

STATE_SUFFIX: Final = "_state"


@dataclass(frozen=True)
class Declaration:
    """A function, and the columns that it computes from others.

    Attributes:
        name: Identifies the derivation in the table.
        inputs: The columns that the function receives, in this order.
        outputs: The columns that it returns, all of them nullable.
        function: Takes a `pyarrow.RecordBatch` of the inputs, and the result of the setup, if there
            is one; returns the outputs.
        function_version: If it changes, all rows are computed again.
        setup: Called once in each worker process, for example to load a model.
        copy_columns: Columns of the source that are copied to a separate table.
        batch_rows: The maximum number of rows in one call of the function.
        rows_per_commit: The maximum number of rows that one commit checks.
        max_failures: The maximum number of rows in a round for which the function may fail.
        quarantines: Whether rows that fail are quarantined; otherwise the first one is an error.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: pa.Schema
    function: Callable[..., Any]
    function_version: str
    setup: Callable[[], Any] | None
    copy_columns: tuple[str, ...]
    batch_rows: int
    rows_per_commit: int
    max_failures: int = 1000
    quarantines: bool = True

    @property
    def state_column(self) -> str:
        """The column with the fingerprints of the inputs of each row; see `fingerprints`."""
        return self.name + STATE_SUFFIX

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns that are read; if one of them changes, the row is computed again."""
        return tuple(dict.fromkeys((*self.inputs, *self.copy_columns)))

    @property
    def written(self) -> pa.Schema:
        """The columns that are written: the outputs and the state."""
        return self.outputs.append(pa.field(self.state_column, pa.int64()))

    @property
    def app_id(self) -> str:
        """The app id in the ledger and the quarantine."""
        return f"derived column {self.name}"

    @property
    def fingerprint(self) -> str:
        """A hash, 16 hexadecimal digits, of the function's version, the inputs and the outputs."""
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
    """Validate the arguments, which `derivation.derive` documents, and return the declaration.

    Raises:
        InvalidInputError: An argument is invalid.
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
            "function_version must be a string, such as '1' or the name of a model, not "
            f"{function_version!r:.100}. If it changes, all rows are computed again"
        )
    name = columns[0].name if name is None else name
    if not isinstance(name, str) or not name:
        raise InvalidInputError(f"the name must be a string, not {name!r:.100}")
    names = [*(column.name for column in columns), name + STATE_SUFFIX]
    repeated = repeated_names([*names, *input_names]) or repeated_names([*names, *copied])
    if repeated:
        raise InvalidInputError(
            f"the column {repeated[0]!r} occurs more than once among the inputs, the outputs and "
            f"the state column {name + STATE_SUFFIX!r}"
        )
    if SOURCE_ROW_ID in copied:
        raise InvalidInputError(
            f"a separate table already has a column {SOURCE_ROW_ID!r}: rename the source's column "
            "before copying it"
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
    except (TypeError, ValueError):  # not an Arrow type, or not iterable
        fields = []
    if not fields or not all(isinstance(field, pa.Field) for field in fields):
        raise InvalidInputError(
            "outputs must be a mapping from names to Arrow types, such as {'embedding': "
            "pa.list_(pa.float32(), 384)}, a pyarrow.Field, a list of fields or a schema, not "
            f"{outputs!r:.200}"
        )
    for field, plain in zip(fields, without_views(pa.schema(fields)), strict=True):
        if field.type != plain.type:
            raise InvalidInputError(
                f"the output {field.name!r} has type {field.type}, but tables cannot store views: "
                f"declare it as {str(plain.type).replace('large_', '')}; the function may return "
                "views"
            )
    return [field.with_nullable(True) for field in fields]
