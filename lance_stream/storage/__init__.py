"""Where bytes lie: files below one root, on a local disk or in memory.

Read `store` first: it says what a store promises. `locations` turns a URI into a store;
`local_store` and `fsspec_store` keep the promises, with `create_once` for the one that commits
stand on, and `coalesce` for fewer requests.

May import: byte_ranges, errors. It knows nothing of tables: what a path means is said elsewhere.
"""
