"""Converts the return value of a user's function to the values of derived columns.

    numpy arrays, lists, pandas, Arrow     become arrays of the declared types
    another number, shape, or type         is an error
    a value that the cast would change     is an error: 1.5 as a whole number, a time as a date, a
                                           field of a struct that the type does not have

pyarrow makes of values what their type asks for, and cuts off what does not fit. So what was made
is compared with what was given: numbers, and lists of some, as arrays of the type that they have by
themselves, all else value by value. Only floats may be rounded: models return 64 bits where 32 are
stored.
"""

import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, time
from numbers import Integral, Real
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.errors import InvalidInputError, LanceStreamError
from lance_stream.schema.types.logical_types import is_list_type
from lance_stream.write.casting import cast_batch

_MAX_MESSAGE: Final = 2000
_MAX_QUOTED: Final = 100
_MILLISECONDS_OF_DAY: Final = 86_400_000
_COARSE: Final = {"M": "YMWhm", "m": "WDhm"}
"""Units of times in numpy, and of durations, that Arrow does not have."""


def as_outputs(result: Any, outputs: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Return what a function returned, in the types of the outputs.

    Args:
        result: An array, a list or another iterable of values; with several outputs a mapping of
            them, a RecordBatch or a frame.
        outputs: The columns.
        num_rows: How many rows the function was given.

    Raises:
        InvalidInputError: It is something else, has another number of values, or some do not fit.
    """
    if hasattr(result, "__arrow_c_stream__") and hasattr(
        result, "columns"
    ):  # pandas, polars, Arrow
        result = one_batch_of(pa.table(result))
    if isinstance(result, pa.RecordBatch):
        result = dict(zip(result.schema.names, result.columns, strict=True))
    if not isinstance(result, Mapping):
        if len(outputs) > 1:
            raise InvalidInputError(
                "expected a mapping, a RecordBatch or a DataFrame with the columns "
                f"{', '.join(outputs.names)}, got {_kind_of(result)}"
            )
        result = {outputs.names[0]: result}
    missing = [name for name in outputs.names if name not in result]
    if missing:
        raise InvalidInputError(f"the column {missing[0]!r} is missing")
    columns = [_as_array(result[output.name], output, num_rows) for output in outputs]
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


def _as_array(values: Any, target: pa.Field, num_rows: int) -> pa.Array:
    """Return values as an array; of another type, perhaps, which is cast later.

    Raises:
        InvalidInputError: They are no values in an order, not as many as there are rows, or they do
            not fit the type.
    """
    if not isinstance(values, Iterable) or isinstance(values, str | bytes | Mapping):
        raise InvalidInputError(
            f"expected an array or list with a value of {target.name!r} for each row, got "
            f"{_kind_of(values)}"
        )
    if isinstance(values, set | frozenset):
        raise InvalidInputError(
            f"expected an array or list of values of {target.name!r}, got {_kind_of(values)}, "
            "which has no order and no repeated values"
        )
    if not hasattr(values, "__len__"):
        values = list(values)
    kind = target.type
    if len(values) != num_rows or not _may_have_shape(values, kind):
        raise InvalidInputError(
            f"expected {counted(num_rows, 'value')} of {target.name!r} of the type {kind}, got "
            f"{_shape_of(values)}"
        )
    try:
        return _converted(values, kind)
    except Exception as error:  # whatever pyarrow, and objects among the values, raise
        raise InvalidInputError(
            f"the values of {target.name!r} do not fit the type {kind}: {message_of(error)}"
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


def _kind_of(result: Any) -> str:
    return "None" if result is None else f"a {type(result).__name__}"


# --- arrays of a type, without loss


def _converted(values: Any, kind: pa.DataType) -> pa.Array:
    """Return values as an array of a type; of another type, perhaps, if they are Arrow's.

    Raises:
        Exception: Of pyarrow, or of objects among the values: they are no values of that type.
        InvalidInputError: One would become another value.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return _of_numbers(values, kind)
    if type(values).__module__.partition(".")[0] == "pandas" and values.dtype != np.object_:
        array = pa.array(values, from_pandas=True)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        return _of_numbers(array, kind)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufmMSU":
        if values.ndim == 2 and pa.types.is_fixed_size_list(kind):
            items = _of_items(values.reshape(-1), kind.value_type)
            return pa.FixedSizeListArray.from_arrays(items, type=kind)
        if values.ndim == 1:
            return _of_items(values, kind)
    return _of_objects(list(map(_plain, values)), kind)


def _of_numbers(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return Arrow's values; if they are numbers, or lists of some, in a narrower type, too.

    Others are cast later, by the rules for all rows that come in.
    """
    if array.type.equals(kind) or not (_has_numbers(array.type) and _has_numbers(kind)):
        return array
    numbers = array.cast(kind, safe=not _has_floats(kind))
    _check_numbers(array, numbers)
    return numbers


def _of_items(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return the values of a numpy array of plain items.

    pyarrow takes numbers for the bytes of texts, and for truth values: only numbers become numbers,
    and times times, as they are; all else goes through Python.
    """
    if values.dtype.kind in "biuf" and _has_numbers(kind):
        items = pa.array(values, kind)
        _check_numbers(pa.array(values), items)
        return items
    if values.dtype.kind not in "mM" or not _may_be_times(kind):
        return _of_objects(list(map(_plain, values)), kind)
    # pa.array (23 to 26) takes days in 64 bits for other units, and for pairs of 32 bits
    unit = np.datetime_data(values.dtype)[0]
    if unit in _COARSE[values.dtype.kind]:
        values = values.astype(f"{values.dtype.kind}8[s]")
    array = pa.array(values)
    items = array.cast(kind)
    if not items.cast(array.type).equals(array):
        raise InvalidInputError(f"a time of the unit {unit!r} would be truncated")
    return items


def _may_be_times(kind: pa.DataType) -> bool:
    """Return whether values are times without a zone, durations, or numbers of such."""
    return bool(
        pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not getattr(kind, "tz", None))
    )


def _of_objects(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return Python's values, once they have been compared with what was made of them."""
    objects = pa.array(_halves(values) if pa.types.is_float16(kind) else values, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return objects
    if _has_numbers(kind):
        try:
            array = pa.array(values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            array = None  # pyarrow cannot tell their type
        if array is not None and _has_numbers(array.type):  # as fast as pyarrow
            _check_numbers(array, objects)
            return objects
    for value, stored in zip(values, objects.to_pylist(), strict=True):
        if not _is_same(value, stored, kind):
            example = f"{value!s:.{_MAX_QUOTED}} would become {stored!s:.{_MAX_QUOTED}}"
            raise InvalidInputError(example)
    return objects


def _halves(values: Iterable[Any]) -> list[Any]:
    """Return numbers as numpy's halves, as older versions of pyarrow want them."""
    with np.errstate(over="ignore"):
        return [np.float16(value) if isinstance(value, Real) else value for value in values]


def _plain(value: Any) -> Any:
    """Return a value without arrays of numpy, whose masks, dimensions and days pyarrow misreads."""
    if isinstance(value, np.ndarray):
        is_masked = isinstance(value, np.ma.MaskedArray)
        if value.dtype.names or (_is_fine(value.dtype) and not is_masked):
            return list(map(_plain, value))
        if value.ndim == 1 and value.dtype.kind in "biuf" and not is_masked:
            return value
        if _is_fine(value.dtype):  # of which tolist would make numbers
            return [None if item is np.ma.masked else _plain(item) for item in value]
        value = value.tolist()
    if isinstance(value, np.void):  # a row of a structured array
        return {name: _plain(value[name]) for name in value.dtype.names or ()}
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if type(value) in (list, tuple) and not _are_plain(value):
        return type(value)(map(_plain, value))
    if _is_missing(value):
        return None
    if isinstance(value, np.generic) and value.dtype.kind in "biufmM":
        return value if _is_fine(value.dtype) else value.item()
    return value


def _is_fine(kind: np.dtype[Any]) -> bool:
    """Return whether values are times of a unit that those of Python do not have."""
    return kind.kind in "mM" and np.datetime_data(kind)[0] in ("ns", "ps", "fs", "as")


def _are_plain(values: Sequence[Any]) -> bool:
    """Return whether all are plain numbers, as those of vectors are."""
    return {*map(type, values)} <= {float, int}


def _is_missing(value: Any) -> bool:
    """Return whether a value is pandas' NA or NaT, or numpy's NaT."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ in ("NAType", "NaTType")


def _has_numbers(kind: pa.DataType) -> bool:
    """Return whether values are numbers, or lists of some."""
    item = _item_type(kind)
    return bool(pa.types.is_integer(item) or pa.types.is_floating(item))


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(_item_type(kind)))


def _item_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the innermost items of a list."""
    while is_list_type(kind):
        kind = kind.value_type
    return kind


def _check_numbers(array: pa.Array, numbers: pa.Array) -> None:
    """Raise if numbers, or those in lists, are others in the type that was asked for.

    Args:
        array: In the type that they have by themselves.
        numbers: In the type that was asked for.

    Raises:
        InvalidInputError: One is.
    """
    while is_list_type(array.type) and is_list_type(numbers.type):
        array, numbers = array.flatten(), numbers.flatten()
    if array.type.equals(numbers.type) or not _has_numbers(array.type) or is_list_type(array.type):
        return
    if pa.types.is_floating(array.type) and pa.types.is_floating(numbers.type):
        overflows = pc.is_inf(numbers.cast(pa.float64()))
        is_other = pc.and_(overflows, pc.is_finite(array.cast(pa.float64())))
    else:
        back = numbers.cast(
            pa.float64() if pa.types.is_float16(array.type) else array.type, safe=False
        )
        is_other = pc.not_equal(back, array.cast(back.type))
    if pc.any(is_other).as_py():
        row = int(np.argmax(pc.fill_null(is_other, False).to_numpy(zero_copy_only=False)))
        raise InvalidInputError(f"{array[row].as_py()} would become {numbers[row].as_py()}")


def _is_same(value: Any, stored: Any, kind: pa.DataType) -> bool:
    """Return whether a value is what was stored; a float, if it was only rounded.

    Args:
        value: As the function returned it.
        stored: As Python has it in the type.
        kind: The type.
    """
    if value is None or _is_missing(value):
        return stored is None
    if stored is None:
        return False
    if pa.types.is_struct(kind):
        return _is_same_struct(value, stored, kind)
    if pa.types.is_map(kind):
        entries = [*dict(value).items()]
        return len(entries) == len(stored) and all(
            _is_same(number[0], other[0], kind.key_type)
            and _is_same(number[1], other[1], kind.item_type)
            for number, other in zip(entries, stored, strict=True)
        )
    if is_list_type(kind):
        entries = list(value)
        return len(entries) == len(stored) and all(
            _is_same(number, other, kind.value_type)
            for number, other in zip(entries, stored, strict=True)
        )
    if pa.types.is_dictionary(kind):
        return _is_same(value, stored, kind.value_type)
    if pa.types.is_floating(kind) and not isinstance(value, Integral):
        number = float(value)
        return bool(np.isnan(number) == np.isnan(stored) and np.isinf(number) == np.isinf(stored))
    if pa.types.is_temporal(kind):
        return _is_same_time(value, stored, kind)
    if isinstance(value, str) and isinstance(stored, bytes):
        return value.encode() == stored
    if isinstance(value, bytes) and isinstance(stored, str):
        return bool(value == stored.encode())
    if isinstance(value, bytearray | memoryview):
        return bool(bytes(value) == stored)
    return bool(value == stored)


def _is_same_struct(value: Any, stored: Mapping[str, Any], kind: pa.StructType) -> bool:
    if isinstance(value, tuple):  # pyarrow takes a tuple for the values, a list for pairs
        value = dict(zip([part.name for part in kind], value, strict=True))
    elif not isinstance(value, Mapping):
        value = dict(value)
    unknown = [name for name in value if name not in stored and value[name] is not None]
    if unknown:
        raise InvalidInputError(
            f"there is a field {unknown[0]!r}, but the type has: {', '.join(stored)}"
        )
    return all(_is_same(value.get(part.name), stored[part.name], part.type) for part in kind)


def _is_same_time(value: Any, stored: Any, kind: pa.DataType) -> bool:
    if isinstance(value, np.datetime64 | np.timedelta64):  # of nanoseconds
        return bool(pa.scalar(value).cast(kind).as_py() == stored)
    if isinstance(value, Real):  # the number of days, or of units
        step = _MILLISECONDS_OF_DAY if pa.types.is_date64(kind) else 1
        return isinstance(value, Integral) and not int(value) % step
    if isinstance(value, datetime) and pa.types.is_date(kind):
        is_midnight = value.time() == time() and not getattr(value, "nanosecond", 0)
        return is_midnight and bool(value.date() == stored)
    if isinstance(value, datetime) and isinstance(stored, datetime):
        return (value.tzinfo is None) == (stored.tzinfo is None) and bool(value == stored)
    return getattr(value, "tzinfo", None) is None and bool(value == stored)
