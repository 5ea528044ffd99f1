"""Large upserts by tasks: ranges of keys are looked up in the index, and rows stay in place."""

import random
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import lance
import numpy as np
import pyarrow as pa
import pytest

import lance_stream
from lance_stream.byte_ranges import ByteRange
from lance_stream.errors import InvalidInputError
from lance_stream.keys.index import key_index, run_files, run_format
from lance_stream.keys.index.run_files import read_footer
from lance_stream.keys.index.run_merging import in_groups
from lance_stream.row_updates import staged_files
from lance_stream.row_updates.staged_files import cut_ranges, sort_rows, write_sorted
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.upsert import attempts
from lance_stream.upsert.large.in_parts import PartedUpsert
from lance_stream.upsert.rules import UpsertRules
from tests.keys.index.small_runs import restart, runs_of
from tests.keys.keyed_tables import ON_ID, SCHEMA, rows, table_of
from tests.upsert.large.running_parts import upsert_by_parts


@pytest.fixture(autouse=True)
def _small_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs of a few rows are shared and merged, in chunks of 16 keys."""
    for module in (run_format, run_files):
        monkeypatch.setattr(module, "CHUNK_ROWS", 16)
    monkeypatch.setattr(run_files, "_CHUNKS_AT_ONCE", 1)
    monkeypatch.setattr(key_index, "MIN_SHARED_ROWS", 1)
    restart()
    yield
    restart()


class Reads:
    """Takes note of what is read from stores in memory."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.keys: list[tuple[str, ByteRange]] = []
        self.data_files: list[str] = []
        inner = MemoryStore.read_ranges

        def read_ranges(store: MemoryStore, path: str, ranges: Sequence[ByteRange]) -> Any:
            if "key_index" in path:
                self.keys += [(path, span) for span in ranges]
            elif path.startswith("data/"):
                self.data_files.append(path)
            return inner(store, path, ranges)

        patch.setattr(MemoryStore, "read_ranges", read_ranges)


def test_tasks_read_each_index_chunk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 63 chunks, only those at the ends of three ranges are read twice, and no key column is
    read.
    """
    table = table_of(20)
    table = upsert_by_parts(table, rows([5000], 1), ON_ID).table
    num_chunks = sum(len(read_footer(table.store, path).firsts) for path in runs_of(table))
    assert num_chunks == 20 * 4
    for _ in range(2):  # indexes the new file, and merges runs
        table = upsert_by_parts(table, rows([5000], 1), ON_ID).table
    num_chunks = sum(len(read_footer(table.store, path).firsts) for path in runs_of(table))
    assert num_chunks <= 63 + 4
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        result = upsert_by_parts(table, rows(range(1000), 2), ON_ID, num_parts=3)
    assert (result.num_updated, result.num_inserted) == (1000, 0)
    assert len(reads.data_files) <= 2  # the last new file
    chunks = Counter(reads.keys)
    assert 62 <= len(chunks) <= num_chunks
    assert sum(chunks.values()) <= len(chunks) + 2 * 2  # where one range ends, and the next begins


DAMAGE = ["none", "none", "delete", "cut", "flip", "put back", "refuse"]


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("seed", range(4))
def test_random_histories_match_a_dictionary(
    tmp_path: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every task has two attempts, and index runs are deleted, damaged, restored or refused."""
    dice = random.Random(seed)
    uri = str(tmp_path / "t.lance")
    wide = SCHEMA.append(pa.field("text", pa.string()))
    ds = lance_stream.create_dataset(uri, wide)
    model: dict[str, tuple[int, str | None]] = {}
    old_runs: dict[str, bytes] = {}
    for number in range(1, 9):
        store, table = ds.table.store, ds.table
        damage = dice.choice(DAMAGE)
        for path in runs_of(table):
            old_runs[path] = data = bytes(store.read(path))
            if damage == "delete":
                store.delete(path)
            elif damage in ("cut", "flip") and dice.random() < 0.7:
                at = dice.randrange(len(data))
                flipped = data[:at] + bytes([data[at] ^ 8]) + data[at + 1 :]
                store.write(path, data[:at] if damage == "cut" else flipped)
        if damage == "put back":
            for path, data in old_runs.items():
                store.write(path, data)
        if dice.random() < 0.2 and number > 2:
            ds = ds.compact()
        chosen = dice.sample(range(400), dice.randrange(1, 300))
        batch = rows(chosen, number)
        has_text = dice.random() < 0.5
        if has_text:
            texts = [f"{name}-{number} " * 40 for name in chosen]
            batch = batch.append_column("text", pa.array(texts))
        rules = UpsertRules(("id",), sequence_by="seq", delete_when="x = seq and id > 'key 8'")
        with monkeypatch.context() as patch:
            if damage == "refuse":
                patch.setattr(run_files, "write_run", lambda *_: None)
            result = upsert_by_parts(
                ds.table, batch, rules, num_parts=dice.randrange(1, 5), repeats=2
            )
        for row in batch.to_pylist():
            if row["id"] > "key 8":
                model.pop(row["id"], None)
            else:
                sequence = model.get(row["id"], (0, None))[1]
                model[row["id"]] = row["x"], row["text"] if has_text else sequence
        before, ds = ds.version, lance_stream.Dataset(result.table)
        stored = lance.dataset(uri).to_table().to_pylist()
        assert len(stored) == len(model)
        assert {row["id"]: (row["x"], row["text"]) for row in stored} == model
        if result.is_new:
            kinds = Counter(ds.changes(before).read_all()["_change_type"].to_pylist())
            assert kinds["insert"] == result.num_inserted
            assert kinds["update_postimage"] == result.num_updated
            assert kinds["delete"] == result.num_deleted
    assert ds.verify() == []


# --- rows that stay in place


def wide_table(num_fragments: int = 3) -> TableVersion:
    schema = SCHEMA.append(pa.field("text", pa.string()))
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    for number in range(num_fragments):
        keys = range(number * 50, number * 50 + 50)
        ds = ds.append(rows(keys, 0).append_column("text", pa.array(["long " * 1000] * 50)))
    return ds.table


def columns_of(table: TableVersion) -> dict[int, int]:
    """Return how many data files each fragment has."""
    return {fragment.id: len(fragment.files) for fragment in table.manifest.fragments}


def test_ranges_share_one_column_file() -> None:
    """Each range knows only its own rows of a fragment, but the fragment gets a single new column
    file.
    """
    table = wide_table()
    result = upsert_by_parts(table, rows(range(20, 170), 7), ON_ID, num_parts=5)
    assert (result.num_updated, result.num_inserted) == (130, 20)
    assert columns_of(result.table) == {0: 2, 1: 2, 2: 2, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1}
    records = lance_stream.Dataset(result.table).to_table().to_pylist()
    assert Counter(row["x"] for row in records) == {7: 150, 0: 20}
    assert sum(row["text"] is not None for row in records) == 150
    feed = lance_stream.Dataset(result.table).changes(table.version).read_all()
    assert Counter(feed["_change_type"].to_pylist()) == {
        "update_preimage": 130,
        "update_postimage": 130,
        "insert": 20,
    }


def test_few_fragment_changes_move_rows() -> None:
    """Rows of another fragment stay in place in the same upsert."""
    table = wide_table(1)
    narrow = rows(range(1000, 60_000), 0).append_column("text", pa.nulls(59_000, pa.string()))
    table = lance_stream.Dataset(table).append(narrow).table
    result = upsert_by_parts(table, rows([*range(50), 30_000], 7), ON_ID, num_parts=3)
    assert result.num_updated == 51
    assert columns_of(result.table)[0] == 2
    assert columns_of(result.table)[1] == 1
    assert result.table.manifest.fragments[1].deletion_file is not None


def test_concurrent_changes_are_replanned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another writer's commit makes the plan wrong, whose files must not remain beside those of
    the new plan.
    """
    table = wide_table()
    commit = attempts.commit_planned

    def beaten_once(planned_on: TableVersion, *arguments: Any, **named: Any) -> Any:
        if planned_on.version == table.version:
            ds = lance_stream.Dataset(table)
            ds.update({"text": "'short'"}, "x = 0")
            ds.delete(f"id = '{rows([3], 0)['id'][0]}'")
        return commit(planned_on, *arguments, **named)

    monkeypatch.setattr(attempts, "commit_planned", beaten_once)
    result = upsert_by_parts(table, rows(range(100), 7), ON_ID, num_parts=4)
    assert result.attempts == 2
    assert (result.num_updated, result.num_inserted) == (99, 1)
    records = lance_stream.Dataset(result.table).to_table().to_pylist()
    assert Counter(record["text"] for record in records) == {"short": 149, None: 1}
    assert Counter(record["x"] for record in records) == {7: 100, 0: 50}
    named = {file.path for fragment in result.table.manifest.fragments for file in fragment.files}
    others = {file.path.split("/")[-1] for file in table.store.list("data")} - named
    assert len(others) <= 3  # those that the update replaced


@pytest.mark.parametrize("step", ["rows", "changes"])
def test_failed_ranges_leave_no_file(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Neither data files nor staged rows remain, whichever step fails."""
    table = wide_table()
    before = {file.path for file in table.store.list("data")}
    inner = getattr(PartedUpsert, f"do_{step}")
    calls: list[int] = []

    def fail_later(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise InvalidInputError("no more")
        return inner(*arguments)

    monkeypatch.setattr(PartedUpsert, f"do_{step}", fail_later)
    with pytest.raises(InvalidInputError, match="no more"):
        upsert_by_parts(table, rows(range(250), 7), ON_ID, num_parts=4)
    assert len(calls) > 1
    assert {file.path for file in table.store.list("data")} == before
    assert not table.store.list("_lance_stream/staged_rows")


# --- staged files


def test_ranges_cover_all_rows_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A row outside all ranges would be lost, and a key in two ranges would be inserted twice."""
    dice = random.Random(5)
    for _ in range(60):
        monkeypatch.setattr(staged_files, "MIN_ROWS", dice.randrange(1, 9))
        monkeypatch.setattr(staged_files, "BUNDLES_PER_BATCH", dice.randrange(1, 20))
        store = MemoryStore(f"/{uuid.uuid4()}")
        span = dice.choice([3, 40, 1 << 64])
        expected: list[tuple[int, int]] = []
        files = []
        for _ in range(dice.randrange(1, 4)):
            portions = []
            for _ in range(dice.randrange(3)):
                words = [dice.randrange(span) for _ in range(dice.randrange(50))]
                pairs_of_part = [(word, len(expected) + index) for index, word in enumerate(words)]
                expected += pairs_of_part
                batch = pa.record_batch(
                    {"row": pa.array([row for _, row in pairs_of_part], pa.int64())}
                )
                portions.append((batch, np.array(words, np.uint64)))
            files.append(
                sort_rows(portions) if dice.random() < 0.5 else write_sorted(portions, store)
            )
        multiple = dice.choice([1, 4, 1 << 60])
        ranges = cut_ranges(files, dice.randrange(60), dice.choice([0, 1 << 30]), multiple)
        all_pairs = []
        for part in ranges:
            assert part.first % multiple == 0
            for file in files:
                for batch, words in file.read_with_words(store, part):
                    pairs = zip(words.tolist(), batch["row"].to_pylist(), strict=True)
                    pairs_of_part = list(pairs)
                    assert all(part.first <= word <= part.last for word, _ in pairs_of_part)
                    all_pairs += pairs_of_part
        assert sorted(all_pairs) == sorted(expected)
        starts = [part.first for part in ranges]
        assert starts == sorted(set(starts))
        assert sum(file.num_rows for file in files) == len(expected)


def test_groups_keep_their_order_and_limit() -> None:
    """Groups are read into memory as a whole, so only a single large item may exceed the limit."""
    sized = [("a", 3), ("b", 2), ("c", 9), ("d", 1), ("e", 4)]
    assert in_groups(sized, 5) == [("a", "b"), ("c",), ("d", "e")]
    assert in_groups([], 5) == []
