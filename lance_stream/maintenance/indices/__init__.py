"""Indices for searches: how many rows each covers, and bringing them up to date.

Start with `coverage`; `freshen` brings indices up to date, `background` does so beside a stream.
The reference makes the files of indices (`building`), our committer the versions.
"""
