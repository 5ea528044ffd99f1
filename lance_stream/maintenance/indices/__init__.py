"""Search indices: reports the rows that they cover, and brings them up to date.

Start with `coverage`. `update_indices` brings indices up to date; `background` does so while a
stream runs. pylance builds the index files (`building`), our committer publishes the versions.
"""
