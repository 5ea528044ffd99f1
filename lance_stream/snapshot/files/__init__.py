"""The files of a table: opened on first use, and cached.

Read `open_files` first; `hidden_columns` are row ids and versions in data files, `missing_files`
explains a file that no longer exists.
"""
