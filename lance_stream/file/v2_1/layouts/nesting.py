"""Converts between levels and Arrow's form: which values of each layer are null, and list lengths.

`LayerWriter` creates levels from it, from the outermost layer to the leaf; `LayerReader` converts
levels back, from the leaf outwards.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import Mask, Positions
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.file.v2_1.layouts.levels import (
    ALL_VALID_ITEM,
    ALL_VALID_LIST,
    EMPTYABLE_LIST,
    NULL_AND_EMPTY_LIST,
    NULLABLE_ITEM,
    NULLABLE_LIST,
    LevelArray,
    Levels,
    layers_of,
)

MAX_ARROW_ROWS = 2**31 - 1
"""The largest of Arrow's 32-bit list offsets."""


class LayerReader:
    """Converts levels to Arrow's form, layer by layer, from the leaf outwards.

    Call `items`, `lists` or `fixed_size_lists` for each layer in order, as `layers.is_list` says.

    Args:
        levels: Checked levels of whole rows.
    """

    def __init__(self, levels: Levels) -> None:
        self._layers = levels.layers
        self._repetition = levels.repetition
        self._definition = levels.definition
        self._num_levels = levels.num_levels
        self._depth = 0

    def items(self) -> Mask | None:
        """Return which of this item layer's values are not null; None if all are."""
        layers, depth = self._layers, self._depth
        self._depth += 1
        definition = self._definition
        if definition is None:
            return None
        limit = layers.limits[depth]
        if limit == layers.below[depth]:
            return None
        if limit < layers.max_definition:
            definition = definition[definition <= limit]
        return definition <= layers.below[depth]

    def fixed_size_lists(self, size: int) -> Mask | None:
        """Return which lists of a layer of fixed-size lists are not null; None if all are.

        Args:
            size: The number of items of each list.

        Raises:
            CorruptDataError: The items do not form whole lists, or disagree about nulls.
        """
        if self._num_levels % size:
            raise CorruptDataError(f"{self._num_levels} items do not form whole lists of {size}")
        layers, depth = self._layers, self._depth
        self._num_levels //= size
        definition = self._definition
        if definition is not None:
            of_lists = np.where(definition > layers.below[depth], definition, 0)
            of_lists = of_lists.reshape(-1, size)
            if (of_lists != of_lists[:, :1]).any():
                raise CorruptDataError(
                    "the items of a fixed-size list do not agree that it is null"
                )
            self._definition = np.ascontiguousarray(of_lists[:, 0])
        return self.items()

    def lists(self) -> tuple[Positions, Mask | None]:
        """Return a list layer.

        Returns:
            (num_lists + 1,) offsets into the values of the layer below, and which lists are not
            null; None if all are.
        """
        layers, depth = self._layers, self._depth
        self._depth += 1
        repetition, definition = self._repetition, self._definition
        if repetition is None:
            # No levels: no rows.
            return np.zeros(1, np.int64), None
        starts = np.flatnonzero(repetition != 0)
        if definition is None:
            offsets = np.append(starts, self._num_levels)
            self._reduce_to_lists(starts, None)
            return offsets, None
        started = definition[starts]
        self._reduce_to_lists(starts, started)
        num_levels = len(definition)
        without_items = started > layers.below[depth]
        num_without = int(np.count_nonzero(without_items))
        if num_without != np.count_nonzero(definition > layers.below[depth]):
            raise CorruptDataError("a list is marked as null or empty in the middle of its items")
        firsts = starts
        if num_without:
            firsts -= np.cumsum(without_items)
            firsts += without_items
        limit = layers.limits[depth]
        if limit < layers.max_definition:
            is_visible = started <= limit
            firsts, started = firsts[is_visible], started[is_visible]
        offsets = np.append(firsts, num_levels - num_without)
        valid: Mask | None = started <= layers.below[depth]
        if layers.empty_levels[depth]:
            valid |= started == layers.empty_levels[depth]
        if layers.below[depth] == limit or bool(np.all(valid)):
            valid = None
        return offsets, valid

    def _reduce_to_lists(self, starts: Positions, definition: LevelArray | None) -> None:
        """Reduce the levels to one entry per list, with its definition level, for outer layers."""
        if self._repetition is not None and self._depth < len(self._layers.kinds):
            self._repetition = self._repetition[starts] - np.uint16(1)
        self._definition = definition
        self._num_levels = len(starts)


@dataclass(frozen=True, slots=True)
class _Layer:
    valid: Mask | None
    lengths: Positions | None = None  # of a list layer; 0 where it is null
    items_per_value: int = 1  # of a layer of fixed-size lists
    declares_nulls: bool = False  # of an item layer, even if it has none


class LayerWriter:
    """Builds levels, layer by layer, from the outermost inwards.

    Immutable: the leaves of a struct continue from the same writer.

    Args:
        num_rows: The rows of the page.
    """

    def __init__(self, num_rows: int, _layers: tuple[_Layer, ...] = ()) -> None:
        self._num_rows = num_rows
        self._layers = _layers

    @property
    def has_lists(self) -> bool:
        """Whether there is a list layer so far."""
        return any(layer.lengths is not None for layer in self._layers)

    @property
    def _declares_nulls_in_lists(self) -> bool:
        """Whether nulls are declared in a layer that is inside of a list, but is not the leaf."""
        is_in_list = False
        for layer in self._layers[:-1]:
            if layer.declares_nulls and is_in_list:
                return True
            is_in_list = is_in_list or layer.lengths is not None
        return False

    def items(self, valid: Mask | None, *, declares_nulls: bool = False) -> "LayerWriter":
        """Add an item layer.

        Args:
            valid: Which values are not null, one for each item of the layers so far (including
                null ones, but none for lists without contents); None if all are.
            declares_nulls: Whether the page declares nulls in the layer even if there are none. In
                a list, all lists then declare nulls and empty lists, too.
        """
        valid = None if valid is None or bool(valid.all()) else valid
        layer = _Layer(valid, declares_nulls=declares_nulls)
        return LayerWriter(self._num_rows, (*self._layers, layer))

    def fixed_size_lists(self, size: int, valid: Mask | None) -> "LayerWriter":
        """Add a layer of fixed-size lists; there must be no list layer.

        Args:
            size: Items of each list; null ones have the same number.
            valid: As in `items`.
        """
        valid = None if valid is None or bool(valid.all()) else valid
        return LayerWriter(self._num_rows, (*self._layers, _Layer(valid, items_per_value=size)))

    def lists(self, lengths: Positions, valid: Mask | None) -> "LayerWriter":
        """Add a list layer.

        Args:
            lengths: Items of each list; 0 where it or something around it is null.
            valid: As in `items`.
        """
        valid = None if valid is None or bool(valid.all()) else valid
        return LayerWriter(self._num_rows, (*self._layers, _Layer(valid, lengths)))

    def finish(self) -> Levels:
        """Return the levels, and the layers as this page declares them."""
        declares_all = self._declares_nulls_in_lists
        kinds = [_kind(layer, declares_all=declares_all) for layer in self._layers]
        layers = layers_of(tuple(reversed(kinds)))
        has_definition = layers.max_definition > 0
        num_levels = self._num_rows
        definition = np.zeros(num_levels, np.uint16) if has_definition else None
        repetition = np.zeros(num_levels, np.uint16) if layers.max_repetition else None
        slots: Positions | None = (
            None  # entries that have an item in the current layer; None if all have
        )
        list_level = layers.max_repetition
        for depth, layer in enumerate(self._layers):
            index = len(self._layers) - 1 - depth
            if definition is not None and layer.valid is not None:
                _mark_absent(definition, slots, ~layer.valid, layers.null_levels[index])
            if layer.items_per_value > 1:
                num_levels *= layer.items_per_value
                if definition is not None:
                    definition = np.repeat(definition, layer.items_per_value)
            if layer.lengths is None or repetition is None:
                continue
            if definition is not None and layers.empty_levels[index]:
                _mark_absent(definition, slots, layer.lengths == 0, layers.empty_levels[index])
            at = slice(None) if slots is None else slots
            started = repetition[at]
            repetition[at] = np.where(started == 0, np.uint16(list_level), started)
            list_level -= 1
            counts = np.ones(num_levels, np.int64)
            counts[at] = np.maximum(layer.lengths, 1)
            firsts = np.cumsum(counts) - counts
            total = int(counts.sum())
            expanded = np.zeros(total, np.uint16)
            expanded[firsts] = repetition
            repetition = expanded
            if definition is not None:
                is_empty = definition > layers.below[index]
                expanded = np.zeros(total, np.uint16)
                expanded[firsts] = definition
                definition = expanded
                if is_empty.any():
                    is_slot = np.ones(total, np.bool_)
                    is_slot[firsts[is_empty]] = False
                    slots = np.flatnonzero(is_slot)
                else:
                    slots = None
            num_levels = total
        return Levels(layers, repetition, definition, num_levels)


def _mark_absent(
    definition: LevelArray, slots: Positions | None, is_absent: Mask, level: int
) -> None:
    """Set the level of entries that are absent, unless a parent is absent, too."""
    if slots is None:
        np.putmask(definition, is_absent & (definition == 0), level)
    else:
        absent = slots[is_absent]
        definition[absent[definition[absent] == 0]] = level


def _kind(layer: _Layer, *, declares_all: bool) -> int:
    if layer.lengths is None:
        has_nulls = layer.declares_nulls or layer.valid is not None
        return NULLABLE_ITEM if has_nulls else ALL_VALID_ITEM
    if declares_all:
        return NULL_AND_EMPTY_LIST
    is_absent = layer.lengths == 0
    if layer.valid is None:
        return EMPTYABLE_LIST if is_absent.any() else ALL_VALID_LIST
    return NULL_AND_EMPTY_LIST if (is_absent & layer.valid).any() else NULLABLE_LIST


def arrow_offsets(offsets: Positions, *, wide: bool) -> npt.NDArray[np.int32] | Positions:
    """Return list offsets in the width of a list (32 bits) or large list (64).

    Raises:
        InvalidInputError: There are too many items for a list's 32-bit offsets.
    """
    if wide:
        return offsets
    if offsets[-1] > MAX_ARROW_ROWS:
        raise InvalidInputError(
            f"lists of {offsets[-1]} items together do not fit into one Arrow list array; "
            "read fewer rows at a time"
        )
    return offsets.astype(np.int32)
