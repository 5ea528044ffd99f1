"""Interprets a service's response from the text of the error that obstore raises.

    404                             there is no such object
    404 that names the bucket       refused
    412                             a conditional create: the name is taken
    409                             S3, Google: two concurrent creates of one name, try again;
                                    Azure: depending on its code, the name is taken
    416                             the object ends before the range begins
    408, 425, 429, 5xx, time-out    try again; 501 is refused
    401, codes of expired           refused, unless other credentials are available
    credentials
    everything else                 refused, with the remedy for its code

obstore puts the status and the body into the text; its error classes only distinguish missing and
existing objects. The text also contains the URL, so only the parts that are parsed here are shown.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from lance_stream.storage.objects.object_requests import (
    OTHER_NAME,
    MissingError,
    RefusedError,
    TryAgainError,
)

_STATUS: Final = re.compile(
    r"non-2xx status code: (\d{3})[^:]*:? ?(.*?)(?:\n\nDebug source|\Z)", re.S
)
_CODE: Final = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]*)</Message>")
_REGION: Final = re.compile(r"<Region>([a-z0-9-]+)</Region>")
_REASON: Final = re.compile(r'message: "([^"]{1,300})"')
_KIND: Final = re.compile(
    r"\bkind: ([A-Z]\w+)|source: (TimedOut)|\b(IncompleteMessage|BodyTimeout)\b"
)
_CERTIFICATE: Final = re.compile(
    r"(invalid peer certificate[^\n\"]{0,200}|InvalidCertificate\([^\n]{1,200})"
)
_NETWORK_ERRORS: Final = {
    "TimedOut": "timeout",
    "IncompleteMessage": "the connection was closed",
    "Body": "the response was truncated",
}
_RETRIES: Final = re.compile(r"after (\d+) retries")

_DELETION: Final = re.compile(r"delete request failed for key .*?: (.*?) \(code: (\d{3})\)", re.S)
_NO_REMEDY: Final = "the service does not accept this request"

_DEBUG: Final = "\n\nDebug source"
_LATER: Final = frozenset({408, 425, 429})
_WHOLE_OBJECT: Final = ("non-partial response", "CONTENT_RANGE")
_MAX_MESSAGE: Final = 300


@dataclass(frozen=True)
class Dialect:
    """A service's error codes.

    Attributes:
        taken: Codes of 409 for a name that is taken; all other conflicts are retried if
            `conflicts_pass`.
        conflicts_pass: Whether a conflict may be temporary.
        later: Codes that are retried, with any status.
        no_bucket: Codes of 404 that refer to the bucket, not to the object.
        not_accepted: Codes for which other credentials may help, with any status.
        remedies: Remedies by code or by status.
    """

    taken: frozenset[str] = frozenset()
    conflicts_pass: bool = True
    later: frozenset[str] = frozenset()
    no_bucket: frozenset[str] = frozenset()
    not_accepted: frozenset[str] = frozenset()
    remedies: Mapping[str, str] = field(default_factory=dict)


class NameTakenError(RefusedError):
    """The name is taken, or the object has been replaced."""


class NotAcceptedError(RefusedError):
    """The credentials are invalid or expired."""


class NotImplementedResponseError(RefusedError):
    """501: the service does not support this request."""


class NoSuchRangeError(RefusedError):
    """The object ends before the range begins, or the service returned the whole object.

    Attributes:
        kind: Which of the two.
    """

    def __init__(self, kind: Literal["beyond the end", "not a part"]) -> None:
        super().__init__(kind)
        self.kind = kind


class _Response(NamedTuple):
    status: int
    code: str
    message: str

    def __str__(self) -> str:
        code = self.code if self.code and self.code != str(self.status) else ""
        text = " ".join(part for part in (str(self.status), code) if part)
        return f"{text} ({self.message})" if self.message else text


def classify_error(error: Exception, dialect: Dialect) -> Exception:
    """Convert an error of obstore to one of `object_requests`; return other errors unchanged.

    Args:
        error: The error that was raised.
        dialect: The service's error codes.
    """
    text = str(error)
    if any(phrase in text.partition("\n")[0] for phrase in _WHOLE_OBJECT):
        return NoSuchRangeError("not a part")
    match = _STATUS.search(text)
    if match is not None:
        return _classify_response(_parse_response(int(match[1]), match[2]), text, dialect)
    deletion = _DELETION.search(text)  # part of the response to a bulk delete
    if deletion is not None:
        return _classify_response(_Response(int(deletion[2]), "", _line(deletion[1])), "", dialect)
    if "redirect without LOCATION" in text:
        return RefusedError(f"the service redirects requests: {_elsewhere(dialect)}")
    certificate = _CERTIFICATE.search(text)
    if certificate is not None:
        return RefusedError(
            f"the certificate of the service is not trusted ({certificate[1].strip()[:200]}): set "
            "the environment variable SSL_CERT_FILE to the file with your authority's certificates"
        )
    if "object with invalid path" in text:
        return RefusedError(f"{_line(text.partition(_DEBUG)[0])}. {OTHER_NAME}")
    name = type(error).__name__
    if name in ("InvalidPathError", "NotSupportedError", "UnknownConfigurationKeyError"):
        return RefusedError(_line(text.partition("\n")[0]))
    if isinstance(error, FileNotFoundError):
        return MissingError("404")
    if type(error).__module__.startswith("obstore") or isinstance(error, OSError):
        return TryAgainError(f"no response: {_network_error(text)}")
    return error


def num_attempts(error: Exception) -> int:
    """Return the number of times that obstore sent a failed request."""
    match = _RETRIES.search(str(error))
    return int(match[1]) + 1 if match else 1


def _parse_response(status: int, body: str) -> _Response:
    code, message = _CODE.search(body), _MESSAGE.search(body)
    if code is not None:
        return _Response(status, code[1], _line(message[1]) if message else "")
    try:
        error = json.loads(body).get("error", {})
        return _Response(status, "", _line(str(error.get("message", ""))))
    except (ValueError, AttributeError, RecursionError):
        return _Response(status, "", "" if "<" in body else _line(body))


def _line(text: str) -> str:
    line = " ".join(text.split())[:_MAX_MESSAGE]
    return "".join(
        character if character.isprintable() else repr(character)[1:-1] for character in line
    )


def _classify_response(response: _Response, text: str, dialect: Dialect) -> Exception:
    status, code = response.status, response.code
    if status == 404 or code in dialect.no_bucket:
        if code in dialect.no_bucket or "bucket does not exist" in response.message.lower():
            return RefusedError(
                f"{response}: {dialect.remedies.get(code) or dialect.remedies['404']}"
            )
        return MissingError(str(response))
    if status in _LATER or code in dialect.later or (status >= 500 and status != 501):
        return TryAgainError(f"{status} {code}".strip())
    is_named = code in dialect.remedies
    if (status == 412 and not is_named) or (status == 409 and code in dialect.taken):
        return NameTakenError(str(response))
    if status == 409 and dialect.conflicts_pass and not is_named:
        return TryAgainError(f"{status} {code}".strip())
    if status == 416:
        return NoSuchRangeError("beyond the end")
    remedy = dialect.remedies.get(code) or dialect.remedies.get(str(status)) or _NO_REMEDY
    region = _REGION.search(text)
    if region is not None:
        remedy = f"the bucket is in {region[1]}: {remedy}"
    if 300 <= status < 400:
        remedy = f"the service redirects requests: {_elsewhere(dialect)}"
    refusal = f"{response}: {remedy}"
    is_bare = status == 400 and not (code or response.message)  # responses to HEAD have no code
    if status == 401 or code in dialect.not_accepted or (is_bare and dialect.not_accepted):
        return NotAcceptedError(refusal)
    return NotImplementedResponseError(refusal) if status == 501 else RefusedError(refusal)


def _elsewhere(dialect: Dialect) -> str:
    return dialect.remedies.get("301", "correct the endpoint in the storage options")


def _network_error(text: str) -> str:
    """Return why no response came, without the URL."""
    reason = _REASON.search(text)
    if reason is not None:
        return reason[1]
    kinds = [kind for group in _KIND.findall(text) for kind in group if kind]
    return _NETWORK_ERRORS.get(kinds[-1], kinds[-1]) if kinds else "unknown reason"
