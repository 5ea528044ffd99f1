"""No secret is shown: not by Spark, not by us, not in any file that is written.

A Spark program is given secrets in every possible way (`planting_process`), and all that
it shows is searched for them: plans, the pages and the REST interface of the UI, event logs, the
logs of driver and workers, the progress of queries, errors of the driver and of tasks, checkpoints,
and every file on the store.
"""

import base64
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest

from lance_stream.storage.locations import open_store
from tests.faults.killed_processes import TESTS
from tests.servers.azurite_blobs import KEY
from tests.servers.buckets import Bucket

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NOBODY = "http://127.0.0.1:9"
PATIENCE = {"client_max_retries": "1", "connect_timeout": "2s"}


@dataclass
class Plan:
    """A store, and how its secrets are given.

    Attributes:
        uri: A bucket.
        options: Reach it.
        secrets: What must not be shown.
        settings: Spark's own, that reach it.
        wrong: Options that reach no service.
    """

    uri: str
    options: dict[str, str]
    secrets: list[str]
    settings: dict[str, str]
    wrong: dict[str, str]


def plan_of_s3(bucket: Bucket) -> Plan:
    secrets = ["PlAnTeD/of+S3key", "PlAnTeDofS3session", "PlAnTeDinSettings"]
    options = {
        **bucket.storage_options,
        "aws_secret_access_key": secrets[0],
        "aws_session_token": secrets[1],
    }
    settings = {
        "spark.hadoop.fs.s3a.endpoint": bucket.endpoint,
        "spark.hadoop.fs.s3a.access.key": options["aws_access_key_id"],
        "spark.hadoop.fs.s3a.secret.key": secrets[2],
    }
    wrong = {**options, **PATIENCE, "aws_endpoint": NOBODY}
    return Plan(f"{bucket.uri}/tables", options, secrets, settings, wrong)


def plan_of_azure(bucket: Bucket) -> Plan:
    wrong_key = base64.b64encode(b"PlAnTeD of Azure").decode()
    wrong_sas = "sv=2024-01-01&sig=PlAnTeDofAzure%3D"
    wrong = {**bucket.storage_options, **PATIENCE, "azure_storage_endpoint": f"{NOBODY}/acct"}
    wrong |= {"account_name": "acct"}
    del wrong["account_key"]
    return Plan(
        f"{bucket.uri}/tables",
        bucket.storage_options,
        [KEY, wrong_key, "PlAnTeDofAzure"],
        {},
        {**wrong, "sas_token": wrong_sas},
    )


def plan_of_google(bucket: Bucket) -> Plan:
    secret = "PlAnTeDofGoogle"
    options = {**bucket.storage_options, "google_storage_token": secret}
    wrong = {**options, **PATIENCE, "google_base_url": NOBODY}
    return Plan(f"{bucket.uri}/tables", options, [secret], {}, wrong)


PLANS = {"s3": plan_of_s3, "gs": plan_of_google, "az": plan_of_azure}


@pytest.mark.nightly
def test_secrets_are_never_shown(any_bucket: Bucket, tmp_path: Path) -> None:
    """Credentials pass through plans, the UI, logs, errors, checkpoints and files, and one place
    that shows them is enough for a leak.
    """
    plan = PLANS[any_bucket.uri.partition(":")[0]](any_bucket)
    program_input = {
        "uri": plan.uri,
        "options": plan.options,
        "settings": plan.settings,
        "wrong": plan.wrong,
        "is_brief": not plan.settings,
    }
    program = Path(__file__).with_name("planting_process.py")
    process = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        input=json.dumps(program_input),
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
    )
    assert process.returncode == 0, process.stderr[-3000:]
    outputs = {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    store = open_store(plan.uri, any_bucket.storage_options)
    outputs |= {f"store: {file.path}": store.read(file.path) for file in store.list()}
    outputs |= {"stdout": process.stdout.encode(), "stderr": process.stderr.encode()}

    leaks = {
        (location, form)
        for secret in plan.secrets
        for form in forms(secret)
        for location, data in outputs.items()
        if form in data
    }
    assert leaks == set()

    # The search would find them: what is no secret stands in most of these places.
    name = any_bucket.name.encode()
    named_in = [location for location, data in outputs.items() if name in data]
    locations = {"log/", "events/", "shown/error of tasks"}
    locations |= {"shown/pages", "shown/rest sql"} if plan.settings else set()
    for location in locations:
        assert any(text.startswith(location) for text in named_in), location
    assert any(text.startswith("store: t/_versions/") for text in outputs)
    assert b"127.0.0.1:9" in outputs["shown/error of a sink"]
    assert b"StoreUnavailableError" in outputs["shown/error of a load"]


def forms(secret: str) -> set[bytes]:
    """Return a secret as it appears in text, in URLs, in JSON, and encoded."""
    texts = {secret, quote(secret), quote(secret, safe=""), json.dumps(secret)[1:-1]}
    texts |= {base64.b64encode(secret.encode()).decode().rstrip("=")[:-2]}
    return {text.encode() for text in texts} | {secret.encode("utf-16-le")}
