"""JSONB byte by byte, and bytes that are none."""

import random

import pytest

from lance_stream.errors import InvalidInputError, LanceStreamError, UnsupportedFeatureError
from lance_stream.schema.types.jsonb import decode_jsonb, encode_jsonb

BYTES = {
    "null": "20000000 00000000",
    "true": "20000000 40000000",
    "false": "20000000 30000000",
    '"x"': "20000000 10000001 78",
    "0": "20000000 20000001 00",
    "1": "20000000 20000002 50 01",
    "255": "20000000 20000002 50 ff",
    "256": "20000000 20000003 50 0100",
    "65536": "20000000 20000005 50 00010000",
    "18446744073709551615": "20000000 20000009 50 ffffffffffffffff",
    "-1": "20000000 20000002 40 ff",
    "-129": "20000000 20000003 40 ff7f",
    "-9223372036854775808": "20000000 20000009 40 8000000000000000",
    "0.1": "20000000 20000009 60 3fb999999999999a",
    "-0.0": "20000000 20000009 60 8000000000000000",
    "[]": "80000000",
    "{}": "40000000",
    '[1,"a"]': "80000002 20000002 10000001 5001 61",
    '{"a":{"b":2}}': "40000001 10000001 5000000f 61 40000001 10000001 20000002 62 5002",
}
"""JSON texts and their bytes in files of pylance."""


@pytest.mark.floors
@pytest.mark.parametrize("text", BYTES)
def test_bytes_are_those_of_the_reference(text: str) -> None:
    """A file must mean the same to every reader, so both directions are compared."""
    data = bytes.fromhex(BYTES[text])
    assert encode_jsonb(text) == data
    assert decode_jsonb(data) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (' { "b" : 1, "a" : [ ] } ', '{"a":[],"b":1}'),
        ("1e2", "100.0"),
        ("1e-5", "0.00001"),
        ("-1.5e-5", "-0.000015"),
        ("0.000001", "1e-6"),
        ("1e16", "1e+16"),
        ("9007199254740993.0", "9007199254740992.0"),
        ("18446744073709551616", "1.8446744073709552e+19"),
        ("-0", "0"),
        ('"\\u00e9\\ud83d\\ude00\\/\\u0000"', '"é😀/\\u0000"'),
    ],
)
def test_values_come_back_in_one_form(text: str, expected: str) -> None:
    """All texts of a value must read as one text, the one that the reference shows."""
    assert decode_jsonb(encode_jsonb(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "{a:1}", "[1,]", "NaN", "-Infinity", "1e309", "1" + "0" * 400, '"\\ud800"'),
        *('{"a":1,"a":1}', '{"a":{"b":1,"b":2}}', "[" * 100_000, "1 2", "'a'", "01", "\ufeff1"),
        "9" * 5000,
    ],
    ids=lambda text: text[:8],
)
def test_what_is_no_json_is_refused(text: str) -> None:
    """The reference stores some of it as something else."""
    with pytest.raises(InvalidInputError, match="JSON"):
        encode_jsonb(text)


def test_numbers_that_json_lacks_are_null() -> None:
    """The reference stores 1e309 as infinity, and shows it like this."""
    for tag in ("10", "20", "30"):
        assert decode_jsonb(bytes.fromhex(f"20000000 20000001 {tag}")) == "null"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ("", "CorruptDataError"),
        ("20000000", "CorruptDataError"),
        ("2000000000", "CorruptDataError"),
        ("20000001 00000000 00000000", "CorruptDataError"),
        ("20000001 00000000", "CorruptDataError"),
        ("20000000 00000001 00", "CorruptDataError"),
        ("20000000 10000002 78", "CorruptDataError"),
        ("20000000 10000001 ff", "CorruptDataError"),
        ("20000000 20000000", "CorruptDataError"),
        ("20000000 20000004 50 000001", "CorruptDataError"),
        ("80ffffff", "CorruptDataError"),
        ("40000001 20000002 20000002 5001 5001", "CorruptDataError"),
        ("80000000 00", "CorruptDataError"),
        ("20000000 60000001 00", "UnsupportedFeatureError"),
        ("20000000 20000002 70 00", "UnsupportedFeatureError"),
    ],
)
def test_damaged_bytes_are_named(data: str, error: str) -> None:
    """Stored bytes are not trusted."""
    with pytest.raises(LanceStreamError) as raised:
        decode_jsonb(bytes.fromhex(data))
    assert type(raised.value).__name__ == error


def test_nesting_is_limited_alike_both_ways() -> None:
    """Every stored value must be readable again."""
    text = "[" * 400 + "]" * 400
    assert decode_jsonb(encode_jsonb(text)) == text
    with pytest.raises(InvalidInputError, match="more than 400 levels"):
        encode_jsonb(f"[{text}]")


def test_deep_nesting_is_no_crash() -> None:
    """A hostile file must not exhaust the stack."""
    data = bytes.fromhex("80000000")
    for _ in range(2000):
        data = bytes.fromhex("80000001") + (0x50000000 | len(data)).to_bytes(4) + data
    with pytest.raises(UnsupportedFeatureError, match="nested more than 400 levels"):
        decode_jsonb(data)
    for depth in (1, 300):
        text = "[" * depth + "]" * depth
        assert decode_jsonb(encode_jsonb(text)) == text


def test_random_damage_never_raises_other_errors() -> None:
    """A changed byte gives a value or one of our errors."""
    dice = random.Random(1)
    sound = encode_jsonb('{"a":[1,2.5,null,true,"text"],"b":{"c":-70000}}')
    for _ in range(3000):
        data = bytearray(sound)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        try:
            decode_jsonb(bytes(data[: dice.randint(0, len(data))]))
        except LanceStreamError:
            continue
