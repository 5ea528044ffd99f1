"""Which fragments are merged, on tables whose files are never read."""

import random
from dataclasses import replace

import pytest
from pyroaring import BitMap

from lance_stream.errors import InvalidInputError
from lance_stream.maintenance.compaction import plan as plans
from lance_stream.maintenance.compaction.plan import CompactionRules, plan
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.fragments.fragment import DeletionFile, DeletionFileType
from lance_stream.table.indices import IndexMetadata, encode_index_section
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
        ((40, 5, 5, 100), [(0, 1, 2)]),  # nor here, where the last one is no candidate
        ((100,), []),
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


def test_tables_without_columns_stay() -> None:
    """There would be nothing to write into the new files."""
    table = table_of(5, 5)
    bare = replace(table.manifest, schema=replace(table.schema, fields=()))
    assert plan(replace(table, manifest=bare), CompactionRules(100)) == []


def test_only_neighbours_of_one_index_merge() -> None:
    """An index whose writer stated no fragments may cover any, and is rebuilt anyway."""
    table = table_of(5, 5, 5, 5)
    for bitmap, groups in ((BitMap([0, 1]).serialize(), [(0, 1), (2, 3)]), (b"", [(0, 1, 2, 3)])):
        index = IndexMetadata(bytes(16), (0,), "an index", 1, bitmap)
        indexed = replace(table.manifest, index_section=encode_index_section([index]))
        assert plan(replace(table, manifest=indexed), CompactionRules(100)) == groups


@pytest.mark.parametrize(
    ("bytes_more", "rows_more", "shortens_lineage", "is_rewritten"),
    [
        (1, 0, True, True),
        (1, 1, True, True),
        (1, -1, True, False),
        (0, 0, True, False),
        (1, 0, False, False),
    ],
)
def test_long_lineage_alone_is_worthwhile(
    monkeypatch: pytest.MonkeyPatch,
    bytes_more: int,
    rows_more: int,
    shortens_lineage: bool,
    is_rewritten: bool,
) -> None:
    """A round decodes only fragments with many rows, and more bytes than rows in the manifest."""
    monkeypatch.setattr(plans, "has_disordered_lineage", lambda *_: True)
    table = table_of(50)
    (fragment,) = table.manifest.fragments
    num_bytes = len(table.manifest.fragments.raws[0])
    num_rows = num_bytes - bytes_more
    fragments = FragmentList.of([replace(fragment, physical_rows=num_rows)])
    assert len(fragments.raws[0]) == num_bytes
    table = replace(table, manifest=replace(table.manifest, fragments=fragments))
    rules = CompactionRules(8 * (num_rows - rows_more), shortens_lineage=shortens_lineage)
    assert plan(table, rules) == ([(0,)] if is_rewritten else [])


@pytest.mark.parametrize("limit", [None, 0, 20, 1000])
def test_misplaced_lineage_is_rewritten(monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    """Its place is in the manifest or in a file, as the table's config says."""
    table = table_of(100, 100)
    sizes = [len(raw) for raw in table.manifest.fragments.raws]
    monkeypatch.setattr(plans, "limit_of", lambda _: limit)
    monkeypatch.setattr(plans, "is_misplaced", lambda fragment, _: fragment.id == 1)
    is_long = limit is not None and sizes[1] > limit
    assert plans._misplaced(table) == ([1] if is_long else [])
    monkeypatch.setattr(plans, "limit_of", lambda _: sizes[1])
    assert plans._misplaced(table) == []
    monkeypatch.setattr(plans, "limit_of", lambda _: sizes[1] - 1)
    assert plans._misplaced(table) == [1]


def test_files_that_lack_columns_stay_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 2.0 cannot hold a struct of nulls only, which one file of both would need."""
    table = table_of(5, 5, 5, 5)
    first, second, *others = table.manifest.fragments
    (file,) = second.files
    partial = replace(second, files=(replace(file, field_ids=(0,), column_indices=(0,)),))
    fragments = FragmentList.of([first, partial, *others])
    table = replace(table, manifest=replace(table.manifest, fragments=fragments))
    assert plan(table, CompactionRules(100)) == [(0, 1, 2, 3)]
    monkeypatch.setattr(plans, "holds_only_nulls", lambda field, _: field.name != "x")
    assert plan(table, CompactionRules(100)) == [(2, 3)]
