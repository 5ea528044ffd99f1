"""Prints the shell script that completes commands, options and folders."""

from typing import Final

import click

from lance_stream.cli.grammar import new_command

_NAME: Final = "lance-stream"
_VARIABLE: Final = "_LANCE_STREAM_COMPLETE"  # the same as in main


_HELP: Final = """\
Print the completion script of a shell.

\b
bash   eval "$(lance-stream completion bash)"   in ~/.bashrc
zsh    eval "$(lance-stream completion zsh)"    in ~/.zshrc, after compinit
fish   lance-stream completion fish | source    in ~/.config/fish/config.fish
"""


@new_command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> int:
    """Print the completion script of a shell."""
    from click.shell_completion import ShellComplete, get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # one of the choices
    # `source` of click's bash class would start bash to get its version.
    print(ShellComplete.source(kind(command, {}, _NAME, _VARIABLE)))
    return 0
