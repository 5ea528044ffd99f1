"""From a plan to a version that everyone sees.

Read `version_log` first: the history of a table as commits see it, and `object_store_log`, which
keeps it in the table's own directory. `committer` is the loop of optimistic commit; `landed`
finds out what an unclear answer of the store meant; `rebasing` reads and writes the files that
folding another delete into ours takes; `retries` says how often and how soon to try again.

May import: table, file, storage, schema, byte_ranges, errors. Clock and chance come in as values.
"""
