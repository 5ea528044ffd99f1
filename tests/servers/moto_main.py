"""moto's server, with what S3 promises: of many who create an object at once, one succeeds.

moto looks whether the name is taken, and then makes the object; of four who finish large uploads at
once, three did. Here one lock is held around both.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from moto.s3.responses import S3Response
from moto.server import main

_LOCK = threading.RLock()


def one_at_a_time(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method that nobody else is in meanwhile."""

    @wraps(method)
    def alone(*arguments: Any, **named: Any) -> Any:
        with _LOCK:
            return method(*arguments, **named)

    return alone


if __name__ == "__main__":
    for name in ("put_object", "_key_response_post"):
        setattr(S3Response, name, one_at_a_time(getattr(S3Response, name)))
    main()
