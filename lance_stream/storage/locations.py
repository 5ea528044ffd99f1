"""Opens the store of a location.

    /data/t   data/t   ~/t      a literal path, including spaces and percent signs
    file:///data/t  file:/data/t    a URI: %20 is a space
    memory://t
    s3://bucket/path/t              a URI; also s3a:// and s3n://, as Spark users write them
    az://container/t  abfss://container@account.dfs.core.windows.net/t
    gs://bucket/t  gcs://bucket/t
    other://any/t                   read only, where fsspec has a registered filesystem "other"

A relative path whose first part ends in a colon is written `./part:/t`.

`BACKENDS` has the supported protocols; `REFUSED` why others are refused.

Each store is imported by what opens it: a process imports those of its tables and no others.
"""

import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.options.names import (
    AZURE_PROTOCOLS,
    as_flag,
    as_mapping,
    take_settings,
)
from lance_stream.storage.store import Store

_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+(?=:/)):(.*)", re.DOTALL | re.IGNORECASE)
"""A protocol has at least two letters, then a slash: Hadoop writes `dbfs:/t`, `hdfs:/t`."""

_NEVER = "never"

_SAME_PROTOCOLS = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}


def open_store(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Return the store of the files below a location, which need not exist yet.

    Args:
        location: A path or URI.
        storage_options: `options.names` has those of each store, which uses its own. For local
            disks: `durable`, "true" to flush every new file to disk before it counts as written,
            "never" to flush none; by default, only manifests are flushed.

    Raises:
        InvalidInputError: The location is empty, or an option is invalid or unknown.
        UnsupportedFeatureError: No store supports its protocol.
    """
    text = text_of(location)
    protocol, rest = _split(text)
    _check_protocol(text, protocol, rest)
    options = dict(storage_options or {})
    if protocol not in BACKENDS:
        return _open_registered(protocol, rest, options)
    return BACKENDS[protocol](rest, options)


def text_of(location: str | os.PathLike[str]) -> str:
    """Return a location as text.

    Raises:
        InvalidInputError: It is none.
    """
    text = os.fspath(location) if isinstance(location, str | os.PathLike) else None
    if not isinstance(text, str) or not text or "\0" in text or _is_no_unicode(text):
        raise InvalidInputError(
            f"{location!r:.200} is not the path or URI of a dataset: 'tables/events.lance', "
            "'s3://bucket/events'"
        )
    return text


def _is_no_unicode(text: str) -> bool:
    """Return whether a name has bytes that are not UTF-8, which manifests and URIs cannot have."""
    return not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text)


def _split(text: str) -> tuple[str, str]:
    """Return the protocol of a location, "" for none, and what follows it."""
    match = _URI.fullmatch(text)
    return (match[1].lower(), match[2]) if match else ("", text)


def _check_protocol(text: str, protocol: str, rest: str) -> None:
    if protocol not in BACKENDS and (protocol in REFUSED or not is_registered(protocol)):
        reason = REFUSED.get(protocol, "no store of that protocol is known")
        raise UnsupportedFeatureError(
            f"{text!r} cannot be opened: {reason}. Supported are local paths, "
            + ", ".join(f"{backend}://" for backend in BACKENDS if backend)
        )
    if protocol not in ("", "file") and not rest.startswith("//"):
        raise InvalidInputError(
            f"{text!r} is not the URI of a dataset: {protocol}:// has two slashes. A path on this "
            f"machine is written ./{text}"
        )


def protocol_of(location: str) -> str:
    """Return the protocol of a location in lower case; "" for a path."""
    return _split(location)[0]


def is_relative(location: str) -> bool:
    """Return whether a location is a path that depends on the working directory."""
    return not _split(location)[0] and not Path(location).is_absolute()


def as_absolute(location: str) -> str:
    """Return a location in a form that is the same for every process on this machine.

    Args:
        location: A path, which may be relative or begin with "~", or a URI.
    """
    return _root_of_path(location) if location and is_relative(location) else location


def in_one_spelling(location: str) -> str:
    """Return the same text for all spellings of a location: of two such tables, one is meant.

    Args:
        location: A path, which may be relative, or a URI; no request is sent.

    Raises:
        InvalidInputError: It is no location.
    """
    protocol, rest = _split(location)
    if protocol in ("", "file"):
        return open_store(location).uri
    return f"{_SAME_PROTOCOLS.get(protocol, protocol)}:{rest.rstrip('/')}"


def check_is_shared(location: str | os.PathLike[str]) -> None:
    """Raise unless all Spark processes see the same files at a location.

    Raises:
        InvalidInputError: Each would see its own: files written by tasks would be lost with them.
        UnsupportedFeatureError: No store supports its protocol.
    """
    text = text_of(location)
    if text.strip().lower().startswith("memory:"):
        raise InvalidInputError(
            f"{location!r} is in the memory of one process, but Spark reads and writes in "
            "many: use a path that all of them see"
        )
    protocol, rest = _split(text)
    if protocol != "s3+ddb":  # of a whole dataset
        _check_protocol(text, protocol, rest)


def _open_path(path: str, options: Mapping[str, Any]) -> Store:
    given = take_settings(options, "local")
    durable = given.get("durable", False)
    if str(durable).strip().lower() == _NEVER:
        return LocalStore(_root_of_path(path), volatile=True)
    return LocalStore(_root_of_path(path), durable=as_flag("durable", durable, also=[_NEVER]))


def _root_of_path(path: str) -> str:
    try:
        whole = path if path.startswith("/") else Path(path).expanduser().absolute()
        return os.path.normpath(whole)
    except (RuntimeError, FileNotFoundError) as error:
        raise InvalidInputError(
            f"{path!r} is not the path of a dataset: what it is relative to, a home or the working "
            f"directory, is not there ({error}). Give an absolute path"
        ) from error


def _open_file_uri(rest: str, options: Mapping[str, Any]) -> Store:
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise InvalidInputError(
                f"the URI 'file:{rest}' names {host!r} as a host; file:///{rest[2:]} is the file "
                "of that path on this machine"
            )
        rest = f"/{path}"
    if not rest.startswith("/"):
        raise InvalidInputError(f"the path of the URI 'file:{rest}' is not absolute")
    return _open_path(unquote(rest), options)


def _open_memory(rest: str, _options: Mapping[str, Any]) -> Store:
    root = "/" + "/".join(part for part in rest.split("/") if part not in ("", "."))
    if root == "/" or ".." in root.split("/"):
        raise InvalidInputError(f"'memory:{rest}' is not the URI of a dataset in memory")
    from lance_stream.storage.memory_store import MemoryStore

    return MemoryStore(root)


def _open_registered(protocol: str, rest: str, options: Mapping[str, Any]) -> Store:
    root = rest.removeprefix("//").rstrip("/")
    if not root or {".", ".."} & set(root.split("/")):
        raise InvalidInputError(f"'{protocol}:{rest}' is not the URI of a dataset")
    from lance_stream.storage.fsspec_store import FsspecStore

    given = take_settings(options, "fsspec").get("fsspec", {})
    return FsspecStore(protocol, root, as_mapping("fsspec", given))


def _open_s3(rest: str, options: Mapping[str, Any]) -> Store:
    from lance_stream.storage.engine.s3 import s3_settings
    from lance_stream.storage.objects.object_store import ObjectStore

    bucket, root = split_bucket(f"s3:{rest}")
    return ObjectStore(s3_settings(options), bucket, root)


def split_bucket(uri: str) -> tuple[str, str]:
    """Return the bucket of a URI, and the unescaped path in it.

    Raises:
        InvalidInputError: There is no bucket or no path, or the path cannot be a dataset's.
    """
    bucket, _, escaped = uri.partition("://")[2].partition("/")
    problem = None
    if not bucket or not escaped.strip("/"):
        problem = "it has to name a bucket and a path in it"
    elif "?" in escaped or "#" in escaped:
        problem = 'it has a query or a fragment; write "?" as %3F and "#" as %23 in a path'
    path = unquote(escaped.strip("/"))
    if problem is None and {"", ".", ".."} & set(path.split("/")):
        problem = 'its path has an empty part, or "." or ".."'
    if problem is None and ("\0" in path or "\N{REPLACEMENT CHARACTER}" in path):
        problem = "its escapes are not those of a text in UTF-8"
    if problem is not None:
        raise InvalidInputError(f"{uri!r} is not the URI of a dataset: {problem}")
    return bucket, path


def _open_google(rest: str, options: Mapping[str, Any]) -> Store:
    from lance_stream.storage.engine.google import google_settings
    from lance_stream.storage.objects.object_store import ObjectStore

    bucket, root = split_bucket(f"gs:{rest}")
    return ObjectStore(google_settings(options), bucket, root)


def _open_azure(protocol: str, rest: str, options: Mapping[str, Any]) -> Store:
    from lance_stream.storage.engine.azure_options import open_azure

    return open_azure(protocol, rest, options)


def is_registered(protocol: str) -> bool:
    """Return whether a protocol was registered with fsspec, or used."""
    from lance_stream.storage import fsspec_store

    return fsspec_store.is_registered(protocol)


BACKENDS: Mapping[str, Callable[[str, Mapping[str, Any]], Store]] = {
    "": _open_path,
    "file": _open_file_uri,
    "memory": _open_memory,
    **dict.fromkeys(("s3", "s3a", "s3n"), _open_s3),
    **{each: partial(_open_azure, each) for each in AZURE_PROTOCOLS},
    **dict.fromkeys(("gs", "gcs"), _open_google),
}
"""The stores by protocol; each is given what follows the ":", and the options."""

REFUSED: Mapping[str, str] = {
    "s3+ddb": "its versions are in DynamoDB, and it is the URI of a whole dataset",
    **dict.fromkeys(
        ("hdfs", "webhdfs", "swebhdfs", "viewfs"),
        "tables are not kept in Hadoop's file system. Keep it in an object store, s3://, abfss:// "
        "or gs:// (Apache Ozone and MinIO speak S3's protocol, too), or on a disk that all see",
    ),
    "dbfs": "it does not promise that a file is created only once, which commits rely on. Name "
    "the object store beneath it: s3://, abfss:// or gs://",
    **dict.fromkeys(
        ("http", "https"),
        "a web server accepts no writes. If it is an object store, name the bucket, "
        "s3://bucket/path, and the server in the storage option endpoint_url",
    ),
}
"""Protocols that are refused on purpose, and why."""
