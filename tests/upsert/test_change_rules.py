"""The rules of a change stream: arguments become upsert rules, or are refused."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.upsert.change_rules import (
    SEQUENCE,
    ChangeRules,
    check_has_sequence,
    history_schema,
)
from lance_stream.upsert.rules import UpsertRules

PLAIN: dict[str, Any] = {"is_history": False, "keys": "id", "sequence_by": "seq"}
HISTORY = {**PLAIN, "is_history": True}
BOTH = {**PLAIN, "sequence_by": ["seq", "lsn"]}


def upsert_rules(arguments: dict[str, Any]) -> UpsertRules:
    return ChangeRules.of(**arguments).upsert_rules()


@pytest.mark.parametrize(
    ("arguments", "remembers"),
    [
        (PLAIN, False),
        ({**PLAIN, "apply_as_deletes": "op = 'd'"}, True),
        (HISTORY, True),
        ({**HISTORY, "apply_as_deletes": "op = 'd'"}, True),
    ],
)
def test_streams_with_deletes_remember_them(arguments: dict[str, Any], remembers: bool) -> None:
    """A late change must not bring back a deleted row, and an event that no row shows separates
    later ones.
    """
    rules = upsert_rules(arguments)
    assert (rules.tombstones is not None) == remembers
    assert rules.deletes_win
    assert (rules.history is not None) == arguments["is_history"]
    assert rules.delete_when == arguments.get("apply_as_deletes")
    assert upsert_rules({**arguments, "tombstones": "2 days"}).tombstones == timedelta(days=2)
    assert upsert_rules({**arguments, "tombstones": timedelta(1)}).tombstones == timedelta(1)


@pytest.mark.parametrize(
    ("arguments", "by", "excepted"),
    [
        (PLAIN, "seq", ()),
        ({**PLAIN, "except_column_list": "seq"}, SEQUENCE, ("seq",)),
        ({**PLAIN, "except_column_list": ["op"]}, "seq", ("op",)),
        ({**HISTORY, "except_column_list": "seq"}, "seq", ("seq",)),
        (BOTH, SEQUENCE, ()),
        ({**BOTH, "is_history": True}, SEQUENCE, (SEQUENCE,)),
        ({**BOTH, "is_history": True, "except_column_list": "lsn"}, SEQUENCE, ("lsn", SEQUENCE)),
    ],
)
def test_sequences_are_stored_once(
    arguments: dict[str, Any], by: str, excepted: tuple[str, ...]
) -> None:
    """Later changes are compared with the stored sequence; a history has it in its bounds."""
    rules = ChangeRules.of(**arguments)
    assert rules.adds_sequence == (by == SEQUENCE)
    assert rules.upsert_rules().sequence_by == by
    assert rules.upsert_rules().except_columns == excepted
    data = pa.table({"id": [1], "seq": [2], "lsn": pa.array(["x"]).dictionary_encode(), "op": [0]})
    sequenced = rules.with_sequence(data)
    assert sequenced.column_names == [*data.column_names, *([SEQUENCE] if by == SEQUENCE else [])]
    if by == SEQUENCE:
        one = 2 if len(rules.sequence_by) == 1 else {"seq": 2, "lsn": "x"}
        assert sequenced[SEQUENCE].to_pylist() == [one]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({**PLAIN, "keys": []}, "name the key columns"),
        ({**PLAIN, "sequence_by": []}, "need an order"),
        ({**PLAIN, "keys": ["id", "id"]}, "keys names the column 'id' twice"),
        ({**PLAIN, "apply_as_deletes": 5}, "must be a condition in SQL"),
        ({**PLAIN, "apply_as_deletes": " "}, "must be a condition in SQL"),
        ({**PLAIN, "column_list": ["id"], "except_column_list": ["a"]}, "set only one of them"),
        ({**PLAIN, "column_list": ["a"]}, "the key column 'id' cannot be left out"),
        ({**PLAIN, "except_column_list": ["id"]}, "the key column 'id' cannot be left out"),
        ({**PLAIN, "track_history_column_list": ["a"]}, "keeps no history"),
        ({**PLAIN, "track_history_column_list": []}, "keeps no history"),
        ({**PLAIN, "track_history_except_column_list": ["a"]}, "keeps no history"),
        (
            {
                **HISTORY,
                "track_history_column_list": ["a"],
                "track_history_except_column_list": ["b"],
            },
            "set only one of them",
        ),
        ({**HISTORY, "track_history_column_list": ["id"]}, "cannot have a history"),
        ({**HISTORY, "track_history_except_column_list": ["a", "id"]}, "cannot have a history"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, Any], error: str) -> None:
    """One of the arguments would be ignored silently, or fail in the first batch."""
    with pytest.raises(InvalidInputError, match=error):
        ChangeRules.of(**arguments)


def test_equal_rules_have_one_identity() -> None:
    """A restarted stream is the same if its lists have another order or its tombstones another
    age; anything else changes what the table contains.
    """
    arguments: dict[str, Any] = {
        **HISTORY,
        "keys": ["b", "a"],
        "column_list": ["c", "b", "a"],
        "track_history_column_list": ["c", "d"],
        "tombstones": "1 day",
    }
    rules = ChangeRules.of(**arguments)
    reordered = replace(
        rules,
        keys=("a", "b"),
        column_list=("a", "b", "c"),
        track_history_column_list=("d", "c"),
        tombstones=None,
    )
    assert rules.identity == reordered.identity
    for changes in (
        {"keys": ("a",)},
        {"sequence_by": ("c",)},
        {"apply_as_deletes": "TRUE"},
        {"column_list": None},
        {"column_list": ("a", "b")},
        {"column_list": None, "except_column_list": ("d",)},
        {"track_history_column_list": None},
        {"track_history_column_list": ("c",)},
        {"track_history_column_list": None, "track_history_except_column_list": ("e",)},
    ):
        assert replace(rules, **changes).identity != rules.identity  # type: ignore[arg-type]  # a change of any field


def test_renamed_rules_follow_all_columns() -> None:
    """A stream goes on after its columns were renamed, with the rules that it was started with."""

    def capitalized(names: Any) -> tuple[str, ...]:
        return tuple(name.upper() for name in names)

    lists = ChangeRules(True, ("a",), ("s",), None, ("a", "b"), (), ("b",), ())
    assert lists.renamed(capitalized) == ChangeRules(
        True, ("A",), ("S",), None, ("A", "B"), (), ("B",), ()
    )
    excepted = ChangeRules(True, ("a",), ("s",), "x", None, ("c",), None, ("d",))
    assert excepted.renamed(capitalized) == ChangeRules(
        True, ("A",), ("S",), "x", None, ("C",), None, ("D",)
    )


def test_listed_columns_must_exist() -> None:
    """A misspelled column would be stored, or omitted, in every batch."""
    rules = ChangeRules.of(**PLAIN, column_list=["id", "a"])
    assert rules.without_list(["id", "seq", "a", "b"]) == ChangeRules.of(
        **PLAIN, except_column_list=["seq", "b"]
    )
    with pytest.raises(InvalidInputError, match="no column 'a' to store"):
        rules.without_list(["id", "b"])
    excepted = ChangeRules.of(**PLAIN, except_column_list=["b"])
    assert excepted.without_list(["id", "b"]) is excepted
    with pytest.raises(InvalidInputError, match="no column 'b' to leave out"):
        excepted.without_list(["id", "a"])
    for names in ["id"], ["id", "seq", SEQUENCE]:
        with pytest.raises(InvalidInputError, match=r"column of sequence_by|reserved"):
            excepted.with_sequence(pa.table({name: [1] for name in names}))


def test_missing_sequence_columns_are_refused() -> None:
    """Without the sequence column, every late change would count as the newest."""
    data, table = pa.schema({"id": "int64", SEQUENCE: "int32"}), pa.schema({"id": "int64"})
    check_has_sequence(data, data)
    check_has_sequence(data, table)
    check_has_sequence(table, table)
    with pytest.raises(InvalidInputError, match="of the type int32"):
        check_has_sequence(table, data)


def test_history_schemas_have_two_bounds() -> None:
    """The bounds have the type of the sequence and follow the stored columns."""
    schema = pa.schema({"id": "int64"}, metadata={"a": "b"})
    history = history_schema(schema, pa.int32())
    assert history.names == ["id", "__START_AT", "__END_AT"]
    assert (history.types, history.metadata) == ([pa.int64(), *[pa.int32()] * 2], schema.metadata)
    for wrong in (schema, 5), ("id", pa.int32()):
        with pytest.raises(InvalidInputError, match="history_schema takes"):
            history_schema(*wrong)  # type: ignore[arg-type]  # wrong on purpose
    for name in "__START_AT", "__END_AT":
        with pytest.raises(InvalidInputError, match=f"already has a column '{name}'"):
            history_schema(pa.schema({name: "int64"}), pa.int32())
