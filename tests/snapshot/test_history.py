"""What the history says about versions whose writers stated little."""

import uuid
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream import CorruptDataError, Dataset
from lance_stream.snapshot import history
from lance_stream.snapshot.history import VersionInfo, read_operation_kind, read_transaction
from lance_stream.snapshot.html import as_html
from lance_stream.snapshot.opening import open_tables_together
from lance_stream.table.changes.row_counts import ChangedRowCounts
from lance_stream.table.operations.rows import Append
from lance_stream.table.paths import transaction_path


@pytest.fixture
def ds() -> Dataset:
    """Two versions, of which the second one appends a row."""
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", pa.schema([("id", pa.int64())]))
    return ds.append(pa.table({"id": [1]}))


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ((1, 2, 3), ChangedRowCounts(1, 2, 3)),
        ((0, 0, 0), ChangedRowCounts(0, 0, 0)),
        ((None, 2, 3), None),
        ((1, None, 3), None),
        ((1, 2, None), None),
    ],
)
def test_row_counts_are_known_together(
    counts: tuple[int | None, ...], expected: ChangedRowCounts | None
) -> None:
    """A sum of some of them would be taken for the number of changes."""
    assert VersionInfo(1, None, None, None, {}, *counts).row_counts == expected


def test_transactions_are_in_manifests_or_files(ds: Dataset) -> None:
    """Some writers store both, and a cleanup by others may remove the file."""
    store, manifest = ds.table.store, ds.table.manifest
    path = transaction_path(manifest.transaction_file)
    in_file = replace(manifest, inline_transaction=None)
    nowhere = replace(in_file, transaction_file="")
    for version in (manifest, in_file):
        assert read_operation_kind(store, version) is Append
        transaction = read_transaction(store, version)
        assert transaction is not None
        assert isinstance(transaction.operation, Append)
    assert read_transaction(store, nowhere) is None
    store.write(path, b"\xff")
    assert read_operation_kind(store, manifest) is Append
    with pytest.raises(CorruptDataError) as raised:
        read_transaction(store, in_file)
    assert raised.value.__notes__ == [f"transaction file {path!r}"]
    store.delete(path)
    assert read_transaction(store, in_file) is None
    assert read_transaction(store, manifest) == transaction


@pytest.mark.parametrize("has_transaction", [True, False])
def test_unknown_operations_have_no_name(ds: Dataset, has_transaction: bool) -> None:
    """The numbers of rows are those of the manifest."""
    manifest = ds.table.manifest
    if not has_transaction:
        manifest = replace(manifest, inline_transaction=None, transaction_file="")
    info = history._summarize(ds.table.at(manifest), ds.table.log.read(1), {})
    assert info.operation == ("Append" if has_transaction else None)
    assert (info.version, info.num_rows, dict(info.properties)) == (2, 1, {})
    assert info.rows_deleted == 0
    assert list(history._walk(ds.table, [], None, lambda *_: 0)) == []


@pytest.mark.parametrize(
    ("num_columns", "num_rows", "texts"),
    [
        (1, 0, ["0 rows in 0 fragments"]),
        (50, 1, ["1 row in 1 fragment<", ">c49<"]),
        (51, 2, ["2 rows in 1 fragment<", ">c49<", "<tr><td colspan='3'>and 1 more</td></tr>"]),
    ],
)
def test_pages_count_what_they_omit(num_columns: int, num_rows: int, texts: list[str]) -> None:
    """A notebook shows a wide table without flooding the page."""
    rows = pa.table({f"c{number}": range(num_rows) for number in range(num_columns)})
    rows = rows.cast(pa.schema([(name, pa.int64()) for name in rows.column_names]))
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", rows.schema)
    ds = ds.append(rows) if num_rows else ds
    html = as_html(ds.table, ds.schema)
    for text in texts:
        assert text in html
    assert ("more</td>" in html) == (num_columns > 50)
    assert ">c50<" not in html


def test_pages_show_no_control_characters() -> None:
    """A name could otherwise hide, or change the page around it."""
    schema = pa.schema([("a\x1b\u202eb<i>", pa.int64())])
    ds = lance_stream.create_dataset(f"memory://{uuid.uuid4()}/t", schema)
    assert "<td>a\N{MIDDLE DOT}\N{MIDDLE DOT}b&lt;i&gt;</td>" in as_html(ds.table, ds.schema)


def test_no_tables_are_opened_together(tmp_path: Path) -> None:
    """A group without tables needs no manifest store."""
    assert open_tables_together([]) == []
    options = {"manifest_store": f"sqlite://{tmp_path}/manifests.db"}
    uris = [tmp_path / name for name in "ab"]
    for uri in uris:
        lance_stream.create_dataset(uri, pa.table({"id": [1]}), storage_options=options)
    tables = open_tables_together(uris, options)
    assert [(table.uri, table.version) for table in tables] == [(str(uri), 1) for uri in uris]
