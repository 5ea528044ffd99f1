"""The files of a table: opened on first use, and cached.

Read `open_files` first. `hidden_columns` reads row ids and row versions in data files;
`missing_files` explains why a file no longer exists.
"""
