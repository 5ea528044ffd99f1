"""Operations on config and metadata: setting and removing entries, or replacing a map.

Source:  transaction.proto, messages UpdateConfig and UpdateMap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from lance_stream._proto import transaction_pb2

_Pb: TypeAlias = transaction_pb2.Transaction


@dataclass(frozen=True, slots=True)
class MapUpdate:
    """A change of a map from strings to strings.

    Attributes:
        entries: Keys with their new values; None removes the key. Later entries win.
        replace: Whether all other keys are removed.
    """

    entries: tuple[tuple[str, str | None], ...] = ()
    replace: bool = False


@dataclass(frozen=True, slots=True)
class UpdateConfig:
    """Changes config, table metadata, schema metadata and field metadata.

    Attributes:
        config: The change of the table's config.
        table_metadata: The change of the table's metadata.
        schema_metadata: The change of the schema's metadata.
        field_metadata: By field id, the change of the field's metadata.
        old_upserts: Config entries to set; of writers older than `config`.
        old_delete_keys: Config keys to remove, likewise.
        old_schema_metadata: The new metadata of the schema, likewise.
        old_field_metadata: By field id, the field's new metadata, likewise.
    """

    config: MapUpdate | None = None
    table_metadata: MapUpdate | None = None
    schema_metadata: MapUpdate | None = None
    field_metadata: Mapping[int, MapUpdate] = field(default_factory=dict)
    old_upserts: Mapping[str, str] = field(default_factory=dict)
    old_delete_keys: tuple[str, ...] = ()
    old_schema_metadata: Mapping[str, str] = field(default_factory=dict)
    old_field_metadata: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    unknown: bytes = b""

    def to_proto(self) -> _Pb.UpdateConfig:
        """Return the operation's message."""
        return _Pb.UpdateConfig(
            upsert_values=dict(self.old_upserts),
            delete_keys=self.old_delete_keys,
            schema_metadata=dict(self.old_schema_metadata),
            field_metadata={
                field_id: _Pb.UpdateConfig.FieldMetadataUpdate(metadata=dict(metadata))
                for field_id, metadata in self.old_field_metadata.items()
            },
            config_updates=_map_out(self.config),
            table_metadata_updates=_map_out(self.table_metadata),
            schema_metadata_updates=_map_out(self.schema_metadata),
            field_metadata_updates={
                field_id: _update_out(update) for field_id, update in self.field_metadata.items()
            },
        )

    @classmethod
    def from_proto(cls, message: _Pb.UpdateConfig) -> "UpdateConfig":
        """Return the operation that a message describes."""
        return cls(
            config=_update_in(message.config_updates)
            if message.HasField("config_updates")
            else None,
            table_metadata=(
                _update_in(message.table_metadata_updates)
                if message.HasField("table_metadata_updates")
                else None
            ),
            schema_metadata=(
                _update_in(message.schema_metadata_updates)
                if message.HasField("schema_metadata_updates")
                else None
            ),
            field_metadata={
                field_id: _update_in(update)
                for field_id, update in message.field_metadata_updates.items()
            },
            old_upserts=dict(message.upsert_values),
            old_delete_keys=tuple(message.delete_keys),
            old_schema_metadata=dict(message.schema_metadata),
            old_field_metadata={
                field_id: dict(update.metadata)
                for field_id, update in message.field_metadata.items()
            },
        )


def _map_out(update: MapUpdate | None) -> _Pb.UpdateMap | None:
    return None if update is None else _update_out(update)


def _update_out(update: MapUpdate) -> _Pb.UpdateMap:
    return _Pb.UpdateMap(
        update_entries=[_Pb.UpdateMapEntry(key=key, value=value) for key, value in update.entries],
        replace=update.replace,
    )


def _update_in(message: _Pb.UpdateMap) -> MapUpdate:
    return MapUpdate(
        tuple(
            (entry.key, entry.value if entry.HasField("value") else None)
            for entry in message.update_entries
        ),
        message.replace,
    )
