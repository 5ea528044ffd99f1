"""Generates lance_stream/_proto from protos/: `make protos`.

    python scripts/generate_protos.py [FOLDER]

The compiler lets a module refuse a protobuf that is older than the compiler. Spark's platforms
have protobuf 4.25, 5.29 and newer, and the modules need nothing that these lack; so the refusal is
left out. `make test-floors` proves it with the oldest, and all other tests with newer ones.
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = "lance_stream/_proto"
REFUSAL = re.compile(
    r"^from google\.protobuf import runtime_version as _runtime_version\n"
    r"|^_runtime_version\.ValidateProtobufRuntimeVersion\([^)]*\)\n",
    re.MULTILINE,
)


def generate(folder: Path) -> None:
    """Write the modules and their stubs into a folder, below the package's own path."""
    protos = sorted(path.name for path in (ROOT / "protos").glob("*.proto"))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"-I{PACKAGE}={ROOT / 'protos'}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            *(f"{PACKAGE}/{name}" for name in protos),
        ],
        check=True,
        cwd=folder,
    )
    for path in (folder / PACKAGE).glob("*_pb2.py"):
        text, count = REFUSAL.subn("", path.read_text())
        if count != 2:
            raise SystemExit(f"{path.name}: expected a check of protobuf's version, found {count}")
        path.write_text(text)


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT)
