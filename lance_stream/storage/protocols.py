"""The protocols of locations: one table of their services, openers and extras.

    ""  file                                   a local disk
    memory                                     the memory of this process
    s3  s3a  s3n                               S3; Spark users write the latter two
    gs  gcs                                    Google Cloud Storage
    az  abfs  abfss  azure  adl  wasb  wasbs   Azure Blob Storage

A store is imported when it is opened, so a process imports only the stores of its tables.

To add a store, write its class, list the names of its options in `options.names`, and add a row
here.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from lance_stream.errors import InvalidInputError
from lance_stream.storage.local_store import LocalStore
from lance_stream.storage.options.names import as_flag, take_settings
from lance_stream.storage.store import Store

Opener = Callable[[str, str, Mapping[str, Any]], Store]
"""Opens a store. The arguments are the protocol, the text after its ":", and the options."""

_NEVER: Final = "never"


@dataclass(frozen=True, slots=True)
class StoreKind:
    """A service that stores files, with one or several protocols.

    Attributes:
        name: Its key in `options.names.STORES`.
        open: Opens a store.
        extra: The extra of this package that installs its library; None if it needs none.
        scheme: The protocol that all programs know; None if they know all of ours.
        is_machine_local: Whether each machine or process has separate files.
        has_buckets: Whether its URIs are `protocol://bucket/path`.
        check_options: Raises for storage options that are invalid on every machine; None to check
            their names only.
    """

    name: str
    open: Opener
    extra: str | None = None
    scheme: str | None = None
    is_machine_local: bool = False
    has_buckets: bool = False
    check_options: Callable[[Mapping[str, Any]], object] | None = None


def _open_path(_protocol: str, path: str, options: Mapping[str, Any]) -> Store:
    durable = take_settings(options, "local").get("durable", False)
    if str(durable).strip().lower() == _NEVER:
        return LocalStore(absolute_path(path), volatile=True)
    return LocalStore(absolute_path(path), durable=as_flag("durable", durable, also=[_NEVER]))


def absolute_path(path: str) -> str:
    """Return a path in a form that is valid for every process on this machine.

    Raises:
        InvalidInputError: The home or working directory to which it is relative does not exist.
    """
    try:
        whole = path if path.startswith("/") else Path(path).expanduser().absolute()
        return os.path.normpath(whole)
    except (RuntimeError, FileNotFoundError) as error:
        raise InvalidInputError(
            f"{path!r} is relative to a home or working directory that does not exist ({error}): "
            "use an absolute path"
        ) from error


def _open_file_uri(protocol: str, rest: str, options: Mapping[str, Any]) -> Store:
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise InvalidInputError(
                f"the URI 'file:{rest}' names the host {host!r}. For a path on this machine, write "
                f"file:///{rest[2:]}"
            )
        rest = f"/{path}"
    if not rest.startswith("/"):
        raise InvalidInputError(f"the path of the URI 'file:{rest}' is not absolute")
    return _open_path(protocol, unquote(rest), options)


def _open_memory(_protocol: str, rest: str, _options: Mapping[str, Any]) -> Store:
    root = "/" + "/".join(part for part in rest.split("/") if part not in ("", "."))
    if root == "/" or ".." in root.split("/"):
        raise InvalidInputError(f"'memory:{rest}' is not the URI of a dataset in memory")
    from lance_stream.storage.memory_store import MemoryStore

    return MemoryStore(root)


def _open_s3(_protocol: str, rest: str, options: Mapping[str, Any]) -> Store:
    from lance_stream.storage.engine.s3 import s3_settings
    from lance_stream.storage.objects.object_store import ObjectStore

    bucket, root = split_bucket(f"s3:{rest}")
    return ObjectStore(s3_settings(options), bucket, root)


def _check_s3_options(options: Mapping[str, Any]) -> None:
    from lance_stream.storage.engine.s3 import s3_settings

    s3_settings(options)


def _open_google(_protocol: str, rest: str, options: Mapping[str, Any]) -> Store:
    from lance_stream.storage.engine.google import google_settings
    from lance_stream.storage.objects.object_store import ObjectStore

    bucket, root = split_bucket(f"gs:{rest}")
    return ObjectStore(google_settings(options), bucket, root)


def _open_azure(protocol: str, rest: str, options: Mapping[str, Any]) -> Store:
    from lance_stream.storage.engine.azure_options import open_azure

    return open_azure(protocol, rest, options)


def split_bucket(uri: str) -> tuple[str, str]:
    """Return the bucket and the unescaped path of a URI.

    Raises:
        InvalidInputError: There is no bucket or no path, or the path is not valid for a dataset.
    """
    bucket, _, escaped = uri.partition("://")[2].partition("/")
    problem = None
    if not bucket or not escaped.strip("/"):
        problem = "it must name a bucket and a path in it"
    elif "?" in escaped or "#" in escaped:
        problem = 'it has a query or a fragment; write "?" as %3F and "#" as %23 in a path'
    path = unquote(escaped.strip("/"))
    if problem is None and {"", ".", ".."} & set(path.split("/")):
        problem = 'its path has an empty part, "." or ".."'
    if problem is None and ("\0" in path or "\N{REPLACEMENT CHARACTER}" in path):
        problem = "its escapes are not valid UTF-8"
    if problem is not None:
        raise InvalidInputError(f"{uri!r} is not the URI of a dataset: {problem}")
    return bucket, path


_S3: Final = StoreKind(
    "s3", _open_s3, extra="s3", scheme="s3", has_buckets=True, check_options=_check_s3_options
)
_GOOGLE: Final = StoreKind("google", _open_google, extra="gcs", scheme="gs", has_buckets=True)
_AZURE: Final = StoreKind("azure", _open_azure, extra="azure")

PROTOCOLS: Final[Mapping[str, StoreKind]] = {
    "": StoreKind("local", _open_path, is_machine_local=True),
    "file": StoreKind("local", _open_file_uri, is_machine_local=True),
    "memory": StoreKind("memory", _open_memory, is_machine_local=True),
    **dict.fromkeys(("s3", "s3a", "s3n"), _S3),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("az", "abfs", "abfss", "azure", "adl", "wasb", "wasbs"), _AZURE),
}
"""The supported protocols, in lower case; "" stands for a path without one."""

DYNAMODB: Final = "s3+ddb"
"""The protocol of a dataset whose files are on S3 and whose versions are in DynamoDB."""

REFUSED: Final[Mapping[str, str]] = {
    DYNAMODB: "its versions are in DynamoDB, and it is the URI of a whole dataset",
    **dict.fromkeys(
        ("hdfs", "webhdfs", "swebhdfs", "viewfs"),
        "Hadoop's file system is not supported. Store the table in an object store (s3://, "
        "abfss:// or gs://; Apache Ozone and MinIO are compatible with S3), or on a shared disk",
    ),
    "dbfs": "it does not guarantee that a file is created only once, which commits depend on. Use "
    "the underlying object store: s3://, abfss:// or gs://",
    **dict.fromkeys(
        ("http", "https"),
        "web servers do not accept writes. If it is an object store, use the URI of the bucket, "
        "s3://bucket/path, and pass the server's URL as the storage option endpoint_url",
    ),
}
"""Protocols that are refused on purpose, with the reasons."""


def store_kind_of(protocol: str) -> StoreKind | None:
    """Return the store of a protocol in lower case; None for a protocol that is not ours."""
    return _S3 if protocol == DYNAMODB else PROTOCOLS.get(protocol)


def canonical_protocol(protocol: str) -> str:
    """Return the protocol that all programs know for a service: "s3" for "s3a"."""
    kind = PROTOCOLS.get(protocol)
    return protocol if kind is None or kind.scheme is None else kind.scheme
