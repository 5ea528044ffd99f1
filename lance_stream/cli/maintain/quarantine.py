"""Lists the quarantined rows of a table, or writes them to it."""

from dataclasses import asdict

import click

from lance_stream.cli import output
from lance_stream.cli.arguments import TableArgument, json_option, quarantine_option, takes_table
from lance_stream.cli.grammar import new_command, new_group
from lance_stream.cli.progress import progress
from lance_stream.cli.tables import print_table


@new_group("quarantine")
def command() -> None:
    """List quarantined rows, or write them to the table.

    A sink with bad_rows="quarantine" quarantines rows that do not fit the table or fail a check.
    """


@new_command("list")
@takes_table
@quarantine_option
@json_option
def list_all(table: TableArgument, quarantine: str | None, as_json: bool) -> int:
    """List the quarantined rows by batch and reason, with an example of each."""
    from lance_stream.quarantine.listing import list_quarantine

    table.open()
    entries = list_quarantine(
        table.uri,
        branch=table.branch,
        quarantine=quarantine,
        storage_options=table.storage_options,
    )
    if as_json:
        for entry in entries:
            print(output.to_json(asdict(entry)))
        return 0
    rows = [
        [
            entry.app_id,
            str(entry.batch_id),
            entry.reason,
            str(entry.num_rows),
            entry.state,
            output.moment(entry.time),
            entry.row,
        ]
        for entry in entries
    ]
    header = ["STREAM", "BATCH", "REASON", "ROWS", "STATE", "SINCE", "EXAMPLE"]
    print_table(header, rows, numbers=("BATCH", "ROWS"))
    return 0


@new_command("replay")
@takes_table
@quarantine_option
@click.option("--where", metavar="CONDITION", help="Replay only rows that meet this condition.")
@click.option(
    "--set",
    "values",
    metavar="COLUMN=EXPRESSION",
    multiple=True,
    help="First set a column to the value of a SQL expression. Can be repeated.",
)
@click.option(
    "--expect",
    metavar="CONDITION",
    multiple=True,
    help="A check that replaces the sink's checks. Can be repeated.",
)
@click.option("--no-checks", is_flag=True, help="Do not apply the sink's checks.")
@click.option(
    "--replace-existing",
    is_flag=True,
    help="Let upserted rows without sequence_by replace stored rows, even if those are newer.",
)
@json_option
def replay(
    table: TableArgument,
    quarantine: str | None,
    where: str | None,
    values: tuple[str, ...],
    expect: tuple[str, ...],
    no_checks: bool,
    replace_existing: bool,
    as_json: bool,
) -> int:
    """Write the rows that fit now to the table, each exactly once. Other rows stay quarantined.

    An interrupted replay can be repeated.
    """
    from lance_stream.errors import InvalidInputError
    from lance_stream.quarantine.replay import replay_quarantine

    if expect and no_checks:
        raise InvalidInputError("--expect and --no-checks contradict each other: omit one of them")
    fix = dict(_parse_value(value) for value in values)
    checks: object = {} if no_checks else list(expect) if expect else None
    with progress(f"writing quarantined rows to {table.uri}"):
        report = replay_quarantine(
            table.uri,
            branch=table.branch,
            quarantine=quarantine,
            storage_options=table.storage_options,
            where=where,
            fix=fix or None,
            expect=checks,
            replace_existing=replace_existing,
        )
    if as_json:
        print(output.to_json(asdict(report)))
        return 0
    print(f"replayed {output.count(report.rows_replayed, 'row')}")
    for reason, num_rows in report.rows_remaining.items():
        print(f"{output.count(num_rows, 'row')} remaining: {reason}")
    return 0


def _parse_value(text: str) -> tuple[str, str]:
    from lance_stream.errors import InvalidInputError

    name, equals, expression = text.partition("=")
    if not name.strip() or not equals or not expression.strip():
        raise InvalidInputError(
            f"--set must be COLUMN=EXPRESSION, such as --set price=-price, not {text!r}"
        )
    return name.strip(), expression


command.add_command(list_all)
command.add_command(replay)
