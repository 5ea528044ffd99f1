"""Spark streams into Lance tables, exactly once, and their changes out again."""
