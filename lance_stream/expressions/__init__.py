"""SQL expressions over columns: parsed, checked and evaluated on Arrow batches.

Read `predicates` first; `trees` parses, `rules` has one rule for each kind of node.
"""
