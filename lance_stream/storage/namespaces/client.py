"""Requests to Lance namespaces, by the interface of the library `lance_namespace`.

The library has implementations for directories and REST services (in pylance), and others can be
registered or named by their class: Glue, Hive, Unity, Polaris.

Source: the Lance namespace specification; `lance_namespace` 0.13.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from lance_stream.errors import (
    InvalidInputError,
    LanceStreamError,
    NotFoundError,
    StoreError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedFeatureError,
)
from lance_stream.storage.extras import requires_extra

_IMPLEMENTATION: Final = "impl"
_EXPIRES_AT: Final = "expires_at_millis"
_NOT_OF_STORES: Final = frozenset({_EXPIRES_AT, "refresh_offset_millis"})
_DIRECTORIES: Final = frozenset({"dir", "lance.namespace.DirectoryNamespace"})
_NAME_IN_DIRECTORIES: Final = re.compile(r"[A-Za-z0-9 !$&'()+,.:;=@_-]+")
"""pylance escapes other characters once too often: it reserves another folder than it names as the
table's location, lists both, and leaves the files of a dropped table where a new one finds them.
"""


@dataclass(frozen=True)
class NamespaceTable:
    """A table by its name in a namespace.

    Attributes:
        settings: The settings of the namespace: `impl` and the properties of the implementation,
            sorted by name. They may be secret.
        path: The names of the namespaces that contain the table, and the table's name.
    """

    settings: tuple[tuple[str, str], ...]
    path: tuple[str, ...]

    def __repr__(self) -> str:
        return f"NamespaceTable({self.name!r})"

    @property
    def name(self) -> str:
        """The path with dots, for messages."""
        return ".".join(self.path)

    def encode(self) -> str:
        """Return the table as text, for a storage option."""
        return json.dumps({"settings": dict(self.settings), "path": self.path})

    @classmethod
    def decode(cls, text: str) -> "NamespaceTable":
        """Return the table from the text that `encode` returned."""
        value = json.loads(text)
        return cls(tuple(sorted(value["settings"].items())), tuple(value["path"]))


@dataclass(frozen=True)
class TableLocation:
    """A table's location and storage options, as its namespace states them.

    Attributes:
        uri: The location.
        options: The storage options; they may be secret.
        expires_at: When the credentials among them expire; None for never.
    """

    uri: str
    options: Mapping[str, str]
    expires_at: datetime | None


def as_settings(namespace: object) -> tuple[tuple[str, str], ...]:
    """Return the settings of a namespace from a user's mapping.

    Raises:
        InvalidInputError: It is not a mapping, or has no `impl`. The message shows no values, which
            may be secret.
    """
    if not isinstance(namespace, Mapping) or not namespace.get(_IMPLEMENTATION):
        raise InvalidInputError(
            "a namespace is a mapping with the implementation and its properties, such as "
            "{'impl': 'dir', 'root': 's3://bucket/tables'} or {'impl': 'rest', 'uri': "
            "'https://catalog.example.com'}"
        )
    return tuple(sorted((str(name), str(value)) for name, value in namespace.items()))


def describe(table: NamespaceTable) -> TableLocation:
    """Return the location of a table, with credentials.

    Raises:
        NotFoundError: The namespace has no such table.
        UnsupportedFeatureError: The namespace manages the table's commits.
        StoreError: The namespace did not answer, or refused.
    """
    with _convert_errors(table.settings, f"table {table.name!r}"):
        from lance_namespace import DescribeTableRequest

        request = DescribeTableRequest(id=list(table.path), vend_credentials=True)
        return _location_of(table, connect(table.settings).describe_table(request))


def declare(table: NamespaceTable) -> TableLocation:
    """Reserve the name of a new table, and return its location.

    Raises:
        NotFoundError: A namespace that would contain it does not exist.
        InvalidInputError: The implementation cannot store a table of this name.
        UnsupportedFeatureError: The namespace manages the table's commits.
        StoreError: The namespace did not answer, or refused.
    """
    if _is_misplaced(table):
        raise InvalidInputError(
            f"a directory namespace cannot have a new table {table.name!r}: pylance would not find "
            "all of its files again. Names may have ASCII letters, digits, spaces and "
            "!$&'()+,.:;=@_-"
        )
    with _convert_errors(table.settings, f"table {table.name!r}"):
        from lance_namespace import DeclareTableRequest, TableAlreadyExistsError

        request = DeclareTableRequest(id=list(table.path), vend_credentials=True)
        try:
            return _location_of(table, connect(table.settings).declare_table(request))
        except TableAlreadyExistsError:  # another writer was faster
            return describe(table)


def drop(table: NamespaceTable) -> None:
    """Remove a table from its namespace, with all of its files.

    Raises:
        NotFoundError: The namespace has no such table.
        StoreError: The namespace did not answer, or refused; or the table's files are left.
    """
    with _convert_errors(table.settings, f"table {table.name!r}"):
        from lance_namespace import DropTableRequest

        connect(table.settings).drop_table(DropTableRequest(id=list(table.path)))
    if _is_misplaced(table):
        raise StoreError(
            f"the namespace dropped the table {table.name!r}, but pylance does not delete the "
            "files of a table with such a name. Delete its folder: a new table of this name would "
            "have its rows"
        )


def _is_misplaced(table: NamespaceTable) -> bool:
    """Return whether a directory loses track of the files of a table with such a name."""
    is_in_directory = dict(table.settings)[_IMPLEMENTATION] in _DIRECTORIES
    return is_in_directory and not _NAME_IN_DIRECTORIES.fullmatch("".join(table.path))


def list_tables(
    settings: tuple[tuple[str, str], ...], parent: tuple[str, ...] = ()
) -> Iterator[tuple[str, ...]]:
    """Yield the paths of the tables of a namespace, and of the namespaces within it.

    Raises:
        NotFoundError: There is no such namespace.
        StoreError: It did not answer, or refused.
    """
    what = f"namespace {'.'.join(parent)!r}" if parent else "namespace"
    with _convert_errors(settings, what):
        from lance_namespace import ListNamespacesRequest, ListTablesRequest

        client = connect(settings)
        tables = _all_pages(client.list_tables, ListTablesRequest, parent, "tables")
        children = _all_pages(client.list_namespaces, ListNamespacesRequest, parent, "namespaces")
    yield from ((*parent, name) for name in sorted(tables))
    for name in sorted(children):
        yield from list_tables(settings, (*parent, name))


def _all_pages(method: Any, request: Any, parent: tuple[str, ...], attribute: str) -> list[str]:
    names: list[str] = []
    token: str | None = None
    while token is None or token:
        answer = method(request(id=list(parent), page_token=token))
        names += getattr(answer, attribute)
        token = answer.page_token or ""
    return names


@lru_cache(maxsize=32)
def connect(settings: tuple[tuple[str, str], ...]) -> Any:
    """Return the client of a namespace, an object of `lance_namespace.LanceNamespace`.

    Raises:
        InvalidInputError: There is no such implementation, or it refuses its properties.
    """
    import lance_namespace

    properties = dict(settings)
    try:
        return lance_namespace.connect(properties.pop(_IMPLEMENTATION), properties)
    except ValueError as error:
        raise InvalidInputError(
            f"the namespace cannot be used: {str(error)[:300]}. The implementations are 'dir', "
            "'rest', those registered with lance_namespace, and classes by their full names"
        ) from None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=connect.cache_clear)


def _location_of(table: NamespaceTable, answer: Any) -> TableLocation:
    if answer.managed_versioning:
        raise UnsupportedFeatureError(
            f"the namespace manages the versions of the table {table.name!r} itself "
            "(managed_versioning), but lance-stream publishes versions in the table's store, so "
            "their commits would not see each other. Use a table whose versions are published in "
            "its store"
        )
    if not answer.location:
        raise NotFoundError(f"the namespace returned no location for the table {table.name!r}")
    options = dict(answer.storage_options or {})
    expiry = options.get(_EXPIRES_AT)
    return TableLocation(
        answer.location,
        {name: value for name, value in options.items() if name not in _NOT_OF_STORES},
        None if expiry is None else datetime.fromtimestamp(int(expiry) / 1000, UTC),
    )


@contextmanager
def _convert_errors(settings: tuple[tuple[str, str], ...], what: str) -> Iterator[None]:
    """Convert the library's errors to errors of this package.

    Args:
        settings: The settings of the namespace.
        what: The requested table or namespace, for messages.
    """
    with requires_extra("namespace", "tables of a Lance namespace"):
        import lance_namespace as library
    classes: Mapping[type[Exception], type[LanceStreamError]] = {
        library.TableNotFoundError: NotFoundError,
        library.NamespaceNotFoundError: NotFoundError,
        library.InvalidInputError: InvalidInputError,
        library.UnsupportedOperationError: UnsupportedFeatureError,
        library.PermissionDeniedError: StoreRefusedError,
        library.UnauthenticatedError: StoreRefusedError,
        library.ServiceUnavailableError: StoreUnavailableError,
        library.ThrottlingError: StoreUnavailableError,
    }
    try:
        yield
    except library.LanceNamespaceError as error:
        implementation = dict(settings)[_IMPLEMENTATION]
        raise classes.get(type(error), StoreError)(
            f"{what}: the namespace ({implementation}) answers: {str(error)[:500]}"
        ) from error
