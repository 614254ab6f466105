"""Which Millstream this is: from the metadata of the installed package, read when it is asked for.

Owns: `version`. Invariant: importing this costs nothing; reading the metadata takes some 10 ms.
"""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """Like `0.1.0`; `unknown` where the source runs without being installed."""
    from importlib import metadata  # 13 ms, which most programs need not pay

    try:
        return metadata.version("millstream")
    except metadata.PackageNotFoundError:
        return "unknown"
