"""Applies an operation to a version, giving the next version.

Read `next_version` first: it has the table of operations. The other modules apply operations to the
fragments (`rows`, `moved_rows`, `columns`), to the config (`config`), and to the coverage of
indices (`index_coverage`).
"""

from lance_stream.table.apply.next_version import APPLY, Commit, Creation, apply, check_may_write

__all__ = ["APPLY", "Commit", "Creation", "apply", "check_may_write"]
