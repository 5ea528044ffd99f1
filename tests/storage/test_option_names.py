from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.storage.options.names import (
    STORES,
    as_flag,
    as_mapping,
    as_seconds,
    as_text,
    as_whole_number,
    retry_policy_of,
    take_settings,
)


@pytest.mark.parametrize("store", sorted(STORES))
def test_names_are_unambiguous_per_store(store: str) -> None:
    """A name that belongs to two settings would silently set the wrong one; look-up is by lower
    case.
    """
    names = [name for names in STORES[store].values() for name in names]
    assert len(names) == len(set(names))
    assert all(name == name.lower() for name in names)


def test_settings_accept_every_spelling() -> None:
    """Options written for s3fs, pyarrow or Lance must work unchanged."""
    for name in ("key", "aws_access_key_id", "AWS_ACCESS_KEY_ID", "access_key_id", "username"):
        assert take_settings({name: "AK"}, "s3") == {"key": "AK"}


def test_options_of_other_stores_are_ignored() -> None:
    """One set of options often serves tables on several stores, so another store's option is no
    mistake.
    """
    options = {"account_key": "x", "durable": "true", "google_base_url": "u", "aws_region": "r"}
    assert take_settings(options, "s3") == {"region": "r"}
    assert take_settings(options, "local") == {"durable": "true"}


def test_misspelled_names_suggest_the_right_one() -> None:
    """An option that is ignored silently shows up only later, as a refused request or an
    unencrypted file.
    """
    with pytest.raises(InvalidInputError, match=r"'aws_acces_key_id'.*S3.*'aws_access_key_id'"):
        take_settings({"aws_acces_key_id": "x"}, "s3")


def test_unknown_names_list_the_options() -> None:
    """Without a similar name the message still has to show what is possible."""
    with pytest.raises(InvalidInputError, match=r"'zzz'.*the options are durable"):
        take_settings({"zzz": "x"}, "local")


def test_contradictory_aliases_are_refused() -> None:
    """The choice would be a guess, and the error must not show the values."""
    assert take_settings({"secret": "a", "aws_secret_access_key": "a"}, "s3") == {"secret": "a"}
    with pytest.raises(InvalidInputError, match="'secret' and 'aws_secret_access_key'") as caught:
        take_settings({"secret": "hush-1", "aws_secret_access_key": "hush-2"}, "s3")
    assert "hush" not in str(caught.value)


def test_text_true_equals_the_flag() -> None:
    """Spark's options are strings, so the same setting may come as `True` and `"true"` without
    being a contradiction.
    """
    assert take_settings({"anon": True, "aws_skip_signature": "true"}, "s3") == {"anonymous": True}


def test_absent_and_ineffective_options_are_dropped() -> None:
    """`None` and s3fs' caching options have no effect here and must not be refused."""
    assert take_settings({"key": None, "use_listings_cache": False}, "s3") == {}


def test_only_the_uri_names_a_bucket() -> None:
    """Lance accepts the option but a bucket other than the URI's would read a different table."""
    with pytest.raises(InvalidInputError, match=r"'aws_bucket'.*URI"):
        take_settings({"aws_bucket": "b"}, "s3")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(30, 30), ("30", 30), ("1.5", 1.5), ("30s", 30), ("500 ms", 0.5), ("2 Minutes", 120)],
)
def test_times_are_parsed_like_the_references(value: Any, seconds: float) -> None:
    """Lance and object_store accept units in words, which must mean the same seconds here."""
    assert as_seconds("timeout", value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "-1", "0", "3 fortnights", None])
def test_invalid_times_are_refused(value: Any) -> None:
    """A timeout of zero, or one that is not understood, would fail every request or none."""
    with pytest.raises(InvalidInputError, match="'timeout' must be a time"):
        as_seconds("timeout", value)


@pytest.mark.parametrize("value", ["maybe", "", 2])
def test_invalid_flags_are_refused(value: Any) -> None:
    """Taking any non-empty text as true would switch off certificates or signatures by a typo."""
    with pytest.raises(InvalidInputError, match="true or false"):
        as_flag("anon", value)


@pytest.mark.parametrize("value", [0, "-1", "many", True, 1.5])
def test_invalid_counts_are_refused(value: Any) -> None:
    """Zero requests at once would block for ever, and `True` is an integer in Python."""
    with pytest.raises(InvalidInputError, match="at least 1"):
        as_whole_number("max_concurrency", value, at_least=1)


def test_options_of_other_types_stay_hidden() -> None:
    """The value may be a secret, so the error must not show it."""
    with pytest.raises(InvalidInputError, match="'key' must be a non-empty string") as caught:
        as_text("key", 12345)
    assert "12345" not in str(caught.value)


def test_invalid_dicts_are_refused() -> None:
    """An option given as text through Spark must fail with its name, not with an AttributeError."""
    with pytest.raises(InvalidInputError, match="'client_kwargs' must be a dict"):
        as_mapping("client_kwargs", "region_name=x")


def test_attempts_and_time_limits_are_settings() -> None:
    """Each of these options must reach the one retry policy, with retries counted as attempts
    minus one.
    """
    retry_policy = retry_policy_of(
        take_settings(
            {
                "client_max_retries": "3",
                "client_retry_timeout": "20",
                "timeout": "7s",
                "connect_timeout": 2,
            },
            "azure",
        )
    )
    assert (retry_policy.max_attempts, retry_policy.total_seconds) == (4, 20)
    assert (retry_policy.request_seconds, retry_policy.connect_seconds) == (7, 2)
