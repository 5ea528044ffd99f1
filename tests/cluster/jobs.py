"""The modes of the sink and of the format as jobs of a driver, and what their tables must hold."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cluster import events
from tests.cluster.events import Rows

NUM_PARTITIONS = 3
_APPENDED = {"startingVersion": "1", "maxVersionsPerTrigger": "1"}
_CHANGES = {**_APPENDED, "readChangeFeed": "true"}
_BY_KEY = {"on": ["key"], "sequence_by": "seq", "delete_when": "op = 'd'", "except_columns": ["op"]}
_FORMAT_BY_KEY = {"on": "key", "sequenceBy": "seq", "deleteWhen": "op = 'd'", "exceptColumns": "op"}


@dataclass(frozen=True)
class Mode:
    """A way to write a stream.

    Attributes:
        expected: Returns the rows of the table, given the batches.
        sink: Arguments of the sink; None for the format.
        options: Options of the format.
        source: Whose table is read; "" for the events.
        read: Options of the source.
    """

    expected: Callable[[Sequence[Rows]], Rows]
    sink: Mapping[str, Any] | None = None
    options: Mapping[str, str] | None = None
    source: str = ""
    read: Mapping[str, str] | None = None


MODES: Mapping[str, Mode] = {
    "append": Mode(events.appended, {"compact": 3}),
    "upsert": Mode(events.upserted, {"mode": "upsert", **_BY_KEY}),
    "overwrite": Mode(events.overwritten, {"mode": "overwrite", "any_output_mode": True}),
    "apply_changes": Mode(
        events.upserted, {"mode": "apply_changes", "on": ["key"]}, source="upsert", read=_CHANGES
    ),
    "format_append": Mode(events.appended, options={}),
    "format_upsert": Mode(events.upserted, options={"mode": "upsert", **_FORMAT_BY_KEY}),
}

EVERY_MODE: Mapping[str, Mode] = {
    **MODES,
    "scd2": Mode(
        events.history,
        {
            "stored_as_scd_type": 2,
            "keys": ["key"],
            "sequence_by": "seq",
            "apply_as_deletes": "op = 'd'",
            "except_column_list": ["op", "seq"],
        },
    ),
}
"""With those of which one test alone has tables."""


def stream_job(mode: str, folder: str, source: str = "", **sink: Any) -> dict[str, Any]:
    """Return the job that streams the events of a folder into the table of a mode.

    Args:
        mode: A name in `EVERY_MODE`.
        folder: A URI below which the tables are.
        source: Whose table is read; "" for the mode's usual one.
        sink: Arguments of the sink, instead of the mode's.
    """
    what = EVERY_MODE[mode]
    job = {
        "kind": "stream",
        "name": mode,
        "source": f"{folder}/{source or what.source or 'events'}",
        "table": f"{folder}/{mode}",
        "read": what.read or _APPENDED,
        "num_partitions": NUM_PARTITIONS,
    }
    if what.sink is not None:
        return {**job, "sink": {"app_id": mode, **what.sink, **sink}}
    return {**job, "options": {"appId": mode, **(what.options or {})}}
