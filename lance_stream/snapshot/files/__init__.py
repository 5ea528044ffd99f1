"""The files of one table: opened when they are needed, and kept open for a while.

Read `open_files` first; `hidden_columns` are row ids and versions in data files, `missing_files`
explains a file that no longer exists.
"""
