"""`get_json_object`: the texts that Spark 4.3 gives; `against_spark` compares many more."""

from pathlib import Path

import pyarrow as pa
import pytest

import lance_stream
from lance_stream.errors import InvalidInputError
from lance_stream.expressions.predicates import evaluate, parse_value

SCHEMA = pa.schema([("s", pa.string()), ("bytes", pa.large_binary())])


def extracted(text: str | None, path: str) -> str | None:
    batch = pa.record_batch({"s": pa.array([text], pa.string())})
    quoted = path.replace("\\", "\\\\").replace('"', r"\"")
    value = evaluate(parse_value(f'get_json_object(s, "{quoted}")', SCHEMA), batch)[0].as_py()
    assert value is None or isinstance(value, str)
    return value


@pytest.mark.floors
@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        ('{"a":{"b":[1,2]}}', "$.a.b[0]", "1"),
        (' {"a" : [ 1 , "x" ] } ', "$.a", '[1,"x"]'),
        ('{"a b":1}', "$['a b']", "1"),
        ('{"a.b":{"c":2}}', "$['a.b'].c", "2"),
        ("[[1,2],[3]]", "$[1][0]", "3"),
        ('{"A":1}', "$.a", None),
        ("[1]", "$[1]", None),
        ("[1]", "$.a", None),
        (None, "$", None),
        # nulls, and names that occur twice
        ('{"a":null}', "$.a", None),
        ("[null]", "$[0]", "null"),
        ("null", "$", "null"),
        ('{"a":null,"a":5,"a":6}', "$.a", "5"),
        ('{"a":{"b":1},"a":{"c":2}}', "$.a.c", "2"),
        ('{"a":{"z":1,"b":2,"z":3}}', "$.a", '{"z":1,"b":2,"z":3}'),
        # numbers
        ('{"a":1.10}', "$.a", "1.1"),
        ('{"a":[1e2,1e16,-0,-0.0,4.9e-324]}', "$.a", "[100.0,1.0E16,0,-0.0,4.9E-324]"),
        ('{"a":123456789012345678901234567890}', "$.a", "123456789012345678901234567890"),
        ('{"a":1e400}', "$.a", '"Infinity"'),
        (f'{{"a":{"1" * 1000}}}', "$.a", "1" * 1000),
        (f'{{"a":{"1" * 1001}}}', "$.a", None),
        # strings
        ('{"a":"null"}', "$.a", "null"),
        (r'{"a":"x\n\"y\u00e9\ud83d\ude00\/"}', "$.a", 'x\n"yé😀/'),
        ('["😀\t\\u001f/"]', "$", r'["\uD83D\uDE00\t\u001F/"]'),
        (r'["\ud800"]', "$", r'["\uD800"]'),
        (r'["\ud800"]', "$[0]", None),
        (r"""{'a':'it\'s " '}""", "$.a", "it's \" "),
        (r"""{'a':'it\'s " '}""", "$", r"""{"a":"it's \" "}"""),
        # what is no JSON, or not JSON alone
        ('{"a":1} x', "$.a", "1"),
        ('{"a":1, b', "$.a", None),
        ("1 x", "$", "1"),
        ("1x", "$", None),
        ("true,", "$", "true"),
        ('"a"x', "$", "a"),
        ('{"a":1}x', "$.a", "1"),
        ("[1]x", "$[0]", "1"),
        ("truex", "$", None),
        ("{a:1}", "$", None),
        ('{"a":NaN}', "$", None),
        ("", "$", None),
    ],
)
def test_parts_have_the_texts_of_spark(text: str | None, path: str, expected: str | None) -> None:
    """The function has Spark's name, so a condition on it must choose the same rows."""
    assert extracted(text, path) == expected


@pytest.mark.parametrize(
    "path",
    ["a", "", "$a", "$.", "$.a[*]", "$.*", "$['*']", "$..a", "$. a", "$[-1]", '$["a"]', "$.a[0"],
)
def test_wildcards_and_malformed_paths_are_refused(path: str) -> None:
    """Spark answers a malformed path by null in every row, which hides the mistake."""
    with pytest.raises(InvalidInputError, match="a path is like"):
        extracted(None, path)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("get_json_object(s, s)", "takes a constant"),
        ("get_json_object(bytes, '$')", "not a JSON column"),
        ("get_json_object(coalesce(bytes, bytes), '$')", "not a JSON column"),
        ("get_json_object(X'00', '$')", "takes a string"),
        ("json_extract(s, '$')", "get_json_object"),
    ],
)
def test_other_extractions_are_refused_by_name(text: str, why: str) -> None:
    """Bytes that are not JSON must not be decoded as such, whatever they contain."""
    with pytest.raises(InvalidInputError, match=why):
        parse_value(text, SCHEMA)


def test_deep_texts_do_not_crash() -> None:
    """A text from outside decides how deep it is; the error names it instead of a recursion."""
    assert extracted("[" * 200 + "]" * 200, "$[0][0]") == "[" * 198 + "]" * 198
    with pytest.raises(InvalidInputError, match="nested too deeply"):
        extracted("[" * 9999 + "]" * 9999, "$[0]")


def test_parts_of_json_columns_filter_rows(tmp_path: Path) -> None:
    """The column is binary in the table; its parts are those of the text that users see."""
    texts = ['{"op": "c", "n": [1.50, {"k": "x"}]}', '{"op": "d"}', None, "[1]"]
    table = pa.table({"id": range(4), "j": pa.array(texts, pa.json_())})
    ds = lance_stream.create_dataset(tmp_path / "t", table)
    assert ds.to_table(["id"], filter="get_json_object(j, '$.op') = 'd'")["id"].to_pylist() == [1]
    ds = ds.delete("get_json_object(J, '$[0]') IS NOT NULL")
    ds = ds.add_columns({"n": "CAST(get_json_object(j, '$.n[0]') AS double)"})
    ds = ds.update({"j": "get_json_object(j, '$.n')"}, "n > 1")
    assert ds.to_table(["id", "j", "n"]).to_pylist() == [
        {"id": 0, "j": '[1.5,{"k":"x"}]', "n": 1.5},
        {"id": 1, "j": '{"op":"d"}', "n": None},
        {"id": 2, "j": None, "n": None},
    ]
