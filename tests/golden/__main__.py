"""`python -m tests.golden` writes the golden files again. Review the difference."""

from __future__ import annotations

from .forms import FILES, HERE

for file, lines in FILES.items():
    (HERE / file).write_text("\n".join(lines()) + "\n")
