"""Follows a table without Spark: its rows, then its changes, in batches with positions.

Read `change_stream`, which implements `Dataset.follow`. `progress` stores a consumer's position.
"""
