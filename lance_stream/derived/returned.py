"""Converts the return value of a user's function to the values of derived columns.

    numpy arrays, lists, pandas, Arrow     become arrays of the declared types
    another number, shape, or type         is an error
    a value that the cast would change     is an error: 1.5 as a whole number, a time as a date, a
                                           field of a struct that the type does not have

pyarrow converts values to the requested type, and may truncate them. So the result is compared with
the input: numbers, and lists of numbers, as arrays of their natural type, and all other values one
by one. Only floats may be rounded, because models return 64 bits for columns of 32 bits.
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
from lance_stream.write.arrow_input import is_frame_of_pandas
from lance_stream.write.casting import cast_batch

_MAX_MESSAGE: Final = 2000
_MAX_QUOTED: Final = 100
_MILLISECONDS_OF_DAY: Final = 86_400_000
_COARSE: Final = {"M": "YMWhm", "m": "WDhm"}
"""Units of numpy's times and durations that Arrow does not have."""


def as_outputs(result: Any, outputs: pa.Schema, num_rows: int) -> pa.RecordBatch:
    """Convert the result of a function to the types of the outputs.

    Args:
        result: An array, a list or another iterable of values; for several outputs, a mapping of
            them, a RecordBatch or a data frame.
        outputs: The columns.
        num_rows: The number of rows that the function received.

    Raises:
        InvalidInputError: The result is something else, has another number of values, or has values
            that do not fit.
    """
    offers_stream = hasattr(result, "__arrow_c_stream__") and hasattr(result, "columns")
    if offers_stream or is_frame_of_pandas(result):
        result = one_batch_of(pa.table(result))  # pandas, polars, Arrow
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
    """Return the size of the lists of a type; None if the type does not determine it."""
    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else None


def counted(number: int, what: str) -> str:
    """Return a number with a noun, in the plural if necessary."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def message_of(error: Exception) -> str:
    """Return the message of an error for users; with its class if it is not one of this package."""
    if isinstance(error, LanceStreamError):
        return str(error)[:_MAX_MESSAGE]
    return "".join(traceback.format_exception_only(error)).strip()[:_MAX_MESSAGE]


def _as_array(values: Any, target: pa.Field, num_rows: int) -> pa.Array:
    """Convert values to an array, possibly of another type, which the caller casts.

    Raises:
        InvalidInputError: The values have no order, are not as many as the rows, or do not fit the
            type.
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
        return _convert(values, kind)
    except Exception as error:  # any error of pyarrow, or of objects among the values
        raise InvalidInputError(
            f"the values of {target.name!r} do not fit the type {kind}: {message_of(error)}"
        ) from error


def _may_have_shape(values: Any, kind: pa.DataType) -> bool:
    """Return whether the rows of a numpy array can be values of a type; True for other objects."""
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


# --- lossless conversion to arrays


def _convert(values: Any, kind: pa.DataType) -> pa.Array:
    """Convert values to an array of a type; Arrow arrays may keep another type.

    Raises:
        Exception: An error of pyarrow, or of an object among the values, that is not a value of the
            type.
        InvalidInputError: A value would change.
    """
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    if isinstance(values, pa.Array):
        return _cast_numbers(values, kind)
    if type(values).__module__.partition(".")[0] == "pandas" and values.dtype != np.object_:
        array = pa.array(values, from_pandas=True)
        array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
        return _cast_numbers(array, kind)
    if isinstance(values, np.ndarray) and values.dtype.kind in "biufmMSU":
        if values.ndim == 2 and pa.types.is_fixed_size_list(kind):
            items = _convert_items(values.reshape(-1), kind.value_type)
            return pa.FixedSizeListArray.from_arrays(items, type=kind)
        if values.ndim == 1:
            return _convert_items(values, kind)
    return _convert_objects(list(map(_as_object, values)), kind)


def _cast_numbers(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast numbers, and lists of numbers, to a type, which may be narrower.

    The caller casts other Arrow arrays, by the same rules as all input rows.
    """
    if array.type.equals(kind) or not (_has_numbers(array.type) and _has_numbers(kind)):
        return array
    numbers = array.cast(kind, safe=not _has_floats(kind))
    _check_numbers(array, numbers)
    return numbers


def _convert_items(values: npt.NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Convert a one-dimensional numpy array.

    Numbers become numbers, and times become times. Everything else is converted as Python objects,
    because pyarrow accepts numbers as bytes of strings and as booleans.
    """
    if values.dtype.kind in "biuf" and _has_numbers(kind):
        items = pa.array(values, kind)
        _check_numbers(pa.array(values), items)
        return items
    if values.dtype.kind not in "mM" or not _accepts_times(kind):
        return _convert_objects(list(map(_as_object, values)), kind)
    # pa.array (Arrow 23 to 26) misreads days of 64 bits, so coarse units become seconds.
    unit = np.datetime_data(values.dtype)[0]
    if unit in _COARSE[values.dtype.kind]:
        values = values.astype(f"{values.dtype.kind}8[s]")
    array = pa.array(values)
    items = array.cast(kind)
    if not items.cast(array.type).equals(array):
        raise InvalidInputError(f"a time in the unit {unit!r} would be truncated")
    return items


def _accepts_times(kind: pa.DataType) -> bool:
    """Return whether a type accepts numpy's times: times without a zone, and integers."""
    return bool(
        pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not getattr(kind, "tz", None))
    )


def _convert_objects(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Convert Python objects, and compare the result with them."""
    if isinstance(kind, pa.BaseExtensionType) and _has_numbers(kind.storage_type):  # a tensor
        return pa.ExtensionArray.from_storage(kind, _convert_objects(values, kind.storage_type))
    objects = pa.array(_as_float16(values) if pa.types.is_float16(kind) else values, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return objects
    if _has_numbers(kind):
        try:
            array = pa.array(values)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            array = None  # pyarrow cannot infer the type
        if array is not None and _has_numbers(array.type):  # compares arrays, which is fast
            _check_numbers(array, objects)
            return objects
    for value, stored in zip(values, objects.to_pylist(), strict=True):
        if not _is_same(value, stored, kind):
            example = f"{value!s:.{_MAX_QUOTED}} would become {stored!s:.{_MAX_QUOTED}}"
            raise InvalidInputError(example)
    return objects


def _as_float16(values: Iterable[Any]) -> list[Any]:
    """Return numbers as numpy's float16, which older versions of pyarrow require."""
    with np.errstate(over="ignore"):
        return [np.float16(value) if isinstance(value, Real) else value for value in values]


def _as_object(value: Any) -> Any:
    """Replace numpy arrays, whose masks, dimensions and days pyarrow misreads, with objects."""
    if isinstance(value, np.ndarray):
        is_masked = isinstance(value, np.ma.MaskedArray)
        if value.dtype.names or (_has_fine_unit(value.dtype) and not is_masked):
            return list(map(_as_object, value))
        if value.ndim == 1 and value.dtype.kind in "biuf" and not is_masked:
            return value
        if _has_fine_unit(value.dtype):  # `tolist` would return numbers
            return [None if item is np.ma.masked else _as_object(item) for item in value]
        value = value.tolist()
    if isinstance(value, np.void):  # a row of a structured array, or plain bytes
        names = value.dtype.names
        return {name: _as_object(value[name]) for name in names} if names else value.tobytes()
    if isinstance(value, Mapping):
        return {name: _as_object(item) for name, item in value.items()}
    if type(value) in (list, tuple) and not _are_python_numbers(value):
        return type(value)(map(_as_object, value))
    if _is_missing(value):
        return None
    if isinstance(value, np.generic) and value.dtype.kind in "biufmM":
        return value if _has_fine_unit(value.dtype) else value.item()
    return value


def _has_fine_unit(kind: np.dtype[Any]) -> bool:
    """Return whether values are times in a unit that is finer than those of Python."""
    return kind.kind in "mM" and np.datetime_data(kind)[0] in ("ns", "ps", "fs", "as")


def _are_python_numbers(values: Sequence[Any]) -> bool:
    """Return whether all values are Python's numbers, as in most vectors."""
    return {*map(type, values)} <= {float, int}


def _is_missing(value: Any) -> bool:
    """Return whether a value is pandas' NA or NaT, or numpy's NaT."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ in ("NAType", "NaTType")


def _has_numbers(kind: pa.DataType) -> bool:
    """Return whether a type is a number, or a list of numbers."""
    item = _item_type(kind)
    return bool(pa.types.is_integer(item) or pa.types.is_floating(item))


def _has_floats(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(_item_type(kind)))


def _item_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of the innermost items of a list type."""
    while is_list_type(kind):
        kind = kind.value_type
    return kind


def _check_numbers(array: pa.Array, numbers: pa.Array) -> None:
    """Raise if numbers, or numbers in lists, have changed in the requested type.

    Args:
        array: The numbers in their natural type.
        numbers: The numbers in the requested type.

    Raises:
        InvalidInputError: A number has changed.
    """
    while is_list_type(array.type) and is_list_type(numbers.type):
        array, numbers = array.flatten(), numbers.flatten()
    if array.type.equals(numbers.type) or not _has_numbers(array.type) or is_list_type(array.type):
        return
    if pa.types.is_floating(array.type) and pa.types.is_floating(numbers.type):
        overflows = pc.is_inf(numbers.cast(pa.float64()))
        has_changed = pc.and_(overflows, pc.is_finite(array.cast(pa.float64())))
    else:
        back = numbers.cast(
            pa.float64() if pa.types.is_float16(array.type) else array.type, safe=False
        )
        has_changed = pc.not_equal(back, array.cast(back.type))
    if pc.any(has_changed).as_py():
        row = int(np.argmax(pc.fill_null(has_changed, False).to_numpy(zero_copy_only=False)))
        raise InvalidInputError(f"{array[row].as_py()} would become {numbers[row].as_py()}")


def _is_same(value: Any, stored: Any, kind: pa.DataType) -> bool:
    """Return whether a stored value equals the returned one; a float may be rounded.

    Args:
        value: The value that the function returned.
        stored: The converted value, as a Python object.
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
    if isinstance(value, tuple):  # for pyarrow, a tuple has values, and a list has pairs
        value = dict(zip([part.name for part in kind], value, strict=True))
    elif not isinstance(value, Mapping):
        value = dict(value)
    unknown = [name for name in value if name not in stored and value[name] is not None]
    if unknown:
        raise InvalidInputError(
            f"field {unknown[0]!r} does not exist in the type, which has: {', '.join(stored)}"
        )
    return all(_is_same(value.get(part.name), stored[part.name], part.type) for part in kind)


def _is_same_time(value: Any, stored: Any, kind: pa.DataType) -> bool:
    if isinstance(value, np.datetime64 | np.timedelta64):  # in nanoseconds or finer
        return bool(pa.scalar(value).cast(kind).as_py() == stored)
    if isinstance(value, Real):  # the number of days, or of units
        step = _MILLISECONDS_OF_DAY if pa.types.is_date64(kind) else 1
        return isinstance(value, Integral) and not int(value) % step
    if isinstance(value, datetime) and pa.types.is_date(kind):
        is_midnight = value.time() == time() and not getattr(value, "nanosecond", 0)
        return is_midnight and bool(value.date() == stored)
    if isinstance(value, datetime):
        return bool(value == stored)
    return getattr(value, "tzinfo", None) is None and bool(value == stored)
