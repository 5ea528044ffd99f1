"""Which version a manifest is, also of writers that state neither time nor transaction."""

from dataclasses import replace

import pytest

from lance_stream.schema.fields import Schema
from lance_stream.table.manifest import FragmentList, unique_parts
from lance_stream.table.version_marks import is_same_version, mark_of, may_derive_from
from tests.commit.tables import new_fragment
from tests.table.apply.test_next_version import table

MANIFEST = replace(table(3, 2), timestamp_nanos=5, transaction_file="1-x.txn")


@pytest.mark.parametrize("changes", [{"timestamp_nanos": None}, {"transaction_file": ""}])
def test_content_decides_without_unique_parts(changes: dict[str, object]) -> None:
    """An equal number alone proves nothing, since the table may have been created anew."""
    old = replace(MANIFEST, **changes)  # type: ignore[arg-type]  # of several types
    assert unique_parts(MANIFEST) != ()
    assert unique_parts(old) == ()
    assert is_same_version(old, old)
    assert is_same_version(old, replace(old))
    assert not is_same_version(old, replace(old, fragments=FragmentList.of([new_fragment(3)])))
    assert not is_same_version(old, replace(old, schema=Schema(old.schema.fields[:1])))
    assert not is_same_version(old, MANIFEST)


def test_unique_parts_decide_without_content() -> None:
    """Fragments are read lazily, and comparing those of a large table would take long."""
    assert is_same_version(MANIFEST, replace(MANIFEST, fragments=FragmentList.of([])))
    for changes in ({"version": 9}, {"timestamp_nanos": 6}, {"transaction_file": "1-y.txn"}):
        other = replace(MANIFEST, **changes)  # type: ignore[arg-type]  # of several types
        assert mark_of(other) != mark_of(MANIFEST)
        assert not is_same_version(MANIFEST, other)


def test_versions_may_keep_columns_or_files() -> None:
    """The older manifest no longer exists: what is certain to be another table is refused."""
    other_columns = replace(MANIFEST, schema=Schema(MANIFEST.schema.fields[:1]))
    foreign = [replace(new_fragment(3), id=0), replace(new_fragment(2), id=1)]
    assert may_derive_from(replace(MANIFEST, fragments=FragmentList.of(foreign)), MANIFEST)
    assert may_derive_from(other_columns, MANIFEST)
    only_second = replace(other_columns, fragments=FragmentList.of([MANIFEST.fragments[1]]))
    assert may_derive_from(only_second, MANIFEST)
    assert not may_derive_from(replace(other_columns, fragments=FragmentList.of(foreign)), MANIFEST)
    assert not may_derive_from(replace(other_columns, fragments=FragmentList.of([])), MANIFEST)
