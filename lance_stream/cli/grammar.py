"""Features of all commands: abbreviated options, suggestions, `--debug`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Final

import click

if TYPE_CHECKING:
    from lance_stream.environment import Environment

SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
}
"""Settings of every command's context."""


@dataclass
class Session:
    """One run of the program.

    Attributes:
        replacement: Clock and sleep for tests; None for the machine's.
        is_debug: Whether to print the traceback of an error.
        command: The program's name and the running command.
    """

    replacement: "Environment | None" = None
    is_debug: bool = False
    command: str = ""

    @property
    def environment(self) -> "Environment":
        """The clock and the sleep function."""
        from lance_stream.environment import MACHINE

        return self.replacement or MACHINE


class MissingCommandError(click.UsageError):
    """A command that requires a subcommand was called without one."""


_UNLIMITED: Final = 1000  # characters

ARGUMENTS: Final = {
    "URI": "The table's directory: a path, or a URI such as s3://bucket/table.",
    "VERSION": "A number, a tag, or a time (in UTC if it has no zone); tag:NAME for a tag that "
    "looks like a number or a time.",
}
"""The help of arguments, by their names."""


OTHER_OPTIONS: Final = {
    "--filter": "--where",
    "--where": "--filter",
    "--since": "--after",
    "--from": "--after",
    "--until": "--through",
    "--to": "--through",
    "--last": "--limit",
    "--keep": "--retain-versions",
}
"""What other programs call an option, and its name here, in the commands that have it."""


class StoreOption(click.Option):
    """An option that concerns the table's store; the help lists it after the others."""


class Command(click.Command):
    """A command that accepts abbreviated options, unless they are ambiguous."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the arguments, the options, and those for the table's store."""
        params = self.get_params(ctx)
        arguments = [param for param in params if isinstance(param, click.Argument)]
        names = [(argument.metavar or "").strip("[]") for argument in arguments]
        options = [param for param in params if isinstance(param, click.Option)]
        store_options = [option for option in options if isinstance(option, StoreOption)]
        other_options = [option for option in options if option not in store_options]
        for title, records in (
            ("Arguments", [(name, ARGUMENTS[name]) for name in names if name in ARGUMENTS]),
            ("Options", _records(other_options, ctx)),
            ("The table's store", _records(store_options, ctx)),
        ):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words after the command's name."""
        params = self.get_params(ctx)
        try:
            return super().parse_args(ctx, expand(args, params))
        except click.NoSuchOption as error:
            name = error.option_name
            meant, argument = OTHER_OPTIONS.get(name), name.lstrip("-").upper()
            if any(meant in param.opts for param in params):
                advice = f"Did you mean {meant!r}?"
            elif any(argument == param.metavar for param in params):
                advice = f"{argument} is an argument, written without a name"
            else:
                raise
            message = f"no such option {name!r}. {advice}"
            raise click.NoSuchOption(name, message, ctx=ctx) from None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        if isinstance(ctx.obj, Session):
            ctx.obj.command = ctx.command_path
        return super().invoke(ctx)


def _records(options: Sequence[click.Option], ctx: click.Context) -> list[tuple[str, str]]:
    return [record for option in options if (record := option.get_help_record(ctx)) is not None]


class Group(click.Group):
    """A command with subcommands; suggests the closest one for an unknown name."""

    command_class = Command
    other_words: ClassVar[Mapping[str, str]] = {}
    """What other programs call a subcommand, and the words for it here."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of the subcommands, in the order of their registration."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the subcommands with their whole first sentences."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        records = [
            (name, command.get_short_help_str(_UNLIMITED)) for name, command in commands if command
        ]
        if records:
            with formatter.section("Commands"):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words after the group's name."""
        if not args and not ctx.resilient_parsing:
            raise MissingCommandError("a command is missing", ctx)
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the subcommand that the first word names."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            if name.startswith("-"):
                raise click.NoSuchOption(name, ctx=ctx)
            names = self.list_commands(ctx)
            meant = self.other_words.get(name)
            advice = f". Did you mean {meant}?" if meant else suggestion(name, names)
            raise click.UsageError(
                f"there is no command {name!r}{advice}\nThe commands are {', '.join(names)}.",
                ctx,
            )
        return super().resolve_command(ctx, args)


def suggestion(word: str, candidates: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown word, with the closest candidates."""
    close = get_close_matches(word, list(candidates), n=3)
    if not close:
        return "."
    return f". Did you mean {' or '.join(close)}?"


def expand(words: Sequence[str], params: Sequence[click.Parameter]) -> list[str]:
    """Expand abbreviated options.

    Ambiguous abbreviations and words after `--` are not expanded.
    """
    names = {
        name
        for param in params
        if isinstance(param, click.Option)
        for name in (*param.opts, *param.secondary_opts)
        if name.startswith("--")
    }
    ends = words.index("--") if "--" in words else len(words)
    return [*(_expand(word, names) for word in words[:ends]), *words[ends:]]


def _expand(word: str, names: Iterable[str]) -> str:
    prefix, equals, value = word.partition("=")
    if len(prefix) < 3 or not prefix.startswith("--") or prefix in names:
        return word
    matches = [name for name in names if name.startswith(prefix)]
    return f"{matches[0]}{equals}{value}" if len(matches) == 1 else word


def new_group(name: str) -> Callable[[Callable[..., Any]], Group]:
    """Return a decorator that makes a function a group of commands."""

    def make(function: Callable[..., Any]) -> Group:
        group: Group = click.group(name, cls=Group, context_settings=SETTINGS)(function)
        group.params.append(debug_option())
        return group

    return make


def debug_option() -> click.Option:
    """Return the option that shows the traceback of an error."""

    def set_debug(ctx: click.Context, _param: click.Parameter, is_debug: bool) -> None:
        if is_debug and isinstance(ctx.obj, Session):
            ctx.obj.is_debug = True

    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        callback=set_debug,
        help="Show the traceback of an error.",
    )


def new_command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Return a decorator that makes a function a command.

    Args:
        name: The command's name.
        **settings: Keyword arguments of `click.command`.
    """

    def make(function: Callable[..., Any]) -> Command:
        command: Command = click.command(name, cls=Command, context_settings=SETTINGS, **settings)(
            function
        )
        command.params.append(debug_option())
        return command

    return make
