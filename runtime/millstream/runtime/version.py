"""The version of Millstream, read from the metadata of the installed package.

Importing this module costs nothing. Reading the metadata takes about 10 ms, so it happens on first
use.
"""

from __future__ import annotations

__all__ = ["version"]


def version() -> str:
    """Return the version, such as `0.1.0`; `unknown` if the source runs without being installed."""
    from importlib import metadata  # takes 13 ms; most programs do not ask for the version

    try:
        return metadata.version("millstream")
    except metadata.PackageNotFoundError:
        return "unknown"
