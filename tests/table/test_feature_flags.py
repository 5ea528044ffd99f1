from dataclasses import replace
from itertools import compress
from typing import Any

import pytest

from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.schema.fields import Schema
from lance_stream.table import feature_flags as flags
from lance_stream.table.fragments.fragment import (
    LINEAGE_FIELD_IDS,
    DeletionFile,
    DeletionFileType,
    Fragment,
    LineageColumn,
)
from lance_stream.table.manifest import BasePath, DataFormat, FragmentList, Manifest
from lance_stream.table.manifest_fields import FIELDS, Treatment
from lance_stream.table.messages import wire

EMPTY = Manifest(1, Schema(), FragmentList(), DataFormat("lance", "2.2"))
DELETED_ROWS = Fragment(0, (), 5, DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 2, 3))


def with_flags(reader: int, writer: int) -> Manifest:
    return replace(EMPTY, reader_feature_flags=reader, writer_feature_flags=writer)


def test_every_flag_bit_is_decided() -> None:
    """A gap in the table of flags would be a feature nobody decided about."""
    assert list(flags.FLAGS) == [1 << index for index in range(18)]


def test_supported_features_are_listed() -> None:
    """Ignoring any other one would return wrong rows, or damage the table."""
    for supported in (
        [flag.can_read for flag in flags.FLAGS.values()],
        [flag.can_write for flag in flags.FLAGS.values()],
    ):
        assert list(compress(range(18), supported)) == [0, 1, 2, 3, 4, 5, 7, 8, 10, 11]


def test_fields_count_like_flags() -> None:
    """A manifest may have a field that only writers must know."""
    field = next(
        number
        for number, rule in FIELDS["Manifest"].items()
        if rule.treatment is Treatment.REFUSED_BY_WRITERS
    )
    manifest = replace(EMPTY, unknown=wire.frame(field, b"x"))
    flags.check_readable(manifest)
    with pytest.raises(UnsupportedFeatureError, match=f"cannot be written: field {field}"):
        flags.check_writable(manifest)


@pytest.mark.parametrize("bit", [1 << number for number in range(64)])
def test_only_listed_flags_are_accepted(bit: int) -> None:
    """The specification demands that readers and writers refuse flags that they do not know."""
    flag = flags.FLAGS.get(bit)
    for can, check in (
        (flag and flag.can_read, flags.check_readable),
        (flag and flag.can_read and flag.can_write, flags.check_writable),
    ):
        if can:
            check(with_flags(bit, bit))
        else:
            with pytest.raises(UnsupportedFeatureError) as caught:
                check(with_flags(bit, bit))
            assert (flag.name if flag else str(bit)) in str(caught.value)
            assert flags.FLAGS[flags.DELETION_FILES].name not in str(caught.value)


@pytest.mark.parametrize("bit", [6, 9, 12, 13, 15, 17, 18, 63])
def test_unknown_writer_flags_leave_tables_readable(bit: int) -> None:
    """A writer flag forbids only writing."""
    manifest = with_flags(0, 1 << bit)
    flags.check_readable(manifest)
    with pytest.raises(UnsupportedFeatureError, match="cannot be written"):
        flags.check_writable(manifest)
    with pytest.raises(UnsupportedFeatureError, match="cannot be read"):
        flags.check_writable(with_flags(1 << bit, 0))


@pytest.mark.parametrize("words", [(256, 0), (0, 256), (1024, 0), (0, 1024), (1 << 14, 0)])
def test_half_paired_flags_are_corrupt(words: tuple[int, int]) -> None:
    """Some features change both reading and writing, so one word alone is a contradiction."""
    with pytest.raises(CorruptDataError, match="must be in both"):
        flags.check_readable(with_flags(*words))


def test_flags_follow_from_content() -> None:
    """Old readers rely on the flags to refuse what they would misread."""
    assert flags.flags_for(EMPTY) == (0, 0)
    assert flags.flags_for(replace(EMPTY, config={"a": "b"})) == (0, 8)
    assert flags.flags_for(replace(EMPTY, base_paths=(BasePath(0, "/x"),))) == (16, 16)
    assert flags.flags_for(replace(EMPTY, fragments=FragmentList.of([DELETED_ROWS]))) == (1, 1)
    for name, number in LINEAGE_FIELD_IDS.items():
        lineage: dict[str, Any] = {name: LineageColumn(number, None)}
        hidden = FragmentList.of([Fragment(0, (), 5, **lineage)])
        assert flags.flags_for(replace(EMPTY, fragments=hidden)) == (1 << 11, 1 << 11)


def test_only_table_flags_are_inherited() -> None:
    """Flags such as stable row ids are properties of the table, others end with their content."""
    old = 1 | 2 | 4 | 8 | 16 | 32 | 128 | 256 | 1024
    assert flags.flags_for(with_flags(old, old)) == (2 | 256 | 1024,) * 2
    for words in (2 | 256 | 1024, 0), (0, 2 | 256 | 1024):
        assert flags.flags_for(with_flags(*words)) == (2 | 256 | 1024,) * 2
    indexed = replace(with_flags(128, 128), index_section=b"")
    assert flags.flags_for(indexed) == (128, 128)


def test_stable_row_ids_are_flag_2() -> None:
    """The specification assigns the number, and the neighbouring bit means deletion files."""
    assert flags.has_stable_row_ids(with_flags(3, 3))
    assert not flags.has_stable_row_ids(with_flags(1, 3))
