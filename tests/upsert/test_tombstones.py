import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lance_stream
from lance_stream.errors import CorruptDataError, InvalidInputError, RetryableConflictError
from lance_stream.keys.batch_keys import KeyLookup
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.tombstones import (
    CONFIG_KEY,
    TombstoneFile,
    Tombstones,
    config_entries,
    read_tombstones,
)
from lance_stream.table.paths import TOMBSTONES_DIRECTORY, tombstone_path
from lance_stream.upsert import tombstone_files
from lance_stream.upsert.tombstone_files import (
    DELETED_AT,
    SEQUENCE,
    STORES,
    DeleteFileCache,
    Deletes,
    cast_deletes,
    decode_deletes,
    encode_deletes,
)
from lance_stream.upsert.tombstones import (
    PlannedTombstones,
    RememberedDeletes,
    open_remembered,
    plan_tombstones,
)
from tests.commit.tables import make_environment
from tests.contracts.watched_stores import WatchedStore
from tests.keys.test_batch_keys import values

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), pa.field("seq", pa.int64())])
WEEK = timedelta(days=7)


def new_table(schema: pa.Schema = SCHEMA) -> TableVersion:
    return lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema).table


def remember(
    table: TableVersion,
    keys: Sequence[pa.Array],
    sequence: pa.Array,
    now_ms: int = 0,
    age: timedelta | None = WEEK,
) -> TableVersion:
    """Return the table with the deletes of a batch, as after a commit."""
    on = [name for name in table.arrow_schema.names if name != "seq"]
    remembered = open_remembered(table, on, "seq", sequence.type, age=age, now_ms=now_ms)
    return taken_in(table, plan(table, remembered, keys, sequence))


def plan(
    table: TableVersion, remembered: RememberedDeletes, keys: Sequence[pa.Array], sequence: pa.Array
) -> PlannedTombstones:
    deletes = [remembered.new_deletes(keys, sequence)]
    return plan_tombstones(remembered, deletes, table.schema, make_environment())


def taken_in(table: TableVersion, planned: PlannedTombstones) -> TableVersion:
    entries = planned.entries(table.manifest, table.version + 1)
    return table.at(replace(table.manifest, config={**table.manifest.config, **entries}))


def late(
    table: TableVersion,
    keys: Sequence[pa.Array],
    sequence: pa.Array,
    now_ms: int = 0,
    age: timedelta | None = WEEK,
) -> list[bool]:
    on = [name for name in table.arrow_schema.names if name != "seq"]
    remembered = open_remembered(table, on, "seq", sequence.type, age=age, now_ms=now_ms)
    lookup = KeyLookup(keys)
    assert lookup.num_keys == len(sequence)
    flags: list[bool] = remembered.are_late(lookup, keys, sequence).tolist()
    return flags


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[pa.DataType], list[dict[tuple[Any, ...], int]]]:
    """Types of key columns, and batches of distinct keys with sequences."""
    types = draw(st.lists(st.sampled_from(list(values)), min_size=1, max_size=2))
    keys = st.tuples(*(values[arrow_type] for arrow_type in types))
    batches = draw(
        st.lists(
            st.dictionaries(keys, st.integers(0, 6), min_size=1, max_size=5),
            min_size=1,
            max_size=12,
        )
    )
    return types, batches


def columns_of(
    batch: dict[tuple[Any, ...], int], types: list[pa.DataType]
) -> tuple[list[pa.Array], pa.Array]:
    keys = [pa.array([key[at] for key in batch], arrow_type) for at, arrow_type in enumerate(types)]
    return keys, pa.array(list(batch.values()), pa.int64())


@settings(max_examples=60, deadline=None)
@given(histories())
def test_rows_must_follow_every_delete(
    history: tuple[list[pa.DataType], list[dict[tuple[Any, ...], int]]],
) -> None:
    """Keys of any type and any number of delete files must give the maximum sequence of the key."""
    types, batches = history
    fields = [pa.field(f"k{at}", type_, False) for at, type_ in enumerate(types)]
    table = new_table(pa.schema([*fields, pa.field("seq", pa.int64())]))
    model: dict[tuple[Any, ...], int] = {}
    for batch in batches:
        keys, sequence = columns_of(batch, types)
        expected = [value <= model.get(key, -1) for key, value in batch.items()]
        assert late(table, keys, sequence) == expected
        table = remember(table, keys, sequence)
        model = {key: max(batch.get(key, -1), model.get(key, -1)) for key in {*batch, *model}}
    keys, sequence = columns_of(dict.fromkeys(model, 0), types)
    remembered = open_remembered(
        table, [field.name for field in fields], "seq", pa.int64(), age=WEEK, now_ms=0
    )
    last = remembered.last_sequences(KeyLookup(keys), keys)
    assert last.to_pylist() == list(model.values())


@pytest.mark.parametrize("num_keys", [1, 50, 3000])
def test_few_and_many_keys_agree(num_keys: int) -> None:
    """Few keys are searched and many are joined, by different code with the same answer."""
    dice = np.random.default_rng(num_keys)
    table = new_table()
    model: dict[int, int] = {}
    for _ in range(5):
        keys = dice.choice(2000, 300, replace=False)
        sequence = dice.integers(0, 1000, 300)
        table = remember(table, [pa.array(keys)], pa.array(sequence))
        for key, value in zip(keys.tolist(), sequence.tolist(), strict=True):
            model[key] = max(value, model.get(key, -1))
    queried = dice.choice(4000, num_keys, replace=False)
    sequence = dice.integers(0, 1000, num_keys)
    pairs = zip(queried.tolist(), sequence.tolist(), strict=True)
    assert late(table, [pa.array(queried)], pa.array(sequence)) == [
        value <= model.get(key, -1) for key, value in pairs
    ]


def ids(*numbers: int) -> list[pa.Array]:
    return [pa.array(numbers, pa.int64())]


def test_old_deletes_expire() -> None:
    """The age is exact to the millisecond, and expired deletes leave the table only with the next
    write.
    """
    day = 24 * 3600 * 1000
    table = remember(new_table(), ids(1), pa.array([5]), now_ms=0)
    table = remember(table, ids(2), pa.array([5]), now_ms=6 * day)
    rows = ids(1, 2), pa.array([4, 4])
    assert late(table, *rows, now_ms=7 * day) == [True, True]
    assert late(table, *rows, now_ms=7 * day + 1) == [False, True]
    assert late(table, *rows, now_ms=99 * day) == [False, False]
    assert late(table, *rows, now_ms=99 * day, age=None) == [True, True]
    table = remember(table, ids(3), pa.array([5]), now_ms=8 * day)
    assert late(table, *rows, now_ms=0, age=None) == [False, True]


def test_old_deletes_in_joined_files_expire() -> None:
    """Younger deletes keep their common file alive."""
    table = new_table()
    for number in range(8):  # the eighth file takes in the seven before
        table = remember(table, ids(number), pa.array([5]), now_ms=number * 1000)
    assert len(config_files(table)) == 1
    rows = ids(*range(8)), pa.array([5] * 8)
    assert late(table, *rows, now_ms=9000, age=timedelta(seconds=5)) == [False] * 4 + [True] * 4
    for number in range(8, 15):
        table = remember(table, ids(number), pa.array([5]), 9000, timedelta(seconds=5))
    assert [file.num_rows for file in config_files(table)] == [8, *[1] * 7]


def config_files(table: TableVersion) -> tuple[TombstoneFile, ...]:
    tombstones = lance_stream.table.config.tombstones.read_tombstones(table.manifest.config)
    assert tombstones is not None
    return tombstones.files


def test_joining_keeps_the_newest_delete() -> None:
    """Small files are joined, and an older sequence of a key must not replace the newest."""
    table = new_table()
    for sequence in (3, 9, 4, 1, 1, 1, 1, 1):
        table = remember(table, ids(1), pa.array([sequence]))
    assert [file.num_rows for file in config_files(table)] == [1]
    assert late(table, ids(1), pa.array([9])) == [True]
    assert late(table, ids(1), pa.array([10])) == [False]


def test_concurrent_writers_keep_both_tombstones() -> None:
    """Both writers join the same old files, and the later commit must not drop the other's new
    deletes.
    """
    table = new_table()
    for number in range(7):
        table = remember(table, ids(number), pa.array([5]))
    remembered = open_remembered(table, ["id"], "seq", pa.int64(), age=WEEK, now_ms=0)
    ours = plan(table, remembered, ids(50), pa.array([5]))
    theirs = plan(table, remembered, ids(60), pa.array([5]))
    assert len(ours.joined) == len(theirs.joined) == 7
    both = taken_in(taken_in(table, theirs), ours)
    assert len(config_files(both)) == 2
    assert all(late(both, ids(*range(7), 50, 60), pa.array([5] * 9)))


def test_no_file_without_deletes() -> None:
    """Most batches delete nothing and should cost no file or entry."""
    table = new_table()
    remembered = open_remembered(table, ["id"], "seq", pa.int64(), age=WEEK, now_ms=0)
    planned = plan(table, remembered, ids(), pa.array([], pa.int64()))
    assert planned.entries(table.manifest, 2) == {}
    assert (planned.properties, planned.paths) == ({}, ())
    assert table.store.list("_lance_stream") == []


def test_each_process_reads_a_file_once() -> None:
    """The process that wrote a file does not read it at all."""
    table = remember(new_table(), ids(1), pa.array([5]))
    watched = WatchedStore(table.store)
    here = replace(table, store=watched)
    assert late(here, ids(1), pa.array([5])) == [True]
    assert watched.calls == []
    cache = DeleteFileCache(1 << 20)
    remembered = open_remembered(here, ["id"], "seq", pa.int64(), age=WEEK, now_ms=0)
    for _ in range(3):
        assert (
            cache.get(remembered.open_files, remembered.files[0], remembered.schema).rows.num_rows
            == 1
        )
    assert watched.calls == [("read_end", tombstone_path(remembered.files[0].name))]


def test_the_cache_respects_its_limit() -> None:
    """A driver has many tables, and a file larger than the cache must not evict everything else."""
    table = new_table()
    for number in range(3):
        table = remember(
            table, [pa.array(np.arange(100 * 8**number))], pa.array(np.arange(100 * 8**number))
        )
    watched = WatchedStore(table.store)
    remembered = open_remembered(
        replace(table, store=watched), ["id"], "seq", pa.int64(), age=WEEK, now_ms=0
    )
    cache = DeleteFileCache((24 + 16) * 900)
    for index in (0, 1, 0, 1, 2, 1):
        deletes = cache.get(remembered.open_files, remembered.files[index], remembered.schema)
        assert deletes.rows.num_rows == remembered.files[index].num_rows
    # The third is larger than what may be kept: it is read each time, and the others stay.
    assert [path for _, path in watched.calls] == [
        tombstone_path(remembered.files[index].name) for index in (0, 1, 2)
    ]


def by(
    table: TableVersion, on: Sequence[str], sequence: pa.DataType, age: timedelta | None = WEEK
) -> RememberedDeletes:
    return open_remembered(table, on, "seq", sequence, age=age, now_ms=0)


def test_other_columns_are_refused_or_ignored() -> None:
    """Other columns are refused if this upsert remembers deletes, and ignored if not."""
    table = remember(new_table(), ids(1), pa.array([5]))
    with pytest.raises(InvalidInputError, match=r"\(remembered deletes\) by the key"):
        open_remembered(table, ["seq"], "id", pa.int64(), age=WEEK, now_ms=0)
    hostile = "\x1b[2Jid"
    with pytest.raises(InvalidInputError, match="by the key") as caught:
        open_remembered(table, [hostile], "seq", pa.int64(), age=WEEK, now_ms=0)
    assert str(caught.value).isprintable()
    assert open_remembered(table, ["seq"], "id", pa.int64(), age=None, now_ms=0).files == ()
    assert len(by(table, ["id"], pa.int64(), None).files) == 1


def test_unstored_sequences_compare_as_wider_type() -> None:
    """The batch's type is all that defines an unstored sequence, and it may become wider over
    time.
    """
    table = remember(new_table(), ids(1), pa.array([5], pa.int32()))
    assert late(table, ids(1), pa.array([5], pa.int64())) == [True]
    assert late(table, ids(1), pa.array([1 << 40], pa.int64())) == [False]
    table = remember(table, ids(2), pa.array([1 << 40], pa.int64()))
    assert late(table, ids(1, 2), pa.array([6, 6], pa.int32())) == [False, True]
    with pytest.raises(
        InvalidInputError, match=r"'seq' as int64, but this upsert has string.*Cast"
    ):
        by(table, ["id"], pa.string())


@pytest.mark.floors
@pytest.mark.parametrize(
    "sequence",
    [
        pa.array([1, 2], pa.timestamp("us", "UTC")),
        pa.array([1, 2], pa.timestamp("us")),
        pa.array(["a", "b"]),
        pa.array([0.5, 1.5]),
        pa.array([1, 2], pa.decimal128(9, 2)),
        pa.array([1, 2], pa.date32()),
        pa.array([False, True]),
        pa.array([b"a", b"b"], pa.large_binary()),
        pa.array(["a", "b"]).dictionary_encode(),
    ],
    ids=lambda array: str(array.type),
)
def test_ordered_types_can_be_sequences(sequence: pa.Array) -> None:
    """The order in tombstone files must be the one that decides among stored rows."""
    table = remember(new_table(), ids(1, 2), sequence)
    assert late(table, ids(2, 1), sequence) == [True, False]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_only_instants_are_remembered_in_utc(zone: str | None) -> None:
    """Another writer may have the same instants in another zone, but times without a zone are
    none.
    """
    kind = pa.struct([("at", pa.timestamp("ms", zone))])
    expected = pa.struct([("at", pa.timestamp("ms", zone and "UTC"))])
    assert by(new_table(), ["id"], kind).schema.field(SEQUENCE).type == expected


def test_expired_tombstones_bind_no_columns() -> None:
    """The config keeps their columns after the last file has expired."""
    tombstones = Tombstones(("id",), "seq", "string")
    table = new_table()
    table = table.at(replace(table.manifest, config=config_entries(tombstones)))
    remembered = by(table, ["id"], pa.int64())
    assert (remembered.files, remembered.schema.field(SEQUENCE).type) == ((), pa.int64())


def test_only_named_columns_conflict() -> None:
    """Deletes are remembered by the key and the sequence, whatever other columns the table has."""
    table = new_table(SCHEMA.append(pa.field("more", pa.int64())))
    remembered = open_remembered(table, ["id"], "seq", pa.int64(), age=WEEK, now_ms=0)
    planned = plan(table, remembered, ids(1), pa.array([5]))
    schema = table.manifest.schema
    assert planned.entries(replace(table.manifest, schema=schema), 2)
    without_more = replace(schema, fields=schema.fields[:2])
    assert planned.entries(replace(table.manifest, schema=without_more), 2)
    without_sequence = replace(schema, fields=schema.fields[:1])
    with pytest.raises(RetryableConflictError, match="one of the columns 'id', 'seq'"):
        planned.entries(replace(table.manifest, schema=without_sequence), 2)


@pytest.mark.parametrize("is_root", [True, False])
def test_clones_read_their_origins_files(is_root: bool) -> None:
    """A shallow clone copies the manifest, whose tombstones lie in the directory of the origin, but
    not in one that has only data files.
    """
    table = remember(new_table(), ids(1), pa.array([5]))
    base = lance_stream.table.manifest.BasePath(0, table.store.uri, None, is_dataset_root=is_root)
    clone = new_table()
    manifest = replace(clone.manifest, base_paths=(base,), config=table.manifest.config)
    rows = ids(1, 2), pa.array([5, 5])
    if is_root:
        assert late(replace(clone, manifest=manifest), *rows) == [True, False]
    else:
        with pytest.raises(CorruptDataError, match="deletes is missing"):
            late(replace(clone, manifest=manifest), *rows)


def test_clones_keep_their_origins_deletes(tmp_path: Path) -> None:
    """The origin may forget them when they expire there, or may be deleted."""
    ds = lance_stream.create_dataset(str(tmp_path / "t"), SCHEMA)
    rules: dict[str, Any] = {
        "on": "id", "sequence_by": "seq", "delete_when": "seq = 5", "tombstones": WEEK,
    }  # fmt: skip
    ds = ds.upsert(pa.table({"id": [1, 2], "seq": [5, 4]}, schema=SCHEMA), **rules)
    clone = ds.shallow_clone(str(tmp_path / "clone"))
    shutil.rmtree(tmp_path / "t" / TOMBSTONES_DIRECTORY)
    clone = clone.upsert(pa.table({"id": [1, 3], "seq": [4, 4]}, schema=SCHEMA), **rules)
    assert sorted(clone.to_table()["id"].to_pylist()) == [2, 3]


def test_missing_files_explain_the_remedy() -> None:
    """Ignoring the loss would resurrect rows, so the user has to decide, and the error names the
    key to remove.
    """
    tombstones = Tombstones(("id",), "seq", "int64", (TombstoneFile("0" * 32 + ".arrow", 0, 1),))
    table = new_table()
    table = table.at(replace(table.manifest, config=config_entries(tombstones)))
    with pytest.raises(CorruptDataError, match=f"restore the file.*{CONFIG_KEY}"):
        late(table, ids(1), pa.array([5]))


def test_damaged_files_explain_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table would otherwise refuse every upsert without telling what can be done."""
    tombstones = Tombstones(("id",), "seq", "int64", (TombstoneFile("1" * 32 + ".arrow", 0, 1),))
    table = new_table()
    table = table.at(replace(table.manifest, config=config_entries(tombstones)))
    monkeypatch.setattr(tombstone_files, "read_bytes", lambda *_: b"")
    with pytest.raises(CorruptDataError, match="damaged") as raised:
        late(table, ids(1), pa.array([5]))
    assert any(CONFIG_KEY in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    "kind", ["another of the table", "longer", "longer in front", "shorter", "huge"]
)
def test_replaced_files_are_refused(kind: str, tmp_path: Path) -> None:
    """A backup tool may restore another file under the name, and deletes of the wrong rows would
    go unnoticed.
    """
    ds = lance_stream.create_dataset(tmp_path / "t", new_table().arrow_schema)
    other = the_file(tmp_path / "t", remember(ds.table, ids(2), pa.array([9]))).read_bytes()
    table = remember(ds.table, ids(1), pa.array([5]))
    file = the_file(tmp_path / "t", table)
    data = file.read_bytes()
    if kind == "another of the table":
        assert len(other) == len(data)
        file.write_bytes(other)
    elif kind == "huge":
        with file.open("r+b") as open_file:
            open_file.truncate(1 << 40)  # takes no room on the disk
    else:
        others = {"longer": data + b"x", "longer in front": b"x" + data, "shorter": data[:-1]}
        file.write_bytes(others[kind])
    tombstone_files.DELETE_FILES._files.clear()
    with pytest.raises(CorruptDataError, match=f"replaced or damaged.*{CONFIG_KEY}"):
        late(table, ids(1), pa.array([5]))
    file.write_bytes(data)
    assert late(table, ids(1), pa.array([5])) == [True]


def the_file(folder: Path, table: TableVersion) -> Path:
    tombstones = read_tombstones(table.manifest.config)
    assert tombstones is not None
    (only,) = tombstones.files
    return folder / tombstone_path(only.name)


DELETES = pa.record_batch(
    [pa.array([1, 2]), pa.array([5, 6]), pa.array([0, 0])],
    schema=by(new_table(), ["id"], pa.int64()).schema,
)


NAMES = DELETES.schema.names


def test_damaged_files_are_refused_or_read() -> None:
    """Whichever bytes are damaged, the reader returns rows of the expected number or raises
    CorruptDataError, never another error.
    """
    data = encode_deletes(Deletes(DELETES))
    assert decode_deletes(data, NAMES, 2).equals(DELETES)
    dice = np.random.default_rng(3)
    refused = 0
    for _ in range(300):
        damaged = bytearray(data[: dice.integers(len(data))] if dice.random() < 0.2 else data)
        for position in dice.integers(0, max(len(damaged), 1), 3):
            damaged[position : position + 1] = bytes([dice.integers(256)])
        try:
            assert decode_deletes(bytes(damaged), NAMES, 2).num_rows == 2
        except CorruptDataError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (DELETES.slice(1), "contains 1 rows, but the table's config states 2"),
        (DELETES.rename_columns(["key:x", "sequence", "deleted_at"]), "expected key:id"),
        (DELETES.drop_columns(["sequence"]), "expected key:id, sequence, deleted_at"),
        (pa.record_batch({"key:id": [1, None], "sequence": [5, 6], "deleted_at": [0, 0]}), "nulls"),
    ],
)
def test_files_with_other_contents_are_refused(rows: pa.RecordBatch, match: str) -> None:
    """The bytes may be valid Arrow and still not be the deletes that the config describes."""
    with pytest.raises(CorruptDataError, match=match):
        decode_deletes(encode_deletes(Deletes(rows)), NAMES, 2)


VIEW = pa.string_view()


@pytest.mark.parametrize(
    ("kind", "is_accepted"),
    [
        (pa.int64(), True),
        (pa.bool_(), True),
        (pa.binary(3), True),
        (pa.decimal128(9, 2), True),
        (pa.large_string(), True),
        (pa.struct({"a": pa.struct({"b": "string"}), "c": "date32"}), True),
        (pa.list_(pa.struct({"a": pa.large_list(pa.int8())})), True),
        (pa.list_(pa.int8(), 2), True),
        (pa.map_("string", pa.list_(pa.int8())), True),
        (pa.list_(pa.int8(), 0), False),
        (VIEW, False),
        (pa.run_end_encoded(pa.int32(), pa.int8()), False),
        (pa.struct({"a": "int8", "b": VIEW}), False),
        (pa.list_(VIEW), False),
        (pa.list_(VIEW, 2), False),
        (pa.large_list(VIEW), False),
        (pa.map_("string", VIEW), False),
    ],
)
def test_unbounded_value_types_are_refused(kind: pa.DataType, is_accepted: bool) -> None:
    """A few bytes of such a type can represent any number of values. Only remembered values may be
    nested; keys are not.
    """
    column = pa.nulls(2, kind)
    names = [*NAMES, "stores"]
    rows = DELETES.append_column("stores", pa.array([True, False]))
    rows = rows.append_column("value:v", column)
    try:
        data = encode_deletes(Deletes(rows))
    except pa.ArrowNotImplementedError:
        pytest.skip("an old Arrow, which cannot write the type")
    if is_accepted:
        assert decode_deletes(data, names, 2).schema.field("value:v").type == kind
    else:
        with pytest.raises(CorruptDataError, match="has values of '"):
            decode_deletes(data, names, 2)
    if pa.types.is_nested(kind) and not pa.types.is_struct(kind):
        as_key = DELETES.set_column(0, "key:id", column)
        with pytest.raises(CorruptDataError, match=r"has values of|nulls"):
            decode_deletes(encode_deletes(Deletes(as_key)), NAMES, 2)


def test_values_are_remembered_in_one_column() -> None:
    """A column with two values has none."""
    values = pa.record_batch(
        [pa.array([True, False]), *[pa.array([1, 2])] * 2], ["stores", "value:v", "value:v"]
    )
    rows = pa.RecordBatch.from_arrays(
        [*DELETES.columns, *values.columns], [*NAMES, *values.schema.names]
    )
    names = [*NAMES, STORES]
    assert decode_deletes(encode_deletes(Deletes(rows.select(range(5)))), names, 2).num_columns == 5
    with pytest.raises(CorruptDataError, match=r"has the columns .*'value:v', 'value:v'; expected"):
        decode_deletes(encode_deletes(Deletes(rows)), names, 2)


def test_keys_of_other_types_are_refused() -> None:
    """A key column that was replaced by one of another type makes the
    remembered keys meaningless.
    """
    texts = DELETES.set_column(0, "key:id", pa.array(["a", "b"]))
    with pytest.raises(InvalidInputError, match=f"with other types.*{CONFIG_KEY}"):
        cast_deletes(texts, DELETES.schema)


@pytest.mark.parametrize("events", [[], [(1, 5, False)], [(1, 5, False)] * 3])
def test_events_are_remembered_once(events: list[tuple[int, int, bool]]) -> None:
    """A replayed batch remembers its events again; the last of equal ones has the newest time."""
    others = [(1, 5, True), (1, 6, False), (2, 5, False)] if events else []
    every = [*events, *others]
    rows = pa.record_batch(
        {
            "id": pa.array([key for key, _, _ in every], pa.int64()),
            SEQUENCE: pa.array([sequence for _, sequence, _ in every], pa.int64()),
            DELETED_AT: pa.array(range(len(every)), pa.int64()),
            STORES: pa.array([stores for _, _, stores in every], pa.bool_()),
        }
    )
    remaining = Deletes(rows).last_per_sequence().rows
    expected = [*events[-1:], *others]
    columns = remaining.select(["id", SEQUENCE, STORES]).to_pydict().values()
    assert list(zip(*columns, strict=True)) == expected
    first = max(len(events) - 1, 0)
    assert remaining[DELETED_AT].to_pylist() == list(range(first, first + len(expected)))
