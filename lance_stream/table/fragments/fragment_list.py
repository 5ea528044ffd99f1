"""The fragments of a version: kept as encoded bytes, and decoded on demand.

A table of 20,000 fragments is opened, appended to and committed without decoding unchanged
fragments. What a commit needs of all of them (`FragmentNumbers`: ids, rows, deleted rows) is read
from the bytes in bulk, and passed on to the next version together with the bytes.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from operator import is_not
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from lance_stream._proto import outlines_pb2, table_pb2
from lance_stream.arrays import Mask, Positions, U64s
from lance_stream.errors import CorruptDataError
from lance_stream.table.fragments.file_sizes import FileSizes
from lance_stream.table.fragments.fragment import (
    MAX_FRAGMENT_ID,
    Fragment,
    decode_fragment,
    encode_fragment,
    without_sequences,
)
from lance_stream.table.lineage.constant_lineage import ConstantLineage, constant_lineage
from lance_stream.table.lineage.row_ids import MAX_PHYSICAL_ROWS
from lance_stream.table.messages import wire
from lance_stream.table.messages.wire_columns import Spans, walk

FRAGMENTS = 2
"""The field number of the fragments in a Manifest message."""

_ID, _DELETION_FILE, _PHYSICAL_ROWS = 1, 3, 4
_HIDDEN_LINEAGE = (12, 13, 14)
_NUM_DELETED_ROWS = 4
_HIDDEN_ARMS = (
    "column_row_ids",
    "column_last_updated_at_versions",
    "column_created_at_versions",
)
# The number of messages from which reading in bulk is faster than parsing.
_MIN_BULK = 256


class ManifestRowCounts(NamedTuple):
    """The row counts of n fragments, in order.

    Attributes:
        physical: (n,) i64, the number of rows in the files, including deleted ones. Read-only.
        live: (n,) i64, the number of live rows. Read-only.
        unknown: The indices of fragments whose counts are missing or contradictory: both are 0
            there.
    """

    physical: npt.NDArray[np.int64]
    live: npt.NDArray[np.int64]
    unknown: list[int]


@dataclass(frozen=True, slots=True)
class FragmentNumbers:
    """The numbers in the messages of n fragments, in order.

    Attributes:
        ids: (n,) u64, the fragment ids.
        physical_rows: (n,) u64, the number of rows in the files; 0 if an old writer omitted it.
        num_deleted_rows: (n,) u64, the number of offsets in the deletion files; 0 without such a
            file, or if an old writer omitted it.
        has_deletion_file: (n,) whether there is a deletion file.
        has_hidden_lineage: (n,) whether row ids or row versions are hidden columns of data files.
    """

    ids: U64s
    physical_rows: U64s
    num_deleted_rows: U64s
    has_deletion_file: Mask
    has_hidden_lineage: Mask

    @classmethod
    def of(cls, raws: Sequence[bytes]) -> "FragmentNumbers":
        """Return the numbers of fragments.

        Args:
            raws: The bytes of the DataFragment messages.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged. Not all damage is detected here,
                but the numbers of decodable fragments are correct.
        """
        if len(raws) < _MIN_BULK:
            return cls._parsed(raws)
        data = np.frombuffer(b"".join(raws), np.uint8)
        stops = np.fromiter(accumulate(map(len, raws)), np.int64, len(raws))
        messages = Spans(np.concatenate([np.zeros(1, np.int64), stops])[: len(raws)], stops)
        walked = walk(data, messages, (_ID, _PHYSICAL_ROWS), (_DELETION_FILE, *_HIDDEN_LINEAGE))
        files = walked.spans[_DELETION_FILE]
        has_file = files.starts >= 0
        within = walk(
            data, Spans(files.starts[has_file], files.stops[has_file]), (_NUM_DELETED_ROWS,)
        )
        num_deleted_rows = np.zeros(len(raws), np.uint64)
        num_deleted_rows[has_file] = within.numbers[_NUM_DELETED_ROWS]
        walked.is_odd[has_file] |= within.is_odd
        is_hidden = [walked.spans[sequence].starts >= 0 for sequence in _HIDDEN_LINEAGE]
        result = cls(
            walked.numbers[_ID],
            walked.numbers[_PHYSICAL_ROWS],
            num_deleted_rows,
            has_file,
            np.logical_or.reduce(is_hidden),
        )
        odd = np.flatnonzero(walked.is_odd)
        return result._with(odd, cls._parsed([raws[index] for index in odd.tolist()]))

    @classmethod
    def _parsed(cls, raws: Iterable[bytes]) -> "FragmentNumbers":
        messages = [
            wire.parse_message(table_pb2.DataFragment, without_sequences(raw)[0]) for raw in raws
        ]
        return cls(
            np.array([message.id for message in messages], np.uint64),
            np.array([message.physical_rows for message in messages], np.uint64),
            np.array([message.deletion_file.num_deleted_rows for message in messages], np.uint64),
            np.array([message.HasField("deletion_file") for message in messages], np.bool_),
            np.array([any(map(message.HasField, _HIDDEN_ARMS)) for message in messages], np.bool_),
        )

    @classmethod
    def of_decoded(cls, fragments: Sequence[Fragment]) -> "FragmentNumbers":
        """Return the numbers of decoded or new fragments."""
        files = [fragment.deletion_file for fragment in fragments]
        return cls(
            np.array([fragment.id for fragment in fragments], np.uint64),
            np.array([fragment.physical_rows for fragment in fragments], np.uint64),
            np.array([file.num_deleted_rows if file else 0 for file in files], np.uint64),
            np.array([file is not None for file in files], np.bool_),
            np.array([fragment.has_hidden_lineage for fragment in fragments], np.bool_),
        )

    def _with(self, positions: Positions, others: "FragmentNumbers") -> "FragmentNumbers":
        """Return the numbers with those of other fragments at some indices."""
        if not len(positions):
            return self
        result = self.take(np.arange(len(self.ids)))
        for column, new_column in zip(result._columns(), others._columns(), strict=True):
            column[positions] = new_column
        return result

    def replaced(self, changes: Mapping[int, Fragment]) -> "FragmentNumbers":
        """Return the numbers after some fragments, by index, were replaced."""
        positions = np.array(list(changes), np.intp)
        return self._with(positions, FragmentNumbers.of_decoded(list(changes.values())))

    def _columns(self) -> tuple[U64s, U64s, U64s, Mask, Mask]:
        return (
            self.ids,
            self.physical_rows,
            self.num_deleted_rows,
            self.has_deletion_file,
            self.has_hidden_lineage,
        )

    @classmethod
    def joined(cls, parts: Sequence["FragmentNumbers"]) -> "FragmentNumbers":
        """Return the numbers of several lists of fragments, concatenated."""
        ids, physical_rows, num_deleted_rows, has_file, is_hidden = zip(
            *(part._columns() for part in parts), strict=True
        )
        return cls(
            np.concatenate(ids),
            np.concatenate(physical_rows),
            np.concatenate(num_deleted_rows),
            np.concatenate(has_file),
            np.concatenate(is_hidden),
        )

    def take(self, positions: Positions) -> "FragmentNumbers":
        """Return the numbers of some of the fragments."""
        return FragmentNumbers(
            self.ids[positions],
            self.physical_rows[positions],
            self.num_deleted_rows[positions],
            self.has_deletion_file[positions],
            self.has_hidden_lineage[positions],
        )


class FragmentList(Sequence[Fragment]):
    """The fragments of a version, kept as the bytes of their messages and decoded on demand.

    Two lists can be compared fragment by fragment by their bytes (`raw`); equal bytes mean that the
    fragment is unchanged. Indexing decodes a fragment and caches it.

    Args:
        raws: The bytes of the DataFragment messages.
    """

    def __init__(self, raws: Iterable[bytes] = ()) -> None:
        self.raws = tuple(raws)
        self._decoded: dict[int, Fragment] = {}
        self._cached_values: dict[Callable[[FragmentList], int], int] = {}
        self._lineage_before: tuple[tuple[bytes, ...], ConstantLineage] | None = None

    @classmethod
    def of(cls, fragments: Iterable[Fragment]) -> "FragmentList":
        """Return the list of some fragments."""
        if isinstance(fragments, FragmentList):
            return fragments
        decoded = tuple(fragments)
        result = cls(encode_fragment(fragment) for fragment in decoded)
        result._decoded = dict(enumerate(decoded))
        return result

    def appended(self, fragments: Iterable[Fragment]) -> "FragmentList":
        """Return a list with more fragments at its end, without decoding the existing ones."""
        more = FragmentList.of(fragments)
        result = FragmentList(self.raws + more.raws)
        result._decoded = {**self._decoded}
        result._decoded.update(
            (len(self) + index, fragment) for index, fragment in more._decoded.items()
        )
        if "numbers" in self.__dict__:
            result.numbers = FragmentNumbers.joined([self.numbers, more.numbers])
        result._lineage_before = self._cached_lineage
        if "framed" in self.__dict__:
            result.framed = self.framed + more.framed
        if "index_by_id" in self.__dict__ and self.index_by_id.keys().isdisjoint(more.ids):
            result.index_by_id = {**self.index_by_id}
            result.index_by_id.update(
                (fragment_id, len(self) + index) for fragment_id, index in more.index_by_id.items()
            )
        return result

    def replaced(self, changes: Mapping[int, Fragment | None]) -> "FragmentList":
        """Return a list in which some fragments are replaced or removed.

        Args:
            changes: Maps an index in this list to the new fragment, or None to remove it. The order
                is kept.
        """
        if not changes:
            return self
        replacements = {index: change for index, change in changes.items() if change is not None}
        raws = list(self.raws)
        for index, fragment in replacements.items():
            raws[index] = encode_fragment(fragment)
        result = FragmentList(raws)
        result._decoded = {**self._decoded, **replacements}
        if "numbers" in self.__dict__:
            result.numbers = self.numbers.replaced(replacements)
        result._lineage_before = self._cached_lineage
        if len(replacements) == len(changes):
            if "index_by_id" in self.__dict__ and all(
                self.index_by_id.get(fragment.id) == index
                for index, fragment in replacements.items()
            ):
                result.index_by_id = self.index_by_id
            return result
        is_unchanged = np.ones(len(raws), np.bool_)
        is_unchanged[[index for index, change in changes.items() if change is None]] = False
        return result._take(np.flatnonzero(is_unchanged))

    def sorted_by_id(self) -> "FragmentList":
        """Return the list in the order of the fragments' ids; the same object if it is sorted.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        ids = self.numbers.ids
        if bool((ids[:-1] < ids[1:]).all()):
            return self
        return self._take(np.argsort(ids, kind="stable"))

    def raw(self, index: int) -> bytes:
        """Return the bytes of one fragment's message."""
        return self.raws[index]

    @cached_property
    def numbers(self) -> FragmentNumbers:
        """The numbers of the fragments; decodes none.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        if len(self._decoded) == len(self.raws):
            return FragmentNumbers.of_decoded(
                [self._decoded[index] for index in range(len(self.raws))]
            )
        return FragmentNumbers.of(self.raws)

    @cached_property
    def row_counts(self) -> ManifestRowCounts:
        """The row counts of the fragments, where known; decodes none.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        numbers = self.numbers
        is_unknown = (
            (numbers.physical_rows == 0)
            | (numbers.physical_rows > MAX_PHYSICAL_ROWS)
            | (numbers.num_deleted_rows > numbers.physical_rows)
            | (numbers.has_deletion_file & (numbers.num_deleted_rows == 0))
            | (numbers.ids > MAX_FRAGMENT_ID)
        )
        physical = np.where(is_unknown, 0, numbers.physical_rows).astype(np.int64)
        live = physical - np.where(is_unknown, 0, numbers.num_deleted_rows).astype(np.int64)
        for counts in (physical, live):
            counts.flags.writeable = False
        return ManifestRowCounts(physical, live, np.flatnonzero(is_unknown).tolist())

    @cached_property
    def lineage(self) -> ConstantLineage:
        """The row ids and row versions that are uniform within fragments; decodes none.

        The values of the list from which this one was derived are reused.
        """
        if self._lineage_before is None:
            return constant_lineage(self.raws)
        raws, lineage = self._lineage_before
        num_common = min(len(raws), len(self.raws))
        is_new = np.ones(len(self.raws), np.bool_)
        is_new[:num_common] = np.fromiter(map(is_not, raws, self.raws), np.bool_, num_common)
        positions = np.flatnonzero(is_new)
        self._lineage_before = None
        new = constant_lineage([self.raws[index] for index in positions.tolist()])
        return lineage.replaced(len(self.raws), positions, new)

    @property
    def _cached_lineage(self) -> tuple[tuple[bytes, ...], ConstantLineage] | None:
        return (self.raws, self.lineage) if "lineage" in self.__dict__ else self._lineage_before

    @cached_property
    def file_sizes(self) -> FileSizes:
        """The sizes of the fragments' data files.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        return FileSizes.of(self.raws)

    @cached_property
    def framed(self) -> bytes:
        """The fragments as fields of a Manifest message."""
        return wire.serialize(outlines_pb2.ManifestOutline(fragments=self.raws))

    @property
    def framed_parts(self) -> Sequence[bytes]:
        """The parts of `framed`; a few fragments, which may be megabytes, are not copied.

        Many fragments are joined by protobuf, which is faster, and cached for the next version.
        """
        return (
            wire.frame_parts(FRAGMENTS, self.raws) if len(self.raws) < _MIN_BULK else (self.framed,)
        )

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The ids of the fragments; decodes none.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        return tuple(self.numbers.ids.tolist())

    @cached_property
    def index_by_id(self) -> dict[int, int]:
        """The index in the list of each fragment, by id.

        Raises:
            CorruptDataError: Two fragments have the same id.
        """
        positions = dict(zip(self.ids, range(len(self.raws)), strict=True))
        if len(positions) != len(self.ids):
            raise CorruptDataError("two fragments of one version have the same id")
        return positions

    def by_id(self, fragment_id: int) -> Fragment | None:
        """Return the fragment with an id, or None."""
        index = self.index_by_id.get(fragment_id)
        return None if index is None else self[index]

    @property
    def num_live_rows(self) -> int:
        """The number of physical rows minus deleted ones, according to the manifest; decodes none.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        return int(self.numbers.physical_rows.sum()) - int(self.numbers.num_deleted_rows.sum())

    @property
    def live_rows(self) -> list[int | None]:
        """The number of live rows of each fragment; None if unknown.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        numbers = self.numbers
        unknown = (numbers.physical_rows == 0) | (
            numbers.has_deletion_file & (numbers.num_deleted_rows == 0)
        )
        rows = zip(
            numbers.physical_rows.tolist(),
            numbers.num_deleted_rows.tolist(),
            unknown.tolist(),
            strict=True,
        )
        return [
            None if is_unknown else physical - deleted for physical, deleted, is_unknown in rows
        ]

    @property
    def has_deletion_files(self) -> bool:
        """Whether any fragment has a deletion file; decodes none.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        return bool(self.numbers.has_deletion_file.any())

    @property
    def has_hidden_lineage(self) -> bool:
        """Whether the lineage of any fragment is in a hidden column; decodes none.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        return bool(self.numbers.has_hidden_lineage.any())

    def cached(self, compute: Callable[["FragmentList"], int]) -> int:
        """Return a number derived from the fragments, computed on first use.

        Args:
            compute: Computes the number, which is cached per function.
        """
        if compute not in self._cached_values:
            self._cached_values[compute] = compute(self)
        return self._cached_values[compute]

    @property
    def num_decoded(self) -> int:
        """The number of fragments that have been decoded so far."""
        return len(self._decoded)

    def __len__(self) -> int:
        return len(self.raws)

    @overload
    def __getitem__(self, index: int) -> Fragment: ...
    @overload
    def __getitem__(self, index: slice) -> "FragmentList": ...
    def __getitem__(self, index: int | slice) -> "Fragment | FragmentList":
        if isinstance(index, slice):
            return self._take(np.arange(len(self.raws))[index])
        index = range(len(self.raws))[index]
        decoded = self._decoded.get(index)
        if decoded is None:
            decoded = self._decoded[index] = decode_fragment(self.raws[index])
        return decoded

    def _take(self, positions: Positions) -> "FragmentList":
        """Return the list of the fragments at some indices, with their cached values."""
        result = FragmentList(map(self.raws.__getitem__, positions.tolist()))
        if self._decoded:
            decoded = self._decoded
            result._decoded = {
                new_index: decoded[index]
                for new_index, index in enumerate(positions.tolist())
                if index in decoded
            }
        if "numbers" in self.__dict__:
            result.numbers = self.numbers.take(positions)
        return result

    def __iter__(self) -> Iterator[Fragment]:
        return (self[index] for index in range(len(self.raws)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FragmentList) and self.raws == other.raws

    def __hash__(self) -> int:
        return hash(self.raws)

    def __repr__(self) -> str:
        return f"<{len(self.raws)} fragments, {len(self._decoded)} of them decoded>"

    def __reduce__(self) -> tuple[type["FragmentList"], tuple[tuple[bytes, ...]]]:
        return FragmentList, (self.raws,)
