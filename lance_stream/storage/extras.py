"""Libraries of this package's extras, which may not be installed."""

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
}
"""By extra, the modules that it installs."""


def is_installed(module: str) -> bool:
    """Return whether a module can be imported, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor the package that it is in
        return False


@contextmanager
def brought_by(extra: str, what: str) -> Iterator[None]:
    """Import libraries in the body; if that fails, name the extra that installs them.

    Args:
        extra: Its name.
        what: What needs them: "tables on S3".

    Raises:
        InvalidInputError: One cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidInputError(
            f"{what} requires a library that is not installed ({error}): pip install "
            f"'lance-stream[{extra}]'"
        ) from error
