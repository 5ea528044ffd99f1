import pytest

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.file.versions import DEFAULT_FILE_VERSION, FileVersion

ALL = list(FileVersion)


@pytest.mark.parametrize("version", ALL)
def test_every_spelling_of_a_version_parses(version: FileVersion) -> None:
    """Manifests, data files and footers number the versions differently."""
    assert FileVersion.parse(str(version)) is version
    assert FileVersion.from_manifest_name(version.manifest_name) is version
    assert FileVersion.from_numbers(*version.data_file_numbers) is version
    assert FileVersion.from_numbers(*version.footer_numbers) is version


@pytest.mark.parametrize(
    ("alias", "version"),
    [
        ("legacy", FileVersion.V0_1),
        ("0.3", FileVersion.V2_0),
        ("Stable", FileVersion.V2_2),
        ("next", FileVersion.V2_3),
    ],
)
def test_users_may_use_version_aliases(alias: str, version: FileVersion) -> None:
    """Users know these names from pylance."""
    assert FileVersion.parse(alias) is version


@pytest.mark.parametrize("alias", ["legacy", "0.3", "stable", "next", "2.4", ""])
def test_manifests_may_not_use_version_aliases(alias: str) -> None:
    """An alias changes its meaning with the release that reads it."""
    with pytest.raises(UnsupportedFeatureError, match="unknown"):
        FileVersion.from_manifest_name(alias)


@pytest.mark.parametrize("name", ["0.2", "1.0", "2.4", "3.0", "two"])
def test_unknown_versions_list_the_alternatives(name: str) -> None:
    """The list is the remedy for a typing mistake."""
    with pytest.raises(InvalidInputError, match=r"0\.1, 2\.0, 2\.1, 2\.2, 2\.3"):
        FileVersion.parse(name)


def test_footer_numbers_of_2_0_differ() -> None:
    """A 2.0 file ends in 0.3, although its manifest says 2.0."""
    assert FileVersion.V2_0.data_file_numbers == (2, 0)
    assert FileVersion.V2_0.footer_numbers == (0, 3)


@pytest.mark.parametrize("numbers", [(0, 0), (0, 1), (0, 2)])
def test_version_0_1_has_three_spellings(numbers: tuple[int, int]) -> None:
    """Old writers used three pairs of numbers for it."""
    assert FileVersion.from_numbers(*numbers) is FileVersion.V0_1


def test_unknown_version_numbers_are_named() -> None:
    """The number shows that a newer writer made the file."""
    with pytest.raises(UnsupportedFeatureError, match=r"7\.9"):
        FileVersion.from_numbers(7, 9)


@pytest.mark.parametrize("version", ALL)
def test_exactly_the_unstable_format_is_refused(version: FileVersion) -> None:
    """Its files may change their meaning with any release of Lance."""
    if version is FileVersion.V2_3:
        with pytest.raises(UnsupportedFeatureError, match=str(version)):
            version.check_supported()
    else:
        version.check_supported()


def test_new_tables_use_version_2_2() -> None:
    """A change of the default decides which readers can open new tables."""
    assert DEFAULT_FILE_VERSION is FileVersion.V2_2
