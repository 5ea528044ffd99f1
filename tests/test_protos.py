import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROTOS = sorted((ROOT / "protos").glob("*.proto"))


def test_generated_code_matches_the_protos(tmp_path: Path) -> None:
    """Committed code that was generated from other definitions would misread files."""
    pytest.importorskip("grpc_tools", reason="grpcio-tools has no wheel for this Python")
    script = ROOT / "scripts/generate_protos.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    fresh = {path.name: path.read_text() for path in (tmp_path / "lance_stream/_proto").iterdir()}
    committed = {
        path.name: path.read_text()
        for path in (ROOT / "lance_stream/_proto").iterdir()
        if "_pb2" in path.name and path.suffix in {".py", ".pyi"}
    }
    assert len(fresh) == 2 * len(PROTOS)
    assert committed == fresh, "run `make protos`"


def test_every_message_has_a_comment() -> None:
    """The definitions are our documentation of the format."""
    silent = []
    for proto in PROTOS:
        lines = proto.read_text().splitlines()
        for index, line in enumerate(lines):
            if line.startswith("message ") and not lines[index - 1].startswith("//"):
                silent.append(f"{proto.name}:{index + 1} {line}")
    assert [line for line in silent if not line.split()[2].startswith("Sparse")] == []
