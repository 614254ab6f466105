"""Bookies and rows whose calls wait at gates, so that a test can choose their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from tests.providers.ledger.model_bookies import ModelBookies

from millstream.providers.ledger.protocol.errors import BookieAway
from millstream.providers.ledger.protocol.found import Found
from millstream.runtime import Etag, MemoryStateStore


class Gates:
    """Named gates. All gates are open until one is shut."""

    def __init__(self) -> None:
        self._shut: dict[str, asyncio.Event] = {}
        self._lost: set[str] = set()
        self.waiting: list[str] = []  # in the order of arrival

    def shut(self, *names: str) -> None:
        for name in names:
            self._shut[name] = asyncio.Event()

    def open(self, *names: str) -> None:
        """Let the waiting calls continue."""
        for name in names:
            self._shut.pop(name).set()

    def pass_others(self, name: str) -> Callable[[], None]:
        """Let new calls pass. Calls that already wait continue when the result is called."""
        return self._shut.pop(name).set

    def lose(self, *names: str) -> None:
        """Lose all calls at these gates."""
        self._lost.update(names)

    def find(self, *names: str) -> None:
        """Deliver calls at these gates again."""
        self._lost.difference_update(names)

    async def passed(self, name: str) -> None:
        if name in self._lost:
            raise BookieAway(f"{name} was lost")
        if name in self._shut:
            self.waiting.append(name)
            await self._shut[name].wait()
            self.waiting.remove(name)

    async def until(self, *names: str) -> None:
        """Wait until a call waits at each of these gates."""
        while not set(names) <= set(self.waiting):
            await asyncio.sleep(0.001)


class GatedBookies(ModelBookies):
    """Bookies with the gates `add b0`, `fence b0`, `read b0`, where calls wait before the bookie
    acts.
    """

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
    """A store with the gate `write` before each write of a row. `writes` counts the written
    rows.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gates = Gates()
        self.writes = 0

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        await self.gates.passed("write")
        self.writes += 1
        return await super().write(key, data, expect, fence)
