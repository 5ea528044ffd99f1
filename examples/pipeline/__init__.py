"""From a database to search: PostgreSQL, Debezium, Kafka, Spark, a Lance table, a page.

Each part is a process of its own, started and watched over by `supervisor`; how the parts find each
other is in `settings`. docs/get-started/database-to-search.md describes the whole.
"""
