"""Lineage above the table's limit goes into files, of which failed operations leave none."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream import CorruptDataError, Dataset, InvalidInputError, RetryableConflictError
from lance_stream.file.writer import FileWriter
from lance_stream.maintenance.compaction.plan import CompactionRules
from lance_stream.maintenance.compaction.rewrites import RewriteTask, prepare, write_task
from lance_stream.table.fragments.fragment import LINEAGE_FIELD_IDS, Fragment, LineageColumn
from lance_stream.table.lineage.row_ids import decode_row_ids, encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.upsert import attempts
from lance_stream.write import lineage_files
from lance_stream.write.lineage_files import limit_of, with_lineage_files
from lance_stream.write.planning import StagedFiles

SPILL, LIMIT = "lance.row_lineage.spill", "lance.row_lineage.inline_max_bytes"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("x", pa.int64())])
NUM_ROWS = 4000


@pytest.fixture
def ds() -> Dataset:
    """4,000 rows; a sequence of more than 300 bytes leaves the manifest."""
    config = {SPILL: "true", LIMIT: "300"}
    dataset = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA, config=config)
    return dataset.append(rows(range(NUM_ROWS)))


def rows(keys: Sequence[int]) -> pa.Table:
    return pa.table({"id": keys, "x": [1] * len(keys)}, schema=SCHEMA)


def scattered(num: int, first: int = 0) -> list[int]:
    return [(first + number * number * 7) % NUM_ROWS for number in range(num)]


def upserted(ds: Dataset, num: int, first: int = 0) -> Dataset:
    keys = [*dict.fromkeys(scattered(num, first)), NUM_ROWS + first]
    return ds.upsert(rows(keys), on="id")


def files_of(ds: Dataset) -> set[str]:
    return set(ds.table.store.list_names("data"))


def hidden(ds: Dataset) -> list[bool]:
    return [fragment.has_hidden_lineage for fragment in ds.table.manifest.fragments]


def test_only_long_lineage_leaves_the_manifest(ds: Dataset) -> None:
    """Short sequences are cheaper in the manifest, and long ones would be written again by each
    commit.
    """
    few = upserted(ds, 50)
    assert hidden(few) == [False, False]
    many = upserted(few, 900, first=3)
    assert hidden(many) == [False, False, True, False]
    moved = many.table.manifest.fragments[2]
    assert isinstance(moved.created_at_versions, bytes)
    assert isinstance(moved.last_updated_at_versions, bytes)
    compacted = many.compact()
    assert hidden(compacted) == [True]
    assert len(compacted.table.manifest.fragments.framed) < 500
    assert compacted.verify(deep=True) == []
    assert compacted.compact().version == compacted.version


def test_tables_without_the_setting_keep_lineage(ds: Dataset) -> None:
    """Other readers may not know hidden columns, so the table's configuration decides."""
    ds = ds.update_config({SPILL: "false"})
    assert not any(hidden(upserted(upserted(ds, 900), 700, 5).compact()))


def test_lineage_limits_must_be_numbers(ds: Dataset) -> None:
    """A limit that cannot be parsed must fail when it is set, not at the next commit."""
    for limit in ("many", "-1", "1e3", ""):
        with pytest.raises(InvalidInputError, match="must be a number of bytes"):
            ds.update_config({LIMIT: limit})
    with pytest.raises(InvalidInputError, match="must be a number of bytes"):
        lance_stream.create_dataset("memory://limits/t", SCHEMA, config={LIMIT: "1 MB"})


def test_the_switch_is_true_or_false(ds: Dataset) -> None:
    """Any other value would be ignored silently."""
    for switch in ("yes", "1", "on", ""):
        with pytest.raises(InvalidInputError, match="must be 'true' or 'false'"):
            ds.update_config({SPILL: switch})
        with pytest.raises(InvalidInputError, match="must be 'true' or 'false'"):
            lance_stream.create_dataset("memory://switch/t", SCHEMA, config={SPILL: switch})


def test_unassigned_row_ids_are_refused(ds: Dataset) -> None:
    """Ids beyond the counter can only come from a damaged table, and must not be written to a
    file.
    """
    inline = ds.update_config({SPILL: None})
    planned = upserted(inline, 900).table.manifest.fragments[1]
    table = ds.table.at(replace(ds.table.manifest, next_row_id=9))
    planned = replace(planned, physical_rows=decode_row_ids(planned.row_ids).num_ids)
    versions = RowVersionSequence.from_array(np.arange(500, dtype=np.uint64) % 2)
    stamps, few = encode_row_versions(versions), encode_row_ids(np.arange(500, dtype=np.uint64))
    valid = Fragment(0, (), 500, row_ids=few, created_at_versions=stamps)
    assert with_lineage_files(table, [valid])[0].has_hidden_lineage
    before = files_of(ds)
    with pytest.raises(CorruptDataError, match="the table is damaged"):
        with_lineage_files(table, [valid, planned])
    assert files_of(ds) == before


def test_lineage_reads_back_from_files(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another id or version would be that of another row; and long lineage has several pages."""
    monkeypatch.setattr(lineage_files, "FileWriter", partial(FileWriter, max_page_bytes=1000))
    dice = np.random.default_rng(1)
    ids = dice.permutation(NUM_ROWS)[:3000].astype(np.uint64)
    created, updated = dice.integers(1, 3, (2, 3000)).astype(np.uint64)
    fragment = Fragment(
        0,
        (),
        3000,
        row_ids=encode_row_ids(ids),
        created_at_versions=encode_row_versions(RowVersionSequence.from_array(created)),
        last_updated_at_versions=encode_row_versions(RowVersionSequence.from_array(updated)),
    )
    (hidden_fragment,) = with_lineage_files(ds.table, [fragment])
    for name in LINEAGE_FIELD_IDS:
        assert isinstance(getattr(hidden_fragment, name), LineageColumn)
    created_at = hidden_fragment.created_at_versions
    updated_at = hidden_fragment.last_updated_at_versions
    table = ds.table
    assert (table.row_ids(hidden_fragment).to_array() == ids).all()
    assert (table.row_versions(hidden_fragment, created_at).to_array() == created).all()
    assert (table.row_versions(hidden_fragment, updated_at).to_array() == updated).all()


def test_losing_upserts_leave_no_files(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lineage file of the first attempt is named by no version."""
    real, num_before, lost = attempts.commit_planned, len(files_of(ds)), []

    def first_loses(
        table: Any, operation: Any, staged: StagedFiles, *rest: Any, **named: Any
    ) -> Any:
        if lost:
            return real(table, operation, staged, *rest, **named)
        lost.append(len(files_of(ds)) - num_before)
        staged.delete(table.store)
        raise RetryableConflictError("another writer was faster", table.version + 1)

    monkeypatch.setattr(attempts, "commit_planned", first_loses)
    result = upserted(ds, 900)
    assert lost == [3]
    assert hidden(result) == [False, True, False]
    assert files_of(result) == {
        file.path for fragment in result.table.manifest.fragments for file in fragment.files
    }


def test_failed_compactions_leave_no_files(ds: Dataset) -> None:
    """Data and lineage files of finished tasks must both be deleted."""
    ds = upserted(upserted(ds, 900), 900, 11)
    before = files_of(ds)

    def write(tasks: Sequence[RewriteTask]) -> Iterator[list[Fragment]]:
        yield write_task(tasks[0])
        assert len(files_of(ds)) == len(before) + 2
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk"):
        prepare(ds.table, CompactionRules(target_rows=4000), write)
    assert files_of(ds) == before


@pytest.mark.parametrize("stable_row_ids", [True, False])
def test_only_stable_row_ids_have_limits(stable_row_ids: bool) -> None:
    """Other tables have no lineage, so that a limit must not split their files."""
    config = {SPILL: "true", LIMIT: "300"}
    dataset = lance_stream.create_dataset(
        f"memory://{uuid.uuid4()}/t", SCHEMA, config=config, stable_row_ids=stable_row_ids
    )
    assert limit_of(dataset.table) == (300 if stable_row_ids else None)


@pytest.mark.parametrize("name", ["row_ids", "created_at_versions", "last_updated_at_versions"])
def test_only_assigned_lineage_is_written(ds: Dataset, name: str) -> None:
    """The next row id and the next version are not assigned yet."""
    table = ds.table
    last = table.manifest.next_row_id - 1 if name == "row_ids" else table.version
    lineage_files._check(table, {name: np.array([0, last], np.uint64)})
    with pytest.raises(CorruptDataError, match=f"a row has {last + 1} among its"):
        lineage_files._check(table, {name: np.array([0, last + 1, 1], np.uint64)})


def test_each_sequence_has_the_limit(ds: Dataset) -> None:
    """A sequence of as many bytes as the limit stays in the manifest."""
    ids = np.array([5, 900, 7, 3], np.uint64)
    versions = np.array([2, 1, 2, 1], np.uint64)
    stamps = encode_row_versions(RowVersionSequence.from_array(versions))
    fragment = Fragment(
        id=0,
        files=(),
        physical_rows=4,
        row_ids=encode_row_ids(ids),
        created_at_versions=stamps,
        last_updated_at_versions=stamps,
    )
    expected = {
        "row_ids": ids,
        "created_at_versions": versions,
        "last_updated_at_versions": versions,
    }
    sizes = {name: len(getattr(fragment, name)) for name in expected}
    assert sizes["row_ids"] != sizes["created_at_versions"]
    for size in sizes.values():
        for limit in size - 1, size:
            values = lineage_files._longer_than(limit, fragment)
            assert {name: array.tolist() for name, array in values.items()} == {
                name: expected[name].tolist() for name in expected if sizes[name] > limit
            }
    for changes in ({"row_ids": None}, {"physical_rows": 5}):  # has new rows, too
        assert lineage_files._longer_than(0, replace(fragment, **changes)) == {}


def test_oldest_files_keep_lineage() -> None:
    """Files of version 0.1 cannot have hidden columns."""
    config = {SPILL: "true", LIMIT: "300"}
    for version, limit in (("0.1", None), ("2.0", 300)):
        table = lance_stream.create_dataset(
            f"memory://{uuid.uuid4()}/t", SCHEMA, version, config=config, stable_row_ids=True
        ).table
        assert table.has_stable_row_ids
        assert limit_of(table) == limit
