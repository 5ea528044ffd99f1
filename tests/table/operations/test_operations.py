from dataclasses import fields, replace

import pytest

from lance_stream._proto import table_pb2, transaction_pb2
from lance_stream.errors import BadDataError, CorruptDataError, InvalidInputError
from lance_stream.schema.fields import Field, Schema
from lance_stream.table.fragments.fragment import DataFile, Fragment
from lance_stream.table.indices import (
    IndexFile,
    IndexMetadata,
    decode_index_section,
    encode_index_section,
)
from lance_stream.table.manifest import BasePath
from lance_stream.table.messages import wire
from lance_stream.table.operations.columns import DataOverlay, DataReplacement, Merge, Project
from lance_stream.table.operations.config import MapUpdate, UpdateConfig
from lance_stream.table.operations.key_filters import BloomFilter, KeyExistenceFilter
from lance_stream.table.operations.moved_rows import (
    ReserveFragments,
    Rewrite,
    RewriteGroup,
    RewrittenIndex,
)
from lance_stream.table.operations.operation import (
    FIELD_NAMES,
    OPERATIONS,
    Operation,
    UnknownOperation,
    new_fragments,
    operation_name,
)
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update, UpdateMode
from lance_stream.table.operations.transaction import (
    Transaction,
    decode_transaction,
    encode_transaction,
    operation_kind,
)
from lance_stream.table.operations.versions import (
    Clone,
    CreateIndex,
    Restore,
    UpdateBases,
    UpdateMemWalState,
)

FILE = DataFile("a.lance", (0,), (0,), (2, 2), 9)
FRAGMENT = Fragment(0, (FILE,), 10, row_ids=b"ids")
OTHER = Fragment(4, (FILE,), 3)
SCHEMA = Schema((Field("a", "int64", 0),), {"m": b"\xfe"})
BASE = BasePath(1, "/b", "name", is_dataset_root=True)
INDEX = IndexMetadata(
    bytes(range(16)),
    (0, 1),
    "i",
    3,
    b"bitmap",
    ("type/url", b"details"),
    0,
    1_700_000_000_000,
    2,
    (IndexFile("index.idx", 5),),
    (1,),
    wire.frame(50, b"later"),
)
KEYS = KeyExistenceFilter((0, -1), key_hashes=(1, (1 << 64) - 1))
BLOOM = KeyExistenceFilter((0,), bloom=BloomFilter(b"\x01", 8, 1, 0.5))
SSTABLE = b"\x0a\x12\x0a\x10" + bytes(range(0xF0, 0x100)) + b"\x10\x05"
OVERLAY = wire.serialize(table_pb2.DataOverlayFile(committed_version=3))
MAP = MapUpdate((("a", "1"), ("b", None), ("a", "")), replace=True)

SAMPLES: list[Operation] = [
    Append((FRAGMENT, OTHER)),
    Append(()),
    Delete((FRAGMENT,), (7, (1 << 64) - 1), "a > 1"),
    Overwrite((FRAGMENT,), SCHEMA, {"k": "v"}, (BASE,)),
    Overwrite((), Schema()),
    CreateIndex((INDEX,), (replace(INDEX, details=None, index_version=None, base_id=None),)),
    Rewrite(
        (RewriteGroup((FRAGMENT,), (OTHER,)),),
        (
            RewrittenIndex(b"o" * 16, b"n" * 16, ("u", b""), 1, (IndexFile("i", 5),)),
            RewrittenIndex(b"p" * 16, b"m" * 16),
        ),
        (OTHER,),
        (FRAGMENT,),
    ),
    Merge((FRAGMENT,), SCHEMA, preserves_nullability=True),
    Restore(3),
    ReserveFragments(8),
    Update(
        (1,),
        (FRAGMENT,),
        (OTHER,),
        (0, 2),
        (b"", b"sst"),
        (1,),
        UpdateMode.REWRITE_COLUMNS,
        KEYS,
        {4: (1, 2), 0: ()},
        {4: b"roaring"},
    ),
    Update(inserted_rows=BLOOM),
    Update(inserted_rows=KeyExistenceFilter((), key_hashes=())),
    Project(SCHEMA.fields, preserves_nullability=True),
    UpdateConfig(MAP, MapUpdate(), MAP, {0: MAP}),
    UpdateConfig(None, None, None, {}, {"k": "v"}, ("gone",), {"s": "t"}, {3: {"a": "b"}}),
    DataReplacement(((3, FILE),)),
    UpdateMemWalState((SSTABLE,), (), (b"", SSTABLE)),
    Clone(True, 4, "/other", "branch", ""),
    Clone(False, 1, "/other"),
    UpdateBases((BASE,)),
    DataOverlay(((3, (OVERLAY, OVERLAY)), (4, ()))),
    UnknownOperation(199, wire.frame(199, b"what")),
]


def transaction(operation: Operation) -> Transaction:
    return Transaction(6, "some-uuid", operation, "t", {"p": "q", "": ""}, wire.frame(50, b"more"))


def test_every_operation_has_a_class() -> None:
    """An update of the protocol must not bring an operation that reads as unknown."""
    oneof = transaction_pb2.Transaction.DESCRIPTOR.oneofs_by_name["operation"]
    assert {field.name for field in oneof.fields} == set(OPERATIONS)
    assert len(set(OPERATIONS.values())) == len(OPERATIONS)
    for field in oneof.fields:
        assert field.message_type.name == OPERATIONS[field.name].__name__


def test_every_operation_has_a_sample() -> None:
    """The round trips below would miss an operation without a sample."""
    assert {type(operation) for operation in SAMPLES} == {
        *OPERATIONS.values(),
        UnknownOperation,
    }


@pytest.mark.floors
@pytest.mark.parametrize("operation", SAMPLES, ids=operation_name)
def test_operations_round_trip(operation: Operation) -> None:
    """Other writers check their operations against the stored one."""
    assert decode_transaction(encode_transaction(transaction(operation))) == transaction(operation)


@pytest.mark.parametrize(
    "operation",
    [operation for operation in SAMPLES if not isinstance(operation, UnknownOperation)],
    ids=operation_name,
)
def test_operation_classes_state_every_message_field(
    operation: Operation,
) -> None:
    """A field that the class does not have would be lost when a transaction is rewritten."""
    name = FIELD_NAMES[type(operation)]
    descriptor = transaction_pb2.Transaction.DESCRIPTOR.fields_by_name[name].message_type
    stated = {field.name for field in fields(operation)} - {"unknown"}
    # A schema is one value here, and two fields (its fields and its metadata) in the message.
    extra = {"overwrite": 1, "merge": 1}.get(name, 0)
    assert len(stated) + extra == len(descriptor.fields)


@pytest.mark.parametrize("name", OPERATIONS)
def test_unknown_fields_of_operations_survive(name: str) -> None:
    """A later release's fields must survive a rewrite by this one."""
    message = transaction_pb2.Transaction(read_version=1, uuid="u")
    future = wire.frame(400, b"later")
    getattr(message, name).MergeFromString(future)
    decoded = decode_transaction(message.SerializeToString())
    assert decoded.operation.unknown == future
    assert transaction_pb2.Transaction.FromString(encode_transaction(decoded)) == message


def test_unknown_operations_are_kept_verbatim() -> None:
    """The history must remain readable when a newer writer has used the table."""
    data = b"\x08\x05" + wire.frame(116, b"new operation") + wire.frame(9, b"new detail")
    decoded = decode_transaction(data)
    assert decoded.operation == UnknownOperation(116, wire.frame(116, b"new operation"))
    assert decoded.unknown == wire.frame(9, b"new detail")
    assert encode_transaction(decoded) == data
    assert operation_name(decoded.operation) == "unknown (field 116)"


@pytest.mark.parametrize("operation", SAMPLES, ids=operation_name)
def test_kinds_are_found_without_decoding(operation: Operation) -> None:
    """A reader of the history needs only the kind, and operations can be large."""
    expected = None if isinstance(operation, UnknownOperation) else type(operation)
    assert operation_kind(encode_transaction(transaction(operation))) is expected
    assert operation_kind(b"\x08\x05") is None


def test_the_last_unknown_operation_counts() -> None:
    """As in protobuf; what precedes it is kept as it is."""
    first, last = wire.frame(116, b"first"), wire.frame(117, b"last")
    decoded = decode_transaction(first + last)
    assert decoded.operation == UnknownOperation(117, last)
    assert decoded.unknown == first


def test_key_filters_have_one_form() -> None:
    """A filter without keys would say that the other writer inserted none."""
    message = transaction_pb2.Transaction(uuid="u")
    message.update.inserted_rows.field_ids.append(0)
    with pytest.raises(CorruptDataError, match="neither hashes nor a Bloom filter"):
        decode_transaction(message.SerializeToString())


def test_transactions_without_operation_are_corrupt() -> None:
    """A truncated file must not count as an unknown operation."""
    for data in (b"", b"\x08\x05", wire.frame(99, b"new detail"), wire.frame(200, b"another")):
        with pytest.raises(CorruptDataError, match="no operation"):
            decode_transaction(data)


def test_unwritable_transactions_are_refused() -> None:
    """Protobuf's own errors do not say which value was wrong."""
    with pytest.raises(InvalidInputError):
        encode_transaction(replace(transaction(Restore(1)), read_version=-1))
    with pytest.raises(InvalidInputError):
        encode_transaction(transaction(Restore(-1)))
    with pytest.raises(InvalidInputError):
        encode_transaction(transaction(DataOverlay(((0, (b"\xff",)),))))


@pytest.mark.parametrize("operation", SAMPLES, ids=operation_name)
def test_damaged_transactions_raise_bad_data(operation: Operation) -> None:
    """Any prefix or changed byte must decode or raise BadDataError, which callers handle."""
    data = encode_transaction(transaction(operation))
    damaged = [data[:stop] for stop in range(len(data))]
    for index in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            flipped = bytearray(data)
            flipped[index] ^= flip
            damaged.append(bytes(flipped))
    refused = 0
    for value in damaged:
        try:
            decode_transaction(value)
        except BadDataError:
            refused += 1
    assert refused > len(data) // 2


def test_only_adding_operations_have_new_fragments() -> None:
    """A failed commit deletes the files of these fragments, and those of a rewrite have other
    rules.
    """
    having = {type(operation) for operation in SAMPLES if new_fragments(operation)}
    assert having == {Append, Overwrite, Update}
    assert new_fragments(SAMPLES[0]) == (FRAGMENT, OTHER)


def test_index_sections_round_trip() -> None:
    """Indices of pylance must survive the commits of this package."""
    section = encode_index_section([INDEX, replace(INDEX, unknown=b"")])
    assert decode_index_section(section) == (INDEX, replace(INDEX, unknown=b""))
    with pytest.raises(CorruptDataError):
        decode_index_section(section[:-1])
