"""Libraries that come with an extra of this package, and may not be there."""

from collections.abc import Iterator
from contextlib import contextmanager

from lance_stream.errors import InvalidInputError


@contextmanager
def brought_by(extra: str, what: str) -> Iterator[None]:
    """Import libraries in the body; say which extra brings them where that fails.

    Args:
        extra: Its name.
        what: What takes them: "tables on S3".

    Raises:
        InvalidInputError: One cannot be imported.
    """
    try:
        yield
    except ImportError as error:
        raise InvalidInputError(
            f"for {what} a library is missing ({error}): pip install 'lance-stream[{extra}]'"
        ) from error
