"""What every version log must keep to. A log's tests inherit `VersionLogContract`."""

import pickle
from dataclasses import replace

import pytest

from lance_stream.commit.version_log import VersionLog
from lance_stream.errors import (
    BadDataError,
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
)
from lance_stream.table.manifest import (
    DataFormat,
    FragmentList,
    Manifest,
    decode_manifest,
    encode_manifest,
)
from tests.commit.tables import SCHEMA


def manifest_of(version: int, tag: str = "") -> bytes:
    return encode_manifest(
        Manifest(version, SCHEMA, FragmentList(), DataFormat("lance", "2.2"), tag=tag)
    )


class VersionLogContract:
    @pytest.fixture
    def log(self) -> VersionLog:
        raise NotImplementedError

    def publish(self, log: VersionLog, *versions: int) -> None:
        for version in versions:
            assert log.publish(version, manifest_of(version))

    def delete_table(self, log: VersionLog) -> None:
        for file in log.store.list():
            log.store.delete(file.path)

    @pytest.mark.each_service
    def test_a_missing_table_is_reported(self, log: VersionLog) -> None:
        """A table that does not exist must not look like an empty one."""
        for look in (log.latest, log.versions, log.read_latest, lambda: log.read(1)):
            with pytest.raises(NotFoundError, match="no dataset at"):
                look()

    @pytest.mark.each_service
    def test_a_published_version_is_the_newest(self, log: VersionLog) -> None:
        """Readers must see a commit as soon as it is reported."""
        self.publish(log, 1, 2, 3)
        assert log.latest() == 3
        assert log.read_latest().version == 3
        assert log.versions() == [1, 2, 3]
        assert [log.read(version).version for version in (1, 2, 3)] == [1, 2, 3]

    @pytest.mark.each_service
    def test_a_version_is_published_once(self, log: VersionLog) -> None:
        """Two writers of one version would lose the rows of one of them."""
        assert log.publish(1, manifest_of(1, "first"))
        assert not log.publish(1, manifest_of(1, "second"))
        assert log.publish(2, manifest_of(2, "first"))
        assert not log.publish(2, manifest_of(2, "second"))
        assert {log.read(version).tag for version in (1, 2)} == {"first"}

    def test_versions_are_ordered_as_numbers(self, log: VersionLog) -> None:
        """Names sort as text, where 10 comes before 9."""
        self.publish(log, *range(1, 12))
        assert log.latest() == 11
        assert log.versions() == list(range(1, 12))

    def test_a_missing_version_is_reported(self, log: VersionLog) -> None:
        """The error lists the versions that exist."""
        self.publish(log, 1, 2)
        for version in (0, 3, 1 << 40):
            with pytest.raises(NotFoundError, match=f"no version {version}: it has 2"):
                log.read(version)

    def test_lost_first_versions_cannot_be_republished(self, log: VersionLog) -> None:
        """The table has lost its first version, and has later ones."""
        self.publish(log, 1, 2)
        for file in log.store.list():
            if log.store.read(file.path) == manifest_of(1):
                log.store.delete(file.path)
        assert log.versions() == [2]
        assert not log.publish(1, manifest_of(1))

    def test_invalid_version_numbers_are_refused(self, log: VersionLog) -> None:
        """A number that wraps around would replace another version."""
        for version in (0, -1, 1 << 63, 1 << 64):
            with pytest.raises(InvalidInputError):
                log.publish(version, b"")

    def test_manifests_of_other_versions_are_corrupt(self, log: VersionLog) -> None:
        """A renamed or copied manifest would show the rows of another version."""
        assert log.publish(1, manifest_of(7))
        with pytest.raises(CorruptDataError, match="version 1 describes version 7") as caught:
            log.read(1)
        assert log.store.uri in caught.value.__notes__[0]

    def test_a_damaged_manifest_is_named(self, log: VersionLog) -> None:
        """The user has to restore that file."""
        assert log.publish(1, manifest_of(1)[:-3])
        with pytest.raises(BadDataError) as caught:
            log.read_latest()
        assert "_versions/" in caught.value.__notes__[0]

    def test_published_versions_are_visible_at_once(self, log: VersionLog) -> None:
        """A writer that misses the newest version would commit it again."""
        other = pickle.loads(pickle.dumps(log))
        self.publish(log, 1)
        assert other.latest() == 1
        assert other.publish(2, manifest_of(2))
        assert log.latest() == 2
        assert not log.publish(2, manifest_of(2))

    def test_a_recreated_table_is_read_again(self, log: VersionLog) -> None:
        """Manifests are cached, and the new table has the same version numbers."""
        assert log.publish(1, manifest_of(1, "old"))
        assert log.read(1).tag == log.read_latest().tag == "old"
        self.delete_table(log)
        with pytest.raises(NotFoundError, match="no dataset at"):
            log.read_latest()
        assert log.publish(1, manifest_of(1, "new"))
        assert log.read(1).tag == log.read_latest().tag == "new"

    @pytest.mark.each_service
    def test_published_manifests_are_read_back(self, log: VersionLog) -> None:
        """Readers must get exactly the manifest that the writer published."""
        manifest = replace(decode_manifest(manifest_of(1)), config={"a": "b"})
        assert log.publish(1, encode_manifest(manifest))
        assert log.read(1) == manifest

    def test_later_versions_appear_once_published(self, log: VersionLog) -> None:
        """Followers poll for the next version without listing all of them."""
        self.publish(log, 1)
        assert log.latest() == 1
        assert log.find(2) is None
        assert not log.has(2)
        self.publish(pickle.loads(pickle.dumps(log)), 2)
        location = log.find(2)
        assert location is not None
        assert location.version == 2
        assert log.has(2)

    def test_versions_after_another_are_listed(self, log: VersionLog) -> None:
        """A feed must not list the whole history at each poll."""
        self.publish(log, *range(1, 8))
        assert log.versions(after=4) == [5, 6, 7]
        assert log.versions(after=7) == []

    def test_a_look_returns_the_newest_versions(self, log: VersionLog) -> None:
        """One listing serves the newest manifest and the check for a recreated table."""
        self.publish(log, 1, 2, 3)
        look = log.read_state()
        assert look.newest.version == 3
        assert list(look.etags) == [1, 2, 3][-len(look.etags) :]

    def test_removed_versions_can_be_put_back(self, log: VersionLog) -> None:
        """A cleanup that meets a new reference takes the removal back."""
        self.publish(log, 1, 2, 3)
        data = log.store.read(log.manifest_path(1))
        log.remove([1, 2])
        assert log.versions() == [3]
        with pytest.raises(NotFoundError, match="no version 1: its only version is 3"):
            log.read(1)
        log.undo_remove(1, data)
        assert log.versions() == [1, 3]
        assert log.read(1).version == 1
        assert log.read_latest().version == 3
