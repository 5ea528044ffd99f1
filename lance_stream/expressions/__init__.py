"""SQL expressions over columns: parsed, checked and evaluated on Arrow batches.

Read `predicates` first. `tokens` and `grammar` parse text into a tree of `nodes`, `json_uses`
checks the use of JSON columns, and `evaluation` has one rule per kind of node.
"""
