"""Random histories of writers whose requests go wrong, some of them in the suite."""

import os

import pytest

from tests.faults.store_histories import run_history
from tests.servers.buckets import Bucket
from tests.servers.moto import DynamoTable, MotoServer

SECONDS = float(os.environ.get("STORE_HISTORY_SECONDS", "12"))


@pytest.mark.nightly
@pytest.mark.some_cases(one_in=2)
@pytest.mark.slow
@pytest.mark.oracle
@pytest.mark.parametrize("seed", [1, 2])
def test_tables_match_reported_outcomes(
    moto: MotoServer, s3_bucket: Bucket, dynamodb_table: DynamoTable, seed: int
) -> None:
    """Whatever a writer was told of its commit has to be true, over random faults and two
    implementations.
    """
    items = dynamodb_table if seed % 2 else None
    result = run_history(s3_bucket, moto.endpoint, seed, SECONDS, items)
    assert result["faults"] > 5
    assert result["batch"] > 1
    assert result["lance append"] > 1
