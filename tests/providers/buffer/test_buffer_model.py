"""The buffer queue compared with lists: in any history, no item is lost, doubled or out of
order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.examples import examples

from millstream.providers.memory import MemoryConsumer, MemoryTopic, NothingToCommit, TopicOptions
from millstream.runtime.testing import Simulation, run

GROUPS = ("a", "b", "c")


async def now(step: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that need not wait, or None if it would wait."""
    try:
        step.send(None)
    except StopIteration as end:
        return end.value
    step.close()
    return None


class BufferMachine(RuleBasedStateMachine):
    """One topic of three partitions with segments of three items. Each group has its own lists."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.topic: MemoryTopic[int] = MemoryTopic(
            "t", int, TopicOptions(partitions=3, segment_size=3, capacity=20, full_mode="fail")
        )
        self.lists: list[list[int]] = [[], [], []]
        self.consumers: dict[str, list[MemoryConsumer[int]]] = {}
        self.done: dict[str, list[int]] = {}  # committed items, by partition
        self.given: dict[MemoryConsumer[int], tuple[int, list[int], list[int]]] = {}
        self.serial = 0
        self.turn = 0

    def teardown(self) -> None:
        self.loop.close()
        asyncio.set_event_loop(None)

    def _in(self, coro: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coro)

    @rule(group=st.sampled_from(GROUPS), count=st.integers(1, 3), size=st.integers(1, 5))
    def add_group(self, group: str, count: int, size: int) -> None:
        if group in self.consumers:
            return

        async def add() -> list[MemoryConsumer[int]]:
            return self.topic.consumers(group, count, batch_size=size)

        released = [partition.released for partition in self.topic.partitions]
        self.consumers[group] = self._in(add())
        self.done[group] = released

    @rule(count=st.integers(0, 7))
    def produce_many(self, count: int) -> None:
        items = list(range(self.serial, self.serial + count))
        free = self.topic.gate.free if self.topic.gate else 0
        if count > free:
            with pytest.raises(Exception, match="no room"):
                self.topic.producer().produce_many(items)
            return
        self.topic.producer().produce_many(items)
        for item in items:
            self._note(item)

    @rule()
    def produce(self) -> None:
        item = self.serial
        if self.topic.producer().try_produce(item):
            self._note(item)

    def _note(self, item: int) -> None:
        self.lists[self.turn % 3].append(item)
        self.turn += 1
        self.serial += 1

    @precondition(lambda self: self.consumers)
    @rule(group=st.sampled_from(GROUPS), which=st.integers(0, 2))
    def pull(self, group: str, which: int) -> None:
        for consumer in self.consumers.get(group, [])[which : which + 1]:
            batch = self._in(now(consumer.next_batch()))
            if batch is None:
                self.given.pop(consumer, None)
                assert all(
                    self.done[group][at] == len(self.lists[at]) for at in consumer.partitions
                )
                continue
            assert consumer.given is not None
            at, start = consumer.given
            assert at in consumer.partitions and start == self.done[group][at]
            assert batch == self.lists[at][start : start + len(batch)] and batch
            self.given[consumer] = at, batch, list(batch)

    @precondition(lambda self: self.consumers)
    @rule(group=st.sampled_from(GROUPS), which=st.integers(0, 2), part=st.integers(0, 5))
    def commit(self, group: str, which: int, part: int) -> None:
        for consumer in self.consumers.get(group, [])[which : which + 1]:
            found = self.given.pop(consumer, None)
            if found is None:
                with pytest.raises(NothingToCommit):
                    consumer.commit()
                continue
            at, batch, _ = found
            count = min(part, len(batch))
            consumer.commit(count if part else None)
            self.done[group][at] += count if part else len(batch)

    @precondition(lambda self: self.consumers)
    @rule(group=st.sampled_from(GROUPS))
    def remove_group(self, group: str) -> None:
        if len(self.consumers) > 1:
            self.topic.remove_group(group)
            self.done.pop(group, None)
            for consumer in self.consumers.pop(group, []):
                self.given.pop(consumer, None)

    @invariant()
    def all_holds(self) -> None:
        for at, partition in enumerate(self.topic.partitions):
            partition.check()
            assert partition.end == len(self.lists[at])
            for group in self.consumers:
                assert partition.find_committed(group) == self.done[group][at]
            lag = partition.end - min((self.done[g][at] for g in self.done), default=0)
            assert partition.segment_count <= -(-lag // 3) + 2
        for _, batch, copy in self.given.values():
            assert batch == copy, "a batch that was given never changes"
        gate = self.topic.gate
        assert gate is not None
        gate.check()
        stored = sum(map(len, self.lists)) - sum(p.released for p in self.topic.partitions)
        assert gate.capacity - gate.free == stored <= 20


def test_a_topic_behaves_as_lists_with_positions() -> None:
    run_state_machine_as_test(
        BufferMachine, settings=settings(max_examples=examples(120), stateful_step_count=40)
    )


@settings(max_examples=examples(60))
@given(
    seed=st.integers(0, 10_000),
    producers=st.integers(1, 4),
    consumers=st.integers(1, 4),
    groups=st.integers(1, 3),
    size=st.sampled_from([1, 2, 10, 100]),
    capacity=st.sampled_from([None, 1, 5, 40]),
)
def test_with_tasks_in_any_order_every_group_has_every_item_once(
    seed: int, producers: int, consumers: int, groups: int, size: int, capacity: int | None
) -> None:
    """Producers send single items and batches. Consumers fail, or their waits are cancelled."""

    async def main(simulation: Simulation) -> dict[str, list[int]]:
        options = TopicOptions(partitions=4, segment_size=3, capacity=capacity)
        topic = MemoryTopic("t", int, options)
        seen: dict[str, list[int]] = {f"g{n}": [] for n in range(groups)}
        chance = random.Random(seed)

        async def produce(first: int) -> None:
            for at in range(0, 30, 3):
                await topic.producer().produce_many([first + at, first + at + 1])
                await topic.producer().produce(first + at + 2)
                await asyncio.sleep(chance.choice((0, 0.001)))

        async def consume(consumer: MemoryConsumer[int]) -> None:
            while True:
                try:
                    async with asyncio.timeout(chance.choice((0.0005, 5))):
                        async for batch in consumer:
                            if chance.random() < 0.1:
                                break  # a failure: the batch is redelivered
                            seen[consumer.group] += batch
                            await consumer.commit()
                        else:
                            return
                except TimeoutError:
                    continue

        made = [one for name in seen for one in topic.consumers(name, consumers, batch_size=size)]
        eaters = [asyncio.create_task(consume(consumer)) for consumer in made]
        await asyncio.gather(*(produce(1000 * n) for n in range(producers)))
        topic.close()
        await asyncio.gather(*eaters)
        assert simulation.loop.time() < 600
        return seen

    seen = run(main, seed).result
    wanted = sorted(1000 * n + at for n in range(producers) for at in range(30))
    for items in seen.values():
        assert sorted(items) == wanted
