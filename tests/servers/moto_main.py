"""moto's server, with what S3 and DynamoDB promise: of many who create one thing, one succeeds.

moto looks whether the name is taken, and then makes the object or the item; of four who finished
large uploads at once, three did. Here one lock is held around both.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from moto.dynamodb.responses import DynamoHandler
from moto.s3.responses import S3Response
from moto.server import main

_CREATING = (
    (S3Response, "put_object"),
    (S3Response, "_key_response_post"),
    (DynamoHandler, "put_item"),
    (DynamoHandler, "transact_write_items"),
    (DynamoHandler, "transact_get_items"),
)
_LOCK = threading.RLock()


def one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that one thread runs at a time."""

    @wraps(method)
    def alone(*arguments: Any, **named: Any) -> Any:
        with _LOCK:
            return method(*arguments, **named)

    return alone


if __name__ == "__main__":
    for kind, name in _CREATING:
        setattr(kind, name, one_at_a_time(getattr(kind, name)))
    main()
