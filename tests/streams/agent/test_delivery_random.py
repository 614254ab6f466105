"""The delivery core under a driver with random calls, handlers and failure handlers."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests.streams.agent.cursors import append, delivery_at
from tests.streams.agent.stepping import RAISED, A

from millstream.runtime.extending import Backoff
from millstream.streams import CacheLimits, DeliveryOptions, QueueMessage, Token
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.delivery.delivery import Delivery
from millstream.streams.agent.delivery.steps import (
    AckBy,
    Action,
    CallReply,
    Deliver,
    DeliveryState,
    Fetch,
    GiveUp,
    HandBack,
    Unreachable,
    WaitUntil,
)

OPTIONS = DeliveryOptions(retries=2, backoff=Backoff(first_s=1, factor=2, ceiling_s=8))


class Driver:
    """Runs a delivery until it is idle; `faults` decides the result of each call."""

    def __init__(self, delivery: Delivery, faults: list[str], broken: set[Token]) -> None:
        self.delivery = delivery
        self.faults = iter(faults)
        self.broken = broken  # items whose handler always raises
        self.done: list[Token] = []
        self.dead: list[Token] = []
        self.tries: dict[Token, int] = {}
        self.now_s = 0.0

    def run(self) -> None:
        due: list[Action] = []
        for _ in range(10_000):
            if self.delivery.state is DeliveryState.IDLE:
                return
            if self.delivery.state is DeliveryState.READY:
                due = list(self.after(self.delivery.wake()))
            assert len(due) == 1
            due = list(self.act(due[0]))
        raise AssertionError("the delivery does not end")

    def after(self, actions: Sequence[Action]) -> Sequence[Action]:
        """Return the actions of a call of the core, after a check of its invariants."""
        self.delivery.check()
        return actions

    def act(self, action: Action) -> Sequence[Action]:
        match action:
            case Deliver():
                return self.call(action)
            case WaitUntil():
                self.now_s = action.when_s
                return self.after(self.delivery.tick(self.now_s))
            case GiveUp():
                if next(self.faults, "") == "lost":
                    return self.after(
                        self.delivery.unreachable(Unreachable("store", self.now_s, 0.5))
                    )
                self.dead.append(action.item.token)
                return self.after(self.delivery.on_given_up("dead_letter"))
            case Fetch() | HandBack() | AckBy():
                raise AssertionError(f"{action} of a cache that has all")

    def call(self, action: Deliver) -> Sequence[Action]:
        assert action.attempt == 1 or len(action.items) == 1, "a failed item is tried alone"
        self.delivery.on_sent(len(action.items), self.now_s)
        self.delivery.check()
        fault = next(self.faults, "")
        if fault == "lost":
            return self.after(self.delivery.unreachable(Unreachable("lost", self.now_s, 0.5)))
        for done, item in enumerate(action.items):
            if item.token in self.broken or (fault == "raise" and done == len(action.items) // 2):
                self.tries[item.token] = self.tries.get(item.token, 0) + 1
                assert action.attempt <= 3
                return self.after(self.delivery.on_reply(CallReply(done, RAISED, self.now_s, 0.5)))
            if not self.done or item.token > self.done[-1]:  # the consumer side drops repeats
                self.done.append(item.token)
        if fault == "reply lost":
            return self.after(self.delivery.unreachable(Unreachable("reply lost", self.now_s, 0.5)))
        return self.after(
            self.delivery.on_reply(CallReply(len(action.items), None, self.now_s + 0.1, 0.5))
        )


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    faults=st.lists(st.sampled_from(["", "lost", "raise", "reply lost"]), max_size=40),
    data=st.data(),
)
def test_every_item_is_done_or_given_up_once_and_in_order(
    sizes: list[int], faults: list[str], data: st.DataObject
) -> None:
    cache = QueueCache(CacheLimits())
    slots = [
        append(cache, QueueMessage(A, Token(0, seq), [b"%d" % index for index in range(size)]))
        for seq, size in enumerate(sizes)
    ]
    delivery = delivery_at(LaggingCursors(cache, is_used=True), slots[0], OPTIONS)
    for slot in slots:
        cache.release(slot)
    every = [Token(0, seq, index) for seq, size in enumerate(sizes) for index in range(size)]
    broken = data.draw(st.sets(st.sampled_from(every), max_size=3))
    driver = Driver(delivery, faults, broken)
    driver.run()
    assert sorted({*driver.done, *driver.dead}) == every
    assert driver.done == sorted(driver.done) and driver.dead == sorted(driver.dead)
    assert broken <= set(driver.dead)
    assert all(driver.tries[token] >= 3 for token in driver.dead)
    assert cache.find_acked() == Token(0, len(sizes) - 1)
