"""What the recipes of the documentation need: too large for the environment of all tests."""

import importlib
import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.servers.server import FOLDER

POM = Path(__file__).parent / "servers" / "spark_kafka" / "pom.xml"


def need(module: str) -> object:
    """Import a module of the extras docs and recipes; skip the test if it is not installed.

    `make test-recipes` has installed them: there a missing one is a failure.
    """
    if os.environ.get("RECIPES_REQUIRED"):
        return importlib.import_module(module)
    return pytest.importorskip(module)


def kafka_arguments() -> str:
    """Return PYSPARK_SUBMIT_ARGS for a Spark that reads Kafka; skip the test if it cannot.

    What --packages would download is in .servers/spark_kafka, for one version of Spark.
    """
    match = re.search(r"<artifactId>spark-sql-kafka.*\s+<version>(.*)</version>", POM.read_text())
    assert match is not None
    installed = version("pyspark")
    if installed != match[1] and not os.environ.get("RECIPES_REQUIRED"):
        pytest.skip(f"Spark's package for Kafka is for {match[1]}: run `make test-recipes`")
    jars = sorted(map(str, (FOLDER / "spark_kafka").resolve().glob("*.jar")))
    assert installed == match[1], "Makefile and pom.xml name different versions of Spark"
    assert jars, "Spark's package for Kafka is not installed: run `make servers`"
    return f"--jars {','.join(jars)} pyspark-shell"
