"""Storage options for HDFS by its web interface, WebHDFS: who we are, and nothing else.

user      else HADOOP_USER_NAME, else the user of this process, as Hadoop's own clients do
token     a delegation token, where the cluster wants one: `hdfs fetchdt --webservice ...`
"""

import getpass
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lance_stream.errors import InvalidInputError
from lance_stream.storage.extras import brought_by
from lance_stream.storage.object_requests import ObjectRequests, Patience
from lance_stream.storage.options.names import (
    as_flag,
    as_text,
    connection_of,
    patience_of,
    take_settings,
)


@dataclass(frozen=True)
class WebHdfsSettings:
    """How HDFS is reached.

    Attributes:
        scheme: "webhdfs", or "swebhdfs" for TLS.
        user: Who asks, where the cluster believes it; None beside a token.
        token: A delegation token.
        proxy_url: A proxy between; None for what the environment says.
        any_certificate: Whether certificates are not looked at.
        patience: How long and how often it is asked.
        max_put_bytes: Larger files are sent in parts.
        max_requests_at_once: So many requests may be under way at once.
    """

    scheme: str
    user: str | None
    token: str | None = field(default=None, repr=False)
    proxy_url: str | None = field(default=None, repr=False)
    any_certificate: bool = False
    patience: Patience = field(default_factory=Patience)
    max_put_bytes: int = 128 << 20
    max_requests_at_once: int = 32

    def connect(self, container: str) -> ObjectRequests:
        """Return a driver; see `ServiceSettings.connect`."""
        with brought_by("hdfs", "HDFS"):
            from lance_stream.storage.hdfs.requests import WebHdfsRequests
        return WebHdfsRequests(self, container)

    def where(self, container: str) -> str:
        """Return in words who is asked; see `ServiceSettings.where`."""
        return f"the namenode of HDFS at {self.scheme}://{container}"


def webhdfs_settings(scheme: str, options: Mapping[str, Any]) -> WebHdfsSettings:
    """Return how HDFS is reached, as storage options say it.

    Args:
        scheme: Of the table's URI.
        options: As users give them.

    Raises:
        InvalidInputError: An option is unknown or wrong.
    """
    given = take_settings(options, "webhdfs")
    if as_flag("kerberos", given.get("kerberos", False)):
        raise InvalidInputError(
            "tickets of Kerberos are not sent to WebHDFS. Get a delegation token with one, by "
            "`hdfs fetchdt --webservice URL file`, and give it as the storage option token"
        )
    token = as_text("token", given["token"]) if "token" in given else None
    user = given.get("user") or os.environ.get("HADOOP_USER_NAME") or getpass.getuser()
    return WebHdfsSettings(
        scheme=scheme,
        user=None if token else as_text("user", user),
        token=token,
        patience=patience_of(given),
        **connection_of(given),
    )
