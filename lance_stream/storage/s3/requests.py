"""Requests to S3 and to services that speak its protocol, through the client that s3fs makes.

s3fs brings credentials, sessions and connections; botocore's client sends what it is told. Its own
retries are off, and aiohttp's. One thing still makes it send a request twice, and does no harm:
botocore follows a bucket into the region that the service names.

What the service says, and what it means:

    404                             there is no such object, or no such upload
    404 NoSuchBucket                refused
    409 ConditionalRequestConflict  two who create one name at once: try again
    412                             the name is taken, with or without <Condition> in the answer
    416                             the object ends before the range begins: no bytes
    400 RequestTimeout, BadDigest   the data did not arrive as they were sent: try again
    408, 409, 429, 5xx, silence     try again
    301, 307, 400, 401, 403, 405    refused, with the way out
    501 to a conditional put        the service cannot create once: unsupported
"""

import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

import aiohttp
import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore import exceptions as botocore_errors
from botocore.config import Config
from botocore.parsers import ResponseParserError
from fsspec.asyn import get_loop

from lance_stream.errors import InvalidInputError, UnsupportedFeatureError
from lance_stream.storage.object_requests import (
    Data,
    MissingError,
    ObjectInfo,
    Page,
    RefusedError,
    TryAgainError,
    Upload,
)
from lance_stream.storage.options.names import thaw
from lance_stream.storage.s3.options import S3Settings
from lance_stream.storage.s3.sessions import SharesDescriptions

KEYS_A_PAGE: Final = 1000
"""What the service lists at once at most."""

_CONNECTIONS: Final = 128
_BOUNDS: Final = re.compile(r"\d+")


class S3Requests:
    """The requests that one bucket answers; see `ObjectRequests`.

    Args:
        settings: How S3 is reached.
        bucket: The bucket.
    """

    def __init__(self, settings: S3Settings, bucket: str) -> None:
        self._bucket = bucket
        self._creates_once = settings.creates_once
        self._filesystem = _filesystem(settings)
        self._additional = thaw(settings.additional)
        if settings.requester_pays:
            self._additional["RequestPayer"] = "requester"

    async def get(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes of a range; see `ObjectRequests.get`."""
        if stop is not None and stop <= start:
            start, stop = 0, 1  # one byte tells whether the object is there
            return (await self.get(key, start, stop))[:0]
        asked = {} if (start, stop) == (0, None) else {"Range": _range(start, stop)}
        answer = await self._get(key, **asked)
        if answer is None:
            return b""
        data, content_range = answer
        # A service that knows no ranges answers with all of the object.
        return data if content_range or not asked else data[start:stop]

    async def get_end(self, key: str, num_bytes: int) -> tuple[bytes, int]:
        """Return the last bytes of an object, and its size; see `ObjectRequests.get_end`."""
        answer = await self._get(key, Range=f"bytes=-{max(num_bytes, 1)}")
        if answer is None:
            return b"", 0
        data, content_range = answer
        size = int(content_range.rpartition("/")[2]) if content_range else len(data)
        return data[len(data) - min(num_bytes, len(data)) :], size

    async def head(self, key: str) -> ObjectInfo:
        """Return what is said of an object; see `ObjectRequests.head`."""
        answer = await self._ask("head_object", Key=key)
        return _info(key, answer["ContentLength"], answer)

    async def put(self, key: str, data: Data, *, once: bool) -> bool:
        """Write an object; see `ObjectRequests.put`.

        A service that ignores the condition would answer as if it had kept it. So where nobody has
        said that it keeps it, the first object that a process creates once is created once more:
        that has to be refused.
        """
        body = bytes(data)
        made = await self._made("put_object", once=once, Key=key, Body=body)
        if made and once and self._creates_once is None:
            if not await self._is_aws() and await self._made(
                "put_object", once=True, Key=key, Body=body
            ):
                self._creates_once = False
                raise UnsupportedFeatureError(
                    f"{self._no_condition('ignores every')}. Of the file {key!r} alone it is not "
                    "known whether it replaced an older one"
                )
            self._creates_once = True
        return made

    async def list_page(
        self, prefix: str, *, token: str | None, only_here: bool, limit: int | None
    ) -> Page:
        """Return objects whose keys begin with a prefix; see `ObjectRequests.list_page`."""
        at_most = KEYS_A_PAGE if limit is None else min(limit, KEYS_A_PAGE)
        arguments: dict[str, Any] = {"Prefix": prefix, "MaxKeys": at_most}
        if only_here:
            arguments["Delimiter"] = "/"
        if token is not None:
            arguments["ContinuationToken"] = token
        answer = await self._ask("list_objects_v2", **arguments)
        if answer.get("IsTruncated") and not answer.get("NextContinuationToken"):
            raise RefusedError(
                "the listing is said to go on, but not where: the service does not know "
                "ListObjectsV2"
            )
        return Page(
            [_info(each["Key"], each["Size"], each) for each in answer.get("Contents", ())],
            answer.get("NextContinuationToken") if answer.get("IsTruncated") else None,
        )

    async def delete(self, key: str) -> None:
        """Delete an object; see `ObjectRequests.delete`."""
        try:
            await self._ask("delete_object", Key=key)
        except MissingError:
            return

    async def copy(self, source: str, target: str) -> None:
        """Copy an object; see `ObjectRequests.copy`."""
        await self._ask(
            "copy_object", Key=target, CopySource={"Bucket": self._bucket, "Key": source}
        )

    async def start_upload(self, key: str, *, once: bool) -> Upload:
        """Begin to send a large object in parts; see `ObjectRequests.start_upload`."""
        answer = await self._ask("create_multipart_upload", Key=key)
        return S3Upload(self, key, answer["UploadId"], once=once)

    async def close(self) -> None:
        """Let connections go."""
        client = self._filesystem._s3
        if client is not None:
            await client.close()

    async def _get(self, key: str, **asked: str) -> tuple[bytes, str] | None:
        """Return the bytes of a GET and its Content-Range, if any; None where no byte is there."""
        try:
            answer = await self._ask("get_object", Key=key, **asked)
        except _NoSuchRangeError:
            return None
        try:
            async with answer["Body"] as body:
                data: bytes = await body.read()
        except Exception as error:
            _raise(error)
        content_range = answer.get("ContentRange", "")
        first, last = _BOUNDS.findall(content_range)[:2] or (1, answer["ContentLength"])
        if len(data) != (said := int(last) - int(first) + 1):
            raise TryAgainError(f"{len(data)} of {said} bytes")
        return data, content_range

    async def _made(self, operation: str, *, once: bool, **arguments: Any) -> bool:
        """Send a request that makes an object; return False if its name is taken."""
        if once and self._creates_once is False:
            raise UnsupportedFeatureError(self._no_condition("was told to be without"))
        condition = {"IfNoneMatch": "*"} if once else {}
        try:
            await self._ask(operation, **arguments, **condition)
        except _TakenError:
            if once:
                self._creates_once = True
                return False
            raise
        except _NotImplementedError as error:
            if not once:
                raise
            raise UnsupportedFeatureError(self._no_condition("knows no")) from error
        return True

    async def _is_aws(self) -> bool:
        host = urlsplit((await self._client()).meta.endpoint_url).hostname or ""
        return host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    async def _client(self) -> Any:
        try:
            return await self._filesystem.set_session()
        except (TypeError, ValueError) as error:
            raise _not_taken(error) from error
        except Exception as error:
            _raise(error)

    def _no_condition(self, why: str) -> str:
        return (
            f"the service that holds the bucket {self._bucket!r} {why} conditional put "
            "(If-None-Match), and without it two writers would overwrite each other's versions. "
            "No version was made. Keep the versions in an external manifest store: the storage "
            "option manifest_store"
        )

    async def _ask(self, operation: str, **arguments: Any) -> Any:
        """Send one request; raise what `ObjectRequests` says."""
        client = await self._client()
        try:
            api = client.meta.method_to_api_mapping[operation]
            known = client.meta.service_model.operation_model(api).input_shape.members
            additional = {k: v for k, v in self._additional.items() if k in known}
            return await getattr(client, operation)(
                **{**additional, **arguments, "Bucket": self._bucket}
            )
        except Exception as error:
            _raise(error)


class S3Upload(Upload):
    """A multipart upload; see `Upload`. Its name belongs to nobody until it is finished."""

    def __init__(self, requests: S3Requests, key: str, upload_id: str, *, once: bool) -> None:
        self._once = once
        self.part_bytes = 1
        self.max_parts_at_once = 4
        self._requests = requests
        self._of_upload = {"Key": key, "UploadId": upload_id}
        self._etags: dict[int, str] = {}

    async def put_part(self, number: int, data: Data) -> None:
        """Send a part; see `Upload.put_part`."""
        answer = await self._requests._ask(
            "upload_part", **self._of_upload, PartNumber=number + 1, Body=bytes(data)
        )
        self._etags[number] = answer["ETag"]

    async def finish(self, number: int, data: Data) -> bool:
        """Send the last part, and make the object visible; see `Upload.finish`."""
        if number not in self._etags:
            await self.put_part(number, data)
        parts = [
            {"PartNumber": each + 1, "ETag": etag} for each, etag in sorted(self._etags.items())
        ]
        return await self._requests._made(
            "complete_multipart_upload",
            once=self._once,
            **self._of_upload,
            MultipartUpload={"Parts": parts},
        )

    async def abort(self) -> None:
        """Leave nothing behind; see `Upload.abort`."""
        try:
            await self._requests._ask("abort_multipart_upload", **self._of_upload)
        except MissingError:
            return


def _info(key: str, size_bytes: int, answer: Mapping[str, Any]) -> ObjectInfo:
    modified: float = answer["LastModified"].timestamp()
    return ObjectInfo(key, size_bytes, modified, str(answer.get("ETag", "")).strip('"'))


def _range(start: int, stop: int | None) -> str:
    return f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"


def _filesystem(settings: S3Settings) -> Any:
    """Return an s3fs object of our own: not cached, without listings, for one event loop."""
    config = {
        "max_pool_connections": max(_CONNECTIONS, settings.max_requests_at_once),
        **_checksums(settings),
        **thaw(settings.config),
        "http_session_cls": _OneRequestSession,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        "connect_timeout": settings.patience.connect_seconds,
        "read_timeout": settings.patience.request_seconds,
    }
    client = thaw(settings.client)
    if settings.region is not None:
        client["region_name"] = settings.region
    try:
        return s3fs.S3FileSystem(
            anon=settings.anonymous,
            key=settings.key,
            secret=settings.secret,
            token=settings.token,
            endpoint_url=settings.endpoint,
            client_kwargs=client,
            config_kwargs=config,
            use_listings_cache=False,
            skip_instance_cache=True,
            asynchronous=True,
            loop=get_loop(),
            session=_Session(profile=settings.profile),
        )
    except (TypeError, ValueError) as error:
        raise _not_taken(error) from error


def _not_taken(error: Exception) -> InvalidInputError:
    return InvalidInputError(f"the library of S3 does not take these storage options: {error}")


def _checksums(settings: S3Settings) -> dict[str, str]:
    """Return when checksums go along: of all services, AWS itself is known to understand them."""
    when = "when_supported" if settings.endpoint is None else "when_required"
    options = ("request_checksum_calculation", "response_checksum_validation")
    return {each: when for each in options if each in Config.OPTION_DEFAULTS}


class _Session(SharesDescriptions, AioSession):  # type: ignore[misc]  # the library has no types
    """What clients are made from."""


class _OneRequestSession(AIOHTTPSession):  # type: ignore[misc]  # the library has no types
    """Sends each request once: aiohttp would send again what a kept connection has not answered."""

    async def _get_session(self, *arguments: Any) -> Any:
        session = await super()._get_session(*arguments)
        session._retry_connection = False
        return session


class _TakenError(RefusedError):
    """412: the condition does not hold."""


class _NotImplementedError(RefusedError):
    """501."""


class _NoSuchRangeError(RefusedError):
    """416: the object ends before the range begins."""


_LATER_STATUS: Final = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507, 509})
_LATER_CODES: Final = frozenset(
    {
        "BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestTimeout",
        "RequestTimeoutException", "ServiceUnavailable", "SlowDown", "SlowDownRead",
        "SlowDownWrite", "Throttling", "ThrottlingException", "TooManyRequests",
        "XAmzContentSHA256Mismatch", "XMinioServerNotInitialized",
    }
)  # fmt: skip

_KEYS: Final = (
    "check the storage options aws_access_key_id, aws_secret_access_key and aws_session_token "
    "(key, secret, token), or what the environment has in their place"
)
_RIGHTS: Final = (
    "the credentials need s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload and "
    "s3:ListBucket there (without the last, what is missing is answered like this, too)"
)
_REGION: Final = "give the bucket's region as the storage option aws_region"
_WAYS_OUT: Final[Mapping[str, str]] = {
    "NoSuchBucket": "create the bucket, or mend its name in the table's URI",
    **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "AccountProblem", "403"), _RIGHTS),
    **dict.fromkeys(
        ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity", "401"),
        _KEYS,
    ),
    **dict.fromkeys(
        ("ExpiredToken", "TokenRefreshRequired", "ExpiredTokenException"),
        "the session's token has expired: give a new one, or let a profile or role renew it",
    ),
    "RequestTimeTooSkewed": "set the clock of this machine",
    **dict.fromkeys(
        (
            "PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed", "301", "307",
            "IllegalLocationConstraintException",
        ),
        _REGION,
    ),
    "NotImplemented": "the service does not know this request",
}  # fmt: skip


def _raise(error: Exception) -> NoReturn:
    """Raise what `ObjectRequests` says in place of an error of the library; others as they are."""
    raised = _translate(error)
    if raised is error:
        raise error
    raise raised from error


def _translate(error: Exception) -> Exception:
    if isinstance(error, botocore_errors.ClientError):
        return _translate_answer(error.response)
    if isinstance(error, botocore_errors.SSLError):
        return RefusedError(
            f"SSLError: {error.kwargs.get('error', error)}; name your own authority's certificates "
            "in the environment variable AWS_CA_BUNDLE"
        )
    if isinstance(error, _SILENCE):
        inner = getattr(error, "kwargs", {}).get("error")
        said = str(inner or error).strip()
        return TryAgainError(f"{type(error).__name__}" + (f": {said[:300]}" if said else ""))
    if isinstance(error, _NO_CREDENTIALS):
        return RefusedError(f"{error}; {_KEYS}")
    if isinstance(error, botocore_errors.BotoCoreError):
        return RefusedError(f"{type(error).__name__}: {error}; check the storage options")
    return error


_SILENCE = (
    botocore_errors.HTTPClientError,
    botocore_errors.ConnectionError,
    botocore_errors.IncompleteReadError,
    botocore_errors.ChecksumError,
    botocore_errors.FlexibleChecksumError,
    botocore_errors.CredentialRetrievalError,
    botocore_errors.MetadataRetrievalError,
    ResponseParserError,
    aiohttp.ClientError,
    OSError,
)
"""No answer, or none that can be read."""

_NO_CREDENTIALS = (
    botocore_errors.NoCredentialsError,
    botocore_errors.PartialCredentialsError,
    botocore_errors.ProfileNotFound,
    botocore_errors.NoAuthTokenError,
    botocore_errors.TokenRetrievalError,
    botocore_errors.SSOError,
)


def _translate_answer(response: Mapping[str, Any]) -> Exception:
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    code = str(response.get("Error", {}).get("Code", ""))
    message = str(response.get("Error", {}).get("Message", "")).strip()
    said = " ".join(
        part for part in (str(status or ""), code if code != str(status) else "") if part
    )
    if status == 404 and code != "NoSuchBucket":
        return MissingError(said)
    if status in _LATER_STATUS or code in _LATER_CODES:
        return TryAgainError(said, _seconds(headers.get("retry-after")))
    answer = f"{said} ({message[:300]})" if message else said
    if status == 412:
        return _TakenError(answer)
    if status == 416:
        return _NoSuchRangeError(answer)
    region = headers.get("x-amz-bucket-region") or response.get("Error", {}).get("Region")
    way_out = _WAYS_OUT.get(code) or _WAYS_OUT.get(str(status), "")
    if way_out is _REGION and region:
        way_out = f"the bucket lies in {region}: {_REGION}"
    answer = f"{answer}: {way_out}" if way_out else answer
    return _NotImplementedError(answer) if status == 501 else RefusedError(answer)


def _seconds(retry_after: str | None) -> float | None:
    return float(retry_after) if retry_after and retry_after.isdecimal() else None
