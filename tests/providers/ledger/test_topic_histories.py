"""Owners crash, lose their topic and continue as zombies. Producers repeat until they get an
answer. The history of every run is judged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.examples import examples
from tests.providers.ledger.topic_history import History, Sent
from tests.providers.ledger.worlds import Process, World

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.providers.ledger.inspection import LedgerError
from millstream.providers.ledger.topic.cursors.cursor import Cursor
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.reading.owner_reader import OwnerReader
from millstream.providers.ledger.topic.reading.reader import TopicReader
from millstream.providers.ledger.topic.topic import Topic
from millstream.runtime import CursorTooOld, QueueFenced, StorageError, StreamError
from millstream.runtime.testing import SimLoop

T = TypeVar("T")

OPTIONS = LedgerTopicOptions(
    entry_bytes_max=256,
    in_flight_bytes_max=2048,
    enqueue_wait_s=2.0,
    snapshot_entries=4,
    cache_bytes_max=300,
    tend_every_s=5.0,
)
SETTINGS = LedgerTopicSettings(ledger_entries_max=6, ledger_age_s=60.0)


class Owner:
    """A topic that a process owns. The process may be dead or a zombie."""

    def __init__(self, process: Process, topic: Topic, cursor: Cursor) -> None:
        self.process = process
        self.topic = topic
        self.cursor = cursor
        self.is_alive = True


class Producer:
    """Sends sequences in order to one owner at a time, and repeats each until it is
    acknowledged.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.seq = 0
        self.unheard: list[TopicMessage] = []
        self.out: list[tuple[Sent, asyncio.Future[list[int | None]]]] = []
        self.owner: Owner | None = None
        self.has_failed = False

    def next_messages(self, count: int) -> list[TopicMessage]:
        """Return the failed messages, followed by new ones."""
        self.has_failed = False
        new = range(self.seq + 1, self.seq + 1 + count)
        self.seq += count
        made = [TopicMessage(f"{self.name}{seq}".encode() * 3, self.name, seq) for seq in new]
        again = [] if self.out else list(self.unheard)
        self.unheard += made
        return again + made


class Run:
    """One history that is being made. A seed or hypothesis chooses the order of its methods."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.world.bookies.delay_s = 0.02
        self.history = History(self.world)
        self.history.watch()
        self.owners: list[Owner] = []
        self.producers = [Producer(name) for name in "pqr"]
        self.epoch = 0

    async def take_over(self) -> None:
        """Open the topic in a new process. Earlier owners that are alive continue."""
        self.epoch += 1
        process = self.world.process()
        try:
            topic = await process.topics.open("t", self.epoch, OPTIONS, SETTINGS)
            self.history.opened.append((self.epoch, topic.reader.end))
            cursor = await topic.cursors.open("c")
        except (StreamError, StorageError):
            process.kill()
            return
        done = self.history.acknowledged
        # the cursor skips no message
        assert set(range(topic.reader.first, cursor.mark + 1)) <= done
        # trimmed messages were acknowledged
        assert set(range(1, topic.reader.first)) <= done, "what was not acknowledged is gone"
        self.owners.append(Owner(process, topic, cursor))

    def crash(self, which: int) -> None:
        """Crash the owner, as SIGKILL does. Its pending answers are lost."""
        owner = self.owners[which % len(self.owners)]
        owner.is_alive = False
        owner.process.kill()
        for producer in self.producers:
            if producer.owner is owner:
                producer.owner = None
                producer.out.clear()

    async def close(self, which: int) -> None:
        owner = self.owners[which % len(self.owners)]
        if owner.is_alive:
            owner.is_alive = False
            await owner.topic.aclose()

    def send(self, who: int, which: int, count: int) -> None:
        """Send to the producer's owner, or to any recent owner, which may be a zombie."""
        self.hear()
        producer = self.producers[who % len(self.producers)]
        if producer.owner is None or not producer.out:
            producer.owner = self.owners[-1 - which % min(2, len(self.owners))]
        owner = producer.owner
        assert owner is not None
        if not owner.is_alive or (producer.out and len(producer.unheard) > 30):
            return
        if producer.has_failed and producer.out:
            return  # failed messages go first, once the results of the others are known
        messages = producer.next_messages(count)
        self.history.step += 1
        sent = Sent(owner.topic.epoch, messages, self.history.step)
        self.history.sent.append(sent)
        try:
            future = owner.topic.append(messages)
        except StreamError as error:
            sent.failed = type(error).__name__
            producer.has_failed = True
        else:
            producer.out.append((sent, future))

    def hear(self) -> None:
        """Record the results of appends."""
        for producer in self.producers:
            self.history.step += 1
            out, producer.out = producer.out, []
            for sent, future in out:
                if not future.done():
                    producer.out.append((sent, future))
                    continue
                sent.ended = self.history.step
                error = future.exception()
                if error is None:
                    sent.numbers = future.result()
                    heard = set(sent.messages)
                    producer.unheard = [one for one in producer.unheard if one not in heard]
                else:
                    assert isinstance(error, StreamError), error
                    sent.failed = type(error).__name__
                    producer.has_failed = True

    async def read(self, which: int, back: int) -> None:
        """Let an owner and a reader elsewhere read a page."""
        owner = self.owners[which % len(self.owners)]
        reader = self.world.process().topics.reader("t")
        sources: list[OwnerReader | TopicReader] = [reader, owner.topic.reader]
        for source in sources[: 1 + owner.is_alive]:
            try:
                number = max(1, owner.topic.reader.end - back)
                self.history.read(list(await source.read(number, 7, 2**20)))
            except StreamError:
                pass
        await reader.aclose()

    async def acknowledge(self, which: int, count: int, skip: bool) -> None:
        """Let the cursor's reader take a few messages and acknowledge them, perhaps without the
        first.
        """
        owner = self.owners[which % len(self.owners)]
        if not owner.is_alive:
            return
        try:
            found = await owner.cursor.read(count, 2**20)
        except CursorTooOld:
            raise AssertionError("a cursor lost messages") from None
        except StreamError:
            return
        self.history.read(list(found))
        numbers = [one.number for one in found][skip:]
        self.history.acknowledged |= set(numbers)
        owner.cursor.acknowledge(0, also=numbers)
        if skip:
            owner.cursor.rewind()

    def trouble(self, kind: str) -> None:
        if kind in {"refused", "lost", "hang"}:
            self.world.bookies.faults.append(kind)
        elif kind == "create":
            self.world.bookies.refuse_creation += 2
        elif kind == "recover":
            self.world.bookies.refuse_recovery += 1
        else:
            act, is_done = kind.split()
            self.world.store.fail(act, "ledger/c/", is_done=is_done == "lost")  # type: ignore[arg-type]

    async def fence(self) -> None:
        """Recover the current ledger without taking over the topic."""
        spans = self.owners[-1].topic.record.spans
        if spans:
            try:
                await self.world.process().ledgers.recover(spans[-1].ledger)
            except (LedgerError, StorageError):
                pass

    async def sweep(self) -> None:
        try:
            await self.world.process().topics.sweep()
        except StorageError:
            pass

    async def end(self) -> None:
        """End the faults, send everything, close the topic and judge the history."""
        self.world.bookies.faults.clear()
        self.world.bookies.refuse_creation = self.world.bookies.refuse_recovery = 0
        self.world.bookies.rate = self.world.store.rate = 0.0
        await asyncio.sleep(60)
        while not self.owners or self.is_over(self.owners[-1]):
            await self.take_over()
        for producer in self.producers:
            await self.drain(producer)
        last = self.owners[-1]
        last.cursor.rewind()
        given: set[int] = set()
        while found := await last.cursor.read(100, 2**20):
            self.history.read(list(found))
            given |= {one.number for one in found}
        missing = set(range(1, last.topic.reader.end)) - given - self.history.acknowledged
        assert not missing, f"the cursor skipped {missing}"  # cursors skip nothing
        await last.topic.aclose()
        self.history.judge()

    def is_over(self, owner: Owner) -> bool:
        """Is the owner dead or fenced, or did a later owner begin to open the topic?"""
        try:
            owner.topic.append([])
        except StreamError:
            return True
        return not owner.is_alive or owner.topic.epoch != self.epoch

    async def drain(self, producer: Producer) -> None:
        """Send until everything is acknowledged."""
        for _ in range(100):
            self.hear()
            if not producer.out and not producer.unheard:
                return
            if not producer.out:
                producer.owner = self.owners[-1]
                self.send(self.producers.index(producer), 0, 0)
            await asyncio.sleep(1)
        raise AssertionError(f"{producer.name} is never done: {producer.unheard}")


KINDS = [
    *("refused", "lost", "hang", "create", "recover"),
    *("write lost", "write not", "read not", "clear lost"),
]


class TopicMachine(RuleBasedStateMachine):
    """Steps in an order that hypothesis chooses and shrinks."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=SimLoop)
        self.runner.__enter__()

    def do(self, coro: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(coro)

    @initialize(seed=st.integers(0, 1000))
    def begin(self, seed: int) -> None:
        async def made() -> Run:
            run = Run(seed)
            await run.take_over()
            return run

        self.run_ = self.do(made())

    @rule(who=st.integers(0, 2), which=st.integers(0, 1), count=st.integers(1, 5))
    def send(self, who: int, which: int, count: int) -> None:
        async def sent() -> None:
            self.run_.send(who, which, count)

        self.do(sent())

    @rule(wait_s=st.sampled_from([0.0, 0.005, 0.05, 0.5, 3.0, 70.0]))
    def advance(self, wait_s: float) -> None:
        self.do(asyncio.sleep(wait_s))

    @rule()
    def take_over(self) -> None:
        self.do(self.run_.take_over())

    @rule(kind=st.sampled_from(KINDS))
    def trouble(self, kind: str) -> None:
        self.run_.trouble(kind)

    @precondition(lambda self: len(self.run_.owners) > 0)
    @rule(which=st.integers(0, 3))
    def crash(self, which: int) -> None:
        self.run_.crash(which)

    @precondition(lambda self: len(self.run_.owners) > 0)
    @rule(which=st.integers(0, 3))
    def close(self, which: int) -> None:
        self.do(self.run_.close(which))

    @precondition(lambda self: len(self.run_.owners) > 0)
    @rule(which=st.integers(0, 3), back=st.integers(0, 40))
    def read(self, which: int, back: int) -> None:
        self.do(self.run_.read(which, back))

    @precondition(lambda self: len(self.run_.owners) > 0)
    @rule(which=st.integers(0, 3), count=st.integers(1, 20), skip=st.booleans())
    def acknowledge(self, which: int, count: int, skip: bool) -> None:
        self.do(self.run_.acknowledge(which, count, skip))

    @precondition(lambda self: len(self.run_.owners) > 0)
    @rule()
    def fence(self) -> None:
        self.do(self.run_.fence())

    @rule()
    def sweep(self) -> None:
        self.do(self.run_.sweep())

    @invariant()
    def heard(self) -> None:
        if hasattr(self, "run_"):
            self.run_.hear()

    def teardown(self) -> None:
        try:
            if hasattr(self, "run_"):
                self.do(self.run_.end())
                self.do(self.run_.world.aclose())
        finally:
            self.runner.close()


TopicMachine.TestCase.settings = settings(
    max_examples=examples(20),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestTopicHistories = TopicMachine.TestCase


async def random_run(seed: int, steps: int) -> Run:
    """Make a longer random history."""
    random, run = Random(seed), Run(seed)
    run.world.bookies.rate, run.world.store.rate = (
        random.choice([0, 0.02]),
        random.choice([0, 0.03]),
    )
    await run.take_over()
    for _ in range(steps):
        await asyncio.sleep(random.choice([0, 0, 0, 0.003, 0.05, 0.3]))
        if not run.owners:
            await run.take_over()
            continue
        which = random.randrange(4)
        step = random.random()
        if step < 0.6:
            run.send(random.randrange(3), random.choice([0, 0, 0, 1]), random.randint(1, 5))
        elif step < 0.7:
            await run.read(which, random.randrange(40))
        elif step < 0.85:
            await run.acknowledge(-1 if which else 0, random.randint(1, 20), random.random() < 0.3)
        elif step < 0.9:
            run.trouble(random.choice(KINDS))
        elif step < 0.95:
            await run.take_over()
        elif step < 0.97:
            run.crash(which)
        elif step < 0.98:
            await run.close(which)
        elif step < 0.99:
            await run.fence()
        else:
            await run.sweep()
            await asyncio.sleep(random.choice([1, 100, 4000]))
    await run.end()
    await run.world.aclose()
    return run


@pytest.mark.one_in(4)
@pytest.mark.parametrize("seed", range(12))
def test_histories_of_chance_keep_what_was_acknowledged(seed: int) -> None:
    with asyncio.Runner(loop_factory=SimLoop) as runner:
        run = runner.run(random_run(seed, 300))
    assert sum(sent.numbers is not None for sent in run.history.sent) > 10
    assert len(run.history.opened) > 3


def test_fenced_is_what_zombies_hear() -> None:
    """Zombies get this error and not a weaker one, with which the histories would be right, too."""

    async def main() -> None:
        run = Run(1)
        await run.take_over()
        run.send(0, 0, 3)
        await asyncio.sleep(1)
        await run.take_over()
        zombie = run.owners[0].topic
        with pytest.raises(StreamError):
            await zombie.append([TopicMessage(b"z")])
        with pytest.raises(QueueFenced):
            zombie.append([TopicMessage(b"z")])
        await run.end()

    with asyncio.Runner(loop_factory=SimLoop) as runner:
        runner.run(main())
