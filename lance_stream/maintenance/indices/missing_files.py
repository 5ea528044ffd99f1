"""Finds index files that are missing where a version states them."""

import logging
from collections.abc import Mapping

from lance_stream.errors import LanceStreamError
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.indices import IndexMetadata, decode_index_section
from lance_stream.table.paths import index_folder

_log = logging.getLogger("lance_stream.indices")


def missing_files(table: TableVersion, index: IndexMetadata) -> str | None:
    """Return a clause about the missing files of an index; None if all that it lists exist.

    Args:
        table: The version that lists the index.
        index: A segment of the index.

    Differs:
        pylance 14 writes the indices that a compaction remaps to the directory of the compacted
        clone or branch, but keeps the base path of the indices that they replace.
    """
    base = index.base_id
    store = table.store if base is None else table.files.store_of_base(base)
    folder = index_folder(index.uuid)
    missing = [file.path for file in index.files if not store.exists(f"{folder}/{file.path}")]
    if not missing:
        return None
    clause = f"its files {missing} are missing in {store.uri}/{folder}"
    if base is not None and all(table.store.exists(f"{folder}/{name}") for name in missing):
        return (
            f"{clause}, but are in {table.store.uri}/{folder}: pylance 14 misplaces them when it "
            "compacts a clone or branch"
        )
    return clause


def with_missing_files(problems: Mapping[str, str], table: TableVersion) -> dict[str, str]:
    """Return the problems of indices, by name, with missing files as the cause where some are.

    Args:
        problems: What pylance says about indices that it cannot update.
        table: The version that it read.
    """
    causes = dict(problems)
    if not problems:
        return causes
    for index in decode_index_section(table.manifest.index_section or b""):
        if index.name in causes:
            try:
                causes[index.name] = missing_files(table, index) or causes[index.name]
            except (LanceStreamError, OSError) as error:
                _log.warning("cannot look for the files of the index %s: %s", index.name, error)
    return causes
