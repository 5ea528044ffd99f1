"""The table of verdicts: complete, and consistent with what each verdict means."""

from dataclasses import replace

import pytest

from lance_stream.errors import InvalidInputError, LanceStreamError, OtherBatchError
from lance_stream.ledger.messages import REFUSALS, refusal
from lance_stream.ledger.micro_batch import MicroBatch
from lance_stream.ledger.row_digests import NO_ROWS, RowsDigest
from lance_stream.ledger.verdicts import (
    VERDICTS,
    Contents,
    Match,
    Standing,
    Verdict,
    compare,
    has_other_rows,
    has_other_rules,
    is_of_other_query,
    precedes,
)
from lance_stream.table.config.ledger_entries import LedgerEntry

BATCH = MicroBatch("app", 3, "query", "rules")
ROWS, OTHERS = RowsDigest(2, (1, 2)), RowsDigest(2, (1, 3))
ENTRY = LedgerEntry(3, "query", 9, 2, ROWS.text, "rules")
MATCH = Match(Standing.NEWEST, "app", ENTRY, ENTRY, (ENTRY,))


def test_every_combination_has_a_verdict() -> None:
    """A missing case would end in a KeyError in the middle of a stream."""
    assert set(VERDICTS) == set(Standing)
    assert all(set(line) == set(Contents) for line in VERDICTS.values())


def test_every_verdict_occurs() -> None:
    """A verdict that no case has would be dead, and so would its message."""
    assert {verdict for line in VERDICTS.values() for verdict in line.values()} == set(Verdict)


def test_every_refusal_has_a_message() -> None:
    """All verdicts except "new" and "replay" stop the stream and must say what to do."""
    assert set(REFUSALS) == set(Verdict) - {Verdict.NEW, Verdict.REPLAY}
    for standing, line in VERDICTS.items():
        for contents, verdict in line.items():
            if verdict in REFUSALS:
                error = _error(standing, contents, verdict)
                assert isinstance(error, OtherBatchError | InvalidInputError)
                assert "Nothing was written" in str(error)


def _error(standing: Standing, contents: Contents, verdict: Verdict) -> LanceStreamError:
    entry = replace(ENTRY, digest="") if contents is Contents.UNRECORDED else ENTRY
    has_entry = standing not in (Standing.FORGOTTEN, Standing.ALIAS_FORGOTTEN)
    match = Match(standing, "alias", ENTRY, entry if has_entry else None, (entry,))
    return refusal(verdict, match, BATCH, OTHERS, "uri")


@pytest.mark.parametrize("verdict", [Verdict.OTHER_ROWS, Verdict.OTHER_RULES])
def test_refusals_name_the_batch_version(verdict: Verdict) -> None:
    """The user compares the version with what has arrived, and later ones say nothing about it."""
    newest = replace(ENTRY, batch_id=5, version=11)
    match = Match(Standing.EARLIER, "app", newest, ENTRY, (newest, ENTRY))
    assert "is in uri since version 9" in str(refusal(verdict, match, BATCH, OTHERS, "uri"))


@pytest.mark.parametrize("standing", [Standing.NEWEST, Standing.EARLIER, Standing.FORGOTTEN])
def test_recorded_batch_ids_are_never_new(standing: Standing) -> None:
    """Rows under them would be written twice."""
    assert Verdict.NEW not in VERDICTS[standing].values()


def test_differing_rows_are_never_skipped_silently() -> None:
    """Skipping would lose the rows, unless the plan may give different rows each time."""
    differing = (Contents.DIFFERENT, Contents.OTHER_RULES)
    for line in VERDICTS.values():
        assert Verdict.REPLAY not in [line[contents] for contents in differing]


def test_the_same_rows_are_written_once() -> None:
    """The same rows and rules under the stream's name or an alias are never new."""
    for line in VERDICTS.values():
        assert line[Contents.SAME] is not Verdict.NEW


@pytest.mark.parametrize(
    ("entry", "digest", "may_differ", "expected"),
    [
        (ENTRY, None, False, Contents.UNREAD),
        (ENTRY, NO_ROWS, False, Contents.EMPTY),
        (replace(ENTRY, rules="others"), OTHERS, True, Contents.OTHER_RULES),
        (replace(ENTRY, rules=""), ROWS, False, Contents.SAME),
        (replace(ENTRY, digest=""), ROWS, False, Contents.UNRECORDED),
        (ENTRY, ROWS, True, Contents.SAME),
        (ENTRY, OTHERS, False, Contents.DIFFERENT),
        (replace(ENTRY, num_rows=5), ROWS, False, Contents.DIFFERENT),
        (ENTRY, OTHERS, True, Contents.RECOMPUTED),
    ],
)
def test_rows_are_compared_with_the_entry(
    entry: LedgerEntry, digest: RowsDigest | None, may_differ: bool, expected: Contents
) -> None:
    """The first comparison that applies decides."""
    match = replace(MATCH, newest=entry, entry=entry)
    assert compare(match, BATCH, digest, may_differ=may_differ) is expected


def test_later_batches_rules_do_not_count() -> None:
    """A later batch may have had other rules, which say nothing about this one."""
    match = replace(MATCH, standing=Standing.EARLIER, newest=replace(ENTRY, rules="others"))
    assert compare(match, BATCH, ROWS) is Contents.SAME


def test_entries_cover_earlier_batch_ids() -> None:
    """The batch after the newest one is new."""
    covered = [precedes(replace(BATCH, batch_id=number), ENTRY) for number in (2, 3, 4)]
    assert covered == [True, True, False]


@pytest.mark.parametrize(
    ("recorded", "current", "differs"),
    [
        *(("one", "other", True), ("one", "one", False)),
        *(("", "other", False), ("one", "", False), ("", "", False)),
    ],
)
def test_unknown_facts_never_differ(recorded: str, current: str, differs: bool) -> None:
    """Entries of early releases lack them, and a stream must not fail for that."""
    entry = replace(ENTRY, rules=recorded, query_id=recorded)
    batch = replace(BATCH, rules=current, query_id=current)
    assert has_other_rules(entry, batch) is differs
    assert is_of_other_query(batch, entry) is differs


def test_unknown_rows_never_differ() -> None:
    """Rows that nobody digested can be compared with nothing."""
    assert has_other_rows(ENTRY, OTHERS)
    assert not has_other_rows(ENTRY, ROWS)
    assert not has_other_rows(ENTRY, None)
    assert not has_other_rows(replace(ENTRY, digest=""), OTHERS)


def test_forgotten_batches_are_compared_by_rules() -> None:
    """Rows of old batches are not recorded, but the stream's newest entry has the rules."""
    match = replace(MATCH, standing=Standing.ALIAS_FORGOTTEN, entry=None, since=())
    assert compare(match, BATCH, ROWS) is Contents.UNRECORDED
    assert compare(match, replace(BATCH, rules="others"), ROWS) is Contents.OTHER_RULES
    verdicts = VERDICTS[Standing.ALIAS_FORGOTTEN]
    assert verdicts[Contents.UNRECORDED] is Verdict.ELSEWHERE
    assert verdicts[Contents.OTHER_RULES] is Verdict.NEW


def test_refusals_quote_the_same_batch() -> None:
    """Later batches have other numbers of rows, which would send the user to the wrong batch."""
    newest = replace(ENTRY, batch_id=5, version=11, num_rows=77)
    match = Match(Standing.EARLIER, "app", newest, ENTRY, (newest, ENTRY))
    message = str(refusal(Verdict.OTHER_ROWS, match, BATCH, OTHERS, "uri"))
    assert f"with {ENTRY.num_rows} rows of digest {ENTRY.digest}, but 2 rows" in message
    assert "77" not in message


@pytest.mark.parametrize(
    ("entry", "reason"), [(None, "its rows are no longer known"), (ENTRY, "it had other rows")]
)
def test_refused_aliases_state_their_reason(entry: LedgerEntry | None, reason: str) -> None:
    """Whether the rows differ or are unknown decides which of the remedies applies."""
    standing = Standing.ALIAS_FORGOTTEN if entry is None else Standing.ALIAS_EARLIER
    match = Match(standing, "alias", replace(ENTRY, batch_id=5), entry, ())
    assert reason in str(refusal(Verdict.ELSEWHERE, match, BATCH, OTHERS, "uri"))


def test_refused_aliases_name_the_default() -> None:
    """Without app_id, a sink has the query's id as its app id, which the user never wrote."""
    batch = replace(BATCH, query_id="q")
    for alias in "q", "alias":
        match = Match(Standing.ALIAS_FORGOTTEN, alias, ENTRY)
        message = str(refusal(Verdict.ELSEWHERE, match, batch, OTHERS, "uri"))
        assert ("that of a sink without app_id" in message) == (alias == "q")


@pytest.mark.parametrize("verdict", REFUSALS)
def test_refusals_state_only_known_versions(verdict: Verdict) -> None:
    """Entries of older releases and of deleted versions have none."""
    for version in None, 11:
        entry = replace(ENTRY, version=version)
        match = Match(Standing.ALIAS_NEWEST, "alias", entry, entry, (entry,))
        message = str(refusal(verdict, match, BATCH, OTHERS, "uri"))
        assert ("version 11" in message) == (version is not None)
        assert "None" not in message
