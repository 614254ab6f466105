"""Three programs that use one queue of a store at once, and the record of their calls and answers.

Owns: `History`, for `linearizable`. The store's clock stands still between its steps. Commits take
time, some of them fail, and some programs do not wait for their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.providers.priority.linearizable import NEVER, Call, GiveBack
from tests.providers.priority.model import Settings
from tests.providers.priority.places import Faults, place_of
from tests.providers.priority.programs import Programs, local, pause, rounds, simulated
from tests.providers.priority.test_core_model import shown

from millstream.providers.priority import (
    Lease,
    MessageView,
    PriorityQueue,
    PriorityQueueError,
    PriorityStore,
    QueueSettings,
)
from millstream.providers.priority.core.commands import (
    Cancel,
    Complete,
    Dequeue,
    Enqueue,
    Extend,
    Get,
    Page,
    Peek,
    Release,
)
from millstream.runtime import StorageUnavailable
from millstream.runtime.testing import Simulation, run

__all__ = ["BEGIN_MS", "MODEL", "in_files", "in_virtual_time"]

BEGIN_MS = 1_000
RETENTION_MS = 3_600_000
QUEUE = QueueSettings("project", lease_ms=60, attempts=2, retention_ms=RETENTION_MS)
MODEL = Settings("project", lease=60, attempts=2, retention=RETENTION_MS)
PROGRAMS, CALLS, UNKNOWN_MAX = 3, 8, 3
IDS, VALUES = "abcdef", "xy"


class SlowFaults(Faults):
    """Commits take time, and some fail before or after they are stored."""

    def __init__(self, rng: Random, pause: Callable[[float], Awaitable[None]]) -> None:
        super().__init__()
        self.rng, self.pause = rng, pause
        self.share, self.failed = rng.choice([0.0, 0.04]), 0

    async def before(self, queue: str) -> None:
        await self._trouble()

    async def after(self, queue: str) -> None:
        await self._trouble()

    async def _trouble(self) -> None:
        await self.pause(self.rng.uniform(0.0, 0.3))
        if self.rng.random() < self.share:
            self.failed += 1
            raise StorageUnavailable("planted")


class Asked(NamedTuple):
    """A planned call: its form for the model, its coroutine, and its handle."""

    what: Any
    act: Coroutine[Any, Any, Any]
    handle: int


class History:
    """Makes the calls, and records them in their order."""

    def __init__(
        self, kind: str, seed: int, folder: Path, pause: Callable[[float], Awaitable[None]]
    ) -> None:
        self.rng = Random(seed)
        self.place = place_of(kind, folder)
        self.place.faults = self.faults = SlowFaults(self.rng, pause)
        self.place.clock.now_ms = BEGIN_MS
        self.calls: list[Call] = []
        self.clock = [BEGIN_MS]
        self.events = self.unknown = 0
        self.leases: list[tuple[int, Lease]] = []
        self.programs: Programs

    def store(self) -> PriorityStore:
        return self.place.store(events=False)

    async def run(self, programs: Programs) -> list[Call]:
        """Run all programs at once, then read the whole queue."""
        self.programs = programs
        await programs.spawn(0, programs.queues[0].create(QUEUE))
        await asyncio.gather(*(self.program(number) for number in range(PROGRAMS)))
        await self.ask(Asked(Page(), programs.queues[0].page(), 0))
        return self.finished()

    async def program(self, number: int) -> None:
        """Make some calls one after another while time passes."""
        rng = self.rng
        for at in range(CALLS):
            if rng.random() < 0.4:
                self.place.clock.now_ms += rng.choice([5, 20, 60])
                self.clock.append(self.place.clock.now_ms)
            patience = rng.uniform(0.0, 1.0) if rng.random() < 0.12 else None
            if self.unknown >= UNKNOWN_MAX:
                patience = None  # each unknown outcome doubles the search
            await self.ask(self.chosen(number, f"{number}.{at}", patience), patience)
            await self.programs.wait(rng.uniform(0.0, 0.3))

    async def ask(self, asked: Asked, patience: float | None = None) -> None:
        """Make a call and record it. Without an answer within `patience`, cancel it as unknown."""
        self.events += 1
        at, began, failed = len(self.calls), len(self.clock) - 1, self.faults.failed
        self.calls.append(Call(asked.what, self.events, NEVER, (began,)))
        making = self.programs.spawn(asked.handle, asked.act)
        if patience is None:
            await asyncio.wait([making])
        else:
            await self.programs.wait(patience, making)
        if not making.done():
            await self.cancel(making, asked.what, began)
            return
        answer = await self.answer(making, asked.handle)
        self.events += 1
        times = tuple(self.clock[began:])
        call = Call(asked.what, self.calls[at].begun, self.events, times, answer)
        self.calls[at] = call._replace(may_lack=failed < self.faults.failed)

    async def cancel(self, making: asyncio.Task[Any], what: Any, began: int) -> None:
        """Cancel a call. The leases of a cancelled dequeue are released some time later."""
        self.unknown += 1
        making.cancel()
        with suppress(asyncio.CancelledError, PriorityQueueError):
            await making
        if isinstance(what, Dequeue):
            self.calls.append(Call(GiveBack(what.worker), self.events, NEVER, (began,)))

    async def answer(self, making: Awaitable[Any], handle: int) -> Any:
        """Return the answer in the form of the model."""
        try:
            found = await making
        except PriorityQueueError as refusal:
            return type(refusal).__name__
        if isinstance(found, MessageView):
            return shown(found)
        if isinstance(found, list):
            self.leases += [(handle, one) for one in found if isinstance(one, Lease)]
            return [leased(one) if isinstance(one, Lease) else shown(one) for one in found]
        return tuple(one.name if at == state_at(found) else one for at, one in enumerate(found))

    def finished(self) -> list[Call]:
        """Return the calls. Unknown ones get all times at which they may have been done."""
        return [
            call if call.is_known else call._replace(times=tuple(self.clock[call.times[0] :]))
            for call in self.calls
        ]

    def chosen(self, number: int, worker: str, patience: float | None) -> Asked:
        """Choose one of many calls. A call of a lease uses the handle that has the lease."""
        rng, queue = self.rng, self.programs.queues[number]
        kind = rng.choice(["in", "in", "in", "out", "out", "out", "of", "of", "of", "by", "look"])
        if kind == "of" and self.leases:
            return self.of_lease(*rng.choice(self.leases[-4:]))
        if kind == "out":
            count = 1 if patience is not None else rng.choice([1, 1, 2])
            act = queue.dequeue(worker=worker, count=count)
            return Asked(Dequeue(worker, count), act, number)
        if kind == "by":
            id = rng.choice(IDS)
            return Asked(Cancel(id), queue.cancel(id), number)
        return self.look(queue, number) if kind == "look" else self.put(queue, number)

    def put(self, queue: PriorityQueue, number: int) -> Asked:
        id = self.rng.choice(IDS)
        priority = IDS.index(id) % 3 + (self.rng.random() < 0.1)
        metadata = (("project", VALUES[IDS.index(id) % 2]),)
        act = queue.enqueue(b"x", priority=priority, id=id, metadata=metadata)
        return Asked(Enqueue(id, b"x", priority, metadata), act, number)

    def look(self, queue: PriorityQueue, number: int) -> Asked:
        if self.rng.random() < 0.5:
            return Asked(Peek(2), queue.peek(2), number)
        id = self.rng.choice(IDS)
        return Asked(Get(id), queue.get(id), number)

    def of_lease(self, handle: int, lease: Lease) -> Asked:
        id, token = lease.id, lease.token
        how = self.rng.choice(["complete", "complete", "release", "extend"])
        if how == "complete":
            return Asked(Complete(id, token), lease.complete(), handle)
        if how == "extend":
            return Asked(Extend(id, token, 90), lease.extend(0.09), handle)
        delay_ms = self.rng.choice([0, 20])
        act = lease.release(delay_s=delay_ms / 1000)
        return Asked(Release(id, token, delay_ms), act, handle)


def leased(lease: Lease) -> tuple[object, ...]:
    body = (lease.id, lease.payload, lease.priority, lease.metadata, tuple(lease.token))
    return (*body, lease.deadline_ms, lease.attempt, lease.attempts_left, True)


def state_at(found: Any) -> int:
    """The index of the state in an answer."""
    index: int = type(found)._fields.index("state")
    return index


def in_virtual_time(seed: int, folder: Path) -> list[Call]:
    """Record the calls of clients of one simulated silo with a store in memory."""

    async def driver(simulation: Simulation) -> list[Call]:
        history = History("memory", seed, folder, pause)
        async with simulated(simulation, PROGRAMS, history.store) as programs:
            return await history.run(programs)

    calls: list[Call] = run(driver, seed).result
    return calls


async def in_files(seed: int, folder: Path) -> list[Call]:
    """Record the calls of a client and two silos over SQLite files, in real time because of
    threads.
    """
    history = History("embedded", seed, folder, rounds)
    async with local(PROGRAMS, history.store) as programs:
        return await history.run(programs)
