"""The operations on a table: one class per operation of the transaction message.

An operation is plain data: what its writer planned. `apply` derives the next version from it;
`conflicts` decides which versions it may follow.

`OPERATIONS` maps the field names of the message's oneof to the classes. Fragments in an operation
have the ids of the version that it was planned on. New ones have the id 0, and get their ids when
they are committed, except that those of a Rewrite already have reserved ids.

Source:  transaction.proto, message Transaction, oneof operation.
Differs: An operation that is not in the oneof is kept as `UnknownOperation`: it conflicts with
         everything and cannot be applied.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.messages import wire
from lance_stream.table.operations.columns import DataOverlay, DataReplacement, Merge, Project
from lance_stream.table.operations.config import UpdateConfig
from lance_stream.table.operations.moved_rows import ReserveFragments, Rewrite
from lance_stream.table.operations.rows import Append, Delete, Overwrite, Update
from lance_stream.table.operations.versions import (
    Clone,
    CreateIndex,
    Restore,
    UpdateBases,
    UpdateMemWalState,
)


@dataclass(frozen=True, slots=True)
class UnknownOperation:
    """An operation of a later version of the format.

    Attributes:
        field_number: The field's number in the oneof.
        raw: The field's bytes, including the tag.
    """

    field_number: int
    raw: bytes = b""
    unknown: ClassVar[bytes] = b""


SupportedOperation: TypeAlias = (
    Append
    | Delete
    | Overwrite
    | CreateIndex
    | Rewrite
    | Merge
    | Restore
    | ReserveFragments
    | Update
    | Project
    | UpdateConfig
    | DataReplacement
    | UpdateMemWalState
    | Clone
    | UpdateBases
    | DataOverlay
)


Operation: TypeAlias = SupportedOperation | UnknownOperation


OPERATIONS: Mapping[str, type[SupportedOperation]] = MappingProxyType(
    {
        "append": Append,
        "delete": Delete,
        "overwrite": Overwrite,
        "create_index": CreateIndex,
        "rewrite": Rewrite,
        "merge": Merge,
        "restore": Restore,
        "reserve_fragments": ReserveFragments,
        "update": Update,
        "project": Project,
        "update_config": UpdateConfig,
        "data_replacement": DataReplacement,
        "update_mem_wal_state": UpdateMemWalState,
        "clone": Clone,
        "update_bases": UpdateBases,
        "data_overlay": DataOverlay,
    }
)
"""All operations of the format, by their field names in the transaction message."""


FIELD_NAMES: Mapping[type[SupportedOperation], str] = MappingProxyType(
    {operation: name for name, operation in OPERATIONS.items()}
)


def operation_name(operation: Operation) -> str:
    """Return an operation's name for messages, such as "Append" or "unknown (field 199)"."""
    if isinstance(operation, UnknownOperation):
        return f"unknown (field {operation.field_number})"
    return type(operation).__name__


def new_fragments(operation: Operation) -> tuple[Fragment, ...]:
    """Return the fragments of an operation whose ids are assigned on commit."""
    if isinstance(operation, Append | Overwrite):
        return operation.fragments
    if isinstance(operation, Update):
        return operation.new_fragments
    return ()


def operation_from_proto(name: str, message: Any) -> SupportedOperation:
    """Return the operation that a message describes.

    Args:
        name: The message's field name in the oneof.
        message: The message.

    Raises:
        BadDataError: A part of the message is invalid or unknown.
    """
    make: Callable[[Any], SupportedOperation] = OPERATIONS[name].from_proto
    operation = make(message)
    unknown = wire.unknown_fields(message)
    if unknown:
        # The classes are frozen; set the field that all of them have here, once for all.
        object.__setattr__(operation, "unknown", unknown)
    return operation
