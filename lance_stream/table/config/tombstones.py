"""Tombstones: remembered deletes, so that a late row does not undo a delete.

Once a row is deleted, there is nothing left with which a late insert or update of its key could be
compared. So the key, sequence and time of a delete are kept for a while. They are stored in files
next to the data files, and an entry of the table's config names the valid files:

    key      lance_stream.tombstones
    value    {"on": ["id"], "sequence_by": "seq", "sequence_type": "int64",
              "files": [{"name": "0b1c….arrow", "ms": 1763740000000, "rows": 12,
                         "bytes": 1394, "digest": "5f2c…"}]}     JSON

If the table is a history of its keys (`upsert.histories`), the files also store events that show in
no row, with the values of the columns that "values" lists.

The entry is set in the same commit as the deletes, copied from manifest to manifest, and reverted
by a restore. A concurrent writer adds its file to those of the newest version. A file never
changes. If there are many small files, the next one includes their rows (`files_to_join`), so there
are at most `MAX_FILES_PER_TIER` of each order of magnitude.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeGuard

from lance_stream.errors import CorruptDataError, InvalidInputError

CONFIG_KEY: Final = "lance_stream.tombstones"
"""The config key of the entry."""

MAX_FILES_PER_TIER: Final = 7
MAX_ROWS_TO_JOIN: Final = 1 << 18
"""A file with this many rows, the least of a tier, is not rewritten."""

_NAME = re.compile(r"[0-9a-f]{32}\.arrow")
_MAX_NUMBER = (1 << 63) - 1
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class FileContent:
    """The size and digest of a file, by which a replaced file is detected.

    Attributes:
        num_bytes: The number of bytes.
        digest: The BLAKE2b digest of the bytes, 32 hexadecimal digits.
    """

    num_bytes: int
    digest: str

    @classmethod
    def of(cls, data: bytes) -> "FileContent":
        """Return the content of a file with some bytes."""
        return cls(len(data), hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest())


@dataclass(frozen=True, slots=True)
class TombstoneFile:
    """One file of tombstones.

    Attributes:
        name: The file's name (see `paths.tombstone_path`).
        newest_ms: The time of the newest tombstone, in milliseconds since 1970-01-01 UTC.
        num_rows: The number of tombstones.
        content: The file's size and digest; None in tables of early releases.
    """

    name: str
    newest_ms: int
    num_rows: int
    content: "FileContent | None" = None


@dataclass(frozen=True, slots=True)
class Tombstones:
    """The tombstones of a version.

    Attributes:
        on: The key columns.
        sequence_by: The column that orders rows of one key.
        sequence_type: The format's name of its type (see `schema.types.logical_types`).
        files: The files of tombstones.
        values: The columns whose values are stored with the events of a history; None if there are
            only deletes.
    """

    on: tuple[str, ...]
    sequence_by: str
    sequence_type: str
    files: tuple[TombstoneFile, ...] = ()
    values: tuple[str, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The table's columns in the tombstones."""
        return (*self.on, self.sequence_by, *(self.values or ()))


def read_tombstones(config: Mapping[str, str]) -> Tombstones | None:
    """Return the tombstones of a version; None if it has none.

    Raises:
        CorruptDataError: The config's entry is invalid.
    """
    return _parse(config[CONFIG_KEY]) if CONFIG_KEY in config else None


def config_entries(tombstones: Tombstones) -> dict[str, str]:
    """Return the config entry for a version's tombstones."""
    value = {
        "on": list(tombstones.on),
        "sequence_by": tombstones.sequence_by,
        "sequence_type": tombstones.sequence_type,
        "files": [
            {"name": file.name, "ms": file.newest_ms, "rows": file.num_rows}
            | (
                {"bytes": file.content.num_bytes, "digest": file.content.digest}
                if file.content
                else {}
            )
            for file in tombstones.files
        ],
    }
    if tombstones.values is not None:
        value["values"] = list(tombstones.values)
    return {CONFIG_KEY: json.dumps(value)}


def is_of(
    tombstones: Tombstones, on: Sequence[str], sequence_by: str | None, *, is_history: bool = False
) -> bool:
    """Return whether tombstones have these key columns and this order.

    Args:
        tombstones: The tombstones of a version.
        on: The key columns.
        sequence_by: The column that orders rows of one key.
        is_history: Whether they store events of a history, not only deletes.
    """
    same_columns = set(tombstones.on) == set(on) and tombstones.sequence_by == sequence_by
    return same_columns and is_history == (tombstones.values is not None)


def check_is_of(
    tombstones: Tombstones, on: Sequence[str], sequence_by: str, *, is_history: bool = False
) -> None:
    """Raise unless tombstones can be added with these key columns and this order; see `is_of`.

    Raises:
        InvalidInputError: The table's tombstones have other columns.
    """
    if tombstones.files and not is_of(tombstones, on, sequence_by, is_history=is_history):
        if is_history != (tombstones.values is not None):
            origin = "scd2" if tombstones.values is not None else "an upsert or scd1"
            raise InvalidInputError(
                f"the table has tombstones (remembered deletes) of {origin}, which do not apply to "
                "these changes: a table has either current rows or their history. Nothing was "
                "written. Write these changes to a separate table; or drop the tombstones by "
                f"removing the key {CONFIG_KEY!r} from the table's config"
            )
        raise InvalidInputError(
            f"the table has tombstones (remembered deletes) by the key {_listed(tombstones.on)} in "
            f"the order of {tombstones.sequence_by!r}, but this upsert is by {_listed(on)} in the "
            f"order of {sequence_by!r}: it would not find those deletes. Nothing was written. "
            "Upsert by the same columns; or omit `tombstones`; or drop the tombstones by removing "
            f"the key {CONFIG_KEY!r} from the table's config"
        )


def without_expired(files: Iterable[TombstoneFile], oldest_ms: int) -> tuple[TombstoneFile, ...]:
    """Return the files that have a delete at or after a given time."""
    return tuple(file for file in files if file.newest_ms >= oldest_ms)


def with_change(
    newest: Tombstones | None, added: Tombstones, joined: Iterable[str], oldest_ms: int
) -> Tombstones:
    """Return the tombstones of the next version.

    Args:
        newest: The tombstones of the newest version.
        added: The tombstones that the commit adds, and their columns.
        joined: The names of the files whose rows the added ones include.
        oldest_ms: Files without a delete at or after this time are dropped.

    Raises:
        InvalidInputError: The tombstones of the newest version have other columns.
    """
    if newest is None:
        return added
    check_is_of(newest, added.on, added.sequence_by, is_history=added.values is not None)
    names = set(joined)
    survivors = [file for file in newest.files if file.name not in names]
    values = added.values
    if values is not None:
        values = tuple(dict.fromkeys((*(newest.values or ()), *values)))
    return replace(
        added, files=(*without_expired(survivors, oldest_ms), *added.files), values=values
    )


def files_to_join(files: Iterable[TombstoneFile], num_rows: int) -> tuple[TombstoneFile, ...]:
    """Return the files whose rows a new file should include, so that small files do not accumulate.

    Files are grouped into tiers by the order of magnitude of their row count, to the base 8. If the
    new file would be one too many in its tier, it includes that tier and all lower ones. So a
    tombstone is rewritten once per tier, not with every commit.

    Args:
        files: The existing files.
        num_rows: The number of new rows in the new file.
    """
    files = tuple(files)
    joined: list[TombstoneFile] = []
    for tier in range(_tier(MAX_ROWS_TO_JOIN)):
        same_tier = [file for file in files if _tier(file.num_rows) == tier]
        total = num_rows + sum(file.num_rows for file in joined)
        if len(same_tier) + (_tier(total) == tier) > MAX_FILES_PER_TIER:
            joined = [file for file in files if _tier(file.num_rows) <= tier]
    return tuple(joined)


def _tier(num_rows: int) -> int:
    return (max(num_rows, 1).bit_length() - 1) // 3


def _listed(names: Iterable[str]) -> str:
    return "(" + ", ".join(map(repr, names)) + ")"


def _parse(value: str) -> Tombstones:
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise CorruptDataError(
            f"the config entry {CONFIG_KEY!r} is not JSON: {value[:200]!r}"
        ) from error
    if isinstance(parsed, dict):
        on, files = parsed.get("on"), parsed.get("files")
        sequence_by, sequence_type = parsed.get("sequence_by"), parsed.get("sequence_type")
        values = parsed.get("values")
        if (
            _are_names(on)
            and isinstance(sequence_by, str)
            and isinstance(sequence_type, str)
            and isinstance(files, list)
            and all(map(_is_file, files))
            and (values is None or _are_names(values, may_be_empty=True))
        ):
            return Tombstones(
                tuple(on),
                sequence_by,
                sequence_type,
                tuple(map(_file, files)),
                None if values is None else tuple(values),
            )
    raise CorruptDataError(
        f"the config entry {CONFIG_KEY!r} does not describe tombstones: {value[:200]!r}. If "
        "another program set it, remove it from the table's config"
    )


def _are_names(value: object, *, may_be_empty: bool = False) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and (may_be_empty or bool(value))
        and all(isinstance(item, str) for item in value)
    )


def _is_file(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("name"), str)
        and _NAME.fullmatch(value["name"]) is not None
        and _is_number(value.get("ms"))
        and _is_number(value.get("rows"))
        and _is_number(value.get("bytes", 0))
        and isinstance(value.get("digest", ""), str)
    )


def _file(value: dict[str, Any]) -> TombstoneFile:
    has_content = "bytes" in value and "digest" in value
    content = FileContent(value["bytes"], value["digest"]) if has_content else None
    return TombstoneFile(value["name"], value["ms"], value["rows"], content)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_NUMBER
