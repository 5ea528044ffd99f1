"""Plans that are repeated after a conflict, and what is left of those that failed."""

import itertools
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.environment import MACHINE
from lance_stream.errors import (
    CommitConflictError,
    IncompatibleConflictError,
    InvalidInputError,
    NotFoundError,
    RetryableConflictError,
    TableReplacedError,
)
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.write import planning
from lance_stream.write.planning import StagedFiles, combined, replan_on_conflict

PATIENT = replace(MACHINE, sleep=lambda _: None)
RETRY = RetryableConflictError("another writer was faster", 2)
OTHER = IncompatibleConflictError("the table was overwritten", 2)
MISSING, ANOTHER_MISSING = NotFoundError("a is missing"), NotFoundError("b is missing")


def attempt_that(*errors: Exception) -> Callable[[], int]:
    """Return an attempt that raises these errors, and then returns its number."""
    numbers = itertools.count()

    def attempt() -> int:
        number = next(numbers)
        if number < len(errors):
            raise errors[number]
        return number

    return attempt


@pytest.mark.parametrize(
    ("errors", "has_batch", "result"),
    [
        ([], False, 0),
        ([RETRY], False, 1),
        ([RETRY] * 19, False, 19),
        ([RETRY] * 20, False, RETRY),
        ([OTHER], False, OTHER),
        ([OTHER, RETRY], True, 2),
        ([MISSING], False, 1),
        ([MISSING, ANOTHER_MISSING, MISSING], False, 3),
        ([MISSING, MISSING], False, MISSING),
        ([MISSING, RETRY, MISSING], False, MISSING),
        ([InvalidInputError("no"), RETRY], True, InvalidInputError),
    ],
)
def test_only_some_errors_are_repeated(
    errors: list[Exception], has_batch: bool, result: Any
) -> None:
    """A micro-batch means the same on any version of the table; other verbs may not."""
    batch: Any = object() if has_batch else None
    attempt = attempt_that(*errors)
    if isinstance(result, int):
        assert replan_on_conflict(attempt, batch, PATIENT) == result
        return
    with pytest.raises(Exception) as raised:  # noqa: PT011  # the error itself is compared
        replan_on_conflict(attempt, batch, PATIENT)
    assert raised.value is result or type(raised.value) is result


@pytest.mark.parametrize("has_batch", [False, True])
def test_replaced_tables_end_all_verbs(has_batch: bool) -> None:
    """The rows may not belong into the new table."""
    assert issubclass(TableReplacedError, CommitConflictError)
    replaced = TableReplacedError("the table was replaced", 2)
    batch: Any = object() if has_batch else None
    with pytest.raises(TableReplacedError):
        replan_on_conflict(attempt_that(replaced), batch, PATIENT)


def test_config_entries_of_all_are_combined() -> None:
    """The ledger and the verb both have some; most verbs have none."""

    def one(_: object, version: int) -> dict[str, str]:
        return {"one": str(version)}

    def two(_: object, version: int) -> dict[str, str]:
        return {"two": str(version)}

    assert combined() is None
    assert combined(None, None) is None
    assert combined(None, one) is one
    assert combined(one, None) is one
    both = combined(one, None, two)
    assert both is not None
    manifest: Any = None
    assert both(manifest, 7) == {"one": "7", "two": "7"}


def test_first_rows_create_the_table() -> None:
    """A verb may be the first one; it then has rows, but none to change."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema({"a": pa.int64()}))
    new, changed = (Fragment(id=at, files=(), physical_rows=1) for at in (0, 1))
    for operation in (
        Append((new,)),
        Overwrite((new,), ds.table.manifest.schema),
        Update(updated_fragments=(changed,), new_fragments=(new,)),
    ):
        first, creation = planning._first(ds.table, operation)
        assert first.fragments == (new,)
        assert creation.stable_row_ids
    with pytest.raises(InvalidInputError, match=r"no table exists at .* for this Delete"):
        planning._first(ds.table, Delete((), (), "a = 1"))


def test_only_replaced_deletion_files_are_superseded() -> None:
    """A rebase merges the deletions of two writers into a new file."""
    rows = pa.table({"a": range(8)})
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows).append(rows).append(rows)
    ds = ds.delete("a = 3")
    before = tuple(ds.table.manifest.fragments)
    first, second, third = ds.delete("a = 5").table.manifest.fragments
    staged = StagedFiles(with_deletion_files=(first, second))
    for fragments, superseded in (
        ([first, second, third], []),
        ([before[0], second, third], [first]),
        ([first, before[1]], [second]),
        ([first, third], [second]),
        ([third], [first, second]),
    ):
        manifest = replace(ds.table.manifest, fragments=FragmentList.of(fragments))
        assert planning._superseded(staged, manifest) == superseded
