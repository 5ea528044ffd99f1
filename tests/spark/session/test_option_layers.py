"""Which of several sources of storage options takes precedence."""

from typing import Any

import pytest

from lance_stream.spark.session.option_layers import layer_options

USERS = {"aws_access_key_id": "u", "aws_secret_access_key": "u2"}
OF_SPARK = {**dict.fromkeys(USERS, "s"), "aws_endpoint": "http://there", "allow_http": "true"}

LAYERS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "none says anything": ([{}, {}], {}),
    "the only one that says something is heard": ([{}, OF_SPARK], OF_SPARK),
    "keys are not sent to an endpoint that came with others": (
        [USERS, OF_SPARK],
        {**USERS, "allow_http": "true"},
    ),
    "an endpoint does not get keys that came without it": (
        [{"endpoint_url": "http://here"}, USERS],
        {"endpoint_url": "http://here"},
    ),
    "a time-out says neither who nor whom": (
        [{"client_max_retries": 3, "durable": True, "manifest_store": "x"}, OF_SPARK],
        {"client_max_retries": 3, "durable": True, "manifest_store": "x", **OF_SPARK},
    ),
    "the first one's time-out counts, whatever it calls it": (
        [{"timeout": "1s"}, {"request_timeout": "9s", "connect_timeout": "2s"}],
        {"timeout": "1s", "connect_timeout": "2s"},
    ),
    "another store's options do not speak for this one": (
        [{"account_key": "a"}, OF_SPARK],
        {"account_key": "a", **OF_SPARK},
    ),
    "a name that nobody knows is kept, and refused by who opens the store": (
        [{"acces_key": "?"}, OF_SPARK],
        {"acces_key": "?", **OF_SPARK},
    ),
    "two names of one setting in one source are its own affair": (
        [{"key": "k", "aws_access_key_id": "k"}, OF_SPARK],
        {"key": "k", "aws_access_key_id": "k", "allow_http": "true"},
    ),
    "the second goes before the third": ([{}, USERS, OF_SPARK], {**USERS, "allow_http": "true"}),
}  # fmt: skip


@pytest.mark.parametrize(("layers", "expected"), LAYERS.values(), ids=LAYERS)
def test_the_most_specific_options_win(
    layers: list[dict[str, Any]], expected: dict[str, Any]
) -> None:
    """Explicit options, registered ones and the cluster's settings may contradict each other, and
    mixed credentials of two sources would be refused by the store.
    """
    assert layer_options("s3://bucket/table", *layers) == expected
