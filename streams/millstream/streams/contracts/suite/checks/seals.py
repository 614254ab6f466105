"""Sealing: a queue is closed to publishers whose streams move to another queue."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.runtime import EnqueueFailed, StaleMapper, StreamError
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.message import OutMessage
from millstream.streams.contracts.suite.bench import AdapterBench
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedAdapter
from millstream.streams.contracts.suite.verdict import ContractBroken, expect

__all__ = ["sealing"]

sealing = CheckList()
SEALED, DEDUP, DURABLE = Capability.SEALED, Capability.DEDUP, Capability.DURABLE
ORDERED = Capability.ORDERED
ERA = 9


async def expect_stale(
    bench: AdapterBench, messages: Sequence[OutMessage], silo: GuardedAdapter | None = None
) -> None:
    """Expect that enqueueing with mapper epoch 1 is refused, and that nothing is stored."""
    try:
        await (silo or bench.adapter).enqueue(bench.queue, messages, 1)
    except StreamError as error:
        cause = error.cause if isinstance(error, EnqueueFailed) else error
        is_so = isinstance(cause, StaleMapper) and not getattr(error, "accepted", ())
        expect(is_so, "StaleMapper, and no stored message of the list", repr(error))
        return
    raise ContractBroken("StaleMapper for mapper epoch 1 after seal(..., 2, ...)", "no error")


@sealing.check(SEALED)
async def a_sealed_queue_refuses_older_mappers(bench: AdapterBench) -> None:
    """After `seal` has returned, every silo refuses older mapper epochs, and accepts the same and
    newer ones."""
    await bench.publish("a")
    other = await bench.another_silo()
    await bench.adapter.seal(bench.queue, 2, ERA)
    for silo in (bench.adapter, other):
        await expect_stale(bench, [bench.message("no"), bench.message("no")], silo)
        await silo.enqueue(bench.queue, [bench.message("b")], 2)
        await silo.enqueue(bench.queue, [bench.message("c")], 3)
    bench.same(await bench.everything(await bench.begin(), 5), ["a", "b", "c", "b", "c"])


@sealing.check(SEALED)
async def the_barrier_is_the_last_message_before_the_seal(bench: AdapterBench) -> None:
    """`seal` returns None if there was no message; a repeated seal for the same mapper returns the
    same."""
    other = bench.other_queue
    if other is not None:
        barrier = await bench.adapter.seal(other, 2, ERA)
        expect(barrier is None, "None for an empty queue", barrier)
    await bench.publish("a", "b")
    first = await bench.adapter.seal(bench.queue, 2, ERA)
    await bench.adapter.enqueue(bench.queue, [bench.message("c")], 2)
    again = await (await bench.another_silo()).seal(bench.queue, 2, ERA)
    found = await bench.collect(await bench.begin(), 3)
    wanted = (found[1].token, found[1].token)
    expect((first, again) == wanted, f"the token of b from both calls: {wanted}", (first, again))


@sealing.check(SEALED)
async def messages_behind_a_seal_have_its_era(bench: AdapterBench) -> None:
    """The tokens of later messages have the given era, so they are above all others."""
    await bench.publish("a")
    await bench.adapter.seal(bench.queue, 2, ERA)
    await bench.adapter.enqueue(bench.queue, [bench.message("b")], 2)
    found = await bench.collect(await bench.begin(), 2)
    bench.same(found, ["a", "b"])
    eras = [message.token.era for message in found]
    expect(eras[0] < ERA == eras[1], f"eras below {ERA}, then {ERA}", eras)


@sealing.check(SEALED, ORDERED)
async def a_seal_is_no_gap(bench: AdapterBench) -> None:
    """Numbers of a later era begin low, and no message between is missing: `start` after the last
    message before the seal raises nothing and reads on, and so does a reader."""
    await bench.publish("a", "b")
    first = await bench.begin()
    found = await bench.collect(first, 2)
    await first.aclose()
    await bench.adapter.seal(bench.queue, 2, ERA)
    await bench.adapter.enqueue(bench.queue, [bench.message("c")], 2)
    bench.same(await bench.collect(await bench.begin(2, found[1].token), 1), ["c"])
    if bench.has(Capability.REWIND):
        last = found[1].token
        page = await bench.reader().read_from(last._replace(seq=last.seq + 1), 10, 1000)
        bench.same(page.messages, ["c"])


@sealing.check(SEALED, DEDUP)
async def a_known_sequence_is_accepted_behind_a_seal(bench: AdapterBench) -> None:
    """A producer that repeats a stored sequence is told that it is accepted, even with the older
    mapper epoch."""
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 0, 1), 1)
    await bench.adapter.seal(bench.queue, 2, ERA)
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 0, 1), 1)
    await expect_stale(bench, bench.mark("p", 2))
    await bench.adapter.enqueue(bench.queue, bench.mark("p", 2), 2)
    bench.same(await bench.everything(await bench.begin(), 3), ["p0", "p1", "p2"])


@sealing.check(SEALED)
async def a_seal_is_of_one_queue(bench: AdapterBench) -> None:
    """A seal does not affect other queues, and stored messages are still read."""
    other = bench.second_queue()
    await bench.publish("a")
    await bench.adapter.seal(bench.queue, 2, ERA)
    await bench.publish("b", queue=other)
    bench.same(await bench.collect(await bench.begin(queue=other), 1), ["b"])
    bench.same(await bench.collect(await bench.begin(), 1), ["a"])


@sealing.check(SEALED, DURABLE)
async def a_seal_survives_reopening(bench: AdapterBench) -> None:
    """After a restart, older mappers are still refused, and the barrier is the same."""
    await bench.publish("a")
    barrier = await bench.adapter.seal(bench.queue, 2, ERA)
    await bench.reopen()
    await expect_stale(bench, [bench.message("no")])
    again = await bench.adapter.seal(bench.queue, 2, ERA)
    expect(again == barrier, str(barrier), again)
