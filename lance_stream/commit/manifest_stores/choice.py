"""Parses a user's settings of a manifest store.

    s3+ddb://bucket/path?ddbTableName=T                the table's URI, as in the reference

    the storage option `manifest_store`:
    dynamodb://T?region=...&endpoint=...               keys and region of the S3 storage options
    postgresql://user@host:port/db?table=...           otherwise as in libpq
    sqlite:///absolute/path.db?table=...

All of them also accept `base_uri=...`: the table's name in the manifest store, for a table whose
writers use different names for its location. Every table must have a different base URI.

The storage option `dynamodb_endpoint`, or the environment variable DYNAMODB_ENDPOINT, is the
endpoint of DynamoDB unless the URI has one.

A manifest store is imported only when it is used.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from lance_stream.commit.manifest_stores.protocol import ManifestStore
from lance_stream.commit.manifest_stores.sql import DEFAULT_TABLE
from lance_stream.errors import InvalidInputError
from lance_stream.storage.options.names import take_settings
from lance_stream.storage.protocols import DYNAMODB

_DDB_QUERY: Final = "ddbTableName"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Choice(NamedTuple):
    """Where the files of a table are stored, and its versions published.

    Attributes:
        uri: The location of the table's files.
        manifests: The manifest store; None if versions are published in the table's directory.
        base_uri: The table's name in the manifest store; None to derive it from the location.
    """

    uri: str | os.PathLike[str]
    manifests: ManifestStore | None
    base_uri: str | None = None


def choose(uri: str | os.PathLike[str], options: Mapping[str, Any]) -> Choice:
    """Choose where the versions of the table at a location are published.

    Raises:
        InvalidInputError: The URI or an option is invalid, or they name two manifest stores.
    """
    settings = take_settings(options, "manifest store")
    endpoint = settings.get("dynamodb_endpoint") or os.environ.get("DYNAMODB_ENDPOINT")
    text = settings.get("manifest_store")
    if isinstance(uri, str) and uri.lower().startswith(f"{DYNAMODB}:"):
        if text:
            raise InvalidInputError(
                f"the table's URI names a manifest store, by {DYNAMODB}://, and so does the "
                "storage option manifest_store: omit one of them"
            )
        plain, table = _split_ddb(uri)
        return Choice(plain, _dynamodb(table, None, endpoint, options))
    if not text:
        return Choice(uri, None)
    if not isinstance(text, str):
        raise InvalidInputError(
            f"the storage option manifest_store must be a URI, not {type(text).__name__}"
        )
    scheme = text.partition(":")[0].lower()
    factory = _FACTORIES.get(scheme)
    if factory is None or "://" not in text:
        raise InvalidInputError(
            "the storage option manifest_store must begin with one of "
            f"{', '.join(f'{factory}://' for factory in _FACTORIES)}"
        )
    query = dict(_queries(text))
    base_uri = query.pop("base_uri", None)
    if base_uri == "":
        raise InvalidInputError("the base_uri in the storage option manifest_store is empty")
    manifests = factory(_Uri(text, scheme, query), endpoint, options)
    return Choice(uri, manifests, base_uri)


def location_of_files(uri: str) -> str:
    """Return the location of a dataset's files, without the part of the URI for DynamoDB.

    Args:
        uri: A user's URI, or that of a base path in a manifest: in a clone, the reference writes
            the URI by which the cloned table was opened.
    """
    return _split_ddb(uri)[0] if uri.lower().startswith(f"{DYNAMODB}:") else uri


class _Uri(NamedTuple):
    """A manifest store's URI, which may contain a password."""

    text: str
    scheme: str
    query: dict[str, str]


def _queries(uri: str) -> list[tuple[str, str]]:
    """Parse the query of a URI; unlike in a form, "+" is a plus."""
    parts = urlsplit(uri, allow_fragments=False).query
    pairs = (pair.partition("=") for pair in parts.split("&") if pair)
    return [(unquote(key), unquote(value)) for key, _, value in pairs]


def _split_ddb(uri: str) -> tuple[str, str]:
    parts = urlsplit(uri, allow_fragments=False)
    queries = _queries(uri)
    if [key for key, _ in queries] != [_DDB_QUERY] or not queries[0][1]:
        raise InvalidInputError(
            f"a URI of the scheme {DYNAMODB}:// must have exactly one query, {_DDB_QUERY}, which "
            f"names the table of DynamoDB: {DYNAMODB}://bucket/path?{_DDB_QUERY}=T"
        )
    return urlunsplit(("s3", parts.netloc, parts.path, "", "")), queries[0][1]


def _dynamodb_of_uri(uri: _Uri, endpoint: str | None, options: Mapping[str, Any]) -> ManifestStore:
    parts = urlsplit(uri.text, allow_fragments=False)
    _refuse_unknown(uri, ("region", "endpoint"))
    if not parts.netloc or parts.path.strip("/") or "@" in parts.netloc:
        raise InvalidInputError(
            "the URI of a manifest store in DynamoDB is "
            "'dynamodb://table?region=...&endpoint=...'. Pass keys in the storage options of S3, "
            "or where botocore finds them"
        )
    return _dynamodb(
        parts.netloc, uri.query.get("region"), uri.query.get("endpoint") or endpoint, options
    )


def _dynamodb(
    table: str, region: str | None, endpoint: str | None, options: Mapping[str, Any]
) -> ManifestStore:
    from lance_stream.commit.manifest_stores.dynamodb import DynamoDBManifests
    from lance_stream.storage.engine.s3 import s3_settings

    s3 = s3_settings(options)
    return DynamoDBManifests(
        table,
        region=region or s3.region,
        endpoint=endpoint or None,
        key=s3.key,
        secret=s3.secret,
        token=s3.token,
        profile=s3.profile,
    )


def _postgresql_of_uri(
    uri: _Uri, _endpoint: str | None, _options: Mapping[str, Any]
) -> ManifestStore:
    from lance_stream.commit.manifest_stores.postgresql import postgres_manifests

    table = uri.query.pop("table", DEFAULT_TABLE)
    if not all(_NAME.fullmatch(part) for part in table.split(".")) or table.count(".") > 1:
        raise _invalid_table(table)
    parts = urlsplit(uri.text, allow_fragments=False)
    query = "&".join(f"{quote(key)}={quote(value, safe='')}" for key, value in uri.query.items())
    conninfo = f"postgresql://{parts.netloc}{parts.path}" + (f"?{query}" if query else "")
    return postgres_manifests(conninfo, table)


def _sqlite_of_uri(uri: _Uri, _endpoint: str | None, _options: Mapping[str, Any]) -> ManifestStore:
    from lance_stream.commit.manifest_stores.sqlite import SqliteManifests

    parts = urlsplit(uri.text, allow_fragments=False)
    _refuse_unknown(uri, ("table",))
    path = unquote(parts.path)
    table = uri.query.get("table", DEFAULT_TABLE)
    if not _NAME.fullmatch(table):
        raise _invalid_table(table)
    if parts.netloc or not path.startswith("/") or path.endswith("/") or "\0" in path:
        raise InvalidInputError(
            "the URI of a manifest store in SQLite has the absolute path of its file, with three "
            "slashes: 'sqlite:///data/manifests.db'"
        )
    return SqliteManifests(os.path.normpath(path), table)


def _refuse_unknown(uri: _Uri, names: tuple[str, ...]) -> None:
    unknown = sorted(set(uri.query) - set(names))
    if unknown:
        raise InvalidInputError(
            "the query of the storage option manifest_store has an unknown parameter "
            f"{unknown[0]!r}; the parameters of {uri.scheme}:// are "
            f"{', '.join((*names, 'base_uri'))}"
        )


def _invalid_table(table: str) -> InvalidInputError:
    return InvalidInputError(
        f"{table!r} cannot be the table of a manifest store: use letters, digits and '_'"
    )


_FACTORIES: Final[Mapping[str, Callable[[_Uri, str | None, Mapping[str, Any]], ManifestStore]]] = {
    "dynamodb": _dynamodb_of_uri,
    "postgresql": _postgresql_of_uri,
    "postgres": _postgresql_of_uri,
    "sqlite": _sqlite_of_uri,
}
