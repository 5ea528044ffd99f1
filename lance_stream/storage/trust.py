"""Decides which locations named by a table are opened, and with which of the reader's options.

A table may name places outside its directory: base paths (of clones, branches and tables over
several buckets) and the URIs of external blobs. Its author chose them, not its reader. So opening
them with the reader's credentials could disclose these to another host, and opening them on the
reader's machine could disclose the reader's files.

    the table is on     it names                        opened
    ------------------  ------------------------------  --------------------------------------------
    S3, Google          the same service                yes: the endpoint is the reader's choice
    Azure               the same account and endpoint   yes
    any                 another service or account      only if listed in `trusted_locations`
    a local disk        a local path                    yes; for raw bytes see `check_raw_file`
    memory              memory                          yes
    any but local       a local path                    never
    any but memory      memory                          never

A trusted location on another service gets none of the options of the table's own service, because a
name such as `token` means another secret there; one in another account of Azure gets none of the
options of the table's account.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from lance_stream.errors import CorruptDataError, InvalidInputError, UntrustedLocationError
from lance_stream.storage.locations import open_store
from lance_stream.storage.options.names import (
    AZURE_ACCOUNT,
    REQUESTS,
    STORES,
    TRUST,
    take_settings,
)
from lance_stream.storage.protocols import PROTOCOLS
from lance_stream.storage.store import Store

_SERVICES: Final = frozenset(service.name for service in PROTOCOLS.values())
"""The services of our own protocols; for any other protocol see `_family_of`."""

_OF_ONE_MACHINE: Final = frozenset(
    service.name for service in PROTOCOLS.values() if service.is_of_one_machine
)
_CALLED: Final = {"local": "the reader's own disk", "memory": "the memory of the reader's process"}

# A protocol has at least two letters, as in `locations`.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)(.*)", re.DOTALL)
# The text between "://" and the next "/" becomes part of a host name: it must not contain anything
# that ends one.
_BUCKET = re.compile(r"[A-Za-z0-9$_][A-Za-z0-9$._ -]{0,254}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:\d{1,5})?")
_SHOWN: Final = 200


class _Place(NamedTuple):
    """A parsed location.

    Attributes:
        family: The service.
        container: The bucket, container or namenode, with the account's host if the URI names it.
        parts: The path.
    """

    family: str
    container: str
    parts: tuple[str, ...]

    def is_below(self, other: "_Place") -> bool:
        same = (self.family, self.container) == (other.family, other.container)
        return same and self.parts[: len(other.parts)] == other.parts


def open_named(own: Store, location: str, options: Mapping[str, Any]) -> Store:
    """Return the store of a location that a table names.

    Args:
        own: The table's store.
        location: The path or URI that it names.
        options: The reader's storage options for the table, with its `trusted_locations`.

    Raises:
        UntrustedLocationError: It may not be opened; no request was sent to it.
        CorruptDataError: It is not the location of files.
    """
    try:
        place = _place_of(location)
        family = _place_of(own.uri).family
        if place.family in _OF_ONE_MACHINE and place.family != family:
            raise UntrustedLocationError(_of_this_machine(own, location, place))
        if place.family == family:
            if family in _OF_ONE_MACHINE:
                return open_store(location, options)
            _check_container(place)
            named = _same_service(own, location, options)
            if named is not None:
                return named
        _check_container(place)
        if not _is_trusted(place, options):
            raise UntrustedLocationError(_of_others(own, location))
        return open_store(location, _options_for(place, family, options))
    except InvalidInputError as error:
        raise CorruptDataError(
            f"the table at {own.uri} names the location {location[:_SHOWN]!r}, which cannot be "
            f"opened: {error}"
        ) from error


def check_raw_file(own: Store, store: Store, path: str, options: Mapping[str, Any]) -> None:
    """Raise unless the raw bytes of a file that a table names may become values of its rows.

    On a local disk, the table could name every file that the reader can read, including keys and
    passwords. So the file has to be in the table's own directory, with all links resolved, or below
    a trusted location. Other stores have no files of the reader's machine.

    Args:
        own: The table's store.
        store: The file's store, from `open_named`.
        path: The file's path in it.
        options: The reader's storage options for the table.

    Raises:
        UntrustedLocationError: The file is elsewhere on the disk.
    """
    path_on_disk = store.local_path(path)
    if path_on_disk is None:
        return
    file = Path(os.path.realpath(path_on_disk))
    table = own.local_path("")
    if table is not None and file.is_relative_to(os.path.realpath(table)):
        return
    if not _is_trusted(_Place("local", "", file.parts), options):
        raise UntrustedLocationError(
            f"the table at {own.uri} names the file {str(file)[:_SHOWN]!r} as a value of a row, "
            "which is outside the table's directory: a table from someone else could "
            "read any file of yours in this way. It was not opened. " + _remedy(str(file.parent))
        )


def check_is_no_link(store: Store, path: str) -> None:
    """Raise if a file of raw bytes beside a data file is a link.

    Folders may be links, for example if a table's `data` is on another disk. A file in them must
    have exactly the name that a writer of blobs chooses.

    Raises:
        UntrustedLocationError: It is a link.
    """
    path_on_disk = store.local_path(path)
    if path_on_disk is not None and Path(path_on_disk).is_symlink():
        raise UntrustedLocationError(
            f"the file of blobs {path[:_SHOWN]!r} of the table at {store.uri} is a link, and a "
            "table from someone else could read any file of yours that way. Put the file "
            "itself in its place"
        )


def with_trusted(
    options: Mapping[str, Any] | None, trusted: str | Sequence[str] | None
) -> Mapping[str, Any] | None:
    """Return storage options with the locations that a table may name.

    Raises:
        InvalidInputError: One is not a location, or the options already have them.
    """
    if trusted is None:
        return options
    if options and any(option.lower() == _OPTION for option in options if isinstance(option, str)):
        raise InvalidInputError(
            f"{_OPTION} is given twice, by itself and as a storage option: leave one of them out"
        )
    joined = {**(options or {}), _OPTION: tuple(_as_list(trusted))}
    trusted_places(joined)
    return joined


def trusted_places(options: Mapping[str, Any]) -> list[_Place]:
    """Return the locations that the reader trusts, from storage options.

    Raises:
        InvalidInputError: One is not a location.
    """
    given = take_settings(options, "trust").get(_OPTION)
    return [] if given is None else [_trusted_place(each) for each in _as_list(given)]


_OPTION: Final = next(iter(TRUST))


def _as_list(given: Any) -> list[str]:
    texts = given.split(",") if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InvalidInputError(
            f"{_OPTION} is a list of URIs or absolute paths, such as ['s3://bucket/blobs'], not "
            f"{type(given).__name__}"
        )
    return [text.strip() for text in texts]


def _trusted_place(text: str) -> _Place:
    place = None
    if text and not _is_relative(text):
        place = _place_of(text)
    if place is None or (place.family != "local" and not place.container):
        raise InvalidInputError(
            f"{text!r:.200} cannot be trusted: {_OPTION} are URIs with a bucket, or absolute "
            "paths, such as 's3://bucket/blobs' or 'file:///data/blobs'"
        )
    if place.family == "local":
        return place._replace(parts=Path(os.path.realpath(Path(*place.parts))).parts)
    return place


def _is_relative(text: str) -> bool:
    return _URI.fullmatch(text) is None and not Path(text).is_absolute()


def _place_of(location: str) -> _Place:
    """Parse a location.

    Raises:
        InvalidInputError: It contains "..".
    """
    match = _URI.fullmatch(location)
    protocol, rest = (match[1].lower(), match[2]) if match else ("", location)
    family = _family_of(protocol)
    if family == "local":
        path = unquote(rest.removeprefix("//localhost").removeprefix("//")) if protocol else rest
        return _Place(family, "", Path(path).parts)
    container, _, path = rest.removeprefix("//").partition("/")
    parts = tuple(part for part in unquote(path).split("/") if part)
    if {".", ".."} & set(parts):
        raise InvalidInputError('its path has a part "." or ".."')
    name, at, host = container.rpartition("@")
    host = host.lower().replace(".dfs.", ".blob.", 1) if at and family == "azure" else host
    return _Place(family, f"{name}{at}{host}", parts)


def _family_of(protocol: str) -> str:
    """Return the service of a protocol; another protocol's service has a name unlike all of ours.

    "local" is also a protocol of fsspec once it has been used, and not our own local disk.
    """
    service = PROTOCOLS.get(protocol)
    return f"{protocol}://" if service is None else service.name


def _check_container(place: _Place) -> None:
    """Refuse a bucket's name that could result in the address of another host."""
    bucket, at, host = place.container.partition("@")
    by_host = place.family not in _SERVICES
    is_one = (_HOST if by_host else _BUCKET).fullmatch(bucket)
    if not is_one or (at and not (place.family == "azure" and _HOST.fullmatch(host))):
        raise InvalidInputError(f"{place.container[:_SHOWN]!r} is not the name of a bucket")


def _same_service(own: Store, location: str, options: Mapping[str, Any]) -> Store | None:
    """Return the store of a location if it is on the same host, in the same account."""
    try:
        named = open_store(location, options)
    except InvalidInputError:
        return None  # the URI names another account than the options: opened if it is trusted
    return named if named.service == own.service else None


def _is_trusted(place: _Place, options: Mapping[str, Any]) -> bool:
    return any(place.is_below(each) for each in trusted_places(options))


def _options_for(place: _Place, family: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reader's options that apply to another service or account."""
    table = STORES["fsspec"] if family not in _SERVICES else STORES.get(family, {})
    own = AZURE_ACCOUNT if family == place.family else table.keys() - REQUESTS.keys()
    names = {name for setting in own if setting in table for name in table[setting]}
    return {name: value for name, value in options.items() if name.lower() not in names}


def _of_this_machine(own: Store, location: str, place: _Place) -> str:
    return (
        f"the table at {own.uri} names the location {location[:_SHOWN]!r}, which is on "
        f"{_CALLED[place.family]}, but the table is not: it was not opened, for a table could have "
        "any file of its reader's read in this way. Copy what it names to where the table is, and "
        "write the table again"
    )


def _of_others(own: Store, location: str) -> str:
    return (
        f"the table at {own.uri} names the location {location[:_SHOWN]!r}, which is another "
        "service or account than the table's own: it was not opened, for that would send your "
        "credentials where the table's author chose. " + _remedy(location)
    )


def _remedy(location: str) -> str:
    return (
        f"If you trust it, set trusted_locations=[{location[:_SHOWN]!r}] (for a sink in its "
        "storage_options, in Spark by the option trustedLocations, on the command line by "
        "--trusted-location)"
    )
