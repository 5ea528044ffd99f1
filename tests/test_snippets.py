"""Every Python block of the README and the documentation, run from top to bottom.

The blocks of a document run in one namespace, all documents in one working directory (a change of
directory would not reach Spark's processes), with the package as its wheel installs it: not from
this checkout. The program of the README runs by itself, as a user
would paste it into a file, in a process without the environment of the tests.
"""

import ast
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from lance_stream import create_dataset
from tests.java import JAVA_OPTIONS
from tests.recipes import need
from tests.servers.kafka_broker import KafkaBroker, KafkaConnect
from tests.servers.moto import KEY_ID, SECRET, MotoServer
from tests.servers.server import ask, free_port

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^( *```\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
WITHOUT_SPARK = [
    "docs/guides/upserts.md",
    "docs/guides/slowly-changing.md",
    "docs/guides/branches.md",
    "docs/operations/report.md",
    "docs/operations/troubleshooting.md",
]
DOCUMENTS = [
    "README.md",
    "docs/guides/sink.md",
    "docs/guides/feed.md",
    "docs/guides/sql.md",
    "docs/operations/stores.md",
    "docs/operations/maintenance.md",
    "docs/operations/metrics.md",
    "docs/guides/several-tables.md",
    "docs/guides/search.md",
    "docs/guides/derived-columns.md",
    "docs/guides/namespaces.md",
]
MORE_DOCUMENTS = [
    "docs/get-started/quickstart.md",
    "docs/reference/version-ranges.md",
    "docs/guides/retention.md",
]
RECIPES: dict[str, list[str]] = {
    "docs/guides/recipes/data-frames.md": [
        "polars",
        "duckdb",
        "duckdb_extensions",
        "pandas",
        "daft",
    ],
    "docs/guides/recipes/imports.md": ["deltalake"],
    "docs/guides/lancedb.md": ["lancedb"],
    "docs/guides/vectors.md": ["lancedb"],
    "docs/guides/recipes/pytorch.md": ["torch"],
    "docs/guides/recipes/ray.md": ["ray"],
    "docs/guides/recipes/daft.md": ["daft"],
    "docs/guides/recipes/connect.md": ["grpc_status", "zstandard"],
    "docs/guides/recipes/spark-3.5.md": [],
}
"""Recipes, and the modules that they need beside those of the tests."""
RECIPES_WITH_KAFKA = ["docs/guides/recipes/kafka.md", "docs/guides/recipes/debezium.md"]
ALL_DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]

RUNNER = """
import json, sys
documents, wheel = json.loads(sys.argv[1]), sys.argv[2]
import lance_stream
assert lance_stream.__file__.startswith(wheel), lance_stream.__file__
for name, blocks in documents.items():
    names = {"__name__": "__main__"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"{name}, block {number}", "exec"), names)
    print(f"ran {len(blocks)} of {name}")
    if "spark" in names and "spark.stop()" not in blocks[-1]:
        for query in names["spark"].streams.active:
            query.stop()
"""


def blocks_of(document: str) -> list[str]:
    return BLOCK.findall((ROOT / document).read_text())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (packed,) = folder.glob("*.whl")
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def environment(wheel: Path, **more: str) -> dict[str, str]:
    """Of a user's shell, in which the environment of the package is not activated."""
    # Java's options change what a program costs, not what it does.
    names = ("HOME", "JAVA_HOME", "LANG", "LD_LIBRARY_PATH", *JAVA_OPTIONS)
    shell = {name: os.environ[name] for name in names if name in os.environ}
    return {
        **shell,
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "PYTHONPATH": str(wheel),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **more,
    }


def test_every_document_with_python_is_run() -> None:
    """A new page with code must be added to one of the lists, or nobody would notice its
    mistakes.
    """
    with_python = {
        str(all_document.relative_to(ROOT))
        for all_document in ALL_DOCUMENTS
        if BLOCK.search(all_document.read_text())
    }
    assert with_python == {
        *WITHOUT_SPARK,
        *DOCUMENTS,
        *MORE_DOCUMENTS,
        *RECIPES,
        *RECIPES_WITH_KAFKA,
    }


def test_no_python_escapes_the_tests() -> None:
    """A block that is indented, or not marked as Python, would not be run.

    Except in pipelines.md, whose blocks `spark-pipelines` runs.
    """
    for document in ALL_DOCUMENTS:
        for mark, block in ANY_BLOCK.findall(document.read_text()):
            is_python = re.search(r"^ *(from [\w.]+ )?import \w", block, re.MULTILINE) is not None
            marks = ["```python", "```console"]
            if document.name == "pipelines.md":
                marks.append("```py")
            assert not is_python or mark in marks, (document.name, block)


def test_documented_pipelines_are_their_example() -> None:
    """Users paste the page's blocks; tests/neighbours/test_pipelines.py runs the example."""
    page = (ROOT / "docs/guides/pipelines.md").read_text()
    example = ROOT / "examples" / "pipelines"
    blocks = re.findall(r"^```py\n(.*?)^```$", page, re.M | re.S)
    program = (example / "transformations" / "customers.py").read_text()
    assert _code_of("\n".join(blocks)) == _code_of(program)
    settings = re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S)
    lines = (example / "spark-pipeline.yml").read_text().splitlines()
    assert settings[0].split("\n") == [
        *(row for row in lines if row and row[0] != "#" and "  #" not in row),
        "",
    ]


def _code_of(program: str) -> str:
    """Return a program without its comments and docstrings."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef):
            node.body = [
                statement
                for statement in node.body
                if not (
                    isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
                )
            ]
    return ast.unparse(tree)


@pytest.mark.spark
@pytest.mark.essential
def test_first_program_prints_the_readme_output(tmp_path: Path, wheel: Path) -> None:
    """The readings depend on the clock, all else does not."""
    program = blocks_of("README.md")[0]
    (tmp_path / "first.py").write_text(program)
    process = subprocess.run(
        [sys.executable, "first.py"],
        cwd=tmp_path,
        env=environment(wheel),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    output = re.search(r"^```\n(\+-.*?)^```$", (ROOT / "README.md").read_text(), re.M | re.S)
    assert output is not None
    printed, expected = (_cells(text) for text in (process.stdout, output[1]))
    assert printed[0] == expected[0]  # the header
    assert [row[:4] for row in printed[1:]] == [row[:4] for row in expected[1:]]
    assert all(int(row[4]) % 2 == int(row[3]) for row in printed[1:])


def _cells(table: str) -> list[list[str]]:
    """Return the cells of a table that Spark has printed, without rules and other lines."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


@pytest.mark.spark
@pytest.mark.server("moto")
def test_documents_run_from_top_to_bottom(tmp_path: Path, wheel: Path, moto: MotoServer) -> None:
    """The bucket of the documents is on a local server, which the environment names."""
    documents = {name: blocks_of(name) for name in DOCUMENTS}
    assert sum(map(len, documents.values())) >= 15
    assert ask("PUT", f"{moto.endpoint}/our-bucket") == 200
    options = {
        "AWS_ENDPOINT_URL": moto.endpoint,
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "METRICS_PORT": str(free_port()),
    }
    create_dataset(
        "s3://our-bucket/tables/events",
        pa.table({"id": [1]}),
        storage_options={n.lower(): v for n, v in options.items() if n.startswith("AWS_")},
    )
    run_blocks(documents, wheel, tmp_path, **options)


def test_documents_without_spark_run(tmp_path: Path, wheel: Path) -> None:
    """These documents must work with the wheel alone."""
    run_blocks({name: blocks_of(name) for name in WITHOUT_SPARK}, wheel, tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
def test_longer_documents_run_as_well(tmp_path: Path, wheel: Path) -> None:
    """These blocks are slower, and still the first thing that users copy."""
    run_blocks({name: blocks_of(name) for name in MORE_DOCUMENTS}, wheel, tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.recipes
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_run_as_documented(name: str, tmp_path: Path, wheel: Path) -> None:
    """Recipes use optional libraries, whose interfaces change."""
    for module in RECIPES[name]:
        need(module)
    run_blocks({name: blocks_of(name)}, wheel, tmp_path)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.recipes
@pytest.mark.parametrize("name", RECIPES_WITH_KAFKA)
def test_recipes_run_with_kafka(
    name: str,
    tmp_path: Path,
    wheel: Path,
    spark_for_kafka: str,
    kafka: KafkaBroker,
    kafka_connect: KafkaConnect,
    postgresql_url: str,
) -> None:
    """Recipes for Kafka depend on brokers and connectors of a certain version."""
    variables = {
        "KAFKA": kafka.address,
        "CONNECT": kafka_connect.endpoint,
        "DATABASE": postgresql_url,
        "PYSPARK_SUBMIT_ARGS": spark_for_kafka,
    }
    run_blocks({name: blocks_of(name)}, wheel, tmp_path, **variables)


def run_blocks(
    documents: dict[str, list[str]], wheel: Path, folder: Path, **variables: str
) -> None:
    """Run the blocks of documents in one process, in the order in which they stand there."""
    process = subprocess.run(
        [sys.executable, "-c", RUNNER, json.dumps(documents), str(wheel)],
        cwd=folder,
        env=environment(wheel, **variables),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    assert process.stdout.count("ran ") == len(documents)
