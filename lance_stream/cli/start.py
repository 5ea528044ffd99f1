"""The entry point of the installed script: an interruption of its imports is not an error.

Ctrl-C while the program is imported would otherwise print a traceback.
"""


def main() -> int:
    """Run the command of this process, and return its exit code."""
    try:
        from lance_stream.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        return 130
