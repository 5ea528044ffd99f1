"""Resolves a table's name in a namespace to its location and storage options.

    table_id, namespace    ["db", "events"], {"impl": "rest", "uri": "https://..."}
    uri                    s3://bucket/8f2c/events.lance
    storage options        those of the namespace and of the user

Expiring credentials are replaced by the option `namespace_table`: each process fetches credentials
from the namespace when it needs them, and again before they expire (`vended_credentials`), so tasks
may run longer than credentials are valid.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from lance_stream.errors import InvalidInputError, NotFoundError
from lance_stream.storage.locations import protocol_of
from lance_stream.storage.namespaces.client import (
    NamespaceTable,
    as_settings,
    declare,
    describe,
    drop,
)
from lance_stream.storage.options.names import (
    CREDENTIALS,
    NAMESPACE_TABLE,
    as_options,
    is_credential,
)
from lance_stream.storage.protocols import store_kind_of

TableId: TypeAlias = str | Sequence[str]
"""The names of a table's namespaces and of the table: a sequence, or one text with dots."""

_ONE_OF_TWO: Final = (
    "name a table by its location, or by table_id and namespace: table_id=['db', 'events'], "
    "namespace={'impl': 'dir', 'root': 's3://bucket/tables'}"
)


def locate(
    uri: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
    table_id: TableId | None,
    namespace: Mapping[str, Any] | None,
    *,
    creates: bool = False,
) -> tuple[str | os.PathLike[str], Mapping[str, Any] | None]:
    """Return the location and the storage options of a table that a user named.

    Args:
        uri: Its location; None for one in a namespace.
        storage_options: The user's options; they take precedence.
        table_id: Its name in a namespace.
        namespace: The namespace: `impl`, and the properties of the implementation.
        creates: Whether the table is declared in the namespace if it does not exist.

    Raises:
        InvalidInputError: It is named twice, or not at all.
        NotFoundError: The namespace has no such table.
        StoreError: The namespace did not answer, or refused.
    """
    if uri is not None and table_id is None and namespace is None:
        return uri, storage_options
    if uri is not None or table_id is None or namespace is None:
        raise InvalidInputError(_ONE_OF_TWO)
    table = NamespaceTable(as_settings(namespace), as_path(table_id))
    try:
        location = describe(table)
    except NotFoundError:
        if not creates:
            raise
        location = declare(table)
    user_options = as_options(storage_options)
    options: dict[str, Any] = dict(location.options)
    kind = store_kind_of(protocol_of(location.uri))
    store = "" if kind is None else kind.name
    has_credentials = any(is_credential(name, store) for name in user_options)
    is_renewed = location.expires_at is not None and store in CREDENTIALS
    if has_credentials or is_renewed:
        options = {name: value for name, value in options.items() if not is_credential(name, store)}
    if is_renewed and not has_credentials:
        options[NAMESPACE_TABLE] = table.encode()
    return location.uri, {**options, **user_options}


def drop_table(table_id: TableId, namespace: Mapping[str, Any]) -> None:
    """Remove a table from its Lance namespace, and delete its files with all versions.

    This cannot be undone. Programs that are reading or writing the table fail, and so do shallow
    clones of it, because they read its files. Entries in an external manifest store stay: remove
    them with `forget_versions`.

    Args:
        table_id: The table's name, ["db", "events"] or "db.events".
        namespace: The namespace: {"impl": "dir", "root": ...}, {"impl": "rest", "uri": ...}, or
            another implementation of Lance namespaces.

    Raises:
        NotFoundError: The namespace has no such table.
        InvalidInputError: An argument is invalid.
        StoreError: The namespace did not answer, or refused.
    """
    drop(NamespaceTable(as_settings(namespace), as_path(table_id)))


def as_path(table_id: object) -> tuple[str, ...]:
    """Return the names of a table's namespaces and of the table.

    Raises:
        InvalidInputError: It is neither a text nor a sequence of texts, or one of them is empty.
    """
    names = table_id.split(".") if isinstance(table_id, str) else table_id
    if (
        not isinstance(names, Sequence)
        or not names
        or not all(isinstance(name, str) and name.strip() for name in names)
    ):
        raise InvalidInputError(
            "table_id is the name of a table and those of its namespaces, ['db', 'events'] or "
            f"'db.events', not {table_id!r:.200}"
        )
    return tuple(names)
