"""Staged batches under a crash, a failure or a second desk between any two steps.

A step is an operation of the store or an enqueue; a fault is before or after one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.runtime import MemoryStateStore, QueueFull, StorageUnavailable, StreamError
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import Simulation, run
from millstream.streams import OutMessage, Token
from millstream.streams.staging.batch import Manifest
from millstream.streams.staging.coordinator import (
    SILENT_S,
    SWEEP_AFTER_S,
    Begun,
    Done,
    Gone,
    Leased,
    Waiting,
)
from millstream.streams.staging.desk import WriterDesk
from millstream.streams.staging.rows import (
    CHUNK_BYTES_MAX,
    Chunk,
    StagedMessage,
    StagedRows,
    StoredChunk,
)

T = TypeVar("T")
LANES = ["q0", "q1"]
BATCHES, PARTS, CHUNKS, MESSAGES = 2, 2, 2, 3
WAIT_S = 2.0


class World:
    """The state that survives a crash; counts steps, and causes faults at some of them."""

    def __init__(self, faults: Mapping[int, str]) -> None:
        self.store = MemoryStateStore()
        self.queues: dict[str, list[bytes]] = {lane: [] for lane in LANES}
        self.steps = 0
        self._faults = dict(faults)
        self.desks = 0
        self.desk: Desk
        self.new_desk()

    def new_desk(self) -> Desk:
        self.desks += 1
        self.desk = Desk(self)
        return self.desk

    def fault_now(self, when: str) -> str:
        """Return the fault that is due now: "crash", "fail" or "replace"."""
        fault = self._faults.get(self.steps, "")
        if not fault.startswith(when):
            return ""
        del self._faults[self.steps]
        return fault.removeprefix(when)

    @property
    def has_failed(self) -> bool:
        """Have all faults happened?"""
        return not self._faults


class Desk:
    """One run of a silo: its desk, and the interfaces that the desk uses."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.is_dead = False
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        self.rows = StagedRows(self, "default")
        self.desk = WriterDesk(self.rows, "w", self, self.tasks.start)

    async def aclose(self) -> None:
        return None

    async def read(self, *args: Any) -> Any:
        return await self.step(lambda: self.world.store.read(*args))

    async def write(self, *args: Any) -> Any:
        return await self.step(lambda: self.world.store.write(*args))

    async def clear(self, *args: Any) -> Any:
        return await self.step(lambda: self.world.store.clear(*args))

    async def scan(self, *args: Any) -> Any:
        return await self.step(lambda: self.world.store.scan(*args))

    def check(self, message: OutMessage, /) -> None:
        """Accept all messages."""

    async def store(self, messages: Sequence[OutMessage], /) -> list[Token | StreamError | None]:
        return await self.step(lambda: self.enqueue(messages), QueueFull("full"))

    async def enqueue(self, messages: Sequence[OutMessage]) -> Any:
        """Store messages in a queue that drops repeats by sequence, and has no gaps."""
        for message in messages:
            assert message.mark is not None
            queue = self.world.queues[message.mark.producer.removeprefix("w/")]
            assert message.mark.seq <= len(queue), "a hole"
            if message.mark.seq == len(queue):
                queue.append(message.items[0])
            assert queue[message.mark.seq] == message.items[0], "another message had its sequence"
        return [None] * len(messages)

    async def step(self, do: Callable[[], Coroutine[Any, Any, T]], error: Any = None) -> T:
        world = self.world
        world.steps += 1
        await self.fail(world.fault_now("before "), error)
        found = await do()
        await self.fail(world.fault_now("after "), error)
        return found

    async def fail(self, fault: str, error: Any) -> None:
        if fault == "crash":
            self.is_dead = True
        elif fault == "fail":
            raise error or StorageUnavailable("the store did not answer")
        elif fault == "replace":
            self.world.new_desk()  # this desk continues, too
        await asyncio.sleep(0)
        if self.is_dead:
            await asyncio.get_running_loop().create_future()


class Spark:
    """Writes batches; repeats failed work with another attempt, or as a restarted query."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._attempts = 0

    async def write(self) -> None:
        for batch in range(BATCHES):
            while not await self.try_batch(batch):
                pass

    async def try_batch(self, batch: int) -> bool:
        manifests = []
        for part in range(PARTS):
            found = await self.write_part(batch, part)
            if found is None:
                return await self.commit(batch, [])
            manifests.append(found)
        return await self.commit(batch, manifests)

    async def write_part(self, batch: int, part: int) -> Manifest | None:
        """Write a part; return None if the batch is decided."""
        while True:
            self._attempts += 1
            name = f"u{self._attempts}"
            desk = self._world.desk
            begun = await self.ask(desk, desk.desk.begin(name, batch, part))
            if isinstance(begun, Done):
                return None
            counts = [await self.stage(name, batch, part, index) for index in range(CHUNKS)]
            if isinstance(begun, Begun) and all(counts):
                return Manifest(name, part, LANES, [count for count in counts if count])

    async def stage(self, name: str, batch: int, part: int, index: int) -> list[int] | None:
        messages = [
            StagedMessage((number + index) % 2, "k", [f"{batch}.{part}.{index}.{number}".encode()])
            for number in range(MESSAGES)
        ]
        chunk, desk = Chunk("rows", LANES, messages), self._world.desk
        lease = await self.ask(desk, desk.desk.lease(name, 10))
        if not isinstance(lease, Leased):
            return None
        if await self.ask(desk, put(desk, name, index, chunk)) is None:
            return None
        return chunk.counts()

    async def commit(self, batch: int, manifests: list[Manifest]) -> bool:
        """Commit; return False if the batch must run again."""
        for _ in range(2):
            desk = self._world.desk
            answer = await self.ask(desk, desk.desk.commit(batch, manifests, WAIT_S / 2))
            if isinstance(answer, Done):
                return True
            if isinstance(answer, Gone):
                return False
        return False

    async def ask(self, desk: Desk, question: Coroutine[Any, Any, T]) -> T | None:
        """Return the answer; None if there was none."""
        answer: T | None = None
        try:
            async with asyncio.timeout(WAIT_S):
                answer = await question
        except (TimeoutError, StorageUnavailable, StreamError):
            pass
        if not desk.is_dead:
            return answer
        if self._world.desk is desk:
            await desk.tasks.aclose()
            self._world.new_desk()
        return None


async def put(desk: Desk, name: str, index: int, chunk: Chunk) -> bool:
    await desk.rows.put(name, index, StoredChunk(chunk))
    return True


def simulated(go: Callable[[], Coroutine[Any, Any, T]]) -> T:
    async def main(simulation: Simulation) -> T:
        return await go()

    return run(main, 1, max_virtual_s=100 * SILENT_S).result


def expected() -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {lane: [] for lane in LANES}
    for batch in range(BATCHES):
        for part in range(PARTS):
            for index in range(CHUNKS):
                for number in range(MESSAGES):
                    text = f"{batch}.{part}.{index}.{number}".encode()
                    found[LANES[(number + index) % 2]].append(text)
    return found


async def write_under(faults: Mapping[int, str]) -> World:
    """Write both batches, then wait until nothing is left to sweep."""
    world = World(faults)
    await Spark(world).write()
    for wait_s in (0.0, SILENT_S, SWEEP_AFTER_S) * (len(faults) + 2):
        await asyncio.sleep(wait_s)  # each crash starts the count again
        await Spark(world).ask(world.desk, keep(world.desk))
    await world.desk.tasks.aclose()
    return world


async def keep(desk: Desk) -> None:
    await desk.desk.keep_house()


def assert_whole(world: World) -> None:
    assert world.queues == expected()
    assert world.store.range("staged/default/chunk/", "", 10) == []


STEPS = simulated(lambda: write_under({})).steps


@pytest.mark.parametrize("fault", ["crash", "fail", "replace"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_fault_at_any_step_leaves_every_message_once_in_order_and_no_chunk(
    when: str, fault: str
) -> None:
    for at in range(1, STEPS + 1):
        world = simulated(lambda at=at: write_under({at: f"{when} {fault}"}))  # type: ignore[misc]
        assert_whole(world)
        assert world.has_failed


FAULTS = [
    f"{when} {fault}" for when in ("before", "after") for fault in ("crash", "fail", "replace")
]


@given(faults=st.dictionaries(st.integers(1, 2 * STEPS), st.sampled_from(FAULTS), max_size=12))
@settings(deadline=None)
def test_many_faults_leave_every_message_once_in_order_and_no_chunk(faults: dict[int, str]) -> None:
    assert_whole(simulated(lambda: write_under(faults)))


def test_what_was_decided_is_delivered_by_whoever_keeps_house_next() -> None:
    """Driver and silo crash after the decision."""

    async def go() -> World:
        world = World({})
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        desk = world.desk
        await desk.desk._ask(lambda core: core.commit(0, [m for m in manifests if m], 0.0))
        await desk.tasks.aclose()
        await world.new_desk().desk.keep_house()
        await asyncio.sleep(1.0)
        await world.desk.tasks.aclose()
        return world

    kept = simulated(go).queues
    assert kept == {lane: [i for i in found if i[:1] == b"0"] for lane, found in expected().items()}


def test_messages_that_a_queue_has_accepted_are_not_sent_to_a_queue_again() -> None:
    """Another queue would not know them, after a change of the number of queues."""

    async def main() -> list[list[bytes]]:
        world, sent = World({}), []
        enqueue = world.desk.enqueue

        async def takes_part(messages: Sequence[OutMessage]) -> Any:
            sent.append([message.items[0] for message in messages])
            if len(sent) > 2:
                return await enqueue(messages)
            found = await enqueue(messages[:1])
            return [*found, *(QueueFull("full") for _ in messages[1:])]

        world.desk.enqueue = takes_part  # type: ignore[method-assign]
        assert await Spark(world).try_batch(0)
        await world.desk.tasks.aclose()
        return sent[:3]

    first = [f"0.0.0.{number}".encode() for number in range(MESSAGES)]
    assert simulated(main) == [first, first[1:], first[2:]]


def test_a_batch_that_is_aborted_takes_no_more_chunks_whichever_silo_is_asked() -> None:
    async def go() -> list[object]:
        world = World({})
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        await world.desk.desk.abort(0)
        world.new_desk()
        names = [one.attempt for one in manifests if one is not None]
        found = [await world.desk.desk.lease(name, 1) for name in names]
        assert found == [Gone([name]) for name in names]
        return [await world.desk.desk.begin("after", 0, 0)]

    assert simulated(go) == [Begun()]


def test_nothing_is_stored_that_has_not_changed() -> None:
    async def go() -> list[int]:
        world = World({})
        desk, steps = world.desk.desk, []
        for _ in range(3):
            before = world.steps
            assert await desk.begin("u", 0, 0) == Begun()
            steps.append(world.steps - before)
        return steps

    assert simulated(go) == [2, 0, 0]  # the row is read and written, and known from then on


def test_a_desk_that_was_replaced_looks_again_before_it_says_that_something_is_gone() -> None:
    async def go() -> None:
        world = World({})
        old = world.desk.desk
        await old.begin("u", 0, 0)
        new = world.new_desk().desk
        await new.begin("v", 0, 1)
        assert isinstance(await old.lease("v", 1), Leased)
        before = world.steps
        assert await old.lease("w", 1) == Gone(["w"])
        assert world.steps - before == 1  # it stored the row last

    simulated(go)


def test_a_desk_whose_batch_another_one_has_delivered_stops_at_the_next_chunk() -> None:
    async def go() -> int:
        world = World({})
        spark, old = Spark(world), world.desk
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        found = [one for one in manifests if one is not None]

        async def full(messages: Sequence[OutMessage]) -> Any:
            raise QueueFull("full")

        old.enqueue = full  # type: ignore[method-assign]
        assert isinstance(await old.desk.commit(0, found, 0.0), Waiting)
        new = world.new_desk()
        assert await new.desk.commit(0, found, WAIT_S) == Done(PARTS * CHUNKS * MESSAGES)
        await new.desk.keep_house()
        before = world.steps
        await asyncio.sleep(60.0)
        await old.tasks.aclose()
        await new.tasks.aclose()
        return world.steps - before

    # the chunk is missing, and the row says that nothing is to be delivered
    assert simulated(go) == 2


def chunks_in(world: World) -> int:
    return len(world.store.range("staged/default/chunk/", "", 100))


def test_chunks_that_were_delivered_are_deleted_at_once_and_their_names_a_little_later() -> None:
    async def go() -> None:
        world = World({})
        desk = world.desk
        assert await Spark(world).try_batch(0)
        assert chunks_in(world) == PARTS * CHUNKS
        assert await desk.desk.keep_house() == pytest.approx(SWEEP_AFTER_S, abs=0.1)
        assert chunks_in(world) == 0
        state, _ = await world.new_desk().desk.state()
        assert set(state.dropped.values()) == {0}, "their room is not free"
        await put(desk, "u1", 0, Chunk("rows", LANES, []))  # a late write of a silo that hung
        await asyncio.sleep(SWEEP_AFTER_S + 1)
        assert await desk.desk.keep_house() is None
        assert chunks_in(world) == 0
        state, _ = await world.new_desk().desk.state()
        assert not state.has_staged

    simulated(go)


def test_an_attempt_that_went_silent_is_dropped_and_then_swept() -> None:
    async def go() -> None:
        world = World({})
        desk = world.desk
        assert await Spark(world).write_part(0, 0) is not None
        assert await desk.desk.keep_house() == pytest.approx(SILENT_S, abs=0.1)
        await asyncio.sleep(SILENT_S + 1)
        assert await desk.desk.keep_house() == pytest.approx(SWEEP_AFTER_S, abs=0.1)
        assert await desk.desk.lease("u1", 1) == Gone(["u1"])
        assert chunks_in(world) == CHUNKS
        await asyncio.sleep(SWEEP_AFTER_S + 1)
        assert await desk.desk.keep_house() is None and chunks_in(world) == 0

    simulated(go)


def test_the_row_of_a_writer_that_is_used_once_is_removed_and_may_be_made_anew() -> None:
    async def go() -> None:
        world = World({})
        desk, rows = world.desk.desk, StagedRows(world.store, "default")
        await desk.keep_house()
        await desk.begin("u", 0, 0, once=True)
        await desk.abort(0)
        await asyncio.sleep(SWEEP_AFTER_S + 1)
        left_s = SILENT_S - SWEEP_AFTER_S - 1
        assert await desk.keep_house() == pytest.approx(left_s, abs=0.1)
        assert len(await rows.writers("", 10)) == 1
        await asyncio.sleep(left_s)
        assert await desk.keep_house() is None
        assert await rows.writers("", 10) == []
        assert await desk.begin("v", 0, 0) == Begun()
        assert len(await rows.writers("", 10)) == 1

    simulated(go)


def test_a_chunk_that_is_stored_does_not_change() -> None:
    async def go() -> None:
        rows = StagedRows(MemoryStateStore(), "default")

        async def put(name: str, messages: list[StagedMessage], lanes: list[str]) -> Chunk:
            return await rows.put(name, 0, StoredChunk(Chunk("rows", lanes, messages)))

        first = await put("u", [StagedMessage(0, "k", [b"1"])], ["q0"])
        assert await put("u", [StagedMessage(0, "k", [b"1"])], ["q0"]) == first
        moved = await put("u", [StagedMessage(1, "k", [b"1"])], ["q0", "q1"])
        assert moved == first  # its lanes are those of the first time
        with pytest.raises(ValueError, match="is already stored with other messages"):
            await put("u", [StagedMessage(0, "k", [b"2"])], ["q0"])
        with pytest.raises(ValueError, match="letters, digits and hyphens"):
            await put("../u", [], [])
        large = [StagedMessage(0, "k", [bytes(CHUNK_BYTES_MAX)])] * 2
        with pytest.raises(ValueError, match="CHUNK_BYTES_MAX is 1048576"):
            StoredChunk(Chunk("rows", ["q0"], large))

    simulated(go)


def test_writers_are_found_by_their_rows() -> None:
    async def go() -> list[str]:
        world = World({})
        await Spark(world).write()
        await world.desk.tasks.aclose()
        return [name for name, _ in await StagedRows(world.store, "default").writers("", 10)]

    assert simulated(go) == ["w"]


def test_a_chunk_that_is_lost_holds_its_batch_up_and_nothing_is_spun() -> None:
    async def go() -> tuple[object, int]:
        world = World({})
        spark = Spark(world)
        manifests = [await spark.write_part(0, part) for part in range(PARTS)]
        for key, row in world.store.range("staged/default/chunk/", "", 1):
            world.store.remove(key, row.etag, 0)
        before = world.steps
        found = [one for one in manifests if one is not None]
        answer = await world.desk.desk.commit(0, found, WAIT_S)
        await world.desk.tasks.aclose()
        return answer, world.steps - before

    answer, steps = simulated(go)
    assert isinstance(answer, Waiting) and steps < 30
