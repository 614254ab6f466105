"""A state store that is troubled: away for some rows, refusing, losing answers, watched.

Simulated silos reach it over the network, by its methods that do not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.runtime import Conflict, Etag, MemoryStateStore, Row, StorageUnavailable


class TroubledStore(MemoryStateStore):
    """What it does with rows whose keys contain a text is up to the test."""

    def __init__(self) -> None:
        super().__init__()
        self.away: set[str] = set()
        """Neither read nor written."""
        self.read_only: set[str] = set()
        self.conflicting: dict[str, int] = {}
        """Writes that conflict yet."""
        self.losing: dict[str, int] = {}
        """Writes that are done and not answered yet."""
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
        """When rows whose key contains the text were written."""
        return [at_s for at_s, key in self.written if text in key]
