"""Spark jobs: the input of tasks, and the jobs that run them.

Start with `work_units` (how work is divided) and `task_input` (what one task reads); `eager_rows`
runs small work without a task. `arrow_jobs` runs a function over a DataFrame's Arrow batches; the
other modules are jobs that compact, clean up, derive columns, and look up keys.
"""
