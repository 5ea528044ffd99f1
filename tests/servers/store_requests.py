"""What a request asks of a store, read off its method, path and headers: one word for each service.

    word             S3                            Google                         Azure
    get              GET key                       GET o/key?alt=media            GET blob
    head             HEAD key                      GET o/key                      HEAD blob
    list             GET bucket                    GET o                          GET comp=list
    put              PUT key                       POST uploadType=multipart      PUT blob
    put once         If-None-Match: *              ifGenerationMatch=0            If-None-Match: *
    copy             x-amz-copy-source             rewriteTo, copyTo              x-ms-copy-source
    delete           DELETE key                    DELETE o/key                   DELETE blob
    bulk delete      POST ?delete                  POST batch                     POST comp=batch
    start upload     POST ?uploads                 uploadType=resumable
    part             PUT ?partNumber               PUT upload_id, not the last    PUT comp=block
    complete         POST ?uploadId                PUT upload_id, the last        PUT comp=blocklist
    abort            DELETE ?uploadId              DELETE upload_id

A complete upload that creates once is "complete once"; Google states the condition at the start:
"start upload once". DynamoDB's requests have their own names: "PutItem". What is none of these is
"other".
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qs, unquote, urlsplit

_GOOGLE = re.compile(
    r"(?:/(?:upload|download|resumable/upload))?/storage/v1/b/([^/]+)(?:/o(?:/([^/]+)(/.*)?)?)?"
)


@dataclass
class StoreRequest:
    """One request that came to a proxy, and what became of it.

    Attributes:
        number: Its place among those that the proxy has seen, from 1.
        method: "GET".
        target: Path and query as they were sent.
        headers: By name in lower case.
        service: "s3", "google", "azure" or "dynamodb".
        kind: One of the words of this module.
        key: The object's name within its bucket; the prefix, for a listing; the table, for
            DynamoDB.
        num_bytes_sent: Size of its body.
        status: Of the answer that the client got; 0 if it got none.
        num_bytes_received: Size of the answer's body, as far as it was passed on.
        fault: What was done to it, in words.
        started: Seconds by the monotonic clock.
        seconds: How long it took.
    """

    number: int
    method: str
    target: str
    headers: Mapping[str, str]
    service: str
    kind: str
    key: str
    num_bytes_sent: int = 0
    status: int = 0
    num_bytes_received: int = 0
    fault: str = ""
    started: float = 0.0
    seconds: float = field(default=0.0, compare=False)

    @property
    def range(self) -> str:
        """The bytes asked for, as in "0-99" or "-65536"; "" for all."""
        sent = self.headers.get("x-ms-range") or self.headers.get("range") or ""
        return sent.removeprefix("bytes=")

    def __str__(self) -> str:
        """The request on a line, for the message of an assertion."""
        request = f"{self.kind} {self.key}" + (f" [{self.range}]" if self.range else "")
        return f"{self.number}: {request} -> {self.status}" + (
            f" ({self.fault})" * bool(self.fault)
        )


def describe(method: str, target: str, headers: Mapping[str, str], body: bytes) -> tuple[str, ...]:
    """Return service, kind and key of a request.

    Args:
        method: In capitals.
        target: Path and query.
        headers: By name in lower case.
        body: Decoded from its chunks.
    """
    url = urlsplit(target)
    query = {name: row[0] for name, row in parse_qs(url.query, keep_blank_values=True).items()}
    if "x-amz-target" in headers:
        return "dynamodb", *_of_dynamodb(headers, body)
    if "x-ms-version" in headers or "x-ms-date" in headers:
        return "azure", *_of_azure(method, url.path, query, headers, body)
    if _GOOGLE.match(url.path) or url.path.startswith(("/batch/storage", "/upload/")):
        return "google", *_of_google(method, url.path, query, headers, body)
    return "s3", *_of_s3(method, url.path, query, headers)


_BY_METHOD = {"GET": "get", "HEAD": "head", "PUT": "put", "DELETE": "delete"}


def _once(kind: str, is_once: bool) -> str:
    return f"{kind} once" if is_once else kind


def _of_s3(
    method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]
) -> tuple[str, str]:
    _, _, key = unquote(path).removeprefix("/").partition("/")
    is_once = (
        headers.get("if-none-match") == "*" or headers.get("x-goog-if-generation-match") == "0"
    )
    if not key:
        if method == "POST" and "delete" in query:
            return "bulk delete", ""
        return ("list", query.get("prefix", "")) if method == "GET" else ("other", "")
    if method == "POST":
        kind = "start upload" if "uploads" in query else "complete" if "uploadId" in query else ""
        return _once(kind or "other", is_once and kind == "complete"), key
    if "uploadId" in query:
        return {"PUT": "part", "DELETE": "abort"}.get(method, "other"), key
    if method == "PUT" and {"x-amz-copy-source", "x-goog-copy-source"} & set(headers):
        return "copy", key
    return _once(_BY_METHOD.get(method, "other"), is_once and method == "PUT"), key


def _azure_name(body: bytes) -> str:
    match = re.search(rb"^DELETE /([^ ?]*)", body, re.MULTILINE)
    return unquote(match[1].decode()).split("/", 2)[-1] if match else ""


def _of_azure(
    method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
) -> tuple[str, str]:
    parts = unquote(path).removeprefix("/").split("/", 2)
    key = parts[2] if len(parts) > 2 else ""
    is_once = headers.get("if-none-match") == "*" and method == "PUT"
    comp = query.get("comp", "")
    if comp == "list":
        return "list", query.get("prefix", "")
    if comp == "batch":  # of one object, as it is sent here
        return "delete", _azure_name(body)
    if not key or "restype" in query:
        return "other", key
    if comp:
        kind = {"block": "part", "blocklist": "complete"}.get(comp, "other")
        return _once(kind, is_once and kind == "complete"), key
    if "x-ms-copy-source" in headers:
        return _once("copy", is_once), key
    return _once(_BY_METHOD.get(method, "other"), is_once), key


def _of_google(
    method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
) -> tuple[str, str]:
    match = _GOOGLE.match(path)
    key = unquote(match[2] or "") if match else ""
    is_once = query.get("ifGenerationMatch") == "0"
    if path.startswith("/batch"):
        return "bulk delete", ""
    if path.startswith(("/upload", "/resumable/upload")):
        key = query.get("name") or _google_name(body)
        if "upload_id" in query or match is None:
            if method == "DELETE":
                return "abort", key
            return ("complete" if _is_last(headers.get("content-range", "")) else "part"), key
        kind = "start upload" if query.get("uploadType") == "resumable" else "put"
        return _once(kind, is_once), key
    if match is None:
        return "other", ""
    if not key:
        is_list = method == "GET" and path.rstrip("/").endswith("/o")
        return ("list" if is_list else "other"), query.get("prefix", "")
    if match[3]:
        target = unquote(match[3].rpartition("/o/")[2])
        return _once("copy", is_once), target
    if method == "GET":
        return ("get" if query.get("alt") == "media" or "download" in path else "head"), key
    return _BY_METHOD.get(method, "other"), key


def _is_last(content_range: str) -> bool:
    """Return whether "bytes 0-9/10" reaches the end; one that states no size does not."""
    match = re.fullmatch(r"bytes (?:\d+-(\d+)|\*)/(\d+)", content_range)
    return bool(match and (match[1] is None or int(match[1]) + 1 == int(match[2])))


def _google_name(body: bytes) -> str:
    match = re.search(rb'"name"\s*:\s*("(?:[^"\\]|\\.)*")', body[:4096])
    return str(json.loads(match[1])) if match else ""


def _of_dynamodb(headers: Mapping[str, str], body: bytes) -> tuple[str, str]:
    kind = headers["x-amz-target"].rpartition(".")[2]
    try:
        return kind, str(json.loads(body).get("TableName", ""))
    except ValueError:
        return kind, ""
