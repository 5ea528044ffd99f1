"""Opens the store of a location.

    /data/t   data/t   ~/t      a literal path; it may contain spaces and percent signs
    file:///data/t  file:/data/t    a URI: %20 is a space
    memory://t
    s3://bucket/path/t              a URI; also s3a:// and s3n://, which Spark users write
    az://container/t  abfss://container@account.dfs.core.windows.net/t
    gs://bucket/t  gcs://bucket/t
    other://any/t                   read-only, if a filesystem "other" is registered with fsspec

Write a relative path whose first part ends in a colon as `./part:/t`.

`protocols` lists the supported protocols, and the reasons for refusing others.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.options.names import as_mapping, take_settings
from lance_stream.storage.protocols import (
    DYNAMODB,
    PROTOCOLS,
    REFUSED,
    absolute_path,
    canonical_protocol,
)
from lance_stream.storage.store import Store

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+(?=:/)):(.*)", re.DOTALL | re.IGNORECASE)
"""A protocol has at least two letters, then a slash: Hadoop writes `dbfs:/t`, `hdfs:/t`."""

_SECRET = re.compile(
    r"//[^/@]*:[^@]*@|[?&](sig|x-amz-signature|x-goog-signature|[^=&]*token)=", re.IGNORECASE
)
"""A password in a URI as for Hadoop's s3n, `s3n://key:secret@bucket/t`, or a signed URL."""


def open_store(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Return the store of the files below a location, which need not exist yet.

    Args:
        location: A path or URI.
        storage_options: Options of any store (see `options.names`); the others are ignored. For
            local disks, `durable`: "true" flushes every new file before it counts as written,
            "never" flushes none; by default, only manifests are flushed.

    Raises:
        InvalidInputError: The location is empty or contains a password, or an option is invalid or
            unknown.
        UnsupportedFeatureError: No store supports the protocol.
    """
    text = text_of(location)
    protocol, rest = _split(text)
    _check_protocol(text, protocol, rest)
    options = dict(storage_options or {})
    service = PROTOCOLS.get(protocol)
    if service is None:
        return _open_registered(protocol, rest, options)
    return service.open(protocol, rest, options)


def text_of(location: str | os.PathLike[str]) -> str:
    """Return a location as text.

    Raises:
        InvalidInputError: The location is not a path or URI.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text or _is_not_unicode(text):
        raise InvalidInputError(
            f"{location!r:.200} is not the path or URI of a dataset: 'tables/events.lance', "
            "'s3://bucket/events'"
        )
    return text


def _is_not_unicode(text: str) -> bool:
    """Return whether a name has bytes that are not UTF-8, which manifests and URIs cannot store."""
    return not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text)


def _split(text: str) -> tuple[str, str]:
    """Return the protocol of a location, "" if it has none, and the rest."""
    match = _URI.fullmatch(text)
    return (match[1].lower(), match[2]) if match else ("", text)


def _check_protocol(text: str, protocol: str, rest: str) -> None:
    if protocol not in ("", "file") and _SECRET.search(rest) and not is_registered(protocol):
        raise InvalidInputError(
            "the location contains a password or a signature, which plans, logs and errors would "
            f"show. Use a {protocol}:// URI without it, and pass credentials as storage options"
        )
    if protocol not in PROTOCOLS and (protocol in REFUSED or not is_registered(protocol)):
        reason = REFUSED.get(protocol, "its protocol is unknown")
        raise UnsupportedFeatureError(
            f"{text!r} cannot be opened: {reason}. Supported are local paths, "
            + ", ".join(f"{supported}://" for supported in PROTOCOLS if supported)
        )
    if protocol not in ("", "file") and not rest.startswith("//"):
        raise InvalidInputError(
            f"{text!r} is not the URI of a dataset: a URI has two slashes, {protocol}://. For a "
            f"path on this machine, write ./{text}"
        )


def protocol_of(location: str) -> str:
    """Return the protocol of a location in lower case; "" for a path."""
    return _split(location)[0]


def is_relative(location: str) -> bool:
    """Return whether a location is a path that depends on the working directory."""
    return not _split(location)[0] and not Path(location).is_absolute()


def as_absolute(location: str) -> str:
    """Return a location in a form that is valid for every process on this machine.

    Args:
        location: A path, possibly relative or beginning with "~", or a URI.
    """
    return absolute_path(location) if location and is_relative(location) else location


def normalized_location(location: str) -> str:
    """Return a normal form of a location, to compare the locations of two tables.

    Args:
        location: A path, possibly relative, or a URI; no request is sent.

    Raises:
        InvalidInputError: The text is not a location.
    """
    protocol, rest = _split(location)
    if protocol in ("", "file"):
        return open_store(location).uri
    return f"{canonical_protocol(protocol)}:{rest.rstrip('/')}"


def check_is_shared(location: str | os.PathLike[str]) -> None:
    """Raise unless all Spark processes see the same files at a location.

    Raises:
        InvalidInputError: Each process would see different files, and files that a task writes
            would be lost with its process; or the location contains a password.
        UnsupportedFeatureError: No store supports the protocol.
    """
    text = text_of(location)
    if text.strip().lower().startswith("memory:"):
        raise InvalidInputError(
            f"{location!r} is in the memory of one process, but Spark reads and writes in many "
            "processes: use a location that all of them can reach"
        )
    protocol, rest = _split(text)
    if protocol != DYNAMODB:
        _check_protocol(text, protocol, rest)


def _open_registered(protocol: str, rest: str, options: Mapping[str, Any]) -> Store:
    root = rest.removeprefix("//").rstrip("/")
    if not root or {".", ".."} & set(root.split("/")):
        raise InvalidInputError(f"'{protocol}:{rest}' is not the URI of a dataset")
    from lance_stream.storage.fsspec_store import FsspecStore

    arguments = take_settings(options, "fsspec").get("fsspec", {})
    return FsspecStore(protocol, root, as_mapping("fsspec", arguments))


def is_registered(protocol: str) -> bool:
    """Return whether a protocol was registered with fsspec, or used."""
    from lance_stream.storage import fsspec_store

    return fsspec_store.is_registered(protocol)
