"""A state store with faults: some rows are unavailable, writes are refused, answers are lost.

Simulated silos reach the store over the network, through its methods that do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.runtime import Conflict, Etag, MemoryStateStore, Row, StorageUnavailable


class TroubledStore(MemoryStateStore):
    """A store whose faults the test chooses, for rows whose keys contain a text."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        """Neither reads nor writes work."""
        self.read_only: set[str] = set()
        self.conflicting: dict[str, int] = {}
        """The remaining conflicts of writes."""
        self.losing: dict[str, int] = {}
        """The remaining writes whose answers are lost."""
        self.written: list[tuple[float, str]] = []

    def get(self, key: str) -> Row | None:
        self._refuse(key, self.away)
        return super().get(key)

    def range(self, prefix: str, after: str, limit: int) -> Sequence[tuple[str, Row]]:
        self._refuse(prefix, self.away)
        found = super().range(prefix, after, limit)
        for key, _ in found:
            self._refuse(key, self.away)
        return found

    def put(self, key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        self._refuse(key, self.away | self.read_only)
        if self._one_of(key, self.conflicting):
            raise Conflict(f"{key}: somebody else was here")
        etag = super().put(key, data, expect, fence)
        self.written.append((asyncio.get_running_loop().time(), key))
        if self._one_of(key, self.losing):
            raise StorageUnavailable(f"{key}: the answer was lost")
        return etag

    def _refuse(self, key: str, texts: set[str]) -> None:
        if any(text in key for text in texts):
            raise StorageUnavailable(f"{key}: the store is away")

    def _one_of(self, key: str, texts: dict[str, int]) -> bool:
        for text, count in texts.items():
            if count and text in key:
                texts[text] = count - 1
                return True
        return False

    def writes(self, text: str) -> list[float]:
        """Return the times at which rows whose keys contain the text were written."""
        return [at_s for at_s, key in self.written if text in key]
