"""Operations on columns: adding, dropping and replacing them, and overlaying their cells.

Source:  transaction.proto, messages Merge, Project, DataReplacement and DataOverlay.
"""

from dataclasses import dataclass
from typing import TypeAlias

from lance_stream._proto import table_pb2, transaction_pb2
from lance_stream.schema.fields import Field, Schema, fields_from_proto, fields_to_proto
from lance_stream.table.fragments.fragment import (
    DataFile,
    Fragment,
    data_file_from_proto,
    data_file_to_proto,
    fragments_from_proto,
    fragments_to_proto,
)
from lance_stream.table.messages import wire

_Pb: TypeAlias = transaction_pb2.Transaction


@dataclass(frozen=True, slots=True)
class Merge:
    """Adds columns: replaces the schema and all fragments, which have more data files.

    Attributes:
        fragments: All fragments of the table, with old and new data files.
        schema: The new schema.
        preserves_nullability: The writer's promise that no column became non-nullable.
    """

    fragments: tuple[Fragment, ...]
    schema: Schema
    preserves_nullability: bool = False
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Merge:
        """Return the operation's message."""
        return _Pb.Merge(
            fragments=fragments_to_proto(self.fragments),
            schema=fields_to_proto(self.schema.fields),
            schema_metadata=dict(self.schema.metadata),
            preserves_nullability=self.preserves_nullability,
        )

    @classmethod
    def from_proto(cls, message: _Pb.Merge) -> "Merge":
        """Return the operation that a message describes."""
        return cls(
            fragments_from_proto(message.fragments),
            Schema(fields_from_proto(message.schema), dict(message.schema_metadata)),
            message.preserves_nullability,
        )


@dataclass(frozen=True, slots=True)
class Project:
    """Drops, renames or reorders columns: another schema over the same fragments."""

    fields: tuple[Field, ...]
    preserves_nullability: bool = False
    unknown: bytes = b""

    def to_proto(self) -> _Pb.Project:
        """Return the operation's message."""
        return _Pb.Project(
            schema=fields_to_proto(self.fields), preserves_nullability=self.preserves_nullability
        )

    @classmethod
    def from_proto(cls, message: _Pb.Project) -> "Project":
        """Return the operation that a message describes."""
        return cls(fields_from_proto(message.schema), message.preserves_nullability)


@dataclass(frozen=True, slots=True)
class DataReplacement:
    """Replaces data files of some fragments by others with the same columns.

    Attributes:
        replacements: Fragment ids with their new data files.
    """

    replacements: tuple[tuple[int, DataFile], ...]
    unknown: bytes = b""

    def to_proto(self) -> _Pb.DataReplacement:
        """Return the operation's message."""
        return _Pb.DataReplacement(
            replacements=[
                _Pb.DataReplacementGroup(
                    fragment_id=fragment_id, new_file=data_file_to_proto(new_file)
                )
                for fragment_id, new_file in self.replacements
            ]
        )

    @classmethod
    def from_proto(cls, message: _Pb.DataReplacement) -> "DataReplacement":
        """Return the operation that a message describes."""
        return cls(
            tuple(
                (replacement.fragment_id, data_file_from_proto(replacement.new_file))
                for replacement in message.replacements
            )
        )


@dataclass(frozen=True, slots=True)
class DataOverlay:
    """Overlays some fragments with new values of single cells.

    Attributes:
        groups: Fragment ids with serialized DataOverlayFile messages, which are not read.
    """

    groups: tuple[tuple[int, tuple[bytes, ...]], ...]
    unknown: bytes = b""

    def to_proto(self) -> _Pb.DataOverlay:
        """Return the operation's message."""
        parse = table_pb2.DataOverlayFile.FromString
        return _Pb.DataOverlay(
            groups=[
                _Pb.DataOverlayGroup(
                    fragment_id=fragment_id, overlays=[parse(overlay) for overlay in overlays]
                )
                for fragment_id, overlays in self.groups
            ]
        )

    @classmethod
    def from_proto(cls, message: _Pb.DataOverlay) -> "DataOverlay":
        """Return the operation that a message describes."""
        return cls(
            tuple(
                (group.fragment_id, tuple(wire.serialize(overlay) for overlay in group.overlays))
                for group in message.groups
            )
        )
