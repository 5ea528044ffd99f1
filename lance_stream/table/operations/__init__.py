"""Operations: what a writer planned, as plain data. One class per operation of the format.

Read `rows`, `columns`, `moved_rows`, `versions` and `config` for the classes, `key_filters` for the
keys of an Update, `operation` for the table of all operations, and `transaction` for the message
with an operation.
"""
