"""Finds a Java installation that Spark can run on, or states how to get one.

    python -I lance_stream/machine/java.py          ends with 1 and states what is missing
    python -I lance_stream/machine/java.py --hint   states it in one line and ends with 0

As a program it runs before there is an environment: it uses the standard library only.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = 17

HOW_TO_GET_IT = f"""\
Spark needs Java {OLDEST} or newer. A runtime without windows (JRE, headless) is enough:
    Debian, Ubuntu   sudo apt-get install openjdk-17-jre-headless
    Fedora, RHEL     sudo dnf install java-17-openjdk-headless
    macOS            brew install openjdk@17
    Windows, others  https://adoptium.net
If it is installed already, set JAVA_HOME to its folder or put its `bin` on PATH."""


def find_java() -> tuple[str | None, str]:
    """Return the Java that Spark would start, and where it was searched.

    Spark uses JAVA_HOME's if that is set, and does not search further.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / ("java.exe" if os.name == "nt" else "java")
        return (str(java) if java.is_file() else None), f"in JAVA_HOME ({home})"
    return shutil.which("java"), "on PATH, and JAVA_HOME is not set"


def major_version(banner: str) -> int | None:
    """Return 17 for `openjdk version "17.0.15"`, 8 for `java version "1.8.0_401"`."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', banner)
    if not match:
        return None
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second else first


def find_problem(oldest: int = OLDEST) -> str | None:
    """Return what is wrong with this machine's Java in one line; None if nothing is.

    Args:
        oldest: The oldest sufficient version.
    """
    java, where = find_java()
    if java is None:
        return f"there is no Java {where}"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} cannot be run: {error}"
    banner = answer.stderr + answer.stdout
    major = major_version(banner)
    if answer.returncode != 0 or major is None:
        return f"{java} does not report its version: {banner.strip()[:200]!r}"
    if major < oldest:
        return f"{java} is Java {major}"
    return None


def main() -> int:
    """Report, and return the exit status."""
    problem = find_problem()
    if problem is None:
        return 0
    if "--hint" in sys.argv[1:]:
        print(f"Note: {problem}; the Spark targets need Java {OLDEST} or newer (`make java`).")
        return 0
    print(f"{problem[0].upper()}{problem[1:]}.\n{HOW_TO_GET_IT}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
