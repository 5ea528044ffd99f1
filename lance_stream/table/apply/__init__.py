"""A version and an operation make the next version.

Read `next_version` first: it has the table of operations. Each module beside it knows what some
operations do to the fragments (`rows`, `moved_rows`, `columns`), to the config (`config`), and to
what indices answer for (`index_coverage`).
"""

from lance_stream.table.apply.next_version import APPLY, Commit, Creation, apply, check_may_write

__all__ = ["APPLY", "Commit", "Creation", "apply", "check_may_write"]
