"""Columns that LanceDB computes stay as its refresh needs them."""

from dataclasses import replace

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.computed_columns import check_declarations_hold, check_not_computed
from lance_stream.schema.fields import Field, Schema, assign_ids

ENTRIES = {
    "computed_column": "true",
    "computed_column.inputs": '["a.x", "`b`"]',
    "computed_refresh.source": "s",
    "unit": "m",
}
PARTS = pa.struct([("x", pa.int64()), ("y", pa.int64())])
BEFORE = assign_ids(
    from_arrow(
        pa.schema(
            [
                ("a", PARTS),
                ("b", pa.int64()),
                ("c", pa.int64()),
                pa.field("sum", pa.int64(), metadata=ENTRIES),
            ]
        )
    )
)
A, B, C, SUM = BEFORE.fields
Y = A.children[1]
INT32 = "int32"
NEW = Field("new", "int64", 99)


def with_entry(key: str, value: bytes) -> Field:
    """Return the computed column with another entry in its metadata."""
    return replace(SUM, metadata={**SUM.metadata, key: value})


def check(*fields: Field, before: Schema | None = BEFORE) -> None:
    check_declarations_hold(before, replace(BEFORE, fields=fields))


@pytest.mark.parametrize(
    "fields",
    [
        (A, B, C, SUM),
        (A, B, C),
        (SUM, C, B, A),
        (A, B, SUM),
        (A, B, replace(C, name="d"), SUM),
        (A, B, replace(C, logical_type=INT32), SUM),
        (A, B, C, SUM, NEW),
        (replace(A, children=(*A.children, NEW)), B, C, SUM),
        (A, B, C, with_entry("unit", b"km")),
        (A, B, C, replace(SUM, name="total")),
    ],
)
def test_other_columns_may_change(fields: tuple[Field, ...]) -> None:
    """A refresh reads the inputs alone, and finds the column by its declaration."""
    check(*fields)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ((A, C, SUM), "'b' cannot be dropped"),
        ((B, C, SUM), "'a' cannot be dropped"),
        ((A, replace(B, name="d"), C, SUM), "'b' cannot be dropped, renamed"),
        ((A, replace(B, logical_type=INT32), C, SUM), "'b' cannot be"),
        ((replace(A, children=(Y,)), B, C, SUM), "'a' cannot be"),
        ((A, B, C, replace(SUM, logical_type=INT32)), "'sum' is computed by LanceDB: neither"),
        ((A, B, C, with_entry("computed_column", b"false")), "'sum' is computed by LanceDB"),
        ((A, B, C, with_entry("computed_refresh.source", b"t")), "'sum' is computed by LanceDB"),
        ((A, B, C, replace(SUM, metadata={})), "'sum' is computed by LanceDB"),
        ((A, B, C, replace(SUM, id=99)), "'sum' is computed by LanceDB: its type"),
        ((A, B, C, SUM, replace(SUM, id=99, name="n")), "'n' is declared as computed"),
    ],
)
def test_a_refresh_keeps_its_inputs(fields: tuple[Field, ...], why: str) -> None:
    """Without its inputs a refresh would compute other values, or none."""
    with pytest.raises(InvalidInputError, match=why):
        check(*fields)


def test_new_tables_declare_no_computed_columns() -> None:
    """A refresh would take the stored values for its own."""
    check(A, B, C, before=None)
    with pytest.raises(InvalidInputError, match="'sum' is declared as computed"):
        check(A, B, C, SUM, before=None)


def test_all_computed_columns_are_checked() -> None:
    """A dropped computed column must not hide another one that changes."""
    other = replace(SUM, id=98, name="other")
    before = replace(BEFORE, fields=(SUM, other, A, B))
    check(other, A, B, before=before)
    with pytest.raises(InvalidInputError, match="'other' is computed by LanceDB"):
        check(replace(other, logical_type=INT32), A, B, before=before)


def test_values_for_computed_columns_are_refused() -> None:
    """LanceDB's refresh would take such values for its results."""
    table = pa.schema([("a", pa.int64()), pa.field("sum", pa.int64(), metadata=ENTRIES)])
    check_not_computed(["a", "other"], table)
    with pytest.raises(InvalidInputError, match="'sum' is computed by LanceDB, whose refresh"):
        check_not_computed(["a", "sum"], table)


@pytest.mark.parametrize("inputs", [b"", b"7", b"[7]", b"{", b"\xff"])
def test_unknown_inputs_are_all_columns(inputs: bytes) -> None:
    """A declaration of a later release may name its inputs in another form."""
    unknown = with_entry("computed_column.inputs", inputs)
    before = replace(BEFORE, fields=(A, B, C, unknown))
    check(A, B, C, replace(unknown, name="total"), NEW, before=before)
    with pytest.raises(InvalidInputError, match="'c' cannot be dropped"):
        check(A, B, unknown, before=before)
