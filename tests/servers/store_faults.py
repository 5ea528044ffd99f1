"""What can go wrong between a client and a store, one class each; `FaultProxy` does it.

CutBefore     the connection breaks before the server has the request
CutAfter      the server has done it; the answer is lost
CutBody       the answer breaks off in the middle of its body
Shorten       the answer is short, and its Content-Length says so
Hold          the request arrives late, also when its client has gone meanwhile
Slow          the server has done it; the answer comes late
Repeat        the server gets it twice
Forge         another answer, and the server never gets it; or gets it all the same
Act           something is done in the test when it comes: a kill, another writer's commit
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.servers.store_requests import StoreRequest


@dataclass(frozen=True)
class CutBefore:
    """The request is read, and the connection closed. `reset`: with a RST, not with a FIN."""

    reset: bool = False


@dataclass(frozen=True)
class CutAfter:
    """The server answers, and the connection is closed. `reset`: with a RST, not with a FIN."""

    reset: bool = False


@dataclass(frozen=True)
class CutBody:
    """The head of the answer comes, and a share of its body; then the connection is closed.

    An answer that would have no byte of a body breaks off in its first line.
    """

    share: float = 0.5


@dataclass(frozen=True)
class Shorten:
    """A share of the body comes under a Content-Length that fits it: only a Content-Range tells."""

    share: float = 0.5


@dataclass(frozen=True)
class Hold:
    """The request is passed on so many seconds later, whether or not its client still waits."""

    seconds: float


@dataclass(frozen=True)
class Slow:
    """The request is passed on at once, and its answer so many seconds later."""

    seconds: float


@dataclass(frozen=True)
class Repeat:
    """The server gets the request twice; the client one of its two answers."""

    answer: int = 2


@dataclass(frozen=True)
class Forge:
    """The client gets an answer that the server never gave.

    Attributes:
        status: Its status.
        code: What the body calls it; "" for what the service calls this status.
        landed: Whether the server got the request all the same.
        headers: Besides those of a plain answer.
    """

    status: int
    code: str = ""
    landed: bool = False
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Act:
    """A function is called when the request comes, before anything is passed on.

    Attributes:
        function: Gets the request.
        then: What else is done to it; None to pass it on.
    """

    function: Callable[[StoreRequest], object]
    then: "Fault | None" = field(default=None)


Fault: TypeAlias = CutBefore | CutAfter | CutBody | Shorten | Hold | Slow | Repeat | Forge | Act

_CODES = {
    "s3": {
        400: "BadRequest",
        403: "AccessDenied",
        404: "NoSuchBucket",
        409: "ConditionalRequestConflict",
        412: "PreconditionFailed",
        429: "TooManyRequests",
        500: "InternalError",
        503: "SlowDown",
    },
    "azure": {
        400: "InvalidHeaderValue",
        403: "AuthorizationFailure",
        404: "ContainerNotFound",
        409: "BlobAlreadyExists",
        412: "ConditionNotMet",
        429: "TooManyRequests",
        500: "InternalError",
        503: "ServerBusy",
    },
    "google": {
        400: "invalid",
        403: "forbidden",
        404: "notFound",
        409: "conflict",
        412: "conditionNotMet",
        429: "rateLimitExceeded",
        500: "internalError",
        503: "backendError",
    },
    "dynamodb": {
        400: "ConditionalCheckFailedException",
        403: "AccessDeniedException",
        404: "ResourceNotFoundException",
        409: "TransactionConflictException",
        412: "ConditionalCheckFailedException",
        429: "ThrottlingException",
        500: "InternalServerError",
        503: "ServiceUnavailable",
    },
}


def forged_answer(fault: Forge, request: StoreRequest) -> tuple[list[tuple[str, str]], bytes]:
    """Return the headers and the body of a forged answer, in the words of the request's service."""
    code = fault.code or _CODES[request.service].get(fault.status, "Unknown")
    kind, headers = "application/xml", []
    if request.service == "s3":
        condition = "<Condition>If-None-Match</Condition>" if fault.status == 412 else ""
        body = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
            f"<Message>forged</Message>{condition}<RequestId>F0</RequestId></Error>"
        )
    elif request.service == "azure":
        headers = [("x-ms-error-code", code)]
        body = (
            f'<?xml version="1.0" encoding="utf-8"?><Error><Code>{code}</Code>'
            "<Message>forged</Message></Error>"
        )
    elif request.service == "google":
        kind = "application/json"
        reason = {"reason": code, "message": "forged", "domain": "global"}
        body = json.dumps(
            {"error": {"code": fault.status, "message": "forged", "errors": [reason]}}
        )
    else:
        kind = "application/x-amz-json-1.0"
        body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "."})
    return [("Content-Type", kind), *headers, *fault.headers], body.encode()
