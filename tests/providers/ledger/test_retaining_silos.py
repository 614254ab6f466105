"""A reader beside the queue's owner loses no message that it has not processed, whichever silo
dies.

The ledgers are small and kept only until they are acknowledged. The agents acknowledge all events
at once. The reader asks any silo, which may crash. It may read a batch twice, as a driver does that
crashed before it recorded the batch.
"""

from __future__ import annotations

import asyncio
from functools import partial

import msgspec
import pytest
from tests.providers.ledger.replicated import SMALL_BOOKIE, Silos

from millstream.providers.ledger import (
    LedgerOptions,
    LedgerTopicOptions,
    LedgerTopicSettings,
)
from millstream.runtime import MillstreamError, PublishUnknown
from millstream.runtime.testing import HostCrashed, Random, Simulation, make_random, run
from millstream.streams import EnqueueFailed, QueueReader, Token

PLAY_S = 40.0
FORGETFUL = LedgerOptions(
    topic=LedgerTopicOptions(
        tend_every_s=0.5, cursor_flush_s=0.1, entry_bytes_max=1 << 19, retention_s=0.0
    ),
    settings=LedgerTopicSettings(ledger_entries_max=3),
    bookie=SMALL_BOOKIE,
)


class Play:
    def __init__(self, silos: Silos, rng: Random) -> None:
        self.silos = silos
        self.rng = rng
        self.accepted: list[str] = []
        self.found: list[str] = []  # in completed batches
        self.position: Token | None = None
        self.batches = self.again = 0
        self.is_over = False

    def any_silo(self) -> str:
        cluster = self.silos.cluster
        return str(self.rng.choice([name for name in cluster.names if cluster.silo(name)]))

    async def publish(self) -> None:
        number = 0
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.0, 0.3))
            try:
                await self.silos.publish(self.any_silo(), f"{number}")
                self.accepted.append(f"{number}")
            except EnqueueFailed as failed:
                assert not isinstance(failed.cause, PublishUnknown) or failed.accepted == ()
            except (HostCrashed, IndexError, KeyError):  # no silo runs, or the silo is starting
                await asyncio.sleep(0.1)
            number += 1

    async def crash(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(2.0, 6.0))
            name = self.rng.choice(self.silos.cluster.names)
            self.silos.simulation.crash(name)
            await asyncio.sleep(self.rng.uniform(0.2, 4.0))
            self.silos.cluster.boot(name)
            await self.silos.cluster.until_active()

    async def retain(self) -> None:
        """Ask silos to retain the messages until one succeeds."""
        while True:
            try:
                name = self.any_silo()
                adapter, queue = self.silos.adapters[name], self.silos.queue
                await self.silos.on(name, partial(adapter.retain, queue, "r", self.position))
                return
            except (MillstreamError, HostCrashed, IndexError, KeyError):
                await asyncio.sleep(0.1)

    async def read(self) -> None:
        while not self.is_over:
            await asyncio.sleep(self.rng.uniform(0.0, 2.0))
            try:
                name = self.any_silo()
                reader = self.silos.adapters[name].reader(self.silos.queue)
                batch = await self.silos.on(name, partial(self.batch, reader))
            except (HostCrashed, IndexError, KeyError):
                continue
            if batch is None:
                continue
            self.batches += 1
            if self.rng.random() < 0.3:
                self.again += 1  # the reader crashed, and plans the batch again
                continue
            words, self.position = batch
            self.found += words
            await self.retain()

    async def batch(self, reader: QueueReader) -> tuple[list[str], Token] | None:
        """Read some pages from the reader's position. Raises CursorTooOld if messages are lost."""
        first, last = await reader.bounds()
        position, words = self.position or first, list[str]()
        for _ in range(self.rng.randrange(1, 5)):
            if position is None or last is None or position > last:
                break
            page = await reader.read_from(position, 7, 1 << 20, None)
            words += [msgspec.msgpack.decode(i) for one in page.messages for i in one.items]
            position = page.next
        await reader.aclose()
        return None if position is None else (words, position)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", range(1, 4))
def test_a_reader_loses_nothing_while_silos_die(seed: int) -> None:
    async def main(sim: Simulation) -> Play:
        async with Silos(sim, 3, options=FORGETFUL) as silos:
            play = Play(silos, make_random(seed, "retaining"))
            await play.retain()
            programs = [play.publish(), play.crash(), play.read()]
            tasks = [sim.loop.create_task(program) for program in programs]
            await asyncio.sleep(PLAY_S)
            play.is_over = True
            await asyncio.gather(*tasks)
            await silos.cluster.until_active()
            await asyncio.sleep(5.0)
            name = play.any_silo()
            while (batch := await silos.on(name, lambda: again(play, name))) and batch[0]:
                play.found += batch[0]
                play.position = batch[1]
            await play.retain()
            await asyncio.sleep(5.0)
            first, _ = await silos.adapters[name].reader(silos.queue).bounds()
            assert first is None or first.seq > len(play.accepted) - 10, "what is done is kept"
            return play

    async def again(play: Play, name: str) -> tuple[list[str], Token] | None:
        return await play.batch(play.silos.adapters[name].reader(play.silos.queue))

    play = run(main, seed).result
    accepted = set(play.accepted)
    assert [word for word in play.found if word in accepted] == play.accepted
    assert len(play.accepted) > 50 and play.batches > 10 and play.again
