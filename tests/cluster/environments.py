"""The Python environments of the machines: each its own, made from the wheel.

    .cluster/tools              uv
    .cluster/wheels             the wheel of this checkout, and PySpark's, which is built only once
    .cluster/worker-1/env       a virtual environment with these and what they need
    .cluster/packed             another one, and an archive of it

They hold the versions that the tests run on. An environment whose wheel and versions are the same
is left as it is; if only the wheel has changed, only the wheel is installed again.
"""

import hashlib
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.metadata import distributions, version
from pathlib import Path

ROOT = Path(__file__).parents[2]
MACHINES = ROOT / ".cluster"
_SECONDS = 900


def environment_of(
    machine: str, extras: str, packages: Sequence[str] = (), without: Sequence[str] = ()
) -> Path:
    """Make a machine's environment, and return its folder.

    Args:
        machine: The machine's name.
        extras: Of this package, for example "s3".
        packages: What is installed besides.
        without: What is removed again.
    """
    wheel, of_pyspark = _wheels()
    folder = MACHINES / machine / "env"
    versions = _versions()
    digest = _digest(sys.version, versions, extras, *packages, "without", *without)
    installed = _digest(digest, wheel.read_bytes())
    stamp = folder / ".installed"
    stamps = stamp.read_text().split() if stamp.exists() else []
    if stamps == [digest, installed]:
        return folder
    python = folder / "bin" / "python"
    if stamps[:1] == [digest]:
        _uv("pip", "install", "--python", python, "--no-deps", "--reinstall", wheel)
    else:
        constraints = MACHINES / "constraints.txt"
        constraints.write_text(versions)
        _uv("venv", "--clear", "--python", sys.executable, folder)
        what = (f"{wheel}[{extras}]", of_pyspark, *packages)
        _uv("pip", "install", "--python", python, "--constraint", constraints, *what)
    if without:
        _uv("pip", "uninstall", "--python", python, *without)
    stamp.write_text(f"{digest} {installed}")
    return folder


def packed_environment(extras: str) -> Path:
    """Make an archive of an environment without PySpark, which workers have; return its path."""
    folder = environment_of("packed", extras, ["venv-pack"], ["pyspark"])
    archive = MACHINES / "packed" / "environment.tar.gz"
    if not archive.exists() or archive.stat().st_mtime < (folder / ".installed").stat().st_mtime:
        pack = (folder / "bin" / "venv-pack", "--force", "--compress-level", 1)
        _run(*pack, "--prefix", folder, "--output", archive)
    return archive


@cache
def _wheels() -> tuple[Path, Path]:
    """Return the wheel of this checkout, and PySpark's: on PyPI there is only its source."""
    folder = MACHINES / "wheels"
    pyspark = version("pyspark")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    if not list(folder.glob(f"pyspark-{pyspark}-*.whl")):
        pip = (_tools() / "bin" / "pip", "wheel", "-q", "--no-deps", "-w", folder)
        _run(*pip, f"pyspark=={pyspark}")
    (ours,) = folder.glob("lance_stream-*.whl")
    (of_pyspark,) = folder.glob(f"pyspark-{pyspark}-*.whl")
    return ours, of_pyspark


def _versions() -> str:
    """Return what is installed here, a line each, as constraints."""
    versions = {
        distribution.metadata["Name"]: distribution.version for distribution in distributions()
    }
    ours = {
        name: versions[name] for name in versions if name and not re.fullmatch("lance.stream", name)
    }
    return "".join(f"{name}=={ours[name]}\n" for name in sorted(ours))


def _digest(*parts: str | bytes) -> str:
    read_together = hashlib.sha256()
    for part in parts:
        read_together.update(part if isinstance(part, bytes) else f"{part}\n".encode())
    return read_together.hexdigest()


def _uv(*arguments: object) -> None:
    _run(_tools() / "bin" / "uv", "-q", "--no-config", *arguments)


@cache
def _tools() -> Path:
    """Return an environment with uv."""
    tools = MACHINES / "tools"
    if not (tools / "bin" / "uv").exists():
        _run(sys.executable, "-m", "venv", tools)
        _run(tools / "bin" / "pip", "install", "-q", "uv>=0.8")
    return tools


def _run(*command: object) -> None:
    process = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_SECONDS,
        text=True,
        check=False,
    )
    assert process.returncode == 0, f"{' '.join(map(str, command))}:\n{process.stdout[-3000:]}"
