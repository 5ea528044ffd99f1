"""Finds the column of the data file that stores a key column.

    fragment    files: path, field ids, column indices     overlays
    most have   one file with a random name, the same field ids and columns as others, no overlays

For these fragments, a few numpy steps read the file names from the bytes of all fragments
(`wire_columns`), and only one fragment per kind is decoded. All other fragments are decoded.
"""

from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Bytes, Positions
from lance_stream.errors import UnsupportedFeatureError
from lance_stream.table.fragments.fragment import Fragment, has_overlays
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.messages.wire_columns import Spans, walk
from lance_stream.table.paths import parse_data_file_name, parse_data_file_names

_FILES, _OVERLAYS = 2, 11
_PATH, _FIELDS, _COLUMNS = 1, 2, 3

_FEW: Final = 64
"""Up to this number of fragments, all are decoded."""

_MAX_KINDS: Final = 16
"""After this number of kinds, the remaining fragments are all decoded."""


class FileColumn(NamedTuple):
    """A column of a data file.

    Attributes:
        file: The 16 random bytes of the file's name.
        column: The column's number in the file.
    """

    file: bytes
    column: int


def file_column(fragment: Fragment, field_id: int) -> FileColumn | None:
    """Return the file column that stores all values of a field; None if there is no such column.

    That is the case if several files or no file have the field, if overlays may override its
    values, or if the file's name may be reused.
    """
    holders = [file for file in fragment.files if field_id in file.field_ids]
    if len(holders) != 1 or has_overlays(fragment):
        return None
    random = random_part(holders[0].path)
    with suppress(UnsupportedFeatureError):  # reading the file reports the error
        column = holders[0].column_of().get(field_id, -1)
        if random is not None and column >= 0:
            return FileColumn(random, column)
    return None


def random_part(path: str) -> bytes | None:
    """Return the 16 random bytes of a file's name; None if the name is not random."""
    name = path.rpartition("/")[2]
    random = parse_data_file_name(name)
    stem = name.removesuffix(".lance")
    if len(stem) == 36:
        # older writers used UUIDs as names
        with suppress(ValueError):
            random = UUID(stem).bytes
    return random


def file_columns(
    fragments: FragmentList, positions: Positions, field_id: int
) -> list[FileColumn | None]:
    """Return the result of `file_column` for some fragments, but decode only a few of them.

    Args:
        fragments: The fragments of a version.
        positions: (n,) the positions of the fragments.
        field_id: The field.

    Raises:
        CorruptDataError: A decoded fragment is damaged.
    """
    columns: list[FileColumn | None] = [None] * len(positions)
    remaining = np.arange(len(positions))
    if len(positions) > _FEW:
        raws = [fragments.raws[index] for index in positions.tolist()]
        files = _PlainFiles.of(raws)
        for _ in range(_MAX_KINDS):
            if not len(files.owners):
                break
            is_alike = files.are_like_first()
            first = file_column(fragments[positions[files.owners[0]]], field_id)
            alike = files.where(is_alike)
            for at, random in zip(alike.owners.tolist(), alike.random_parts(), strict=True):
                columns[at] = None if first is None else FileColumn(random, first.column)
            remaining = np.setdiff1d(remaining, alike.owners, assume_unique=True)
            files = files.where(~is_alike)
    for at in remaining.tolist():
        columns[at] = file_column(fragments[positions[at]], field_id)
    return columns


class _PlainFiles(NamedTuple):
    """The data files of fragments that have one file each, with a random name, and no overlays.

    Attributes:
        data: The bytes of all fragments.
        owners: (n,) i64, the fragment that each file belongs to.
        names: (n, 16) u8, the random bytes of each file's name.
        fields: The byte ranges of the field ids.
        columns: The byte ranges of the column indices.
    """

    data: Bytes
    owners: Positions
    names: Bytes
    fields: Spans
    columns: Spans

    @classmethod
    def of(cls, raws: Sequence[bytes]) -> "_PlainFiles":
        """Return the files of the fragments that have exactly one such file.

        Args:
            raws: The encoded DataFragment messages.
        """
        data = np.frombuffer(b"".join(raws), np.uint8)
        stops = np.fromiter(accumulate(map(len, raws)), np.int64, len(raws))
        starts = np.concatenate([np.zeros(1, np.int64), stops])[: len(raws)]
        walked = walk(data, Spans(starts, stops), (), (_FILES, _OVERLAYS))
        has_one = ~walked.is_odd & (walked.spans[_FILES].starts >= 0)
        has_one &= walked.spans[_OVERLAYS].starts < 0
        owners = np.flatnonzero(has_one)
        files = walk(data, _at(walked.spans[_FILES], owners), (), (_PATH, _FIELDS, _COLUMNS))
        paths, fields, columns = (files.spans[field] for field in (_PATH, _FIELDS, _COLUMNS))
        is_plain = ~files.is_odd & (paths.starts >= 0)
        is_plain &= (fields.starts >= 0) & (columns.starts >= 0)
        plain = np.flatnonzero(is_plain)
        are_random, names = parse_data_file_names(data, *_at(paths, plain))
        plain = plain[are_random]
        return cls(data, owners[plain], names[are_random], _at(fields, plain), _at(columns, plain))

    def are_like_first(self) -> npt.NDArray[np.bool_]:
        """Return (n,) whether each file has the same field ids and columns as the first one."""
        is_alike = np.ones(len(self.owners), np.bool_)
        for starts, stops in (self.fields, self.columns):
            size = int(stops[0] - starts[0])
            is_alike &= stops - starts == size
            indices = np.flatnonzero(is_alike)
            row = self.data[starts[indices][:, None] + np.arange(size)]
            is_alike[indices] = (row == row[0]).all(axis=1)
        return is_alike

    def where(self, mask: npt.NDArray[np.bool_]) -> "_PlainFiles":
        """Return some of the files."""
        return _PlainFiles(
            self.data,
            self.owners[mask],
            self.names[mask],
            _at(self.fields, mask),
            _at(self.columns, mask),
        )

    def random_parts(self) -> list[bytes]:
        """Return the random bytes of each file's name."""
        names = self.names.tobytes()
        return [names[at : at + 16] for at in range(0, len(names), 16)]


def _at(spans: Spans, which: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Spans:
    return Spans(spans.starts[which], spans.stops[which])
