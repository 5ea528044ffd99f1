"""A transaction: an operation, the version it was planned on, and its writer's properties.

A transaction file is a Transaction message, without header or end mark. The manifest of the version
that the transaction created has a copy of it (see `manifest`).

Source:  transaction.proto, message Transaction.
Differs: An unknown field with a number from 100 to 199 counts as an operation if there is no known
         one: these numbers are reserved for operations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from google.protobuf.message import DecodeError

from lance_stream._proto import transaction_pb2
from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.table.messages import wire
from lance_stream.table.operations.operation import (
    FIELD_NAMES,
    OPERATIONS,
    Operation,
    SupportedOperation,
    UnknownOperation,
    operation_from_proto,
)

_OPERATION_NUMBERS = range(100, 200)


@dataclass(frozen=True, slots=True)
class Transaction:
    """An operation, with its read version and its writer's properties.

    Attributes:
        read_version: The version that the operation was planned on; 0 for a table that does not
            exist yet.
        uuid: A uuid of the transaction, with hyphens.
        operation: The operation.
        tag: Unused.
        properties: The writer's properties.
        unknown: Serialized unknown fields of the message, kept unchanged.
    """

    read_version: int
    uuid: str
    operation: Operation
    tag: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    unknown: bytes = b""


def encode_transaction(transaction: Transaction) -> bytes:
    """Return the bytes of a transaction's message.

    Raises:
        InvalidInputError: A value of the transaction cannot be written.
    """
    operation = transaction.operation
    try:
        message = transaction_pb2.Transaction(
            read_version=transaction.read_version,
            uuid=transaction.uuid,
            tag=transaction.tag,
            transaction_properties=dict(transaction.properties),
        )
        if isinstance(operation, UnknownOperation):
            return wire.serialize(message) + operation.raw + transaction.unknown
        name = FIELD_NAMES[type(operation)]
        body = operation.to_proto()
        if operation.unknown:
            body.MergeFromString(operation.unknown)
        number = message.DESCRIPTOR.fields_by_name[name].number
        return (
            wire.serialize(message)
            + wire.frame(number, wire.serialize(body))
            + (transaction.unknown)
        )
    except (DecodeError, ValueError, TypeError) as error:
        raise InvalidInputError(f"the transaction cannot be written: {error}") from error


def decode_transaction(data: bytes | bytearray | memoryview) -> Transaction:
    """Return the transaction that the bytes of a message describe.

    Raises:
        CorruptDataError: The bytes are not a Transaction message, or it has no operation.
        UnsupportedFeatureError: A part of the operation is unknown.
    """
    message = wire.parse_message(transaction_pb2.Transaction, bytes(data))
    unknown = wire.unknown_fields(message)
    operation: Operation
    name = message.WhichOneof("operation")
    if name is not None:
        operation = operation_from_proto(name, getattr(message, name))
    else:
        operation, unknown = _split_off_operation(unknown)
    return Transaction(
        read_version=message.read_version,
        uuid=message.uuid,
        operation=operation,
        tag=message.tag,
        properties=dict(message.transaction_properties),
        unknown=unknown,
    )


def operation_kind(data: bytes) -> type[SupportedOperation] | None:
    """Return the class of a transaction's operation without decoding it.

    Decoding is expensive: an upsert's operation has the row ids of all rows that it changed.

    Returns:
        The class; None if the operation is unknown, or if there is none.

    Raises:
        CorruptDataError: The bytes are not a message.
    """
    fields_by_number = transaction_pb2.Transaction.DESCRIPTOR.fields_by_number
    for wire_field in wire.split_message(data):
        if wire_field.number in _OPERATION_NUMBERS and wire_field.number in fields_by_number:
            return OPERATIONS[fields_by_number[wire_field.number].name]
    return None


def _split_off_operation(unknown: bytes) -> tuple[UnknownOperation, bytes]:
    operation: UnknownOperation | None = None
    rest: list[bytes] = []
    for wire_field in wire.split_message(unknown):
        raw = unknown[wire_field.start : wire_field.stop]
        if (
            wire_field.number in _OPERATION_NUMBERS
            and wire_field.wire_type == wire.LENGTH_DELIMITED
        ):
            if operation is not None:
                rest.append(operation.raw)
            operation = UnknownOperation(wire_field.number, raw)
        else:
            rest.append(raw)
    if operation is None:
        raise CorruptDataError("the transaction has no operation: it is damaged or truncated")
    return operation, b"".join(rest)
