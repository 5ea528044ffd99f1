"""Turning what a user writes into a store.

    /data/t   data/t   ~/t      a path as it is, spaces and percent signs too
    file:///data/t  file:/data/t    a URI: %20 is a space
    memory://t
    az://container/t  abfss://container@account.dfs.core.windows.net/t

Which protocols there are, and why others are refused, stands in `BACKENDS` and `REFUSED`.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.azure_options import OPEN_AZURE
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.memory_store import MemoryStore
from lance_stream.storage.store import Store

_URI = re.compile(r"(file(?=:/)|[A-Za-z][A-Za-z0-9+.-]+(?=://)):(.*)", re.DOTALL | re.IGNORECASE)
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


def open_store(
    location: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Store:
    """Return the store of the files below a location, which need not exist yet.

    Args:
        location: A path or URI.
        storage_options: For local disks: `durable`, "true" to flush every new file to the disk
            before it counts as written; the default is to do so for manifests only. Others are
            left alone.

    Raises:
        InvalidInputError: The location is empty, or an option has a wrong value.
        UnsupportedFeatureError: There is no store for its protocol.
    """
    text = os.fspath(location)
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidInputError(f"{location!r} is not the path or URI of a dataset")
    match = _URI.fullmatch(text)
    protocol, rest = (match[1].lower(), match[2]) if match else ("", text)
    options = dict(storage_options or {})
    backend = BACKENDS.get(protocol)
    if backend is not None:
        return backend(rest, options)
    reason = REFUSED.get(protocol, "no store of that protocol is known")
    raise UnsupportedFeatureError(
        f"{text!r} cannot be opened: {reason}. Supported are local paths, file://, memory:// and az://"
    )


def _open_path(path: str, options: Mapping[str, Any]) -> Store:
    expanded = Path(path).expanduser() if path.startswith("~") else Path(path)
    root = os.path.normpath(expanded.absolute())
    return LocalStore(root, durable=_flag(options, "durable"))


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
    return MemoryStore(root)


def _flag(options: Mapping[str, Any], name: str) -> bool:
    value = str(options.get(name, "false")).lower()
    if value not in _YES + _NO:
        raise InvalidInputError(f"the storage option {name} is true or false, not {value!r}")
    return value in _YES


BACKENDS: Mapping[str, Callable[[str, Mapping[str, Any]], Store]] = {
    "": _open_path,
    "file": _open_file_uri,
    "memory": _open_memory,
    **OPEN_AZURE,
}
"""The stores there are, by protocol; each is given what follows the ":", and the options."""

_LATER = "comes with a later version of lance-stream"
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("s3", "s3a", "s3n"), f"Amazon S3 {_LATER}"),
    "s3+ddb": f"Amazon S3 with DynamoDB {_LATER}",
    **dict.fromkeys(("gs", "gcs"), f"Google Cloud Storage {_LATER}"),
    **dict.fromkeys(
        ("hdfs", "viewfs", "dbfs", "webhdfs"),
        "no way is known to create a file just once there, which commits stand on",
    ),
    **dict.fromkeys(("http", "https"), "a web server takes no writes"),
}
"""Protocols that are refused on purpose, and why."""
