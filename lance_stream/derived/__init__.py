"""Derived columns: computed by a function from other columns, for rows whose inputs changed.

Start with `derivation`, the object that users hold. Each round selects `candidates` (rows that may
have changed, found from manifests alone), has workers run the function for those whose inputs did
change (`computing`), and commits values and `progress` together, to the `same_table` or to a
`separate_table`. `ownership` decides which columns a derivation may write.

Decision 050 has the reasons.
"""
