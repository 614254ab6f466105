"""Waiting polls are woken for messages that they may have, and rarely in vain."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.providers.priority.world import in_cluster

from millstream.providers.priority import NewMessage as Sent
from millstream.providers.priority import PriorityQueueError, QueueSettings, State
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.owner.grain import QueueOwner

FILTERS: list[Metadata] = [
    (),
    *((("k", value),) for value in "abc"),
    *((("r", region),) for region in "xy"),
    (("k", "a"), ("r", "x")),
]


class Queue:
    """A queue with random operations, and filters of polls that wait."""

    def __init__(self, seed: int, *, is_exclusive: bool, shapes: Any) -> None:
        self.random = Random(seed)
        settings = QueueSettings(
            "k" if is_exclusive else None,
            lease_ms=40,
            limit=1 + seed % 2 * is_exclusive,
            shapes=shapes,
        )
        self.core = PriorityCore.create(0, "q", settings)
        self.filters = FILTERS if seed % 3 else FILTERS[:1]
        self.now_ms = self.made = 0
        self.leases: list[Any] = []
        self.core.take_available(self.filters)

    def can_have(self, wanted: Metadata) -> bool:
        return bool(self.core.read.peek(1, wanted))

    def act(self) -> None:
        self.now_ms += self.random.choice((0, 0, 1, 20))
        core, now, pick = self.core, self.now_ms, self.random
        others = [view for view in core.read.page(1_000) if view.state < State.COMPLETED]
        step = pick.randrange(8)
        if step == 0:
            self.made += 1
            pairs = {"k": pick.choice("abc"), "r": pick.choice("xy")}
            invisible_ms = pick.choice((0, 0, 15))
            message = MessageFields(f"m{self.made}", b"", self.made, pairs, invisible_ms)
            core.enqueue(now, message)
        elif step in (1, 2):
            self.leases += core.dequeue(now, "w", pick.choice((1, 2)), pick.choice(FILTERS)).leases
        elif step == 3 and self.leases:
            lease = self.leases.pop(pick.randrange(len(self.leases)))
            self.end(lease.id, lease.token)
        elif step == 4 and others:
            core.cancel(now, pick.choice(others).id)
        elif step == 5 and others:
            core.prioritise(now, pick.choice(others).id, pick.randrange(50))
        elif step == 6:
            core.sweep(now)

    def end(self, id: str, token: Any) -> None:
        if self.random.random() < 0.5:
            self.core.release(self.now_ms, id, token)
        else:
            self.core.complete(self.now_ms, id, token)


@pytest.mark.parametrize("shapes", [(), (("r",), ("k", "r"))], ids=["scanned", "shaped"])
@pytest.mark.parametrize("is_exclusive", [False, True], ids=["simple", "exclusive"])
@pytest.mark.one_in(4)
def test_all_who_may_have_what_they_could_not_are_told(is_exclusive: bool, shapes: Any) -> None:
    woken = in_vain = 0
    for seed in range(30):
        queue = Queue(seed, is_exclusive=is_exclusive, shapes=shapes)
        for _ in range(150):
            had = {wanted for wanted in queue.filters if queue.can_have(wanted)}
            with suppress(PriorityQueueError):  # for example, a lease that has ended
                queue.act()
            found = queue.core.take_available(queue.filters)
            helped = {w for w in queue.filters for pairs in found if set(w) <= set(pairs)}
            may = {wanted for wanted in queue.filters if queue.can_have(wanted)}
            assert may - had <= helped, seed
            woken, in_vain = woken + len(may - had), in_vain + len(helped - may)
    assert woken > 500 and in_vain < woken / 4  # the message was taken or ended in the same step


def test_nothing_is_noted_before_somebody_asks() -> None:
    core = PriorityCore.create(0, "q", QueueSettings())
    core.enqueue(0, MessageFields("a", b"", 0))
    assert core.take_available(FILTERS) == {}
    core.enqueue(0, MessageFields("b", b"", 0, {"k": "v"}))
    core.enqueue(0, MessageFields("c", b"", 0, {"k": "v"}))
    assert core.take_available(FILTERS) == {(("k", "v"),): 2} and core.take_available(FILTERS) == {}


def test_nothing_is_noted_after_the_last_one_left() -> None:
    core = PriorityCore.create(0, "q", QueueSettings("k"))
    core.take_available(FILTERS)
    core.enqueue(0, MessageFields("a", b"", 0, {"k": "a"}))
    [lease] = core.dequeue(0, "w").leases
    assert core.take_available(()) == {}, "its value is held"
    core.release(0, lease.id, lease.token)
    core.enqueue(0, MessageFields("b", b"", 0, {"k": "b"}))
    assert core.take_available(FILTERS) == {}
    core.enqueue(0, MessageFields("c", b"", 0, {"k": "c"}))
    assert core.take_available(FILTERS) == {(("k", "c"),): 1}


def test_what_is_told_of_a_value_is_what_can_be_had_of_it() -> None:
    core = PriorityCore.create(0, "q", QueueSettings("k"))
    core.take_available(FILTERS)
    first, second = ({"k": "a", "r": region} for region in "xy")
    core.enqueue(0, MessageFields("a", b"", 0, first))
    assert core.take_available(FILTERS) == {tuple(first.items()): 1}
    [lease] = core.dequeue(0, "w").leases
    core.enqueue(0, MessageFields("b", b"", 1, second))
    assert core.take_available(FILTERS) == {}, "its value is held"
    core.release(0, lease.id, lease.token)
    each = {tuple(first.items()): 1, tuple(second.items()): 1}
    assert core.take_available(FILTERS) == each, "the one that came back, too, and once"
    assert core.take_available(FILTERS) == {}
    [lease] = core.dequeue(0, "w").leases
    core.enqueue(0, MessageFields("c", b"", 2, first))
    core.complete(0, lease.id, lease.token)
    core.dequeue(0, "w")
    assert core.take_available(FILTERS) == {}, "it is held again"


def test_what_came_to_an_exclusive_queue_is_told_when_it_is_simple() -> None:
    core = PriorityCore.create(0, "q", QueueSettings("k"))
    core.take_available(FILTERS)
    core.enqueue(0, MessageFields("a", b"", 0, {"k": "a"}))
    core.cancel(0, "a")
    core.configure(0, QueueSettings())
    core.enqueue(0, MessageFields("b", b"", 0, {"k": "b"}))
    assert core.take_available(FILTERS)[(("k", "b"),)] == 1


@pytest.mark.parametrize("key", [None, "k"], ids=["simple", "exclusive"])
def test_work_that_helps_no_filter_makes_none_look(
    key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = QueueOwner._dequeue, 0

    async def counted(self: QueueOwner, command: Any, *args: Any) -> Any:
        nonlocal looks
        looks += bool(command.wanted)
        return await look(self, command, *args)

    async def main(rig: Any) -> None:
        nonlocal looks
        queue = rig.queue()

        async def work() -> None:
            [lease] = await queue.dequeue(worker="w")
            await lease.complete()
            await queue.enqueue_many([Sent(b"", metadata={"k": "b", "r": "y"})])
            [lease] = await queue.dequeue(worker="w")
            await lease.release(delay_s=0.1)

        await queue.create(QueueSettings(key))
        await rig.on(rig.host, queue.enqueue_many([Sent(b"", metadata={"k": "a", "r": "x"})] * 9))
        polls = [
            rig.spawn(queue.dequeue(worker="w", wanted={"r": f"r{number}"}, wait_s=25))
            for number in range(30)
        ]
        await asyncio.sleep(1)
        looks = 0
        for _ in range(5):
            await rig.on(rig.host, work())
            await asyncio.sleep(1)
        assert looks == 0 and not any(poll.done() for poll in polls)
        await rig.on(rig.host, queue.enqueue(b"", metadata={"k": "a", "r": "r7"}))
        await asyncio.sleep(1)
        is_free = key is None or polls[7].done()
        assert is_free and looks <= 3 and sum(poll.done() for poll in polls) == 1
        for poll in polls:
            poll.cancel()

    monkeypatch.setattr(QueueOwner, "_dequeue", counted)
    in_cluster(main)
