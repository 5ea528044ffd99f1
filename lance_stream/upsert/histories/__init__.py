"""Histories of keys (SCD 2): events become rows from one sequence to the next.

Read `rebuild_history` first (from events to rows, a function of numbers), then `merge_history`
(the rows of a table around it) and `shadowed_events` (events that no row shows).
"""
