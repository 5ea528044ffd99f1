"""Options of a source: how they are parsed, and which are refused."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest

from lance_stream.errors import InvalidInputError
from lance_stream.spark import lance_sink
from lance_stream.spark.arguments.reader_options import (
    ReaderOptions,
    check_for_batch,
    check_for_stream,
    parse_reader_options,
)
from lance_stream.spark.arguments.writer_arguments import STREAM, WriterArguments
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.spark.feed.table_function import _reader_options
from lance_stream.spark.session.session_options import SessionOptions

PATH = {"path": "/data/events.lance"}
UPSERT = {**PATH, "mode": "upsert", "on": "id"}


def test_option_names_ignore_case() -> None:
    """Spark passes option names on in lower case or as written, depending on the caller."""
    options = parse_reader_options({**PATH, "READCHANGEFEED": "TRUE", "startingversion": " 4 "})
    assert options == ReaderOptions("/data/events.lance", read_change_feed=True, starting_version=4)


def test_columns_are_a_list_or_json() -> None:
    """Only JSON can express a column whose name has a comma."""
    assert parse_reader_options({**PATH, "columns": "a, b"}).columns == ("a", "b")
    assert parse_reader_options({**PATH, "columns": '["a, b", "c"]'}).columns == ("a, b", "c")


def test_timestamps_without_zone_are_utc() -> None:
    """A version must not depend on the time zone of the machine that reads it."""
    moment = parse_reader_options({**PATH, "timestampAsOf": "2026-11-05 14:00:00"}).version
    assert moment == datetime(2026, 11, 5, 14, tzinfo=UTC)
    moment = parse_reader_options({**PATH, "timestampAsOf": "2026-11-05T14:00:00+05:30"}).version
    assert moment == datetime(2026, 11, 5, 14, tzinfo=timezone(timedelta(hours=5, minutes=30)))


def test_storage_option_names_keep_their_case() -> None:
    """Names inside the JSON belong to the store's client, which distinguishes case."""
    options = parse_reader_options({**PATH, "storageOptions": '{"endpointUrl": "http://here"}'})
    assert options.storage_options == {"endpointUrl": "http://here"}


@pytest.mark.parametrize(
    "parse", [parse_reader_options, partial(parse_writer_options, streaming=False)]
)
def test_secret_storage_options_are_merged(
    parse: Callable[[dict[str, str]], Any],
) -> None:
    """Readers and writers need one set of options, and an option in both places has no obvious
    winner.
    """
    secret = {"secretStorageOptions": '{"account_key": "shhh"}'}
    joined = parse({**PATH, **secret, "storageOptions": '{"account_name": "a"}'})
    assert joined.storage_options == {"account_name": "a", "account_key": "shhh"}
    assert "shhh" not in repr(joined)
    with pytest.raises(InvalidInputError, match=r"account_key.*storageOptions and in"):
        parse({**PATH, **secret, "storageOptions": '{"account_key": "a", "token": "t"}'})


@pytest.mark.parametrize(
    "text",
    [
        '{"account_key": "shhh"}',
        '{"AZURE_STORAGE_ACCOUNT_KEY" : "shhh"}',
        '{"connection_string": "AccountKey=shhh"}',
        '{"manifest_store": "postgresql://us:shhh@host/db"}',
        '{"aws_sse_customer_key_base64": "shhh"}',
        '{"google_service_account": "{\\"private_key\\": \\"shhh\\"}"}',
    ],
)
def test_visible_secrets_are_refused(text: str) -> None:
    """Secrets belong in `secretStorageOptions`, which Spark redacts in plans and logs."""
    with pytest.raises(InvalidInputError, match="'secretStorageOptions'") as raised:
        parse_reader_options({**PATH, "storageOptions": text})
    assert "shhh" not in str(raised.value)
    assert parse_reader_options({**PATH, "secretStorageOptions": text}).storage_options


@pytest.mark.parametrize("text", ['{"secret": "shhh"', '["shhh"]', "shhh"])
def test_invalid_storage_options_are_not_shown(text: str) -> None:
    """Malformed JSON may hold secrets, so the error must not quote it."""
    for name in ("storageOptions", "secretStorageOptions"):
        with pytest.raises(InvalidInputError, match=f"{name}.*JSON object") as raised:
            parse_reader_options({**PATH, name: text})
        assert "shhh" not in str(raised.value)


def test_misplaced_storage_options_are_explained() -> None:
    """An access key as a plain option would be ignored and appear in Spark's plans."""
    with pytest.raises(InvalidInputError, match=r"aws_secret_access_key.*secretStorageOptions"):
        parse_reader_options({**PATH, "aws_secret_access_key": "shhh"})


def test_latest_is_a_starting_version() -> None:
    """Delta's feed accepts `latest`, in any case, and users expect the same here."""
    assert parse_reader_options({**PATH, "startingVersion": "Latest"}).starting_version == "latest"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("versionAsOf", "0"),
        ("versionAsOf", "three"),
        ("startingVersion", "-1"),
        ("endingVersion", "²"),
        ("maxVersionsPerTrigger", "0"),
        ("readChangeFeed", "yes"),
        ("timestampAsOf", "yesterday"),
        ("columns", "a,,b"),
        ("columns", '["a", 1]'),
        ("columns", "[a]"),
        ("filter", " "),
        ("storageOptions", "[1]"),
        ("paths", '["/a", "/b"]'),
        ("deduplicationMode", "some"),
        ("maxRowsPerTrigger", "0"),
        ("startingTimestamp", "latest"),
        ("consumer", ""),
    ],
)
def test_invalid_values_name_their_option(name: str, text: str) -> None:
    """Spark passes all options as text, and an error that does not name the option is hard to
    locate in a job's settings.
    """
    with pytest.raises(InvalidInputError, match=name):
        parse_reader_options({**PATH, name.lower(): text})


@pytest.mark.parametrize(
    ("name", "suggestion"),
    [("startingVersoin", "startingVersion"), ("since", "startingVersion"), ("until", "endingVer")],
)
def test_unknown_options_get_a_suggestion(name: str, suggestion: str) -> None:
    """A misspelt option that is ignored would start the feed at the wrong version."""
    with pytest.raises(InvalidInputError, match=f"{name.lower()}.*{suggestion}"):
        parse_reader_options({**PATH, name: "1"})


def test_feed_options_are_parsed() -> None:
    """Every option of the feed has to reach its field, whatever the spelling of its value."""
    options = {
        "readChangeFeed": "true",
        "startingTimestamp": "2026-01-01",
        "deduplicationMode": "NETCHANGES",
        "preImages": "false",
        "computeUpdates": "false",
        "columnBackfills": "false",
        "failOnDataLoss": "false",
        "maxRowsPerTrigger": "10",
        "maxBytesPerTrigger": "20",
        "consumer": "me",
    }
    assert parse_reader_options({**PATH, **options}) == ReaderOptions(
        "/data/events.lance",
        read_change_feed=True,
        starting_timestamp=datetime(2026, 1, 1, tzinfo=UTC),
        deduplication_mode="netChanges",
        pre_images=False,
        compute_updates=False,
        column_backfills=False,
        max_rows_per_trigger=10,
        max_bytes_per_trigger=20,
        fail_on_data_loss=False,
        consumer="me",
    )


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("20", 20), ("64m", 64 << 20), ("1GB", 1 << 30), ("5 k", 5 << 10)]
)
def test_sizes_may_have_a_unit(text: str, size_bytes: int) -> None:
    """Spark's own byte settings have units, and Delta's `maxBytesPerTrigger` takes them."""
    options = {**PATH, "readChangeFeed": "true", "maxBytesPerTrigger": text}
    assert parse_reader_options(options).max_bytes_per_trigger == size_bytes


def test_the_path_is_required() -> None:
    """`load()` without a path is a common mistake, and a later error would not name the cause."""
    with pytest.raises(InvalidInputError, match="path"):
        parse_reader_options({})


def test_tags_as_versions_are_explained() -> None:
    """Tags have an option of their own, and the error names it."""
    with pytest.raises(InvalidInputError, match="not 'gold'; the version of a tag is read with"):
        parse_reader_options({**PATH, "versionAsOf": "gold"})


def test_version_options_exclude_each_other() -> None:
    """A precedence between two versions would silently ignore one of them."""
    with pytest.raises(InvalidInputError, match="one of them"):
        parse_reader_options({**PATH, "versionAsOf": "1", "tag": "gold"})


def test_start_options_exclude_each_other() -> None:
    """A precedence between two starts would silently skip or repeat changes."""
    both = {"startingVersion": "1", "startingTimestamp": "2026-01-01"}
    with pytest.raises(InvalidInputError, match="startingVersion and startingTimestamp"):
        parse_reader_options({**PATH, **both})


def test_reversed_intervals_are_refused() -> None:
    """An empty result would look as if nothing had changed."""
    with pytest.raises(InvalidInputError, match=r"endingVersion \(3\)"):
        parse_reader_options(
            {**PATH, "readChangeFeed": "true", "startingVersion": "4", "endingVersion": "3"}
        )


@pytest.mark.parametrize(
    "options",
    [
        {"maxVersionsPerTrigger": "1"},
        {"maxRowsPerTrigger": "1"},
        {"failOnDataLoss": "false"},
        {"consumer": "me"},
        {"endingTimestamp": "2026-01-01"},
        {"preImages": "false"},
        {"skipChangeCommits": "true"},
        {"startingVersion": "1"},
        {"endingVersion": "1"},
        {"readChangeFeed": "true"},
        {"readChangeFeed": "true", "startingVersion": "latest"},
    ],
)
def test_batches_refuse_options_they_ignore(options: dict[str, str]) -> None:
    """An option that has no effect on a batch read means that the user expects something else."""
    with pytest.raises(InvalidInputError):
        check_for_batch(parse_reader_options({**PATH, **options}))


def test_future_changes_are_refused_in_batches() -> None:
    """The error for a missing start would ask for the option that is set."""
    options = {**PATH, "readChangeFeed": "true", "startingVersion": "latest"}
    with pytest.raises(InvalidInputError, match="startingVersion=latest begins with future"):
        check_for_batch(parse_reader_options(options))


@pytest.mark.parametrize(
    "options",
    [
        {"versionAsOf": "1"},
        {"tag": "gold"},
        {"readChangeFeed": "true", "startingVersion": "0", "endingVersion": "1"},
        {"readChangeFeed": "true", "endingTimestamp": "2026-01-01"},
        {"readChangeFeed": "true", "skipChangeCommits": "true"},
        {"deduplicationMode": "netChanges"},
    ],
)
def test_streams_refuse_options_they_ignore(options: dict[str, str]) -> None:
    """A stream that ignores `endingVersion` would read more than the user asked for."""
    with pytest.raises(InvalidInputError):
        check_for_stream(parse_reader_options({**PATH, **options}))


def test_streams_of_appends_may_omit_backfills() -> None:
    """A column backfill is a change commit for such a stream, while a batch read of a snapshot has
    no use for the option.
    """
    check_for_stream(parse_reader_options({**PATH, "columnBackfills": "false"}))
    with pytest.raises(InvalidInputError, match="columnBackfills"):
        check_for_batch(parse_reader_options({**PATH, "columnBackfills": "false"}))


# --- writing


def test_writer_options_are_parsed() -> None:
    """Every option of the writer has to reach its argument, and Spark's own options of a stream
    must not be refused.
    """
    texts = {
        **PATH,
        "txnappid": "nightly",
        "txnversion": "7",
        "fileversion": "2.1",
        "primarykey": "id, name",
        "schemaevolution": "ADD_COLUMNS",
        "storageoptions": '{"durable": "true"}',
    }
    assert parse_writer_options(texts, streaming=False) == WriterArguments(
        "/data/events.lance",
        storage_options={"durable": "true"},
        txn_app_id="nightly",
        txn_version=7,
        file_version="2.1",
        primary_key=("id", "name"),
        schema_evolution=("add_columns",),
    )
    stream = {**PATH, "appId": "mine", "checkpointLocation": "/c", "queryName": "q"}
    options = parse_writer_options({**stream, "schemaEvolution": "none"}, streaming=True)
    assert options == WriterArguments("/data/events.lance", app_id="mine", caller=STREAM)


@pytest.mark.parametrize(
    ("options", "streaming", "match"),
    [
        ({}, False, "the path of the table is missing"),
        ({**PATH, "appId": "mine"}, False, "'appId' identifies a stream"),
        ({**PATH, "txnAppId": "a", "txnVersion": "1"}, True, "a stream have their own ids"),
        ({**PATH, "txnAppId": "a"}, False, "txnAppId and txnVersion go together"),
        ({**PATH, "txnVersion": "1"}, False, "txnAppId and txnVersion go together"),
        ({**PATH, "txnAppId": "a", "txnVersion": "-1"}, False, "'txnVersion' must be a whole"),
        ({**PATH, "appId": " "}, True, "'appId' is empty"),
        ({**PATH, "schemaEvolution": "yes"}, False, "'schemaEvolution'.*must be one of 'none'"),
        ({**PATH, "mergeSchema": "true"}, False, "mergeschema'.*schemaEvolution=add_columns"),
        ({**PATH, "replaceWhere": "a > 1"}, False, "replacewhere'.*two commits"),
        ({**PATH, "mode": "upsert"}, True, "mode=upsert needs the key columns.* 'on'"),
        ({**PATH, "mode": "merge"}, True, "did you mean 'upsert'"),
        ({**PATH, "on": "id"}, True, "'on' is for the mode upsert or apply_changes, but no mode"),
        ({**PATH, "mode": "append", "skipUnchanged": "true"}, False, "the mode is append"),
        ({**UPSERT, "tombstones": "7"}, False, "'tombstones'.*'7 days'"),
        ({**UPSERT, "anyOutputMode": "true"}, False, "belongs to a stream"),
        ({**UPSERT, "expect": "id >"}, True, "the option 'expect'"),
        ({**UPSERT, "quarantineUri": "q"}, True, "set badRows=quarantine"),
        ({**UPSERT, "sequenceB": "x"}, False, "did you mean 'sequenceBy'"),
        ({**UPSERT, "compactEvery": "4"}, True, r"lance_sink\(path, compact=.*Dataset\.compact"),
        ({**UPSERT, "compact": "auto"}, True, r"lance_sink\(path, compact=.*Dataset\.compact"),
        ({**PATH, "fileVersio": "2.1"}, False, "did you mean 'fileVersion'"),
        ({**PATH, "bananas": "2.1"}, False, "no option 'bananas'; the options are: any"),
        ({**PATH, "versionAsOf": "1"}, False, "'versionAsOf' is for reading"),
    ],
)
def test_writers_refuse_options_they_ignore(
    options: dict[str, str], streaming: bool, match: str
) -> None:
    """Options that contradict the mode, belong to a reader or are misspelt would otherwise be
    dropped silently.
    """
    with pytest.raises(InvalidInputError, match=match):
        parse_writer_options(options, streaming)


@pytest.mark.parametrize(
    "parse",
    [
        parse_reader_options,
        lambda options: parse_writer_options(options, True),
        lambda options: parse_writer_options(options, False),
        lambda options: lance_sink(options["path"]),
        lambda options: _reader_options(
            SessionOptions(), (False, False), options["path"], 1, None, None
        ),
    ],
)
def test_memory_tables_are_refused(
    parse: Callable[[dict[str, str]], object],
) -> None:
    """A table in the memory of the driver does not exist in Spark's workers."""
    with pytest.raises(InvalidInputError, match="is in the memory of one process"):
        parse({"path": "memory://here/table"})


def test_readers_refuse_writer_options() -> None:
    """Outside of a view an option for writing is a mistake of the user."""
    with pytest.raises(InvalidInputError, match="'txnVersion' is for writing"):
        parse_reader_options({**PATH, "txnVersion": "1"})


def test_readers_ignore_valid_writer_options() -> None:
    """One view serves INSERT and SELECT, so a reader accepts writer options, also those of a table
    that does not exist yet, if they are valid.
    """
    assert parse_reader_options({**UPSERT, "skipUnchanged": "true"}) == parse_reader_options(PATH)
    assert parse_reader_options(
        {**PATH, "primaryKey": "id", "FILEVERSION": "2.1"}
    ) == parse_reader_options(PATH)
    for option in ("appId", "txnVersion", "schemaEvolution"):
        with pytest.raises(InvalidInputError, match=f"'{option}' is for writing"):
            parse_reader_options({**UPSERT, option: "1"})
    with pytest.raises(InvalidInputError, match="'on' is for writing"):
        parse_reader_options({**PATH, "on": "id"})
    with pytest.raises(InvalidInputError, match="must be one of 'append'"):
        parse_reader_options({**PATH, "mode": "PERMISSIVE"})


@pytest.mark.parametrize(
    "parse", [parse_reader_options, lambda options: parse_writer_options(options, False)]
)
def test_catalog_tables_are_refused(
    parse: Callable[[dict[str, str]], object],
) -> None:
    """Spark passes the properties of a catalog table without its path, and the error names the
    view that works.
    """
    with pytest.raises(InvalidInputError, match="CREATE TEMPORARY VIEW"):
        parse({**PATH, "provider": "lance", "owner": "root"})
