"""What the operation of an upsert says: which fragments it changes, and which columns of them."""

import uuid
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyroaring import BitMap

import lance_stream
from lance_stream.keys.key_words import hash_keys
from lance_stream.snapshot.history import read_transaction
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.operations.rows import Update, UpdateMode
from lance_stream.upsert.rules import UpsertRules
from lance_stream.upsert.upsert import upsert

SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("x", pa.int64()), ("text", pa.string())])
RULES = UpsertRules(("id",), delete_when="x = -1")
SOME = [*range(0, 100, 4)]


def rows(ids: Sequence[int], x: int) -> pa.Table:
    columns = {"id": list(ids), "x": [x] * len(ids), "text": ["long " * 500] * len(ids)}
    return pa.table(columns, schema=SCHEMA)


def of_x(ids: Sequence[int], x: int) -> pa.Table:
    return rows(ids, x).drop_columns(["text"])


class Summary(NamedTuple):
    """The parts of an operation that the upsert decides."""

    removed: tuple[int, ...] = ()
    updated: tuple[int, ...] = ()
    new: tuple[int, ...] = ()  # the number of their rows
    modified: tuple[str, ...] = ()
    preserving: tuple[str, ...] = ("x", "text")
    offsets: Mapping[int, list[int]] = MappingProxyType({})
    inserted: tuple[int, ...] = ()


@pytest.fixture
def table() -> TableVersion:
    """Fragments of 100, 100 and 2 rows, whose rows are moved at some cost."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", SCHEMA)
    for ids in range(100), range(100, 200), range(200, 202):
        ds = ds.append(rows(ids, 0))
    return ds.table


@pytest.mark.parametrize(
    ("data", "summary"),
    [
        (of_x(SOME, 7), Summary((), (0,), (), ("x",), ("x",), {0: SOME})),
        (rows(SOME, 7), Summary((), (0,), (25,))),
        (of_x([300, 301], 7), Summary((), (), (2,), (), ("x",), {}, (300, 301))),
        (of_x([3, 104], -1), Summary((), (0, 1), (), (), ("x",))),
        (of_x([200, 201], -1), Summary((2,), (), (), (), ("x",))),
        (of_x([200, 201, 3], -1), Summary((2,), (0,), (), (), ("x",))),
        (
            pa.concat_tables([of_x(SOME, 7), of_x([105, 200, 201], -1), of_x([300], 7)]),
            Summary((2,), (0, 1), (1,), ("x",), ("x",), {0: SOME}, (300,)),
        ),
    ],
    ids=["stay", "move", "insert", "delete", "delete all", "delete both", "everything"],
)
def test_operations_say_what_changed(table: TableVersion, data: pa.Table, summary: Summary) -> None:
    """Rivals and indices rely on it: an index goes on to cover what an operation leaves out."""
    result = upsert(table, data, RULES)
    assert result.is_new
    transaction = read_transaction(table.store, result.table.manifest)
    assert transaction is not None
    operation = transaction.operation
    assert isinstance(operation, Update)
    names = {field.id: field.name for field in table.schema.fields}
    assert operation.inserted_rows is not None
    assert summary == Summary(
        operation.removed_fragment_ids,
        tuple(sorted(fragment.id for fragment in operation.updated_fragments)),
        tuple(fragment.physical_rows for fragment in operation.new_fragments),
        tuple(names[field] for field in operation.fields_modified),
        tuple(names[field] for field in operation.fields_for_preserving_frag_bitmap),
        {
            fragment_id: list(BitMap.deserialize(offsets))
            for fragment_id, offsets in operation.updated_fragment_offset_bitmaps.items()
        },
        summary.inserted,
    )
    is_in_place = operation.update_mode is UpdateMode.REWRITE_COLUMNS
    assert is_in_place == bool(summary.modified)
    hashes = hash_keys([pa.array(summary.inserted, pa.int64())]).tolist()
    assert sorted(operation.inserted_rows.key_hashes or ()) == sorted(hashes)
    assert [names[field] for field in operation.inserted_rows.field_ids] == ["id"]


def test_upserts_without_changes_plan_nothing(table: TableVersion) -> None:
    """A delete of a key that the table lacks makes no version."""
    result = upsert(table, of_x([500], -1), RULES)
    assert (result.is_new, result.table.version) == (False, table.version)
