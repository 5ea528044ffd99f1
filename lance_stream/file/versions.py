"""File versions: their names, and their three different spellings in the format.

    version     manifest    DataFile (major, minor)     footer (major, minor)
    0.1         "0.1"       (0, 2)                      (0, 2), another file layout
    2.0         "2.0"       (2, 0)                      (0, 3)
    2.1         "2.1"       (2, 1)                      (2, 1)
    2.2         "2.2"       (2, 2)                      (2, 2)
    2.3         "2.3"       (2, 3)                      (2, 3), unstable

Old writers used other pairs: (0, 0) and (0, 1) for 0.1, and for 2.0 either pair in both
places. They are read, never written.

Source: files and manifests that the reference wrote.
"""

from enum import Enum
from typing import Final

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError


class FileVersion(Enum):
    """The format of a data file. The value is the name that manifests store."""

    V0_1 = "0.1"
    V2_0 = "2.0"
    V2_1 = "2.1"
    V2_2 = "2.2"
    V2_3 = "2.3"

    def __str__(self) -> str:
        return self.value

    @property
    def manifest_name(self) -> str:
        """The name in a manifest's data format, for example `"2.2"`."""
        return self.value

    @property
    def data_file_numbers(self) -> tuple[int, int]:
        """The (major, minor) that a manifest stores for each data file."""
        return _DATA_FILE_NUMBERS[self]

    @property
    def footer_numbers(self) -> tuple[int, int]:
        """The (major, minor) in the last bytes of the file itself."""
        return _FOOTER_NUMBERS[self]

    @classmethod
    def parse(cls, name: str) -> "FileVersion":
        """Return the version that a user requested, by its name or an alias.

        Raises:
            InvalidInputError: There is no such version; the message lists the existing ones.
        """
        lowered = str(name).lower()
        version = _ALIASES.get(lowered)
        if version is not None:
            return version
        try:
            return cls(lowered)
        except ValueError:
            names = ", ".join([version.value for version in cls] + sorted(_ALIASES))
            raise InvalidInputError(
                f"there is no file version {name!r}; choose one of {names}"
            ) from None

    @classmethod
    def from_manifest_name(cls, name: str) -> "FileVersion":
        """Return the version in a manifest; aliases are never stored.

        Raises:
            UnsupportedFeatureError: The name is unknown.
        """
        try:
            return cls(name)
        except ValueError:
            raise UnsupportedFeatureError(f"unknown file version {name!r}") from None

    @classmethod
    def from_numbers(cls, major: int, minor: int) -> "FileVersion":
        """Return the version for the numbers in a DataFile message or a file's footer.

        Raises:
            UnsupportedFeatureError: The pair is unknown.
        """
        version = _VERSIONS_BY_NUMBERS.get((major, minor))
        if version is None:
            raise UnsupportedFeatureError(f"unknown file version {major}.{minor}")
        return version

    def check_supported(self) -> None:
        """Check that lance-stream reads and writes files of this version.

        Raises:
            UnsupportedFeatureError: It does not support the version; the message names it.
        """
        reason = _REFUSED.get(self)
        if reason is not None:
            raise UnsupportedFeatureError(
                f"data files of version {self} are not supported: {reason}"
            )


DEFAULT_FILE_VERSION: Final = FileVersion.V2_2
"""The version of new tables, as in the reference."""

_ALIASES: Final = {
    "legacy": FileVersion.V0_1,
    "0.3": FileVersion.V2_0,
    "stable": FileVersion.V2_2,
    "next": FileVersion.V2_3,
}

_DATA_FILE_NUMBERS: Final = {
    FileVersion.V0_1: (0, 2),
    FileVersion.V2_0: (2, 0),
    FileVersion.V2_1: (2, 1),
    FileVersion.V2_2: (2, 2),
    FileVersion.V2_3: (2, 3),
}

_FOOTER_NUMBERS: Final = {**_DATA_FILE_NUMBERS, FileVersion.V2_0: (0, 3)}

_VERSIONS_BY_NUMBERS: Final = {
    (0, 0): FileVersion.V0_1,
    (0, 1): FileVersion.V0_1,
    **{numbers: version for version, numbers in _DATA_FILE_NUMBERS.items()},
    **{numbers: version for version, numbers in _FOOTER_NUMBERS.items()},
}

_REFUSED: Final = {
    FileVersion.V2_3: "its format is unstable and may change; rewrite the table in 2.2",
}
