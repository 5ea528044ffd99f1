"""Derived columns: computed by a function from other columns, for rows whose inputs changed.

Read `derivation` first, which implements `derive`. Each round selects `candidates` (rows that may
have changed, found from manifests alone); workers run the function for the rows whose inputs did
change (`computing`); and the values are committed together with the `progress`, to the `same_table`
or to a `separate_table`. `ownership` determines which columns a derivation may write.

Decision 050 explains the design.
"""
