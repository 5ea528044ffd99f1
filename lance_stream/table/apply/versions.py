"""Operations on a version as a whole.

    Restore        an older version's rows, columns and config; ids are still never reused
    CreateIndex    more indices, or other segments of them
    UpdateBases    more base paths: directories outside of the table's

Source:  transaction.proto; measured on the reference.
"""

from collections.abc import Iterable
from dataclasses import replace

from lance_stream.errors import InvalidInputError
from lance_stream.table.apply.new_fragments import max_fragment_id
from lance_stream.table.config import ledger_entries, manifest_store_mark
from lance_stream.table.feature_flags import (
    FRAGMENT_REUSE_INDEX,
    MIXED_FILE_VERSIONS,
    check_writable,
    has_stable_row_ids,
)
from lance_stream.table.indices import decode_index_section, encode_index_section
from lance_stream.table.manifest import BasePath, Manifest
from lance_stream.table.operations.versions import CreateIndex, Restore, UpdateBases

_STICKY = MIXED_FILE_VERSIONS | FRAGMENT_REUSE_INDEX


def restore(start: Manifest, operation: Restore, restored: Manifest | None) -> Manifest:
    """Return the version with the contents of an older one.

    Differs: The ledger of the newest version is kept, so that committed batches are not written
             again; and its mark of an external manifest store.

    Raises:
        InvalidInputError: The older version is missing, or has no stable row ids although the
            newest has.
        UnsupportedFeatureError: The older version uses a feature that this library cannot write.
    """
    if restored is None or restored.version != operation.version:
        raise InvalidInputError(f"version {operation.version} is needed to restore it")
    check_writable(restored)
    if has_stable_row_ids(start) and not has_stable_row_ids(restored):
        raise InvalidInputError(
            f"version {operation.version} has no stable row ids; restoring it would remove the "
            "table's. Overwrite the table with its rows instead"
        )
    max_ids = [
        fragment_id
        for fragment_id in map(max_fragment_id, (start, restored))
        if fragment_id is not None
    ]
    return replace(
        restored.successor(),
        version=start.version,
        max_fragment_id=max(max_ids, default=None),
        next_row_id=max(start.next_row_id, restored.next_row_id),
        config={
            **manifest_store_mark.carried(restored.config, start.config),
            **ledger_entries.newest_entries(restored.config, start.config),
        },
        reader_feature_flags=restored.reader_feature_flags | start.reader_feature_flags & _STICKY,
        writer_feature_flags=restored.writer_feature_flags | start.writer_feature_flags & _STICKY,
    )


def create_index(start: Manifest, operation: CreateIndex) -> Manifest:
    """Return the version with other indices."""
    replaced = {index.uuid for index in (*operation.removed_indices, *operation.new_indices)}
    section = start.index_section
    before = () if section is None else decode_index_section(section)
    after = [index for index in before if index.uuid not in replaced] + list(operation.new_indices)
    return replace(start, index_section=encode_index_section(after) if after else None)


def update_bases(start: Manifest, operation: UpdateBases) -> Manifest:
    """Return the version with more base paths.

    Raises:
        InvalidInputError: A name or path already exists.
    """
    bases = list(start.base_paths)
    for new in operation.new_bases:
        for old in bases:
            if old.path == new.path or (old.name == new.name and new.name is not None):
                raise InvalidInputError(
                    f"the base path {new.path!r} ({new.name!r}) already exists: {old.path!r} "
                    f"({old.name!r})"
                )
        bases.append(replace(new, id=new.id or _next_id(bases)))
    return replace(start, base_paths=tuple(bases))


def _next_id(bases: Iterable[BasePath]) -> int:
    return max((base.id for base in bases), default=0) + 1
