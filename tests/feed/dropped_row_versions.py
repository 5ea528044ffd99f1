"""A writer that drops the row versions of all fragments, as pylance did before 0.39."""

from dataclasses import replace

import lance_stream
from lance_stream import Dataset
from lance_stream.table.fragments.fragment_list import FragmentList
from lance_stream.table.manifest import encode_manifest


def drop_row_versions(ds: Dataset) -> Dataset:
    """Rewrite the manifest of the newest version as that writer would have committed it."""
    table = ds.table
    fragments = FragmentList.of(
        [
            replace(fragment, last_updated_at_versions=None, created_at_versions=None)
            for fragment in table.manifest.fragments
        ]
    )
    manifest = encode_manifest(replace(table.manifest, fragments=fragments))
    table.store.write(table.log.manifest_path(ds.version), manifest)
    reopened = lance_stream.open_dataset(ds.uri)
    assert reopened.table.manifest.fragments == fragments
    return reopened
