"""Runs dbt in a Spark session that knows lance-stream's table functions.

python run_dbt.py run
"""

import os
import sys

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark's workers use this Python, too

from dbt.cli.main import dbtRunner
from pyspark.sql import SparkSession

from lance_stream.spark import register


def main(arguments: list[str]) -> int:
    """Run a command of dbt; return the exit status."""
    register(SparkSession.builder.enableHiveSupport().getOrCreate())
    return int(not dbtRunner().invoke(arguments).success)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
