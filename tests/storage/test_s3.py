"""S3 itself, on moto: the contract of object stores, and what is peculiar to S3."""

from collections.abc import Iterator
from typing import ClassVar
from urllib.request import urlopen

import pytest

from lance_stream.errors import (
    InvalidInputError,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedFeatureError,
)
from lance_stream.storage.locations import open_store
from lance_stream.storage.objects.object_store import ObjectStore
from tests.contracts.object_stores import ObjectStoreContract, store_at, store_in
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.moto import MotoServer
from tests.servers.server import ask
from tests.servers.store_faults import Act, CutAfter, Forge


class TestS3Store(ObjectStoreContract):
    secret_options: ClassVar = ("aws_secret_access_key",)
    conflict: ClassVar = Forge(409)

    @pytest.fixture
    def bucket(self, s3_bucket: Bucket) -> Bucket:
        return s3_bucket

    @pytest.fixture
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bucket, int]]:
        monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "5")
        with MotoServer() as moto:
            yield moto.new_bucket(), 5

    def num_uploads(self, bucket: Bucket) -> int:
        url = f"{bucket.endpoint}/{bucket.name}?uploads"
        with urlopen(url) as answer:
            return int(answer.read().count(b"<UploadId>"))

    @pytest.mark.parametrize("name", ["data//x", "a/%1B[2J", "a/b%09c"])
    def test_listings_with_impossible_names_name_them(self, bucket: Bucket, name: str) -> None:
        """Other programs can create such objects, and a listing that skipped them would be
        incomplete.
        """
        assert ask("PUT", f"{bucket.endpoint}/{bucket.name}/dir/t/{name}", b"x") == 200
        with pytest.raises(StoreRefusedError, match="rename or delete the object") as raised:
            store_in(bucket, "dir/t").list()
        assert str(raised.value).isprintable()
        assert "dir/t/" in str(raised.value)

    def test_disabled_conditional_puts_are_refused_early(
        self, bucket: Bucket, proxy: FaultProxy
    ) -> None:
        """Without conditional puts two writers could overwrite each other's version, so no
        manifest may be written; plain files may.
        """
        store = store_at(bucket, proxy.url, aws_conditional_put="disabled")
        with pytest.raises(UnsupportedFeatureError, match="manifest_store"):
            store.create_once("v/1", b"x")
        assert store.list() == []
        store.write("a", b"x")
        assert store.read("a") == b"x"

    def test_services_that_ignore_conditions_are_refused(
        self, bucket: Bucket, proxy: FaultProxy
    ) -> None:
        """Such a service would let two writers publish one version, so the first conditional
        write tests it.
        """
        store = store_at(bucket, proxy.url, aws_conditional_put=None)
        direct = store_in(bucket)
        # As if the condition were not there: what would break it is gone when the request comes.
        proxy.add(Act(lambda _request: direct.delete("_transactions/a")), kind="put once")
        proxy.add(Act(lambda _request: direct.delete("_transactions/a")), kind="put once")
        with pytest.raises(UnsupportedFeatureError, match=r"ignores the condition.*manifest_store"):
            store.create_once("_transactions/a", b"x")
        with pytest.raises(UnsupportedFeatureError, match="manifest_store"):
            store.create_once("_transactions/b", b"x")
        assert proxy.kinds() == {"put once": 2}

    def test_the_first_conditional_put_is_verified(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """A process tests the service once, with the first object that it creates."""
        store = store_at(bucket, proxy.url, aws_conditional_put=None)
        assert store.create_once("v/1", b"x")
        assert proxy.kinds() == {"put once": 2}
        assert store.create_once("v/2", b"x")
        assert proxy.kinds() == {"put once": 3}
        assert not store.create_once("v/2", b"y")

    def test_a_disturbed_trial_is_repeated(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """An overloaded service during the trial of conditional puts must not be mistaken for
        one that lacks them.
        """
        store = store_at(bucket, proxy.url, aws_conditional_put=None)
        proxy.add(Forge(503), kind="put once", at=2, times=2)
        assert store.create_once("v/1", b"x")
        assert store.create_once("v/2", b"x")
        assert store.list_names("v") == ["1", "2"]

    def test_services_without_conditional_puts_are_refused(
        self, behind: ObjectStore, proxy: FaultProxy
    ) -> None:
        """A 501 to a conditional put means that commits are unsafe, and the message names the
        manifest store as the way out.
        """
        proxy.add(Forge(501, "NotImplemented"), kind="put once")
        with pytest.raises(UnsupportedFeatureError, match="manifest_store"):
            behind.create_once("v/1", b"x")
        proxy.clear()
        proxy.add(Forge(501, "NotImplemented"), kind="put")
        with pytest.raises(StoreRefusedError, match="does not support this request"):
            behind.write("a", b"x")

    @pytest.mark.parametrize(
        ("answer", "remedy"),
        [
            (Forge(403, "SignatureDoesNotMatch"), "aws_secret_access_key"),
            (Forge(403, "InvalidAccessKeyId"), "aws_access_key_id"),
            (Forge(403, "RequestTimeTooSkewed"), "clock"),
            (Forge(400, "ExpiredToken"), "has expired"),
            (Forge(403, "AccessDenied"), "s3:PutObject"),
            (Forge(404, "NoSuchBucket"), "create the bucket"),
            (Forge(400, "AuthorizationHeaderMalformed"), "aws_region"),
        ],
    )
    def test_refusals_name_their_remedy(
        self, behind: ObjectStore, proxy: FaultProxy, answer: Forge, remedy: str
    ) -> None:
        """Each of S3's codes has one usual cause, and the message has to name the option or
        permission.
        """
        proxy.add(answer, times=None)
        with pytest.raises(StoreRefusedError, match=remedy):
            behind.write("a", b"x")

    @pytest.mark.parametrize(
        "answer",
        [
            Forge(400, "RequestTimeout"),
            Forge(400, "BadDigest"),
            Forge(409, "OperationAborted"),
            Forge(503, "ServiceUnavailable"),
            Forge(200, "InternalError"),
        ],
    )
    def test_transient_errors_are_retried(
        self, behind: ObjectStore, proxy: FaultProxy, answer: Forge
    ) -> None:
        """S3 reports some temporary errors as 400, 409 or even 200 with an error in the body."""
        behind.write("a", b"x")
        proxy.clear()
        proxy.add(answer, times=2)
        behind.copy("a", "b")
        assert proxy.kinds() == {"copy": 3}, proxy.story()

    def test_lost_replies_are_not_retried(self, bucket: Bucket, proxy: FaultProxy) -> None:
        """The HTTP engine must not resend a request on a reused connection by itself."""
        store = store_at(bucket, proxy.url, client_max_retries="0")
        store.write("a", b"x")
        proxy.clear()
        proxy.add(CutAfter(), times=None)
        with pytest.raises(StoreUnavailableError, match="1 attempt "):
            store.write("a", b"y")
        assert proxy.kinds() == {"put": 1}

    def test_options_without_a_counterpart_are_refused(self, bucket: Bucket) -> None:
        """An option of s3fs that the engine cannot honour must not be dropped silently."""
        options = {**bucket.fsspec_options, "config_kwargs": {"connect_timeout": 1}}
        with pytest.raises(InvalidInputError, match="config_kwargs"):
            open_store(f"{bucket.uri}/t", options)

    def test_fsspec_options_open_the_same_table(self, bucket: Bucket) -> None:
        """A user who comes from s3fs must reach the same bytes with the options at hand."""
        open_store(f"{bucket.uri}/t", bucket.fsspec_options).write("a", b"x")
        assert open_store(f"{bucket.uri}/t", bucket.storage_options).read("a") == b"x"

    def test_credentials_can_come_from_the_environment(
        self, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Most deployments configure S3 by environment variables only, endpoint included."""
        with pytest.raises(StoreRefusedError, match="aws_access_key_id"):
            open_store(f"{bucket.uri}/t", {"endpoint": bucket.endpoint}).read("a")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-the-environment")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", bucket.endpoint)
        store = open_store(f"{bucket.uri}/t")
        store.write("a", b"x")
        assert store.read("a") == b"x"
