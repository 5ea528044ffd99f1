"""Reads encoded messages without copying them, and without trusting their sizes.

Read `wire` (one message), `wire_columns` (many messages at once) and `arrow_messages` (Arrow
files).
"""
