"""Follows a table without Spark: its rows, then its changes, in batches with positions.

Read `change_stream`, which `Dataset.follow` returns. `progress` stores a consumer's position.
"""
