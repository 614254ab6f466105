"""Suite `ledger`: like `streams`, through ledgers, embedded or replicated, as the seed decides.

Embedded: three or more silos are processes of one machine and share a directory. Replicated: each
of three or four silos is a machine with a directory and a bookie of its own. Segments and ledgers
are small. The faults:

- Processes are killed, also all at once; machines lose power; silos join and leave.
- Disks fill up, stall and fail to sync; the store and the table fail for a while.
- Owners write after they handed over, or pause and continue.
- Replicated: clocks differ, and at most one of the next three losses happens.
- One directory is wiped or restored from an old state, which a ledger with two acknowledgements
  survives once.
- Replicas of one bookie are damaged; all replicas must be good soon after the last fault.
- A silo is lost for good with its directory, and another one joins. Once its replicas are written
  again, a second silo is lost.
- In some runs one file of the state store with rows of ledgers is restored from a backup, while
  silos run or are down. Then an operator restores the rows that are named.

The suite judges the promises of `streams` and these:

- Acknowledged messages exist under their numbers after a last power cut; refused ones do not.
- A number has the same content for all readers at any time, and no number is missing.
- A message that was acknowledged before another was sent has the smaller number.
- The sequences of a producer are stored once, in their order.
- Only handled messages are deleted.
- With an old file, a queue works, or is refused with the name of a row of that file and works after
  the newer rows are restored. Queues without a row in the file work all the time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

from tests.sim.suites.run.plan import Plan, make_plan
from tests.sim.suites.run.programs import Program, Programs
from tests.sim.suites.streams.repeating import Repeater, Writer
from tests.sim.suites.streams.suite import (
    DURATION_S,
    RECOVERY_S,
    VOTES_S,
    StreamsRun,
    difference,
    play,
)
from tests.sim.suites.streams.traffic import KEYS, Publisher

from millstream.providers.ledger import (
    BookieOptions,
    LedgerOptions,
    LedgerTopicOptions,
    LedgerTopicSettings,
    Quorum,
)
from millstream.runtime import MemoryMembershipTable, MemoryStateStore, StreamError
from millstream.runtime.testing import (
    FailingStore,
    FailingTable,
    Host,
    Random,
    Simulation,
    make_random,
)
from millstream.streams import QueueAdapterFactory

from .book import Book
from .damage import Damage
from .leaving import Leaving
from .old_files import OldFiles
from .queues import NotedAdapter, NotedLedgerQueues, Tail, Together, read_log
from .troubles import (
    HOSTS_MAX,
    KINDS,
    REPLICATED_KINDS,
    SILOS,
    all_at_once,
    comings_and_goings,
    joins,
    one_loss,
    outages,
)

__all__ = ["LedgerRun", "ledger"]

MACHINE = "silo-0"
KIB = 1 << 10
SYNC_S = ((0.0001, 0.002), (0.001, 0.02), (0.02, 0.2))
QUORUMS = (None, Quorum(3, 3, 2), Quorum(2, 2, 2), Quorum(4, 3, 2), Quorum(3, 2, 2))
LAST_APPENDS_S = 10.0  # the time in which a message of unknown fate may still be stored


def options_of(rng: Random) -> LedgerOptions:
    """Return options with small files, ledgers and times."""
    return LedgerOptions(
        bookie=BookieOptions(
            segment_bytes=rng.choice((16 * KIB, 64 * KIB, 1024 * KIB)),
            allocate_bytes=4 * KIB,
            entry_bytes_max=8 * KIB,
            frame_bytes_max=8 * KIB,
            reserve_bytes=16 * KIB,
            cache_bytes=rng.choice((1 * KIB, 1024 * KIB)),
        ),
        settings=LedgerTopicSettings(
            ledger_entries_max=rng.choice((2, 7, 40)), ledger_age_s=rng.choice((3.0, 60.0))
        ),
        topic=LedgerTopicOptions(
            entry_bytes_max=4 * KIB,
            in_flight_bytes_max=16 * KIB,
            enqueue_wait_s=3.0,
            snapshot_entries=rng.choice((3, 1000)),
            cache_bytes_max=rng.choice((1 * KIB, 1024 * KIB)),
            retention_s=rng.choice((None, None, 0.0, 5.0)),
            tend_every_s=1.0,
        ),
    )


class LedgerRun(StreamsRun):
    """The notes of this suite; `directory`: the directory of the ledgers."""

    stop_every_s = (5.0, 20.0)
    directory = ""

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        self.book = Book(self)
        self.adapters: dict[str, NotedAdapter] = {}
        self.options_of_queues = options_of(self.dice("options"))
        self._store = FailingStore(self.dice("store"))
        self._stores = {"default": self._store}
        self._table = FailingTable(self.dice("table"))
        self.old_files: OldFiles | None = None
        self._stubborn_share = self.dice("stubborn").choice((0.0, 1.0))

    def dice(self, name: str) -> Random:
        """Return the seeded random of one purpose."""
        return make_random(self.simulation.seed, "ledger", name)

    def queues_for(self, host: Host) -> QueueAdapterFactory:
        """Return the ledger provider, observed."""
        return NotedLedgerQueues(self, self.directory, self.options_of_queues)

    def publisher(self, host: Host, name: str) -> Program:
        """Return a program that numbers and repeats its messages, and one that does neither."""
        plain = Publisher(self, host, name)
        if name == "client":
            return Together(plain, Writer(self, host, f"{name} again"))
        repeater = Repeater(self, host, f"{name} again")
        return Together(plain, repeater, Tail(self, self, host))

    def have_old_files(self) -> None:
        """Prepare a run in which a file with rows of ledgers is restored from a backup."""
        rows = self._stores["rows"] = FailingStore(self.dice("rows"))
        self.old_files = OldFiles(self, self.dice("old files"), rows)
        self.options_of_queues = replace(self.options_of_queues, store="rows")
        self.figures["runs with an old file"] += 1

    def should_be_stubborn(self) -> bool:
        return not self.is_over and self.simulation.rng.random() < self._stubborn_share

    # -- faults

    def cut_power(self) -> None:
        """Cut the power of each machine."""
        raise NotImplementedError

    def make_shared(self) -> tuple[dict[str, MemoryStateStore], MemoryMembershipTable]:
        return {**self._stores}, self._table

    def verbs(self, programs: Programs) -> dict[str, Callable[..., object]]:
        assert self.cluster is not None
        return {} if self.old_files is None else self.old_files.verbs(self.cluster, programs)

    def boot(self, name: str, programs: Programs) -> None:
        assert self.cluster is not None
        if name in self.cluster.names:  # it may have left before its machine crashed
            programs.boot(name)

    def more_troubles(self, programs: Programs) -> list[Coroutine[Any, Any, None]]:
        stores = self._stores.values()
        return [outages(self, self.dice("outages"), stores, self._table)]

    async def calm_down(self, programs: Programs) -> None:
        """Cut the power a last time, so that only stored data remains."""
        assert self.cluster is not None
        if self.old_files is not None:
            parts = (self.cluster, programs, self.book, self.adapters)
            await self.old_files.take_back(*parts)
        await self.cluster.until_settled(VOTES_S, RECOVERY_S)
        await asyncio.sleep(LAST_APPENDS_S)
        self.cut_power()
        for name in self.cluster.names:
            programs.boot(name)
        await self.cluster.until_settled(VOTES_S, RECOVERY_S)
        await self.read_all()

    async def read_all(self) -> None:
        """Read each queue in each silo, from its first message to its end."""
        assert self.cluster is not None
        for name, queue in product(self.cluster.names, self.book.queues):
            reading = read_log(self.book, self.adapters[name], queue, name)
            try:
                log = await self.simulation.call(self.simulation.host(name), reading)
            except StreamError as error:
                self.on_violated(f"{queue} cannot be read by {name} in the end: {error}")
                self.judge()  # later checks would add nothing
            else:
                self.violations += self.book.check_log(queue, log)
                self.figures["messages read in the end"] += log.end - log.first
        self.book.learn()

    # -- judgement

    def check_orders(self, found: dict[str, list[str]]) -> list[str]:
        """Check that each stored order had its effect once, in order."""
        violations = []
        for key in KEYS:
            stored = self.book.items_of(f"orders/{key}")
            if found[key] != stored:
                violations.append(f"orders/{key}: {difference(stored, found[key])}")
        return violations

    def check_all(self, found: dict[str, list[str]]) -> list[str]:
        return [
            *super().check_all(found),
            *self.book.check_acks(),
            *self.book.check_delivered(),
            *self._check_items(),
        ]

    def _check_items(self) -> Iterator[str]:
        """Check that each item is stored at most once, accepted items are stored, refused ones are
        not."""
        stored = self.book.items()
        self.figures["stored"] += len(stored)
        accepted = {item for items in self.accepted.values() for item in items}
        for item, count in stored.items():
            if count > 1:
                yield f"{item} is stored {count} times"
        for item in sorted(accepted - stored.keys()):
            yield f"{item} was accepted, and is not stored"
        for item in sorted(self.refused.keys() - self.unknown - accepted):
            if item in stored:
                yield f"{item} is stored, although its publish ended with {self.refused[item]}"


class EmbeddedRun(LedgerRun):
    """A run with one machine and one directory."""

    directory = "ledger"

    def __init__(self, simulation: Simulation) -> None:
        simulation.share_disk(*(f"silo-{number}" for number in range(HOSTS_MAX)))
        super().__init__(simulation)
        simulation.disk(MACHINE).set_latency(*self.dice("latency").choice(SYNC_S))
        if self.dice("has old files").random() < 0.4:
            self.have_old_files()

    def plan(self) -> Plan:
        plan = make_plan(
            self.simulation, self.steady, duration_s=DURATION_S, verbs=KINDS, silos_max=SILOS
        )
        plan = all_at_once(self.dice("all at once"), plan, DURATION_S)
        return plan if self.old_files is None else self.old_files.plan(plan)

    def more_troubles(self, programs: Programs) -> list[Coroutine[Any, Any, None]]:
        assert self.cluster is not None
        moving = comings_and_goings(self, self.dice("moves"), self.cluster, programs)
        return [*super().more_troubles(programs), moving]

    def cut_power(self) -> None:
        self.simulation.cut_power(MACHINE)


class ReplicatedRun(LedgerRun):
    """A run with three or four machines, each with a directory of its own."""

    directory = "ledger/{silo}"

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        settings = replace(
            self.options_of_queues.settings, quorum=self.dice("quorum").choice(QUORUMS)
        )
        self.options_of_queues = replace(self.options_of_queues, settings=settings)
        self.skew_s = self.dice("skew").choice((0.5, 5.0))
        for number in range(HOSTS_MAX):
            disk = simulation.disk(f"silo-{number}")
            disk.set_latency(*self.dice(f"latency {number}").choice(SYNC_S))
        self.figures["replicated runs"] += 1
        self.leaving: Leaving | None = None
        if self.dice("leaving").random() < 0.5:
            self.leaving = Leaving(self, self.dice("losses"), self._store)
            self.options_of_queues = self.leaving.options(self.options_of_queues)
            self.figures["runs that lose silos"] += 1
        self.damage: Damage | None = None
        if self.leaving is None and self.dice("damage").random() < 0.5:
            self.damage = Damage(self, self.dice("flips"), self._store)
            self.options_of_queues = self.damage.options(self.options_of_queues)
            self.figures["runs that damage copies"] += 1
        has_other = self.leaving is not None or self.damage is not None
        if not has_other and self.dice("has old files").random() < 0.6:
            self.have_old_files()

    def plan(self) -> Plan:
        plan = make_plan(
            self.simulation,
            self.steady,
            duration_s=DURATION_S,
            verbs=REPLICATED_KINDS,
            silos_max=SILOS + 1,
        )
        plan = all_at_once(self.dice("all at once"), plan, DURATION_S)
        if self.old_files is not None:
            return self.old_files.plan(plan)
        # one loss at a time: a second one must wait for the replicas
        return (
            plan if self.leaving or self.damage else one_loss(self.dice("loss"), plan, DURATION_S)
        )

    def more_troubles(self, programs: Programs) -> list[Coroutine[Any, Any, None]]:
        assert self.cluster is not None
        leaving = [self.leaving.play(self.cluster, programs)] if self.leaving else []
        moving = joins(self, self.dice("moves"), programs)
        damaging = [self.damage.play(self.cluster)] if self.damage else []
        return [*super().more_troubles(programs), moving, *leaving, *damaging]

    async def calm_down(self, programs: Programs) -> None:
        """Wait for the replicas of lost or damaged entries before the power is cut."""
        if self.leaving is not None:
            assert self.cluster is not None
            await self.cluster.until_settled(VOTES_S, RECOVERY_S)
            await self.leaving.copies_made()
        if self.damage is not None:
            assert self.cluster is not None
            await self.cluster.until_settled(VOTES_S, RECOVERY_S)
            await self.damage.copies_repaired(self.cluster)
        await super().calm_down(programs)

    def cut_power(self) -> None:
        assert self.cluster is not None
        for name in self.cluster.names:
            self.simulation.cut_power(name)


async def ledger(simulation: Simulation) -> Counter[str]:
    """Run one seed; return its figures. Raises Violated."""
    is_replicated = make_random(simulation.seed, "ledger", "mode").random() < 0.5
    return await play(ReplicatedRun(simulation) if is_replicated else EmbeddedRun(simulation))
