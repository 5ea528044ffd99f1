"""The hint for a machine without a Java for Spark."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lance_stream.machine import java as java_module

SCRIPT = Path(java_module.__file__)


def check(folder: Path, banner: str | None, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the script where JAVA_HOME holds a Java that says its version like this, or none."""
    if banner is not None:
        java = folder / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
        java.chmod(0o755)
    return subprocess.run(
        [sys.executable, "-I", SCRIPT, *arguments],
        env={**os.environ, "JAVA_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    "banner", ['openjdk version "17.0.15" 2025-04-15', 'openjdk version "21" 2023-09-19']
)
def test_recent_javas_pass_silently(tmp_path: Path, banner: str) -> None:
    """The check runs before every build and must say nothing where nothing is wrong."""
    answer = check(tmp_path, banner)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("banner", "message"),
    [
        (None, "no Java in JAVA_HOME"),
        ('java version "1.8.0_401"', "is Java 8"),
        ('openjdk version "11.0.2" 2019-01-15', "is Java 11"),
        ("not a Java", "does not report its version"),
    ],
)
def test_missing_programs_are_named_with_remedy(
    tmp_path: Path, banner: str | None, message: str
) -> None:
    """Spark's own message for an old Java is a stack trace."""
    answer = check(tmp_path, banner)
    assert answer.returncode == 1
    assert message in answer.stderr
    assert "apt-get install openjdk-17-jre-headless" in answer.stderr


def test_the_hint_is_one_harmless_line(tmp_path: Path) -> None:
    """The check must not fail targets that need no Spark."""
    answer = check(tmp_path, None, "--hint")
    assert answer.returncode == 0
    assert len(answer.stdout.splitlines()) == 1
    assert answer.stderr == ""
