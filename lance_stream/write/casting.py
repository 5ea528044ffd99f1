"""Casts incoming Arrow batches to a table's schema; no value changes silently.

Columns are matched by name; a missing nullable column becomes null. Values are cast to types with
the same meaning (Spark does not have fixed-size lists, unsigned integers, float16, units and zones
of times, large types and dictionaries), and to wider types.

    incoming                                   table
    integer                                    wider integer; unsigned of at most its width;
                                               float and decimal, if all values are exact
    float                                      wider float; float32 to float16, rounded
    decimal                                    decimal that can hold all values; uint64
    string, large, view, dictionary            string, large string, dictionary of them
    binary, large, view, fixed size            binary, large binary, fixed size of that width
    date, time, duration, timestamp            the same in a unit that can hold all values
    date                                       timestamp without a zone: the start of the day
    timestamp with a zone                      timestamp with another zone: the same instant
    list, large list, fixed-size list          each other, if the lengths fit
    map, list of structs of two                map: key and value in this order
    struct                                     struct, its parts matched by name
    null                                       any column; nulls are checked as values
    struct (data, uri, ...)                    blobs, if all values have data and no URI
    string, large, view, dictionary            JSON, if all values are valid

`check_castable` rejects a schema before any file is written: an unknown column, a missing
non-nullable column, a narrower type. `cast_batch` rejects values: a null, a number out of range.
Values that an Arrow buffer has at a null are ignored.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arguments import repeated_names
from lance_stream.errors import InvalidInputError
from lance_stream.schema.computed_columns import check_not_computed
from lance_stream.schema.fields import BLOB_KEY
from lance_stream.schema.types.json_columns import as_jsonb, is_json
from lance_stream.schema.types.logical_types import is_list_type
from lance_stream.write.dictionary_nulls import holds_dictionaries, move_nulls_to_indices


class ForbiddenNullError(InvalidInputError):
    """A column that must not be null contains a null."""


def check_rows_fit(incoming: pa.Schema, table: pa.Schema) -> None:
    """Raise unless the columns of a user's rows fit a table.

    Raises:
        InvalidInputError: As `check_castable`; or the rows have a column that LanceDB computes.
    """
    check_not_computed(incoming.names, table)
    check_castable(incoming, table)


def check_castable(incoming: pa.Schema, table: pa.Schema) -> None:
    """Raise unless the types of incoming columns can be cast to those of a table.

    Raises:
        InvalidInputError: A column is unknown, occurs twice, is missing although it must not be
            null, or has a type that does not fit; the message names the column.
    """
    if incoming.equals(table):
        return
    _check_names([field.name for field in incoming], list(table), where="")
    for target in table:
        index = incoming.get_field_index(target.name)
        if index >= 0:
            _check_type(incoming.field(index).type, target, target.name)


def check_columns(
    names: Iterable[str],
    columns: Iterable[str],
    where: str = "",
    *,
    remedy: str = (
        "If it was renamed, rename it in the rows, too. Otherwise omit it, or add it to the table"
    ),
) -> None:
    """Raise unless a table has all columns, or a struct all parts.

    Args:
        names: The incoming names.
        columns: The names of all existing columns or fields.
        where: The path of the struct, followed by a dot.
        remedy: The remedy in the message.

    Raises:
        InvalidInputError: Some names are unknown; the message has them.
    """
    columns = dict.fromkeys(columns)
    unknown = [name for name in names if name not in columns]
    if unknown:
        raise InvalidInputError(
            f"the table has no column{'s' if len(unknown) > 1 else ''} "
            f"{', '.join(repr(where + name) for name in unknown)}; it has: "
            f"{', '.join(columns)}. {remedy}"
        )


def cast_batch(batch: pa.RecordBatch, table: pa.Schema) -> pa.RecordBatch:
    """Cast a batch to a table's schema; columns that already fit are not copied.

    Raises:
        InvalidInputError: As `check_castable`, or a value does not fit, or a non-nullable column
            contains a null; the message names the column.
    """
    if not batch.schema.equals(table):
        check_castable(batch.schema, table)
    columns = []
    for target in table:
        index = batch.schema.get_field_index(target.name)
        if index < 0:
            columns.append(pa.nulls(batch.num_rows, target.type))
        else:
            columns.append(cast_column(batch.column(index), target))
    return pa.RecordBatch.from_arrays(columns, schema=table)


def cast_column(column: pa.Array, target: pa.Field) -> pa.Array:
    """Cast a column to a table's type; `check_castable` has accepted its type.

    Raises:
        ForbiddenNullError: The column, or a part of it, must not be null and contains a null.
        InvalidInputError: A value does not fit.
    """
    if _is_plain(target) and column.type.equals(target.type):
        return column
    if _is_blob_input(column.type, target):
        column = _bytes_of_blobs(column, target.name)
    column = _cast(column, target, target.name)
    _check_nulls(column, target, target.name)
    return column


def _is_plain(target: pa.Field) -> bool:
    """Return whether all columns with a field's type fit unchanged."""
    kind = target.type
    has_one_form = kind.num_fields == 0 and not pa.types.is_dictionary(kind)
    return target.nullable and has_one_form and not is_json(target)


def _check_names(names: Sequence[str], targets: Sequence[pa.Field], where: str) -> None:
    repeated = repeated_names(names)
    if repeated:
        raise InvalidInputError(f"the column {where}{repeated[0]!r} occurs more than once")
    check_columns(names, [field.name for field in targets], where)
    incoming = set(names)
    missing = [field.name for field in targets if not field.nullable and field.name not in incoming]
    if missing:
        is_one = len(missing) == 1
        columns, are, them = ("column", "is", "it") if is_one else ("columns", "are", "them")
        names = ", ".join(repr(where + name) for name in missing)
        raise InvalidInputError(
            f"the {columns} {names} must not be null in the table, but {are} missing from the "
            f"data. Supply {them}, or let {them} be null: ds.alter_columns with nullable=True"
        )


# --- checks of types


def _check_type(incoming: pa.DataType, target_field: pa.Field, path: str) -> None:
    target = target_field.type
    if incoming.equals(target) or _is_blob_input(incoming, target_field):
        return
    if isinstance(incoming, pa.BaseExtensionType):
        incoming = incoming.storage_type
    if pa.types.is_null(incoming) or (is_json(target_field) and _fits(incoming, pa.string())):
        return
    if pa.types.is_struct(incoming) and pa.types.is_struct(target):
        _check_names([field.name for field in incoming], list(target), where=f"{path}.")
        for part in target:
            index = incoming.get_field_index(part.name)
            if index >= 0:
                _check_type(incoming.field(index).type, part, f"{path}.{part.name}")
        return
    if is_list_type(incoming) and is_list_type(target):
        if (
            pa.types.is_fixed_size_list(incoming)
            and pa.types.is_fixed_size_list(target)
            and incoming.list_size != target.list_size
        ):
            raise _mismatch(incoming, target, path)
        _check_type(incoming.value_type, target.value_field, f"{path}.item")
        return
    entries = _entries_type(incoming)
    if pa.types.is_map(target) and entries is not None:
        for index, part in enumerate((target.key_field, target.item_field)):
            _check_type(entries.field(index).type, part, f"{path}.{part.name}")
        return
    if not _fits(incoming, target):
        raise _mismatch(incoming, "JSON" if is_json(target_field) else target, path)


def _is_blob_input(incoming: pa.DataType, target: pa.Field) -> bool:
    """Return whether an incoming column has the reference's input type of blobs."""
    if BLOB_KEY.encode() not in (target.metadata or {}):
        return False
    if isinstance(incoming, pa.BaseExtensionType):
        incoming = incoming.storage_type
    names = [field.name for field in incoming] if pa.types.is_struct(incoming) else []
    return names in (["data", "uri"], ["data", "uri", "position", "size"])


def _bytes_of_blobs(array: pa.Array, path: str) -> pa.Array:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    valid, data, uris = array.is_valid(), array.field(0), array.field(1)
    if pc.any(pc.and_(valid, uris.is_valid())).as_py():
        raise InvalidInputError(
            f"column {path!r} has blobs by URI, which are not supported; read them, and pass their "
            "bytes as data"
        )
    if pc.any(pc.and_(valid, data.is_null())).as_py():
        raise InvalidInputError(
            f"column {path!r} has blobs with neither data nor URI; use a null struct for a null"
        )
    if not array.null_count:
        return data
    # Not by if_else, which corrupts slices of binary arrays if the other value is a null scalar, in
    # Arrow 23 and earlier.
    is_null = np.asarray(array.is_null())
    return data.take(pa.array(np.arange(len(array)), mask=is_null))


def _mismatch(incoming: pa.DataType, target: object, path: str) -> InvalidInputError:
    return InvalidInputError(
        f"column {path!r} is {incoming}, but {target} in the table, and a cast could change or "
        "lose values; cast the column yourself if that is intended"
    )


def _fits(incoming: pa.DataType, target: pa.DataType) -> bool:
    """Return whether a cast preserves the meaning of values, which are checked later."""
    types = pa.types
    if types.is_dictionary(incoming):
        return _fits(incoming.value_type, target)
    if types.is_dictionary(target):
        return _fits(incoming, target.value_type)
    if incoming.equals(target):
        return True
    if types.is_integer(incoming):
        if types.is_signed_integer(target):
            spare = 0 if types.is_signed_integer(incoming) else 1
            return bool(incoming.bit_width + spare <= target.bit_width)
        if types.is_unsigned_integer(target):
            if types.is_unsigned_integer(incoming):
                return bool(incoming.bit_width <= target.bit_width)
            # Spark has no unsigned types: it uses the next wider signed type.
            return bool(incoming.bit_width <= max(2 * target.bit_width, 16))
        return bool(types.is_floating(target) or types.is_decimal(target))
    if types.is_floating(incoming):
        # Spark has no float16: it uses float32.
        return types.is_floating(target) and bool(
            incoming.bit_width <= target.bit_width or incoming.bit_width <= 32
        )
    if types.is_decimal(incoming):
        # Spark has no uint64: it uses decimal(20, 0).
        return bool(types.is_decimal(target) or types.is_uint64(target))
    if types.is_date(incoming) and types.is_timestamp(target):
        return target.tz is None
    if types.is_timestamp(incoming) and types.is_timestamp(target):
        return (incoming.tz is None) == (target.tz is None)
    families = (
        (types.is_string, types.is_large_string, types.is_string_view),
        (
            types.is_binary,
            types.is_large_binary,
            types.is_binary_view,
            types.is_fixed_size_binary,
        ),
        (types.is_date,),
        (types.is_time,),
        (types.is_duration,),
    )
    return any(
        any(accepts(incoming) for accepts in family) and any(accepts(target) for accepts in family)
        for family in families
    ) and not (types.is_fixed_size_binary(incoming) and types.is_fixed_size_binary(target))


def _entries_type(arrow: pa.DataType) -> pa.StructType | None:
    """Return the entry type of a map, or of a list that can become a map; otherwise None."""
    if pa.types.is_map(arrow):
        return pa.struct([arrow.key_field, arrow.item_field])
    if pa.types.is_list(arrow) and pa.types.is_struct(arrow.value_type):
        return arrow.value_type if arrow.value_type.num_fields == 2 else None
    return None


# --- checks of values


def _cast(array: pa.Array, field: pa.Field, path: str) -> pa.Array:
    target = field.type
    if isinstance(array, pa.ExtensionArray):
        return _cast(array.storage, field, path)
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), target)
    if is_json(field):
        return _cast_json(array, path)
    if array.type.equals(target) and not holds_dictionaries(target):
        return array
    try:
        if pa.types.is_struct(target):
            return _cast_struct(array, target, path)
        if is_list_type(target):
            return _cast_list(array, target, path)
        if pa.types.is_map(target):
            return _cast_map(array, target, path)
        return _cast_leaf(array, target)
    except (
        *(pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError),
        pa.ArrowIndexError,
    ) as error:
        raise InvalidInputError(
            f"column {path!r} contains a value that does not fit the table's {target}: {error}"
        ) from None


def _cast_json(array: pa.Array, path: str) -> pa.Array:
    try:
        return as_jsonb(array)
    except InvalidInputError as error:
        raise InvalidInputError(f"column {path!r}: {error}") from None


def _cast_struct(array: pa.StructArray, target: pa.StructType, path: str) -> pa.Array:
    names = [field.name for field in array.type]
    children = array.flatten()  # null where the struct is
    parts = [
        _cast(children[names.index(part.name)], part, f"{path}.{part.name}")
        if part.name in names
        else pa.nulls(len(array), part.type)
        for part in target
    ]
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=mask)


def _cast_list(array: pa.Array, target: pa.DataType, path: str) -> pa.Array:
    item = target.value_field
    if pa.types.is_fixed_size_list(target) and not pa.types.is_fixed_size_list(array.type):
        array = _cast_to_fixed_size_list(_without_hidden_items(array), target.list_size)
    elif pa.types.is_fixed_size_list(array.type) and not pa.types.is_fixed_size_list(target):
        array = array.cast(pa.list_(array.type.value_field))
    if pa.types.is_large_list(target) and pa.types.is_list(array.type):
        array = array.cast(pa.large_list(array.type.value_field))
    elif pa.types.is_list(target) and pa.types.is_large_list(array.type):
        array = array.cast(pa.list_(array.type.value_field))
    if array.type.equals(target) and not holds_dictionaries(target):
        return array
    if pa.types.is_fixed_size_list(target):
        items = _cast(_items_of_vectors(array), item, f"{path}.item")
        mask = array.is_null() if array.null_count else None
        return pa.FixedSizeListArray.from_arrays(items, type=target, mask=mask)
    offsets, visible = _visible_items(array)
    items = _cast(visible, item, f"{path}.item")
    return _of_items(array, target, offsets, items)


def _of_items(array: pa.Array, target: pa.DataType, offsets: pa.Array, items: pa.Array) -> pa.Array:
    """Return lists or maps with some items, which are null where an array is."""
    bitmap = pc.is_valid(array).buffers()[1] if array.null_count else None
    return pa.Array.from_buffers(
        target, len(array), [bitmap, offsets.buffers()[1]], children=[items]
    )


def _visible_items(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets and items of lists or maps, without the items of nulls.

    The offsets start at 0, also for a slice, whose offsets refer to the whole buffer.
    """
    width = pa.int64() if pa.types.is_large_list(array.type) else pa.int32()
    if not len(array):
        return pa.array([0], width), array.values.slice(0, 0)
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    items, lengths = array.values.slice(first, last - first), np.diff(offsets)
    if array.null_count:
        is_visible = array.is_valid().to_numpy(zero_copy_only=False)
        if lengths[~is_visible].any():
            items = items.filter(pa.array(np.repeat(is_visible, lengths)))
            lengths = np.where(is_visible, lengths, 0)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return pa.array(starts, width), items


def _without_hidden_items(array: pa.Array) -> pa.Array:
    """Return lists without the items of nulls."""
    if not array.null_count:
        return array
    offsets, items = _visible_items(array)
    return _of_items(array, array.type, offsets, items)


def _cast_to_fixed_size_list(array: pa.Array, size: int) -> pa.Array:
    """Cast lists of any length to fixed-size lists.

    Arrow's cast (18 to 26) dereferences a null pointer, which crashes the process, if all lists are
    null and have come through IPC without any item, as Spark sends a batch of null vectors.
    """
    target = pa.list_(array.type.value_field, size)
    if array.null_count == len(array):
        return pa.nulls(len(array), target)
    if not len(array.values):
        raise pa.ArrowInvalid(f"a list is empty, but must have {size} items")
    return array.cast(target)


def _cast_map(array: pa.Array, target: pa.MapType, path: str) -> pa.Array:
    offsets, entries = _visible_items(array)
    children = entries.flatten()
    parts = [
        _cast(children[index], part, f"{path}.{part.name}")
        for index, part in enumerate((target.key_field, target.item_field))
    ]
    if parts[0].null_count:  # the key of a null entry is null, too
        raise pa.ArrowInvalid("a key or an entry of a map is null")
    fields = [target.key_field, target.item_field]
    return _of_items(array, target, offsets, pa.StructArray.from_arrays(parts, fields=fields))


def _items_of_vectors(array: pa.FixedSizeListArray) -> pa.Array:
    """Return the items of fixed-size lists; those of a null list are null."""
    size = array.type.list_size
    items = array.values.slice(array.offset * size, len(array) * size)
    if not array.null_count:
        return items
    is_hidden = np.repeat(array.is_null().to_numpy(zero_copy_only=False), size)
    return items.take(pa.array(np.arange(len(items)), mask=is_hidden))


def _check_indices(array: pa.DictionaryArray) -> None:
    """Check that all indices are within the dictionary; at a null, an index may be invalid.

    Other readers reject a file with an invalid index, even if it is never used.

    Raises:
        ArrowIndexError: An index is outside of the dictionary.
    """
    ends = pc.min_max(array.indices.cast(pa.int64()))
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is not None and not 0 <= low <= high < len(array.dictionary):
        outside = low if low < 0 else high
        raise pa.ArrowIndexError(
            f"the index {outside} of a dictionary of {len(array.dictionary)} values"
        )


def _cast_leaf(array: pa.Array, target: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(array.type):
        _check_indices(array)
        array = move_nulls_to_indices(array)
        if array.type.equals(target):
            return array
    if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(target):
        array = array.dictionary_decode()
    if pa.types.is_binary_view(array.type):
        array = array.cast(pa.binary())
    if pa.types.is_integer(array.type) and pa.types.is_decimal(target):
        # otherwise Arrow requires a type that can hold all integers
        array = array.cast(_ALL_INTEGERS)
    if pa.types.is_fixed_size_binary(target) and not pa.types.is_fixed_size_binary(array.type):
        return cast_to_fixed_size_binary(array, target)
    cast = array.cast(target)
    if pa.types.is_float16(target):
        if pc.any(_became_infinite(array, cast)).as_py():
            raise pa.ArrowInvalid("a number is too large for float16")
        # Floats are rounded; integers are rejected, as Arrow does for wider floats.
        if pa.types.is_integer(array.type) and not _is_as_float32(array, cast):
            raise pa.ArrowInvalid("an integer would be rounded in float16")
    return cast


_ALL_INTEGERS = pa.decimal128(20, 0)


def _is_as_float32(array: pa.Array, cast: pa.Array) -> bool:
    return bool(array.cast(pa.float32()).equals(cast.cast(pa.float32())))


def _became_infinite(array: pa.Array, cast: pa.Array) -> pa.Array:
    as_floats = cast.cast(pa.float32())
    return pc.and_(pc.is_inf(as_floats), pc.invert(pc.is_inf(array.cast(pa.float32()))))


def cast_to_fixed_size_binary(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast binary values to a fixed size.

    Raises:
        ArrowInvalid: A value has another size.
    """
    width = target.byte_width
    lengths = pc.binary_length(array)
    if pc.any(pc.not_equal(lengths, width)).as_py():
        raise pa.ArrowInvalid(f"a value does not have {width} bytes")
    bitmap = pc.is_valid(array).buffers()[1] if array.null_count else None
    filled = pc.fill_null(array.cast(pa.large_binary()), b"\0" * width)
    first = np.frombuffer(filled.buffers()[1], np.int64)[filled.offset] if len(filled) else 0
    data = filled.buffers()[2]
    values: Any = pa.py_buffer(b"") if data is None else data.slice(int(first), width * len(filled))
    return pa.Array.from_buffers(target, len(array), [bitmap, values])


# --- nulls in non-nullable columns


def _check_nulls(array: pa.Array, target: pa.Field, path: str) -> None:
    if not target.nullable and array.null_count:
        raise _null_error(path, array.null_count)
    if _may_hold_forbidden_nulls(target.type):
        _check_nulls_below(array, path)


def _may_hold_forbidden_nulls(arrow: pa.DataType) -> bool:
    if pa.types.is_struct(arrow):
        return any(not part.nullable or _may_hold_forbidden_nulls(part.type) for part in arrow)
    if is_list_type(arrow):
        return not arrow.value_field.nullable or _may_hold_forbidden_nulls(arrow.value_type)
    if pa.types.is_map(arrow):
        return not arrow.item_field.nullable or any(
            _may_hold_forbidden_nulls(kind) for kind in (arrow.key_type, arrow.item_type)
        )
    return False


def _check_nulls_below(array: pa.Array, path: str) -> None:
    """Check the parts, items or entries of an array for nulls, except within nulls."""
    if pa.types.is_struct(array.type):
        visible = array.drop_null() if array.null_count else array
        for index, part in enumerate(array.type):
            _check_nulls(visible.field(index), part, f"{path}.{part.name}")
    elif is_list_type(array.type):
        visible = array.drop_null() if array.null_count else array
        _check_nulls(visible.flatten(), array.type.value_field, f"{path}.item")
    else:
        visible = array.drop_null() if array.null_count else array
        first, last = (visible.offsets[index].as_py() for index in (0, len(visible)))
        entries = visible.values.slice(first, last - first)
        for index, part in enumerate((array.type.key_field, array.type.item_field)):
            _check_nulls(entries.field(index), part, f"{path}.{part.name}")


def _null_error(path: str, count: int) -> ForbiddenNullError:
    return ForbiddenNullError(
        f"column {path!r} must not be null in the table, but contains {count} null"
        f"{'s' if count > 1 else ''}"
    )
