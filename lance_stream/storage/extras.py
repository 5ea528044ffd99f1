"""The package's extras: their libraries may not be installed."""

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from lance_stream.errors import InvalidInputError

MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("obstore", "botocore"),
    "gcs": ("obstore", "google.auth"),
    "azure": ("obstore", "azure.identity"),
    "postgresql": ("psycopg",),
    "prometheus": ("prometheus_client",),
    "opentelemetry": ("opentelemetry.metrics",),
    "report": ("plotly",),
    "fast": ("numba",),
    "index": ("lance",),
    "namespace": ("lance_namespace",),
}
"""The modules that each extra installs."""


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not installed either
        return False


@contextmanager
def requires_extra(extra: str, feature: str) -> Iterator[None]:
    """If an import in the body fails, raise an error that names the extra to install.

    Args:
        extra: The name of the extra.
        feature: The feature that needs the libraries: "tables on S3".

    Raises:
        InvalidInputError: An import failed.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidInputError(
            f"{feature} requires a library that is not installed ({error}): pip install "
            f"'lance-stream[{extra}]'"
        ) from error
