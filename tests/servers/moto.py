"""moto's server: S3 and DynamoDB in one process, in memory; signatures are not checked."""

import importlib.util
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.buckets import Bucket, new_name
from tests.servers.server import HOST, Server, ask

_MAIN = Path(__file__).with_name("moto_main.py")
REGION = "us-east-1"
KEY_ID, SECRET = "testkeyid", "test-secret-of-s3"  # DynamoDB Local wants an id of letters only

_AUTHORIZATION = "AWS4-HMAC-SHA256 Credential={}/20200101/{}/dynamodb/aws4_request, Signature=none"


class MotoServer(Server):
    """S3 and DynamoDB."""

    name = "moto"

    @classmethod
    def find_problem(cls) -> str | None:
        """Return why moto cannot be started, or None."""
        for package in ("moto", "flask", "flask_cors"):
            if importlib.util.find_spec(package) is None:
                return f"the package {package} is missing: pip install -e '.[dev]'"
        return None

    def command(self) -> list[str]:
        """Return how moto is started."""
        return [sys.executable, "-P", str(_MAIN), "-H", HOST, "-p", str(self.port)]

    def answers(self) -> bool:
        """Whether there is an answer."""
        return ask("GET", f"{self.endpoint}/moto-api/data.json") == 200

    def new_bucket(self) -> Bucket:
        """Make a bucket, and tell how to get there."""
        name = new_name()
        status = ask("PUT", f"{self.endpoint}/{name}")
        assert status == 200, f"moto makes no bucket: {status}"
        return Bucket(
            name=name,
            uri=f"s3://{name}",
            endpoint=self.endpoint,
            storage_options={
                "aws_access_key_id": KEY_ID,
                "aws_secret_access_key": SECRET,
                "aws_region": REGION,
                "aws_endpoint": self.endpoint,
                "allow_http": "true",
                "aws_conditional_put": "etag",  # it is supported: no trial is needed
            },
            fsspec_options={
                "key": KEY_ID,
                "secret": SECRET,
                "endpoint_url": self.endpoint,
                "region_name": REGION,
            },
        )

    def new_table(self) -> "DynamoTable":
        """Make a table of DynamoDB with the keys of the external manifest store."""
        return make_dynamo_table(self.endpoint)


@dataclass(frozen=True)
class DynamoTable:
    """A table of DynamoDB that is a test's own: HASH `base_uri` S, RANGE `version` N.

    Attributes:
        name: Its name.
        endpoint: `http://127.0.0.1:port`.
        storage_options: What pylance takes beside those of the bucket.
        client_options: Arguments of a `dynamodb` client of botocore, aiobotocore or boto3.
    """

    name: str
    endpoint: str
    storage_options: dict[str, str] = field(repr=False)
    client_options: dict[str, Any] = field(repr=False)


def make_dynamo_table(endpoint: str) -> DynamoTable:
    """Make such a table on a server, and return when it can be used."""
    name = new_name("manifests")
    description = {
        "TableName": name,
        "AttributeDefinitions": [
            {"AttributeName": "base_uri", "AttributeType": "S"},
            {"AttributeName": "version", "AttributeType": "N"},
        ],
        "KeySchema": [
            {"AttributeName": "base_uri", "KeyType": "HASH"},
            {"AttributeName": "version", "KeyType": "RANGE"},
        ],
        "BillingMode": "PAY_PER_REQUEST",
    }
    status = ask_dynamo(endpoint, "CreateTable", description)
    assert status == 200, f"{endpoint} makes no table: {status}"
    return DynamoTable(
        name=name,
        endpoint=endpoint,
        storage_options={"dynamodb_endpoint": endpoint},
        client_options={
            "endpoint_url": endpoint,
            "region_name": REGION,
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
        },
    )


def ask_dynamo(endpoint: str, action: str, request: dict[str, Any]) -> int | None:
    """Send one unsigned request to a server that does not check; return its status."""
    headers = {
        "X-Amz-Target": f"DynamoDB_20120810.{action}",
        "Content-Type": "application/x-amz-json-1.0",
        "Authorization": _AUTHORIZATION.format(KEY_ID, REGION),
    }
    return ask("POST", f"{endpoint}/", json.dumps(request).encode(), **headers)
