"""Which changes of columns the rows of a write-ahead log survive."""

from collections.abc import Collection
from dataclasses import replace

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.schema.fields import Field, Schema
from lance_stream.table.apply import Commit, apply, check_may_write
from lance_stream.table.indices import IndexMetadata, encode_index_section
from lance_stream.table.manifest import Manifest
from lance_stream.table.operations.columns import Merge, Project
from lance_stream.table.operations.rows import Overwrite
from lance_stream.table.operations.versions import Restore
from lance_stream.table.write_ahead_logs import (
    WRITE_AHEAD_LOG,
    check_rows_in_log,
    has_write_ahead_log,
)
from tests.commit.tables import CREATION

ID = Field("id", "int64", 0, nullable=False, primary_key_position=0)
X = Field("x", "double", 1)
NEW = Field("y", "double", 2)
NESTED = Field("s", "struct", 3, children=(Field("a", "int64", 4),))


def manifest(*index_names: str) -> Manifest:
    table = apply(None, Overwrite((), Schema((ID, X, NESTED))), Commit(1000), CREATION)
    indices = [IndexMetadata(bytes(16), (0,), name, 1) for name in index_names]
    return replace(table, index_section=encode_index_section(indices) if indices else None)


def test_only_the_logs_index_counts() -> None:
    """A user may call an index nearly the same."""
    assert has_write_ahead_log(manifest(WRITE_AHEAD_LOG))
    assert not has_write_ahead_log(manifest(f"{WRITE_AHEAD_LOG}_2"))
    assert not has_write_ahead_log(manifest("other"))
    assert not has_write_ahead_log(manifest())


@pytest.mark.parametrize(
    ("fields", "with_values", "message"),
    [
        ((ID, X, NESTED), None, ""),
        ((ID, NESTED), None, ""),
        ((ID, replace(X, name="z"), NESTED), None, ""),
        ((replace(ID, nullable=True), X, NESTED), None, ""),
        ((ID, X, NESTED, NEW), (), ""),
        ((ID, X, NESTED, NEW), (1,), ""),
        ((ID, X, NESTED, NEW), None, "the column 'y' can only be added"),
        ((ID, X, NESTED, NEW), (2,), "the column 'y' can only be added"),
        ((ID, X, NESTED, replace(NEW, nullable=False)), (), "the column 'y' can only be added"),
        ((ID, replace(X, id=2), NESTED), (), "the type of the column 'x' cannot be changed"),
        ((ID, replace(X, logical_type="float"), NESTED), (), "the type of the column 'x' cannot"),
        ((ID, replace(X, nullable=False), NESTED), (), "the column 'x' cannot become non-nullable"),
        ((replace(ID, name="key"), X, NESTED), (), r"the primary key \(id\) cannot be changed"),
        ((replace(ID, primary_key_position=None), X, NESTED), (), "the primary key"),
        ((ID, replace(X, primary_key_position=1), NESTED), (), "the primary key"),
        (
            (ID, X, replace(NESTED, children=(replace(NESTED.children[0], nullable=False),))),
            (),
            r"the column 's\.a' cannot become non-nullable",
        ),
    ],
)
def test_rows_in_the_log_must_fit(
    fields: tuple[Field, ...], with_values: Collection[int] | None, message: str
) -> None:
    """Rows in the log have the columns of the version that their writer read."""
    schema = Schema(fields)
    check_rows_in_log(manifest("other"), schema, with_values)
    if not message:
        check_rows_in_log(manifest(WRITE_AHEAD_LOG), schema, with_values)
        return
    with pytest.raises(InvalidInputError, match=f"{message}.*Merge its rows into the table"):
        check_rows_in_log(manifest(WRITE_AHEAD_LOG), schema, with_values)


def test_commits_check_rows_in_the_log() -> None:
    """A plan may be older than the log; a change that removes the log leaves no rows behind."""
    dropped = Project((ID, X))
    cast = Merge((), Schema((ID, replace(X, logical_type="float"), NESTED)))
    logged, plain = manifest(WRITE_AHEAD_LOG), manifest("other")
    for start, operation in (
        (logged, dropped),
        (plain, cast),
        (logged, Overwrite((), cast.schema)),
    ):
        apply(start, operation, Commit(1000))
    with pytest.raises(InvalidInputError, match="the type of the column 'x' cannot be changed"):
        apply(logged, cast, Commit(1000))
    restored = replace(logged, schema=cast.schema)
    apply(replace(plain, version=2), Restore(1), Commit(1000), restored=restored)
    with pytest.raises(InvalidInputError, match="the type of the column 'x' cannot be changed"):
        apply(replace(logged, version=2), Restore(1), Commit(1000), restored=restored)


def test_planned_columns_are_checked_first() -> None:
    """Nothing is written for columns that the commit would refuse."""
    schema = Schema((ID, X, NESTED, NEW))
    check_may_write(manifest("other"), schema)
    check_may_write(manifest(WRITE_AHEAD_LOG))
    with pytest.raises(InvalidInputError, match="the column 'y' can only be added"):
        check_may_write(manifest(WRITE_AHEAD_LOG), schema)
