"""SQL expressions over columns: parsed, checked and evaluated on Arrow batches.

Read `predicates` first. `tokens` and `grammar` turn a text into a tree of `nodes`; `rules` has one
rule for each kind of node, and `functions` one for each function.
"""
