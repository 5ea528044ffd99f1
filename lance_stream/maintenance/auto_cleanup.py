"""Automatic cleanup after a commit of this process, as a table's config requests.

It is an ordinary `cleanup`: it keeps what tags, branches and consumers protect, and the files of
commits in progress. It also keeps the version before the commit, which readers may have just
opened.

The commit has succeeded, so a failure of the cleanup does not fail it; the same failure of a table
is logged once. The next cleanup removes what this one did not.

Source:  the reference's auto_cleanup_hook; observed in pylance 14.
Differs: The reference removes nothing if one of the old versions has a tag.
"""

import logging
from typing import Final

from lance_stream.environment import MACHINE, Environment
from lance_stream.maintenance.cleanup.cleanup import cleanup
from lance_stream.maintenance.cleanup.rules import CleanupRules
from lance_stream.snapshot.table_version import TableVersion
from lance_stream.table.config.auto_cleanup import due_cleanup

_MIN_RETAINED: Final = 2
"""The new version, and the one before it."""

_MAX_LOGGED: Final = 1000

_log = logging.getLogger(__name__)
_logged: set[tuple[str, str]] = set()


def clean_up_if_due(table: TableVersion, environment: Environment = MACHINE) -> None:
    """Clean up a table if its config asks for it after this version.

    Args:
        table: The version that was committed.
        environment: The clock.
    """
    try:
        due = due_cleanup(table.manifest.config, table.version)
        if due is None:
            return
        rules = CleanupRules(due.older_than, max(due.retain_versions, _MIN_RETAINED))
        report = cleanup(table, rules, environment=environment)
    except Exception as error:  # the commit has succeeded
        _log_failure(table.uri, error)
        return
    _log.info("automatic cleanup of %s after version %d: %s", table.uri, table.version, report)


def _log_failure(uri: str, error: Exception) -> None:
    failure = (uri, f"{type(error).__name__}: {error}")
    if failure in _logged:
        return
    if len(_logged) >= _MAX_LOGGED:
        _logged.clear()
    _logged.add(failure)
    _log.warning(
        "the automatic cleanup of %s failed, so old versions may remain: %s. The commit itself "
        "succeeded. Correct or remove the config entries lance.auto_cleanup.*, or run "
        "cleanup to see the error. This is logged once",
        *failure,
        exc_info=error,
    )
