"""Repetition and definition levels: how leaf values are nested as lists, structs and nulls.

A leaf column is a chain of *layers*, counted from the leaf outwards: the leaf itself and each
struct around it are item layers, each list around it is a list layer. Each entry of the two level
streams represents a value, or a list without any:

    repetition   u16   0: continues the same innermost list; k: starts a list at the k-th list
                       layer from within; the largest one starts a new row. No lists: no stream
    definition   u16   0: all present; otherwise which layer is null or empty, the outermost if
    several
                       are. No null and no empty list: no stream

Definition levels are numbered over the layers from the leaf outwards, one for an item layer with
nulls, one or two for a list layer: null first, then empty. `[[1, None], [], None, [2]]` in rows,
with the layers (nullable item, null and empty list), is

    repetition   1 0 1 1 1
    definition   0 1 3 2 0
    values       1 ? . . 2         a null item has a slot among the values, an empty list none

A fixed-size list of structs is an item layer, too: each list's entry is repeated for each of its
items, whether the list is null or not. There are no lists below or above it.

An entry whose definition level is above the item layers below the innermost list has no slot among
the values: it is *invisible* from there.

Source:  encodings21.RepDefLayer in the proto.
Differs: The levels count from the innermost layer; those of Dremel and Parquet from the outermost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lance_stream._proto import encodings_v2_1_pb2 as pb
from lance_stream.arrays import Mask, Positions
from lance_stream.errors import CorruptDataError

LevelArray: TypeAlias = npt.NDArray[np.uint16]

ALL_VALID_ITEM = int(pb.REPDEF_ALL_VALID_ITEM)
ALL_VALID_LIST = int(pb.REPDEF_ALL_VALID_LIST)
NULLABLE_ITEM = int(pb.REPDEF_NULLABLE_ITEM)
NULLABLE_LIST = int(pb.REPDEF_NULLABLE_LIST)
EMPTYABLE_LIST = int(pb.REPDEF_EMPTYABLE_LIST)
NULL_AND_EMPTY_LIST = int(pb.REPDEF_NULL_AND_EMPTY_LIST)

_HAS_NULLS = frozenset({NULLABLE_ITEM, NULLABLE_LIST, NULL_AND_EMPTY_LIST})
_HAS_EMPTIES = frozenset({EMPTYABLE_LIST, NULL_AND_EMPTY_LIST})
_LISTS = frozenset({ALL_VALID_LIST, NULLABLE_LIST, EMPTYABLE_LIST, NULL_AND_EMPTY_LIST})
_ITEMS = frozenset({ALL_VALID_ITEM, NULLABLE_ITEM})


@dataclass(frozen=True, slots=True)
class Layers:
    """The layers of a leaf column as one page declares them, from the leaf outwards.

    Attributes:
        kinds: RepDefLayer of each layer.
        is_list: Whether each is a list layer.
        null_levels: The definition level of a null in each layer; 0 if it has none.
        empty_levels: The same for an empty list.
        below: The largest definition level of the layers below each layer.
        limits: The largest definition level at which an entry is visible from each layer.
        max_repetition: The repetition level that starts a row; 0 without lists.
        max_definition: The largest definition level.
        max_visible: The largest definition level whose entry has a slot among the values.
    """

    kinds: tuple[int, ...]
    is_list: tuple[bool, ...]
    null_levels: tuple[int, ...]
    empty_levels: tuple[int, ...]
    below: tuple[int, ...]
    limits: tuple[int, ...]
    max_repetition: int
    max_definition: int
    max_visible: int


@lru_cache(maxsize=1024)
def layers_of(kinds: tuple[int, ...]) -> Layers:
    """Return the layers that a page declares.

    Args:
        kinds: The RepDefLayer of each, from the leaf outwards.

    Raises:
        CorruptDataError: A layer is of an unknown kind.
    """
    null_levels, empty_levels, below = [], [], []
    level = 0
    for kind in kinds:
        if kind not in _LISTS and kind not in _ITEMS:
            raise CorruptDataError(f"a layer of the unknown kind {kind} is declared")
        below.append(level)
        level += kind in _HAS_NULLS
        null_levels.append(level if kind in _HAS_NULLS else 0)
        level += kind in _HAS_EMPTIES
        empty_levels.append(level if kind in _HAS_EMPTIES else 0)
    is_list = tuple(kind in _LISTS for kind in kinds)
    limits, limit = [], level
    for depth in reversed(range(len(kinds))):
        # Beyond the next list outwards, an entry represents a list without contents at this layer.
        limits.append(limit)
        if is_list[depth]:
            limit = below[depth]
    limits.reverse()
    return Layers(
        kinds=kinds,
        is_list=is_list,
        null_levels=tuple(null_levels),
        empty_levels=tuple(empty_levels),
        below=tuple(below),
        limits=tuple(limits),
        max_repetition=sum(is_list),
        max_definition=level,
        max_visible=limits[0] if limits else 0,
    )


@dataclass(frozen=True, slots=True)
class Levels:
    """The two level streams of a run of rows.

    Attributes:
        layers: The meaning of the levels.
        repetition: (num_levels,) u16; None without lists.
        definition: (num_levels,) u16; None if all values are present.
        num_levels: The number of entries.
    """

    layers: Layers
    repetition: LevelArray | None
    definition: LevelArray | None
    num_levels: int

    def has_streams(self) -> bool:
        """Return whether there are any levels."""
        return self.repetition is not None or self.definition is not None

    def visible(self) -> Mask | None:
        """Return which entries have a slot among the values; None if all have."""
        if self.definition is None or self.layers.max_definition == self.layers.max_visible:
            return None
        return self.definition <= self.layers.max_visible

    def num_visible(self) -> int:
        """Return the number of entries with a slot among the values."""
        visible = self.visible()
        return self.num_levels if visible is None else int(np.count_nonzero(visible))

    def num_rows(self) -> int:
        """Return the number of rows that start among the entries."""
        if self.repetition is None:
            return self.num_levels
        return int(np.count_nonzero(self.repetition == self.layers.max_repetition))

    def starts_with_row(self) -> bool:
        """Return whether the first entry starts a row."""
        repetition = self.repetition
        return repetition is None or (
            len(repetition) > 0 and int(repetition[0]) == self.layers.max_repetition
        )

    def row_starts(self) -> Positions:
        """Return (num_rows,) where each row starts among the entries."""
        if self.repetition is None:
            return np.arange(self.num_levels, dtype=np.int64)
        return np.flatnonzero(self.repetition == self.layers.max_repetition)

    def slice(self, start: int, stop: int) -> "Levels":
        """Return the entries [start, stop)."""
        return Levels(
            self.layers,
            None if self.repetition is None else self.repetition[start:stop],
            None if self.definition is None else self.definition[start:stop],
            stop - start,
        )

    def take(self, positions: Positions) -> "Levels":
        """Return the entries at some positions."""
        return Levels(
            self.layers,
            None if self.repetition is None else self.repetition[positions],
            None if self.definition is None else self.definition[positions],
            len(positions),
        )


def checked_levels(levels: Levels) -> Levels:
    """Return levels after checking them against their layers and against each other.

    Raises:
        CorruptDataError: They contradict each other or the layers.
    """
    layers = levels.layers
    for name, stream, maximum in (
        ("repetition", levels.repetition, layers.max_repetition),
        ("definition", levels.definition, layers.max_definition),
    ):
        if stream is None:
            continue
        if len(stream) != levels.num_levels:
            raise CorruptDataError(
                f"{len(stream)} {name} levels are stored for {levels.num_levels} entries"
            )
        if len(stream) and stream.max() > maximum:
            raise CorruptDataError(
                f"a {name} level of {stream.max()} is stored, but the layers allow at most "
                f"{maximum}"
            )
    if layers.max_repetition and levels.repetition is None:
        raise CorruptDataError("a page of lists has no repetition levels")
    return levels


def check_layers(layers: Layers, is_list: Sequence[bool]) -> None:
    """Check that a page's layers are those of its field.

    Raises:
        CorruptDataError: There are more, fewer or other layers.
    """
    if layers.is_list != tuple(is_list):
        raise CorruptDataError(
            f"a page declares the layers {_layer_names(layers.is_list)}, but its field has "
            f"{_layer_names(is_list)}"
        )


def join_levels(parts: Sequence[Levels]) -> Levels:
    """Return the levels of several runs of rows, one after the other.

    Pages may declare different layers for one column: one has nulls, the next has none. The levels
    are then renumbered over layers that include all of them.
    """
    if len(parts) == 1:
        return parts[0]
    total = sum(part.num_levels for part in parts)
    if len({part.layers for part in parts}) > 1:
        general = layers_of(
            tuple(
                NULL_AND_EMPTY_LIST if is_list else NULLABLE_ITEM
                for is_list in parts[0].layers.is_list
            )
        )
        parts = [_renumber(part, general) for part in parts]
    repetitions = [part.repetition for part in parts if part.repetition is not None]
    definition = None
    if any(part.definition is not None for part in parts):
        definition = np.concatenate(
            [
                np.zeros(part.num_levels, np.uint16) if part.definition is None else part.definition
                for part in parts
            ]
        )
    return Levels(
        parts[0].layers, np.concatenate(repetitions) if repetitions else None, definition, total
    )


def _renumber(levels: Levels, general: Layers) -> Levels:
    if levels.definition is None or levels.layers == general:
        return Levels(general, levels.repetition, levels.definition, levels.num_levels)
    table = np.zeros(levels.layers.max_definition + 1, np.uint16)
    for depth in range(len(general.kinds)):
        for old, new in (
            (levels.layers.null_levels[depth], general.null_levels[depth]),
            (levels.layers.empty_levels[depth], general.empty_levels[depth]),
        ):
            if old:
                table[old] = new
    return Levels(general, levels.repetition, table[levels.definition], levels.num_levels)


def _layer_names(is_list: Sequence[bool]) -> str:
    return "(" + ", ".join("list" if level else "item" for level in is_list) + ")"


def alternating(num_false: Positions, num_true: Positions) -> Mask:
    """Return a mask: for each pair of counts, a run of False and then a run of True."""
    counts = np.stack([num_false, num_true], axis=1).reshape(-1)
    return np.repeat(np.tile(np.array([False, True]), len(num_false)), counts)
