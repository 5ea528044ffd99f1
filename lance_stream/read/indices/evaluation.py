"""Evaluates a condition on values of an index, by the same rules as on rows."""

from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lance_stream.arrays import Mask
from lance_stream.expressions.evaluation.rules import evaluate_node
from lance_stream.read.indices.column_conditions import ColumnCondition


def where_true(condition: ColumnCondition, values: pa.Array) -> Mask:
    """Return the values of its column for which a condition is true, (num_values,) booleans."""
    array = values
    for name in reversed(condition.path[1:]):
        array = pa.StructArray.from_arrays([array], names=[name])
    batch = pa.RecordBatch.from_arrays([array], names=[condition.path[0]])
    answers = [_mask(evaluate_node(node, batch), len(values)) for node in condition.nodes]
    return reduce(np.logical_and if condition.is_and else np.logical_or, answers)


def is_true_for_null(condition: ColumnCondition, arrow: pa.DataType) -> bool:
    """Return whether a condition is true for rows whose value is null."""
    return bool(where_true(condition, pa.nulls(1, arrow))[0])


def _mask(answer: Any, num_rows: int) -> Mask:
    if isinstance(answer, pa.Scalar):
        return np.full(num_rows, answer.as_py() is True)
    return np.asarray(pc.fill_null(answer, False).to_numpy(zero_copy_only=False), np.bool_)
