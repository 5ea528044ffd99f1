"""The table of commands, and the program that dispatches to them."""

from importlib import import_module
from typing import Final, NamedTuple

import click

from lance_stream.cli.grammar import SETTINGS, Group, debug_option
from lance_stream.version import VERSION

PROGRAM: Final = "lance-stream"


class Section(NamedTuple):
    """A heading in the list of commands.

    Attributes:
        title: The heading.
        package: The package that contains the modules of its commands.
    """

    title: str
    package: str


class Entry(NamedTuple):
    """A command in the list of commands.

    Attributes:
        section: The heading under which it is listed.
        help: What it does, in a few words.
    """

    section: Section
    help: str


_INSPECT = Section("Inspect a table", "inspect")
_READ = Section("Read rows", "read")
_MAINTAIN = Section("Maintain a table", "maintain")
_REFERENCES = Section("Tags, branches, consumers, streams", "references")
_SETUP = Section("This machine", "setup")

COMMANDS: Final[dict[str, Entry]] = {
    "ls": Entry(_INSPECT, "list the tables of a folder or of a Lance namespace"),
    "show": Entry(_INSPECT, "show columns, sizes, streams and recommended maintenance"),
    "log": Entry(_INSPECT, "list the versions, the newest first"),
    "watch": Entry(_INSPECT, "show versions, rows per second and lags as they change"),
    "report": Entry(_INSPECT, "write an HTML report of history, size and readers"),
    "verify": Entry(_INSPECT, "check the rules of the format, or compare rows"),
    "head": Entry(_READ, "print the first rows"),
    "query": Entry(_READ, "select, sort or count rows, and print them"),
    "changes": Entry(_READ, "print inserted, updated and deleted rows"),
    "compact": Entry(_MAINTAIN, "merge small fragments and drop deleted rows"),
    "cleanup": Entry(_MAINTAIN, "remove old versions and unneeded files"),
    "indices": Entry(_MAINTAIN, "show how many rows indices cover, or update them"),
    "restore": Entry(_MAINTAIN, "restore an older version as the newest"),
    "quarantine": Entry(_MAINTAIN, "list quarantined rows, or write them to the table"),
    "drop": Entry(_MAINTAIN, "delete a table of a Lance namespace"),
    "migrate": Entry(_MAINTAIN, "enable a newer feature of the format"),
    "tags": Entry(_REFERENCES, "list, create, move and delete names for versions"),
    "branches": Entry(_REFERENCES, "list, create and delete separate histories"),
    "clone": Entry(_REFERENCES, "create a table that starts with the files of another"),
    "consumers": Entry(_REFERENCES, "list the consumers of the change feed, or drop one"),
    "streams": Entry(_REFERENCES, "list the streams into a table, or forget one"),
    "doctor": Entry(_SETUP, "check whether this machine and a store are ready"),
    "completion": Entry(_SETUP, "print the completion script of a shell"),
}
"""Commands by name. Each is `command` in the module of that name, in its section's package."""

ALIASES: Final = {
    "history": "log",
    "describe": "show",
    "optimize": "compact",
    "vacuum": "cleanup",
}
"""The names of some commands in Delta and Iceberg."""

_OTHER_WORDS: Final = {
    "versions": "log",
    "snapshots": "log",
    "commits": "log",
    "info": "show",
    "schema": "show",
    "stats": "show",
    "files": "show",
    "fragments": "show",
    "count": "query --count",
    "sql": "query",
    "select": "query",
    "scan": "query",
    "export": "query --format arrow",
    "diff": "changes",
    "tail": "changes --follow",
    "follow": "changes --follow",
    "rollback": "restore",
    "revert": "restore",
    "undo": "restore",
    "tag": "tags create",
    "forget": "streams forget",
    "list": "ls",
    "tables": "ls",
    "append": "ds.append(data) in Python",
    "insert": "ds.append(data) in Python",
    "upsert": "ds.upsert(data, on) in Python",
    "merge": "ds.upsert(data, on) in Python",
    "update": "ds.update(values, where) in Python",
    "delete": "ds.delete(predicate) in Python",
    "add-column": "ds.add_columns(columns) in Python",
    "drop-column": "ds.drop_columns(columns) in Python",
    "rename": "ds.rename_columns(names) in Python",
    "rename-column": "ds.rename_columns(names) in Python",
}
"""What people call a command before they know its name."""

_EXIT_CODES: Final = [
    ("0", "success"),
    ("1", "verify or doctor has findings; or a system error, such as a full disk"),
    ("2", "the command is invalid; the message states the reason"),
    ("3", "the table, version, column or name does not exist"),
    ("4", "the table is damaged, or has a feature that is not supported"),
    ("5", "the commit failed"),
    ("130", "interrupted"),
]


class Program(Group):
    """The program; it imports the module of a command when it needs it."""

    other_words = _OTHER_WORDS

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names of the commands, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Return the command with a name or alias; None if there is none."""
        cmd_name = ALIASES.get(cmd_name, cmd_name)
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = import_module(f"lance_stream.cli.{entry.section.package}.{cmd_name}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the commands under their headings."""
        for section in dict.fromkeys(command.section for command in COMMANDS.values()):
            entries = [
                (name, entry.help) for name, entry in COMMANDS.items() if entry.section == section
            ]
            with formatter.section(section.title):
                formatter.write_dl(entries, col_max=12)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the exit codes."""
        with formatter.section("Exit codes"):
            formatter.write_dl(_EXIT_CODES)


def make_program() -> Program:
    """Return the program with all its commands."""
    program = Program(
        PROGRAM,
        help="Inspect Lance tables, read their rows, follow their changes, and maintain them.",
        context_settings=SETTINGS,
        subcommand_metavar="COMMAND [ARGUMENTS]...",
    )
    program.params.append(
        click.Option(
            ["--version"],
            is_flag=True,
            expose_value=False,
            is_eager=True,
            callback=_print_version,
            help="Show the version of this program.",
        )
    )
    program.params.append(debug_option())
    return program


def _print_version(ctx: click.Context, _param: click.Parameter, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
        print(f"{PROGRAM} {VERSION}")
        ctx.exit()
