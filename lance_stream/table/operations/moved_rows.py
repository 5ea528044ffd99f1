"""Operations that move rows without changing them.

Source:  transaction.proto, messages ReserveFragments and Rewrite.
"""

from dataclasses import dataclass
from typing import TypeAlias

from lance_stream._proto import table_pb2, transaction_pb2
from lance_stream.table.fragments.fragment import Fragment, fragments_from_proto, fragments_to_proto
from lance_stream.table.indices import IndexFile

_Pb: TypeAlias = transaction_pb2.Transaction


@dataclass(frozen=True, slots=True)
class RewriteGroup:
    """Some fragments, and those that replace them, with the same rows."""

    old_fragments: tuple[Fragment, ...]
    new_fragments: tuple[Fragment, ...]


@dataclass(frozen=True, slots=True)
class RewrittenIndex:
    """An index that was rewritten because its rows moved.

    Attributes:
        old_id: The index's previous uuid; 16 bytes.
        new_id: Its new uuid; 16 bytes.
        new_details: The type URL and bytes of its description; None if old writers omitted it.
        new_index_version: The version of the index's format.
        new_files: Its files, if the writer listed them.
    """

    old_id: bytes
    new_id: bytes
    new_details: tuple[str, bytes] | None = None
    new_index_version: int = 0
    new_files: tuple[IndexFile, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Moves rows to other fragments without changing them: a compaction.

    Attributes:
        groups: Old fragments and those that replace them.
        rewritten_indices: The indices that were rewritten together with the fragments.
        old_fragments: All old fragments, of old writers, which did not write groups.
        new_fragments: All new fragments, likewise.
    """

    groups: tuple[RewriteGroup, ...]
    rewritten_indices: tuple[RewrittenIndex, ...] = ()
    old_fragments: tuple[Fragment, ...] = ()
    new_fragments: tuple[Fragment, ...] = ()
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Rewrite:
        """Return the operation's message."""
        message = _Pb.Rewrite(
            old_fragments=fragments_to_proto(self.old_fragments),
            new_fragments=fragments_to_proto(self.new_fragments),
            groups=[
                _Pb.Rewrite.RewriteGroup(
                    old_fragments=fragments_to_proto(group.old_fragments),
                    new_fragments=fragments_to_proto(group.new_fragments),
                )
                for group in self.groups
            ],
        )
        for index in self.rewritten_indices:
            added = message.rewritten_indices.add(
                old_id=table_pb2.UUID(uuid=index.old_id),
                new_id=table_pb2.UUID(uuid=index.new_id),
                new_index_version=index.new_index_version,
                new_index_files=[
                    table_pb2.IndexFile(path=file.path, size_bytes=file.size_bytes)
                    for file in index.new_files
                ],
            )
            if index.new_details is not None:
                details = added.new_index_details
                details.type_url, details.value = index.new_details
                details.SetInParent()
        return message

    @classmethod
    def from_proto(cls, message: _Pb.Rewrite) -> "Rewrite":
        """Return the operation that a message describes."""
        return cls(
            groups=tuple(
                RewriteGroup(
                    fragments_from_proto(group.old_fragments),
                    fragments_from_proto(group.new_fragments),
                )
                for group in message.groups
            ),
            rewritten_indices=tuple(
                RewrittenIndex(
                    index.old_id.uuid,
                    index.new_id.uuid,
                    (
                        (index.new_index_details.type_url, index.new_index_details.value)
                        if index.HasField("new_index_details")
                        else None
                    ),
                    index.new_index_version,
                    tuple(IndexFile(file.path, file.size_bytes) for file in index.new_index_files),
                )
                for index in message.rewritten_indices
            ),
            old_fragments=fragments_from_proto(message.old_fragments),
            new_fragments=fragments_from_proto(message.new_fragments),
        )


@dataclass(frozen=True, slots=True)
class ReserveFragments:
    """Reserves fragment ids for a later rewrite."""

    num_fragments: int
    unknown: bytes = b""

    def to_proto(self) -> _Pb.ReserveFragments:
        """Return the operation's message."""
        return _Pb.ReserveFragments(num_fragments=self.num_fragments)

    @classmethod
    def from_proto(cls, message: _Pb.ReserveFragments) -> "ReserveFragments":
        """Return the operation that a message describes."""
        return cls(message.num_fragments)
