"""Columns computed from others by a function, only for rows whose inputs changed (docs/notes/050).

Start with `derivation`, the object that users hold. A round: `candidates` (which rows may have
changed, from manifests alone), `computing` (workers read their inputs, and run the function for
those that did), then `in_table` or `beside` (the values, and the `progress`, are one commit).
`ownership` says which columns they may write.

May import: quarantine, verbs, and what these may.
"""
