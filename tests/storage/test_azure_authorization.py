"""Signatures and tokens: what goes with a request to Azure Blob Storage."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from lance_stream.storage.azure.authorization import (
    BlobRequest,
    Identity,
    SharedAccess,
    SharedKey,
    date_and_version,
)
from lance_stream.storage.object_requests import RefusedError, TryAgainError

KEY = "c2VjcmV0LWtleQ=="

blob = pytest.importorskip("azure.storage.blob", reason="the azure extra is not installed")


def requests() -> list[BlobRequest]:
    typed = {"Content-Type": "application/octet-stream"}
    return [
        BlobRequest("GET", "/cont/a%20b/c%2520d", headers={"x-ms-range": "bytes=0-9"}),
        BlobRequest("GET", "/cont/a", headers={"x-ms-range": "bytes=0-9", "If-Match": '"0x1"'}),
        BlobRequest("HEAD", "/devstoreaccount1/cont/a"),
        BlobRequest(
            "PUT",
            "/cont/v/1",
            headers={"x-ms-blob-type": "BlockBlob", "If-None-Match": "*", **typed},
            data=b"data",
        ),
        BlobRequest("PUT", "/cont/empty", headers={"x-ms-blob-type": "BlockBlob"}),
        BlobRequest(
            "PUT",
            "/cont/a",
            {"comp": "block", "blockid": "YWI+/w=="},
            dict(typed),
            memoryview(b"x"),
        ),
        BlobRequest(
            "GET",
            "/cont",
            {"restype": "container", "comp": "list", "prefix": "a b/", "marker": "&"},
        ),
        BlobRequest("PUT", "/cont/b", headers={"x-ms-copy-source": "https://a/cont/a%20b"}),
    ]


@pytest.mark.parametrize("number", range(8))
def test_a_signature_is_the_one_that_azures_own_client_makes(number: int) -> None:
    from azure.core.rest import HttpRequest
    from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy

    ours = requests()[number]
    ours.headers.update(date_and_version())
    theirs = HttpRequest(
        ours.method,
        f"https://acct.blob.core.windows.net{ours.target}",
        headers={**ours.headers, "Content-Length": str(len(ours.data))},
    )
    policy = SharedKeyCredentialPolicy("acct", KEY)
    policy.on_request(SimpleNamespace(http_request=theirs, context=SimpleNamespace(transport=None)))
    asyncio.run(_authorize(SharedKey("acct", KEY), ours))
    assert ours.headers["Authorization"] == theirs.headers["Authorization"]


async def _authorize(credentials: Any, request: BlobRequest) -> None:
    await credentials.connect().authorize(request)


def test_a_shared_access_signature_stands_in_the_url_as_it_was_handed_out() -> None:
    request = BlobRequest("GET", "/cont/a", {"comp": "x"})
    asyncio.run(_authorize(SharedAccess("?sv=2023&sp=r&sig=a%2Bb%3D"), request))
    assert request.target == "/cont/a?comp=x&sv=2023&sp=r&sig=a%2Bb%3D"


class Tokens:
    """Hands out tokens as a credential of azure-identity does."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.num_asked = 0

    async def get_token(self, scope: str) -> Any:
        assert scope == "https://storage.azure.com/.default"
        self.num_asked += 1
        await asyncio.sleep(0.01)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        token, seconds = answer
        return SimpleNamespace(token=token, expires_on=time.time() + seconds)


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> Tokens:
    found = Tokens()
    monkeypatch.setattr(Identity, "_credential", lambda _self, _identity: found)
    return found


def asked(num_at_once: int, num_rounds: int = 1) -> list[str]:
    async def ask() -> list[str]:
        authorization = Identity().connect()
        requests = [BlobRequest("GET", "/") for _ in range(num_at_once * num_rounds)]
        for begin in range(0, len(requests), num_at_once):
            await asyncio.gather(
                *map(authorization.authorize, requests[begin : begin + num_at_once])
            )
        return [each.headers["Authorization"] for each in requests]

    return asyncio.run(ask())


def test_many_requests_at_once_fetch_one_token(tokens: Tokens) -> None:
    tokens.answers = [("t", 3600)]
    assert asked(16, 2) == ["Bearer t"] * 32
    assert tokens.num_asked == 1


def test_a_token_is_renewed_before_it_ends(tokens: Tokens) -> None:
    tokens.answers = [("first", 200), ("second", 3600)]
    assert asked(1, 3) == ["Bearer first", "Bearer second", "Bearer second"]


def test_a_token_that_cannot_be_renewed_yet_serves_on(tokens: Tokens) -> None:
    from azure.core.exceptions import ServiceRequestError

    tokens.answers = [("first", 200), ServiceRequestError("no route"), ("second", 3600)]
    assert asked(1, 3) == ["Bearer first", "Bearer first", "Bearer second"]


def test_no_credentials_are_a_refusal_with_the_way_out_and_no_answer_is_tried_again(
    tokens: Tokens,
) -> None:
    from azure.core.exceptions import ServiceRequestError
    from azure.identity import CredentialUnavailableError

    tokens.answers = [CredentialUnavailableError("nothing is set"), ServiceRequestError("no route")]
    with pytest.raises(RefusedError, match=r"nothing is set.*account_key"):
        asked(1)
    with pytest.raises(TryAgainError, match="no route"):
        asked(1)
