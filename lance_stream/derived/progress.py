"""The progress of a derivation: a config entry, set by the commits of its values.

    key      lance_stream.derived.<name, percent-encoded>
    value    {"function": "<16 hex digits>", "function_version": "1", "through": 41,      JSON
              "own": [43], "fields": [0, 4, 5], "outputs": [4, 5], "mark": "<digits>",
              "pending": [{"after": 0, "below": 70000, "skip": []}]}

Through version `through` of the source, all rows have been checked, and computed where necessary,
except those of the *pending ranges* in `pending`. A pending range selects the rows whose
last-updated-at version is later than a version and whose row id is below a number. Rounds process
the newest range first, each from the highest row id down, so that recent changes are computed
before a backfill. A new version of the function is one pending range with all rows.

Compactions change neither row ids nor last-updated-at versions, so pending ranges stay valid. If a
row of a range is computed earlier, because it was updated, it stays in the range: it is checked
again, and is current. A restore brings back an older version's config together with its rows.

`outputs` are the ids of the columns that the derivation created (`ownership`). The commit that adds
them writes an entry with all rows pending. `renews` is true between two commits: the first drops
the state column, the second adds it again together with further outputs. For a separate table,
`source` and `mark` identify the source and the version that the values belong to.

`own` lists the versions in which only the derivation updated rows: these rows are current.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt

from lance_stream.arrays import RowVersions
from lance_stream.errors import CorruptDataError

PREFIX: Final = "lance_stream.derived."


@dataclass(frozen=True)
class PendingRange:
    """A range of rows that are to be checked.

    Attributes:
        after: Last-updated-at versions are later than this version.
        below: Row ids are less than this number; None for no limit.
        skip: Last-updated-at versions that are excluded, because their rows are current.
    """

    after: int
    below: int | None = None
    skip: tuple[int, ...] = ()

    def selects(self, versions: RowVersions) -> npt.NDArray[np.bool_]:
        """Return which last-updated-at versions are in the range."""
        return (versions > np.uint64(self.after)) & ~np.isin(
            versions, np.array(self.skip, np.uint64)
        )


@dataclass(frozen=True)
class Progress:
    """The progress of a derivation.

    Attributes:
        function: `Declaration.fingerprint`.
        function_version: The version that the user declared.
        through: The version of the source through which all rows are current or pending.
        pending: The pending ranges, the newest last.
        derived_versions: Later versions in which only the derivation updated rows.
        fields: The ids of the columns that are read and written.
        outputs: The ids of the output columns and the state column, in the table that has them.
        mark: The mark of version `through` of the source of a separate table; otherwise "".
        renews: Whether the state column has been dropped to be added again.
        source: The location of the source of a separate table; otherwise "".
    """

    function: str
    function_version: str
    through: int
    pending: tuple[PendingRange, ...] = ()
    derived_versions: tuple[int, ...] = ()
    fields: tuple[int, ...] = ()
    mark: str = ""
    outputs: tuple[int, ...] = ()
    renews: bool = False
    source: str = ""


def config_key(name: str) -> str:
    """Return the config key of a derivation."""
    return PREFIX + quote(name, safe="")


def encode(progress: Progress) -> str:
    """Return the value of the config entry."""
    entry = {
        "function": progress.function,
        "function_version": progress.function_version,
        "through": progress.through,
        "pending": [asdict(pending_range) for pending_range in progress.pending],
        "own": progress.derived_versions,
        "fields": progress.fields,
        "mark": progress.mark,
        "outputs": progress.outputs,
        "renews": progress.renews,
        "source": progress.source,
    }
    return json.dumps(entry, sort_keys=True)


def read_progress(config: Mapping[str, str], name: str) -> Progress | None:
    """Return the progress of a derivation; None if it has none.

    Raises:
        CorruptDataError: The entry is damaged.
    """
    text = config.get(config_key(name))
    if text is None:
        return None
    try:
        return _decode(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise CorruptDataError(
            f"the config entry {config_key(name)!r} is damaged: {text[:200]!r}. Remove it with "
            f"ds.update_config({{{config_key(name)!r}: None}}): then all rows are checked again, "
            "but current ones are not computed again"
        ) from None


def read_all(config: Mapping[str, str], name: str) -> dict[str, Progress]:
    """Return the progress of all derivations of a table, by name.

    Args:
        config: The config of the table.
        name: The current derivation; damaged entries of others are ignored.

    Raises:
        CorruptDataError: The entry of the current derivation is damaged.
    """
    entries = {}
    for key in config:
        if key.startswith(PREFIX):
            other = unquote(key.removeprefix(PREFIX))
            try:
                progress = read_progress(config, other)
            except CorruptDataError:
                if other == name:
                    raise
                continue
            if progress is not None:
                entries[other] = progress
    return entries


def _decode(entry: Mapping[str, Any]) -> Progress:
    def number(value: Any) -> int:
        if type(value) is not int or value < 0:
            raise ValueError(value)
        return value

    def pending_range(item: Mapping[str, Any]) -> PendingRange:
        below = item["below"]
        return PendingRange(
            number(item["after"]),
            None if below is None else number(below),
            tuple(map(number, item["skip"])),
        )

    return Progress(
        str(entry["function"]),
        str(entry["function_version"]),
        number(entry["through"]),
        tuple(map(pending_range, entry["pending"])),
        tuple(map(number, entry["own"])),
        tuple(map(number, entry["fields"])),
        str(entry["mark"]),
        tuple(map(number, entry.get("outputs", ()))),  # older entries end here
        entry.get("renews", False) is True,
        str(entry.get("source", "")),
    )


def all_pending(expected: Progress) -> Progress:
    """Return a progress in which all rows are pending.

    Args:
        expected: States the function and the version of the source.
    """
    return replace(expected, pending=(PendingRange(0),), derived_versions=())


def committed(planned: Progress, version: int, *, is_next: bool) -> Progress:
    """Return the progress that a commit of values to the same table stores.

    Args:
        planned: The progress at the version that was read.
        version: The version that the commit creates.
        is_next: Whether that version follows the version that was read.
    """
    if is_next:
        return replace(planned, through=version, derived_versions=())
    return replace(planned, derived_versions=(*planned.derived_versions, version))
