"""fake-gcs-server: Google's storage, its JSON interface, in memory."""

import json

from tests.servers.buckets import Bucket, new_name
from tests.servers.server import FOLDER, HOST, Server, ask, installation_problem

PROJECT = "test-project"

_PROGRAM = FOLDER / "fake_gcs" / "fake-gcs-server"


class FakeGoogleServer(Server):
    """Google's buckets."""

    name = "fake_gcs"

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why fake-gcs-server cannot be started, or None."""
        return installation_problem(cls.name, _PROGRAM)

    def command(self) -> list[str]:
        """Return how fake-gcs-server is started."""
        where = ["-scheme", "http", "-host", HOST, "-port", str(self.port), "-backend", "memory"]
        public = ["-public-host", f"{HOST}:{self.port}", "-external-url", self.endpoint]
        return [str(_PROGRAM), *where, *public, "-log-level", "warn"]

    def answers(self) -> bool:
        """Whether there is an answer."""
        return ask("GET", f"{self.endpoint}/storage/v1/b?project={PROJECT}") == 200

    def new_bucket(self) -> Bucket:
        """Make a bucket, and tell how to get there.

        pylance speaks the XML interface for writing, which this server has not: its options are
        those of a server that has, or of a proxy that translates.
        """
        name = new_name()
        url = f"{self.endpoint}/storage/v1/b?project={PROJECT}"
        description = json.dumps({"name": name}).encode()
        status = ask("POST", url, description, **{"Content-Type": "application/json"})
        assert status == 200, f"fake-gcs-server makes no bucket: {status}"
        return Bucket(
            name=name,
            uri=f"gs://{name}",
            endpoint=self.endpoint,
            storage_options={
                "google_base_url": self.endpoint,
                "google_storage_token": "test-token",
                "allow_http": "true",
            },
            fsspec_options={
                "endpoint_url": self.endpoint,
                "token": "anon",
                "project": PROJECT,
            },
        )
