"""The limit on the rate of copies. Pure.

Owns: `CopyRate`. Invariant: all callers together copy at most so many bytes per second, give or
take one page.
"""

from __future__ import annotations

__all__ = ["CopyRate"]


class CopyRate:
    """Bytes per second, over all callers."""

    __slots__ = ("_bytes_per_s", "_free_s")

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0

    def wait_s(self, now_s: float, size_bytes: int) -> float:
        """Return the seconds until so many bytes may be sent on."""
        start_s = max(now_s, self._free_s)
        self._free_s = start_s + size_bytes / self._bytes_per_s
        return start_s - now_s
