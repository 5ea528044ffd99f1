"""Applies an operation to a version, giving the next version.

Read `next_version` first: it has the table of operations. The other modules apply operations to the
fragments (`rows`, `moved_rows`, `columns`), to the config (`config`), to a version as a whole
(`versions`, `stable_row_ids`), and to the coverage of indices (`index_coverage`). `new_fragments`
assigns ids, which `next_row_id_check` checks; `field_twice` repairs fragments of old writers.
"""

from lance_stream.table.apply.next_version import APPLY, Commit, Creation, apply, check_may_write

__all__ = ["APPLY", "Commit", "Creation", "apply", "check_may_write"]
