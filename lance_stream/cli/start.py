"""The entry point of the installed script.

Ctrl-C during the program's imports exits without a traceback.
"""


def main() -> int:
    """Run the command of this process, and return its exit code."""
    try:
        from lance_stream.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
