"""This package's version.

It is not looked up in the metadata of an installation: a zip that Spark ships to its workers, or a
checkout on the import path, has none.
"""

from typing import Final

VERSION: Final = "0.1.0"
"""The same as in pyproject.toml."""
