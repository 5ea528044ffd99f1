"""Where Spark's package for Kafka is: a module of its own, for parts that do not import Spark."""

JARS = "PIPELINE_SPARK_JARS"
"""The variable that names its folder."""
