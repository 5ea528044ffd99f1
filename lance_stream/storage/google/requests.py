"""Google Cloud Storage: one request of its JSON interface a call.

    get, get_end    GET     /storage/v1/b/{bucket}/o/{object}?alt=media     Range
    head            GET     the same without alt=media: what is said of the object
    put             POST    /upload/storage/v1/b/{bucket}/o?uploadType=media
    list_page       GET     /storage/v1/b/{bucket}/o?prefix=...
    delete          DELETE  /storage/v1/b/{bucket}/o/{object}
    copy            POST    .../rewriteTo/b/{bucket}/o/{object}, again with the token that it
                            gives until it says "done"; within a bucket it does at once
    start_upload    POST    /upload/...?uploadType=resumable: gives the URL of a session
    parts           PUT     the session, with the place of the part in Content-Range

`ifGenerationMatch=0` makes put and uploads create once: 412 where the name is taken. A session
takes it when it begins, and heeds it when it ends.

gcsfs, which the extra installs, brings the HTTP client and Google's credentials that are used here.
Its own requests are not: they are tried again inside, and its class for buckets with folders asks
by gRPC what kind of bucket it has before it.
"""

import re
from base64 import b64decode
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from lance_stream.storage.google.credentials import WAYS_OUT, AccessTokens
from lance_stream.storage.google.options import GoogleSettings
from lance_stream.storage.http_client import Answer, HttpClient
from lance_stream.storage.object_requests import (
    Data,
    MissingError,
    ObjectInfo,
    Page,
    RefusedError,
    TryAgainError,
    Upload,
)

PART_UNIT_BYTES: Final = 256 << 10
"""Parts of an upload are multiples of this, but for the last one."""

_MAX_NAMES_PER_PAGE = 1000
_SAID_OF_OBJECTS = "name,size,timeCreated,md5Hash,etag"
_SIZE = re.compile(r"bytes (?:\*|\d+-(-?\d+))/(\d+)")
_LATER = frozenset({408, 409, 425, 429})
_TOO_MANY = frozenset({"rateLimitExceeded", "userRateLimitExceeded", "backendError"})
_BYTES = {"Content-Type": "application/octet-stream"}


class GoogleRequests:
    """The requests that one bucket answers; see `ObjectRequests`.

    Args:
        settings: How the service is reached.
        bucket: The bucket's name.
    """

    def __init__(self, settings: GoogleSettings, bucket: str) -> None:
        self._bucket = bucket
        self._objects = f"{settings.endpoint}/storage/v1/b/{quote(bucket, safe='')}/o"
        self._uploads = f"{settings.endpoint}/upload/storage/v1/b/{quote(bucket, safe='')}/o"
        self._tokens = AccessTokens(settings.login)
        self._common = {"userProject": settings.user_project} if settings.user_project else {}
        self._http = HttpClient(
            settings.patience,
            any_certificate=settings.any_certificate,
            proxy_url=settings.proxy_url,
        )

    async def get(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of a range; see `ObjectRequests.get`."""
        is_whole = start == 0 and stop is None
        wanted = {} if is_whole else {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        answer = await self._read(key, wanted)
        if answer.status == 416:
            return b""
        if answer.status == 200:
            return _whole(answer)[start:stop]
        last, _ = _place(answer)
        if len(answer.body) != last + 1 - start:
            raise TryAgainError(f"{len(answer.body)} bytes of {last + 1 - start}")
        return answer.body

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
        """Return the last bytes of an object, and its size; see `ObjectRequests.get_end`."""
        answer = await self._read(key, {"Range": f"bytes=-{max(num_bytes, 1)}"})
        if answer.status == 200:
            size = len(_whole(answer))
            return answer.body[max(size - num_bytes, 0) :], size
        _, size = _place(answer)
        if answer.status == 416:
            return b"", size
        if len(answer.body) != min(max(num_bytes, 1), size):
            raise TryAgainError(f"{len(answer.body)} bytes of {min(num_bytes, size)}")
        return answer.body[-num_bytes:] if num_bytes else b"", size

    async def head(self, key: str) -> ObjectInfo:
        """Return what is said of an object; see `ObjectRequests.head`."""
        answer = await self._send("GET", self._object(key), {"fields": _SAID_OF_OBJECTS})
        return _object_info(self._said(answer, {200}))

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        """Write an object; see `ObjectRequests.put`."""
        query = {"uploadType": "media", "name": key, "fields": "size", **_condition(once=once)}
        answer = await self._send("POST", self._uploads, query, data=data, headers=_BYTES)
        if once and answer.status == 412:
            return False
        self._said(answer, {200, 201}, missing="bucket")
        return True

    async def list_page(
        self, prefix: str, *, token: str | None, only_here: bool, limit: int | None
    ) -> Page:
        """Return the objects whose keys begin with a prefix; see `ObjectRequests.list_page`."""
        query = {
            "prefix": prefix,
            "maxResults": str(min(limit or _MAX_NAMES_PER_PAGE, _MAX_NAMES_PER_PAGE)),
            "fields": f"items({_SAID_OF_OBJECTS}),nextPageToken",
        }
        if only_here:
            query["delimiter"] = "/"
        if token is not None:
            query["pageToken"] = token
        answer = await self._send("GET", self._objects, query)
        self._said(answer, {200}, missing="bucket")
        said = answer.checked_json("a listing")
        return Page(list(map(_object_info, said.get("items", ()))), said.get("nextPageToken"))

    async def delete(self, key: str) -> None:
        """Delete an object; see `ObjectRequests.delete`."""
        answer = await self._send("DELETE", self._object(key), {})
        if not (answer.status == 404 and not _names_the_bucket(answer)):
            self._said(answer, {200, 204}, missing="bucket")

    async def copy(self, source: str, target: str) -> None:
        """Copy an object within the bucket; see `ObjectRequests.copy`."""
        bucket = quote(self._bucket, safe="")
        url = f"{self._object(source)}/rewriteTo/b/{bucket}/o/{quote(target, safe='')}"
        query = {"fields": "done,rewriteToken"}
        while True:
            said = self._said(await self._send("POST", url, query), {200})
            if said.get("done", True):
                return
            query["rewriteToken"] = said["rewriteToken"]

    async def start_upload(self, key: str, *, once: bool) -> Upload:
        """Begin to send a large object in parts; see `ObjectRequests.start_upload`."""
        query = {"uploadType": "resumable", "name": key, **_condition(once=once)}
        begin = {"X-Upload-Content-Type": _BYTES["Content-Type"]}
        answer = await self._send("POST", self._uploads, query, headers=begin)
        self._said(answer, {200, 201}, missing="bucket")
        return GoogleUpload(self, answer.headers["Location"], once=once)

    async def close(self) -> None:
        """Let connections go."""
        await self._http.close()

    async def send_part(self, session: str, data: Data, place: str) -> Answer:
        """Send a part to the session of an upload, and return the answer, good or bad.

        Args:
            session: Its URL.
            data: The part.
            place: The value of Content-Range.
        """
        headers = {**_BYTES, "Content-Range": place}
        return await self._send("PUT", session, {}, data=data, headers=headers)

    async def end_session(self, session: str) -> None:
        """Drop the session of an upload."""
        await self._send("DELETE", session, {})

    def refuse(self, answer: Answer, *, missing: str = "object") -> Exception:
        """Return the error that an answer means which is not a good one."""
        status, text = answer.status, _text(answer)
        if status == 404:
            if missing == "object" and not _names_the_bucket(answer):
                return MissingError(text)
            return RefusedError(
                f"there is no such bucket ({text}). Make it first, or mend the table's URI"
            )
        if status in _LATER or status >= 500 or _reasons(answer) & _TOO_MANY:
            return TryAgainError(text, _seconds(answer.headers.get("Retry-After")))
        if status == 401:
            if self._tokens.doubt():
                return TryAgainError(text)
            return RefusedError(f"{text}: who asks is not known there. {WAYS_OUT}")
        if status == 403:
            return RefusedError(
                f"{text}: who asks is known, but may not do this. Grant the role Storage Object "
                "User on the bucket, or name other credentials in the storage options"
            )
        if status == 400 and "requester pays" in text.lower():
            return RefusedError(f"{text}: name the project in the storage option requester_pays")
        return RefusedError(text)

    async def _read(self, key: str, wanted: Mapping[str, str]) -> Answer:
        headers = {"Accept-Encoding": "identity", **wanted}
        answer = await self._send("GET", self._object(key), {"alt": "media"}, headers=headers)
        if answer.status not in (200, 206, 416):
            raise self.refuse(answer)
        return answer

    async def _send(
        self,
        method: str,
        url: str,
        query: Mapping[str, str],
        *,
        data: Data = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request, and return the answer, good or bad.

        Raises:
            TryAgainError: None came.
        """
        proof = await self._tokens.headers()
        answer = await self._http.send(
            method, url, {**self._common, **query}, data=data, headers={**(headers or {}), **proof}
        )
        if answer.status < 400:
            self._tokens.trust()
        return answer

    def _said(self, answer: Answer, good: set[int], *, missing: str = "object") -> dict[str, Any]:
        if answer.status not in good:
            raise self.refuse(answer, missing=missing)
        return answer.json()

    def _object(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"


class GoogleUpload:
    """A session that takes parts in order; see `Upload`.

    A part that is sent again goes to the same place: bytes that the service has already it passes
    over. It may keep less of a part than was sent, and says how much.

    Args:
        requests: The bucket's.
        session: The session's URL.
        once: Whether it was begun so as not to replace an older object.
    """

    part_bytes = PART_UNIT_BYTES
    max_parts_at_once = 1

    def __init__(self, requests: GoogleRequests, session: str, *, once: bool) -> None:
        self._requests = requests
        self._session = session
        self._once = once
        self._starts = [0]

    async def put_part(self, number: int, data: Data) -> None:
        """Send a part; see `Upload.put_part`."""
        start = self._starts[number]
        stop = start + len(data)
        answer = await self._send(data, start, stop, total="*")
        if answer.status != 308:
            raise self._refuse(answer)
        self._starts[number + 1 :] = [stop]

    async def finish(self, number: int, data: Data) -> bool:
        """Send the last part, and make the object visible; see `Upload.finish`."""
        start = self._starts[number]
        total = start + len(data)
        answer = await self._send(data, start, total, total=str(total))
        if answer.status == 412 and self._once:
            return False
        if answer.status in (404, 410):
            raise MissingError(_text(answer))
        if answer.status not in (200, 201):
            raise self._refuse(answer)
        size = int(answer.json().get("size", total))
        if size != total:
            raise RefusedError(
                f"an object of {size:,} bytes was made of the {total:,} that were sent: the "
                "service does not keep to the protocol of resumable uploads. Do not use the object"
            )
        return True

    async def abort(self) -> None:
        """Leave nothing behind."""
        await self._requests.end_session(self._session)

    async def _send(self, data: Data, start: int, stop: int, *, total: str) -> Answer:
        """Send bytes to their place, and what the service did not keep of them again."""
        while True:
            rest = data[len(data) - (stop - start) :]
            place = f"{start}-{stop - 1}" if rest else "*"
            answer = await self._requests.send_part(self._session, rest, f"bytes {place}/{total}")
            kept = _kept(answer)
            if answer.status != 308 or (kept >= stop and total == "*"):
                return answer
            if not start < kept < stop:
                raise TryAgainError(f"{kept:,} bytes are kept of an upload that has {stop:,}")
            start = kept

    def _refuse(self, answer: Answer) -> Exception:
        error = self._requests.refuse(answer)
        if isinstance(error, MissingError):
            return RefusedError(
                f"{error}: the upload is no longer there, for it was ended or is older than a "
                "week. Write the file again"
            )
        return error


def _condition(*, once: bool) -> dict[str, str]:
    return {"ifGenerationMatch": "0"} if once else {}


def _object_info(said: Mapping[str, Any]) -> ObjectInfo:
    made = datetime.fromisoformat(said["timeCreated"]).timestamp()
    content = said.get("md5Hash")  # what was composed of other objects has none
    etag = b64decode(content).hex() if content else str(said.get("etag", ""))
    return ObjectInfo(str(said["name"]), int(said["size"]), made, etag)


def _whole(answer: Answer) -> bytes:
    """Return the whole object that an answer holds."""
    size = answer.headers.get("X-Goog-Stored-Content-Length", "")
    is_as_stored = answer.headers.get("X-Goog-Stored-Content-Encoding", "identity") == "identity"
    if is_as_stored and size.isdecimal() and int(size) != len(answer.body):
        raise TryAgainError(f"{len(answer.body):,} bytes of {int(size):,}")
    return answer.body


def _place(answer: Answer) -> tuple[int, int]:
    """Return the last byte that an answer holds, and the object's size."""
    match = _SIZE.fullmatch(answer.headers.get("Content-Range", ""))
    if match is None:
        raise TryAgainError(f"an answer {answer.status} without a readable Content-Range")
    return int(match[1] or -1), int(match[2])


def _kept(answer: Answer) -> int:
    """Return how many bytes of an upload are kept, as an answer 308 says it."""
    stop = answer.headers.get("Range", "").rpartition("-")[2]
    return int(stop) + 1 if stop.isdecimal() else 0


def _reasons(answer: Answer) -> set[str]:
    error = answer.json().get("error")
    errors: Sequence[Any] = error.get("errors", ()) if isinstance(error, dict) else ()
    return {str(each.get("reason")) for each in errors if isinstance(each, dict)}


def _text(answer: Answer) -> str:
    """Return what an answer says, on one line."""
    error = answer.json().get("error")
    said = error.get("message") if isinstance(error, dict) else error
    text = str(said or answer.body[:300].decode("utf-8", "replace"))
    return f"{answer.status} {' '.join(text.split())[:300]}".strip()


def _names_the_bucket(answer: Answer) -> bool:
    return "bucket does not exist" in _text(answer).lower()


def _seconds(retry_after: str | None) -> float | None:
    return float(retry_after) if retry_after and retry_after.isdecimal() else None
