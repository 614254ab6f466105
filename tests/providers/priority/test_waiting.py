"""Waiting and waking: no poll sleeps while a message that it wants is available."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

import pytest

from millstream.providers.priority.core.message import Metadata
from millstream.providers.priority.owner.waiting import SPARE_MAX, QueueWaiters, Waiter
from millstream.runtime import Overloaded

A: Metadata = (("k", "a"),)
B: Metadata = (("k", "b"),)


def sleeper(waiting: QueueWaiters, wanted: Metadata, woken: list[str], name: str) -> Waiter:
    waiter, _ = waiting.enter(wanted, lambda: woken.append(name))
    waiting.looks(waiter)
    waiting.found_none(waiter)
    assert waiting.sleeps(waiter)
    return waiter


def test_the_first_of_a_group_looks_and_later_ones_sleep_at_once() -> None:
    waiting = QueueWaiters("q", 10)
    assert waiting.enter(A, lambda: None)[1]
    assert not waiting.enter(A, lambda: None)[1]
    assert waiting.enter(B, lambda: None)[1]


def test_a_message_wakes_the_first_of_each_group_that_it_helps_oldest_first() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    for name, wanted in (("b1", B), ("a1", A), ("a2", A), ("any", ())):
        sleeper(waiting, wanted, woken, name)
    waiting.on_changed({(("k", "a"), ("z", "1")): 1})
    assert woken == ["a1", "any"]
    waiting.on_changed()
    assert woken == ["a1", "any", "b1"], "the others of these groups are about to look"


def test_what_changes_while_one_looks_makes_it_look_again() -> None:
    waiting = QueueWaiters("q", 10)
    waiter, _ = waiting.enter((), lambda: None)
    waiting.looks(waiter)
    waiting.on_changed()
    waiting.found_none(waiter)
    assert not waiting.sleeps(waiter)
    waiting.looks(waiter)
    waiting.found_none(waiter)
    assert waiting.sleeps(waiter)


def test_who_comes_while_another_looks_or_is_about_to_may_sleep() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    first, _ = waiting.enter((), lambda: None)
    second, _ = waiting.enter((), lambda: woken.append("second"))
    waiting.looks(first)
    assert waiting.sleeps(second), "the first looks, and wakes it if there is more"
    waiting.found_none(first)
    assert waiting.sleeps(first)
    waiting.on_changed()
    third, _ = waiting.enter((), lambda: None)
    assert waiting.sleeps(third), "the first is about to look"
    assert woken == []


def test_who_left_is_taken_out_of_the_heap_when_half_of_it_is_stale() -> None:
    waiting, count = QueueWaiters("q", 1_000), 4 * SPARE_MAX
    sleepers = [sleeper(waiting, (), [], "") for _ in range(count)]
    group = sleepers[0].group
    while len(group.asleep) == count:
        waiting.leaves(sleepers.pop())
        waiting.check()
    assert 2 * len(sleepers) + SPARE_MAX == count - 2 and len(group.asleep) == len(sleepers)


def test_one_who_found_none_keeps_its_place() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    first, second = (sleeper(waiting, (), woken, name) for name in ("first", "second"))
    waiting.on_changed(count=2)
    assert woken == ["first", "second"]
    for waiter in (second, first):
        waiting.looks(waiter)
    for waiter in (second, first):
        waiting.found_none(waiter)
        assert waiting.sleeps(waiter)
    waiting.on_changed()
    assert woken[2:] == ["first"]


def test_of_those_who_found_none_one_looks_again() -> None:
    """A change during their looks wakes a sleeping poll, or lets one of them look again."""
    waiting, woken = QueueWaiters("q", 10), list[str]()
    first, second, _ = (sleeper(waiting, (), woken, name) for name in ("1", "2", "3"))
    waiting.on_changed(count=2)
    for waiter in (first, second):
        waiting.looks(waiter)
    waiting.on_changed()
    assert woken == ["1", "2", "3"]
    for waiter in (first, second):
        waiting.found_none(waiter)
        assert waiting.sleeps(waiter), "the third looks after the change"


def test_a_change_wakes_nobody_while_one_is_about_to_look() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    for name in ("1", "2", "3"):
        sleeper(waiting, (), woken, name)
    waiting.on_changed()
    waiting.on_changed()
    assert woken == ["1"]
    waiting.on_changed(count=2)
    assert woken == ["1", "2"]


def test_who_goes_with_what_it_wanted_wakes_the_next() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    first = sleeper(waiting, (), woken, "first")
    sleeper(waiting, (), woken, "second")
    waiting.on_changed()
    waiting.looks(first)
    waiting.leaves(first)  # the poll got all that it asked for
    assert woken == ["first", "second"]


def test_who_goes_before_it_looked_wakes_the_next() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    first = sleeper(waiting, (), woken, "first")
    sleeper(waiting, (), woken, "second")
    waiting.on_changed()
    waiting.leaves(first)
    assert woken == ["first", "second"]


def test_who_was_woken_by_another_and_goes_before_it_looked_wakes_the_next() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    first, second, _ = (sleeper(waiting, (), woken, name) for name in ("1", "2", "3"))
    waiting.on_changed()
    waiting.looks(first)
    waiting.leaves(first)  # wakes the second, because there may be more
    waiting.leaves(second)
    assert woken == ["1", "2", "3"]


@pytest.mark.parametrize("seed", range(5))
def test_those_who_stay_are_woken_in_order_whoever_left(seed: int) -> None:
    waiting, woken, random = QueueWaiters("q", 1_000), list[str](), Random(seed)
    sleepers = [sleeper(waiting, (), woken, str(number)) for number in range(300)]
    waiting.on_changed(count=100)
    again = sleepers[:100]
    random.shuffle(again)
    for waiter in again:
        waiting.looks(waiter)
        waiting.found_none(waiter)
        assert waiting.sleeps(waiter)
    stay = sorted(random.sample(range(300), 40))
    for number in set(range(300)) - set(stay):
        waiting.leaves(sleepers[number])
    woken.clear()
    for _ in stay:
        waiting.on_changed()
        woken_last = sleepers[int(woken[-1])]
        waiting.looks(woken_last)
        waiting.found_none(woken_last)
        waiting.leaves(woken_last)
    assert woken == [str(number) for number in stay]


def test_who_goes_and_saw_that_there_is_no_more_wakes_nobody() -> None:
    waiting, woken = QueueWaiters("q", 10), list[str]()
    first = sleeper(waiting, (), woken, "first")
    sleeper(waiting, (), woken, "second")
    waiting.on_changed()
    waiting.looks(first)
    waiting.found_none(first)
    waiting.leaves(first)
    assert woken == ["first"]


def test_at_the_limit_nobody_else_may_wait() -> None:
    waiting = QueueWaiters("q", 2)
    first, _ = waiting.enter((), lambda: None)
    waiting.enter(A, lambda: None)
    with pytest.raises(Overloaded, match="waiting_polls_max is 2"):
        waiting.enter(B, lambda: None)
    waiting.leaves(first)
    waiting.enter(B, lambda: None)


def test_those_who_left_are_not_kept() -> None:
    waiting = QueueWaiters("q", 10_000)
    kept = sleeper(waiting, (), [], "kept")
    for _ in range(10 * SPARE_MAX):
        waiting.leaves(sleeper(waiting, (), [], "left"))
        waiting.check()
    assert len(kept.group.asleep) <= SPARE_MAX + 3
    waiting.leaves(kept)
    assert not len(waiting)
    waiting.check()


class Worker:
    """A poll that behaves as those of the driver do. It looks between two steps of the test."""

    def __init__(self, model: Model, wanted: Metadata) -> None:
        self.model = model
        self.wanted = wanted
        self.saw: list[Metadata] | None = None  # the result of its look, before the poll gets it
        self.waiter, self.looks = model.waiting.enter(wanted, self.wake)
        self.is_asleep = False
        if not self.looks:
            self.sleep()

    def wake(self) -> None:
        assert self.is_asleep, "woken twice"
        self.is_asleep, self.looks = False, True

    def sleep(self) -> None:
        if self.model.waiting.sleeps(self.waiter):
            self.is_asleep = True
        else:
            self.looks = True

    def step(self) -> None:
        """Look, or receive the result of the look. A commit is in between."""
        model = self.model
        if self.saw is None:
            model.waiting.looks(self.waiter)
            self.saw = model.take(self.wanted)
            return
        found, self.saw, self.looks = self.saw, None, False
        if found:
            return self.leave()
        model.waiting.found_none(self.waiter)
        self.sleep()
        return None

    def leave(self) -> None:
        self.model.waiting.leaves(self.waiter)
        self.model.workers.remove(self)


class Model:
    """A queue of messages as pairs, and the polls on it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.waiting = QueueWaiters("q", 1_000)
        self.messages: list[Metadata] = []
        self.workers: list[Worker] = []

    def take(self, wanted: Metadata) -> list[Metadata]:
        for message in self.messages:
            if set(wanted) <= set(message):
                self.messages.remove(message)
                return [message]
        return []

    def put(self) -> None:
        message = self.random.choice(((), A, B, (*A, ("z", "1"))))
        self.messages.append(message)
        is_told = self.random.random() < 0.8
        count = self.random.choice((1, 1, 3))
        self.waiting.on_changed({message: count} if is_told else None, count)

    def come(self) -> None:
        self.workers.append(Worker(self, self.random.choice(((), A, B, (("z", "1"),)))))

    def awake(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.is_asleep]

    def go(self) -> None:
        if self.workers:
            worker = self.random.choice(self.workers)
            if worker.saw:  # its messages return to the queue, as when a lease is released
                self.messages += worker.saw
                self.waiting.on_changed()
            worker.leave()

    def work(self) -> None:
        if awake := self.awake():
            self.random.choice(awake).step()

    def check(self) -> None:
        """Check that no poll sleeps while a wanted message exists, unless a similar poll is
        awake.
        """
        self.waiting.check()
        for worker in self.workers:
            is_there = any(set(worker.wanted) <= set(message) for message in self.messages)
            if worker.is_asleep and is_there:
                assert any(other.wanted == worker.wanted for other in self.awake())


def test_messages_of_several_kinds_wake_one_for_each() -> None:
    waiting, woken = QueueWaiters("q", 10), list[int]()
    waiters = [waiting.enter((), partial(woken.append, number))[0] for number in range(3)]
    for waiter in waiters:
        waiting.looks(waiter)
        waiting.found_none(waiter)
        assert waiting.sleeps(waiter)
    assert list(waiting.filters) == [()]
    waiting.on_changed({A: 1, B: 1})
    assert woken == [0, 1]
    for waiter in waiters:
        waiting.leaves(waiter)
    waiting.enter(A, lambda: None)
    assert list(waiting.filters) == [A]


@pytest.mark.parametrize("seed", range(60))
def test_nobody_sleeps_while_what_it_wants_can_be_had(seed: int) -> None:
    model = Model(seed)
    acts: list[Callable[[], None]] = [model.put, model.come, model.go, *[model.work] * 4]
    for _ in range(400):
        model.random.choice(acts)()
        model.check()
    while model.awake():
        model.work()
        model.check()
    for worker in model.workers:
        assert not any(set(worker.wanted) <= set(message) for message in model.messages)
