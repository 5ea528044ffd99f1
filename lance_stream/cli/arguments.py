"""Arguments that several commands share: the table and its store, a version, JSON."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.types import IntParamType, StringParamType

from lance_stream.cli.grammar import StoreOption

if TYPE_CHECKING:
    from lance_stream.dataset import Dataset
    from lance_stream.snapshot.resolving import VersionSpec

_MAX_NAMES: Final = 20

Function = TypeVar("Function", bound=Callable[..., Any])


class WholeNumber(IntParamType):
    """A positive whole number."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a number."""
        number = super().convert(value, param, ctx)
        if number < 1:
            self.fail(f"{number} is not a positive whole number.", param, ctx)
        return int(number)


WHOLE_NUMBER: Final = WholeNumber()


class Location(StringParamType):
    """A path or a URI; the shell completes folder names."""

    name = "URI"

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002  # click's signature
        param: click.Parameter,  # noqa: ARG002  # click's signature
        incomplete: str,
    ) -> list[Any]:
        """Let the shell complete the name of a folder."""
        from click.shell_completion import CompletionItem

        return [CompletionItem(incomplete, type="dir")]


@dataclass(frozen=True)
class TableArgument:
    """A table that is named on the command line.

    Attributes:
        uri: Its directory: a path, or a URI.
        storage_options: Options of its store.
        branch: The name of a branch; None for the branch that the URI identifies.
    """

    uri: str
    storage_options: Mapping[str, Any]
    branch: str | None = None

    def open(self, version: str | None = None) -> "Dataset":
        """Open the table at a version; None for the newest one.

        Raises:
            NotFoundError: There is no table, or no such version.
            InvalidInputError: The location or an option is invalid.
        """
        from lance_stream.dataset import open_dataset
        from lance_stream.errors import NotFoundError

        branch = None if self.branch is None else (self.branch, None)
        try:
            newest = open_dataset(self.uri, branch, self.storage_options)
        except NotFoundError as error:
            if self.branch is None and (names := self.tables_in_it()):
                rest = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
                error.add_note(f"The folder has tables: {', '.join(names[:_MAX_NAMES])}{rest}")
            raise
        return checkout(newest, version)

    def tables_in_it(self) -> list[str] | None:
        """Return the names of the tables in a folder; None if it is not on a local disk."""
        from lance_stream.storage.locations import open_store
        from lance_stream.table.paths import VERSIONS_DIRECTORY

        folder = open_store(self.uri, self.storage_options).local_path("")
        if folder is None:
            return None
        return sorted(path.parent.name for path in Path(folder).glob(f"*/{VERSIONS_DIRECTORY}"))


def takes_table(function: Function) -> Function:
    """Add the arguments for a table to a command; its first argument becomes a `TableArgument`."""

    @wraps(function)
    def wrapper(table: TableArgument, *, branch: str | None, **others: Any) -> Any:
        return function(replace(table, branch=branch), **others)

    option = click.option("--branch", metavar="NAME", help="A branch of the table.")
    return click.argument("uri", metavar="URI", type=Location())(  # type: ignore[return-value]  # a decorator keeps the type
        takes_store(option(wrapper))
    )


def takes_store(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for a table's store; the first argument becomes a `TableArgument`.

    `-o` is short for `--storage-option`, unless the command defines another `-o`.
    """

    @wraps(function)
    def wrapper(
        uri: str | None,
        storage_option: tuple[str, ...],
        trusted_location: tuple[str, ...],
        namespace: tuple[str, ...],
        **others: Any,
    ) -> Any:
        options = parse_storage_options(storage_option, trusted_location)
        if uri is not None and namespace:
            from lance_stream.storage.namespaces.locating import locate

            location, located_options = locate(None, options, uri, parse_namespace(namespace))
            return function(TableArgument(str(location), located_options or {}), **others)
        return function(None if uri is None else TableArgument(uri, options), **others)

    option_names = [
        name for option in getattr(function, "__click_params__", ()) for name in option.opts
    ]
    return click.option(
        *([] if "-o" in option_names else ["-o"]),
        "--storage-option",
        cls=StoreOption,
        metavar="KEY=VALUE",
        multiple=True,
        help="An option of the table's store. Can be repeated.",
    )(
        click.option(
            "--trusted-location",
            cls=StoreOption,
            metavar="URI",
            multiple=True,
            help="A location below which the table may name files on other services or in other "
            "accounts. Can be repeated.",
        )(namespace_option(wrapper))
    )


def namespace_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option for a Lance namespace."""
    return click.option(
        "--namespace",
        cls=StoreOption,
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting of a Lance namespace, such as impl=dir and root=FOLDER, or impl=rest and "
        "uri=URL; URI is then the name of a table in it, such as db.events. Can be repeated.",
    )(function)


def parse_namespace(pairs: tuple[str, ...]) -> Mapping[str, str]:
    """Return the settings of a namespace.

    Raises:
        InvalidInputError: One is not KEY=VALUE, or the implementation is missing.
    """
    from lance_stream.errors import InvalidInputError

    settings = _parse_pairs(pairs, "a setting of a namespace")
    if "impl" not in settings:
        raise InvalidInputError(
            "a namespace needs its implementation and the properties of it: --namespace impl=dir "
            "--namespace root=FOLDER, or --namespace impl=rest --namespace uri=URL"
        )
    return settings


def parse_storage_options(pairs: tuple[str, ...], trusted: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the storage options of a command.

    Raises:
        InvalidInputError: An option is not KEY=VALUE.
    """
    from lance_stream.storage.trust import with_trusted

    options = _parse_pairs(pairs, "a storage option")
    return with_trusted(options, list(trusted) or None) or {}


def _parse_pairs(pairs: tuple[str, ...], what: str) -> dict[str, str]:
    from lance_stream.errors import InvalidInputError

    parts = [pair.partition("=") for pair in pairs]
    for number, (key, equals, _) in enumerate(parts, 1):
        if not key or not equals:
            raise InvalidInputError(
                f"{what} must be KEY=VALUE, but number {number} has no key or no '='; it may be "
                "secret and is not shown here"
            )
    return {key: value for key, _, value in parts}


def format_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for the output format of rows, which the command gets as `format_name`."""

    @wraps(function)
    def wrapper(*arguments: Any, format_name: str | None, as_json: bool, **others: Any) -> Any:
        if as_json and format_name not in (None, "json"):
            from lance_stream.errors import InvalidInputError

            raise InvalidInputError(
                f"--json and --format {format_name} contradict each other: omit one of them"
            )
        name = "json" if as_json else format_name or "table"
        return function(*arguments, format_name=name, **others)

    return click.option(
        "--format",
        "format_name",
        type=click.Choice(["arrow", "json", "table"]),
        show_default="table",
        help="table: for people; json: one object per line; arrow: an IPC stream.",
    )(click.option("--json", "as_json", is_flag=True, help="The same as --format json.")(wrapper))


version_option = click.option(
    "--version",
    metavar="VERSION",
    help="A number, a tag, or a time (in UTC if it has no zone); tag:NAME for a tag that looks "
    "like a number or a time.  [default: the newest]",
)
"""The option for the version to read."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
"""The option for output that programs can read."""

quarantine_option = click.option(
    "--quarantine",
    metavar="URI",
    help="The quarantine table; required for a branch.  [default: next to the table]",
)
"""The option for the location of the quarantine."""

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
"""The option that confirms in advance."""


def names_option(what: str) -> Callable[[Function], Function]:
    """Return the option for column names, with its help."""
    return click.option("--columns", metavar="NAME[,NAME...]", help=what)


def limit_option(what: str, default: int | None = None) -> Callable[[Function], Function]:
    """Return the option for a number of rows or versions, with its help."""
    return click.option(
        "-n",
        "--limit",
        metavar="N",
        type=WHOLE_NUMBER,
        default=default,
        show_default=default is not None,
        help=what,
    )


def checkout(ds: "Dataset", version: str | None) -> "Dataset":
    """Return a table at the version that the user named; None for the version that is open.

    Raises:
        NotFoundError: There is no such version.
    """
    from lance_stream.errors import NotFoundError
    from lance_stream.snapshot.tag_files import list_tags

    spec = parse_version(version)
    try:
        return ds.checkout(spec)
    except NotFoundError as error:
        if not isinstance(spec, str) and version in list_tags(ds.table.refs):
            error.add_note(f"There is a tag of this name: {_TAG}{version}")
        raise


_TAG: Final = "tag:"


def parse_version(text: str | None) -> "VersionSpec":
    """Parse a version argument: a number, a time, or a tag, with or without the prefix "tag:"."""
    if text is None:
        return None
    if text.startswith(_TAG):
        return text.removeprefix(_TAG)
    if text.isascii() and text.isdigit():
        return int(text)
    from lance_stream.snapshot.timestamps import parse_moment

    with suppress(ValueError):
        return parse_moment(text)
    return text


def split_names(text: str | None) -> list[str] | None:
    """Split a list of names at its commas; None for an empty list."""
    return [name.strip() for name in text.split(",")] if text else None
