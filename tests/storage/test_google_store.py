"""Google Cloud Storage on fake-gcs-server, whose front speaks the XML interface."""

import pytest

from lance_stream.errors import StoreRefusedError
from lance_stream.storage.objects.object_store import ObjectStore
from tests.contracts.object_stores import ObjectStoreContract
from tests.servers.buckets import Bucket
from tests.servers.fault_proxy import FaultProxy
from tests.servers.google_front import GoogleFront
from tests.servers.store_faults import Forge


@pytest.mark.repeats_contract
class TestGoogleStore(ObjectStoreContract):
    secret_options = ("google_storage_token",)
    conflict = Forge(409)

    @pytest.fixture
    def bucket(self, google_front: GoogleFront) -> Bucket:
        self._front = google_front
        return google_front.new_bucket()

    @pytest.fixture
    def small_pages(
        self, google_front: GoogleFront, monkeypatch: pytest.MonkeyPatch
    ) -> tuple[Bucket, int]:
        monkeypatch.setattr(google_front, "names_a_page", 4)
        return google_front.new_bucket(), 4

    def num_uploads(self, bucket: Bucket) -> int:
        return self._front.num_uploads(bucket.name)

    @pytest.mark.parametrize(
        ("answer", "remedy"),
        [
            (Forge(401, "AuthenticationRequired"), "google_service_account"),
            (Forge(403, "AccessDenied"), "Storage Object User"),
            (Forge(404, "NoSuchBucket"), "create the bucket"),
            (Forge(400, "UserProjectMissing"), "requester_pays"),
        ],
    )
    def test_refusals_name_their_remedy(
        self, behind: ObjectStore, proxy: FaultProxy, answer: Forge, remedy: str
    ) -> None:
        """The code of Google's answer tells which option, role or bucket is missing, and the
        message has to pass it on.
        """
        proxy.add(answer, times=None)
        with pytest.raises(StoreRefusedError, match=remedy):
            behind.write("a", b"x")
