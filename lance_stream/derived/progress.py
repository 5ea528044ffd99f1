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

Row ids and last-updated-at versions survive compactions, and so do pending ranges. A row that is
updated after it was computed stays in its range: it is checked once more, and found current. A
restore brings back an older version's config together with its rows.

`outputs` are the ids of the columns that the derivation created (`ownership`). The commit that adds
them writes an entry with all rows pending. `renews` is true between two commits: the first drops
the state column, the second adds it again together with further outputs. For a separate table,
`source` and `mark` identify the source and the version that the values belong to.

`own` are the versions with last-updated-at versions of our own values: their rows are current.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final
from urllib.parse import quote, unquote

from lance_stream.errors import CorruptDataError

PREFIX: Final = "lance_stream.derived."


@dataclass(frozen=True)
class PendingRange:
    """Rows that are to be checked.

    Attributes:
        after: Their last-updated-at versions are later than this one.
        below: Their row ids are less; None for no limit.
        skip: Last-updated-at versions of rows that are current.
    """

    after: int
    below: int | None = None
    skip: tuple[int, ...] = ()


@dataclass(frozen=True)
class Progress:
    """How far a derivation has come.

    Attributes:
        function: `Declaration.fingerprint`.
        function_version: As the user wrote it.
        through: The version of the source through which all rows are current or pending.
        pending: The pending ranges of rows that are still to be checked; the newest last.
        derived_versions: Later versions in which only we changed the rows that they stamped.
        fields: The ids of the columns that are read and written.
        outputs: The ids of the columns with the values and states, in the table that has them.
        mark: Identifies version `through` of a source in another table; "" in the same one.
        renews: Whether the column of states has been dropped to be added again.
        source: The location of a source in another table; "" in the same one.
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
    """Return the text of an entry."""
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
    """Return the progress of a derivation; None if there is none.

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
            f"the config entry {config_key(name)!r} is damaged: {text[:200]!r}. Remove it, "
            f"ds.update_config({{{config_key(name)!r}: None}}): all rows are checked again, and "
            "those that are current are not computed"
        ) from None


def read_all(config: Mapping[str, str], name: str) -> dict[str, Progress]:
    """Return the progress of all derivations of a table, by their names.

    Args:
        config: The table's.
        name: The derivation that asks. Damaged entries of others are not its concern.

    Raises:
        CorruptDataError: The entry of the one that asks is damaged.
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
        tuple(map(number, entry.get("outputs", ()))),  # older entries lack this, and the rest
        entry.get("renews", False) is True,
        str(entry.get("source", "")),
    )


def all_pending(expected: Progress) -> Progress:
    """Return the progress of a function of which no row is known to be computed.

    Args:
        expected: The function, and the source's version.
    """
    return replace(expected, pending=(PendingRange(0),), derived_versions=())


def committed(planned: Progress, version: int, *, is_next: bool) -> Progress:
    """Return what the commit of values states, in the same table.

    Args:
        planned: The progress with which the values were computed.
        version: The version that the commit makes.
        is_next: Whether no other writer's version is between the one that was read and it.
    """
    if is_next:
        return replace(planned, through=version, derived_versions=())
    return replace(planned, derived_versions=(*planned.derived_versions, version))
