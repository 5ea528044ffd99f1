"""The contract of version logs, with manifest stores and object stores on servers."""

import uuid
from pathlib import Path

import pytest

from lance_stream.commit.external_log import ExternalLog
from lance_stream.commit.opening import open_log
from lance_stream.commit.version_log import VersionLog
from tests.contracts.version_logs import VersionLogContract
from tests.servers.buckets import Bucket
from tests.servers.moto import DynamoTable


class ExternalLogContract(VersionLogContract):
    def delete_table(self, log: VersionLog) -> None:
        super().delete_table(log)
        assert isinstance(log, ExternalLog)
        log.forget()


class TestPostgresqlAndALocalDisk(ExternalLogContract):
    @pytest.fixture
    def log(self, postgresql_url: str, tmp_path: Path) -> VersionLog:
        return open_log(tmp_path / "t", {"manifest_store": postgresql_url})


@pytest.mark.repeats_contract
@pytest.mark.some_cases(one_in=3)
class TestPostgresqlAndAnyBucket(ExternalLogContract):
    @pytest.fixture
    def log(self, postgresql_url: str, any_bucket: Bucket) -> VersionLog:
        options = {**any_bucket.storage_options, "manifest_store": postgresql_url}
        return open_log(f"{any_bucket.uri}/{uuid.uuid4()}/a t", options)


@pytest.mark.repeats_contract
class TestPostgresqlAndABucketWithoutConditionalPuts(ExternalLogContract):
    @pytest.fixture
    def log(self, postgresql_url: str, s3_bucket: Bucket) -> VersionLog:
        options = {
            **s3_bucket.storage_options,
            "manifest_store": postgresql_url,
            "aws_conditional_put": "disabled",
        }
        return open_log(f"{s3_bucket.uri}/t", options)


class TestDynamoDBAndS3(ExternalLogContract):
    @pytest.fixture
    def log(self, dynamodb_table: DynamoTable, s3_bucket: Bucket) -> VersionLog:
        options = {**s3_bucket.storage_options, **dynamodb_table.storage_options}
        uri = s3_bucket.uri.replace("s3:", "s3+ddb:")
        return open_log(f"{uri}/a/t?ddbTableName={dynamodb_table.name}", options)


@pytest.mark.some_cases(one_in=3)
class TestDynamoDBAndAnyBucket(ExternalLogContract):
    @pytest.fixture
    def log(self, dynamodb_local_table: DynamoTable, any_bucket: Bucket) -> VersionLog:
        options = {
            "aws_access_key_id": dynamodb_local_table.client_options["aws_access_key_id"],
            "aws_secret_access_key": dynamodb_local_table.client_options["aws_secret_access_key"],
            **any_bucket.storage_options,
            **dynamodb_local_table.storage_options,
            "manifest_store": f"dynamodb://{dynamodb_local_table.name}?region=us-east-1",
        }
        return open_log(f"{any_bucket.uri}/t", options)
