"""Key lookup: finds the rows of a table that have the keys of a batch.

Read `batch_keys` first: the keys of a batch, and when two keys are equal. Then, in the order of a
lookup:

    key_matcher         chooses the fragments to search: their `bounds` may contain a key, and they
                        have changed since the last attempt
    workers             search them: first the `index`, then the key columns
    fragment_matches    reads the key columns of one fragment, and compares them with the batch
    stored_sequences    reads the sequences of the matching rows

`file_columns` finds the column of a file that stores a key column. `value_comparison` does not
compare keys, but the other values of rows: sequences, and rows that may be unchanged.

Equal keys have equal words and hashes (`key_words`), on which these rely: `key_filter`, the index
and its stored runs, the ranges of large upserts (`upsert.large.staged_rows`), tombstones
(`upsert.tombstones`), and the inserted keys that transactions list (`upsert.update_planner`).
`bounds` rely on the order of keys. Updates count key columns as unchanged: equal keys are the same
value.
"""
