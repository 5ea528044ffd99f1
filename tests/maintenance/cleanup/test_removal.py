"""Versions that are tagged while a cleanup removes them."""

import pytest

from lance_stream import NotFoundError
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.snapshot.tag_files import create_tag, move_tag
from lance_stream.table.paths import manifest_path
from tests.contracts.watched_stores import WatchedStore
from tests.maintenance.cleanup.tables import (
    ALL,
    at_first,
    busy_table,
    deletes_manifest,
    lists_tags,
    on,
)


def test_late_tags_restore_their_version() -> None:
    """The tag is created just before its version is removed."""
    ds = busy_table()
    store = WatchedStore(ds.table.store)
    store.before = at_first(deletes_manifest, lambda: ds.tags.create("gold", 6))
    report = cleanup(on(ds, store).table, ALL)
    assert 6 not in report.versions
    assert ds.table.log.versions() == [6, ds.version]
    assert ds.checkout("gold").verify() == []
    assert ds.checkout("gold").to_table().num_rows == 18


@pytest.mark.parametrize("number", [2, 3])
def test_a_concurrent_tag_keeps_its_version(number: int) -> None:
    """Tags are read again before manifests are deleted, so a tag is safe once created."""
    ds = busy_table()
    looks: list[str] = []

    def tag_at_a_look(call: str, path: str) -> None:
        if lists_tags(call, path):
            looks.append(path)
            if len(looks) == number:
                ds.tags.create("gold", 2)

    store = WatchedStore(ds.table.store, before=tag_at_a_look)
    cleanup(on(ds, store).table, ALL)
    assert ds.table.log.versions() == [2, ds.version]
    assert ds.checkout("gold").verify() == []
    assert ("delete", manifest_path(3)) in store.calls
    assert ("delete", manifest_path(2)) not in store.calls


def test_tags_of_removed_versions_fail() -> None:
    """The version disappears while the tag is created, and a tag on nothing must not remain."""
    ds = busy_table()
    ds.tags.create("silver", 7)
    for make, call in ((create_tag, "create_once"), (move_tag, "write")):
        store = WatchedStore(ds.table.store)
        store.before = at_first(
            lambda name, _path, call=call: name == call,
            lambda: ds.table.store.delete(manifest_path(2)),
        )
        sound = ds.table.store.read(manifest_path(2))
        with pytest.raises(NotFoundError, match="has no version 2"):
            make(on(ds, store).table.refs, "gold" if make is create_tag else "silver", 2)
        ds.table.store.write(manifest_path(2), sound)
        assert {name: tag.version for name, tag in ds.tags.list().items()} == {"silver": 7}
