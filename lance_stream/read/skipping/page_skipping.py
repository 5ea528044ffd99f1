"""Excludes pages in which a filter cannot be true, by the bounds of their values.

Only data files of version 0.1 have bounds. The zones of row lineage in the manifest
(`lineage_skipping`) and the pages of an index (`indices.btree`) use the same rules. A page is
skipped only if no value within its bounds makes the filter true:

    column < 5         may be true if the page's smallest value is less
    column = 5         may be true if 5 is within the bounds (and so for IN)
    column IS NULL     may be true if the page has nulls, or if that is unknown
    a AND b            may be true if both may be true
    a OR b             may be true if one may be true
    anything else      may be true: NOT, LIKE, <>, two columns, arithmetic

Comparisons are evaluated on the smallest and largest values by the same rules as on rows, so casts
and mixed types give the same results. NaN is greater than any other number, and the bounds in data
files exclude it: for a float column, `>` and `>=` may be true on any page, and so may `=` with NaN.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Mask
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.expressions import nodes
from lance_stream.expressions.evaluation.rules import evaluate_node, listed_members
from lance_stream.expressions.nodes import Node, is_path, operands_of, path_of
from lance_stream.expressions.predicates import Expression, evaluate_predicate
from lance_stream.file.v0_1.statistics import PageBounds
from lance_stream.read.skipping.row_ranges import Path, RowRanges
from lance_stream.schema.fields import Field

_FEW_MEMBERS: Final = 16


class ValueBounds(NamedTuple):
    """The bounds of a column's values in each page.

    Attributes:
        minima: (num_pages,) the smallest value of each page; null if unknown.
        maxima: (num_pages,) the largest value of each page; null if unknown.
        excludes_nan: Whether the bounds ignore NaN, which any page may have then.
        has_nulls: (num_pages,) whether the page has nulls; None if unknown.
    """

    minima: pa.Array
    maxima: pa.Array
    excludes_nan: bool = True
    has_nulls: Mask | None = None


Bounds: TypeAlias = Mapping[Path, ValueBounds]

_MIRRORED: dict[type[nodes.Comparison], type[nodes.Comparison]] = {
    nodes.Less: nodes.Greater,
    nodes.LessOrEqual: nodes.GreaterOrEqual,
    nodes.Greater: nodes.Less,
    nodes.GreaterOrEqual: nodes.LessOrEqual,
    nodes.Equal: nodes.Equal,
}


def ranges_that_may_match(
    predicate: Expression, leaves: Mapping[Path, Field], bounds: PageBounds
) -> RowRanges:
    """Return the rows of the pages in which a filter may be true.

    Args:
        predicate: The filter.
        leaves: The leaf fields that it names, by path.
        bounds: The bounds of their pages in a file.
    """
    num_pages = len(bounds.batch_offsets) - 1
    bounds_by_path = {
        path: ValueBounds(bounds.of_field[field.id].minimum, bounds.of_field[field.id].maximum)
        for path, field in leaves.items()
        if field.id in bounds.of_field
    }
    return RowRanges.of_pages(
        bounds.batch_offsets, pages_that_may_match(predicate.node, bounds_by_path, num_pages)
    )


def may_match(
    predicate: Expression,
    bounds: Mapping[str, tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]],
    num_zones: int,
) -> Mask:
    """Return the zones (ranges of rows) in which a filter may be true.

    Args:
        predicate: The filter.
        bounds: Maps names of u64 columns without nulls to the smallest and largest value of each
            zone; other columns may have any value.
        num_zones: The number of zones.

    Returns:
        (num_zones,) booleans, which are exact for zones in which each column of the filter has
        a single value.
    """
    bounds_by_path: dict[Path, ValueBounds] = {
        (name,): ValueBounds(pa.array(minima), pa.array(maxima))
        for name, (minima, maxima) in bounds.items()
    }
    may_be_true = pages_that_may_match(predicate.node, bounds_by_path, num_zones)
    if not bounds_by_path or any(path not in bounds_by_path for path in predicate.paths):
        return may_be_true
    # Where each column has a single value, the filter itself is evaluated.
    has_single_values = np.logical_and.reduce(
        [minima == maxima for minima, maxima in bounds.values()]
    )
    zones = np.flatnonzero(may_be_true & has_single_values)
    values = [pa.array(minima[zones]) for minima, _ in bounds.values()]
    try:
        answers = evaluate_predicate(
            predicate, pa.RecordBatch.from_arrays(values, names=list(bounds))
        )
    except InvalidInputError:
        return may_be_true  # evaluating the filter on rows reports the error
    may_be_true[zones] = pc.fill_null(answers, False).to_numpy(zero_copy_only=False)
    return may_be_true


def pages_that_may_match(node: Node, bounds: Bounds, num_pages: int) -> Mask:
    """Return the pages in which a node may be true, (num_pages,) booleans."""
    everywhere = np.ones(num_pages, np.bool_)
    if isinstance(node, nodes.Parentheses):
        return pages_that_may_match(node.operand, bounds, num_pages)
    if isinstance(node, nodes.And | nodes.Or):
        combine = np.logical_and if isinstance(node, nodes.And) else np.logical_or
        parts = [pages_that_may_match(operand, bounds, num_pages) for operand in operands_of(node)]
        return np.asarray(combine.reduce(parts))
    if isinstance(node, nodes.Between):
        return _compare_with_constant(
            nodes.GreaterOrEqual, node.operand, node.low, bounds, everywhere
        ) & _compare_with_constant(nodes.LessOrEqual, node.operand, node.high, bounds, everywhere)
    if isinstance(node, nodes.Is) and isinstance(node.constant, nodes.Null):
        has_nulls = (
            bounds[path_of(node.operand)].has_nulls if _has_bounds(node.operand, bounds) else None
        )
        return everywhere if has_nulls is None else has_nulls
    if isinstance(node, nodes.In):
        if len(node.members) > _FEW_MEMBERS:
            return _compare_with_members(node, bounds, everywhere)
        masks = [
            _compare_with_constant(nodes.Equal, node.operand, member, bounds, everywhere)
            for member in node.members
        ]
        return np.asarray(np.logical_or.reduce(masks))
    if isinstance(node, nodes.Comparison) and type(node) in _MIRRORED:
        left, right = node.left, node.right
        if is_path(left):
            return _compare_with_constant(type(node), left, right, bounds, everywhere)
        return _compare_with_constant(_MIRRORED[type(node)], right, left, bounds, everywhere)
    return everywhere


def _compare_with_constant(
    kind: type[nodes.Comparison],
    column: Node,
    value: Node,
    bounds: Bounds,
    everywhere: Mask,
) -> Mask:
    """Return the pages in which a comparison of a column with a constant may be true."""
    if not _has_bounds(column, bounds) or any(map(is_path, value.walk())):
        return everywhere
    path = path_of(column)
    minima, maxima, excludes_nan, _ = bounds[path]
    may_have_nan = excludes_nan and pa.types.is_floating(maxima.type)
    if may_have_nan and (
        kind in (nodes.Greater, nodes.GreaterOrEqual)
        or (kind is nodes.Equal and not _is_number(value))
    ):
        return everywhere
    comparisons = {
        nodes.Less: ((nodes.Less, minima),),
        nodes.LessOrEqual: ((nodes.LessOrEqual, minima),),
        nodes.Greater: ((nodes.Greater, maxima),),
        nodes.GreaterOrEqual: ((nodes.GreaterOrEqual, maxima),),
        nodes.Equal: ((nodes.LessOrEqual, minima), (nodes.GreaterOrEqual, maxima)),
    }[kind]
    may_be_true = everywhere
    for comparison, bound in comparisons:
        node = comparison(column, value)
        may_be_true = may_be_true & _true_or_unknown(node, path, bound)
    return may_be_true


def _compare_with_members(node: nodes.In, bounds: Bounds, everywhere: Mask) -> Mask:
    """Return the pages in which a column may be one of many constants."""
    if not _has_bounds(node.operand, bounds):
        return everywhere
    minima, maxima, *_ = bounds[path_of(node.operand)]
    try:
        members = listed_members(node, minima.type)
    except (InvalidInputError, NotFoundError, pa.ArrowException):
        return everywhere
    if len(members) < len(node.members):
        return everywhere  # some members are null, or of another type
    ordered = members.unique().take(pc.sort_indices(members.unique()))
    values = ordered.to_numpy(zero_copy_only=False)
    is_unknown = np.asarray(pc.or_(pc.is_null(minima), pc.is_null(maxima)))
    may_be_true = is_unknown.copy()
    pages = np.flatnonzero(~is_unknown)
    # A page may match if at least one member is within its bounds.
    first = np.searchsorted(values, minima.take(pages).to_numpy(zero_copy_only=False), "left")
    stop = np.searchsorted(values, maxima.take(pages).to_numpy(zero_copy_only=False), "right")
    may_be_true[pages] = first < stop
    return may_be_true


def _has_bounds(column: Node, bounds: Bounds) -> bool:
    return is_path(column) and path_of(column) in bounds


def _is_number(value: Node) -> bool:
    """Return whether a constant is certainly not NaN."""
    try:
        number = evaluate_node(value, _ONE_ROW)
    except (InvalidInputError, NotFoundError, pa.ArrowException):
        return False
    if isinstance(number, pa.Array):
        number = number[0]
    return bool(pa.types.is_decimal(number.type) or number.as_py() == number.as_py())


_ONE_ROW = pa.RecordBatch.from_arrays([pa.nulls(1)], names=[""])


def _true_or_unknown(node: Node, path: Path, bound: pa.Array) -> Mask:
    """Return the pages for whose bound a node is true, or whose bound is unknown."""
    everywhere = np.ones(len(bound), np.bool_)
    array = bound
    for name in reversed(path[1:]):
        array = pa.StructArray.from_arrays([array], names=[name])
    batch = pa.RecordBatch.from_arrays([array], names=[path[0]])
    try:
        answers = evaluate_node(node, batch)
    except (InvalidInputError, NotFoundError, pa.ArrowException):
        return everywhere  # evaluating the filter on rows reports the error
    if isinstance(answers, pa.Scalar):
        return everywhere
    unknown = pc.is_null(bound)
    return np.asarray(pc.or_(pc.fill_null(answers, False), unknown).to_numpy(zero_copy_only=False))
