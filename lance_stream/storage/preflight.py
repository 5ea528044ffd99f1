"""Checks a location before any request is sent to its store.

A sink is created long before its first micro-batch, so errors should appear when it is created.
Credentials are not checked, because Spark's own settings may supply them later.
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from lance_stream.errors import InvalidInputError
from lance_stream.storage.extras import MODULES, is_installed
from lance_stream.storage.locations import (
    check_is_shared,
    is_registered,
    open_store,
    protocol_of,
    text_of,
)
from lance_stream.storage.options.names import take_settings
from lance_stream.storage.protocols import DYNAMODB, split_bucket, store_kind_of

_OPTIONAL: Final = "azure.identity"
"""Needed for some kinds of credentials only, which report it themselves."""


def check_can_write_to(
    location: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    is_used_here: bool = True,
) -> None:
    """Check a location for Spark's writers, without a request to its store.

    Args:
        location: A path or URI of a table, which need not exist.
        storage_options: Settings of its store.
        is_used_here: Whether this machine writes to it and needs the libraries of its store.

    Raises:
        InvalidInputError: Spark's processes do not share the location; a storage option is unknown,
            or an option of S3 is invalid; or an extra of this package is not installed.
        UnsupportedFeatureError: No store supports the protocol.
    """
    check_is_shared(location)
    text, options = text_of(location), dict(storage_options or {})
    protocol = protocol_of(text)
    kind = store_kind_of(protocol)
    if kind is not None and kind.extra is not None:
        if kind.check_options is not None:
            kind.check_options(options)
        else:  # the environment of where they are used may complete them
            take_settings(options, kind.name)
        if kind.has_buckets:
            split_bucket(text.partition("?")[0] if protocol == DYNAMODB else text)
        if is_used_here:
            _check_extra(protocol, kind.extra)
    elif kind is None and is_registered(protocol):
        raise InvalidInputError(
            f"{text!r} is on a filesystem of fsspec, where tables can only be read: fsspec has no "
            "create-if-absent. Write to a local or shared disk, or to an object store"
        )
    else:
        open_store(text, options)


def _check_extra(protocol: str, extra: str) -> None:
    for module in MODULES[extra]:
        if module != _OPTIONAL and not is_installed(module):
            raise InvalidInputError(
                f"{protocol}:// requires the library {module.partition('.')[0]!r}, which is not "
                f"installed: pip install 'lance-stream[{extra}]'"
            )
