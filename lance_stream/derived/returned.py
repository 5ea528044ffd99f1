"""What a user's function has returned, as the values of a derived column.

    numpy arrays, lists, pandas, Arrow     become arrays of the declared types
    another number, shape, or type         is an error
    a value that would be another one      is an error: 1.5 as a whole number, a time as a date, a
                                           field of a struct that the type does not have

pyarrow makes of values what their type asks for, and cuts off what does not fit. So they are also
made arrays of the type that they have by themselves, and those are compared. Only floats may be
rounded: models return 64 bits where 32 are stored.
"""

import traceback
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.write.casting import cast_batch

_MAX_MESSAGE: Final = 2000
_SHOWN: Final = 100
_COARSE: Final = {"M": "YMWhm", "m": "WDhm"}
"""Units of times in numpy, and of durations, that Arrow does not have."""


def as_outputs(given: Any, outputs: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return what a function returned, in the types of the outputs.

    Args:
        given: An array, a list or another iterable of values; with several outputs a mapping of
            them, a RecordBatch or a frame.
        outputs: The columns.
        num_rows: How many rows the function was given.

    Raises:
        InvalidInputError: It is something else, has another number of values, or some do not fit.
    """
    if hasattr(given, "__arrow_c_stream__") and hasattr(given, "columns"):  # pandas, polars, Arrow
        given = one_batch_of(pa.table(given))
    if isinstance(given, pa.RecordBatch):
        given = dict(zip(given.schema.names, given.columns, strict=True))
    if not isinstance(given, Mapping):
        if len(outputs) > 1:
            raise InvalidInputError(
                "expected is a mapping, a RecordBatch or a DataFrame with the columns "
                f"{', '.join(outputs.names)}, not {_kind_of(given)}"
            )
        given = {outputs.names[0]: given}
    missing = [each for each in outputs.names if each not in given]
    if missing:
        raise InvalidInputError(f"it did not return the column {missing[0]!r}")
    columns = [_as_array(given[each.name], each, num_rows) for each in outputs]
    return cast_batch(pa.RecordBatch.from_arrays(columns, outputs.names), outputs)


def one_batch_of(table: pa.Table) -> pa.RecordBatch:
    """Return the rows of a table as one batch."""
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)


def list_size(kind: pa.DataType) -> int | None:
    """Return how many values each list of a type has; None if that is not settled."""
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def counted(number: int, what: str) -> str:
    """Return a number of things, in words."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def message_of(error: Exception) -> str:
    """Return what a user reads about an error of the function; ours need no name of a class."""
    if isinstance(error, LanceStreamError):
        return str(error)[:_MAX_MESSAGE]
    return "".join(traceback.format_exception_only(error)).strip()[:_MAX_MESSAGE]


def _as_array(values: Any, wanted: pa.Field, num_rows: int) -> pa.Array:
    """Return values as an array; of another type, perhaps, which is cast later.

    Raises:
        InvalidInputError: They are no values in an order, not as many as there are rows, or they do
            not fit the type.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidInputError(
            f"expected is a value of {wanted.name!r} for each row, in an array or a list, not "
            f"{_kind_of(values)}"
        )
    if isinstance(values, set | frozenset):
        raise InvalidInputError(
            f"the values of {wanted.name!r} are {_kind_of(values)}, which has no order and each "
            "value once; expected is an array or a list"
        )
    if not hasattr(values, "__len__"):
        values = list(values)
    kind = wanted.type
    if len(values) != num_rows or not _may_have_shape(values, kind):
        raise InvalidInputError(
            f"expected {counted(num_rows, 'value')} of {wanted.name!r} of the type {kind}, got "
            f"{_shape_of(values)}"
        )
    try:
        return _converted(values, kind)
    except Exception as error:  # whatever pyarrow, and objects among the values, raise
        raise InvalidInputError(
            f"the values of {wanted.name!r} do not fit the type {kind}: {message_of(error)}"
        ) from error


def _may_have_shape(values: Any, kind: pa.DataType) -> bool:
    """Return whether a row of a numpy array can be a value of a type; True of all else."""
    if not isinstance(values, np.ndarray) or values.ndim != 2:
        return True
    size = list_size(kind)
    if size is not None:
        return bool(size == values.shape[1])
    return bool(pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType))


def _shape_of(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return f"a numpy array of the shape {values.shape}"
    return f"{len(values)} in {_kind_of(values)}"


def _kind_of(given: Any) -> str:
    return "None" if given is None else f"a {type(given).__name__}"


# --- arrays of a type, without loss


def _converted(values: Any, kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type.

    Raises:
        Exception: Of pyarrow, or of objects among the values: they are no values of that type.
        InvalidInputError: One would become another value.
    """
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    is_plain = isinstance(values, np.ndarray) and values.dtype != np.object_
    if is_plain and values.ndim == 2 and pa.types.is_fixed_size_list(kind):
        items = _of_type(values.reshape(-1), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(items, type=kind)
    if is_plain and values.ndim == 1:
        return _of_type(values, kind)
    return _of_type(list(map(_as_value, values)), kind)


def _as_value(value: Any) -> Any:
    """Return a value as such; as a list, if pyarrow would misread it as an array.

    It overlooks masks and dimensions, and takes days for other units.
    """
    if not isinstance(value, np.ndarray):
        return value
    is_masked = isinstance(value, np.ma.MaskedArray)
    is_misread = value.dtype.kind in "mM" and np.datetime_data(value.dtype)[0] != "ns"
    return value.tolist() if is_masked or is_misread or value.ndim > 1 else value


def _of_type(values: Any, kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        # pa.array (23 to 26) takes days in 64 bits for other units, and for pairs of 32 bits
        unit = np.datetime_data(values.dtype)[0]
        if unit in _COARSE.get(values.dtype.kind, ""):
            values = values.astype(f"{values.dtype.kind}8[s]")
        found = pa.array(values)
        made = found.cast(kind)
        _check_kept(found, made)
        return made
    made = pa.array(values, kind)
    if pa.types.is_map(kind):
        pairs = [pair for each in values if each is not None for pair in dict(each).items()]
        _of_type([key for key, _ in pairs], kind.key_type)
        _of_type([item for _, item in pairs], kind.item_type)
        return made
    try:
        found = pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        return made  # pyarrow cannot tell their type, as of mappings, and of bytes beside texts
    _check_kept(found, made)
    return made


def _check_kept(found: pa.Array, made: pa.Array) -> None:
    """Raise if values are others in the type that was asked for.

    Args:
        found: The values, in the type that they have by themselves.
        made: The values, in the type that was asked for.

    Raises:
        InvalidInputError: One is.
    """
    if isinstance(made, pa.ExtensionArray):
        made = made.storage
    if found.type.equals(made.type) or pa.types.is_null(found.type) or pa.types.is_map(made.type):
        return
    if pa.types.is_struct(found.type) and pa.types.is_struct(made.type):
        names = [each.name for each in made.type]
        for part, values in zip(found.type, found.flatten(), strict=True):
            if part.name in names:
                _check_kept(values, made.flatten()[names.index(part.name)])
            elif values.null_count < len(values):
                raise InvalidInputError(
                    f"there is a field {part.name!r}, but the type has: {', '.join(names)}"
                )
    elif _is_list(found.type) and _is_list(made.type):
        _check_kept(found.flatten(), made.flatten())
    elif pa.types.is_floating(found.type) and pa.types.is_floating(made.type):
        wide = made.cast(pa.float64())
        _raise_first(pc.and_(pc.is_inf(wide), pc.is_finite(found.cast(pa.float64()))), found, made)
    else:
        try:
            if pa.types.is_floating(found.type) and pa.types.is_temporal(made.type):
                made = made.cast(pa.int64() if made.type.bit_width == 64 else pa.int32())
            back = made.cast(found.type)
            is_kept = pc.equal(back, found)
        except pa.ArrowNotImplementedError:
            return
        except pa.ArrowInvalid:
            is_kept = pa.nulls(len(found), pa.bool_())
        _raise_first(
            pc.and_(found.is_valid(), pc.invert(pc.fill_null(is_kept, False))), found, made
        )


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _raise_first(is_other: pa.Array, found: pa.Array, made: pa.Array) -> None:
    if pc.any(is_other).as_py():
        row = int(np.argmax(pc.fill_null(is_other, False).to_numpy(zero_copy_only=False)))
        value, other = (str(each[row].as_py())[:_SHOWN] for each in (found, made))
        raise InvalidInputError(f"{value} would become {other}")
