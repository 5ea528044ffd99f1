"""Tables on S3 that pylance and we write."""

from collections.abc import Callable

import pytest

from tests.contracts.shared_tables import Place, SharedTables, both_see, rows
from tests.servers.buckets import Bucket

pytestmark = pytest.mark.oracle


class TestTablesOnS3(SharedTables):
    @pytest.fixture
    def places(self, s3_bucket: Bucket) -> Callable[[str], Place]:
        options = s3_bucket.storage_options
        return lambda path: Place(f"{s3_bucket.uri}/{path}", options)


@pytest.mark.parametrize(
    "path",
    [
        "a b/t",
        "a%20b/t/",
        "100%/50%25/t",
        "a+b%2Bc/t",
        "\N{LATIN SMALL LETTER E WITH ACUTE}%C3%A9/t",
        "a%2Fb%3Fc%23d/t",
        "x=1,y/t:~",
    ],
)
def test_both_open_a_uri_alike(s3_bucket: Bucket, path: str) -> None:
    place = Place(f"{s3_bucket.uri}/{path}", s3_bucket.storage_options)
    place.they_append(rows(1))
    place.we_append(rows(2))
    assert both_see(place) == {1: "n1", 2: "n2"}
