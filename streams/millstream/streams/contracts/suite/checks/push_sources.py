"""Sources that push: a paused source pushes nothing, and a pause loses and repeats nothing."""

from __future__ import annotations

import asyncio

from millstream.streams.contracts.push import PushReceiver
from millstream.streams.contracts.queue import QueueReceiver
from millstream.streams.contracts.suite.bench import (
    BYTES_MAX,
    POLL_S,
    QUIET_S,
    SOON_S,
    AdapterBench,
    texts,
)
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedReceiver
from millstream.streams.contracts.suite.hooks import without_hook
from millstream.streams.contracts.suite.verdict import NotRun, expect

__all__ = ["pushing"]

pushing = CheckList()
STORED, MORE = 40, 5
NOT_PUSHED = "the receiver is not a `PushReceiver`"
EVENTS_FEW = 10  # the largest `events_max` of a narrow receiver


async def narrow_receiver(bench: AdapterBench) -> GuardedReceiver:
    """A started receiver that holds few messages. Raises NotRun."""
    make = bench.hooks.narrow
    if make is None:
        is_pushed = isinstance(bench.receiver().raw, PushReceiver)
        raise NotRun(without_hook("narrow") if is_pushed else NOT_PUSHED)
    return await bench.begin(silo=await bench.another_silo(make))


@pushing.check()
async def a_paused_source_pushes_nothing(bench: AdapterBench) -> None:
    """While the receiver is full, the source pushes no messages except those on their way."""
    await publish_numbers(bench, 0, STORED)
    receiver = await narrow_receiver(bench)
    raw = find_push_receiver(receiver.raw)
    expect(raw.events_max <= EVENTS_FEW, f"events_max of at most {EVENTS_FEW}", raw.events_max)
    await until_paused(raw)
    await asyncio.sleep(QUIET_S)  # for messages on their way
    held = raw.events_held
    await publish_numbers(bench, STORED, MORE)
    await asyncio.sleep(QUIET_S)
    expect(raw.events_held == held, f"{held} events held while paused", raw.events_held)
    expect(not raw.refused, "no push beyond twice the limit", f"{raw.refused} refused pushes")


def find_push_receiver(receiver: QueueReceiver) -> PushReceiver:
    """Return the receiver, which must be a `PushReceiver`. Otherwise raises NotRun, because the
    buffer of another receiver is not visible."""
    if isinstance(receiver, PushReceiver):
        return receiver
    raise NotRun(NOT_PUSHED)


async def until_paused(receiver: PushReceiver) -> None:
    loop = asyncio.get_running_loop()
    end_s = loop.time() + SOON_S
    while not receiver.is_paused:
        is_late = loop.time() > end_s
        wanted = f"{receiver.events_max} of {STORED} messages pushed, and then a pause"
        expect(not is_late, wanted, f"{receiver.events_held} events")
        await asyncio.sleep(POLL_S)


async def publish_numbers(bench: AdapterBench, first: int, count: int) -> None:
    await bench.publish(*(f"{number:02}" for number in range(first, first + count)))


@pushing.check()
async def pausing_loses_and_repeats_nothing(bench: AdapterBench) -> None:
    """A source that is paused and resumed many times delivers each message once."""
    await publish_numbers(bench, 0, STORED)
    receiver, came, position = await narrow_receiver(bench), list[str](), None
    while len(came) < STORED:
        found = await bench.some(receiver, 1 + len(came) % 3)
        position = await bench.acknowledge(receiver, found)
        came += texts(found)
    wanted = [f"{number:02}" for number in range(STORED)]
    expect(sorted(came) == wanted, f"each of {STORED} messages once", came)
    again = await receiver.read(STORED, BYTES_MAX, QUIET_S)
    expect(not again, "no further message", texts(again))
    await receiver.aclose()
    again = await (await bench.take_over(2, position)).read(STORED, BYTES_MAX, QUIET_S)
    expect(not again, "no message, because all were acknowledged", texts(again))
