"""Rows of one top-level field, from the pages of its leaves."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lance_stream.byte_ranges import Asking
from lance_stream.file.structural.pages import PagesOfColumn
from lance_stream.schema.fields import Field


def read_field(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], start: int, stop: int
) -> Asking[pa.Array]:
    """Read the rows [start, stop) of a field.

    Args:
        field: A top-level field; children that are not asked for are left out of it.
        pages_of_leaf: The columns of its leaves, by field id. A leaf that is not there reads as
            nulls, as long as another one is.
        start: First row, counted in the file.
        stop: One past the last.

    Returns:
        (stop - start,) values of the type that `field_to_arrow(field)` has.

    Raises:
        CorruptDataError: The bytes contradict themselves.
        UnsupportedFeatureError: A layout or codec that we do not know, by name.
        InvalidInputError: So many rows do not fit into one Arrow array.
    """
    raise NotImplementedError


def take_field(
    field: Field, pages_of_leaf: Mapping[int, PagesOfColumn], offsets: npt.NDArray[np.uint64]
) -> Asking[pa.Array]:
    """Read rows of a field that lie anywhere.

    Args:
        field: As in `read_field`.
        pages_of_leaf: As in `read_field`.
        offsets: (num_rows,) u64 rows, counted in the file, ascending, each once.

    Returns:
        (num_rows,) values, in the order of the offsets.

    Raises:
        As `read_field`.
    """
    raise NotImplementedError
