"""Sizes of data files that are read for many fragments at once agree with each fragment's."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError
from lance_stream.table.fragments.file_sizes import FileSizes
from lance_stream.table.fragments.fragment import DataFile, Fragment, encode_fragment, total_size

FILE = DataFile("a.lance", (0, 1), (0, 1), (2, 2))
SIZES = st.lists(st.sampled_from([0, 1, 127, 128, 70_000, 1 << 40, (1 << 63) - 1]), max_size=3)


def fragment_of(sizes: list[int]) -> Fragment:
    files = (
        replace(FILE, path=f"{at}.lance", size_bytes=file_size)
        for at, file_size in enumerate(sizes)
    )
    return Fragment(7, tuple(files), 10)


@settings(max_examples=60)
@given(st.lists(SIZES, max_size=12))
def test_sizes_agree_with_each_fragment(sizes: list[list[int]]) -> None:
    """Sizes of many fragments are read from raw bytes, and the decoded fragments are the judge."""
    fragments = [fragment_of(size) for size in sizes]
    result = FileSizes.of([encode_fragment(value) for value in fragments])
    assert result.num_files.tolist() == [len(size) for size in sizes]
    assert result.num_bytes.tolist() == [min(sum(size), (1 << 63) - 1) for size in sizes]
    totals = [total_size(value.files) for value in fragments]
    assert result.are_complete.tolist() == [total is not None for total in totals]
    if all(sum(size) < 1 << 63 for size in sizes):
        assert result.total == total_size([file for value in fragments for file in value.files])


def test_sizes_beyond_63_bits_are_capped() -> None:
    """A damaged size must not become negative and admit a file as small."""
    sizes = FileSizes.of([encode_fragment(fragment_of([(1 << 64) - 1]))])
    assert sizes.num_bytes.tolist() == [(1 << 63) - 1]


def test_damaged_fragments_are_refused() -> None:
    """Bytes that are no message must not read as size zero."""
    with pytest.raises(CorruptDataError):
        FileSizes.of([b"\x12\xff"])
