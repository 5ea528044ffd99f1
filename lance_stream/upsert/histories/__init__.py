"""Histories of keys (SCD 2): events become rows with a start and an end.

Read `rebuild_history` first (from events to rows, a pure function of numbers), then `merge_history`
(applies it to the rows of a table) and `shadowed_events` (events that are not visible in any row).
"""
