from dataclasses import replace

import pytest

from lance_stream._proto import table_pb2
from lance_stream.errors import CorruptDataError, UnsupportedFeatureError
from lance_stream.table.fragments.fragment import (
    MAX_FRAGMENT_ID,
    DataFile,
    DeletionFile,
    DeletionFileType,
    ExternalFile,
    Fragment,
    LineageColumn,
    columns_of_files,
    data_file_from_proto,
    decode_fragment,
    encode_fragment,
    fragment_from_proto,
    fragment_to_proto,
    has_overlays,
    without_counts,
)
from lance_stream.table.messages import wire

DATA_FILE = DataFile("a.lance", (0, 1, -2), (0, -1, 2), (2, 2), size_bytes=99, base_id=0)
HIDDEN = DataFile("hidden.lance", (-3,), (0,), (2, 2))
DELETION_FILE = DeletionFile(DeletionFileType.BITMAP, 7, (1 << 64) - 1, 3, base_id=1)


@pytest.mark.parametrize(
    "fragment",
    [
        Fragment(0, (), 0),
        Fragment((1 << 32) - 1, (DATA_FILE,), 10, DELETION_FILE, b"", b"\x01", b"\x02"),
        Fragment(1, (DATA_FILE, DATA_FILE), 10, row_ids=ExternalFile("x", 0, 0)),
        Fragment(2, (), 10, None, *(LineageColumn(value, None) for value in (-3, -5, -4))),
        Fragment(2, (DATA_FILE, HIDDEN), 10, None, LineageColumn(-3, HIDDEN), b"\x01", b"\x02"),
        Fragment(3, (), 1, None, b"r", ExternalFile("u", 1, 2), ExternalFile("c", 3, 4)),
    ],
)
def test_fragments_round_trip(fragment: Fragment) -> None:
    """Fragments are decoded and encoded again whenever an operation touches them."""
    assert decode_fragment(encode_fragment(fragment)) == fragment


LONG = bytes(range(256)) * 20


@pytest.mark.parametrize(
    "fragment",
    [
        Fragment(1, (DATA_FILE,), 10, DELETION_FILE, LONG, LONG[1:], LONG[2:]),
        Fragment(1, (DATA_FILE,), 10, None, LONG, b"", None),
        Fragment(1, (DATA_FILE,), 10, None, None, None, LONG),
        Fragment(1, (DATA_FILE, HIDDEN), 10, None, LineageColumn(-3, HIDDEN), LONG, LONG),
        Fragment(1, (DATA_FILE,), 10, None, LONG, unknown=wire.frame(200, LONG)),
    ],
)
def test_long_sequences_equal_protobuf_bytes(fragment: Fragment) -> None:
    """Long sequences bypass protobuf for speed, and other readers must not notice."""
    data = encode_fragment(fragment)
    assert data == wire.serialize(fragment_to_proto(fragment))
    assert decode_fragment(data) == fragment


@pytest.mark.parametrize(
    "fields",
    [
        [wire.frame(5, LONG), wire.frame(5, b"later")],
        [wire.frame(5, LONG), wire.frame(6, table_pb2.ExternalFile(path="x").SerializeToString())],
        [wire.frame(6, b""), wire.frame(5, LONG)],
        [wire.frame(12, b""), wire.frame(7, LONG)],
        [wire.frame(9, LONG), wire.frame(200, b"unknown"), bytes((0x08, 3)), wire.frame(5, b"ids")],
    ],
)
def test_foreign_long_messages_read_like_protobuf(fields: list[bytes]) -> None:
    """Other writers may order or repeat fields, where the last one wins."""
    message = table_pb2.DataFragment.FromString(b"".join(fields))
    assert decode_fragment(b"".join(fields)) == fragment_from_proto(message)


@pytest.mark.parametrize("field", [bytes((5 << 3, 1)), bytes((5 << 3 | 2, 200, 1)), b"\x07"])
def test_damage_in_long_messages_is_reported(field: bytes) -> None:
    """The fast path must not accept what protobuf refuses."""
    with pytest.raises(CorruptDataError):
        decode_fragment(wire.frame(9, LONG) + field)


@pytest.mark.parametrize("version", [(0, 2), (0, 3), (2, 0), (2, 1), (2, 2), (2, 3)])
def test_file_version_spellings_are_preserved(version: tuple[int, int]) -> None:
    """Version 2.0 has two spellings in stored files, and rewriting must not change them."""
    fragment = Fragment(0, (DataFile("a", (0,), (0,), version),), 1)
    assert decode_fragment(encode_fragment(fragment)).files[0].file_version == version


def test_unknown_fields_survive_in_all_parts() -> None:
    """A later release's fields must survive a rewrite by this one."""
    future = wire.frame(200, b"later")
    message = table_pb2.DataFragment(physical_rows=5)
    message.files.add(path="a").MergeFromString(future)
    message.deletion_file.MergeFromString(future)
    message.MergeFromString(future)
    data = message.SerializeToString()
    fragment = decode_fragment(data)
    assert (fragment.unknown, fragment.files[0].unknown) == (future, future)
    again = encode_fragment(fragment)
    assert table_pb2.DataFragment.FromString(again) == message


def test_data_overlays_are_preserved_and_reported() -> None:
    """Overlays change values, so a reader that does not know them must be able to refuse."""
    message = table_pb2.DataFragment(id=4, physical_rows=5)
    message.overlays.add(committed_version=9).data_file.path = "overlay.lance"
    fragment = decode_fragment(message.SerializeToString())
    assert has_overlays(fragment)
    assert not has_overlays(Fragment(0, (), 0, unknown=wire.frame(200, b"")))
    assert table_pb2.DataFragment.FromString(encode_fragment(fragment)) == message


def test_legacy_files_need_no_column_indices() -> None:
    """Files of version 0.1 place columns by the position of their field."""
    file = data_file_from_proto(table_pb2.DataFile(path="a", fields=[3, -2, 5]))
    assert file.column_indices == ()
    assert file.column_of() == {3: 0, 5: 2}
    lost = data_file_from_proto(table_pb2.DataFile(path="a", fields=[-2, 5]))
    with pytest.raises(UnsupportedFeatureError, match=r"0\.1 is no longer used"):
        lost.column_of()


@pytest.mark.parametrize(
    ("message", "what"),
    [
        (table_pb2.DataFragment(id=1 << 32), "32 bits"),
        (table_pb2.DataFragment(physical_rows=(1 << 32) + 1), "32 bits"),
        (
            table_pb2.DataFragment(
                physical_rows=5, deletion_file=table_pb2.DeletionFile(num_deleted_rows=6)
            ),
            "6 deleted rows",
        ),
        (
            table_pb2.DataFragment(files=[table_pb2.DataFile(fields=[1], file_major_version=2)]),
            "0 column indices",
        ),
        (
            table_pb2.DataFragment(files=[table_pb2.DataFile(fields=[1], column_indices=[1, 2])]),
            "2 column indices",
        ),
    ],
)
def test_contradictory_fragments_are_corrupt(message: table_pb2.DataFragment, what: str) -> None:
    """A fragment that contradicts itself has no reading that could be right."""
    with pytest.raises(CorruptDataError, match=what):
        decode_fragment(message.SerializeToString())


def test_unknown_deletion_file_types_are_refused() -> None:
    """Deletions that cannot be read would show deleted rows."""
    with pytest.raises(UnsupportedFeatureError, match="type 2"):
        decode_fragment(b"\x1a\x02\x08\x02")


def test_fields_and_columns_occur_once() -> None:
    """A field that is in two columns, or a column of two fields, has no right value."""
    for field_ids, columns in (((1, 2, 1), (0, 1, 2)), ((1, 2), (0, 0))):
        with pytest.raises(CorruptDataError, match=r"'a' twice: fields \[1, 2"):
            DataFile("a", field_ids, columns, (2, 2)).column_of()
    unused = DataFile("a", (-2, 1, -2), (-1, -1, 2), (2, 2))
    assert unused.column_of() == {1: -1}
    assert DataFile("a", (), (), (2, 2)).column_of() == {}


def test_the_last_file_of_fields_counts() -> None:
    """Lance 0.10 left the old values in the file before; parts of a struct are in all of them."""
    files = (DataFile("a", (0, 1, 2), (0, 1, 2), (2, 0)), DataFile("b", (0, 2), (0, 1), (2, 0)))
    assert columns_of_files(files) == [{1: 1}, {0: 0, 2: 1}]
    assert columns_of_files(files, shared={0}) == [{0: 0, 1: 1}, {0: 0, 2: 1}]


@pytest.mark.parametrize(
    ("field_ids", "columns", "column"),
    [
        ((-3,), (0,), ((-3,), (0,))),
        ((1, -3), (0, 5), ((-3,), (5,))),
        ((-3, 1, -3), (0, 5, 6), None),
        ((1, -3), (), None),
    ],
)
def test_hidden_columns_are_found_in_files(
    field_ids: tuple[int, ...],
    columns: tuple[int, ...],
    column: tuple[tuple[int, ...], tuple[int, ...]] | None,
) -> None:
    """A file that does not say which column it is stays whole, and its reader refuses it."""
    file = DataFile("a", field_ids, columns, (2, 2))
    lineage = LineageColumn.among(-3, (DATA_FILE, file))
    assert lineage.file is not None
    expected = (field_ids, columns) if column is None else column
    assert (lineage.file.field_ids, lineage.file.column_indices) == expected
    assert LineageColumn.among(-3, (DATA_FILE,)) == LineageColumn(-3, None, 0)
    assert LineageColumn.among(-3, (file, file)) == LineageColumn(-3, None, 2)


def test_fragments_can_be_full() -> None:
    """Row offsets have 32 bits, so the last one is that of row 2^32."""
    message = table_pb2.DataFragment(
        id=MAX_FRAGMENT_ID,
        physical_rows=1 << 32,
        deletion_file=table_pb2.DeletionFile(num_deleted_rows=1 << 32),
    )
    fragment = decode_fragment(message.SerializeToString())
    assert (fragment.id, fragment.num_live_rows) == (MAX_FRAGMENT_ID, 0)


def test_counts_are_left_out() -> None:
    """Old writers' counts may be wrong; everything else stays as it is."""
    whole = Fragment(1, (DATA_FILE,), 10, DELETION_FILE, LONG, LONG[1:], LONG[2:])
    uncounted = decode_fragment(without_counts(encode_fragment(whole)))
    deletions = replace(DELETION_FILE, num_deleted_rows=0)
    assert uncounted == replace(whole, physical_rows=0, deletion_file=deletions)
    plain = replace(whole, deletion_file=None)
    assert decode_fragment(without_counts(encode_fragment(plain))).deletion_file is None


def test_replaced_fields_have_no_column() -> None:
    """A negative field id marks a column that was replaced and must not be read."""
    assert DATA_FILE.column_of() == {0: 0, 1: -1}
