"""Opening a table at a version: the newest one, a number, a tag, or a moment."""

import os
from collections.abc import Mapping
from datetime import datetime
from numbers import Integral
from typing import Any, TypeAlias

from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from lance_stream.dataset.table_versions import TableVersion
from lance_stream.dataset.tag_files import read_tag
from lance_stream.dataset.timestamps import nanos_of, timestamp_of
from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.table.feature_flags import check_readable
from lance_stream.table.manifest import Manifest

VersionSpec: TypeAlias = int | str | datetime | None
"""A version's number, a tag's name, a moment with a time zone, or None for the newest."""


def open_table(
    uri: str | os.PathLike[str],
    version: VersionSpec = None,
    storage_options: Mapping[str, Any] | None = None,
) -> TableVersion:
    """Return a version of the table at a location.

    Raises:
        NotFoundError: There is no table, or no such version or tag.
        InvalidInputError: The location or the version makes no sense.
        UnsupportedFeatureError: The table has a feature that a reader must understand and we do
            not.
    """
    log = open_log(uri, storage_options)
    manifest = _resolve(log, version)
    check_readable(manifest)
    return TableVersion(
        uri=os.fspath(uri),
        storage_options=dict(storage_options or {}),
        store=log.store,
        log=log,
        manifest=manifest,
    )


def checkout(table: TableVersion, version: VersionSpec) -> TableVersion:
    """Return the same table at another version; see `open_table`."""
    manifest = _resolve(table.log, version, table.manifest)
    check_readable(manifest)
    return table.at(manifest)


def _resolve(log: VersionLog, version: VersionSpec, known: Manifest | None = None) -> Manifest:
    if version is None:
        return log.read_latest()
    if isinstance(version, datetime):
        return _newest_at(log, version)
    if isinstance(version, str):
        try:
            version = read_tag(log.store, version)
        except NotFoundError:
            log.latest()  # says so where there is no table either
            raise
    number = as_number(version)
    if number is None or number < 1:
        raise InvalidInputError(
            f"a version is a whole number from 1, a tag or a datetime, not {version!r}"
        )
    return known if known is not None and number == known.version else log.read(number)


def as_number(value: object) -> int | None:
    """Return a whole number as Python has it; None for anything else, and for true and false."""
    if isinstance(value, bool):
        return None
    return int(value) if isinstance(value, Integral) else None


def _newest_at(log: VersionLog, moment: datetime) -> Manifest:
    """Return the newest version that was committed at or before a moment."""
    wanted = nanos_of(moment)
    oldest = None
    for version in reversed(log.versions()):
        try:
            manifest = log.read(version)
        except NotFoundError:
            continue  # cleaned up meanwhile
        if (manifest.timestamp_nanos or 0) // 1000 * 1000 <= wanted:
            return manifest
        oldest = manifest
    when = oldest and timestamp_of(oldest)
    raise NotFoundError(
        f"no version was there at {moment.isoformat()}; the oldest one left is version "
        f"{oldest.version if oldest else '?'} of {when.isoformat() if when else 'an unknown time'}"
    )
