"""Finds a Java installation for Spark, and Python interpreters for its workers."""
