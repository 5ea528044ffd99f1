"""Work for Spark's tasks: what a task is given, and the jobs that run it.

Start with `work_units` (how work is divided) and `task_input` (what one task reads); `eager_rows`
spares small work a task. `arrow_jobs` runs a function over a DataFrame's Arrow batches; the other
modules are jobs that compact, clean up, derive columns, and look up keys.
"""
