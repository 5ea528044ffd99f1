"""The first version of a branch or shallow clone: a version of another table, without its files.

    of the source                           in the clone
    --------------------------------------  ----------------------------------------------------
    number, rows, columns, metadata, ids    the same
    data files, deletion files, indices     below a base path that names the source's directory;
                                            those below a base path already stay there
    config: ledger, tombstones              the same: the clone has the rows of these batches, and
                                            a late row is also late there
    config: all other entries               none, as in the reference: they are settings of the
                                            source, such as its cleanup

Source:  the reference's Clone operation, measured.
Differs: The reference drops the ledger and the tombstones, which are entries of this library.
"""

from collections.abc import Iterable
from dataclasses import replace

from lance_stream.table.config.ledger_entries import PREFIX as LEDGER_PREFIX
from lance_stream.table.config.tombstones import CONFIG_KEY as TOMBSTONES_KEY
from lance_stream.table.feature_flags import flags_for
from lance_stream.table.fragments.fragment import Fragment
from lance_stream.table.indices import decode_index_section, encode_index_section
from lance_stream.table.manifest import BasePath, FragmentList, Manifest


def clone_of(
    source: Manifest,
    fragments: Iterable[Fragment],
    base_paths: tuple[BasePath, ...],
    location: str,
    branch: str | None,
) -> Manifest:
    """Return the first version of a clone, without timestamp, writer, transaction and version mark.

    Args:
        source: The version to clone.
        fragments: The source's fragments; row counts and lineage must be in the manifest.
        base_paths: The source's base paths, made absolute.
        location: The source's directory, as a path or URI.
        branch: The branch that is created; None for a clone.
    """
    base_id = max((base_path.id for base_path in base_paths), default=-1) + 1
    section = source.index_section
    if section is not None:
        section = encode_index_section(
            index if index.base_id is not None else replace(index, base_id=base_id)
            for index in decode_index_section(section)
        )
    manifest = replace(
        source.successor(),
        version=source.version,
        fragments=FragmentList.of(_below(fragment, base_id) for fragment in fragments),
        base_paths=(
            *base_paths,
            BasePath(base_id, location, source.branch, is_dataset_root=True),
        ),
        index_section=section,
        branch=branch,
        config={key: value for key, value in source.config.items() if _is_cloned(key)},
    )
    reader_flags, writer_flags = flags_for(manifest)
    return replace(manifest, reader_feature_flags=reader_flags, writer_feature_flags=writer_flags)


def _is_cloned(config_key: str) -> bool:
    return config_key == TOMBSTONES_KEY or config_key.startswith(LEDGER_PREFIX)


def _below(fragment: Fragment, base_id: int) -> Fragment:
    """Return a fragment whose files are below a base path."""
    deletions = fragment.deletion_file
    if deletions is not None and deletions.base_id is None:
        deletions = replace(deletions, base_id=base_id)
    files = tuple(
        file if file.base_id is not None else replace(file, base_id=base_id)
        for file in fragment.files
    )
    return replace(fragment, files=files, deletion_file=deletions)
