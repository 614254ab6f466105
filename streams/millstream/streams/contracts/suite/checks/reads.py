"""Reading: order, limits, waiting, and other calls during a read."""

from __future__ import annotations

import asyncio
import itertools

from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.message import OutMessage, QueueMessage
from millstream.streams.contracts.suite.bench import (
    BYTES_MAX,
    EVENTS_MAX,
    LONG_S,
    QUIET_S,
    SOON_S,
    AdapterBench,
    cancel_read,
    texts,
    wait_ended,
)
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedReceiver
from millstream.streams.contracts.suite.verdict import expect
from millstream.streams.contracts.token import Token

__all__ = ["reading"]

reading = CheckList()
GRACE_S = 1.0  # for a provider's own work, beyond a wait
SHORT_S = 0.04
CANCEL_TURNS = 12  # reads are cancelled after 0 to this many iterations of the loop


@reading.check(Capability.ORDERED, generated=True)
async def messages_are_read_in_order_with_rising_tokens(bench: AdapterBench) -> None:
    """Messages arrive in the order of acceptance, and their tokens rise."""
    wanted = await bench.publish(*map(str, range(100)))
    found = await bench.collect(await bench.begin(), 100)
    bench.same(found, wanted)
    for a, b in itertools.pairwise(message.token for message in found):
        expect(a < b, f"a token above {a}", b)


@reading.check(Capability.ORDERED)
async def tokens_rise_from_read_to_read(bench: AdapterBench) -> None:
    """A message that is stored and read later has a higher token, after any number of reads."""
    receiver, last = await bench.begin(), None
    for number in range(5):
        wanted = await bench.publish(f"a{number}", f"b{number}")
        found = await bench.collect(receiver, 2)
        bench.same(found, wanted)
        if last is not None:
            expect(last < found[0].token, f"a token above {last}", found[0].token)
        last = found[-1].token


@reading.check()
async def a_message_is_read_once(bench: AdapterBench) -> None:
    """One receiver returns a message once, unless it was released or its lease ran out."""
    receiver, wanted = await bench.begin(), list[str]()
    found = list[QueueMessage]()
    for number in range(5):
        wanted += await bench.publish(str(number))
        found += await bench.everything(receiver, 1)
    bench.same(found, wanted)


@reading.check()
async def an_empty_queue_reads_as_nothing(bench: AdapterBench) -> None:
    """A read of an empty queue returns [] within `wait_s` and its own work; with `wait_s` 0 at
    once."""
    receiver, loop = await bench.begin(), asyncio.get_running_loop()
    for wait_s in (0.0, SHORT_S):
        begin_s = loop.time()
        found = await receiver.read(EVENTS_MAX, BYTES_MAX, wait_s)
        took_s = loop.time() - begin_s
        expect(not found, "no messages of an empty queue", texts(found))
        is_kept = took_s < wait_s + GRACE_S
        wanted = f"an answer within wait_s={wait_s:g} s"
        expect(is_kept, wanted, f"an answer after {took_s:.3f} s")


@reading.check(Capability.WAKEUP)
async def a_read_that_finds_nothing_has_waited(bench: AdapterBench) -> None:
    """With WAKEUP, a read returns [] only when `wait_s` is over; otherwise the agent would spin."""
    receiver, loop = await bench.begin(), asyncio.get_running_loop()
    begin_s = loop.time()
    await receiver.read(EVENTS_MAX, BYTES_MAX, SHORT_S)
    took_s = loop.time() - begin_s
    wanted = f"an answer after about {SHORT_S} s"
    expect(took_s > SHORT_S / 2, wanted, f"an answer after {took_s:.3f} s")


@reading.check(Capability.WAKEUP)
async def a_read_that_waits_is_woken(bench: AdapterBench) -> None:
    """With WAKEUP, a read returns as soon as a message is there, from any silo."""
    receiver = await bench.begin()
    for text, silo in (("here", bench.adapter), ("there", await bench.another_silo())):
        waiting = bench.waiting(receiver)
        await asyncio.sleep(0.005)
        await silo.enqueue(bench.queue, [bench.message(text)])
        await wait_ended(waiting, f"a read that waits {LONG_S:g} s returns")
        expect(texts(waiting.result()) == [text], text, texts(waiting.result()))


@reading.check()
async def max_events_counts_events(bench: AdapterBench) -> None:
    """A read returns at most `max_events` items, not messages; at least one message, and none is
    lost."""
    await bench.adapter.enqueue(bench.queue, threes(bench, 6))
    receiver = await bench.begin()
    found = list[QueueMessage]()
    for events_max, most in ((7, 2), (1, 1), (3, 1), (100, 6)):
        more = await receiver.read(events_max, BYTES_MAX, QUIET_S)
        limit = f"at most {most} messages of 3 items with max_events={events_max}"
        expect(0 < len(more) <= most, f"at least one message, and {limit}", len(more))
        found += more
    found += await bench.collect(receiver, 6 - len(found))
    bench.same(found, [f"{n}{letter}" for n in range(6) for letter in "abc"])


def threes(bench: AdapterBench, count: int) -> list[OutMessage]:
    """Messages of three items."""
    return [
        OutMessage(bench.next_stream(), [f"{number}{letter}".encode() for letter in "abc"])
        for number in range(count)
    ]


@reading.check(generated=True)
async def max_events_bounds_single_events(bench: AdapterBench) -> None:
    """A read returns at most `max_events`, and the next read continues after them."""
    wanted = await bench.publish(*map(str, range(10)))
    receiver = await bench.begin()
    found = list[QueueMessage]()
    while len(found) < 9:
        more = await receiver.read(3, BYTES_MAX, QUIET_S)
        expect(0 < len(more) <= 3, "1 to 3 messages with max_events=3", len(more))
        found += more
    if bench.is_ordered:
        expect(texts(found) == wanted[: len(found)], str(wanted), texts(found))


@reading.check()
async def max_bytes_bounds_a_read(bench: AdapterBench) -> None:
    """A read returns at most `max_bytes` of items, but at least one message of any size."""
    wanted = await bench.publish(*["x" * 100] * 6)
    receiver = await bench.begin()
    sizes = list[int]()
    while sum(sizes) < 600:
        bytes_max = 250 if len(sizes) < 2 else 1
        found = await receiver.read(EVENTS_MAX, bytes_max, QUIET_S)
        most = max(1, bytes_max // 100)
        is_so = 1 <= len(found) <= most
        expect(is_so, f"1 to {most} messages of 100 B with max_bytes={bytes_max}", len(found))
        sizes += [len(message.items[0]) for message in found]
    expect(len(sizes) == len(wanted), "6 messages", len(sizes))


@reading.check()
async def calls_go_beside_a_read_that_waits(bench: AdapterBench) -> None:
    """`ack`, `release` and `extend` are answered while a read waits, and do not disturb it."""
    await bench.publish("a", "b")
    receiver, loop = await bench.begin(), asyncio.get_running_loop()
    found = await bench.collect(receiver, 2)
    waiting = bench.waiting(receiver, LONG_S if bench.has(Capability.WAKEUP) else SHORT_S)
    await asyncio.sleep(0.005)
    begin_s = loop.time()
    await beside(bench, receiver, [message.token for message in found])
    took_s = loop.time() - begin_s
    expect(took_s < SOON_S, f"answers within {SOON_S:g} s", f"answers within {took_s:.3f} s")
    await bench.publish("c")
    await wait_ended(waiting, "a read that runs beside other calls ends")
    last = waiting.result() or await bench.collect(receiver, 1)
    expect(texts(last) == ["c"], "c", texts(last))


async def beside(bench: AdapterBench, receiver: GuardedReceiver, tokens: list[Token]) -> None:
    """Make every call that is allowed while a read waits."""
    if bench.has(Capability.LEASED):
        await receiver.extend(tokens, LONG_S)
    last = tokens[-1] if bench.is_ordered else None
    await receiver.ack(last, () if bench.is_ordered else tokens)
    if bench.has(Capability.ITEM_ACK):
        await receiver.release(tokens, 0.0, False)


@reading.check()
async def a_cancelled_read_ends_and_nothing_is_lost(bench: AdapterBench) -> None:
    """A cancelled read ends, and the next receiver of the same epoch reads its messages."""
    position: Token | None = None
    for turns in range(CANCEL_TURNS):
        wanted = await bench.publish(f"a{turns}", f"b{turns}")
        receiver = await bench.begin(1, position)
        await cancel_read(receiver, turns)
        await receiver.aclose()
        receiver = await bench.begin(1, position)
        found = await bench.collect(receiver, 2)
        bench.same(found, wanted)
        position = await bench.acknowledge(receiver, found)
        await receiver.aclose()
    await cancel_read(await bench.begin(1, position), 3)


@reading.check()
async def a_read_cancelled_while_it_waits_loses_nothing(bench: AdapterBench) -> None:
    """If a waiting read is cancelled while a message is accepted, the next receiver reads the
    message."""
    position: Token | None = None
    for turns in range(CANCEL_TURNS):
        receiver = await bench.begin(1, position)
        sending = asyncio.ensure_future(bench.publish(f"a{turns}"))
        await cancel_read(receiver, turns)
        await sending
        await receiver.aclose()
        receiver = await bench.begin(1, position)
        found = await bench.collect(receiver, 1)
        bench.same(found, [f"a{turns}"])
        position = await bench.acknowledge(receiver, found)
        await receiver.aclose()
