"""The packages of a release: the wheel has the package alone, the sdist all that tests it."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import lance_stream
from scripts.package_readme import LINK, for_index
from tests.recipes import need

ROOT = Path(__file__).parent.parent.parent


def build(source: Path, folder: Path, *targets: str) -> list[Path]:
    options = [word for target in targets for word in ("-t", target)]
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", *options, "-d", str(folder)],
        cwd=source,
        check=True,
        capture_output=True,
    )
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return build(ROOT, tmp_path_factory.mktemp("built"), "wheel", "sdist")


@pytest.fixture(scope="module")
def wheel(built: list[Path]) -> Path:
    return next(path for path in built if path.suffix == ".whl")


@pytest.fixture(scope="module")
def unpacked(built: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(next(path for path in built if path.suffix == ".gz")) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    """Tests or scripts in a wheel would be installed at the top level of a user's environment."""
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"lance_stream", f"lance_stream-{lance_stream.__version__}.dist-info"}
    in_package = {name for name in names if name.startswith("lance_stream/")}
    ours = subprocess.run(
        ["git", "ls-files", "lance_stream"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    assert "lance_stream/py.typed" in in_package
    assert "lance_stream/_proto/table_pb2.py" in in_package
    assert not ours or {name for name in ours if (ROOT / name).is_file()} <= in_package
    assert [name for name in in_package if name.endswith((".pyc", ".proto"))] == []


def test_the_wheel_states_its_requirements(wheel: Path) -> None:
    """An optional library among the required ones would be installed for everybody."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (text for text in archive.namelist() if text.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        scripts = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    assert metadata["Name"] == "lance-stream"
    assert metadata["Version"] == lance_stream.__version__
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0"
    needed = metadata.get_all("Requires-Dist")
    always = {re.split("[<>=!;\\[ ]", value)[0] for value in needed if "extra ==" not in value}
    assert {"pyspark", "pyarrow", "numpy"} <= always
    assert not {"pylance", "pandas", "pytest"} & always
    assert "lance-stream = lance_stream.cli.start:main" in scripts


def test_readme_links_work_on_package_indices(wheel: Path) -> None:
    """Relative links lead nowhere there."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (text for text in archive.namelist() if text.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "](https://lance.org)" in metadata.get_payload()
    assert LINK.findall(metadata.get_payload()) == []
    assert len(LINK.findall((ROOT / "README.md").read_text())) > 20

    text = "[a](docs/a.md#b) ![c](c.png) [d](#d) [e](https://e.org)"
    assert for_index(text, None, "1.2.3") == "a c [d](#d) [e](https://e.org)"
    assert for_index(text, "https://host/us/it/", "1.2.3") == (
        "[a](https://host/us/it/blob/v1.2.3/docs/a.md#b) "
        "![c](https://host/us/it/raw/v1.2.3/c.png) [d](#d) [e](https://e.org)"
    )


def test_the_sdist_can_build_and_test(unpacked: Path) -> None:
    """Distributors build and test from the sdist alone."""
    for name in (
        "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md",
        "Makefile", "floors/3.5.txt", "floors.txt", "mkdocs.yml", "protos/table.proto",
        "tests/conftest.py",
        "docs/index.md", "examples/replicate_table.py", "scripts/install_servers.py",
        "checkpoints/README.md",
    ):  # fmt: skip
        assert (unpacked / name).is_file(), name
    unwanted = {".git", ".servers", "site", "dist", "data"}
    assert unwanted & {path.name for path in unpacked.iterdir()} == set()
    assert [path.name for path in (unpacked / "checkpoints").iterdir()] == ["README.md"]
    assert list(unpacked.rglob("*.pyc")) == []


def test_the_sdist_builds_the_same_wheel(wheel: Path, unpacked: Path, tmp_path: Path) -> None:
    """A file that is missing in the sdist would be missing for whoever builds from it."""
    (again,) = build(unpacked, tmp_path, "wheel")
    assert again.name == wheel.name
    assert contents(again) == contents(wheel)


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.recipes
def test_the_registry_accepts_the_packages(built: list[Path]) -> None:
    """A refusal at upload comes after the tag of the release is published."""
    need("twine")
    subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *map(str, built)], check=True
    )
