"""Writes a batch of a field of a 0.1 file: the reverse of `read_fields`, with the same layouts.

Values that the version cannot store are refused, not changed: a null (except in byte strings,
dictionaries of them and columns of type null), an empty byte string where it would mean a null,
and a value that is not in a table's dictionary.

Source:  files that the reference wrote.
Differs: The reference writes all of these silently, and reads them as other values.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.byte_ranges import Buffer
from lance_stream.errors import InvalidInputError
from lance_stream.file.v0_1.read_fields import bits_per_value
from lance_stream.file.v0_1.statistics import BatchStatistics, gather, has_bounds
from lance_stream.schema.fields import Field
from lance_stream.schema.types.dictionaries import bytes_and_offsets, is_byte_string


@dataclass(slots=True)
class AppendedPages:
    """Bytes to append to a file, and the pages in them.

    Attributes:
        position: The position of the next byte.
        buffers: The bytes, in order.
        pages: The pages by field id: position and length.
        statistics: The statistics of each batch, by field id.
    """

    position: int = 0
    buffers: list[Buffer] = field(default_factory=list)
    pages: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    statistics: dict[int, list[BatchStatistics]] = field(default_factory=lambda: defaultdict(list))

    def add(self, data: Buffer | bytes) -> int:
        """Append some bytes, and return their position."""
        start, view = self.position, memoryview(data)
        view = view if view.format == "B" and view.ndim == 1 else view.cast("B")
        if view.nbytes:
            self.buffers.append(view)
            self.position += view.nbytes
        return start

    def take_buffers(self) -> list[Buffer]:
        """Return the bytes that were appended since the last call."""
        buffers, self.buffers = self.buffers, []
        return buffers


class Dictionaries:
    """The dictionaries of a file's columns: those of the table, which are fixed, and growing ones.

    Args:
        fixed: The table's dictionaries, by field id.
    """

    def __init__(self, fixed: Mapping[int, pa.Array]) -> None:
        self._fixed = frozenset(fixed)
        self.values: dict[int, pa.Array] = dict(fixed)

    def indices_of(self, field: Field, array: pa.DictionaryArray) -> pa.Array:
        """Return the positions of an array's values in the dictionary; add missing values to it.

        Raises:
            InvalidInputError: The dictionary is fixed, or would need larger indices.
        """
        incoming = array.dictionary
        if (
            is_byte_string(incoming.type)
            and pc.any(pc.equal(pc.binary_length(incoming), 0)).as_py()
        ):
            raise InvalidInputError(
                f"the dictionary of the column {field.name!r} has an empty value, which files of "
                "version 0.1 read as null; make it a null, or use version 2.0"
            )
        if array.null_count:
            # a null of a dictionary is a null value
            positions = array.indices.fill_null(len(incoming))
            incoming = pa.concat_arrays([incoming, pa.nulls(1, incoming.type)])
        else:
            positions = array.indices
        if incoming.null_count and not is_byte_string(incoming.type):
            raise _null_error(field, incoming.type, array.null_count)
        dictionary = self.values.get(field.id)
        if dictionary is None:
            dictionary = self.values[field.id] = incoming
        elif dictionary.equals(incoming):
            return positions
        used = pc.unique(positions)
        where = pc.index_in(incoming, value_set=dictionary)
        is_missing = pc.and_(
            pc.is_null(where),
            pc.is_in(pa.array(np.arange(len(incoming))), value_set=used.cast("int64")),
        )
        missing = incoming.filter(is_missing)
        if len(missing):
            if field.id in self._fixed:
                raise InvalidInputError(
                    f"the dictionary of the column {field.name!r} has {len(dictionary)} values and "
                    f"cannot grow in a table of version 0.1, but {missing[0].as_py()!r} is to "
                    "be written; rewrite the table in a newer version"
                )
            dictionary = self.values[field.id] = pa.concat_arrays([dictionary, missing])
            where = pc.index_in(incoming, value_set=dictionary)
        try:
            return where.take(positions).cast(array.type.index_type)
        except pa.ArrowInvalid:
            raise InvalidInputError(
                f"the column {field.name!r} has more different values than indices of "
                f"{array.type.index_type} can represent"
            ) from None


def append_field(
    field: Field, array: pa.Array, appended: AppendedPages, dictionaries: Dictionaries
) -> None:
    """Append the pages of one batch of a field and of those below it.

    Raises:
        InvalidInputError: Files of version 0.1 do not support the values.
    """
    _append(field, array, appended, dictionaries, in_list=False)


def append_values(field_id: int, array: pa.Array, appended: AppendedPages) -> None:
    """Append a page of plain values, or of byte strings whose nulls are empty."""
    if is_byte_string(array.type):
        data, ends = bytes_and_offsets(array)
        start = appended.add(data)
        page = appended.add((ends + start).tobytes())
    else:
        page = _append_plain(array, appended)
    appended.pages[field_id].append((page, len(array)))


def _append(
    field: Field,
    array: pa.Array,
    appended: AppendedPages,
    dictionaries: Dictionaries,
    *,
    in_list: bool,
) -> None:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    arrow = array.type
    if pa.types.is_null(arrow):
        appended.pages[field.id].append((appended.position, len(array)))
        return
    if pa.types.is_dictionary(arrow):
        append_values(field.id, dictionaries.indices_of(field, array), appended)
        return
    is_text = is_byte_string(arrow)
    if array.null_count and not is_text:
        raise _null_error(field, arrow, array.null_count)
    if pa.types.is_struct(arrow):
        for index, child in enumerate(field.children):
            _append(child, array.field(index), appended, dictionaries, in_list=in_list)
        return
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        _append_list(field, array, appended, dictionaries)
        return
    if not is_text and bits_per_value(arrow) is None:
        raise InvalidInputError(
            f"files of version 0.1 do not support {arrow}, the type of column {field.name!r}; use "
            "version 2.2"
        )
    if is_text and field.nullable and pc.any(pc.equal(pc.binary_length(array), 0)).as_py():
        raise InvalidInputError(
            f"the column {field.name!r} has an empty value, which files of version 0.1 read as "
            "null where a column may be null; make it a null, or rewrite the table in version 2.0"
        )
    if not in_list and has_bounds(arrow):
        appended.statistics[field.id].append(gather(array))
    append_values(field.id, array, appended)


def _append_list(
    field: Field, array: pa.Array, appended: AppendedPages, dictionaries: Dictionaries
) -> None:
    ends = array.offsets.to_numpy()
    first, last = int(ends[0]), int(ends[-1])
    page = appended.add((ends - ends[0]).tobytes())
    appended.pages[field.id].append((page, len(ends)))
    items = array.values.slice(first, last - first)
    _append(field.children[0], items, appended, dictionaries, in_list=True)


def _append_plain(array: pa.Array, appended: AppendedPages) -> int:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_fixed_size_list(array.type):
        items = array.flatten()
        if items.null_count:
            raise InvalidInputError(
                f"files of version 0.1 support no nulls in fixed-size lists, but "
                f"{items.null_count} items are"
            )
        return _append_plain(items, appended)
    if pa.types.is_boolean(array.type):
        bits = array.to_numpy(zero_copy_only=False).astype(np.bool_)
        return appended.add(np.packbits(bits, bitorder="little").tobytes())
    _, data = array.buffers()
    width = array.type.bit_width // 8
    start = array.offset * width
    if data is None:
        return appended.position
    return appended.add(memoryview(data)[start : start + len(array) * width])


def _null_error(field: Field, arrow: pa.DataType, num_nulls: int) -> InvalidInputError:
    return InvalidInputError(
        f"the column {field.name!r} has {num_nulls} nulls, which files of version 0.1 do not "
        f"support in a {arrow}: they would be read as values; fill them in or rewrite the table in "
        "a newer version"
    )
