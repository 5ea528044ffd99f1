"""Azurite: Azure's blob service, in memory. It wants every request signed."""

import shutil

from tests.servers.buckets import Bucket, new_name
from tests.servers.server import FOLDER, HOST, Server, ask, installation_problem

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

_PROGRAM = FOLDER / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"


class Azurite(Server):
    """Azure's blobs."""

    name = "azurite"

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why Azurite cannot be started, or None."""
        if shutil.which("node") is None:
            return "there is no node on PATH: install Node.js 20 or newer, then run `make servers`"
        return installation_problem(cls.name, _PROGRAM)

    def command(self) -> list[str]:
        """Return how Azurite is started."""
        where = ["--blobHost", HOST, "--blobPort", str(self.port), "--inMemoryPersistence"]
        return [
            "node",
            str(_PROGRAM),
            *where,
            "--disableTelemetry",
            "--skipApiVersionCheck",  # the SDK asks for newer versions than Azurite has heard of
        ]

    def answers(self) -> bool:
        """Whether there is an answer: a refusal, as the request is not signed."""
        return ask("GET", f"{self.account_url}?comp=list") == 403

    @property
    def account_url(self) -> str:
        """`http://127.0.0.1:port/devstoreaccount1`."""
        return f"{self.endpoint}/{ACCOUNT}"

    @property
    def connection_string(self) -> str:
        """What Azure's SDK and adlfs connect by."""
        parts = {
            "DefaultEndpointsProtocol": "http",
            "AccountName": ACCOUNT,
            "AccountKey": KEY,
            "BlobEndpoint": self.account_url,
        }
        return "".join(f"{key}={value};" for key, value in parts.items())

    def new_container(self) -> Bucket:
        """Make a container, and tell how to get there."""
        from azure.storage.blob import BlobServiceClient

        name = new_name()
        with BlobServiceClient.from_connection_string(self.connection_string) as service:
            service.create_container(name).close()
        return Bucket(
            name=name,
            uri=f"az://{name}",
            endpoint=self.account_url,
            storage_options={
                "account_name": ACCOUNT,
                "account_key": KEY,
                "azure_storage_endpoint": self.account_url,
                "allow_http": "true",
            },
            fsspec_options={"connection_string": self.connection_string},
        )
