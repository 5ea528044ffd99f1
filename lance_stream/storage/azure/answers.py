"""What Azure Blob Storage answers, and what that means: the one place that tells.

    404 BlobNotFound                    there is no such object
    404 ContainerNotFound and others    refused: there is no such container
    409 BlobAlreadyExists, 412          the name is taken, if it was to be created once;
                                        another writer was there, if one state was asked for
    400 InvalidBlockList                the same: another writer's list has made the blob
    416                                 the object ends before the range begins: no bytes
    408, 429, 5xx, and by their codes   try again
    all else                            refused, with the way out of `_WAYS_OUT`

A HEAD has the code of an error in a header only, other answers in their XML, too.
"""

import base64
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple
from urllib.parse import unquote
from xml.etree import ElementTree

from lance_stream.storage.azure.authorization import BlobRequest
from lance_stream.storage.object_requests import (
    MissingError,
    ObjectInfo,
    Page,
    RefusedError,
    TryAgainError,
)

_TRY_AGAIN_STATUS: Final = frozenset({408, 429, 500, 502, 503, 504})
_TRY_AGAIN_CODES: Final = frozenset(
    {"PendingCopyOperation", "Md5Mismatch", "Crc64Mismatch", "OperationTimedOut", "ServerBusy"}
)
_TAKEN_CODES: Final = frozenset({"BlobAlreadyExists", "ConditionNotMet", "TargetConditionNotMet"})
_NO_CONTAINER_CODES: Final = frozenset(
    {"ContainerNotFound", "FilesystemNotFound", "ContainerBeingDeleted", "ContainerDisabled"}
)
_DIRECTORY_HEADERS: Final = {"x-ms-meta-hdi_isfolder": "true", "x-ms-resource-type": "directory"}


class Answer(NamedTuple):
    """An answer, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class TakenError(RefusedError):
    """The blob is there, or not the one that was meant."""


def meaning_of(answer: Answer, request: BlobRequest, container: str) -> Exception:
    """Return what an answer other than a good one means."""
    status, code = answer.status, _code(answer)
    said = f"{status} {code}".strip()
    number = answer.headers.get("x-ms-request-id")
    told = f"{said} (request {number})" if number else said
    if status in _TRY_AGAIN_STATUS or code in _TRY_AGAIN_CODES:
        return TryAgainError(told, _after_seconds(answer))
    if code == "ResourceNotFound":
        return RefusedError(
            f"{told}: there is no container {container!r}, or nobody may read it without "
            "credentials"
        )
    if code in _NO_CONTAINER_CODES or (status == 404 and "restype" in request.query):
        return RefusedError(
            f"{told}: there is no container {container!r}. Create it, or correct the URI"
        )
    if status == 404:
        return MissingError(told)
    if status in (409, 412) and code in _TAKEN_CODES:
        return _changed(request, told)
    if code == "InvalidBlockList":
        return _changed(request, told)
    return RefusedError(f"{told}: {_WAYS_OUT.get(code) or _way_out(status)}")


def _changed(request: BlobRequest, told: str) -> Exception:
    if "If-None-Match" in request.headers:
        return TakenError(told)
    if "If-Match" in request.headers or request.query.get("comp") == "blocklist":
        return TryAgainError(f"{told}: another writer was there meanwhile")
    return RefusedError(f"{told}: a directory may be there, or a policy keeps the blob as it is")


_LEASED = "another program holds a lease on the blob: let it end, or break it"
_WAYS_OUT: Final[Mapping[str, str]] = {
    **dict.fromkeys(("LeaseIdMissing", "LeaseIdMismatchWithBlobOperation", "LeaseLost"), _LEASED),
    "AuthenticationFailed": (
        "the credentials are wrong or have ended, or this machine's clock is. Correct account_key "
        "or sas_token"
    ),
    "KeyBasedAuthenticationNotPermitted": (
        "the account takes no account keys. Give tenant_id, client_id and client_secret, or none "
        "of them for the identity of this machine"
    ),
    "AuthorizationPermissionMismatch": (
        "the identity may not do this. Give it the role Storage Blob Data Contributor"
    ),
    "AuthorizationFailure": (
        "the credentials are wrong, or the account's network rules keep this machine out"
    ),
    "NoAuthenticationInformation": (
        "nobody may do this without credentials. Give account_key, sas_token or an identity"
    ),
    "PublicAccessNotPermitted": (
        "the account lets nobody in without credentials. Give account_key, sas_token or an identity"
    ),
    "BlobImmutableDueToPolicy": "a policy of the container forbids to change or delete blobs",
    "InvalidResourceName": (
        "the service allows no such name. A container's has 3 to 63 lower-case letters, digits and "
        "hyphens"
    ),
    "InvalidBlobType": "a page or append blob of that name is there: delete it",
    "InvalidBlobOrBlock": (
        "another program left blocks of that name, whose ids have another length: they go after a "
        "week, or with a small blob that is written there"
    ),
}
"""The way out of what the service refuses, by its code."""


def _way_out(status: int) -> str:
    if status in (401, 403):
        return "the credentials do not allow it. Check account_key, sas_token or the identity"
    if 300 <= status < 400:
        return "the endpoint sends requests elsewhere: correct the storage option endpoint"
    return "the service does not take this request"


def _code(answer: Answer) -> str:
    """Return the service's name of an error, which a HEAD has in a header only."""
    if code := answer.headers.get("x-ms-error-code"):
        return code
    try:
        return ElementTree.fromstring(answer.body).findtext("Code") or ""
    except ElementTree.ParseError:
        return ""


def _after_seconds(answer: Answer) -> float | None:
    after = answer.headers.get("Retry-After", "")
    return float(after) if after.isdecimal() else None


def bytes_of(answer: Answer, start: int, stop: int | None) -> bytes:
    """Return the bytes of a range out of the answer, which may be of the whole blob.

    Raises:
        TryAgainError: Bytes are missing, or are others.
    """
    if answer.status == 416:
        return b""
    if answer.status != 206:
        return answer.body[start:stop]
    size = size_of(answer)
    wanted = max(min(size if stop is None else stop, size) - start, 0)
    said = answer.headers["Content-Range"]
    if len(answer.body) != wanted or (wanted and not said.startswith(f"bytes {start}-")):
        raise TryAgainError(f"{len(answer.body)} bytes ({said}) in place of {wanted} from {start}")
    return answer.body


def size_of(answer: Answer) -> int:
    """Return the size of the blob that an answer is a range of."""
    total = answer.headers.get("Content-Range", "").rpartition("/")[2]
    if answer.status == 206 and not total.isdecimal():
        raise TryAgainError("a range of a blob whose size is not told")
    return int(total) if answer.status == 206 else len(answer.body)


def refuse_directory(answer: Answer) -> None:
    """Raise MissingError if an answer is of a directory of a hierarchical namespace."""
    for name, value in _DIRECTORY_HEADERS.items():
        if answer.headers.get(name, "").lower() == value:
            raise MissingError("it is a directory")


def page_of(answer: Answer) -> Page:
    """Return what an answer to a listing lists, without directories."""
    try:
        root = ElementTree.fromstring(answer.body)
    except ElementTree.ParseError:
        raise TryAgainError("a listing that is no XML") from None
    if root.tag != "EnumerationResults" or root.find("Blobs") is None:
        raise TryAgainError(f"a listing that begins with <{root.tag[:80]}>")
    blobs = (_listed(each) for each in root.iterfind("Blobs/Blob"))
    return Page([each for each in blobs if each is not None], root.findtext("NextMarker") or None)


def _listed(blob: Any) -> ObjectInfo | None:
    """Return a blob of a listing; None for a directory."""
    if blob.findtext("Metadata/hdi_isfolder", "").lower() == "true":
        return None
    if blob.findtext("Properties/ResourceType", "").lower() == "directory":
        return None
    name = blob.find("Name")
    key = unquote(name.text) if name.get("Encoded") == "true" else name.text
    return ObjectInfo(
        key,
        int(blob.findtext("Properties/Content-Length")),
        seconds_of(blob.findtext("Properties/Last-Modified")),
        etag_of(blob.findtext("Properties/Content-MD5"), blob.findtext("Properties/Etag")),
    )


def etag_of(content_md5: str | None, etag: str | None) -> str:
    """Return what tells one content from another: its MD5 in hex, if the service has it."""
    if content_md5:
        return base64.b64decode(content_md5).hex()
    return (etag or "").strip('"')


def seconds_of(date: str) -> float:
    """Return a date of HTTP in seconds since 1970-01-01 UTC."""
    when: datetime = parsedate_to_datetime(date)
    return when.timestamp()
