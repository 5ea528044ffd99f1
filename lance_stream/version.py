"""This package's version.

It is not read from the metadata of an installation, because a zip that Spark ships to its workers
and a checkout on the import path have no metadata.
"""

from typing import Final

VERSION: Final = "0.1.0"
"""The same as in pyproject.toml."""
