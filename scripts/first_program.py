"""Prints the first program of a document, to run it: README.md."""

import re
import sys
from pathlib import Path

FIRST = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)

found = FIRST.search(Path(sys.argv[1]).read_text(encoding="utf-8"))
if found is None:
    sys.exit(f"{sys.argv[1]} has no block of Python")
print(found[1], end="")
