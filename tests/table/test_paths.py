from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.table import paths
from lance_stream.table.fragments.fragment import DeletionFile, DeletionFileType
from lance_stream.table.manifest import BasePath
from lance_stream.table.paths import ManifestName, NamingScheme

versions = st.integers(0, (1 << 63) - 1)


@given(versions, st.sampled_from(NamingScheme))
def test_manifest_names_state_version_and_scheme(version: int, scheme: NamingScheme) -> None:
    """Listings are the source of the newest version, so names must be read back exactly."""
    name = paths.manifest_name(version, scheme)
    assert paths.parse_manifest_name(name) == ManifestName(version, scheme)
    assert paths.parse_detached_manifest_name(name) is None
    assert paths.manifest_path(version, scheme) == f"_versions/{name}"


def test_v2_names_sort_newest_first() -> None:
    """Stores list in ascending order, and the first name must be the newest version."""
    names = [paths.manifest_name(version) for version in (1, 2, 10, 999)]
    assert names[0] == "18446744073709551614.manifest"
    assert sorted(names) == names[::-1]
    assert paths.manifest_name(12, NamingScheme.V1) == "12.manifest"


def test_detached_versions_have_separate_names() -> None:
    """Detached versions are no part of the table's history."""
    version = 1 << 63 | 5
    for scheme in NamingScheme:
        name = paths.manifest_name(version, scheme)
        assert name == "d9223372036854775813.manifest"
        assert paths.parse_manifest_name(name) is None
        assert paths.parse_detached_manifest_name(name) == version
    assert paths.parse_detached_manifest_name("d9223372036854775808.manifest") == 1 << 63
    assert paths.is_detached(1 << 63)
    assert not paths.is_detached((1 << 63) - 1)
    assert paths.scheme_of([paths.manifest_name(version)]) is None


@pytest.mark.parametrize(
    "name",
    [
        *("latest_version_hint.json", ".tmp_7.manifest_9c100374", "7.manifest-uuid", ".manifest"),
        *("x7.manifest", "-7.manifest", "7 .manifest", "\u0667.manifest", "7.manifest.bak", "d7"),
        *("184467440737095516150.manifest", "00000000000000000001.manifest", "d5.manifest"),
        *("7", "dx.manifest", "d9223372036854775813", "d18446744073709551616.manifest"),
        *("x9223372036854775813.manifest", "dx9223372036854775813.manifest"),
    ],
)
def test_other_files_are_no_manifests(name: str) -> None:
    """Temporary and foreign files lie in the same folder."""
    assert paths.parse_manifest_name(name) is None
    assert paths.parse_detached_manifest_name(name) is None


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("7.manifest-uuid", 7),
        *(("7.manifest-", None), ("7.manifest", None), ("7-uuid", None), ("x.manifest-uuid", None)),
    ],
)
def test_staged_manifests_state_their_version(name: str, version: int | None) -> None:
    """A manifest that a manifest store names may still have the name under which it was staged."""
    expected = None if version is None else ManifestName(version, NamingScheme.V1)
    assert paths.parse_staged_manifest_name(name) == expected


def test_invalid_versions_have_no_name() -> None:
    """A version that wraps around would replace another one's manifest."""
    for version in (-1, 1 << 64):
        with pytest.raises(InvalidInputError):
            paths.manifest_name(version)


def test_two_naming_schemes_are_refused() -> None:
    """If all names are of one scheme, it is found."""
    v1, v2 = ([paths.manifest_name(number, scheme) for number in (1, 2)] for scheme in NamingScheme)
    assert paths.scheme_of([*v1, "latest_version_hint.json"]) is NamingScheme.V1
    assert paths.scheme_of([*v2, "d9223372036854775813.manifest"]) is NamingScheme.V2
    assert paths.scheme_of([]) is None
    with pytest.raises(CorruptDataError, match="both naming schemes") as caught:
        paths.scheme_of([*v1, *v2])
    assert all(repr(names[-1]) in str(caught.value) for names in (v1, v2))


@pytest.mark.parametrize("scheme", NamingScheme)
def test_newest_manifests_have_the_highest_version(scheme: NamingScheme) -> None:
    """Names of the first scheme sort as text, where 9 comes after 100."""
    others = ["latest_version_hint.json", "d9223372036854775813.manifest", "x", "a" * 29, ""]
    versions = [1, 2, 9, 10, 11, 99, 100]
    for count in range(1, len(versions) + 1):
        names = [paths.manifest_name(version, scheme) for version in versions[:count]]
        result = paths.newest_manifest(sorted([*names, *others]))
        assert result == (versions[count - 1], scheme)
    assert paths.newest_manifest(sorted(others)) is None


def test_mixed_schemes_have_no_newest_version() -> None:
    """An interrupted migration leaves both, and either answer could lose commits."""
    names = [paths.manifest_name(1, NamingScheme.V1), paths.manifest_name(2, NamingScheme.V2)]
    with pytest.raises(CorruptDataError, match="both naming schemes"):
        paths.newest_manifest(sorted(names))


@given(st.binary(min_size=16, max_size=16))
def test_data_file_names_encode_random_bytes(random: bytes) -> None:
    """pylance uses this form, which spreads files over the partitions of a store."""
    name = paths.data_file_name(random)
    assert len(name) == 50 + len(".lance")
    assert paths.parse_data_file_name(name) == random
    assert paths.data_file_path(name) == f"data/{name}"


@pytest.mark.parametrize(
    "name",
    [
        "a.lance",
        "2" * 24 + "0" * 26 + ".lance",
        "0" * 50,
        "0" * 49 + "G.lance",
        "0" * 50 + ".other",
    ],
)
def test_foreign_data_file_names_encode_nothing(name: str) -> None:
    """A wrong reading would take another writer's file for one of ours."""
    assert paths.parse_data_file_name(name) is None
    data = np.frombuffer(name.encode(), np.uint8)
    are_random, _ = paths.parse_data_file_names(data, np.array([0]), np.array([len(name)]))
    assert not are_random.any()


def test_data_file_names_need_16_bytes() -> None:
    """Fewer random bytes would risk that two writers choose one name."""
    with pytest.raises(InvalidInputError):
        paths.data_file_name(b"short")


def test_base_kind_decides_data_folder() -> None:
    """Those of a dataset root are in its `data` folder, others directly below the base path."""
    assert paths.data_file_path("a/b.lance", BasePath(0, "/x", None, True)) == "data/a/b.lance"
    assert paths.data_file_path("a.lance", BasePath(0, "/x")) == "a.lance"


def test_transaction_names_state_version_and_uuid() -> None:
    """Cleanup decides by these names which files may go."""
    name = paths.transaction_file_name(12, "0b1c-2d")
    assert name == "12-0b1c-2d.txn"
    assert paths.parse_transaction_file_name(name) == (12, "0b1c-2d")
    assert paths.transaction_path(name) == "_transactions/12-0b1c-2d.txn"
    for other in ("12.txn", "x-y.txn", "12-uuid", "12-.txn", "-5.txn", f"{'0' * 20}1-uuid.txn"):
        assert paths.parse_transaction_file_name(other) is None


@given(
    st.integers(0, (1 << 32) - 1),
    versions,
    st.integers(0, (1 << 64) - 1),
    st.sampled_from(DeletionFileType),
)
def test_deletion_file_names_state_their_fragment(
    fragment_id: int, read_version: int, file_id: int, file_type: DeletionFileType
) -> None:
    """Readers compute the path from the manifest, and cleanup reads the name back."""
    path = paths.deletion_file_path(fragment_id, DeletionFile(file_type, read_version, file_id))
    directory, _, name = path.partition("/")
    assert directory == "_deletions"
    assert paths.parse_deletion_file_name(name) == (fragment_id, read_version, file_id, file_type)


@pytest.mark.parametrize("name", ["1-2-3.txt", "1-2.arrow", "1-2-x.bin", "1-2-3-4.bin", "arrow"])
def test_another_file_is_no_deletion_file(name: str) -> None:
    """Cleanup must leave files alone whose names it does not understand."""
    assert paths.parse_deletion_file_name(name) is None


def test_tag_names_cannot_leave_their_directory() -> None:
    """Tag names come from users and become paths."""
    assert paths.tag_path("v1.0-rc_2") == "_refs/tags/v1.0-rc_2.json"
    for tag in ("", ".", "..", "a/b", "../x", ".x", "x.", "a..b", "x.lock", "a b", "a\\b"):
        with pytest.raises(InvalidInputError):
            paths.tag_path(tag)
    number: Any = 5
    with pytest.raises(InvalidInputError, match="5 cannot be the name of a tag"):
        paths.tag_path(number)


@pytest.mark.parametrize(
    ("name", "tag"),
    [
        *(("v1.json", "v1"), ("a%C3%BC.json", "aü"), ("v1", None), ("v1.txt", None)),
        *((".json", None), (".v1.json", None)),
    ],
)
def test_only_files_of_tags_name_one(name: str, tag: str | None) -> None:
    """A file that a program has not finished has a hidden name."""
    assert paths.parse_tag_file_name(name) == tag


def test_branch_names_cannot_leave_their_directory() -> None:
    """Branch names come from users and become paths, also in tables of other writers."""
    for branch in ("dev", "a/b", "v1.0-rc_2/x", "mainline", "a.lock/b", "ü"):
        assert paths.branch_directory(branch) == f"tree/{branch}"
    for branch in (
        *("", "/", "a//b", "/a", "a/", "..", "a/..", "a..b", ".", "./a", "a/."),
        *("main", "a.lock", "a b", "a\\b", "a:b"),
    ):
        for use in (paths.branch_directory, paths.branch_file_path):
            with pytest.raises(InvalidInputError, match="cannot be the name of a branch"):
                use(branch)


@pytest.mark.parametrize(
    ("name", "field_id"),
    [
        (f"7-{'0a' * 16}.keys", 7),
        *((f"7-{'0a' * 16}", None), (f"x-{'0a' * 16}.keys", None), ("7-0a.keys", None)),
    ],
)
def test_runs_of_keys_state_their_column(name: str, field_id: int | None) -> None:
    """Cleanup reads the name back, and leaves files of other names alone."""
    assert paths.parse_key_index_name(name) == field_id


BAD_PATHS = [
    *("", "/", "/etc/passwd", "..", "../x", "a/../b", "a/..", ".", "./a", "a/./b", "a//b", "a/"),
    *("\\x", "a\\b", "..\\x", "C:/x", "c:x", "s3://bucket/x", "file:x", "~/x", "~root/x"),
    *("a\0b", "a\nb", "a\x7f"),
]


@pytest.mark.parametrize("path", BAD_PATHS)
def test_paths_outside_the_table_are_corrupt(path: str) -> None:
    """Writers of a shared table must not be able to read other files of its readers."""
    for use in (paths.check_stored_path, paths.data_file_path, paths.transaction_path):
        with pytest.raises(CorruptDataError, match="not a path below"):
            use(path)
    with pytest.raises(CorruptDataError):
        paths.data_file_path(path, BasePath(0, "/declared"))


@pytest.mark.parametrize(
    "path", ["a", "a/b.lance", "..a", "a..", "day=1/x y.lance", "ü", "day=1:2/x"]
)
def test_other_stored_paths_are_accepted(path: str) -> None:
    """Other writers use names with spaces, dots and folders."""
    assert paths.check_stored_path(path) == path


@pytest.mark.parametrize(
    ("path", "branch"),
    [
        ("_refs/branches/dev.json", "dev"),
        ("_refs/branches/a%2Fb.json", "a/b"),
        ("_refs/branches/a/b.json", "a/b"),
        ("_refs/branches/.dev.json", None),
        ("_refs/branches/a/.b.json", None),
        ("_refs/branches/.json", None),
        ("_refs/branches/dev.txt", None),
        ("_refs/tags/dev.json", None),
    ],
)
def test_only_files_of_branches_name_one(path: str, branch: str | None) -> None:
    """A file that a program has not finished has a hidden name."""
    assert paths.parse_branch_file_path(path) == branch
