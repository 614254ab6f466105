"""Positions, acknowledgements and epochs: acknowledged messages stay acknowledged, and no
others."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from millstream.runtime import CursorTooOld, QueueFenced
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.suite.bench import AdapterBench, expect_first, texts
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedReceiver
from millstream.streams.contracts.suite.verdict import ContractBroken, expect
from millstream.streams.contracts.token import Token

__all__ = ["acknowledging"]

acknowledging = CheckList()
ORDERED, OWN_POSITION = Capability.ORDERED, Capability.OWN_POSITION
DURABLE, FENCED, ITEM_ACK = Capability.DURABLE, Capability.FENCED, Capability.ITEM_ACK


@acknowledging.check(generated=True)
async def what_is_not_acknowledged_is_read_again(bench: AdapterBench) -> None:
    """The next receiver reads unacknowledged messages, with the same tokens if tokens are
    stable."""
    wanted = await bench.publish("a", "b", "c")
    first = await bench.begin()
    before = await bench.collect(first, 3)
    await first.aclose()
    again = await bench.collect(await bench.begin(epoch=2), 3)
    bench.same(again, wanted)
    if bench.has(Capability.STABLE_TOKENS):
        tokens = {text: m.token for m in before for text in texts([m])}
        came = {text: m.token for m in again for text in texts([m])}
        expect(came == tokens, f"the same tokens as before, {tokens}", came)


@acknowledging.check(ORDERED, generated=True)
async def what_is_acknowledged_is_not_read_again(bench: AdapterBench) -> None:
    """`ack` covers every message up to its position; a repeated or older position changes
    nothing."""
    wanted = await bench.publish("a", "b", "c", "d")
    first = await bench.begin()
    found = await bench.collect(first, 4)
    for token in (found[1].token, found[1].token, found[0].token, None):
        await first.ack(token)
    await first.aclose()
    again = await bench.collect(await bench.take_over(2, found[1].token), 2)
    bench.same(again, wanted[2:])


@acknowledging.check(ITEM_ACK, OWN_POSITION)
async def single_messages_are_acknowledged(bench: AdapterBench) -> None:
    """`ack(None, also)` acknowledges these messages only, in any order, and repeats do no harm."""
    await bench.publish("a", "b", "c", "d", "e")
    first = await bench.begin()
    found = {text: m.token for m in await bench.collect(first, 5) for text in texts([m])}
    for done in (["d"], ["b", "d"], ["b"]):
        await first.ack(None, [found[text] for text in done])
    await first.aclose()
    bench.same(await bench.everything(await bench.begin(2), 3), ["a", "c", "e"])


@acknowledging.check(ITEM_ACK, OWN_POSITION, DURABLE)
async def single_acknowledgements_survive_reopening(bench: AdapterBench) -> None:
    """A message that was acknowledged singly stays acknowledged after a restart."""
    await bench.publish("a", "b", "c")
    first = await bench.begin()
    found = {text: m.token for m in await bench.collect(first, 3) for text in texts([m])}
    await first.ack(None, [found["b"]])
    await bench.reopen()
    bench.same(await bench.everything(await bench.begin(2), 2), ["a", "c"])


@acknowledging.check(OWN_POSITION, DURABLE)
async def its_own_position_survives_reopening(bench: AdapterBench) -> None:
    """After a restart, `start(None)` begins after the acknowledged messages."""
    await bench.publish("a", "b")
    first = await bench.begin()
    await bench.acknowledge(first, await bench.collect(first, 2))
    await bench.publish("c", "d")
    await bench.reopen()
    bench.same(await bench.everything(await bench.begin(2), 2), ["c", "d"])


@acknowledging.check(OWN_POSITION)
async def its_own_position_is_known_in_every_silo(bench: AdapterBench) -> None:
    """An owner in another silo begins after the messages that the former owner acknowledged."""
    await bench.publish("a", "b", "c")
    first = await bench.begin()
    found = await bench.collect(first, 3)
    done = found[:2] if bench.is_ordered else [m for m in found if texts([m]) != ["c"]]
    await bench.acknowledge(first, done)
    await first.aclose()
    other = await bench.begin(2, silo=await bench.another_silo())
    bench.same(await bench.everything(other, 1), ["c"])


@acknowledging.check(ORDERED, generated=True)
async def start_begins_behind_a_position(bench: AdapterBench) -> None:
    """`start(after)` begins at the message that follows `after`, acknowledged or not."""
    wanted = await bench.publish("a", "b", "c", "d")
    first = await bench.begin()
    found = await bench.collect(first, 4)
    await first.aclose()
    for epoch, at in ((2, 0), (3, 2)):
        receiver = await bench.begin(epoch, found[at].token)
        count = len(wanted) - at - 1
        bench.same(await bench.collect(receiver, count), wanted[at + 1 :])
        await receiver.aclose()


@acknowledging.check(ORDERED)
async def start_behind_the_last_message_reads_what_comes_next(bench: AdapterBench) -> None:
    """If `after` is the last message, reading returns nothing until another one is accepted."""
    await bench.publish("a", "b")
    first = await bench.begin()
    found = await bench.collect(first, 2)
    await first.aclose()
    second = await bench.begin(2, found[-1].token)
    expect(not (came := await second.read(10, 1000, 0.0)), "no message yet", came)
    await bench.publish("c")
    bench.same(await bench.everything(second, 1), ["c"])


@acknowledging.check(ORDERED, OWN_POSITION)
async def start_begins_at_the_later_position(bench: AdapterBench) -> None:
    """`start(after)` begins at the later of `after` and the provider's own position."""
    await bench.publish("a", "b", "c", "d")
    first = await bench.begin()
    found = await bench.collect(first, 4)
    await first.ack(found[1].token)
    await first.aclose()
    for epoch, at, wanted in ((2, 0, ["c", "d"]), (3, 2, ["d"])):
        receiver = await bench.begin(epoch, found[at].token)
        bench.same(await bench.collect(receiver, len(wanted)), wanted)
        await receiver.aclose()


@acknowledging.check(ORDERED, OWN_POSITION)
async def start_acknowledges_nothing(bench: AdapterBench) -> None:
    """`start(after)` keeps messages before `after`, because lagging subscriptions may need them."""
    await bench.publish("a", "b", "c", "d")
    first = await bench.begin()
    found = await bench.collect(first, 4)
    await first.ack(found[0].token)
    await first.aclose()
    second = await bench.begin(2, found[2].token)
    bench.same(await bench.collect(second, 1), ["d"])
    await second.aclose()
    bench.same(await bench.collect(await bench.begin(3), 3), ["b", "c", "d"])


@acknowledging.check(ORDERED, excludes=(OWN_POSITION,))
async def without_a_position_of_its_own_start_begins_where_it_is_told(bench: AdapterBench) -> None:
    """Without OWN_POSITION, `start(after)` begins after `after`, whatever was acknowledged."""
    await bench.publish("a", "b", "c")
    first = await bench.begin()
    found = await bench.collect(first, 3)
    await first.ack(found[0].token)
    await first.aclose()
    bench.same(await bench.collect(await bench.begin(2, found[0].token), 2), ["b", "c"])


@acknowledging.check(ORDERED, hooks=("forget",))
async def a_position_that_is_gone_is_said(bench: AdapterBench) -> None:
    """`start(after)` raises CursorTooOld if messages that follow it are gone. Its `first` is above
    all lost messages and not above the oldest kept one, and reading begins with that one."""
    found = await store_and_ack(bench, "a", "b", "c", "d")
    await bench.forget(2)
    receiver = bench.receiver(2)
    first = await start_too_old(receiver, found[0].token)
    expect_first(first, found[1].token, found[2].token)
    bench.same(await bench.collect(receiver, 2), ["c", "d"])


async def store_and_ack(bench: AdapterBench, *wanted: str) -> list[QueueMessage]:
    """Publish messages, and return them as read by a first owner that acknowledged none."""
    await bench.publish(*wanted)
    return await as_read(bench, len(wanted))


async def as_read(bench: AdapterBench, count: int) -> list[QueueMessage]:
    """Return the first messages of the queue, as read by an owner that acknowledges none."""
    first = await bench.begin()
    found = await bench.collect(first, count)
    await first.aclose()
    return found


async def start_too_old(receiver: GuardedReceiver, after: Token) -> Token | None:
    """Return the first message that is kept, as CursorTooOld names it."""
    try:
        await receiver.start(after)
    except CursorTooOld as error:
        first: Token | None = error.first
        return first
    raise ContractBroken("CursorTooOld", "no error")


@acknowledging.check(ORDERED, hooks=("forget",))
async def a_queue_that_lost_everything_says_so(bench: AdapterBench) -> None:
    """If no message is kept, `first` is None, or above all lost messages and not above the next
    message, with which reading begins."""
    found = await store_and_ack(bench, "a", "b", "c")
    await bench.forget(3)
    receiver = bench.receiver(2)
    first = await start_too_old(receiver, found[0].token)
    await bench.publish("d")
    (new,) = await bench.collect(receiver, 1)
    bench.same([new], ["d"])
    if first is not None:
        expect_first(first, found[-1].token, new.token)


@acknowledging.check(ORDERED, hooks=("forget",))
async def what_is_gone_and_was_done_is_no_gap(bench: AdapterBench) -> None:
    """`start(after)` raises nothing if all lost messages are at or before `after`, with or without
    later messages: no wanted message is missing."""
    found = await store_and_ack(bench, "a", "b", "c")
    await bench.forget(2)
    receiver = await bench.begin(2, found[1].token)
    bench.same(await bench.collect(receiver, 1), ["c"])
    await receiver.aclose()
    await bench.forget(1)
    receiver = await bench.begin(3, found[2].token)
    await bench.publish("d")
    bench.same(await bench.collect(receiver, 1), ["d"])


@acknowledging.check(ORDERED, hooks=("skip",))
async def a_hole_in_the_numbers_is_no_gap(bench: AdapterBench) -> None:
    """Numbers without a message (a hole) are skipped: if a hole follows `after`, `start(after)`
    raises nothing, because no message is lost."""
    await bench.skip(2)
    await bench.publish("a")
    await bench.skip(3)
    await bench.publish("b")
    found = await as_read(bench, 2)
    bench.same(found, ["a", "b"])
    again = await bench.begin(2, found[0].token)
    bench.same(await bench.collect(again, 1), ["b"])
    await again.aclose()
    await bench.skip(2)
    last = await bench.begin(3, found[1].token)
    await bench.publish("c")
    bench.same(await bench.collect(last, 1), ["c"])


@acknowledging.check(ORDERED, hooks=("forget", "skip"))
async def a_hole_behind_what_is_gone_is_no_gap(bench: AdapterBench) -> None:
    """If lost messages were acknowledged and a hole follows, `start(after)` raises nothing,
    even if the oldest kept message has a much higher number than `after`."""
    await bench.publish("a")
    await bench.skip(3)
    await bench.publish("b")
    done = (await as_read(bench, 2))[-1].token
    await bench.skip(4)
    await bench.publish("c")
    await bench.forget(2)
    bench.same(await bench.collect(await bench.begin(2, done), 1), ["c"])


@acknowledging.check(generated=True)
async def a_receiver_is_replaced_in_its_epoch(bench: AdapterBench) -> None:
    """After a call that failed, the owner opens another receiver of the same epoch."""
    wanted = await bench.publish("a", "b", "c")
    first = await bench.begin(3)
    found = await bench.collect(first, 3)
    await first.aclose()
    after = found[0].token if bench.is_ordered else None
    second = await bench.begin(3, after)
    wanted = wanted[1:] if bench.is_ordered else wanted
    again = await bench.collect(second, len(wanted))
    bench.same(again, wanted)
    await bench.acknowledge(second, again)


@acknowledging.check(FENCED)
async def an_older_epoch_is_fenced(bench: AdapterBench) -> None:
    """`ack` and `start` of an older epoch raise QueueFenced and change nothing."""
    wanted = await bench.publish("a", "b")
    old = await bench.begin(1)
    found = await bench.collect(old, 2)
    new = await bench.begin(2, silo=await bench.another_silo())
    await expect_fenced(bench.acknowledge(old, found), "ack")
    await expect_fenced(bench.receiver(1).start(None), "start")
    if not bench.has(Capability.LEASED):
        bench.same(await bench.collect(new, 2), wanted)
    await new.aclose()
    await old.aclose()
    bench.same(await bench.collect(await bench.begin(3), 2), wanted)


@acknowledging.check(FENCED, OWN_POSITION)
async def what_was_acknowledged_before_the_fence_counts(bench: AdapterBench) -> None:
    """An `ack` that has returned is valid for the next epoch; from then on, only that epoch may
    acknowledge."""
    await bench.publish("a", "b", "c")
    old = await bench.begin(1)
    found = await bench.collect(old, 3)
    mine = sorted(found, key=lambda message: texts([message]))
    await bench.acknowledge(old, mine[:1])
    if bench.has(Capability.LEASED):
        await old.release([message.token for message in mine[1:]], 0.0, False)
    new = await bench.begin(2)
    again = sorted(await bench.collect(new, 2), key=lambda message: texts([message]))
    expect(texts(again) == ["b", "c"], "b and c", texts(again))
    await bench.acknowledge(new, again[:1])
    await expect_fenced(bench.acknowledge(old, mine[2:]), "ack")
    await new.aclose()
    bench.same(await bench.everything(await bench.begin(3), 1), ["c"])


@acknowledging.check(FENCED, DURABLE)
async def the_fence_survives_reopening(bench: AdapterBench) -> None:
    """After a restart, an older epoch is still refused, and the same epoch is accepted."""
    wanted = await bench.publish("a")
    await bench.begin(5)
    await bench.reopen()
    await expect_fenced(bench.receiver(4).start(None), "start")
    bench.same(await bench.collect(await bench.begin(5), 1), wanted)


@acknowledging.check(FENCED)
async def the_fence_is_of_one_queue(bench: AdapterBench) -> None:
    """An epoch of one queue fences no other queue."""
    other = bench.second_queue()
    wanted = await bench.publish("a")
    receiver = await bench.begin(1)
    await bench.begin(9, queue=other)
    found = await bench.collect(receiver, 1)
    bench.same(found, wanted)
    await bench.acknowledge(receiver, found)


async def expect_fenced(call: Coroutine[Any, Any, Any], what: str) -> None:
    """Await a call that must raise QueueFenced."""
    try:
        await call
    except QueueFenced:
        return
    raise ContractBroken(f"QueueFenced from `{what}` of an older epoch", "no error")
