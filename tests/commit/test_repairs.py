"""Sequences in separate files: a commit inlines those that its operation needs."""

import uuid
from dataclasses import replace

import pytest

from lance_stream.commit.repairs import with_sequences
from lance_stream.storage.locations import open_store
from lance_stream.table.fragments.fragment import ExternalFile
from lance_stream.table.manifest import FragmentList
from lance_stream.table.operations.operation import Operation
from lance_stream.table.operations.rows import Append, Update
from tests.table.apply.test_next_version import killing, table


@pytest.mark.parametrize("kind", ["removed", "updated", "neither"])
def test_sequences_of_touched_fragments_are_inlined(kind: str) -> None:
    """Moved rows take their versions along, also from a fragment that loses all of its rows."""
    manifest = table(3, 2)
    data = manifest.fragments[1].row_ids
    assert isinstance(data, bytes)
    store = open_store(f"memory://{uuid.uuid4()}/t")
    store.write("_rows/1", b"before" + data)
    stored = replace(manifest.fragments[1], row_ids=ExternalFile("_rows/1", 6, len(data)))
    manifest = replace(manifest, fragments=FragmentList.of([manifest.fragments[0], stored]))
    operations: dict[str, Operation] = {
        "removed": Update(removed_fragment_ids=(1,)),
        "updated": Update(updated_fragments=(killing(stored, 1),)),
        "neither": Append(()),
    }
    inlined = with_sequences(store, manifest, operations[kind]).fragments[1]
    assert inlined.row_ids == (stored.row_ids if kind == "neither" else data)
