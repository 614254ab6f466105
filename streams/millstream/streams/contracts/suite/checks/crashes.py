"""A process that crashes: without a goodbye, and with unstored data lost."""

from __future__ import annotations

from millstream.runtime import CursorTooOld
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.queue import EnqueuesAtOnce, QueueAdapter
from millstream.streams.contracts.suite.bench import AdapterBench, texts
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedReceiver
from millstream.streams.contracts.suite.verdict import NotRun, expect

__all__ = ["dying"]

dying = CheckList()
DURABLE = Capability.DURABLE


@dying.check(generated=True, hooks=("kill",))
async def a_process_that_died_keeps_no_queue(bench: AdapterBench) -> None:
    """After a crash, the next owner gets later messages, and with DURABLE all unacknowledged ones,
    within 10 s, even if the receiver was never closed."""
    wanted = await bench.publish("a", "b")
    receiver = await bench.begin()
    bench.same(await bench.collect(receiver, 2), wanted)
    if not bench.is_read_only:
        bench.waiting(receiver)
    await bench.kill()
    other, found = await next_owner(bench), list[QueueMessage]()
    if bench.has(DURABLE) or bench.is_read_only:
        bench.same(await bench.collect(other, 2), wanted)
    if not bench.is_read_only:
        await bench.publish("c")
        while "c" not in texts(found):
            found += await bench.collect(other, 1)


async def next_owner(bench: AdapterBench) -> GuardedReceiver:
    """The receiver of the next owner; without DURABLE it may report that messages are gone."""
    receiver = bench.receiver(2)
    try:
        await receiver.start()
    except CursorTooOld:
        if bench.has(DURABLE):
            raise
    return receiver


@dying.check(Capability.OWN_POSITION, DURABLE, hooks=("kill",))
async def what_was_acknowledged_before_a_death_is_done(bench: AdapterBench) -> None:
    """`ack` returns when the acknowledgement is stored: after a crash right then, the next owner
    does not get the acknowledged messages."""
    await bench.publish("a", "b", "c")
    receiver = await bench.begin()
    found = {text: one.token for one in await bench.collect(receiver, 3) for text in texts([one])}

    async def last(_: QueueAdapter) -> None:
        if bench.is_ordered:
            await receiver.raw.ack(found["b"], ())
        else:
            await receiver.raw.ack(None, [found["a"], found["b"]])

    await bench.kill(last)
    bench.same(await bench.everything(await bench.begin(2), 1), ["c"])


@dying.check(DURABLE, hooks=("kill",))
async def what_was_accepted_outlives_its_process(bench: AdapterBench) -> None:
    """`enqueue` returns when all messages are stored: after a crash right then, none is lost."""
    wanted = list[str]()
    for number in range(3):
        names = [f"{number}{letter}" for letter in "abc"]
        wanted += names

        async def last(adapter: QueueAdapter, names: list[str] = names) -> None:
            await adapter.enqueue(bench.queue, [bench.message(name) for name in names], 1)

        await bench.kill(last)
    bench.same(await bench.everything(await bench.begin(), len(wanted)), wanted)


@dying.check(DURABLE, hooks=("kill",))
async def what_was_accepted_at_once_outlives_its_process(bench: AdapterBench) -> None:
    """`enqueue_at_once` returns tokens when all messages are stored, and stores none if it returns
    None: after a crash right then, exactly these messages are there."""
    if not isinstance(bench.adapter.raw, EnqueuesAtOnce):
        raise NotRun("the adapter does not implement `EnqueuesAtOnce`")
    wanted = list[str]()
    for number in range(3):
        names = [f"{number}{letter}" for letter in "abc"]

        async def last(adapter: QueueAdapter, names: list[str] = names) -> None:
            messages = [bench.message(name) for name in names]
            if isinstance(adapter, EnqueuesAtOnce):
                told: object = adapter.enqueue_at_once(bench.queue, messages, 1)
                wanted.extend([] if told is None else names)

        await bench.kill(last)
    found = await bench.everything(await bench.begin(), len(wanted))
    expect(sorted(texts(found)) == wanted, str(wanted), texts(found))
