"""A hand-over between two managers, with a fault at each single step.

The readers are a model: they handle a log of numbers one by one. With any fault the queue is handed
over, two owners never read at once, and no number is left out. Without a crash no number comes
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context

import pytest

from millstream.runtime import Etag, MemoryStateStore, Row, StorageUnavailable
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import Simulation, run
from millstream.streams import OwnershipOptions, Token
from millstream.streams.ownership.manager import QueueManager
from millstream.streams.ownership.record import QueueProgress
from millstream.streams.ownership.store import OwnershipStore

A, B = "a:1@1", "b:1@1"
QUEUE = "queue-0"
OPTIONS = OwnershipOptions(max_handoff_s=3.0, force_after_s=2.0)
HANDLING_S = 0.04
HUNG_S = 4.0
BOUND_S = 3.0 + 2.0 + HUNG_S + 2 * OPTIONS.poll_s


class World:
    """The state that survives a silo: the store, the log, the live silos."""

    def __init__(self, fault: str, at: int) -> None:
        self.rows = MemoryStateStore()
        self.fault, self.at = fault, at
        self.operations = 0
        self.live = {A, B}
        self.handled: list[int] = []
        self.unclean = 0  # readers that were told that events may be redelivered
        self.reading: list[LogReader] = []
        self.silos: dict[str, SiloDesk] = {}
        self.on_kill: Callable[[str], None] = lambda name: None

    def check_alone(self) -> None:
        active = [reader for reader in self.reading if reader.is_active]
        assert len(active) <= 1, "two readers at once"

    async def operate(self, name: str, act: Callable[[], Etag | Row | None]) -> Etag | Row | None:
        """Make one request to the store, perhaps with the fault."""
        self.operations += 1
        is_hit = self.operations == self.at
        await asyncio.sleep(0.001)
        if is_hit and self.fault == f"kill {name[0]}":
            self.on_kill(name)
            await asyncio.sleep(1e6)
        if is_hit and self.fault == "refused":
            raise StorageUnavailable("refused")
        if is_hit and self.fault == "hangs":
            await asyncio.sleep(HUNG_S)
        result = act()
        if is_hit and self.fault == "killed behind it":
            self.on_kill(name)
            await asyncio.sleep(1e6)
        if is_hit and self.fault == "answer lost":
            raise StorageUnavailable("no answer")
        await asyncio.sleep(0.001)
        return result


class FaultyStore(MemoryStateStore):
    """The store as one silo reaches it."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.world = world
        self.name = name

    async def read(self, key: str, /) -> Row | None:
        found = await self.world.operate(self.name, lambda: self.world.rows.get(key))
        assert found is None or isinstance(found, Row)
        return found

    async def write(self, key: str, data: bytes, expect: Etag | None, fence: int, /) -> Etag:
        rows = self.world.rows
        etag = await self.world.operate(self.name, lambda: rows.put(key, data, expect, fence))
        assert isinstance(etag, str)
        return etag

    async def scan(self, prefix: str, after: str, limit: int, /) -> Sequence[tuple[str, Row]]:
        await self.world.operate(self.name, lambda: None)
        return self.world.rows.range(prefix, after, limit)


class LogReader:
    """Handles numbers from the position on, one at a time."""

    is_acked = True
    is_urgent = False
    unacked = 0

    def __init__(self, world: World, progress: QueueProgress, may_repeat: bool) -> None:
        self.world = world
        self.is_fenced = False
        self.is_active = False
        self.in_flight = 0
        self.undone = 0
        self._may_repeat = may_repeat
        self._next = 1 if progress.upto is None else progress.upto.seq + 1
        self._is_paused = False
        self._task: asyncio.Task[None] | None = None
        self.changed: Callable[[], None] = lambda: None

    def fence(self) -> None:
        self.is_fenced = True

    @property
    def progress(self) -> QueueProgress:
        return QueueProgress(Token(1, self._next - 1)) if self._next > 1 else QueueProgress()

    def handoff(self) -> QueueProgress:
        return self.progress

    def on_stored(self, progress: QueueProgress) -> None: ...

    def start(self) -> None:
        self.is_active = True
        self.world.reading.append(self)
        self.world.check_alone()
        self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self.is_active or self.in_flight:
            if self._is_paused:
                await asyncio.sleep(0.01)
                continue
            self.world.check_alone()
            self.in_flight = 1
            await asyncio.sleep(HANDLING_S)
            if self.world.handled and self._next <= self.world.handled[-1]:
                assert self._may_repeat, f"{self._next} comes again, and nobody said so"
            self.world.handled.append(self._next)
            self._next += 1
            self.in_flight = 0
            self.changed()

    def pause(self) -> None:
        self._is_paused, self.is_active = True, False

    def resume(self) -> None:
        self._is_paused, self.is_active = False, True
        self.world.check_alone()

    async def stop(self) -> None:
        self.abort()
        await asyncio.sleep(0.001)

    def abort(self) -> None:
        self.is_active, self.in_flight = False, 0
        if self._task is not None:
            self._task.cancel()


class SiloDesk:
    """One manager and its silo (`Surroundings`)."""

    def __init__(self, world: World, name: str, is_told: bool) -> None:
        self.world = world
        self.me = name
        self.is_told = is_told
        self.tasks = Tasks(asyncio.get_running_loop(), Context)
        records = OwnershipStore(FaultyStore(world, name), "default")
        self.manager = QueueManager([QUEUE], records, OPTIONS, self, self._begin)
        world.silos[name] = self
        self.manager.start()

    def live(self) -> frozenset[str]:
        return frozenset(self.world.live)

    async def look_for(self, silo: str, /) -> None: ...

    def on_freed(self, queue: str, /) -> None:
        for name, other in self.world.silos.items():
            if name != self.me and self.is_told:
                other.manager.wake(queue)

    def _begin(
        self, queue: str, epoch: int, progress: QueueProgress, *, may_repeat: bool, has_rival: bool
    ) -> LogReader:
        reader = LogReader(self.world, progress, may_repeat)
        self.world.unclean += may_repeat
        reader.changed = lambda: self.manager.wake(queue)
        return reader

    @property
    def is_reading(self) -> bool:
        reader = self.manager.agent(QUEUE)
        return reader is not None and reader.is_active


async def wait_for(condition: Callable[[], bool], within_s: float) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.02)


async def hand_over(world: World, is_told: bool, changes_mind: bool) -> None:
    """Let a read, then b; then stop both. The final owner may be a or b."""
    a, b = (SiloDesk(world, name, is_told) for name in (A, B))

    def kill(name: str) -> None:
        """Crash a silo; a second later the table shows it, and the other silo wants the queue."""
        silo = world.silos.pop(name)
        silo.manager.abort()

        def noticed() -> None:
            world.live.discard(name)
            for other in world.silos.values():
                other.manager.want([QUEUE])
                other.manager.wake_all()

        asyncio.get_running_loop().call_later(1.0, noticed)

    def kill_soon(name: str) -> None:
        asyncio.get_running_loop().call_soon(kill, name)

    world.on_kill = kill_soon
    a.manager.want([QUEUE])
    await wait_for(
        lambda: any(s.is_reading for s in world.silos.values()) or A not in world.silos, 20
    )
    await asyncio.sleep(1.5)
    for wanter, other in [(b, a), (a, b), (b, a)] if changes_mind else [(b, a)]:
        if wanter.me in world.silos and other.me in world.silos:
            other.manager.want([])
            wanter.manager.want([QUEUE])
            await asyncio.sleep(0.02 if changes_mind else 0.0)
    await wait_for(lambda: any(s.is_reading for s in (b, *world.silos.values())), BOUND_S)
    if len(world.silos) == 2:
        await wait_for(lambda: b.is_reading or len(world.silos) < 2, BOUND_S)
    await asyncio.sleep(2.0)
    for silo in list(world.silos.values()):
        started_s = asyncio.get_running_loop().time()
        await silo.manager.stop()
        assert asyncio.get_running_loop().time() - started_s < BOUND_S
        assert not silo.is_reading
    for silo in (a, b):
        await silo.tasks.aclose()


def play(fault: str, at: int, is_told: bool = True, changes_mind: bool = False) -> World:
    found: list[World] = []

    async def main(simulation: Simulation) -> None:
        world = World(fault, at)
        found.append(world)
        await hand_over(world, is_told, changes_mind)

    run(main, 1)
    return found[0]


def check(world: World, has_crash: bool) -> None:
    firsts = list(dict.fromkeys(world.handled))
    assert firsts == list(range(1, len(firsts) + 1)), "in order, nothing left out"
    assert len(firsts) > 20
    if not has_crash:
        assert world.handled == firsts, "nothing comes twice"
    # the fate of an acquisition is not known then
    if not has_crash and world.fault != "answer lost":
        assert world.unclean == 0


STEPS = play("none", 0).operations
FAULTS = ["refused", "answer lost", "hangs"]
CRASHES = ["kill a", "kill b", "killed behind it"]
PARTS = 4
every_step = pytest.mark.parametrize(
    "part", [0, *(pytest.param(at, marks=pytest.mark.slow) for at in range(1, PARTS))]
)


def steps(part: int) -> range:
    """Return the steps of one part; all parts cover each step, and some after the last one."""
    return range(1 + part, STEPS + 12, PARTS)


def test_the_scenario_has_as_many_steps_as_are_tried() -> None:
    assert 8 <= STEPS <= 120
    check(play("none", 0), has_crash=False)


@pytest.mark.one_in(3)
@every_step
@pytest.mark.parametrize("changes_mind", [False, True])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_fails_at_any_step_delays_the_hand_over_and_no_more(
    fault: str, changes_mind: bool, part: int
) -> None:
    for at in steps(part):
        check(play(fault, at, changes_mind=changes_mind), has_crash=False)


@pytest.mark.one_in(3)
@every_step
@pytest.mark.parametrize("changes_mind", [False, True])
@pytest.mark.parametrize("crash", CRASHES)
def test_whoever_dies_at_any_step_the_other_one_reads_on(
    crash: str, changes_mind: bool, part: int
) -> None:
    for at in steps(part):
        check(play(crash, at, changes_mind=changes_mind), has_crash=True)


@pytest.mark.one_in(3)
@every_step
@pytest.mark.parametrize("fault", ["none", *FAULTS])
def test_a_lost_message_costs_one_poll(fault: str, part: int) -> None:
    for at in steps(part):
        check(play(fault, at, is_told=False), has_crash=False)


def test_a_stop_ends_while_the_store_is_away() -> None:
    async def main(simulation: Simulation) -> None:
        world = World("none", 0)
        a = SiloDesk(world, A, is_told=True)
        a.manager.want([QUEUE])
        await wait_for(lambda: a.is_reading, 5)
        for fault in ("refused", "hangs for ever"):

            async def away(*_: object, fault: str = fault) -> None:
                if fault == "refused":
                    raise StorageUnavailable("away")
                await asyncio.sleep(1e6)

            world.operate = away  # type: ignore[method-assign, assignment]
        started_s = asyncio.get_running_loop().time()
        await a.manager.stop()
        assert asyncio.get_running_loop().time() - started_s <= 5.0 + 0.1
        count = len(world.handled)
        await asyncio.sleep(5.0)
        assert len(world.handled) == count and not a.is_reading

    run(main, 1)
