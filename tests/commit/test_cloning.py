"""The first version of a clone: which version it is, and who has created it."""

from dataclasses import replace

import pytest

from lance_stream.commit.cloning import CloneSource, publish_clone, start_clone
from lance_stream.commit.object_store_log import ObjectStoreLog
from lance_stream.errors import InvalidInputError
from lance_stream.table.manifest import Manifest, encode_manifest
from lance_stream.table.operations.transaction import encode_transaction
from lance_stream.table.paths import CLONED_FROM
from tests.commit.tables import START_NANOS, append, commit_to, create, make_environment, make_store


def source_of(version: int, manifest: Manifest | None = None) -> CloneSource:
    log = create(3)
    commit_to(log, append(1, 2))
    return CloneSource(log.store, manifest or log.read(version), (), "/source", lambda _: b"")


def test_clones_have_their_source_s_version() -> None:
    """A repeated clone of the same version completes what was started."""
    source, log = source_of(2), ObjectStoreLog(make_store())
    transaction, is_new = start_clone(log.store, source, None)
    assert start_clone(log.store, source, None) == (transaction, False)
    clone = publish_clone(log, source, None, make_environment())
    assert (is_new, clone.version, log.versions()) == (True, 2, [2])
    assert transaction.uuid in clone.transaction_file


@pytest.mark.parametrize("nanos", [None, 5, START_NANOS + 10**18])
def test_clones_are_later_than_their_source(nanos: int | None) -> None:
    """Old writers stored no time, and clocks differ; times of versions must ascend."""
    source = source_of(2)
    source = replace(source, manifest=replace(source.manifest, timestamp_nanos=nanos))
    log = ObjectStoreLog(make_store())
    clone = publish_clone(log, source, None, make_environment())
    assert clone.timestamp_nanos == max(START_NANOS + 10**9, (nanos or 0) + 1)


def test_directories_belong_to_one_clone() -> None:
    """Two creators must not publish two first versions with different numbers."""
    source = source_of(2)
    store = make_store()
    start_clone(store, source_of(1), None)
    with pytest.raises(InvalidInputError, match="another clone, of version 1 of /source, was"):
        publish_clone(ObjectStoreLog(store), source, None)
    store = make_store()
    store.write(CLONED_FROM, encode_transaction(append(2, 1)))
    with pytest.raises(InvalidInputError, match="another clone, of an unknown table, was"):
        start_clone(store, source, None)


def test_foreign_first_versions_are_refused() -> None:
    """Another program may have created a table there, which is not the clone."""
    source, log = source_of(2), ObjectStoreLog(make_store())
    assert ObjectStoreLog(log.store).publish(2, encode_manifest(source.manifest))
    with pytest.raises(InvalidInputError, match="another program created version 2"):
        publish_clone(log, source, None)
