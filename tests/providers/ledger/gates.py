"""Bookies and rows whose calls wait at gates, so that a test has them come in one order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.providers.ledger.model_bookies import ModelBookies

from millstream.providers.ledger.protocol.errors import BookieAway
from millstream.providers.ledger.protocol.found import Found
from millstream.runtime import Etag, MemoryStateStore


class Gates:
    """Named gates; all are open until one is shut."""

    def __init__(self) -> None:
        self._shut: dict[str, asyncio.Event] = {}
        self._lost: set[str] = set()
        self.waiting: list[str] = []  # in the order in which they came

    def shut(self, *names: str) -> None:
        for name in names:
            self._shut[name] = asyncio.Event()

    def open(self, *names: str) -> None:
        """Whoever waits goes on."""
        for name in names:
            self._shut.pop(name).set()

    def pass_others(self, name: str) -> Callable[[], None]:
        """Whoever comes from now on passes; whoever waits does so until the result is called."""
        return self._shut.pop(name).set

    def lose(self, *names: str) -> None:
        """What comes here never arrives."""
        self._lost.update(names)

    def find(self, *names: str) -> None:
        """What comes here arrives again."""
        self._lost.difference_update(names)

    async def passed(self, name: str) -> None:
        if name in self._lost:
            raise BookieAway(f"{name} was lost")
        if name in self._shut:
            self.waiting.append(name)
            await self._shut[name].wait()
            self.waiting.remove(name)

    async def until(self, *names: str) -> None:
        """Until somebody waits at each of these."""
        while not set(names) <= set(self.waiting):
            await asyncio.sleep(0.001)


class GatedBookies(ModelBookies):
    """`add b0`, `fence b0`, `read b0`: gates before a bookie acts."""

    def __init__(self, count: int, seed: int = 0) -> None:
        super().__init__(count, seed)
        self.gates = Gates()

    async def add(self, bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        await self.gates.passed(f"add {bookie}")
        await super().add(bookie, term, entries)

    async def fence(self, bookie: str, ledger: int, term: int, /) -> int:
        await self.gates.passed(f"fence {bookie}")
        return await super().fence(bookie, ledger, term)

    async def read(
        self, bookie: str, ledger: int, first: int, entries_max: int, bytes_max: int, term: int, /
    ) -> Found:
        await self.gates.passed(f"read {bookie}")
        return await super().read(bookie, ledger, first, entries_max, bytes_max, term)


class GatedStore(MemoryStateStore):
    """`write`: a gate before a row is written; `writes`: how many were."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = Gates()
        self.writes = 0

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        await self.gates.passed("write")
        self.writes += 1
        return await super().write(key, data, expect, fence)
