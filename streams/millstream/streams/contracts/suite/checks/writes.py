"""Writing to queues: accepted messages are stored, in order, once, and no others."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

from msgspec.structs import replace

from millstream.runtime import EnqueueFailed, StreamError
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.message import OutMessage, ProducerMark, message_bytes
from millstream.streams.contracts.queue import LimitsMessages
from millstream.streams.contracts.suite.bench import AdapterBench, cancel_call, texts
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedAdapter
from millstream.streams.contracts.suite.verdict import ContractBroken, NotRun, expect
from millstream.streams.contracts.token import Token

__all__ = ["writing"]

writing = CheckList()
FILL_LISTS, FILL_SIZE = 40, 7
LARGEST_BYTES, LARGEST_ITEMS = 16 << 20, 10_000
CANCEL_TURNS = 10
DEDUP = Capability.DEDUP


@writing.check()
async def messages_are_read_as_they_were_enqueued(bench: AdapterBench) -> None:
    """Stream, items and headers are read as they were enqueued."""
    items = [b"one", b"", b"\x00\xff\n"]
    odd = bench.stream(3, namespace="n/ü")
    await bench.adapter.enqueue(bench.queue, [OutMessage(odd, items, {"x": "y\n", "ü": ""})])
    (found,) = await bench.collect(await bench.begin(), 1)
    came = (found.stream, [bytes(item) for item in found.items], dict(found.headers))
    wanted = (odd, items, {"x": "y\n", "ü": ""})
    expect(came == wanted, repr(wanted), came)
    expect(found.token.index == 0, "the token of the first item, index 0", found.token)


@writing.check()
async def a_list_is_stored_whole(bench: AdapterBench) -> None:
    """Every message of a list is stored, in order, for any mix of streams."""
    wanted = [str(number) for number in range(50)]
    messages = [bench.message(text, bench.stream(n % 3)) for n, text in enumerate(wanted)]
    await bench.adapter.enqueue(bench.queue, messages)
    bench.same(await bench.everything(await bench.begin(), 50), wanted)


@writing.check()
async def the_largest_message_is_stored(bench: AdapterBench) -> None:
    """An adapter with `LimitsMessages` stores a message of its largest size in bytes, and one of
    its largest number of items.

    Limits above 16 MiB, or 10,000 items, are not tested.
    """
    adapter = bench.adapter.raw
    if not isinstance(adapter, LimitsMessages):
        raise NotRun("the adapter does not implement `LimitsMessages`")
    most, wanted = adapter.message_limits, list[OutMessage]()
    head = OutMessage(bench.stream(), [b""], {"x": "ü"}, ProducerMark("p", 1))
    if most.bytes_max <= LARGEST_BYTES:
        wanted.append(replace(head, items=[b"x" * (most.bytes_max - message_bytes(head))]))
    if most.items_max <= LARGEST_ITEMS:
        items = [b"x"] * most.items_max
        wanted.append(replace(head, items=items, mark=ProducerMark("p", 2)))
    for message in wanted:
        await bench.adapter.enqueue(bench.queue, [message])
    found = await bench.everything(await bench.begin(), len(wanted))
    sizes = [(len(one.items), sum(map(len, one.items))) for one in wanted]
    came = [(len(one.items), sum(map(len, one.items))) for one in found]
    expect(sorted(came) == sorted(sizes), f"messages of these (items, bytes): {sizes}", came)


@writing.check(Capability.STABLE_TOKENS)
async def tokens_that_enqueue_tells_are_those_that_are_read(bench: AdapterBench) -> None:
    """A token that `enqueue` returns is the token of the message when it is read."""
    messages = [bench.message(str(number)) for number in range(5)]
    told = await bench.adapter.enqueue(bench.queue, messages)
    found = {
        text: m.token for m in await bench.collect(await bench.begin(), 5) for text in texts([m])
    }
    for number, token in enumerate(told):
        came = found[str(number)]
        expect(token in (None, came), f"the token {token} of message {number}", came)


@writing.check(generated=True)
async def queues_are_independent(bench: AdapterBench) -> None:
    """A message of one queue is not in another."""
    other, here = bench.second_queue(), await bench.publish("here")
    there = await bench.publish("there", queue=other)
    bench.same(await bench.collect(await bench.begin(queue=other), 1), there)
    bench.same(await bench.collect(await bench.begin(), 1), here)


@writing.check()
async def two_silos_may_enqueue_at_the_same_time(bench: AdapterBench) -> None:
    """Lists of two silos in one queue: none is lost or repeated, and each silo's order is kept."""
    silos = {"a": bench.adapter, "b": await bench.another_silo()}
    await asyncio.gather(*(send_lists(bench, silo, name) for name, silo in silos.items()))
    found = await bench.everything(await bench.begin(), 60)
    expect(len({m.token for m in found}) == 60, "60 different tokens", [m.token for m in found])
    for name in silos:
        mine = [text for text in texts(found) if text.startswith(name)]
        wanted = [f"{name}{number:02}" for number in range(30)]
        came = mine if bench.is_ordered else sorted(mine)
        expect(came == wanted, str(wanted), came)


async def send_lists(bench: AdapterBench, silo: GuardedAdapter, name: str) -> None:
    """Enqueue ten lists of three, one after the other."""
    for first in range(0, 30, 3):
        messages = [bench.message(f"{name}{first + at:02}") for at in range(3)]
        await silo.enqueue(bench.queue, messages)


@writing.check()
async def two_queues_may_be_enqueued_to_at_the_same_time(bench: AdapterBench) -> None:
    """The runtime may have one call under way for each queue, so an adapter can get several."""
    other = bench.second_queue()
    await asyncio.gather(
        *(bench.publish(*map(str, range(10)), queue=queue) for queue in (bench.queue, other))
    )
    for queue in (bench.queue, other):
        receiver = await bench.begin(queue=queue)
        bench.same(await bench.everything(receiver, 10), [str(number) for number in range(10)])


@writing.check()
async def a_full_queue_has_stored_a_prefix(bench: AdapterBench) -> None:
    """EnqueueFailed names the stored messages: the first ones of the list, and none after them.

    Needs a provider with room for fewer than 280 messages; a larger one refuses nothing.
    """
    stored, refused = await fill(bench)
    if not refused:
        raise NotRun(f"the provider has room for more than {len(stored)} messages")
    receiver = await bench.begin()
    found = await bench.everything(receiver, len(stored))
    bench.same(found, stored)
    position = await bench.acknowledge(receiver, found)
    await bench.adapter.enqueue(bench.queue, refused)
    await receiver.aclose()
    again = await bench.take_over(2, position)
    wanted = [bytes(message.items[0]).decode() for message in refused]
    bench.same(await bench.everything(again, len(wanted)), wanted)


async def fill(bench: AdapterBench) -> tuple[list[str], Sequence[OutMessage]]:
    """Enqueue lists until one is refused; returns the stored texts, and the rest of that list."""
    numbers, stored = itertools.count(), list[str]()
    for _ in range(FILL_LISTS):
        wanted = list(itertools.islice(numbers, FILL_SIZE))
        messages = bench.mark("p", *wanted)
        try:
            await bench.adapter.enqueue(bench.queue, messages)
        except StreamError as error:
            accepted = len(error.accepted) if isinstance(error, EnqueueFailed) else 0
            return [*stored, *(f"p{n}" for n in wanted[:accepted])], messages[accepted:]
        stored += [f"p{n}" for n in wanted]
    return stored, ()


@writing.check(DEDUP)
async def a_repeated_sequence_is_stored_once(bench: AdapterBench) -> None:
    """A producer's sequence that was accepted is accepted again, and dropped; 0 is a sequence as
    well."""
    for numbers in ((0, 1), (0, 1, 2), (2,), (3, 3, 4)):
        await bench.adapter.enqueue(bench.queue, bench.mark("p", *numbers))
    await bench.publish("end")
    wanted = ["p0", "p1", "p2", "p3", "p4", "end"]
    bench.same(await bench.everything(await bench.begin(), 6), wanted)


@writing.check(DEDUP)
async def each_producer_has_its_own_sequences(bench: AdapterBench) -> None:
    """Sequences of one producer do not affect another producer, or messages without a mark."""
    for number in (0, 5, 1_000_000):
        for producer in ("p", "q", "p/q"):
            await bench.adapter.enqueue(bench.queue, bench.mark(producer, number))
    await bench.publish("p0", "p0")
    found = sorted(texts(await bench.everything(await bench.begin(), 11)))
    wanted = sorted(
        [*(f"{p}{n}" for p in ("p", "q", "p/q") for n in (0, 5, 1_000_000)), "p0", "p0"]
    )
    expect(found == wanted, str(wanted), found)


@writing.check(DEDUP)
async def a_sequence_is_known_per_queue(bench: AdapterBench) -> None:
    """The same producer and sequence in another queue is another message."""
    other = bench.second_queue()
    for queue in (bench.queue, other):
        message = bench.message("p0", bench.stream(queue=queue), ProducerMark("p", 0))
        await bench.adapter.enqueue(queue, [message])
        bench.same(await bench.everything(await bench.begin(queue=queue), 1), ["p0"])


@writing.check(DEDUP)
async def a_sequence_is_known_in_every_silo(bench: AdapterBench) -> None:
    """If a producer continues at another silo, the sequences that the first silo stored are known
    there."""
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 0, 1))
    other = await bench.another_silo()
    await other.enqueue(bench.queue, bench.mark("p", 0, 1, 2))
    bench.same(await bench.everything(await bench.begin(), 3), ["p0", "p1", "p2"])


@writing.check(DEDUP)
async def a_sequence_is_known_when_its_message_is_done(bench: AdapterBench) -> None:
    """A sequence stays known after its message is acknowledged, and for another owner."""
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 0, 1))
    receiver = await bench.begin()
    position = await bench.acknowledge(receiver, await bench.collect(receiver, 2))
    await receiver.aclose()
    again = await bench.take_over(2, position)
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 0, 1, 2))
    bench.same(await bench.everything(again, 1), ["p2"])


@writing.check(DEDUP, Capability.DURABLE)
async def a_sequence_is_known_after_reopening(bench: AdapterBench) -> None:
    """A sequence that was accepted before a restart is known after it."""
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 0, 1))
    await bench.reopen()
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 0, 1, 2))
    bench.same(await bench.everything(await bench.begin(), 3), ["p0", "p1", "p2"])


@writing.check(DEDUP)
async def a_list_that_was_cancelled_can_be_repeated(bench: AdapterBench) -> None:
    """`enqueue` is cancelled after its limit; a repeated call stores each message once, in
    order."""
    wanted = list[str]()
    for turns in range(CANCEL_TURNS):
        numbers = range(turns * 3, turns * 3 + 3)
        await cancel_enqueue(bench, bench.mark("p", *numbers), turns)
        await bench.adapter.enqueue(bench.queue, bench.mark("p", *numbers))
        wanted += [f"p{number}" for number in numbers]
    bench.same(await bench.everything(await bench.begin(), len(wanted)), wanted)


async def cancel_enqueue(
    bench: AdapterBench, messages: Sequence[OutMessage], after_turns: int
) -> None:
    """Begin to enqueue, cancel it after some iterations of the loop, and expect that it ends."""
    call = bench.adapter.raw.enqueue(bench.queue, messages, 1)
    await cancel_call(call, after_turns, "a call of enqueue")


@writing.check(Capability.DURABLE)
async def messages_survive_reopening(bench: AdapterBench) -> None:
    """Messages accepted before a restart are there after it, before later ones."""
    await bench.publish("a", "b")
    await bench.reopen()
    await bench.publish("c")
    bench.same(await bench.everything(await bench.begin(), 3), ["a", "b", "c"])


@writing.check(Capability.DURABLE, Capability.ORDERED)
async def tokens_rise_over_reopening(bench: AdapterBench) -> None:
    """A restart does not begin numbers anew, even if every message was acknowledged."""
    await bench.publish("a", "b")
    receiver = await bench.begin()
    found = await bench.collect(receiver, 2)
    position = await bench.acknowledge(receiver, found)
    await bench.reopen()
    await bench.publish("c")
    (new,) = await bench.collect(await bench.take_over(2, position), 1)
    expect_behind(found[-1].token, new.token)


@writing.check(Capability.ORDERED)
async def tokens_rise_over_epochs(bench: AdapterBench) -> None:
    """A new owner reads on with higher tokens, even if every message was acknowledged."""
    last: Token | None = None
    for epoch in (1, 2, 3):
        await bench.publish(f"a{epoch}", f"b{epoch}")
        receiver = await bench.take_over(epoch, last)
        found = await bench.collect(receiver, 2)
        bench.same(found, [f"a{epoch}", f"b{epoch}"])
        if last is not None:
            expect_behind(last, found[0].token)
        last = await bench.acknowledge(receiver, found)
        await receiver.aclose()


def expect_behind(last: Token, new: Token) -> None:
    """Expect that token `new` is higher than token `last`."""
    if not last < new:
        raise ContractBroken(f"a token above {last}", str(new))
