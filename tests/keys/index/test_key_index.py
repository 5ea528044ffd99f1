"""Keys that a process remembers: found right, in any type, without reading files again."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

import lance_stream
from lance_stream._proto import table_pb2
from lance_stream.errors import CorruptDataError
from lance_stream.keys import key_words
from lance_stream.keys.bounds import cached_key_bounds
from lance_stream.keys.file_columns import FileColumn
from lance_stream.keys.index import key_index
from lance_stream.keys.index.key_index import KeyIndex
from lance_stream.keys.index.memtable import Collector
from lance_stream.keys.index.run_format import CoveredFile, Keys
from lance_stream.keys.index.run_merging import RenumberedKeys
from lance_stream.keys.key_words import words_of
from lance_stream.schema.arrow_schemas import from_arrow
from lance_stream.schema.fields import Field, assign_ids
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.table.lineage.row_ids import RowIdSequence, encode_row_ids
from lance_stream.table.lineage.row_versions import RowVersionSequence, encode_row_versions
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert
from tests.dataset.manifest_edits import edit_manifest
from tests.keys.keyed_tables import ON_ID, num_read, rows, table_of, watched

NO_STORE = MemoryStore("none")


@pytest.fixture(autouse=True)
def _a_process_that_remembers_nothing() -> Iterator[None]:
    key_index.clear_key_indices()
    cached_key_bounds._columns.clear()
    yield
    key_index.clear_key_indices()
    cached_key_bounds._columns.clear()


@pytest.mark.floors
def test_files_are_read_twice_at_most() -> None:
    """From the third upsert on no key column may be read again, which is what the index is for."""
    table = table_of()
    for number, expected in enumerate([6, 7, 0, 0, 0], 1):
        table, store = watched(table)
        result = upsert(table, rows(range(0, 300, 7 + number), number), ON_ID)
        assert result.num_updated == len(range(0, 300, 7 + number))
        assert result.num_inserted == 0
        assert num_read(store) == expected
        table = result.table


def test_foreign_files_are_read_each_time() -> None:
    """A name that is not random may be used again for other rows."""
    table = table_of()
    index = key_index.key_index_of(table, ["id"])
    fragment = table.manifest.fragments[0]
    (file,) = fragment.files
    foreign = replace(fragment, files=(replace(file, path="part-0.lance"),))
    assert index.look_up([foreign, fragment], 2, NO_STORE).numbers.tolist() == [-1, -1]


@pytest.mark.parametrize("stated", [1, 50, 1000])
def test_wrong_row_counts_are_refused(tmp_path: Path, stated: int) -> None:
    """What the index knows of the file says nothing about a damaged fragment."""
    uri = str(tmp_path / "t")
    ds = lance_stream.create_dataset(uri, rows(range(100), 0)).append(rows(range(100, 200), 0))
    for number in range(3):
        ds = ds.upsert(rows([number], 1), "id")

    def damage(manifest: table_pb2.Manifest) -> None:
        whole = next(
            fragment for fragment in manifest.fragments if not fragment.HasField("deletion_file")
        )
        wrong = manifest.fragments.add()
        wrong.CopyFrom(whole)
        manifest.max_fragment_id = wrong.id = manifest.max_fragment_id + 1
        wrong.physical_rows = stated
        first = manifest.next_row_id
        wrong.inline_row_ids = encode_row_ids(RowIdSequence.from_range(first, first + stated))
        wrong.inline_created_at_versions = uniform(1)
        wrong.inline_last_updated_at_versions = uniform(1)
        manifest.next_row_id = first + stated

    def uniform(version: int) -> bytes:
        return encode_row_versions(RowVersionSequence.uniform(stated, version))

    edit_manifest(tmp_path / "t", damage)
    with pytest.raises(CorruptDataError, match=f"has 100 rows, but fragment . .*{stated}"):
        lance_stream.open_dataset(uri).upsert(rows([170], 2), "id")


def test_stored_sequences_are_read_once() -> None:
    """Sequences decide which rows are late, and reading them for every batch
    would undo the index.
    """
    table, rules = table_of(), replace(ON_ID, sequence_by="seq")
    for number in range(1, 4):
        table = upsert(table, rows(range(300), number), rules).table
    table, store = watched(table)
    result = upsert(table, rows([3, 4, 299], 2), rules)
    assert (result.num_late, result.num_updated) == (3, 0)
    result = upsert(result.table, rows([3, 4, 299], 9), rules)
    assert (result.num_late, result.num_updated) == (0, 3)
    assert num_read(store) == 0


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_newest_rows_win_after_any_history(seed: int, *, nested: bool) -> None:
    """Cached sequences must follow upserts, deletes, restores, compactions and wider types."""
    kind = pa.struct([("major", pa.int32()), ("minor", pa.int64())]) if nested else pa.int32()
    schema = pa.schema([("id", pa.int64()), ("seq", kind), ("x", pa.string())])
    rules = UpsertRules(("id",), sequence_by="seq")

    def batch(keys: list[int], sequences: list[int], x: str) -> pa.Table:
        seqs = [{"major": sequence, "minor": 0} if nested else sequence for sequence in sequences]
        columns = [pa.array(keys), pa.array(seqs, ds.schema.field("seq").type), [x] * len(keys)]
        return pa.table(dict(zip(schema.names, columns, strict=True)), ds.schema)

    dice = np.random.default_rng(seed)
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    model: dict[int, tuple[int, str]] = {}
    history = {ds.version: (model, ds.schema)}
    for step in range(30):
        keys = dice.choice(np.arange(30), int(dice.integers(1, 12)), replace=False).tolist()
        sequences = dice.integers(0, 3 * step + 1, len(keys)).tolist()
        action = dice.choice(["upsert"] * 7 + ["delete", "restore", "compact", "set", "widen"])
        if action == "upsert":
            outcome = upsert(ds.table, batch(keys, sequences, f"{step}"), rules)
            ds = lance_stream.Dataset(outcome.table)
            newer = {
                key: (sequence, f"{step}")
                for key, sequence in zip(keys, sequences, strict=True)
                if key not in model or model[key][0] <= sequence
            }
            assert outcome.num_late == len(keys) - len(newer)
            model = {**model, **newer}
        elif action == "delete":
            ds = ds.delete(f"id % 5 = {step % 5}")
            model = {key: row for key, row in model.items() if key % 5 != step % 5}
        elif action == "restore":
            version = int(dice.choice(list(history)))
            ds, (model, _) = ds.restore(version), history[version]
        elif action == "compact":
            ds = ds.compact()
        elif action == "set" and not nested:
            ds = ds.update({"seq": "seq + 1"}, where="id % 2 = 0")
            model = {key: (at + (key % 2 == 0), x) for key, (at, x) in model.items()}
        elif action == "widen":
            ds = ds.alter_columns(
                {"path": "seq.major" if nested else "seq", "data_type": pa.int64()}
            )
        history[ds.version] = (model, ds.schema)
        stored = ds.to_table().to_pylist()
        result = {
            row["id"]: (row["seq"]["major"] if nested else row["seq"], row["x"]) for row in stored
        }
        assert result == model
        assert len(stored) == len(model)


def test_other_writers_rows_are_found(tmp_path: Any) -> None:
    """The index does not know the files of other writers, so these have to be read instead of
    being skipped.
    """
    table = table_of()
    for number in range(1, 4):
        table = upsert(table, rows(range(300), number), ON_ID).table
    ds = lance_stream.Dataset(table).append(rows(range(300, 310), 0)).delete("id < 'key 10000'")
    ds = ds.compact()
    result = upsert(ds.table, rows(range(320), 5), ON_ID)
    stored = lance_stream.Dataset(result.table).to_table().to_pydict()
    assert sorted(stored["id"]) == sorted(rows(range(320), 0)["id"].to_pylist())
    assert set(stored["x"]) == {5}
    assert result.num_inserted == 320 - result.num_updated > 10


@pytest.mark.parametrize("bits", [0, 3])
def test_keys_with_equal_hashes_stay_apart(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of the two hashes made constant, the other still has to tell all keys apart."""
    hash_keys = key_words.hash_keys

    def weak(keys: Sequence[pa.Array], seed: int = 0) -> npt.NDArray[np.uint64]:
        hashes = hash_keys(keys, seed)
        return hashes & np.uint64((1 << bits) - 1) if seed == 7 else hashes

    monkeypatch.setattr(key_index, "new_seeds", lambda: (7, 8))
    monkeypatch.setattr(key_words, "hash_keys", weak)
    table = table_of()
    for number in range(1, 5):
        result = upsert(table, rows(range(0, 320, 3), number), ON_ID)
        assert result.num_updated == len(range(0, 320 if number > 1 else 300, 3))
        table = result.table


def test_trailing_zero_bytes_distinguish_keys() -> None:
    """A hash over words that are padded with zeros could treat such keys as equal, and an upsert
    would overwrite another row.
    """

    def of(*keys: str, x: int) -> pa.Table:
        return pa.table({"k": pa.array(keys, pa.string()), "x": pa.array([x] * len(keys))})

    for _ in range(10):  # with seeds of its own each
        key_index.clear_key_indices()
        ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", of("ab", "zz", x=0))
        for number in (1, 2):  # keys are remembered
            ds = ds.upsert(of("zz", x=number), on="k")
        ds = ds.upsert(of("bb\0", "cb\0", "`b\0", x=9), on="k")
        stored = ds.to_table()
        assert dict(zip(stored["k"].to_pylist(), stored["x"].to_pylist(), strict=True)) == {
            "ab": 0,
            "zz": 2,
            **dict.fromkeys(("bb\0", "cb\0", "`b\0"), 9),
        }


def collected(
    memory: KeyIndex, number: int, keys: pa.Array, num_rows: int | None = None
) -> Collector:
    column = FileColumn(number.to_bytes(16, "big"), 0)
    collector = memory.collector((column,), len(keys) if num_rows is None else num_rows)
    collector.add_keys([keys[:3]])
    collector.add_keys([keys[3:]])
    return collector


@pytest.mark.floors
@pytest.mark.parametrize("of", [int, str])
def test_rows_are_found_in_all_files(of: Callable[[int], Any]) -> None:
    """A key may occur in several files, and merging runs must not drop or duplicate an entry."""
    dice = np.random.default_rng(3)
    memory = KeyIndex([Field("id", "int64", 0, nullable=False)])
    model: dict[Any, set[tuple[int, int]]] = {}
    for number in range(40):
        keys = [of(integer) for integer in dice.integers(0, 60, int(dice.integers(4, 30))).tolist()]
        keys[1] = None
        memory.add([collected(memory, number, pa.array(keys))])
        for offset, key in enumerate(keys):
            model.setdefault(key, set()).add((number, offset))
    assert len(memory._runs) < 8
    requested = [of(number) for number in range(100)]
    hits = memory.look_up([], 0, NO_STORE).find([pa.array(requested)], NO_STORE)
    pairs = zip(hits.files.tolist(), hits.offsets.tolist(), hits.keys.tolist(), strict=True)
    by_key: dict[Any, set[tuple[int, int]]] = {}
    for file, offset, key in pairs:
        by_key.setdefault(requested[key], set()).add((file, offset))
    assert by_key == {key: positions for key, positions in model.items() if key is not None}


IDS = Field("id", "int64", 0)
TEXTS = Field("id", "string", 0)


def find(memory: KeyIndex, keys: pa.Array) -> list[tuple[int, int, int]]:
    """Return the number of the file, the offset and the key's number of each match."""
    matches = memory.look_up([], 9, NO_STORE).find([keys], NO_STORE)
    return sorted(
        zip(matches.files.tolist(), matches.offsets.tolist(), matches.keys.tolist(), strict=True)
    )


def test_keys_of_other_seeds_are_dropped() -> None:
    """A lookup that began before a run of another process was found has hashes of other seeds,
    under which no key would ever be found: each upsert would insert the row again.
    """
    keys = pa.array(list("abcde"))
    memory = KeyIndex([TEXTS], (1, 2))
    for seeds, num_files in (((1, 3), 0), ((3, 2), 0), ((1, 2), 1)):
        memory.add([collected(KeyIndex([TEXTS], seeds), 1, keys)])
        assert memory.num_files == num_files
    assert find(memory, pa.array(["d"])) == [(0, 3, 0)]


def test_files_are_added_once() -> None:
    """Two threads may read one file at the same time."""
    memory = KeyIndex([IDS])
    collectors = [collected(memory, 1, pa.array(range(10))) for _ in range(2)]
    memory.add(collectors[:1])
    num_bytes = memory.num_bytes
    memory.add(collectors[1:])
    assert (memory.num_files, memory.num_bytes) == (1, num_bytes)
    assert find(memory, pa.array([7])) == [(0, 7, 0)]


def sorted_keys(count: int, others: int | None = None) -> list[RenumberedKeys]:
    """Return the numbers from 0 on as keys: exact ones, or hashes with further bits."""
    words = np.arange(count, dtype=np.uint64)
    further = None if others is None else np.full(count, others, np.uint32)
    return [RenumberedKeys(Keys(words, further, words.astype(np.uint32)), None)]


def files_of(*counts: int) -> list[CoveredFile]:
    return [
        CoveredFile((FileColumn(number.to_bytes(16, "big"), 0),), count)
        for number, count in enumerate(counts)
    ]


@pytest.mark.parametrize(
    ("seeds", "num_indexed", "room", "num_files"),
    [
        ((1, 2), 0, 10, 2),
        ((1, 2), 0, 9, 0),
        ((1, 3), 0, 10, 0),
        ((1, 2), 1, 100, 1),
    ],
    ids=["as many as fit", "one too many", "other seeds", "known"],
)
def test_remapped_keys_need_room_and_seeds(
    seeds: tuple[int, int],
    num_indexed: int,
    room: int,
    num_files: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that compacts adds keys that it has taken from the index some time ago."""
    memory = KeyIndex([TEXTS], (1, 2))
    memory.add(Collector(file.file, file.num_rows, (1, 2)) for file in files_of(0)[:num_indexed])
    monkeypatch.setattr(key_index, "MAX_BYTES", room * key_index._BYTES_PER_ROW)
    memory.add_sorted(NO_STORE, files_of(0, 10), sorted_keys(10, 7), seeds)
    assert memory.num_files == num_files
    assert len(memory._runs) == (num_files == 2)


@pytest.mark.parametrize(("min_rows", "num_runs"), [(10, 1), (11, 0)])
def test_many_remapped_keys_are_saved(
    min_rows: int, num_runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory, they would take the room of keys that other files need."""
    monkeypatch.setattr(key_index, "MIN_SAVED_ROWS", min_rows)
    store = MemoryStore(f"/{uuid.uuid4()}")
    memory = KeyIndex([IDS], (1, 2))
    memory.add_sorted(store, files_of(4, 6), sorted_keys(10), (1, 2))
    assert (memory.num_saved_runs, len(memory._runs)) == (num_runs, 1 - num_runs)
    matches = memory.snapshot_of(files_of(4, 6)).find([pa.array([7])], store)
    assert (matches.files.tolist(), matches.offsets.tolist()) == ([1], [3])


@pytest.mark.parametrize(
    ("columns", "names"),
    [
        ({"id": pa.string(), "n": pa.int64()}, ["id", "n"]),
        ({"renamed": pa.string(), "n": pa.int64()}, ["renamed", "n"]),
        ({"id": pa.large_string(), "n": pa.int64()}, []),
        ({"id": pa.string(), "n": pa.int32()}, []),
        ({"id": pa.string()}, []),
    ],
)
def test_indices_follow_their_columns(columns: dict[str, pa.DataType], names: list[str]) -> None:
    """A compaction reads the keys of all indices of the table's location, where another table may
    have been before.
    """
    indexed = assign_ids(from_arrow(pa.schema({"id": pa.string(), "n": pa.int64()})))
    schema = assign_ids(from_arrow(pa.schema(columns)))
    fields = KeyIndex(indexed.fields).fields_in(schema)
    assert [field.name for field in fields] == names


def test_other_tables_indices_are_ignored() -> None:
    """An index of another table does not have the files."""
    tables = [table_of(1), table_of(1)]
    indices = [key_index.key_index_of(table, ["id"]) for table in tables]
    assert key_index.key_indices_of(tables[0]) == []
    for index in indices:
        index.add([Collector(files_of(0)[0].file, 0, index._seeds)])
    for table, index in zip(tables, indices, strict=True):
        assert key_index.key_indices_of(table) == [index]


@pytest.mark.parametrize(
    ("keys", "is_exact"),
    [
        ([pa.array([1, 2])], True),
        ([pa.array(["a", "b"])], False),
        ([pa.array(["a", "b"]).dictionary_encode()], False),
        ([pa.array([1, 2]).dictionary_encode()], True),
        ([pa.array([1, 2]), pa.array([1, 2])], False),
    ],
    ids=["number", "text", "dictionary of texts", "dictionary of numbers", "two numbers"],
)
def test_runs_state_how_keys_are_hashed(keys: list[pa.Array], is_exact: bool) -> None:
    """The indices of a dictionary are small numbers, but do not identify its values."""
    schema = pa.schema([pa.field(f"k{at}", values.type) for at, values in enumerate(keys)])
    columns = KeyIndex(assign_ids(from_arrow(schema)).fields).columns((3, 4))
    assert (columns.is_exact, columns.seeds) == (is_exact, (0, 0) if is_exact else (3, 4))
    assert (words_of(keys, (3, 4)).others is None) is is_exact


@pytest.mark.parametrize(("num_fragments", "num_files"), [(5, 10), (4, 4), (0, 0)])
def test_unused_files_are_forgotten(
    num_fragments: int, num_files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compactions replace files for months, and the memory must not grow with them."""
    monkeypatch.setattr(key_index, "_FORGET_FROM", 0)
    memory = KeyIndex([IDS])
    memory.add(collected(memory, number, pa.array([number] * 5)) for number in range(10))
    memory.look_up([], num_fragments, NO_STORE)
    assert memory.num_files == num_files
    assert sum(len(run.words) for run in memory._runs) == 5 * num_files
    assert bool(memory._runs) == bool(num_files)


def test_partially_read_files_stay_unknown() -> None:
    """An index of half a file would make keys of the other half look new."""
    memory = KeyIndex([Field("id", "int64", 0, nullable=False)])
    memory.add([collected(memory, 1, pa.array(range(10)), num_rows=11)])
    memory.add([collected(memory, 2, pa.array([None, None], pa.int64()))])
    assert memory.num_files == 1
    assert len(memory.look_up([], 0, NO_STORE).find([pa.array(range(10))], NO_STORE).keys) == 0


@pytest.mark.floors
def test_dictionary_keys_match_by_value() -> None:
    """Each file and each batch has its own dictionary indices."""

    def batch(keys: Sequence[str], x: int) -> pa.Table:
        return pa.table({"id": pa.array(keys).dictionary_encode(), "x": [x] * len(keys)})

    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", batch("abc", 0))
    model = dict.fromkeys("abc", 0)
    for number, keys in enumerate(("a", "cd", "de", "ea", "cz", "bd", "z"), 1):
        ds = lance_stream.Dataset(upsert(ds.table, batch(keys, number), ON_ID).table)
        model |= dict.fromkeys(keys, number)
        stored = ds.to_table().to_pydict()
        assert sorted(zip(stored["id"], stored["x"], strict=True)) == sorted(model.items())


def test_lookups_keep_their_own_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup of an older version runs concurrently with the compaction's cleanup of the index."""
    monkeypatch.setattr(key_index, "_FORGET_FROM", 0)
    memory = KeyIndex([Field("id", "int64", 0, nullable=False)])
    memory.add(collected(memory, number, pa.array([number] * 5)) for number in range(10))
    index = memory.look_up([], 10, NO_STORE)
    memory.look_up([], 1, NO_STORE)  # of a version that was compacted meanwhile
    assert memory.num_files == 1
    assert sorted(set(index.find([pa.array(range(10))], NO_STORE).keys.tolist())) == list(range(10))


def test_merged_runs_have_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging takes several times the memory of a run, while many runs make a lookup slow."""
    monkeypatch.setattr(key_index, "_MAX_MERGED_IN_MEMORY", 100)
    monkeypatch.setattr(key_index, "_MIN_IN_MEMORY", 3)
    memory = KeyIndex([Field("id", "int64", 0, nullable=False)])
    dice = np.random.default_rng(5)
    sizes = dice.integers(3, 30, 60).tolist()
    for number, size in enumerate(sizes):
        memory.add([collected(memory, number, pa.array(dice.integers(0, 50, size)))])
    lengths = [len(run.words) for run in memory._runs]
    assert sum(lengths) == sum(sizes)
    assert max(lengths) <= 100
    assert len(lengths) < 2 * sum(sizes) / 50 + 8
