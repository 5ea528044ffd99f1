"""A place on a server that belongs to one test, and how each kind of client gets there."""

import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Bucket:
    """A bucket, or Azure's container, that is empty when a test gets it.

    Attributes:
        name: Its name, which is unique on that server.
        uri: `s3://name`, `gs://name`, `az://name`.
        endpoint: `http://127.0.0.1:port`, as clients expect it.
        storage_options: What Lance users write: pylance's own names, all values text.
        fsspec_options: The same in the names of s3fs, gcsfs or adlfs.
    """

    name: str
    uri: str
    endpoint: str
    storage_options: dict[str, str] = field(repr=False)
    fsspec_options: dict[str, object] = field(repr=False)


def new_name(prefix: str = "test") -> str:
    """Return a name that no other test has, fit for each kind of store and database."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"
