"""Histories of a queue with concurrent callers, late and failing commits, and changing owners.

Ordered by epoch and number of the call, each history must be that of one core that does one
operation after another. The last calls of an owner may have no answer. They were stored up to some
call and not after it, and the contents that the next owner finds show up to which.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.providers.priority.places import Faults, place_of
from tests.providers.priority.row_store import RowStore

from millstream.providers.priority import LeaseToken, OwnerLost, PriorityQueueError, QueueSettings
from millstream.providers.priority.core.commands import (
    Cancel,
    Complete,
    Depth,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Extend,
    Look,
    Page,
    Prioritise,
    Release,
    Values,
    perform,
)
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued
from millstream.providers.priority.store.contract import OwnedQueue
from millstream.runtime import StorageUnavailable

SETTINGS = QueueSettings("project", 2, lease_ms=20, retention_ms=50, shapes=(("region",),))
UNKNOWN = object()
LOOKS = (Page, Depth, Values)
ALL = Page(1_000)


@dataclass
class Call:
    """One operation of an owner, its time, and its outcome."""

    now_ms: int
    what: Any
    request: Request | None
    outcome: Any = UNKNOWN


@dataclass
class Reign:
    """One owner with the contents that it found and its calls in order."""

    owner: OwnedQueue
    found: Any
    found_ms: int
    calls: list[Call] = field(default_factory=list)


class RoughFaults(Faults):
    """Commits take time, and some fail before or after they are stored."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.rng = rng
        self.is_over = False

    async def before(self, queue: str) -> None:
        await self._trouble(0.03)

    async def after(self, queue: str) -> None:
        await self._trouble(0.03)

    async def _trouble(self, share: float) -> None:
        for _ in range(self.rng.randrange(12)):
            await asyncio.sleep(0)
        if not self.is_over and self.rng.random() < share:
            raise StorageUnavailable("planted")


class History:
    """Clients, owners that take over, and a clock over one place."""

    def __init__(self, kind: str, seed: int, directory: Path) -> None:
        self.rng = Random(seed)
        self.place = place_of(kind, directory)
        self.place.faults = self.faults = RoughFaults(self.rng)
        if kind == "memory":
            self.place.store().faults = self.faults  # type: ignore[attr-defined]
        self.reigns: list[Reign] = []
        self.acquiring = asyncio.Lock()
        self.leases: list[tuple[str, LeaseToken]] = []

    async def run(self, steps: int) -> None:
        self.stores = [self.place.store() for _ in range(2)]
        for store in self.stores:
            await store.open()
        await self.take_over()
        clients = [self.client(f"c{number}", steps) for number in range(6)]
        await asyncio.gather(*clients, self.thief(steps))
        self.faults.is_over = True
        await self.take_over()
        for store in self.stores:
            await store.aclose()

    async def take_over(self) -> None:
        """Acquire the queue as another owner. Its calls begin after the contents are recorded."""
        async with self.acquiring:
            while True:
                try:
                    owner = await self.rng.choice(self.stores).acquire("q", SETTINGS)
                    core: Any = owner
                    found_ms = core._core.now_ms
                    self.reigns.append(Reign(owner, await owner.look(ALL), found_ms))
                    return
                except (OwnerLost, StorageUnavailable):
                    continue

    async def thief(self, steps: int) -> None:
        for _ in range(steps // 12):
            for _ in range(self.rng.randrange(150)):
                await asyncio.sleep(0)
            await self.take_over()

    async def client(self, name: str, steps: int) -> None:
        number = 0
        for _ in range(steps):
            if self.rng.random() < 0.3:
                self.place.clock.now_ms += self.rng.choice([0, 1, 5, 15, -7])
            number += 1
            request = Request(name, number, number - 1) if self.rng.random() < 0.5 else None
            await self.ask(self.command(name), request)
            for _ in range(self.rng.randrange(4)):
                await asyncio.sleep(0)

    async def ask(self, what: Any, request: Request | None) -> None:
        reign = self.reigns[-1]
        if reign.owner.is_lost:
            await self.take_over()
            reign = self.reigns[-1]
        call = Call(reign.owner.now_ms(), what, request)
        reign.calls.append(call)
        owner = reign.owner
        asked = owner.look(what) if isinstance(what, LOOKS) else owner.do(what, request)
        try:
            call.outcome = await asked
        except (OwnerLost, StorageUnavailable):
            return
        except PriorityQueueError as refusal:
            call.outcome = type(refusal)
        if isinstance(call.outcome, Dequeued):
            self.leases += [(lease.id, lease.token) for lease in call.outcome.leases]

    def command(self, name: str) -> Any:
        rng = self.rng
        id = f"m{rng.randrange(60)}"
        pairs = (("project", rng.choice("xyz")), ("region", rng.choice("ue")))
        leased, token = rng.choice(self.leases[-9:] or [("m1", LeaseToken(1, 2))])
        return rng.choice(
            [
                Enqueue(id, b"x" * rng.choice([0, 9, 2_000]), rng.randrange(5), pairs),
                Enqueue(f"n{rng.randrange(60)}", b"y", rng.randrange(5), pairs, 10),
                EnqueueMany(tuple(Enqueue(f"{id}{n}", b"", n, pairs) for n in range(3))),
                Dequeue(name, rng.randrange(1, 4)),
                Dequeue(name, 1, pairs[1:]),
                Complete(leased, token),
                Complete(leased, token),
                Extend(leased, token),
                Release(leased, token, rng.choice([0, 5])),
                Cancel(id),
                Prioritise(id, rng.randrange(5)),
                rng.choice([Page(9), Depth(pairs[1:]), Values()]),
            ]
        )


class Replay:
    """One core that does one operation after another."""

    def __init__(self) -> None:
        self.rows = RowStore()
        self.core = PriorityCore.create(1_000, "q", SETTINGS)

    def stored(self) -> None:
        self.rows.apply(self.core.drain())

    def anew(self, now_ms: int, until_ms: int) -> None:
        """Reopen the core as the next owner did. A time without a change may be stored or not."""
        self.stored()
        assert self.latest_ms() <= now_ms <= max(until_ms, self.rows.counters.now_ms)
        self.rows.counters = self.rows.counters._replace(now_ms=now_ms)
        self.core = self.rows.opened()

    def latest_ms(self) -> int:
        return max((row.changed_ms for row in self.rows.messages.values()), default=0)

    def act(self, call: Call) -> Any:
        try:
            if isinstance(call.what, LOOKS):
                look: Look = call.what
                return look.on(self.core, call.now_ms)
            return perform(self.core, call.now_ms, call.what, call.request)
        except PriorityQueueError as refusal:
            return type(refusal)

    def go_through(self, calls: list[Call], after: Reign) -> None:
        """Replay the calls of one owner. Apply calls without an answer until the next owner's
        contents match.
        """
        known = [at for at, call in enumerate(calls) if call.outcome is not UNKNOWN]
        answered = known[-1] + 1 if known else 0
        for at, call in enumerate(calls[:answered]):
            assert call.outcome is not UNKNOWN, f"call {at} was answered by none, later ones were"
            assert self.act(call) == call.outcome, call
        rest = iter(calls[answered:])
        while tuple(self.core.read.page(1_000)) != after.found:
            missing = next(rest, None)
            assert missing is not None, "the next owner found what nobody did"
            self.act(missing)
        self.anew(after.found_ms, max((call.now_ms for call in calls), default=0))


async def check(kind: str, seed: int, steps: int, directory: Path) -> History:
    history = History(kind, seed, directory)
    await history.run(steps)
    replay = Replay()
    reigns = sorted(history.reigns, key=lambda reign: reign.owner.epoch)
    for reign, after in pairwise(reigns):
        replay.go_through(reign.calls, after)
    return history


@pytest.mark.parametrize("seed", range(8))
async def test_a_history_in_memory_is_that_of_one_core(seed: int, tmp_path: Path) -> None:
    history = await check("memory", seed, 60, tmp_path)
    calls = [call for reign in history.reigns for call in reign.calls]
    assert len(history.reigns) > 3 and sum(call.outcome is UNKNOWN for call in calls) > 3
    assert sum(isinstance(call.outcome, Dequeued) for call in calls) > 20


@pytest.mark.parametrize("seed", range(2))
async def test_a_history_in_files_is_that_of_one_core(seed: int, tmp_path: Path) -> None:
    history = await check("embedded", seed, 40, tmp_path)
    assert len(history.reigns) > 2
