"""Finds which rows a filter may match, from the bounds of the values of each page.

Only data files of version 0.1 have bounds (the manifest's row lineage has them, too: see
`lineage_skipping`; and the pages of an index: see `indices.btree`). A page is skipped only if no
value between its bounds makes the filter true; parts of the filter that bounds cannot decide may
always be true:

    column < 5         the page's smallest value is less
    column = 5         5 is within the bounds (likewise for IN)
    column IS NULL     the page has nulls, if that is known
    a AND b            both may be true
    a OR b             one may be true
    anything else           may be true: NOT, LIKE, <>, two columns, arithmetic

Comparisons are evaluated on the smallest and largest values by the same rules as on rows, so that
casts and mixed types mean the same. NaN is greater than any other number, and in data files outside
all bounds: for a float column `>` and `>=` may be true anywhere, and so may `=` with NaN.
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
    """The bounds of a column's values in each of n pages.

    Attributes:
        least: (n,) the smallest values; null where that is not known.
        most: (n,) the largest values, likewise.
        is_nan_outside: Whether floats may be NaN though the largest value is not.
        has_nulls: (n,) whether there are nulls; None if it is not known.
    """

    least: pa.Array
    most: pa.Array
    is_nan_outside: bool = True
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
        leaves: The leaves it names.
        bounds: The bounds of their pages in a file.
    """
    num_pages = len(bounds.batch_offsets) - 1
    bounds_by_path = {
        path: ValueBounds(bounds.of_field[field.id].least, bounds.of_field[field.id].most)
        for path, field in leaves.items()
        if field.id in bounds.of_field
    }
    return RowRanges.of_pages(
        bounds.batch_offsets, pages_that_may_match(predicate.node, bounds_by_path, num_pages)
    )


def may_match(
    predicate: Expression,
    bounds: Mapping[str, tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]],
    num_pieces: int,
) -> Mask:
    """Return the pieces of rows in which a filter may be true.

    Args:
        predicate: The filter.
        bounds: Maps names of u64 columns without nulls to the smallest and largest value of each
            piece; other columns may have any value.
        num_pieces: How many pieces there are.

    Returns:
        (num_pieces,) booleans. They are exact if each column that the filter names has a single
        value in a piece.
    """
    bounds_by_path: dict[Path, ValueBounds] = {
        (name,): ValueBounds(pa.array(least), pa.array(most))
        for name, (least, most) in bounds.items()
    }
    may = pages_that_may_match(predicate.node, bounds_by_path, num_pieces)
    if not bounds_by_path or any(path not in bounds_by_path for path in predicate.paths):
        return may
    single = may & np.logical_and.reduce([least == most for least, most in bounds.values()])
    which = np.flatnonzero(single)
    values = [pa.array(least[which]) for least, _ in bounds.values()]
    try:
        answers = evaluate_predicate(
            predicate, pa.RecordBatch.from_arrays(values, names=list(bounds))
        )
    except InvalidInputError:
        return may  # evaluating it on rows reports the error
    may[which] = pc.fill_null(answers, False).to_numpy(zero_copy_only=False)
    return may


def pages_that_may_match(node: Node, bounds: Bounds, num_pages: int) -> Mask:
    """Return the pages in which a node may be true, (num_pages,)."""
    everywhere = np.ones(num_pages, np.bool_)
    if isinstance(node, nodes.Parentheses):
        return pages_that_may_match(node.operand, bounds, num_pages)
    if isinstance(node, nodes.And | nodes.Or):
        combine = np.logical_and if isinstance(node, nodes.And) else np.logical_or
        parts = [pages_that_may_match(operand, bounds, num_pages) for operand in operands_of(node)]
        return np.asarray(combine.reduce(parts))
    if isinstance(node, nodes.Between):
        return _compared(
            nodes.GreaterOrEqual, node.operand, node.low, bounds, everywhere
        ) & _compared(nodes.LessOrEqual, node.operand, node.high, bounds, everywhere)
    if isinstance(node, nodes.Is) and isinstance(node.constant, nodes.Null):
        has_nulls = (
            bounds[path_of(node.operand)].has_nulls if _has_bounds(node.operand, bounds) else None
        )
        return everywhere if has_nulls is None else has_nulls
    if isinstance(node, nodes.In):
        if len(node.members) > _FEW_MEMBERS:
            return _listed(node, bounds, everywhere)
        masks = [
            _compared(nodes.Equal, node.operand, member, bounds, everywhere)
            for member in node.members
        ]
        return np.asarray(np.logical_or.reduce(masks)) if masks else everywhere
    if isinstance(node, nodes.Comparison) and type(node) in _MIRRORED:
        left, right = node.left, node.right
        if _is_column(left):
            return _compared(type(node), left, right, bounds, everywhere)
        return _compared(_MIRRORED[type(node)], right, left, bounds, everywhere)
    return everywhere


def _compared(
    kind: type[nodes.Comparison],
    column: Node,
    value: Node,
    bounds: Bounds,
    everywhere: Mask,
) -> Mask:
    """Return the pages in which a comparison of a column with a constant may be true."""
    if not _has_bounds(column, bounds) or any(map(_is_column, value.walk())):
        return everywhere
    path = path_of(column)
    least, most, is_nan_outside, _ = bounds[path]
    is_float = is_nan_outside and pa.types.is_floating(most.type)
    if is_float and (
        kind in (nodes.Greater, nodes.GreaterOrEqual)
        or (kind is nodes.Equal and not _is_number(value))
    ):
        return everywhere
    comparisons = {
        nodes.Less: ((nodes.Less, least),),
        nodes.LessOrEqual: ((nodes.LessOrEqual, least),),
        nodes.Greater: ((nodes.Greater, most),),
        nodes.GreaterOrEqual: ((nodes.GreaterOrEqual, most),),
        nodes.Equal: ((nodes.LessOrEqual, least), (nodes.GreaterOrEqual, most)),
    }[kind]
    may = everywhere
    for comparison, bound in comparisons:
        node = comparison(column, value)
        may = may & _true_or_unknown(node, path, bound)
    return may


def _listed(node: nodes.In, bounds: Bounds, everywhere: Mask) -> Mask:
    """Return the pages in which a column may be one of many constants."""
    if not _has_bounds(node.operand, bounds):
        return everywhere
    least, most, *_ = bounds[path_of(node.operand)]
    try:
        members = listed_members(node, least.type)
    except (InvalidInputError, NotFoundError, pa.ArrowException):
        return everywhere
    if len(members) < len(node.members):
        return everywhere  # some are of another type, or null
    ordered = members.unique().take(pc.sort_indices(members.unique()))
    values = ordered.to_numpy(zero_copy_only=False)
    is_unknown = np.asarray(pc.or_(pc.is_null(least), pc.is_null(most)))
    may = is_unknown.copy()
    some = np.flatnonzero(~is_unknown)
    first = np.searchsorted(values, least.take(some).to_numpy(zero_copy_only=False), "left")
    stop = np.searchsorted(values, most.take(some).to_numpy(zero_copy_only=False), "right")
    may[some] = first < stop
    return may


def _has_bounds(column: Node, bounds: Bounds) -> bool:
    return _is_column(column) and path_of(column) in bounds


def _is_number(value: Node) -> bool:
    """Return whether a value is known not to be NaN."""
    try:
        number = evaluate_node(value, _ONE_ROW)
    except (InvalidInputError, NotFoundError, pa.ArrowException):
        return False
    if isinstance(number, pa.Array):
        number = number[0]
    return bool(pa.types.is_decimal(number.type) or number.as_py() == number.as_py())


_ONE_ROW = pa.RecordBatch.from_arrays([pa.nulls(1)], names=[""])


def _true_or_unknown(node: Node, path: Path, bound: pa.Array) -> Mask:
    everywhere = np.ones(len(bound), np.bool_)
    array = bound
    for name in reversed(path[1:]):
        array = pa.StructArray.from_arrays([array], names=[name])
    batch = pa.RecordBatch.from_arrays([array], names=[path[0]])
    try:
        answered = evaluate_node(node, batch)
    except (InvalidInputError, NotFoundError, pa.ArrowException):
        return everywhere  # evaluating it on rows reports the error
    if isinstance(answered, pa.Scalar):
        return everywhere
    unknown = pc.is_null(bound)
    return np.asarray(pc.or_(pc.fill_null(answered, False), unknown).to_numpy(zero_copy_only=False))


def _is_column(node: Node) -> bool:
    return isinstance(node, nodes.Column | nodes.Part) and is_path(node)
