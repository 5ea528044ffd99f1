"""From a call of the user to `WriterArguments`: options of the format, parameters of a sink."""

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import Any, Final, ParamSpec, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import ParseException
from pyspark.sql import Column, SparkSession
from pyspark.sql.utils import is_remote

from lance_stream.commit.manifest_stores.choice import choose
from lance_stream.errors import InvalidInputError
from lance_stream.snapshot.references import branch_uri
from lance_stream.spark.arguments.choices import QUARANTINE
from lance_stream.spark.arguments.table import locate_named, nearest, parse_options, rows_of
from lance_stream.spark.arguments.unknown_options import NO_PATH, refuse_unknown
from lance_stream.spark.arguments.writer_arguments import (
    AUTO_CDC_NAMES,
    BATCH,
    STREAM,
    WriterArguments,
    new_table_option,
)
from lance_stream.storage.preflight import check_can_write_to

P = ParamSpec("P")
R = TypeVar("R")


def parse_writer_options(
    options: Mapping[str, str], streaming: bool, namespace: Mapping[str, str] | None = None
) -> WriterArguments:
    """Parse a user's options of the format as a writer.

    Args:
        options: Names and texts from Spark; names in any case.
        streaming: Whether a stream is written, rather than a batch.
        namespace: The namespace of the option `table`.

    Raises:
        InvalidInputError: A name is unknown, or belongs to the other kind of writer; a value is
            invalid; one of two options that belong together is missing; or the path is.
        LanceStreamError: The namespace did not answer, or refused.
    """
    from lance_stream.spark.arguments.reader_options import ReaderOptions

    texts = {name.lower(): value for name, value in options.items()}
    texts = {name: value for name, value in texts.items() if name not in _PASSED_ON}
    refuse_unknown(texts, WriterArguments, ReaderOptions, "is for reading, not for writing")
    values = locate_named(parse_options(WriterArguments, texts), namespace, creates=True)
    if "uri" not in values:
        raise InvalidInputError(NO_PATH.format("save() or start()"))
    values["uri"] = branch_uri(values["uri"], values.get("branch"))
    return WriterArguments(**values, caller=STREAM if streaming else BATCH)


_PASSED_ON: Final = frozenset({"checkpointlocation", "queryname"})
"""Options of Spark, which it passes on."""


_GUESSES: Final[Mapping[str, str]] = {
    "key": "on",
    "key_columns": "on",
    "order_by": "sequence_by",
    "path": "uri",
}
"""What people call arguments of a sink before they know their names."""


def suggest_names(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function that makes a sink: unknown arguments are refused with a suggestion."""
    parameters = list(signature(function).parameters)

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        for name in kwargs:
            if name not in parameters:
                other = _other_name(name, parameters)
                hint = nearest(name, parameters, "it has") if other is None else f": set {other}"
                raise InvalidInputError(f"{function.__name__} has no argument {name!r}{hint}")
        return function(*args, **kwargs)

    return wrapper


def _other_name(name: str, parameters: Sequence[str]) -> str | None:
    """Return what a function with these parameters calls an argument; None if it has none."""
    row = rows_of(WriterArguments).get(name)
    others = [cdc for of_sink, cdc in AUTO_CDC_NAMES.items() if of_sink == name]
    others += [of_sink for of_sink, cdc in AUTO_CDC_NAMES.items() if cdc == name]
    others += [] if row is None else [row.python]
    others += [_GUESSES[name]] if name in _GUESSES else []
    return next((other for other in others if other.partition("[")[0] in parameters), None)


def arguments_of(caller: str, parameters: Mapping[str, Any], **more: Any) -> WriterArguments:
    """Return the arguments of a Python function, checked.

    Args:
        caller: `SINK` or `AUTO_CDC`.
        parameters: The values of its parameters.
        more: Fields that are not among them.

    Raises:
        InvalidInputError: A value is invalid, or two do not fit together.
    """
    check_are_texts(parameters)
    by_python = dict(parameters)
    bad_rows = by_python.get("bad_rows")
    if isinstance(bad_rows, Mapping):
        if list(bad_rows) != [QUARANTINE]:
            raise InvalidInputError(
                "bad_rows must be 'refuse', 'quarantine', or the location of the quarantine, such "
                f"as {{'quarantine': 'tables/bad_orders.lance'}}, not {bad_rows!r:.200}"
            )
        by_python |= {"bad_rows": QUARANTINE, "bad_rows['quarantine']": bad_rows[QUARANTINE]}
    for name, value in _options_of_new_table(by_python.get("create_options")).items():
        by_python[new_table_option(name)] = value
    values = {
        row.name: (
            by_python[row.python]
            if row.check is None
            else row.check(row.python, by_python[row.python])
        )
        for row in rows_of(WriterArguments).values()
        if row.python in by_python
    }
    values["uri"] = branch_uri(values["uri"], values.get("branch"))
    arguments = WriterArguments(**{**values, **more}, caller=caller)
    _check_stores(arguments)
    _check_can_be_parsed(arguments)
    return arguments


def _check_stores(arguments: WriterArguments) -> None:
    """Raise if the locations or the settings of their store cannot be valid; sends no request."""
    is_used_here = not is_remote()  # Spark Connect calls the sink in a process of its server
    check_can_write_to(arguments.uri, arguments.storage_options, is_used_here=is_used_here)
    if is_used_here:
        choose(arguments.uri, arguments.storage_options)
    if arguments.quarantines:
        quarantine = arguments.quarantine
        check_can_write_to(quarantine, arguments.storage_options, is_used_here=is_used_here)


def _check_can_be_parsed(arguments: WriterArguments) -> None:
    """Raise if the condition of deletes is not Spark's SQL, where a session here can tell."""
    condition = arguments.delete_when
    session: Any = None if is_remote() else SparkSession.getActiveSession()
    if condition is None or session is None:
        return
    try:
        session._jsparkSession.sessionState().sqlParser().parseExpression(condition)
    except Py4JError:
        return  # a platform that does not let programs call the parser: the first batch tells
    except ParseException as error:
        problem = str(error).strip().splitlines()[0]
        raise InvalidInputError(
            f"{arguments.called('delete_when')}={condition!r} is not a condition in Spark's SQL: "
            f"{problem}"
        ) from None


def _options_of_new_table(value: object) -> Mapping[str, Any]:
    rows = rows_of(WriterArguments).values()
    names = [row.name for row in rows if row.python == new_table_option(row.name)]
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InvalidInputError(
            f"create_options must be a mapping of {', '.join(names)}, such as "
            f"{{'primary_key': ['id']}}, not {value!r:.200}"
        )
    for name in value:
        if name not in names:
            raise InvalidInputError(
                f"create_options has no {name!r}{nearest(name, names, 'it has')}"
            )
    return value


def check_are_texts(parameters: Mapping[str, object]) -> None:
    """Raise if columns or conditions are given as Spark's `Column`, as AUTO CDC takes them, too.

    Args:
        parameters: Values of arguments by their names.

    Raises:
        InvalidInputError: One is.
    """
    for name, value in parameters.items():
        for item in value if isinstance(value, list | tuple) else (value,):
            if isinstance(item, Column):
                raise InvalidInputError(
                    f"{name} is given as text, not as a Column, {item!r:.200}: a column by its "
                    "name, 'id', and a condition in Spark's SQL, \"op = 'd'\""
                )
