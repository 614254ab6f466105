"""Opening and closing, and the declarations of a provider."""

from __future__ import annotations

import asyncio

from millstream.runtime import StreamError
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.queue import QueueReader, Seals
from millstream.streams.contracts.shapes import require_shape
from millstream.streams.contracts.suite.bench import AdapterBench, wait_ended
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.verdict import NotRun, expect

__all__ = ["life"]

life = CheckList()


@life.check(generated=True)
async def what_is_declared_is_there(bench: AdapterBench) -> None:
    """REWIND comes with `reader`, SEALED with `seal`."""
    if bench.has(Capability.REWIND):
        require_shape(bench.reader().raw, QueueReader, "the reader")
    if bench.has(Capability.SEALED):
        expect(isinstance(bench.adapter.raw, Seals), "an adapter with `seal`", bench.adapter.raw)


@life.check()
async def closing_a_receiver_ends_a_read_that_waits(bench: AdapterBench) -> None:
    """`aclose` of a receiver ends its waiting read, with any result."""
    receiver = await bench.begin()
    reading = bench.waiting(receiver)
    await asyncio.sleep(0.005)
    await receiver.aclose()
    await wait_ended(reading, "a read of a closed receiver ends")


@life.check(generated=True)
async def closing_twice_is_harmless(bench: AdapterBench) -> None:
    """`aclose` may be repeated, called before `start`, and called on receivers of a closed
    adapter."""
    receiver, unused = await bench.begin(), bench.receiver(1)
    for _ in range(2):
        await receiver.aclose()
        await unused.aclose()
    await bench.adapter.aclose()
    await bench.adapter.aclose()
    await receiver.aclose()


@life.check()
async def closing_one_silo_leaves_the_others_alone(bench: AdapterBench) -> None:
    """`aclose` of an adapter affects its own silo only."""
    other = await bench.another_silo()
    receiver = await bench.begin()
    await other.aclose()
    wanted = await bench.publish("a", "b")
    bench.same(await bench.collect(receiver, 2), wanted)


@life.check(generated=True)
async def a_receiver_does_nothing_before_start(bench: AdapterBench) -> None:
    """`receiver` alone takes no message, and fences no other receiver."""
    wanted = await bench.publish("a", "b")
    receiver = await bench.begin(epoch=1)
    unused = bench.receiver(epoch=2)
    found = await bench.collect(receiver, 2)
    await bench.acknowledge(receiver, found)
    bench.same(found, wanted)
    await unused.aclose()


@life.check(generated=True)
async def a_provider_without_messages_of_others_refuses_them(bench: AdapterBench) -> None:
    """If the provider refuses `enqueue`, it raises StreamError, and the queue does not change."""
    if not bench.is_read_only:
        raise NotRun("the provider accepts messages")
    wanted = await bench.publish("a", "b")
    try:
        came: object = await bench.adapter.enqueue(bench.queue, [bench.message("x")])
    except StreamError as error:
        came = error
    expect(isinstance(came, StreamError), "a StreamError", came)
    bench.same(await bench.collect(await bench.begin(), 2), wanted)
