"""Decides which locations that a table names are opened, and with which of the reader's options.

A table can name locations outside its directory: base paths (of clones, branches and tables over
several buckets) and the URIs of external blobs. The table's author chose them, not its reader.
Opening them with the reader's credentials could disclose the credentials to another host, and
opening them on the reader's machine could disclose the reader's files.

    the table is on     it names                        opened
    ------------------  ------------------------------  --------------------------------------------
    S3, Google          the same service                yes: the endpoint is the reader's choice
    Azure               the same account and endpoint   yes
    any                 another service or account      only if listed in `trusted_locations`
    a local disk        a local path                    yes; for raw bytes see `check_raw_file`
    memory              memory                          yes
    any but local       a local path                    never
    any but memory      memory                          never

A trusted location on another service gets none of the options of the table's service, because a
name such as `token` stands for a different secret there. One in another Azure account gets none of
the options of the table's account.
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
"""The services of the supported protocols; for other protocols see `_family_of`."""

_OF_ONE_MACHINE: Final = frozenset(
    service.name for service in PROTOCOLS.values() if service.is_machine_local
)
_TITLES: Final = {"local": "the reader's own disk", "memory": "the memory of the reader's process"}

# A protocol has at least two letters, as in `locations`.
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):(?=/)(.*)", re.DOTALL)
# The text between "://" and the next "/" becomes part of a host name, so it must not contain a
# character that ends one.
_BUCKET = re.compile(r"[A-Za-z0-9$_][A-Za-z0-9$._ -]{0,254}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}(:\d{1,5})?")
_MAX_QUOTED: Final = 200


class _Location(NamedTuple):
    """A parsed location.

    Attributes:
        family: The service.
        container: The bucket or container, with the account's host if the URI names it.
        parts: The path.
    """

    family: str
    container: str
    parts: tuple[str, ...]

    def is_below(self, other: "_Location") -> bool:
        same = (self.family, self.container) == (other.family, other.container)
        return same and self.parts[: len(other.parts)] == other.parts


def open_named(table: Store, location: str, options: Mapping[str, Any]) -> Store:
    """Open the store of a location that a table names.

    Args:
        table: The table's store.
        location: The path or URI that it names.
        options: The reader's storage options for the table, with its `trusted_locations`.

    Raises:
        UntrustedLocationError: The location may not be opened; no request was sent to it.
        CorruptDataError: The text is not a valid location.
    """
    try:
        named_location = _parse(location)
        family = _parse(table.uri).family
        if named_location.family in _OF_ONE_MACHINE and named_location.family != family:
            raise UntrustedLocationError(_of_this_machine(table, location, named_location))
        if named_location.family == family:
            if family in _OF_ONE_MACHINE:
                return open_store(location, options)
            _check_container(named_location)
            store = _same_service(table, location, options)
            if store is not None:
                return store
        _check_container(named_location)
        if not _is_trusted(named_location, options):
            raise UntrustedLocationError(_of_others(table, location))
        return open_store(location, _options_for(named_location, family, options))
    except InvalidInputError as error:
        raise CorruptDataError(
            f"the table at {table.uri} names the location {location[:_MAX_QUOTED]!r}, which cannot "
            f"be opened: {error}"
        ) from error


def check_raw_file(table_store: Store, store: Store, path: str, options: Mapping[str, Any]) -> None:
    """Raise unless the raw bytes of a file that a table names may become values of its rows.

    On a local disk, the table could name every file that the reader can read, including keys and
    passwords. So the file must be in the table's directory (after resolving links), or below a
    trusted location. Other stores contain no files of the reader's machine.

    Args:
        table_store: The table's store.
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
    table = table_store.local_path("")
    if table is not None and file.is_relative_to(os.path.realpath(table)):
        return
    if not _is_trusted(_Location("local", "", file.parts), options):
        raise UntrustedLocationError(
            f"the table at {table_store.uri} names the file {str(file)[:_MAX_QUOTED]!r}, which is "
            "outside the table's directory, as a value of a row. A table from someone else could "
            "read any of your files in this way. The file was not opened. "
            + _remedy(str(file.parent))
        )


def check_is_not_link(store: Store, path: str) -> None:
    """Raise if a file of raw bytes that belongs to a data file is a link.

    Folders may be links, for example if a table's `data` is on another disk, because the files in
    them must have the names that a writer of blobs chooses.

    Raises:
        UntrustedLocationError: The file is a link.
    """
    path_on_disk = store.local_path(path)
    if path_on_disk is not None and Path(path_on_disk).is_symlink():
        raise UntrustedLocationError(
            f"the blob file {path[:_MAX_QUOTED]!r} of the table at {store.uri} is a link: a table "
            "from someone else could read any of your files in this way. Replace the link with the "
            "file itself"
        )


def with_trusted(
    options: Mapping[str, Any] | None, trusted: str | Sequence[str] | None
) -> Mapping[str, Any] | None:
    """Add trusted locations to storage options.

    Raises:
        InvalidInputError: A text is not a location, or the options already have trusted locations.
    """
    if trusted is None:
        return options
    if options and any(option.lower() == _OPTION for option in options if isinstance(option, str)):
        raise InvalidInputError(
            f"{_OPTION} is both an argument and a storage option: omit one of them"
        )
    joined = {**(options or {}), _OPTION: tuple(_as_list(trusted))}
    trusted_locations(joined)
    return joined


def trusted_locations(options: Mapping[str, Any]) -> list[_Location]:
    """Return the locations that the reader trusts, from storage options.

    Raises:
        InvalidInputError: A text is not a location.
    """
    locations = take_settings(options, "trust").get(_OPTION)
    return (
        [] if locations is None else [_parse_trusted(location) for location in _as_list(locations)]
    )


_OPTION: Final = next(iter(TRUST))


def _as_list(locations: Any) -> list[str]:
    texts = locations.split(",") if isinstance(locations, str) else locations
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InvalidInputError(
            f"{_OPTION} must be a list of URIs or absolute paths, such as ['s3://bucket/blobs'], "
            f"not {type(locations).__name__}"
        )
    return [text.strip() for text in texts]


def _parse_trusted(text: str) -> _Location:
    location = None
    if text and not _is_relative(text):
        location = _parse(text)
    if location is None or (location.family != "local" and not location.container):
        raise InvalidInputError(
            f"{text!r:.200} cannot be trusted: {_OPTION} must be URIs with a bucket, or absolute "
            "paths, such as 's3://bucket/blobs' or 'file:///data/blobs'"
        )
    if location.family == "local":
        return location._replace(parts=Path(os.path.realpath(Path(*location.parts))).parts)
    return location


def _is_relative(text: str) -> bool:
    return _URI.fullmatch(text) is None and not Path(text).is_absolute()


def _parse(location: str) -> _Location:
    """Parse a location.

    Raises:
        InvalidInputError: The path contains "..".
    """
    match = _URI.fullmatch(location)
    protocol, rest = (match[1].lower(), match[2]) if match else ("", location)
    family = _family_of(protocol)
    if family == "local":
        path = unquote(rest.removeprefix("//localhost").removeprefix("//")) if protocol else rest
        return _Location(family, "", Path(path).parts)
    container, _, path = rest.removeprefix("//").partition("/")
    parts = tuple(part for part in unquote(path).split("/") if part)
    if {".", ".."} & set(parts):
        raise InvalidInputError('its path has a part "." or ".."')
    name, at, host = container.rpartition("@")
    host = host.lower().replace(".dfs.", ".blob.", 1) if at and family == "azure" else host
    return _Location(family, f"{name}{at}{host}", parts)


def _family_of(protocol: str) -> str:
    """Return the service of a protocol; for an unknown protocol, a name that no service has.

    Once it has been used, "local" is also a protocol of fsspec, different from our local disk.
    """
    service = PROTOCOLS.get(protocol)
    return f"{protocol}://" if service is None else service.name


def _check_container(location: _Location) -> None:
    """Refuse a bucket's name that could result in the address of another host."""
    bucket, at, host = location.container.partition("@")
    by_host = location.family not in _SERVICES
    is_valid = (_HOST if by_host else _BUCKET).fullmatch(bucket)
    if not is_valid or (at and not (location.family == "azure" and _HOST.fullmatch(host))):
        raise InvalidInputError(f"{location.container[:_MAX_QUOTED]!r} is not the name of a bucket")


def _same_service(table: Store, location: str, options: Mapping[str, Any]) -> Store | None:
    """Return the store of a location if it is on the same host, in the same account."""
    try:
        store = open_store(location, options)
    except InvalidInputError:
        return None  # the URI and the options name different accounts: opened only if trusted
    return store if store.service == table.service else None


def _is_trusted(location: _Location, options: Mapping[str, Any]) -> bool:
    return any(location.is_below(trusted) for trusted in trusted_locations(options))


def _options_for(location: _Location, family: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reader's options that apply to another service or account."""
    names_of_store = STORES["fsspec"] if family not in _SERVICES else STORES.get(family, {})
    settings = (
        AZURE_ACCOUNT if family == location.family else names_of_store.keys() - REQUESTS.keys()
    )
    names = {
        name
        for setting in settings
        if setting in names_of_store
        for name in names_of_store[setting]
    }
    return {name: value for name, value in options.items() if name.lower() not in names}


def _of_this_machine(table: Store, location: str, parsed: _Location) -> str:
    return (
        f"the table at {table.uri} names the location {location[:_MAX_QUOTED]!r}, which is on "
        f"{_TITLES[parsed.family]}, while the table is not. It was not opened: a table could read "
        "any of its reader's files in this way. Copy the files to the table's store, and write the "
        "table again"
    )


def _of_others(table: Store, location: str) -> str:
    return (
        f"the table at {table.uri} names the location {location[:_MAX_QUOTED]!r}, which is on "
        "another service or account than the table. It was not opened: that would send your "
        "credentials to a host that the table's author chose. " + _remedy(location)
    )


def _remedy(location: str) -> str:
    return (
        f"If you trust it, set trusted_locations=[{location[:_MAX_QUOTED]!r}] (for a sink in "
        "storage_options; in Spark, the option trustedLocations; on the command line, "
        "--trusted-location)"
    )
