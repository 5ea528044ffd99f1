"""S3 itself, on moto: the contract of object stores, and what only S3 says."""

from typing import ClassVar

import pytest

from lance_stream.storage import s3
from tests.contracts.object_stores import ObjectStoreContract, store_in
from tests.servers.buckets import Bucket
from tests.servers.store_faults import Forge


class TestS3Store(ObjectStoreContract):
    secret_options: ClassVar = ("aws_secret_access_key",)
    conflict: ClassVar = Forge(409)

    @pytest.fixture
    def bucket(self, s3_bucket: Bucket) -> Bucket:
        return s3_bucket

    @pytest.fixture
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr(s3, "KEYS_A_PAGE", 5)
        return 5

    def num_uploads(self, bucket: Bucket) -> int:
        store = store_in(bucket)

        async def ask(driver: s3.S3Requests) -> int:
            return len((await driver._ask("list_multipart_uploads")).get("Uploads", ()))

        return store._client.ask(ask)
