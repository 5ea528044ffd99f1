"""Sessions of botocore that share what it reads from its own files.

A session reads the descriptions of its service, 1 MB of JSON for S3, in a quarter of a second of
CPU time. They are the same for all sessions, so a process reads them once.
"""

from functools import cache
from typing import Any

from botocore.loaders import Loader, create_loader
from botocore.session import Session


class SharesDescriptions:
    """What a class of sessions inherits from before botocore's own."""

    def _register_data_loader(self: Any) -> None:
        self._components.lazy_register_component(
            "data_loader", lambda: _loader(self.get_config_variable("data_path"))
        )


class SharingSession(SharesDescriptions, Session):  # type: ignore[misc]  # the library has no types
    """A session for clients that are called from any thread."""


@cache
def _loader(data_path: str | None) -> Loader:
    return create_loader(data_path)
