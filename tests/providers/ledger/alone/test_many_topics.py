"""Many topics of one program over a slow store."""

from __future__ import annotations

import asyncio

from tests.providers.ledger.alone.machine import Machine
from tests.providers.ledger.virtual import virtually

from millstream.runtime import Etag, MemoryStateStore

TOPICS = 300
WRITE_S = 0.05


class FarStore(MemoryStateStore):
    """A store whose writes take a while. Concurrent writes do not wait for each other."""

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        await asyncio.sleep(WRITE_S)
        return await super().write(key, data, expect, fence)


@virtually
async def test_many_topics_open_together_and_the_first_message_of_each_is_taken() -> None:
    machine = Machine()
    machine.store = FarStore()
    loop = asyncio.get_running_loop()
    async with machine.topics() as topics:
        begin_s = loop.time()
        made = await asyncio.gather(*(topics.topic(f"t-{one}") for one in range(TOPICS)))
        assert loop.time() - begin_s < 25 * WRITE_S
        begin_s = loop.time()
        places = await asyncio.gather(*(one.produce("k", b"first") for one in made))
        assert loop.time() - begin_s < 25 * WRITE_S
        assert all(place is not None and place.number == 1 for place in places)
