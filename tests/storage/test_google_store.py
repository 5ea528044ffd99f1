"""Google Cloud Storage on fake-gcs-server, with a front that keeps uploads as Google does."""

import os

import pytest

from lance_stream.errors import StoreRefusedError
from lance_stream.storage.locations import open_store
from lance_stream.storage.object_store import ObjectStore
from lance_stream.storage.store import Store
from tests.contracts.object_stores import ObjectStoreContract, limit_puts, store_in
from tests.contracts.stores import StoreContract
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.google_front import GoogleFront
from tests.servers.store_faults import CutAfter, CutBefore, Forge, Repeat


class TestGoogleStore(ObjectStoreContract):
    secret_options = ("google_storage_token",)
    conflict = Forge(409)

    @pytest.fixture
    def bucket(self, google_front: GoogleFront) -> Bucket:
        self._front = google_front
        return google_front.new_bucket()

    @pytest.fixture
    def small_pages(self, monkeypatch: pytest.MonkeyPatch) -> int:
        monkeypatch.setattr("lance_stream.storage.google.requests._MAX_NAMES_PER_PAGE", 4)
        return 4

    def num_uploads(self, bucket: Bucket) -> int:
        return self._front.num_uploads(bucket.name)

    @pytest.mark.parametrize("kind", ["start upload once", "part", "complete"])
    @pytest.mark.parametrize(
        "fault", [CutBefore(), CutAfter(), Repeat(), Forge(503), Forge(503, landed=True)]
    )
    def test_each_request_of_an_upload_may_go_wrong(
        self, behind: ObjectStore, proxy: FaultProxy, kind: str, fault: object
    ) -> None:
        small = limit_puts(behind, 1 << 20)
        ours, theirs = (os.urandom(1 << 20) * 25 for _ in range(2))
        rule = proxy.add(fault, kind=kind)
        assert small.create_once("v/1", ours), proxy.story()
        assert rule.num_fired == 1, proxy.story()
        proxy.add(fault, kind=kind)
        assert not small.create_once("v/1", theirs)
        assert small.read("v/1") == ours


class TestGoogleStoreWithoutTheFront(StoreContract):
    @pytest.fixture
    def store(self, google_bucket: Bucket) -> Store:
        return store_in(google_bucket)


def test_an_object_that_the_service_put_together_wrongly_is_not_taken_for_ours(
    google_bucket: Bucket,
) -> None:
    """fake-gcs-server takes a part that is sent again for a further one; Google does not."""
    with FaultProxy(google_bucket.endpoint) as proxy:
        options = {**google_bucket.storage_options, "google_base_url": proxy.url}
        store = open_store(f"{google_bucket.uri}/t", options)
        proxy.add(CutAfter(), kind="part")
        with pytest.raises(StoreRefusedError, match="protocol"), store.open_writer("a") as writer:
            writer.write(os.urandom(1 << 20) * 20)
