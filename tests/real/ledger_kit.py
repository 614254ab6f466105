"""Shared code of the tests of silo processes over ledgers: publishers, and the check of their
results."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.real.ledger_silo import NUMBERS, Listener

from millstream.runtime import Client, MillstreamError
from millstream.runtime.run import SiloProcess

KEYS = [f"key-{number}" for number in range(6)]
ENDS_S = 60.0


def process(tmp_path: Path, name: str, **more: object) -> SiloProcess:
    """Make a silo process of `ledger_silo` that logs to `NAME.log`."""
    arguments = {"directory": str(tmp_path / "data"), "name": name, **more}
    return SiloProcess("tests.real.ledger_silo:make", arguments, tmp_path / f"{name}.log")


class Publisher:
    """Publishes rising numbers to every key until the test sets `is_over`."""

    def __init__(self, client: Client, behind: int = 0) -> None:
        self._client = client
        self._behind = behind
        self.accepted: dict[str, list[int]] = {key: [] for key in KEYS}
        self.unknown: dict[str, list[int]] = {key: [] for key in KEYS}
        self.is_over = False

    async def run(self) -> None:
        await asyncio.gather(*[self._run(key) for key in KEYS])

    async def _run(self, key: str) -> None:
        number = self._behind
        while not self.is_over:
            number += 1
            try:
                await self._client.stream(NUMBERS, key).publish(number)
                self.accepted[key].append(number)
            except MillstreamError:
                self.unknown[key].append(number)
            await asyncio.sleep(0.005)

    def count(self) -> int:
        return sum(map(len, self.accepted.values()))

    async def has(self, count: int) -> None:
        """Return when at least `count` numbers were accepted."""
        async with asyncio.timeout(ENDS_S):
            while self.count() < count:
                await asyncio.sleep(0.05)

    async def has_more(self, count: int) -> None:
        """Return when `count` more numbers were accepted for every key."""
        wanted = {key: len(numbers) + count for key, numbers in self.accepted.items()}
        async with asyncio.timeout(ENDS_S):
            while any(len(self.accepted[key]) < wanted[key] for key in KEYS):
                await asyncio.sleep(0.05)


async def check(client: Client, publishers: Sequence[Publisher]) -> None:
    """Check that the listeners heard every accepted number once and in order, and other numbers at
    most once.
    """
    for key in KEYS:
        accepted = [set(one.accepted[key]) for one in publishers]
        unknown = [set(one.unknown[key]) for one in publishers]
        async with asyncio.timeout(ENDS_S):
            while not set().union(*accepted) <= set(await client.grain(Listener, key).numbers()):
                await asyncio.sleep(0.1)
        heard = await client.grain(Listener, key).numbers()
        assert len(heard) == len(set(heard)), "nothing twice"
        assert set(heard) <= set().union(*accepted, *unknown)
        for one, mine in zip(publishers, accepted, strict=True):
            assert [number for number in heard if number in mine] == one.accepted[key], "in order"
