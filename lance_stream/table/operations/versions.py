"""Operations on a version as a whole: its indices and bases, restoring and cloning it.

Source:  transaction.proto, messages CreateIndex, Restore, UpdateMemWalState, Clone and UpdateBases.
"""

from dataclasses import dataclass
from typing import TypeAlias

from lance_stream._proto import transaction_pb2
from lance_stream.table.indices import IndexMetadata, index_from_proto, index_to_proto
from lance_stream.table.manifest import BasePath, base_path_from_proto, base_path_to_proto

_Pb: TypeAlias = transaction_pb2.Transaction


@dataclass(frozen=True, slots=True)
class CreateIndex:
    """Adds indices, or segments of them, and removes others."""

    new_indices: tuple[IndexMetadata, ...]
    removed_indices: tuple[IndexMetadata, ...] = ()
    unknown: bytes = b""

    def to_proto(self) -> _Pb.CreateIndex:
        """Return the operation's message."""
        return _Pb.CreateIndex(
            new_indices=[index_to_proto(index) for index in self.new_indices],
            removed_indices=[index_to_proto(index) for index in self.removed_indices],
        )

    @classmethod
    def from_proto(cls, message: _Pb.CreateIndex) -> "CreateIndex":
        """Return the operation that a message describes."""
        return cls(
            tuple(index_from_proto(index) for index in message.new_indices),
            tuple(index_from_proto(index) for index in message.removed_indices),
        )


@dataclass(frozen=True, slots=True)
class Restore:
    """Makes the rows and the schema of an older version the newest ones."""

    version: int
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Restore:
        """Return the operation's message."""
        return _Pb.Restore(version=self.version)

    @classmethod
    def from_proto(cls, message: _Pb.Restore) -> "Restore":
        """Return the operation that a message describes."""
        return cls(message.version)


@dataclass(frozen=True, slots=True)
class UpdateMemWalState:
    """Changes the state of a write-ahead log in memory.

    Attributes:
        compacted_sstables: Serialized messages, which are not read.
        updated: Likewise, from old writers.
        removed: Likewise, from old writers.
    """

    compacted_sstables: tuple[bytes, ...] = ()
    updated: tuple[bytes, ...] = ()
    removed: tuple[bytes, ...] = ()
    unknown: bytes = b""

    def to_proto(self) -> _Pb.UpdateMemWalState:
        """Return the operation's message."""
        return _Pb.UpdateMemWalState(
            compacted_sstables_raw=self.compacted_sstables,
            updated_raw=self.updated,
            removed_raw=self.removed,
        )

    @classmethod
    def from_proto(cls, message: _Pb.UpdateMemWalState) -> "UpdateMemWalState":
        """Return the operation that a message describes."""
        return cls(
            tuple(message.compacted_sstables_raw),
            tuple(message.updated_raw),
            tuple(message.removed_raw),
        )


@dataclass(frozen=True, slots=True)
class Clone:
    """Creates a table from another table's version.

    Attributes:
        is_shallow: Whether the clone refers to the other table's files instead of copying them.
        ref_version: The other table's version.
        ref_path: The location of the other table.
        ref_name: The other table's branch.
        branch_name: The branch that is created.
    """

    is_shallow: bool
    ref_version: int
    ref_path: str
    ref_name: str | None = None
    branch_name: str | None = None
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Clone:
        """Return the operation's message."""
        return _Pb.Clone(
            is_shallow=self.is_shallow,
            ref_name=self.ref_name,
            ref_version=self.ref_version,
            ref_path=self.ref_path,
            branch_name=self.branch_name,
        )

    @classmethod
    def from_proto(cls, message: _Pb.Clone) -> "Clone":
        """Return the operation that a message describes."""
        return cls(
            is_shallow=message.is_shallow,
            ref_version=message.ref_version,
            ref_path=message.ref_path,
            ref_name=message.ref_name if message.HasField("ref_name") else None,
            branch_name=message.branch_name if message.HasField("branch_name") else None,
        )


@dataclass(frozen=True, slots=True)
class UpdateBases:
    """Declares more base paths."""

    new_bases: tuple[BasePath, ...]
    unknown: bytes = b""

    def to_proto(self) -> _Pb.UpdateBases:
        """Return the operation's message."""
        return _Pb.UpdateBases(new_bases=[base_path_to_proto(base) for base in self.new_bases])

    @classmethod
    def from_proto(cls, message: _Pb.UpdateBases) -> "UpdateBases":
        """Return the operation that a message describes."""
        return cls(tuple(base_path_from_proto(base) for base in message.new_bases))
