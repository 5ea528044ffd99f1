import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from lance_stream.errors import BadDataError, CorruptDataError
from lance_stream.table.fragments.fragment import (
    DataFile,
    DeletionFile,
    DeletionFileType,
    Fragment,
    decode_fragment,
    encode_fragment,
)
from lance_stream.table.fragments.fragment_list import FragmentList, FragmentNumbers
from lance_stream.table.messages import wire

MANY = 300
"""So many fragments are read all at once, not one by one."""


def fragment(fragment_id: int, **changes: object) -> Fragment:
    file = DataFile(f"{fragment_id}.lance", (0, 1), (0, 1), (2, 2), 1000)
    return replace(Fragment(fragment_id, (file,), 10), **changes)


def deleted(num_rows: int) -> DeletionFile:
    return DeletionFile(DeletionFileType.ARROW_ARRAY, 1, 2, num_rows)


def varied(count: int) -> list[Fragment]:
    """Fragments without, with and with large numbers, and unknown fields."""
    return [
        fragment(
            index * 7 % (1 << 32),
            physical_rows=(0, 10, 1 << 20)[index % 3],
            deletion_file=deleted((0, 3, 10)[index % 3]) if index % 5 == 0 else None,
            row_ids=b"i" * (index % 200),
            unknown=wire.frame(99, b"later") if index % 31 == 0 else b"",
        )
        for index in range(count)
    ]


def numbers_of(fragments: FragmentList) -> list[tuple[int, int, int, bool]]:
    value = fragments.numbers
    columns = (value.ids, value.physical_rows, value.num_deleted_rows, value.has_deletion_file)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def expected_of(fragments: list[Fragment]) -> list[tuple[int, int, int, bool]]:
    return [
        (
            entry.id,
            entry.physical_rows,
            entry.deletion_file.num_deleted_rows if entry.deletion_file else 0,
            entry.deletion_file is not None,
        )
        for entry in fragments
    ]


def test_a_fragment_is_decoded_once() -> None:
    """Scans and diffs ask for the same fragment many times."""
    fragments = FragmentList(FragmentList.of([fragment(1)]).raws)
    assert fragments[0] is fragments[0]
    assert fragments[-1] is fragments[0]


def test_positions_replace_and_drop_fragments() -> None:
    """Operations change a few fragments of many and must leave the others in order."""
    fragments = FragmentList.of(fragment(number) for number in range(4))
    changed = fragments.replaced({1: None, 3: fragment(3, physical_rows=99)})
    assert changed.ids == (0, 2, 3)
    assert [value.physical_rows for value in changed] == [10, 10, 99]
    assert changed[:2] == FragmentList.of([fragment(0), fragment(2)])
    assert changed.by_id(2) == fragment(2)
    assert changed.by_id(1) is None


def test_duplicate_fragment_ids_are_corrupt() -> None:
    """An address would mean two rows."""
    with pytest.raises(CorruptDataError, match="same id"):
        FragmentList.of([fragment(1), fragment(1)]).by_id(1)


def test_any_deletion_file_is_noticed() -> None:
    """The feature flag depends on it, and readers without the flag would show deleted rows."""
    plain = [fragment(number) for number in range(5)]
    assert not FragmentList.of(plain).has_deletion_files
    for index in range(5):
        some = [*plain[:index], fragment(index, deletion_file=deleted(3)), *plain[index + 1 :]]
        assert FragmentList.of(some).has_deletion_files


def test_a_fragment_list_survives_pickling() -> None:
    """Spark sends manifests to executors."""
    fragments = FragmentList.of([fragment(0), fragment(1)])
    assert pickle.loads(pickle.dumps(fragments)) == fragments


@pytest.mark.parametrize("count", [0, 1, 5, MANY])
def test_numbers_are_found_without_decoding(count: int) -> None:
    """Planning needs ids and counts of a hundred thousand fragments, but not the fragments."""
    cached = varied(count)
    fragments = FragmentList(map(encode_fragment, cached))
    assert numbers_of(fragments) == expected_of(cached)
    assert fragments.ids == tuple(entry.id for entry in cached)
    assert fragments.num_decoded == 0
    assert numbers_of(FragmentList.of(cached)) == expected_of(cached)


def test_repeated_deletion_file_fields_merge() -> None:
    """The parts are merged as protobuf merges them."""
    raws = [encode_fragment(value) for value in varied(MANY)]
    # protobuf unites an embedded message that comes twice.
    raws[3] += wire.frame(3, b"\x10\x05\x20\x02") + wire.frame(3, b"\x18\x07")
    fragments = FragmentList(raws)
    assert numbers_of(fragments) == expected_of([decode_fragment(raw) for raw in raws])
    assert fragments.numbers.num_deleted_rows[3] == 2


@pytest.mark.parametrize("index", [0, 7, MANY - 1])
def test_truncated_fragments_are_corrupt(index: int) -> None:
    """The fast path over all bytes must not run into the neighbouring fragment."""
    raws = [encode_fragment(value) for value in varied(MANY)]
    raws[index] = raws[index][:-1]
    with pytest.raises(CorruptDataError):
        _ = FragmentList(raws).numbers


def test_damaged_fragments_agree_with_the_decoder() -> None:
    """Their numbers are those of the decoded fragment, or both are refused."""
    random = np.random.default_rng(5)
    raws = [encode_fragment(value) for value in varied(MANY)]
    compared = 0
    for _ in range(300):
        position = int(random.integers(len(raws)))
        damaged = bytearray(raws[position])
        damaged[int(random.integers(len(damaged)))] ^= 1 << int(random.integers(8))
        try:
            expected = expected_of([decode_fragment(bytes(damaged))])
        except BadDataError:
            continue
        fragments = FragmentList([*raws[:position], bytes(damaged), *raws[position + 1 :]])
        assert numbers_of(fragments)[position : position + 1] == expected
        compared += 1
    assert compared > 20


def test_derived_lists_inherit_cached_numbers() -> None:
    """A new version changes a few fragments, and reading the numbers of all again would slow down
    commits.
    """
    cached = varied(MANY)
    fragments = FragmentList(map(encode_fragment, cached))
    _ = fragments.numbers, fragments[4], fragments.framed, fragments.index_by_id
    new = [fragment(5000, deletion_file=deleted(2)), fragment(4000)]
    lists = {
        "appended": (fragments.appended(new), [*cached, *new]),
        "replaced": (fragments.replaced({4: new[0]}), [*cached[:4], new[0], *cached[5:]]),
        "left out": (
            fragments.replaced({0: None, 4: new[0], 9: None}),
            [*cached[1:4], new[0], *cached[5:9], *cached[10:]],
        ),
        "cut": (fragments[3:90:2], cached[3:90:2]),
        "untouched": (fragments.replaced({}), cached),
        "changed in place": (
            fragments.replaced({4: replace(cached[4], physical_rows=77)}),
            [*cached[:4], replace(cached[4], physical_rows=77), *cached[5:]],
        ),
    }
    for name, (derived, expected) in lists.items():
        assert "numbers" in derived.__dict__, name
        assert numbers_of(derived) == expected_of(expected), name
        assert derived.raws == tuple(map(encode_fragment, expected)), name
        decoded = derived.num_decoded
        assert 0 < decoded <= 3 or name == "cut", name
        assert list(derived) == expected, name
        assert derived.framed == wire.join_frames(2, derived.raws), name
        assert derived.index_by_id == {value.id: at for at, value in enumerate(expected)}, name
    assert numbers_of(fragments) == expected_of(cached)


def test_derived_lists_notice_duplicate_ids() -> None:
    """The inherited index must not hide a collision with the new fragments."""
    fragments = FragmentList.of([fragment(1), fragment(2)])
    assert fragments.index_by_id == {1: 0, 2: 1}
    for derived in (fragments.appended([fragment(2)]), fragments.replaced({0: fragment(2)})):
        with pytest.raises(CorruptDataError, match="same id"):
            _ = derived.index_by_id


@pytest.mark.floors
def test_fragments_are_sorted_by_id() -> None:
    """The specification keeps fragments in ascending order of their ids."""
    fragments = FragmentList(map(encode_fragment, reversed(varied(MANY))))
    _ = fragments[0]
    derived = fragments.sorted_by_id()
    assert list(derived) == varied(MANY)
    assert derived.ids == tuple(value.id for value in varied(MANY))
    assert derived.sorted_by_id() is derived


def test_live_rows_are_summed() -> None:
    """Counting rows of a table uses this sum and opens no file."""
    fragments = FragmentList.of([fragment(1, deletion_file=deleted(3)), fragment(2)])
    assert fragments.num_live_rows == 17
    assert FragmentList().num_live_rows == 0
    assert FragmentNumbers.of([]).ids.tolist() == []


COUNTED = [
    (fragment(1), 10, 10),
    (fragment(1, deletion_file=deleted(3)), 10, 7),
    (fragment(1, deletion_file=deleted(10)), 10, 0),
    (fragment(1, physical_rows=0), None, None),
    (fragment(1, deletion_file=deleted(0)), None, None),
    (fragment(1, physical_rows=1 << 32), 1 << 32, 1 << 32),
    (fragment((1 << 32) - 1), 10, 10),
]


@pytest.mark.parametrize(("entry", "physical", "live"), COUNTED)
def test_known_row_counts_are_used(entry: Fragment, physical: int | None, live: int | None) -> None:
    """Old writers omitted counts: such a fragment must be looked at, and no other one."""
    fragments = FragmentList.of([fragment(0), entry])
    assert fragments.live_rows == [10, live]
    counts = fragments.row_counts
    assert counts.unknown == ([1] if physical is None else [])
    assert counts.physical.tolist() == [10, physical or 0]
    assert counts.live.tolist() == [10, live or 0]


@pytest.mark.parametrize(
    "entry",
    [
        fragment(1 << 32),
        fragment(1, physical_rows=(1 << 32) + 1),
        fragment(1, deletion_file=deleted(11)),
    ],
)
def test_impossible_row_counts_are_unknown(entry: Fragment) -> None:
    """The fragment is decoded where it is needed, which reports what is wrong with it."""
    assert FragmentList.of([fragment(0), entry]).row_counts.unknown == [1]


def test_fragment_lists_equal_by_their_bytes() -> None:
    """Versions with equal lists have the same rows."""
    fragments = FragmentList.of([fragment(0), fragment(1)])
    assert fragments == FragmentList(fragments.raws)
    assert fragments != FragmentList.of([fragment(0), fragment(2)])
    assert fragments != fragments.raws


def test_lists_are_not_encoded_again() -> None:
    """A version with many fragments would decode and encode all of them."""
    fragments = FragmentList(map(encode_fragment, varied(5)))
    assert FragmentList.of(fragments) is fragments
    assert fragments.num_decoded == 0


def test_fragment_numbers_copy_no_sequence() -> None:
    """Row ids can be megabytes per fragment, and planning needs none of them."""
    num_bytes = 1 << 20
    fragments = [fragment(index, row_ids=bytes(num_bytes)) for index in range(3)]
    raws = [encode_fragment(value) for value in fragments]
    tracemalloc.start()
    numbers = FragmentNumbers.of(raws)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert numbers.ids.tolist() == [0, 1, 2]
    assert peak < num_bytes / 4
