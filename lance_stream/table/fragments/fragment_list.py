"""The fragments of a version: encoded bytes that are carried over, and decoded on demand.

A table of 20,000 fragments is opened, appended to and committed without decoding the fragments that
are carried over. What a commit needs of all of them (`FragmentNumbers`: ids, rows, deleted rows) is
read from the bytes at once, and carried from version to version with the bytes.
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
"""The number of the fragments' field in a Manifest message."""

_ID, _DELETION_FILE, _PHYSICAL_ROWS = 1, 3, 4
_HIDDEN_LINEAGE = (12, 13, 14)
_NUM_DELETED_ROWS = 4
_HIDDEN_ARMS = (
    "column_row_ids",
    "column_last_updated_at_versions",
    "column_created_at_versions",
)
# Fewer messages are just as fast to read individually.
_FEW = 256


class StatedRows(NamedTuple):
    """How many rows n fragments have, in their order.

    Attributes:
        physical: (n,) i64, the rows in their files, deleted ones included. Read-only.
        live: (n,) i64, the others. Read-only.
        odd: The positions of fragments whose bytes do not state this, or contradict themselves:
            both numbers are 0.
    """

    physical: npt.NDArray[np.int64]
    live: npt.NDArray[np.int64]
    odd: list[int]


@dataclass(frozen=True, slots=True)
class FragmentNumbers:
    """The numbers of n fragments, in their order.

    Attributes:
        ids: (n,) u64, their ids.
        physical_rows: (n,) u64, the rows in their files; 0 if an old writer did not state it.
        num_deleted_rows: (n,) u64, the offsets in their deletion files; 0 without such a file,
            and if an old writer did not state it.
        has_deletion_file: (n,) whether they have one.
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
            raws: The bytes of one DataFragment message each.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged. Not all damage is detected here,
                but the numbers of a fragment that can be decoded are right.
        """
        if len(raws) < _FEW:
            return cls._parsed_alone(raws)
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
        return result._with(odd, cls._parsed_alone([raws[index] for index in odd.tolist()]))

    @classmethod
    def _parsed_alone(cls, raws: Iterable[bytes]) -> "FragmentNumbers":
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
        """Return the numbers with other fragments at some positions."""
        if not len(positions):
            return self
        result = self.take(np.arange(len(self.ids)))
        for mine, theirs in zip(result._columns(), others._columns(), strict=True):
            mine[positions] = theirs
        return result

    def replaced(self, changes: Mapping[int, Fragment]) -> "FragmentNumbers":
        """Return the numbers of the list with other fragments at some positions."""
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
    """The fragments of a version, each kept as its message's bytes and decoded on demand.

    Two lists can be compared fragment by fragment as bytes (`raw`); equal bytes mean that the
    fragment is unchanged. Indexing decodes a fragment, and caches it.

    Args:
        raws: The bytes of one DataFragment message each.
    """

    def __init__(self, raws: Iterable[bytes] = ()) -> None:
        self.raws = tuple(raws)
        self._decoded: dict[int, Fragment] = {}
        self._answers: dict[Callable[[FragmentList], int], int] = {}
        self._lineage_before: tuple[tuple[bytes, ...], ConstantLineage] | None = None

    @classmethod
    def of(cls, fragments: Iterable[Fragment]) -> "FragmentList":
        """Return the list of the given fragments."""
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
        result._decoded.update((len(self) + at, fragment) for at, fragment in more._decoded.items())
        if "numbers" in self.__dict__:
            result.numbers = FragmentNumbers.joined([self.numbers, more.numbers])
        result._lineage_before = self._cached_lineage
        if "framed" in self.__dict__:
            result.framed = self.framed + more.framed
        if "index_by_id" in self.__dict__ and self.index_by_id.keys().isdisjoint(more.ids):
            result.index_by_id = {**self.index_by_id}
            result.index_by_id.update(
                (fragment_id, len(self) + at) for fragment_id, at in more.index_by_id.items()
            )
        return result

    def replaced(self, changes: Mapping[int, Fragment | None]) -> "FragmentList":
        """Return a list in which some fragments are replaced or removed.

        Args:
            changes: By position in this list, the fragment to put there, or None to remove it. The
                order is kept.
        """
        if not changes:
            return self
        instead = {index: change for index, change in changes.items() if change is not None}
        raws = list(self.raws)
        for index, fragment in instead.items():
            raws[index] = encode_fragment(fragment)
        result = FragmentList(raws)
        result._decoded = {**self._decoded, **instead}
        if "numbers" in self.__dict__:
            result.numbers = self.numbers.replaced(instead)
        result._lineage_before = self._cached_lineage
        if len(instead) == len(changes):
            if "index_by_id" in self.__dict__ and all(
                self.index_by_id.get(fragment.id) == index for index, fragment in instead.items()
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
            return FragmentNumbers.of_decoded([self._decoded[at] for at in range(len(self.raws))])
        return FragmentNumbers.of(self.raws)

    @cached_property
    def stated_rows(self) -> StatedRows:
        """The number of rows of each fragment, as far as the bytes tell; decodes none.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        numbers = self.numbers
        is_odd = (
            (numbers.physical_rows == 0)
            | (numbers.physical_rows > MAX_PHYSICAL_ROWS)
            | (numbers.num_deleted_rows > numbers.physical_rows)
            | (numbers.has_deletion_file & (numbers.num_deleted_rows == 0))
            | (numbers.ids > MAX_FRAGMENT_ID)
        )
        physical = np.where(is_odd, 0, numbers.physical_rows).astype(np.int64)
        live = physical - np.where(is_odd, 0, numbers.num_deleted_rows).astype(np.int64)
        for counts in (physical, live):
            counts.flags.writeable = False
        return StatedRows(physical, live, np.flatnonzero(is_odd).tolist())

    @cached_property
    def lineage(self) -> ConstantLineage:
        """Row ids and row versions that all rows of a fragment share; decodes none.

        What is known of the list that this one was made from is not read again.
        """
        if self._lineage_before is None:
            return constant_lineage(self.raws)
        raws, lineage = self._lineage_before
        num_both = min(len(raws), len(self.raws))
        differ = np.ones(len(self.raws), np.bool_)
        differ[:num_both] = np.fromiter(map(is_not, raws, self.raws), np.bool_, num_both)
        positions = np.flatnonzero(differ)
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
        """What `framed` consists of. Of a few fragments, which may be megabytes, nothing is copied.

        Protobuf joins many fragments faster, and what it has joined is kept for the next version.
        """
        return wire.frame_parts(FRAGMENTS, self.raws) if len(self.raws) < _FEW else (self.framed,)

    @cached_property
    def ids(self) -> tuple[int, ...]:
        """The id of each fragment, found without decoding the rest of it.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        return tuple(self.numbers.ids.tolist())

    @cached_property
    def index_by_id(self) -> dict[int, int]:
        """The position in the list of each fragment, by id.

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
        """Physical rows less deleted ones, according to the manifest; decodes no fragment.

        Raises:
            CorruptDataError: The bytes of a fragment are damaged.
        """
        return int(self.numbers.physical_rows.sum()) - int(self.numbers.num_deleted_rows.sum())

    @property
    def live_rows(self) -> list[int | None]:
        """How many live rows each fragment has; None if it is not stated.

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

    def remembered(self, ask: Callable[["FragmentList"], int]) -> int:
        """Return a number derived from the fragments, computed on first use.

        Args:
            ask: Computes it; the result is cached with this list, by function.
        """
        if ask not in self._answers:
            self._answers[ask] = ask(self)
        return self._answers[ask]

    @property
    def num_decoded(self) -> int:
        """How many of the fragments have been decoded so far."""
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
        """Return the list of the fragments at some positions, with their cached values."""
        result = FragmentList(map(self.raws.__getitem__, positions.tolist()))
        if self._decoded:
            decoded = self._decoded
            result._decoded = {
                at: decoded[index]
                for at, index in enumerate(positions.tolist())
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
