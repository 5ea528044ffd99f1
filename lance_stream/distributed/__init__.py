"""Reads that are divided into tasks for the workers of another engine: Spark, Ray or Daft.

    dividing    work units to tasks: small ones combined, large ones split
    reads       the rows of a version, or the changes of an interval, as picklable tasks

Spark's tasks are made of the same units (`spark.jobs.work_units`). Ray and Daft get theirs from
`reads`.
"""
