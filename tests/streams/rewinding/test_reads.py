"""An outside program reads the content of queues, while silos crash, stop and restart."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import msgspec
import pytest
from tests.streams.staging.staged_world import StagedWorld, expected, in_cluster

from millstream.runtime import ConfigError, NotHosted, StreamError
from millstream.streams import Token
from millstream.streams.extending import QueueReads
from millstream.streams.rewinding.outside import Range
from millstream.streams.rewinding.target import Extent, Extents, ReadMessage

PATIENCE_S = 120.0


def reads(world: StagedWorld, namespace: str = "rows", provider: str = "default") -> QueueReads:
    return QueueReads(world.client.gateway, provider, namespace, patience_s=PATIENCE_S)


async def all_of(by: QueueReads, part: Range, events_max: int) -> list[ReadMessage]:
    """Return the messages in a range."""
    position, found = part.start, list[ReadMessage]()
    while position < part.end:
        page = await by.page(part, position, events_max=events_max)
        assert page.gone is None
        found += page.messages
        position = page.next
    return found


async def ranges_of(by: QueueReads) -> list[Range]:
    extents = (await by.extents()).queues
    return [
        Range(one.queue, one.first, Token(one.last.era, one.last.seq + 1))
        for one in extents
        if one.first is not None and one.last is not None
    ]


def items_of(messages: list[ReadMessage]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for one in messages:
        found[one.key] += [msgspec.msgpack.decode(item) for item in one.items]
    return dict(found)


async def read_all(world: StagedWorld, events_max: int) -> list[ReadMessage]:
    by = reads(world)
    parts = await ranges_of(by)
    found = await asyncio.gather(*(all_of(by, part, events_max) for part in parts))
    return [message for messages in found for message in messages]


@pytest.mark.parametrize("events_max", [10, 37, 10_000])
def test_everything_is_read_once_in_order_and_again_the_same(events_max: int) -> None:
    async def main(world: StagedWorld) -> None:
        for batch in range(2):
            await world.on_host(world.write_batch(batch))
        once = await world.on_host(read_all(world, events_max))
        assert items_of(once) == expected(2)
        assert await world.on_host(read_all(world, events_max)) == once
        assert not await world.on_host(all_of_namespace(world, "others"))

    in_cluster(main, can_rewind=True)


async def all_of_namespace(world: StagedWorld, namespace: str) -> list[ReadMessage]:
    by = reads(world, namespace)
    return [one for part in await ranges_of(by) for one in await all_of(by, part, 20)]


SLOW = [pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3)]


@pytest.mark.parametrize("seed", [1, *SLOW])
@pytest.mark.spare
def test_silos_that_die_meanwhile_lose_and_double_nothing(seed: int) -> None:
    async def main(world: StagedWorld) -> None:
        for batch in range(3):
            await world.on_host(world.write_batch(batch))
        going = asyncio.ensure_future(world.on_host(again(world, 40)))
        for name in world.cluster.names * 2:
            world.crash(name)
            await asyncio.sleep(20.0)
        assert await going == expected(3)

    in_cluster(main, seed=seed, can_rewind=True)


async def again(world: StagedWorld, times: int) -> dict[str, list[str]]:
    """Read all messages, slowly and often; the result must always be the same."""
    found = items_of(await read_all(world, 10))
    for _ in range(times):
        await asyncio.sleep(2.5)
        assert items_of(await read_all(world, 10)) == found
    return found


def test_a_range_that_goes_on_behind_what_is_there_is_waited_for() -> None:
    async def main(world: StagedWorld) -> None:
        await world.on_host(world.write_batch(0))
        by = reads(world)
        part = (await world.on_host(ranges_of(by)))[0]
        longer = Range(part.queue, part.end, Token(part.end.era, part.end.seq + 1))
        waiting = asyncio.ensure_future(world.on_host(by.page(longer, longer.start)))
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await world.on_host(world.write_batch(1))
        assert len((await waiting).messages) == 1
        with pytest.raises(StreamError, match="this silo knows queue .* only up to"):
            era = part.end.era
            far = Range(part.queue, Token(era, 10_000), Token(era, 10_001))
            await world.on_host(
                QueueReads(world.client.gateway, "default", "rows", patience_s=3.0).page(
                    far, far.start
                )
            )

    in_cluster(main, can_rewind=True)


def test_batches_of_so_many_bytes_have_everything_once() -> None:
    async def main(world: StagedWorld) -> None:
        for batch in range(3):
            await world.on_host(world.write_batch(batch))
        by = reads(world)
        parts = await world.on_host(ranges_of(by))
        at, ends = (
            {part.queue: getattr(part, name) for part in parts} for name in ("start", "end")
        )
        found, batches = list[ReadMessage](), 0
        while at != ends:
            stops = await world.on_host(by.within_bytes(at, ends, 100))
            assert all(at[queue] <= stop <= ends[queue] for queue, stop in stops.items())
            assert any(at[queue] < stop for queue, stop in stops.items())
            for queue, stop in stops.items():
                got = await world.on_host(all_of(by, Range(queue, at[queue], stop), 10_000))
                sizes = [sum(map(len, one.items)) for one in got]
                moved = sum(at[queue] < ends[queue] for queue in at)
                assert sum(sizes) <= 100 // moved or len(sizes) == 1
                found += got
            at, batches = stops, batches + 1
        whole = await world.on_host(read_all(world, 10_000))
        assert items_of(found) == items_of(whole) and batches > 3

    in_cluster(main, can_rewind=True)


def test_a_measure_waits_for_a_silo_that_knows_enough() -> None:
    async def main(world: StagedWorld) -> None:
        await world.on_host(world.write_batch(0))
        by = reads(world)
        part = (await world.on_host(ranges_of(by)))[0]
        behind = Token(part.end.era, part.end.seq + 1)
        waiting = asyncio.ensure_future(
            world.on_host(by.within_bytes({part.queue: part.end}, {part.queue: behind}, 9))
        )
        await asyncio.sleep(1.0)
        assert not waiting.done()
        await world.on_host(world.write_batch(1))
        assert await waiting == {part.queue: behind}

    in_cluster(main, can_rewind=True)


class Ends:
    """A gateway whose silos know one more message with each call."""

    def __init__(self, incarnation: str = "") -> None:
        self.incarnation, self.calls = incarnation, 0

    async def call(self, *question: object) -> Extents:
        self.calls += 1
        return Extents(
            self.incarnation,
            [Extent("q0", Token(0, 1), Token(0, self.calls)), Extent("q1", None, None)],
        )


def test_a_queue_that_seems_to_end_before_a_position_is_asked_for_again() -> None:
    async def main(world: StagedWorld) -> None:
        gateway: Any = Ends("own")
        reached = {"q0": Token(0, 5), "q1": Token(0, 3), "q2": Token(0, 3)}

        def by(incarnation: str, patience_s: float) -> QueueReads:
            return QueueReads(gateway, "p", "n", patience_s=patience_s, incarnation=incarnation)

        found = await by("own", 60.0).extents_from(reached)
        assert gateway.calls == 4 and found.queues[0].end == Token(0, 5)
        gateway.calls = 0
        assert await by("other", 60.0).extents_from(reached) and gateway.calls == 1
        gateway.calls = 0
        late = await by("", 0.0).extents_from(reached)  # then the answer is accepted
        assert gateway.calls == 1 and late.queues[0].end == Token(0, 2)

    in_cluster(main)


def test_a_time_is_found_in_every_queue() -> None:
    async def main(world: StagedWorld) -> None:
        by = reads(world)
        await world.on_host(world.write_batch(0))
        parts = await world.on_host(ranges_of(by))
        between_s = max(one.enqueued_s for one in await world.on_host(read_all(world, 100))) + 50.0
        await asyncio.sleep(100.0)
        assert set((await world.on_host(by.seek(between_s))).values()) == {None}
        await world.on_host(world.write_batch(1))
        found = await world.on_host(by.seek(between_s))
        assert {queue: token for queue, token in found.items() if token} == {
            part.queue: part.end for part in parts
        }

    in_cluster(main, can_rewind=True)


def test_a_provider_that_is_nowhere_and_one_that_cannot_be_read_again() -> None:
    async def main(world: StagedWorld) -> None:
        with pytest.raises(NotHosted):
            await world.on_host(reads(world, provider="nowhere").extents())
        with pytest.raises(ConfigError, match="it has no REWIND"):
            await world.on_host(reads(world).extents())

    in_cluster(main)
