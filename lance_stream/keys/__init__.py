"""Key lookup: finds the rows of a table that have the keys of a batch.

Read `batch_keys` first: the keys of a batch, and when two keys are equal. Then, in the order of a
lookup:

    key_matcher         chooses the fragments to search: their `bounds` may contain a key, and they
                        have changed since the last attempt
    workers             search them: first the `index`, then the key columns
    fragment_matches    reads the key columns of one fragment, and compares them with the batch
    stored_sequences    reads the sequences of the matching rows

`key_words` and `key_filter` make comparisons cheap; both must agree with `batch_keys` about equal
keys, and `bounds` about their order. `file_columns` finds the column of a file that stores a key
column. `comparing` does not compare keys, but the other values of rows: sequences, and rows that
may be unchanged.
"""
