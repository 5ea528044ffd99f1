"""Any array that a schema allows round-trips: whole, in part and row by row.

Types are composed at random, values by `tests.oracle.type_cases`; a failing example names the
type, the shape and the seed that make it.
"""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from lance_stream.file.versions import FileVersion
from tests.file.whole_files import Reading, written_by_us
from tests.oracle.exact import difference
from tests.oracle.type_cases import (
    COLUMNS,
    Shape,
    array_of,
    has_shifted_offsets,
    has_variable_width,
    holds_null_structs,
    is_view,
)

VERSIONS = (FileVersion.V2_0, FileVersion.V2_1, FileVersion.V2_2)

LEAVES = [
    column.arrow
    for column in COLUMNS.values()
    if not column.metadata
    and not pa.types.is_nested(column.arrow)
    and not is_view(column.arrow)
    and not isinstance(column.arrow, pa.BaseExtensionType)
]
FIXED_WIDTH = [
    leaf
    for leaf in LEAVES
    if not (has_variable_width(leaf) or pa.types.is_null(leaf) or pa.types.is_dictionary(leaf))
]


def struct_of(parts: list[tuple[pa.DataType, bool]]) -> pa.DataType:
    # Arrow knows no field of type null that may not be null.
    fields = [
        pa.field(f"f{index}", arrow, nullable or pa.types.is_null(arrow))
        for index, (arrow, nullable) in enumerate(parts)
    ]
    return pa.struct(fields)


def nested(types: st.SearchStrategy[pa.DataType], version: FileVersion) -> st.SearchStrategy:
    """Types whose parts are of other types."""
    nullable = st.booleans()
    parts = st.lists(st.tuples(types, nullable), min_size=1, max_size=3)
    kinds = [
        types.map(pa.list_),
        types.map(pa.large_list),
        parts.map(struct_of),
    ]
    if version is FileVersion.V2_2:
        kinds.append(types.map(lambda items: pa.map_(pa.string(), items)))
    return st.one_of(kinds)


def types_of(version: FileVersion) -> st.SearchStrategy[pa.DataType]:
    vectors = st.tuples(st.sampled_from(FIXED_WIDTH), st.integers(1, 70)).map(
        lambda arguments: pa.list_(*arguments)
    )
    leaves = st.sampled_from(LEAVES) | vectors
    return st.recursive(leaves, lambda types: nested(types, version), max_leaves=4)


shapes = st.builds(
    Shape,
    name=st.just("any"),
    num_rows=st.integers(0, 300) | st.integers(1000, 2100),
    null_rate=st.sampled_from([0, 0, 0.02, 0.5, 0.97, 1]),
    values=st.sampled_from(["full", "small", "sequential", "special", "wide"]),
    lie=st.sampled_from(["free", "sliced", "constant", "runs", "few"]),
)


@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.essential
def test_any_array_round_trips(version: FileVersion) -> None:
    """Random types, values, pages and batches find combinations that no single test has."""

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        arrow=types_of(version),
        shape=shapes,
        seed=st.integers(0, 2**32 - 1),
        page_bytes=st.sampled_from([1, 700, 20_000, 8 << 20]),
        cuts=st.lists(st.integers(0, 2100), max_size=4),
    )
    def check(
        arrow: pa.DataType, shape: Shape, seed: int, page_bytes: int, cuts: list[int]
    ) -> None:
        assume(shape.values != "wide" or shape.num_rows <= 300)
        assume(page_bytes > 1 or shape.num_rows <= 50)
        random = np.random.default_rng(seed)
        array = array_of(arrow, shape, random)
        assume(version is not FileVersion.V2_0 or not holds_null_structs(array))
        schema = pa.schema([pa.field("column", arrow)])
        ends = sorted({0, len(array), *(cut for cut in cuts if cut < len(array))})
        batches = [
            pa.record_batch([array.slice(start, stop - start)], schema=schema)
            for start, stop in pairwise(ends)
        ]
        data = written_by_us(batches, version, schema, max_page_bytes=page_bytes)
        reading = Reading(data)
        assert reading.num_rows == len(array)
        start, stop = sorted(random.integers(0, len(array), 2, endpoint=True).tolist())
        for first, last in ((0, len(array)), (start, stop)):
            (read,) = reading.read(["column"], first, last)
            read.validate(full=True)
            assert not has_shifted_offsets(read)
            assert read.type == arrow
            assert difference(read, array[first:last]) == ""
        offsets = np.flatnonzero(random.random(len(array)) < random.choice([0.01, 0.3, 0.9]))
        (taken,) = reading.take(["column"], offsets.tolist())
        taken.validate(full=True)
        assert not has_shifted_offsets(taken)
        expected = pa.chunked_array([array[offset : offset + 1] for offset in offsets], arrow)
        assert difference(taken, expected) == ""

    check()
