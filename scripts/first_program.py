"""Prints the first program of a document, to run it: README.md."""

import re
import sys
from pathlib import Path

FIRST = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

match = FIRST.search(Path(sys.argv[1]).read_text(encoding="utf-8"))
if match is None:
    sys.exit(f"{sys.argv[1]} has no block of Python")
print(match[1], end="")
