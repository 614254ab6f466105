"""How fast entries are copied. Pure.

Owns: `CopyRate`. Invariant: over all that share it, not more than so many bytes a second, one page
more or less.
"""

from __future__ import annotations

__all__ = ["CopyRate"]


class CopyRate:
    """Bytes per second, over all who ask."""

    __slots__ = ("_bytes_per_s", "_free_s")

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def wait_s(self, now_s: float, size_bytes: int) -> float:
        """Seconds until so many bytes may go on."""
        start_s = max(now_s, self._free_s)
        self._free_s = start_s + size_bytes / self._bytes_per_s
        return start_s - now_s
