"""Libraries of this package's extras, which may not be installed."""

from collections.abc import Iterator
from contextlib import contextmanager

from lance_stream.errors import InvalidInputError


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
            f"for {what} a library is missing ({error}): pip install 'lance-stream[{extra}]'"
        ) from error
