"""Invalid arguments are refused when the sink is created, before a stream is started."""

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession, functions

from lance_stream.errors import InvalidInputError
from lance_stream.spark import LanceSink, auto_cdc_sink, lance_sink, register
from lance_stream.spark.arguments.table import rows_of
from lance_stream.spark.arguments.writer_arguments import WriterArguments
from lance_stream.spark.arguments.writer_calls import parse_writer_options
from lance_stream.upsert.change_rules import ChangeRules

ID = pa.schema([("Id", pa.int64())])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"uri": " "}, "needs the path"),
        ({"uri": "s3:/bucket/t"}, "two slashes"),
        ({"uri": None}, "name a table by its location"),
        ({"uri": ["t"]}, "is not the path"),
        ({"storage_options": "durable=true"}, "must be a mapping of names to values"),
        ({"storage_options": [("durable", "true")]}, "must be a mapping of names to values"),
        ({"create_options": ID}, "create_options must be a mapping"),
        ({"mode": "complete"}, "mode must be one of 'append'"),
        ({"mode": "upsert"}, "needs the key columns"),
        (
            {"mode": "upsert", "on": "id", "sequence_by": ["ts"]},
            r"sequence_by must be the name of one column: sequence_by='lsn'",
        ),
        (
            {"mode": "upsert", "on": "id", "delete_when": ""},
            "delete_when must be a condition in Spark's SQL",
        ),
        (
            {"mode": "upsert", "on": "id", "delete_when": True},
            "delete_when must be a condition in Spark's SQL",
        ),
        ({"mode": "upsert", "on": "id", "skip_unchanged": "false"}, "skip_unchanged must be True"),
        ({"when_matched": "ignore"}, "when_matched is for the mode upsert, but the mode is append"),
        ({"mode": "upsert", "on": "id", "when_matched": 1}, "when_matched must be 'update'"),
        ({"mode": "upsert", "on": "id", "when_matched": "source.x >"}, "source.x >"),
        ({"mode": "upsert", "on": "id", "when_not_matched": "("}, "not a SQL expression|SQL"),
        ({"any_output_mode": "false"}, "any_output_mode must be True"),
        ({"on": "id"}, "on is for the mode upsert or apply_changes, but the mode is append"),
        (
            {"mode": "upsert", "on": 3},
            r"on must be a list of column names, such as \['id', 'name'\]",
        ),
        ({"mode": "merge"}, "did you mean 'upsert'"),
        ({"mode": "Append"}, "did you mean 'append'"),
        ({"schema_evolution": True}, "did you mean 'add_columns'"),
        ({"schema_evolution": "mergeSchema"}, "did you mean 'add_columns'"),
        ({"uri": "s3://bucket"}, "must name a bucket and a path"),
        ({"uri": "file://host/t"}, "names the host 'host'"),
        ({"uri": "memory://t"}, "memory of one process"),
        ({"uri": "s3://bucket/t", "storage_options": {"regio": "x"}}, "did you mean 'region'"),
        ({"uri": "gs://bucket/t", "storage_options": {"tokn": "x"}}, "did you mean 'token'"),
        ({"storage_options": {"durabel": "true"}}, "did you mean 'durable'"),
        ({"app_id": ""}, "app_id must be a name for the stream"),
        ({"create_options": {"file_version": 2.1}}, "the version as a string, such as '2.1'"),
        ({"schema_evolution": "add"}, "schema_evolution must be one of"),
        ({"create_options": {"schema": "id long"}}, "must be a pyarrow.Schema, not a str"),
        ({"create_options": {"schema": ID, "primary_key": ["key"]}}, "no column 'key'"),
        ({"create_options": {"primary_key": 5}}, "primary_key"),
        ({"create_options": {"stable_row_ids": "no"}}, r"stable_row_ids'\] must be True or False"),
        ({"create_options": {"schemas": ID}}, "has no 'schemas': did you mean 'schema'"),
    ],
)
def test_invalid_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    """Every row of the table of arguments has a check, and its message has to
    show a valid value.
    """
    with pytest.raises(InvalidInputError, match=message):
        lance_sink(**{"uri": "/somewhere", **arguments})


@pytest.mark.parametrize("writer", [lance_sink, auto_cdc_sink])
def test_every_parameter_has_one_row(writer: Callable[..., LanceSink]) -> None:
    """A parameter without a row in the table of arguments would be ignored."""
    parameters = {*inspect.signature(writer).parameters} - {"on_commit", "create_options"}
    if writer is auto_cdc_sink:
        parameters -= {"keys", "stored_as_scd_type", *inspect.signature(ChangeRules).parameters}
    assert parameters <= {row.python for row in rows_of(WriterArguments).values()}


@pytest.mark.parametrize(
    ("writer", "name", "suggestion"),
    [
        (lance_sink, "tombstone", "did you mean 'tombstones'"),
        (lance_sink, "file_version", r"set create_options\['file_version'\]"),
        (lance_sink, "quarantine_uri", r"set bad_rows\['quarantine'\]"),
        (lance_sink, "keys", "set on"),
        (lance_sink, "key", "set on"),
        (lance_sink, "path", "set uri"),
        (auto_cdc_sink, "key", "did you mean 'keys'"),
        (auto_cdc_sink, "delete_when", "set apply_as_deletes"),
        (auto_cdc_sink, "apply_as_delete", "did you mean 'apply_as_deletes'"),
        (auto_cdc_sink, "bananas", "it has: any_output_mode"),
    ],
)
def test_unknown_arguments_get_a_suggestion(
    writer: Callable[..., LanceSink], name: str, suggestion: str
) -> None:
    """A misspelt argument, or the name of the format's option, is corrected by the error."""
    required = {"keys": "id", "sequence_by": "at"} if writer is auto_cdc_sink else {}
    with pytest.raises(InvalidInputError, match=f"has no argument '{name}'.*{suggestion}"):
        writer("t", **required, **{name: "x"})


def test_ledgers_keep_their_fingerprints() -> None:
    """A stream whose rules got another fingerprint in a new release would seem to have changed its
    rules.
    """
    assert lance_sink("t").arguments.fingerprint == "0fa944cfd3db0b25"
    options = {"path": "t", "mode": "upsert", "on": "a,b", "sequenceBy": "s"}
    by_key = lance_sink("t", mode="upsert", on=["b", "a"], sequence_by="s").arguments
    of_format = parse_writer_options(options, streaming=True)
    assert by_key.fingerprint == of_format.fingerprint == "6cdf121edba7dbd7"
    changes = auto_cdc_sink("t", "id", "a", column_list=["id", "a"]).arguments
    assert changes.fingerprint == "f501452f6b868b72"


def test_sink_has_at_most_24_parameters() -> None:
    """Further settings belong in `create_options`, `storage_options` or a function of their own."""
    assert len(inspect.signature(lance_sink).parameters) <= 24


def test_both_writers_share_their_checks() -> None:
    """Every argument has one check, whose message differs only in the name of the argument or
    option.
    """
    with pytest.raises(InvalidInputError) as of_sink:
        lance_sink("/somewhere", skip_unchanged=True)
    with pytest.raises(InvalidInputError) as of_format:
        parse_writer_options({"path": "t", "mode": "append", "skipUnchanged": "true"}, False)
    assert str(of_format.value) == str(of_sink.value).replace(
        "skip_unchanged", "the option 'skipUnchanged'"
    )


@pytest.mark.parametrize("session", [None, "lance", {"durable": "true"}])
def test_register_requires_a_session(session: Any) -> None:
    """Calling `register()` with the name or the options first is a likely mistake, and the error
    shows the right call.
    """
    with pytest.raises(InvalidInputError, match=r"register\(spark\)"):
        register(session)


@pytest.mark.parametrize(
    ("uri", "module", "extra"),
    [
        ("s3://bucket/t", "obstore", "s3"),
        ("s3a://bucket/t", "botocore", "s3"),
        ("gs://bucket/t", "google.auth", "gcs"),
        ("abfss://container@account.dfs.core.windows.net/t", "obstore", "azure"),
    ],
)
def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, uri: str, module: str, extra: str
) -> None:
    """The error must name the extra to install when the sink is created, not in the first task on
    a cluster.
    """
    lance_sink(uri)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == module else find_spec(name)
    )
    with pytest.raises(InvalidInputError, match=rf"pip install 'lance-stream\[{extra}\]'"):
        lance_sink(uri)


def test_versions_in_dynamodb_are_accepted() -> None:
    """The scheme `s3+ddb` is not in the list of plain stores, but a sink must accept it."""
    assert lance_sink("s3+ddb://bucket/t?ddbTableName=T").uri == "s3+ddb://bucket/t?ddbTableName=T"


def test_fsspec_filesystems_refuse_writing() -> None:
    """A filesystem of fsspec has no atomic creation of files, on which a commit depends."""
    fsspec.register_implementation("elsewhere", fsspec.get_filesystem_class("memory"), clobber=True)
    with pytest.raises(InvalidInputError, match="can only be read"):
        lance_sink("elsewhere://tables/t")


def test_valid_arguments_are_accepted() -> None:
    """The checks must not refuse a combination that is documented."""
    options = {"schema": ID, "primary_key": ["ID"], "stable_row_ids": True}
    assert lance_sink("/somewhere", create_options=options).uri == "/somewhere"


def test_a_path_object_becomes_text() -> None:
    """Spark's settings and the log are looked up by the location and accept strings only."""
    assert lance_sink(Path("/some where/t")).uri == "/some where/t"


@pytest.mark.parametrize(
    ("df", "batch_id", "message"),
    [
        (pd.DataFrame({"id": [1]}), 0, "not with a DataFrame of pandas"),
        (pa.table({"id": [1]}), 0, "not with a Table of pyarrow"),
        (None, 0, "not with a NoneType"),
        (SimpleNamespace(sparkSession=None), "1", "a batch id is a whole number from 0, not '1'"),
        (SimpleNamespace(sparkSession=None), None, "a batch id is a whole number from 0, not None"),
        (SimpleNamespace(sparkSession=None), True, "a batch id is a whole number from 0, not True"),
    ],
    ids=["pandas", "table", "nothing", "text", "no batch id", "flag"],
)
def test_only_micro_batches_are_accepted(df: Any, batch_id: Any, message: str) -> None:
    """Passing pandas rows or the arguments in another order is a likely mistake in a function for
    `foreachBatch`.
    """
    with pytest.raises(InvalidInputError, match=message):
        lance_sink("/somewhere", app_id="a")(df, batch_id)


@pytest.mark.parametrize(
    ("uri", "options", "problem"),
    [
        ("/tables/t", {"manifest_store": "mongo://x"}, "manifest_store must begin with"),
        ("/tables/t", {"manifest_store": "sqlite:relative.db"}, "manifest_store must begin with"),
        ("/tables/t", {"manifest_store": "sqlite://relative.db"}, "three slashes"),
        ("s3+ddb://bucket/t", {}, "exactly one query, ddbTableName"),
        ("s3+ddb://bucket/t?ddbTableName=T", {"manifest_store": "dynamodb://T"}, "omit one"),
        ("s3://bucket/t", {"request_timeout": "banana"}, "request_timeout"),
        ("s3://bucket/t", {"key": "only half"}, "one half of S3's access key"),
        ("s3://bucket/t", {"client_kwargs": {"nope": 1}}, "client_kwargs"),
        ("s3://bucket/t", {"aws_virtual_hosted_style_request": "maybe"}, "true or false"),
    ],
)
def test_invalid_settings_are_refused_at_once(
    uri: str, options: dict[str, Any], problem: str
) -> None:
    """A wrong setting of a store would otherwise fail in the first commit, after tasks have
    written their files.
    """
    with pytest.raises(InvalidInputError, match=problem):
        lance_sink(uri, storage_options=options)


@pytest.mark.parametrize(
    ("uri", "options"),
    [
        ("s3+ddb://bucket/t?ddbTableName=T", {"dynamodb_endpoint": "http://127.0.0.1:1"}),
        ("s3://bucket/t", {"manifest_store": "dynamodb://T?region=eu-central-1"}),
        ("/tables/t", {"manifest_store": "sqlite:///tables/versions.db?base_uri=a/b"}),
        ("gs://bucket/t", {"manifest_store": "postgresql://u@127.0.0.1/db?table=versions"}),
        ("abfss://c@account.dfs.core.windows.net/t", {}),
        ("az://container/t", {}),
        ("s3://bucket/t", {"request_timeout": "30s", "account_name": "of another store"}),
        ("file:/tables/a%20b", {"durable": "true"}),
    ],
)
def test_valid_settings_are_accepted(uri: str, options: dict[str, Any]) -> None:
    """Early checks must not refuse what the stores accept, such as credentials of another store
    among the options.
    """
    assert lance_sink(uri, storage_options=options).uri == uri


def test_connect_clients_need_no_store_libraries(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server opens the store, so the client need not have the libraries for it."""
    monkeypatch.delenv("SPARK_CONNECT_MODE_ENABLED", raising=False)
    monkeypatch.setattr("lance_stream.storage.preflight.is_installed", lambda _module: False)
    with pytest.raises(InvalidInputError, match="is not installed"):
        lance_sink("s3://bucket/t")
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    assert lance_sink("s3://bucket/t", app_id="app").uri == "s3://bucket/t"


@pytest.mark.spark
def test_column_objects_are_refused(spark: SparkSession) -> None:
    """Spark's own function accepts Column objects, so the error has to say that text is expected
    here.
    """
    of_changes = {"keys": ["id"], "sequence_by": "ts"}
    for name, value in {
        "sequence_by": functions.col("ts"),
        "apply_as_deletes": functions.expr("op = 'd'"),
        "keys": [functions.col("id")],
        "except_column_list": [functions.col("op")],
    }.items():
        with pytest.raises(InvalidInputError, match=f"{name} is given as text, not as a Column"):
            auto_cdc_sink("t", **of_changes | {name: value})  # type: ignore[arg-type]  # what is tested
