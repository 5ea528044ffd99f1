"""The same with versions published in DynamoDB: a fault at each request to S3 and to DynamoDB."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from lance_stream import create_dataset
from lance_stream.commit.manifest_stores import retrying
from lance_stream.errors import NotFoundError
from lance_stream.snapshot.opening import open_newest
from lance_stream.storage.objects.object_requests import RequestPolicy
from tests.faults.drivers import SCHEMA, START, Change, to_arrow
from tests.faults.faulty_buckets import (
    ACTIONS,
    HASTY,
    QUICK,
    Case,
    FaultyBucket,
    Options,
    Proxies,
    check_ends_clearly,
    check_is_overcome,
    run_at_every_request,
)
from tests.sampling import some_of
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import DynamoTable
from tests.servers.store_faults import CutAfter, CutBefore, CutBody, Forge, Hold, Repeat, Slow

ONCE_KINDS = ("put once", "PutItem")
BRIEF: Options = {**QUICK, "client_max_retries": "1"}

ONCE = {
    "cut before": Case(CutBefore()),
    "cut after by a reset": Case(CutAfter(reset=True)),
    "cut in the body": Case(CutBody()),
    "sent twice": Case(Repeat()),
    "500 and done all the same": Case(Forge(500, landed=True)),
    "503": Case(Forge(503)),
    "400 though nothing is there": Case(Forge(400), ("PutItem",)),
    "arrives late": Case(Hold(1.3), (), HASTY),
    "done, and the answer is late": Case(Slow(1.3), (), HASTY),
}
FOR_EVER = {
    "cut after": Case(CutAfter(), (), BRIEF),
    "503": Case(Forge(503), (), BRIEF),
    "403": Case(Forge(403), (), BRIEF),
    "500 and done all the same": Case(Forge(500, landed=True), (), BRIEF),
    "400 though nothing is there": Case(Forge(400), ("PutItem",), BRIEF),
}
FAST = ("append", "cut after by a reset")


@dataclass(frozen=True)
class FaultyBucketWithDynamo(FaultyBucket):
    """A bucket and a table of DynamoDB, both behind one proxy."""

    items: DynamoTable

    @property
    def direct(self) -> Options:
        return {**super().direct, "dynamodb_endpoint": self.items.endpoint}

    def through(self, retry_policy: Options = QUICK) -> Options:
        return {**super().through(retry_policy), "dynamodb_endpoint": self.proxy.url}

    def new_uri(self) -> str:
        uri = super().new_uri().replace("s3://", "s3+ddb://")
        return f"{uri}?ddbTableName={self.items.name}"

    def new_table(self) -> str:
        uri = self.new_uri()
        table = create_dataset(uri, SCHEMA, primary_key=["id"], storage_options=self.direct)
        for part in (START[:3], START[3:]):
            table = table.append(to_arrow([Change(*row) for row in part]))
        return uri


def warmed(bucket: FaultyBucketWithDynamo) -> FaultyBucket:
    """Let the client of DynamoDB look at the table, as it does once."""
    with suppress(NotFoundError):
        open_newest(bucket.new_uri(), storage_options=bucket.through())
    bucket.proxy.clear()
    return bucket


@pytest.fixture(scope="module")
def proxies() -> Iterator[Proxies]:
    created = Proxies()
    yield created
    created.close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        retrying,
        "POLICY",
        RequestPolicy(
            max_attempts=4, total_seconds=20, request_seconds=1, first_delay_seconds=0.02
        ),
    )


def cases(faults: dict[str, Case]) -> list[Any]:
    return [
        pytest.param(action, fault, marks=() if (action, fault) == FAST else pytest.mark.slow)
        for action in ("append", "create")
        for fault in faults
        if action == "append" or fault in ("cut after", "cut after by a reset")
    ]


def chooser(action: str, fault: str) -> Callable[[Sequence[int]], Sequence[int]]:
    """Return what chooses requests: more for the case that is not slow than for others."""
    one_in = 2 if (action, fault) == FAST else 4
    return lambda numbers: some_of(numbers, one_in, seed=f"{action} {fault}")


@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize(("action_name", "fault"), cases(ONCE))
def test_dynamodb_commits_overcome_single_faults(
    s3_bucket: Bucket,
    dynamodb_table: DynamoTable,
    proxies: Proxies,
    action_name: str,
    fault: str,
) -> None:
    """A fault at any request of a commit is overcome at once."""
    action, case = ACTIONS[action_name], ONCE[fault]

    def bucket_behind(proxy: FaultProxy) -> FaultyBucket:
        return warmed(FaultyBucketWithDynamo(s3_bucket, proxy, dynamodb_table))

    check = check_is_overcome(action, case)
    choose = chooser(action_name, fault)
    run_at_every_request(proxies, s3_bucket.endpoint, bucket_behind, action, case, check, choose)


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=2)
@pytest.mark.parametrize(("action_name", "fault"), cases(FOR_EVER))
def test_lasting_dynamodb_faults_end_clearly(
    s3_bucket: Bucket,
    dynamodb_table: DynamoTable,
    proxies: Proxies,
    action_name: str,
    fault: str,
) -> None:
    """S3 and DynamoDB fail from any request on, and the commit has to end in a clear error."""
    action, case = ACTIONS[action_name], FOR_EVER[fault]

    def bucket_behind(proxy: FaultProxy) -> FaultyBucket:
        return warmed(FaultyBucketWithDynamo(s3_bucket, proxy, dynamodb_table))

    check = check_ends_clearly(action, case)
    choose = chooser(action_name, fault)
    run_at_every_request(proxies, s3_bucket.endpoint, bucket_behind, action, case, check, choose)
