"""Builds and parses the paths of all files of a table.

All paths are relative to the table's directory and use "/":

    data/{24 binary digits}{26 hex digits}.lance            data files; any other name is allowed
    _versions/{u64::MAX - version, 20 digits}.manifest      scheme V2
    _versions/{version}.manifest                            scheme V1
    _versions/d{version}.manifest                           detached versions, either scheme
    _versions/{name of a manifest}-{uuid}                   staged for an external manifest store
    _versions/latest_version_hint.json                      {"version":N}; never trusted
    _transactions/{read version}-{uuid}.txn
    _deletions/{fragment id}-{read version}-{id}.arrow|bin
    _indices/{uuid}/                                        the files of one index
    _refs/tags/{tag}.json                                   of the table and all its branches
    _refs/branches/{branch}.json                            a "/" in a branch's name is %2F here
    tree/{branch}/                                          a branch: all of the above but _refs
    _lance_stream/tombstones/{32 hex digits}.arrow          ours: see `tombstones`
    _lance_stream/key_bounds/{field id}.arrow               ours: a cache
    _lance_stream/key_index/{field id}-{32 hex digits}.keys ours: a cache; see `run_format`
    _lance_stream/cloned_from.txn                           ours: see `commit.cloning`
    _lance_stream/staged_rows/{32 hex digits}.arrow         ours: see `staged_rows`
    _lance_stream/quarantined/{32 hex digits}.arrow         ours: see `quarantine_writer`

V2 names sort the newest version first. A table has only one scheme; names of both schemes in one
directory are an error.

A path in a manifest is untrusted input: it is refused if it is absolute or contains "..", or would
be on some operating system. Only base paths that the manifest declares may be outside of the
table's directory.

Source: the table format's "Dataset Directory" and "Manifest Naming Schemes".
"""

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from lance_stream.errors import CorruptDataError, InvalidInputError
from lance_stream.table.fragments.fragment import DeletionFile, DeletionFileType
from lance_stream.table.manifest import BasePath

DATA_DIRECTORY = "data"
VERSIONS_DIRECTORY = "_versions"
TRANSACTIONS_DIRECTORY = "_transactions"
DELETIONS_DIRECTORY = "_deletions"
INDICES_DIRECTORY = "_indices"
REFS_DIRECTORY = "_refs"
TAGS_DIRECTORY = "_refs/tags"
BRANCHES_DIRECTORY = "_refs/branches"
TREE_DIRECTORY = "tree"
MAIN_BRANCH = "main"
TOMBSTONES_DIRECTORY = "_lance_stream/tombstones"
KEY_BOUNDS_DIRECTORY = "_lance_stream/key_bounds"
KEY_INDEX_DIRECTORY = "_lance_stream/key_index"
CLONED_FROM = "_lance_stream/cloned_from.txn"
STAGED_ROWS_DIRECTORY = "_lance_stream/staged_rows"
QUARANTINED_ROWS_DIRECTORY = "_lance_stream/quarantined"
LATEST_VERSION_HINT = "_versions/latest_version_hint.json"

FOLDERS = (
    DATA_DIRECTORY,
    VERSIONS_DIRECTORY,
    TRANSACTIONS_DIRECTORY,
    DELETIONS_DIRECTORY,
    INDICES_DIRECTORY,
    REFS_DIRECTORY,
    "_lance_stream",
)
"""All folders of a table or branch, except `tree`."""

_KEY_INDEX_NAME = re.compile(r"([0-9]{1,10})-[0-9a-f]{32}\.keys")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_DRIVE_OR_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MANIFEST = ".manifest"
_TAG = ".json"
_V2_DIGITS = 20
_V2_LENGTH = _V2_DIGITS + len(_MANIFEST)
MAX_U64 = (1 << 64) - 1
_DETACHED = 1 << 63
_RANDOM_BYTES = 16
_BINARY_DIGITS = 24
_DATA_NAME_LENGTH = _BINARY_DIGITS + 26
_DATA_SUFFIX = b".lance"
# The value of a digit, by its character; 255 for other characters.
_DIGITS = np.full(256, 255, np.uint8)
_DIGITS[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)
_DELETION_SUFFIXES = {DeletionFileType.ARROW_ARRAY: "arrow", DeletionFileType.BITMAP: "bin"}


class NamingScheme(Enum):
    """The naming scheme of a table's manifests."""

    V1 = "V1"
    V2 = "V2"


class ManifestName(NamedTuple):
    """The parsed name of a manifest."""

    version: int
    scheme: NamingScheme


class DeletionFileName(NamedTuple):
    """The parsed name of a deletion file."""

    fragment_id: int
    read_version: int
    id: int
    file_type: DeletionFileType


def is_detached(version: int) -> bool:
    """Return whether a version is not part of its table's history."""
    return version >= _DETACHED


def manifest_name(version: int, scheme: NamingScheme = NamingScheme.V2) -> str:
    """Return the file name of a version's manifest.

    Raises:
        InvalidInputError: The version is not a u64.
    """
    if not 0 <= version <= MAX_U64:
        raise InvalidInputError(f"{version} is not a version")
    if is_detached(version):
        return f"d{version}{_MANIFEST}"
    if scheme is NamingScheme.V2:
        return f"{MAX_U64 - version:0{_V2_DIGITS}}{_MANIFEST}"
    return f"{version}{_MANIFEST}"


def manifest_path(version: int, scheme: NamingScheme = NamingScheme.V2) -> str:
    """Return the path of a version's manifest."""
    return f"{VERSIONS_DIRECTORY}/{manifest_name(version, scheme)}"


def parse_manifest_name(name: str) -> ManifestName | None:
    """Parse the name of a file in `_versions`; None if it is not a version's manifest.

    Returns None for detached versions, temporary files and the hint, which are not part of the
    history.
    """
    digits = name.removesuffix(_MANIFEST)
    if digits == name or not _is_number(digits):
        return None
    number = int(digits)
    if len(digits) == _V2_DIGITS:
        version, scheme = MAX_U64 - number, NamingScheme.V2
    else:
        version, scheme = number, NamingScheme.V1
    return ManifestName(version, scheme) if 0 <= version < _DETACHED else None


def staged_manifest_path(path: str, uuid: str) -> str:
    """Return the path under which a manifest is staged until its version is published.

    Args:
        path: The final path, from `manifest_path`.
        uuid: A new uuid.
    """
    return f"{path}-{uuid}"


def parse_staged_manifest_name(name: str) -> ManifestName | None:
    """Parse the name of a manifest that is staged for publishing; None for other names."""
    stem, _, uuid = name.partition(f"{_MANIFEST}-")
    return parse_manifest_name(f"{stem}{_MANIFEST}") if uuid else None


def parse_detached_manifest_name(name: str) -> int | None:
    """Return the detached version whose manifest has this name, or None."""
    digits = name.removesuffix(_MANIFEST)
    if digits == name or not digits.startswith("d") or not _is_number(digits[1:]):
        return None
    version = int(digits[1:])
    return version if _DETACHED <= version <= MAX_U64 else None


def scheme_of(names: Iterable[str]) -> NamingScheme | None:
    """Return the naming scheme of a table.

    Args:
        names: The file names in `_versions`.

    Returns:
        The scheme of the manifests among them; None without manifests.

    Raises:
        CorruptDataError: Both schemes occur.
    """
    examples = {parsed.scheme: name for name in names if (parsed := parse_manifest_name(name))}
    if len(examples) > 1:
        raise CorruptDataError(
            "the table has manifests of both naming schemes, for example "
            f"{examples[NamingScheme.V1]!r} and {examples[NamingScheme.V2]!r}, so the newest "
            "version cannot be determined. A migration was interrupted: complete it with "
            "lance_stream.migrate_manifest_paths(uri)"
        )
    return next(iter(examples), None)


def newest_manifest(names: Sequence[str]) -> ManifestName | None:
    """Return the newest version among file names; None without versions.

    Args:
        names: The file names in `_versions`, sorted.

    Raises:
        CorruptDataError: Both schemes occur.
    """
    # All names of scheme V2 have the same length, and the newest one sorts first, so the names of a
    # long history need not be parsed.
    others = [name for name in names if len(name) != _V2_LENGTH]
    if scheme_of(others) is None:
        return next(filter(None, map(parse_manifest_name, names)), None)
    scheme_of(names)
    return max(filter(None, map(parse_manifest_name, others)))


def data_file_name(random: bytes) -> str:
    """Return the name of a new data file.

    Args:
        random: 16 random bytes. The first three become binary digits, so that the names of a table
            are spread evenly over an object store's key space.

    Raises:
        InvalidInputError: The number of bytes is not 16.
    """
    if len(random) != _RANDOM_BYTES:
        raise InvalidInputError(f"a data file's name needs 16 random bytes, not {len(random)}")
    return f"{int.from_bytes(random[:3], 'big'):0{_BINARY_DIGITS}b}{random[3:].hex()}.lance"


def parse_data_file_name(name: str) -> bytes | None:
    """Return the 16 bytes from which a data file's name was built; None for other names."""
    stem = name.removesuffix(".lance")
    if stem == name or len(stem) != _DATA_NAME_LENGTH:
        return None
    binary, hexadecimal = stem[:_BINARY_DIGITS], stem[_BINARY_DIGITS:]
    if set(binary) <= set("01") and set(hexadecimal) <= set("0123456789abcdef"):
        return int(binary, 2).to_bytes(3, "big") + bytes.fromhex(hexadecimal)
    return None


def parse_data_file_names(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], stops: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint8]]:
    """Parse many names of data files at once, like `parse_data_file_name`.

    Args:
        data: A buffer.
        starts: (n,) the start of each name in the buffer.
        stops: (n,) the stop of each name.

    Returns:
        (n,) whether a name was built from 16 bytes; (n, 16) these bytes, 0 for other names.
    """
    random = np.zeros((len(starts), _RANDOM_BYTES), np.uint8)
    size = _DATA_NAME_LENGTH + len(_DATA_SUFFIX)
    are_random = stops - starts == size
    names = data[starts[are_random][:, None] + np.arange(size)]
    stems, ends = names[:, :_DATA_NAME_LENGTH], names[:, _DATA_NAME_LENGTH:]
    digits = _DIGITS[stems]
    are_valid = (ends == np.frombuffer(_DATA_SUFFIX, np.uint8)).all(axis=1)
    are_valid &= (digits[:, :_BINARY_DIGITS] < 2).all(axis=1)
    are_valid &= (digits[:, _BINARY_DIGITS:] < 16).all(axis=1)
    are_random[are_random] = are_valid
    digits = digits[are_valid]
    high, low = digits[:, _BINARY_DIGITS::2], digits[:, _BINARY_DIGITS + 1 :: 2]
    random[are_random] = np.concatenate(
        [np.packbits(digits[:, :_BINARY_DIGITS], axis=1), high << 4 | low], axis=1
    )
    return are_random, random


def data_file_path(path: str, base: BasePath | None = None) -> str:
    """Return the path of a data file, relative to the table's directory or to its base path.

    Args:
        path: The path in the manifest.
        base: The file's base path, if the manifest names one.

    Raises:
        CorruptDataError: The path points outside of the directory.
    """
    check_stored_path(path)
    return path if base is not None and not base.is_dataset_root else f"{DATA_DIRECTORY}/{path}"


def blob_folder(data_file: str) -> str:
    """Return the folder of a data file's side files, given `data_file_path`."""
    return data_file.removesuffix(".lance")


def blob_file_path(data_file: str, blob_id: int) -> str:
    """Return the path of a side file of blobs.

    Args:
        data_file: The data file's path, from `data_file_path`.
        blob_id: The side file's number among those of the data file, a u32.
    """
    return f"{blob_folder(data_file)}/{f'{blob_id:032b}'[::-1]}.blob"


def transaction_file_name(read_version: int, uuid: str) -> str:
    """Return the name of a transaction's file."""
    return f"{read_version}-{uuid}.txn"


def parse_transaction_file_name(name: str) -> tuple[int, str] | None:
    """Return the read version and uuid in a transaction file's name, or None."""
    number, _, uuid = name.removesuffix(".txn").partition("-")
    if not name.endswith(".txn") or not uuid or not _is_number(number):
        return None
    return int(number), uuid


def transaction_path(name: str) -> str:
    """Return the path of a transaction file.

    Raises:
        CorruptDataError: The name points outside of the directory.
    """
    return f"{TRANSACTIONS_DIRECTORY}/{check_stored_path(name)}"


def deletion_file_path(fragment_id: int, file: DeletionFile) -> str:
    """Return the path of a fragment's deletion file.

    With a base id, the path is relative to that base path, which must be a dataset root.
    """
    suffix = _DELETION_SUFFIXES[file.file_type]
    return f"{DELETIONS_DIRECTORY}/{fragment_id}-{file.read_version}-{file.id}.{suffix}"


def parse_deletion_file_name(name: str) -> DeletionFileName | None:
    """Parse the name of a deletion file; None if it is not one."""
    stem, _, suffix = name.rpartition(".")
    numbers = stem.split("-")
    for file_type, file_suffix in _DELETION_SUFFIXES.items():
        if suffix == file_suffix and len(numbers) == 3 and all(map(_is_number, numbers)):
            fragment_id, read_version, file_id = map(int, numbers)
            return DeletionFileName(fragment_id, read_version, file_id, file_type)
    return None


def tombstone_file_name(random: bytes) -> str:
    """Return the name of a new file of tombstones.

    Args:
        random: 16 random bytes.
    """
    return f"{random.hex()}.arrow"


def tombstone_path(name: str) -> str:
    """Return the path of a file of tombstones."""
    return f"{TOMBSTONES_DIRECTORY}/{name}"


def key_bounds_path(field_id: int) -> str:
    """Return the path of the saved bounds of a key column."""
    return f"{KEY_BOUNDS_DIRECTORY}/{field_id}.arrow"


def key_index_path(field_id: int, random: bytes) -> str:
    """Return the path of a new run of the key index.

    Args:
        field_id: The first key column.
        random: 16 random bytes.
    """
    return f"{KEY_INDEX_DIRECTORY}/{field_id}-{random.hex()}.keys"


def parse_key_index_name(name: str) -> int | None:
    """Return the first key column of a run of the key index; None if the name is of none."""
    match = _KEY_INDEX_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def staged_rows_path(random: bytes) -> str:
    """Return the path of a new file of staged rows.

    Args:
        random: 16 random bytes.
    """
    return f"{STAGED_ROWS_DIRECTORY}/{random.hex()}.arrow"


def quarantined_rows_path(name: str) -> str:
    """Return the path of a file with rows on their way to the quarantine."""
    return f"{QUARANTINED_ROWS_DIRECTORY}/{name}.arrow"


def index_folder(uuid: bytes) -> str:
    """Return the folder of an index's files.

    Args:
        uuid: The index's 16 bytes.
    """
    digits = uuid.hex()
    groups = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"{INDICES_DIRECTORY}/{'-'.join(groups)}"


def tag_path(tag: str) -> str:
    """Return the path of a tag's file; letters beyond ASCII are percent-encoded.

    Raises:
        InvalidInputError: The name is not valid for a tag.

    Source:
        The reference accepts letters, digits, ".", "-" and "_"; but no dot at either end, no "..",
        and no ".lock" at the end.
    """
    if (
        not isinstance(tag, str)
        or not tag
        or not all(character.isalnum() or character in "._-" for character in tag)
        or tag.startswith(".")
        or tag.endswith((".", ".lock"))
        or ".." in tag
    ):
        raise InvalidInputError(
            f"{tag!r} cannot be the name of a tag: letters, digits, '.', '-' and '_' are allowed, "
            "but no dot at either end, no '..', and no '.lock' at the end"
        )
    return f"{TAGS_DIRECTORY}/{quote(tag)}{_TAG}"


def parse_tag_file_name(name: str) -> str | None:
    """Return the tag whose file has this name, or None."""
    stem = name.removesuffix(_TAG)
    return None if stem == name or not stem or stem.startswith(".") else unquote(stem)


def branch_directory(branch: str) -> str:
    """Return the directory of a branch, relative to the directory of its table.

    Raises:
        InvalidInputError: The name is not valid for a branch.

    Source:
        The reference accepts parts of letters, digits, ".", "-" and "_", separated by "/"; but no
        "..", no ".lock" at the end, and not "main".
    """
    parts = branch.split("/")
    if (
        not all(
            part and all(character.isalnum() or character in "._-" for character in part)
            for part in parts
        )
        or ".." in branch
        or "." in parts
        or branch.endswith(".lock")
        or branch == MAIN_BRANCH
    ):
        raise InvalidInputError(
            f"{branch!r} cannot be the name of a branch: letters, digits, '.', '-' and '_' are "
            "allowed, and '/' between parts, but no '..', no '.lock' at the end, and not 'main'"
        )
    return f"{TREE_DIRECTORY}/{branch}"


def branch_file_path(branch: str) -> str:
    """Return the path of a branch's file.

    Raises:
        InvalidInputError: The name is not valid for a branch.
    """
    branch_directory(branch)
    return f"{BRANCHES_DIRECTORY}/{quote(branch, safe='')}{_TAG}"


def parse_branch_file_path(path: str) -> str | None:
    """Return the branch whose file has this path, or None.

    A store may not encode the "/" of a name, so that the file is in subfolders.
    """
    stem = path.removeprefix(f"{BRANCHES_DIRECTORY}/").removesuffix(_TAG)
    matches = path == f"{BRANCHES_DIRECTORY}/{stem}{_TAG}" and not _is_hidden(stem)
    return unquote(stem) if matches else None


def _is_hidden(stem: str) -> bool:
    return not stem or stem.rpartition("/")[2].startswith(".")


def check_stored_path(path: str) -> str:
    """Return a path from a manifest, after checking that it stays below its directory.

    Raises:
        CorruptDataError: It is empty or absolute; or has an empty segment, a segment "." or "..", a
            backslash, a drive or scheme, or a control character.
    """
    segments = path.split("/")
    is_invalid = (
        any(segment in ("", ".", "..") for segment in segments)
        or "\\" in path
        or _DRIVE_OR_SCHEME.match(path) is not None
        or segments[0].startswith("~")
        or _CONTROL.search(path) is not None
    )
    if is_invalid:
        raise CorruptDataError(
            f"the stored path {path[:200]!r} is not a path below the table's directory"
        )
    return path


def _is_number(digits: str) -> bool:
    return len(digits) <= _V2_DIGITS and digits.isascii() and digits.isdigit()
