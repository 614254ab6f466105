"""Names of source files as they are shown to other processes.

Owns: `source_name`. Invariants: a name does not tell where on a machine a program lies, so equal
programs in different directories send equal bytes; it is what `import` would find it by.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache

__all__ = ["source_name"]

NAMES_KEPT = 1024


@lru_cache(NAMES_KEPT)
def source_name(filename: str) -> str:
    """`shop/orders.py` for a file that is found from an entry of `sys.path`, else its last part.

    What is no path (`<string>`) stays as it is.
    """
    if not os.path.isabs(filename):
        return filename
    roots = (os.path.abspath(entry) + os.sep for entry in sys.path)
    longest = max((root for root in roots if filename.startswith(root)), key=len, default="")
    return filename.removeprefix(longest) if longest else os.path.basename(filename)
