"""The transaction of each operation that we commit, field by field compared with pylance's.

Both programs do the same to copies of one table. Other programs learn from transactions what a
version did: a field that differs from the reference's has its reason here, or is a fault.
"""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

import lance_stream
from lance_stream._proto import transaction_pb2
from lance_stream.snapshot.opening import open_newest
from lance_stream.table.lineage.row_ids import decode_row_ids
from lance_stream.table.lineage.row_versions import decode_row_versions
from lance_stream.table.messages import wire
from lance_stream.table.operations.columns import DataOverlay, DataReplacement, Merge, Project
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.moved_rows import ReserveFragments, Rewrite
from lance_stream.table.operations.operation import FIELD_NAMES, OPERATIONS, SupportedOperation
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.versions import (
    Clone,
    CreateIndex,
    Restore,
    UpdateBases,
    UpdateMemWalState,
)
from lance_stream.table.paths import transaction_path

pytestmark = pytest.mark.oracle

Flat = dict[str, Any]
Act = Callable[[str], Any]

NORMALIZED: Mapping[str, str] = {
    "uuid": "of the transaction, random",
    "files.path": "of a new file, random",
    "files.file_size_bytes": "of a new file: each program encodes in its own way",
    "deletion_file.id": "of a new deletion file, random",
    "new_indices.uuid.uuid": "random",
    "new_indices.created_at": "the time",
    "ref_path": "of the copy",
}
"""Fields that differ in any two commits, by the end of their path; each is compared as 'new'."""

DIFFERENCES: Mapping[str, str] = {
    "old lineage": (
        "the row ids and versions of fragments that the table has already stand in its manifest, "
        "and may take megabytes: not repeated"
    ),
    "created versions": (
        "we state them for moved rows, whose old fragments a later reader would have to search"
    ),
    "no moved rows": "pylance states an empty sequence of row ids for a fragment of new rows",
    "key filter": (
        "we state inserted keys exactly, also without a declared primary key and beside an index "
        "on it, so that two concurrent upserts of ours never insert one key twice"
    ),
    "unchanged key": "an upsert does not change the key: indices on it stay valid",
    "null columns": "pylance omits missing columns from the file; we write nulls",
    "field ids": "an overwrite never reuses the id of another column",
    "ledger": "tells that a restored version keeps the batches committed since",
    "old rows not null": (
        "an append of rows in the old type must not follow a cast: the reference drops its values"
    ),
    "address indices": (
        "pylance rewrites indices of row addresses; we take the fragments out of their coverage"
    ),
    "rewritten fields": (
        "we name the fields whose indices lose the fragment, as pylance does if it moves rows"
    ),
}
"""What differs on purpose, and why."""

NOT_COMMITTED: Mapping[type[SupportedOperation], str] = {
    ReserveFragments: "a compaction states ids that are free when it commits",
    DataReplacement: "an Update states which rows changed; this does not",
    UpdateMemWalState: "we do not write to write-ahead logs",
    UpdateBases: "files are stored in the table's own directory",
    DataOverlay: "readers of the format in use refuse overlays",
}


def rows(ids: Any, x: str = "old") -> pa.Table:
    ids = list(ids)
    columns = {"id": pa.array(ids, pa.int64()), "x": [f"{x} {row_id}" for row_id in ids]}
    return pa.table({**columns, "y": pa.array(ids, pa.int64())})


def keyed(table: pa.Table) -> pa.Table:
    key = pa.field(
        "id", pa.int64(), nullable=False, metadata={"lance-schema:unenforced-primary-key": "true"}
    )
    return table.cast(pa.schema([key, *list(table.schema)[1:]]))


def merge(uri: str) -> Any:
    return lance.dataset(uri).merge_insert("id").when_matched_update_all()


ours, theirs = lance_stream.open_dataset, lance.dataset
NEW, CHANGED = rows([20, 21], "new"), rows([3, 4, 30], "new")
ALL_OF_ONE = rows(range(10, 16), "new")
SOME_COLUMNS = rows([3, 4]).select(["id", "y"])
DELETING = pa.table({"id": pa.array([3, 4], pa.int64())})
DOUBLE = pa.field("z", pa.float64())
LINEAGE = ("row_ids", "last_updated_at_versions", "created_at_versions")
OLD_LINEAGE = [f"updated_fragments.inline_{name}" for name in LINEAGE]
OLD_LINEAGE_OF_GROUPS = [f"groups.old_fragments.inline_{name}" for name in LINEAGE]
MOVED = {
    "created versions": ["new_fragments.inline_created_at_versions"],
    "key filter": ["inserted_rows"],
    "unchanged key": ["fields_for_preserving_frag_bitmap"],
}


@dataclass(frozen=True)
class Case:
    """One operation, done by both.

    Attributes:
        operation: The expected class.
        name: What is special about it.
        ours: What we do.
        theirs: What pylance does.
        table: How the table was created: stable, key, indexed, or nothing.
        differs: The paths of the fields that differ, by their reason in DIFFERENCES.
    """

    operation: type[SupportedOperation]
    name: str
    ours: Act
    theirs: Act
    table: str = "stable"
    differs: Mapping[str, list[str]] = field(default_factory=dict)


CASES = [
    Case(
        Overwrite,
        "create",
        lambda uri: lance_stream.create_dataset(uri, NEW),
        lambda uri: lance.write_dataset(NEW, uri, enable_stable_row_ids=True),
        table="none",
    ),
    Case(
        Append,
        "rows",
        lambda uri: ours(uri).append(NEW),
        lambda uri: theirs(uri).insert(NEW),
    ),
    Case(
        Append,
        "rows without stable ids",
        lambda uri: ours(uri).append(NEW),
        lambda uri: theirs(uri).insert(NEW),
        table="unstable",
    ),
    Case(
        Append,
        "some columns",
        lambda uri: ours(uri).append(NEW.select(["id"])),
        lambda uri: theirs(uri).insert(NEW.select(["id"])),
        differs={
            "null columns": ["fragments.files.fields", "fragments.files.column_indices"],
        },
    ),
    Case(
        Overwrite,
        "same columns",
        lambda uri: ours(uri).overwrite(NEW),
        lambda uri: lance.write_dataset(NEW, uri, mode="overwrite"),
    ),
    Case(
        Overwrite,
        "other columns",
        lambda uri: ours(uri).overwrite(pa.table({"z": [1.5]})),
        lambda uri: lance.write_dataset(pa.table({"z": [1.5]}), uri, mode="overwrite"),
        differs={"field ids": ["fragments.files.fields", "schema.id"]},
    ),
    Case(
        Delete,
        "rows of two fragments, all of one",
        lambda uri: ours(uri).delete("id >= 9"),
        lambda uri: theirs(uri).delete("id >= 9"),
        differs={"old lineage": OLD_LINEAGE},
    ),
    Case(
        Delete,
        "rows without stable ids",
        lambda uri: ours(uri).delete("id >= 9"),
        lambda uri: theirs(uri).delete("id >= 9"),
        table="unstable",
    ),
    Case(
        Delete,
        "rows again",
        lambda uri: ours(uri).delete("id < 2").delete("id = 5"),
        lambda uri: (theirs(uri).delete("id < 2"), theirs(uri).delete("id = 5")),
        differs={"old lineage": OLD_LINEAGE},
    ),
    Case(
        Update,
        "upsert",
        lambda uri: ours(uri).upsert(CHANGED, on="id"),
        lambda uri: merge(uri).when_not_matched_insert_all().execute(CHANGED),
        differs={**MOVED, "old lineage": OLD_LINEAGE},
    ),
    Case(
        Update,
        "upsert without stable ids",
        lambda uri: ours(uri).upsert(CHANGED, on="id"),
        lambda uri: merge(uri).when_not_matched_insert_all().execute(CHANGED),
        table="unstable",
        differs={name: MOVED[name] for name in ("key filter", "unchanged key")},
    ),
    Case(
        Update,
        "upsert of all rows of a fragment",
        lambda uri: ours(uri).upsert(ALL_OF_ONE, on="id"),
        lambda uri: merge(uri).when_not_matched_insert_all().execute(ALL_OF_ONE),
        differs=MOVED,
    ),
    Case(
        Update,
        "upsert of new keys",
        lambda uri: ours(uri).upsert(NEW, on="id"),
        lambda uri: merge(uri).when_not_matched_insert_all().execute(NEW),
        differs={
            "no moved rows": ["new_fragments.inline_row_ids"],
            "key filter": MOVED["key filter"],
            "unchanged key": MOVED["unchanged key"],
        },
    ),
    Case(
        Update,
        "upsert by the primary key",
        lambda uri: ours(uri).upsert(keyed(CHANGED), on="id"),
        lambda uri: merge(uri).when_not_matched_insert_all().execute(keyed(CHANGED)),
        table="key",
        differs={**MOVED, "old lineage": OLD_LINEAGE},
    ),
    Case(
        Update,
        "upsert beside indices",
        lambda uri: ours(uri).upsert(CHANGED, on="id"),
        lambda uri: merge(uri).when_not_matched_insert_all().execute(CHANGED),
        table="indexed",
        differs={**MOVED, "old lineage": OLD_LINEAGE},
    ),
    Case(
        Update,
        "upsert of some columns",
        lambda uri: ours(uri).upsert(SOME_COLUMNS, on="id"),
        lambda uri: merge(uri).execute(SOME_COLUMNS),
        table="indexed",  # without an index, pylance moves the rows
        differs={
            "old lineage": OLD_LINEAGE,
            "rewritten fields": ["fields_for_preserving_frag_bitmap"],
            "key filter": ["inserted_rows"],
        },
    ),
    Case(
        Update,
        "update of a column in place",
        lambda uri: ours(uri).update({"y": "y"}, where="id IN (3, 4)"),
        lambda uri: merge(uri).execute(SOME_COLUMNS),
        table="indexed",
        differs={
            "old lineage": OLD_LINEAGE,
            "rewritten fields": ["fields_for_preserving_frag_bitmap"],
        },
    ),
    Case(
        Update,
        "deletes by key",
        lambda uri: ours(uri).upsert(DELETING, on="id", delete_when="true"),
        lambda uri: theirs(uri).merge_insert("id").when_matched_delete().execute(DELETING),
        differs={
            "old lineage": OLD_LINEAGE,
            "key filter": ["inserted_rows"],
            "unchanged key": ["fields_for_preserving_frag_bitmap"],
        },
    ),
    Case(
        Rewrite,
        "compaction",
        lambda uri: ours(uri).delete("id = 3").compact(),
        lambda uri: (theirs(uri).delete("id = 3"), theirs(uri).optimize.compact_files()),
        differs={"old lineage": OLD_LINEAGE_OF_GROUPS},
    ),
    Case(
        Rewrite,
        "compaction without stable ids",
        lambda uri: ours(uri).compact(),
        lambda uri: theirs(uri).optimize.compact_files(),
        table="unstable",
    ),
    Case(
        Rewrite,
        "compaction beside indices",
        lambda uri: ours(uri).compact(),
        lambda uri: theirs(uri).optimize.compact_files(),
        table="indexed",
        differs={
            "old lineage": OLD_LINEAGE_OF_GROUPS,
            "address indices": ["rewritten_indices"],
        },
    ),
    Case(
        Merge,
        "a column of nulls",
        lambda uri: ours(uri).add_columns(DOUBLE),
        lambda uri: theirs(uri).add_columns(DOUBLE),
    ),
    Case(
        Merge,
        "a computed column",
        lambda uri: ours(uri).add_columns({"z": "y + 1"}),
        lambda uri: theirs(uri).add_columns({"z": "y + 1"}),
    ),
    Case(
        Merge,
        "a cast",
        lambda uri: ours(uri).alter_columns({"path": "x", "data_type": pa.large_string()}),
        lambda uri: theirs(uri).alter_columns({"path": "x", "data_type": pa.large_string()}),
        differs={"old rows not null": ["preserves_nullability"]},
    ),
    Case(
        Project,
        "a dropped column",
        lambda uri: ours(uri).drop_columns("y"),
        lambda uri: theirs(uri).drop_columns(["y"]),
    ),
    Case(
        Project,
        "a renamed column",
        lambda uri: ours(uri).rename_columns({"y": "w"}),
        lambda uri: theirs(uri).alter_columns({"path": "y", "name": "w"}),
    ),
    Case(
        Project,
        "a column that may no longer be null",
        lambda uri: ours(uri).alter_columns({"path": "y", "nullable": False}),
        lambda uri: theirs(uri).alter_columns({"path": "y", "nullable": False}),
    ),
    Case(
        Restore,
        "the first version",
        lambda uri: ours(uri).restore(1),
        lambda uri: lance.dataset(uri, version=1).restore(),
        differs={"ledger": ["transaction_properties"]},
    ),
    Case(
        UpdateConfig,
        "config",
        lambda uri: ours(uri).update_config({"a": "1"}).update_config({"a": None, "b": "2"}),
        lambda uri: (
            theirs(uri).update_config({"a": "1"}),
            theirs(uri).update_config({"a": None, "b": "2"}),
        ),
    ),
    Case(
        UpdateConfig,
        "metadata of a column",
        lambda uri: ours(uri).update_metadata(fields={"y": {"unit": "EUR"}}),
        lambda uri: theirs(uri).update_field_metadata({"y": {"unit": "EUR"}}),
    ),
    Case(
        UpdateConfig,
        "metadata of the table",
        lambda uri: ours(uri).update_metadata({"a": "1"}, replace=True),
        lambda uri: theirs(uri).update_metadata({"a": "1"}, replace=True),
    ),
    Case(
        CreateIndex,
        "indices brought up to date",
        lambda uri: ours(uri).append(NEW).optimize_indices(),
        lambda uri: (theirs(uri).insert(NEW), theirs(uri).optimize.optimize_indices()),
        table="indexed",
    ),
    Case(
        Clone,
        "a shallow clone",
        lambda uri: shutil.move(ours(f"{uri}/../base").shallow_clone(f"{uri}-c").uri, uri),
        lambda uri: shutil.move(theirs(f"{uri}/../base").shallow_clone(f"{uri}-c", 2).uri, uri),
        table="none",
    ),
    Case(
        Clone,
        "a branch",
        lambda uri: ours(uri).branches.create("dev"),
        lambda uri: theirs(uri).create_branch("dev"),
    ),
]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives a table of two fragments and versions of a kind."""
    folder = tmp_path_factory.mktemp("tables")

    @cache
    def table(kind: str) -> Path:
        path = folder / kind
        first, second = rows(range(10)), rows(range(10, 16))
        if kind == "key":
            first, second = keyed(first), keyed(second)
        ds = lance.write_dataset(first, str(path), enable_stable_row_ids=kind != "unstable")
        ds.insert(second)
        if kind == "indexed":
            ds.create_scalar_index("id", "BTREE")
            ds.create_scalar_index("x", "BITMAP")
        return path

    return table


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.operation.__name__}: {case.name}")
def test_transactions_differ_only_where_documented(
    case: Case, tables: Callable[[str], Path], tmp_path: Path
) -> None:
    """pylance resolves conflicts by these fields, so each difference needs a reason."""
    shutil.copytree(tables("stable"), tmp_path / "base")
    base_files = frozenset(path.name for path in (tables("stable") / "data").iterdir())
    uris = [str(tmp_path / name) for name in ("ours", "theirs")]
    for uri, act in zip(uris, (case.ours, case.theirs), strict=True):
        if case.table != "none":
            shutil.copytree(tables(case.table), uri)
            base_files = frozenset(path.name for path in (tables(case.table) / "data").iterdir())
        act(uri)
    branch = "/tree/dev" if case.name == "a branch" else ""
    actual, expected = (flat(transaction_of(uri + branch), base_files) for uri in uris)
    differing = {
        path.replace("[]", "")
        for path in actual.keys() | expected.keys()
        if actual.get(path) != expected.get(path)
    }
    documented = [path for paths in case.differs.values() for path in paths]
    prefix = FIELD_NAMES[case.operation]
    full = {path if path == "transaction_properties" else f"{prefix}.{path}" for path in documented}
    assert differing == full, [(p, actual.get(p), expected.get(p)) for p in sorted(differing)]
    ds = lance.dataset(uris[0] + branch)
    read = ds.read_transaction(ds.version)
    assert type(read.operation).__name__ in (case.operation.__name__, "BaseOperation")


def transaction_of(uri: str) -> transaction_pb2.Transaction:
    """Return the newest transaction, which is stored twice."""
    table = open_newest(uri)
    data = table.manifest.inline_transaction
    assert data is not None
    assert table.store.read(transaction_path(table.manifest.transaction_file)) == data
    return transaction_pb2.Transaction.FromString(data)


def flat(transaction: transaction_pb2.Transaction, files_of: frozenset[str]) -> Flat:
    """Return the values of a message by path; what is repeated has a list at one path."""
    values: Flat = {}
    for path, value in _walk(transaction, ""):
        values.setdefault(path, []).append(_normalized(path, value, files_of))
    return values


def _walk(message: Message, path: str) -> Iterator[tuple[str, Any]]:
    if unknown := wire.unknown_fields(message):
        yield f"{path}unknown", unknown
    for descriptor, value in message.ListFields():
        name = f"{path}{descriptor.name}"
        if descriptor.name == "inserted_rows" or descriptor.name == "rewritten_indices":
            yield name, str(value)
        elif _is_map(descriptor):
            yield name, {key: str(entry) for key, entry in value.items()}
        elif descriptor.name.startswith("inline_"):
            yield name, _lineage(message, descriptor.name, value)
        elif descriptor.type != FieldDescriptor.TYPE_MESSAGE:
            yield name, list(value) if _is_repeated(descriptor) else value
        else:
            parts = value if _is_repeated(descriptor) else [value]
            if descriptor.name == "update_entries":  # pylance writes a hash map
                parts = sorted(parts, key=lambda entry: entry.key)
            for part in parts:
                yield f"{name}[]", "present"
                yield from _walk(part, f"{name}.")


def _lineage(fragment: Any, name: str, value: bytes) -> list[int]:
    """Return row ids or row versions, which may be encoded in several ways."""
    ids = decode_row_ids(fragment.inline_row_ids)
    if name == "inline_row_ids":
        return list(ids.to_array())
    return list(decode_row_versions(value, len(ids)).to_array())


def _is_repeated(descriptor: FieldDescriptor) -> bool:
    return bool(descriptor.is_repeated)


def _is_map(descriptor: FieldDescriptor) -> bool:
    entry = descriptor.message_type
    return entry is not None and bool(entry.GetOptions().map_entry)


def _normalized(path: str, value: Any, files_of: frozenset[str]) -> Any:
    if path.endswith("files.path") and value in files_of:
        return value
    return "new" if path.endswith(tuple(NORMALIZED)) else value


def test_every_committed_operation_is_compared() -> None:
    """A new operation must not be committed without a comparison."""
    compared = {case.operation for case in CASES}
    assert not compared & NOT_COMMITTED.keys()
    assert compared | NOT_COMMITTED.keys() == set(OPERATIONS.values())
    package = Path(lance_stream.__file__).parent
    text = "".join(
        path.read_text() for path in package.rglob("*.py") if path.name != "operations.py"
    )
    assert [value.__name__ for value in NOT_COMMITTED if f" {value.__name__}(" in text] == []
    assert {reason for case in CASES for reason in case.differs} == DIFFERENCES.keys()
