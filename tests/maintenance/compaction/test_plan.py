"""Which fragments are merged, on tables whose files are never read."""

import random
from dataclasses import replace

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.compaction.plan import CompactionRules, plan
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import DeletionFile, DeletionFileType
from lance_stream.table.manifest import FragmentList
from tests.commit.tables import create


def table_of(*sizes: int | tuple[int, int]) -> TableVersion:
    """A table whose fragments have so many rows, and so many deleted ones."""
    both = [size if isinstance(size, tuple) else (size, 0) for size in sizes]
    log = create(*[rows for rows, _ in both])
    manifest = log.read(1)
    fragments = [
        replace(
            fragment,
            deletion_file=DeletionFile(DeletionFileType.BITMAP, 1, 1, deleted) if deleted else None,
        )
        for fragment, (_, deleted) in zip(manifest.fragments, both, strict=True)
    ]
    manifest = replace(manifest, fragments=FragmentList.of(fragments))
    return TableVersion("t", {}, log.store, log, manifest)


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((10, 10, 10), [(0, 1, 2)]),
        ((60, 60), []),  # together they would be too large
        ((10, 100, 10, 10), [(2, 3)]),  # only neighbours
        ((50, 50, 50, 50), [(0, 1), (2, 3)]),
        ((100, (200, 10), (100, 10), (100, 11)), [(3,)]),
        (((200, 150), 60, 20), [(0,), (1, 2)]),
        ((100,), []),
        ((), []),
    ],
)
def test_neighbours_merge_up_to_the_target(
    sizes: tuple[int | tuple[int, int], ...], groups: list[tuple[int, ...]]
) -> None:
    """Only neighbours may merge, to keep the order of rows, and a fragment at its target is left
    alone.
    """
    assert plan(table_of(*sizes), CompactionRules(100)) == groups


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ((10, 10, 10), [(0, 1, 2)]),
        ((40, 10, 10), [(1, 2)]),  # 40 waits for more
        ((20, 10, 10), [(0, 1, 2)]),
        ((40, 20, 10), []),
        ((5, 5, 50, 5, 5), [(0, 1), (3, 4)]),
        ((40, 5, 5, 60), [(0, 1, 2)]),  # nothing can be added to the first three any more
        ((40, (20, 10), 2), [(1,)]),
    ],
)
def test_by_steps_fragments_wait_for_equals(
    sizes: tuple[int | tuple[int, int], ...], groups: list[tuple[int, ...]]
) -> None:
    """Only fragments of about the same size are merged."""
    assert plan(table_of(*sizes), CompactionRules(100, by_steps=True)) == groups


def test_by_steps_rewrites_are_logarithmic() -> None:
    """A row is rewritten as often as its fragment doubles in size."""
    target, num_written = 256, 0
    rules = CompactionRules(target, by_steps=True)
    sizes: list[int] = []
    dice = random.Random(1)
    for _ in range(200):
        sizes += [dice.choice([1, 2, 3])]
        for group in reversed(plan(table_of(*sizes), rules)):
            num_written += sum(sizes[index] for index in group)
            sizes[group[0] : group[-1] + 1] = [sum(sizes[index] for index in group)]
    assert len(sizes) < 15
    assert num_written < 8 * sum(sizes)  # 2**8 is the size wanted


def test_rounds_prefer_the_best_ratio() -> None:
    """A limited round should save the most for the bytes that it writes."""
    table = table_of(45, 45, 100, *[5] * 18, 100, (100, 90), 100, (80, 20))
    every = [(0, 1), tuple(range(3, 21)), (22,), (24,)]
    assert plan(table, CompactionRules(100)) == every
    assert plan(table, CompactionRules(100, max_rows=100)) == [every[1], every[2]]
    assert plan(table, CompactionRules(100, max_rows=1)) == [every[1]]
    small = table_of((100, 11), 100, (2, 1))  # drops one deleted row, but copies one row only
    assert plan(small, CompactionRules(100, max_rows=1)) == [(2,)]


def test_rounds_are_limited_in_bytes() -> None:
    """A round beside a stream must not hold up its commit by rewriting the whole table."""
    table = table_of(*[5] * 10)  # each file is said to have 1000 bytes
    assert plan(table, CompactionRules(100, max_bytes=12_000)) == [tuple(range(10))]
    assert plan(table, CompactionRules(100, max_bytes=4_000)) == [(0, 1, 2, 3)]
    assert plan(table, CompactionRules(100, max_bytes=999)) == []


def test_invalid_target_sizes_are_refused() -> None:
    """A target of zero rows would put every row in no fragment."""
    with pytest.raises(InvalidInputError, match="at least 1 row: set a whole number of at least 1"):
        CompactionRules(0)


def test_fragments_exceeding_a_file_stay() -> None:
    """Such fragments would become as many files again at every compaction."""
    table = table_of(*[5] * 10)
    assert plan(table, CompactionRules(100, max_file_bytes=10_000)) == [tuple(range(10))]
    assert plan(table, CompactionRules(100, max_file_bytes=2_500)) == [
        (index, index + 1) for index in range(0, 10, 2)
    ]
    assert plan(table, CompactionRules(100, max_file_bytes=1_999)) == []


def test_rounds_take_at_least_one_group() -> None:
    """A group larger than the limit would otherwise never be compacted."""
    table = table_of(*[5] * 10, 100, 20, 20)
    every = [tuple(range(10)), (11, 12)]
    for maximum, groups in ((1, every[:1]), (11_000, every[:1]), (12_000, every)):
        rules = CompactionRules(100, max_bytes=maximum, whole_groups=True)
        assert plan(table, rules) == groups


def test_newer_fragments_are_skipped() -> None:
    """A compaction in parts must end, so it leaves out what arrives meanwhile."""
    table = table_of(*[5] * 6)
    assert plan(table, CompactionRules(100, newest_fragment=3)) == [(0, 1, 2, 3)]
    assert plan(table, CompactionRules(100, newest_fragment=0)) == []
