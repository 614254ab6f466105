"""Suite `ledger`: as `streams`, through the ledger, embedded or replicated, as the seed says.

Embedded, three silos and more are processes of one machine and share a directory; replicated, each
of three or four is a machine with a directory and a bookie of its own. They are killed, also all at
once, machines lose their power, disks fill up, stall and fail to sync, store and table fail for a
while, silos join and leave; owners write on after they let go, or stand still and go on; segments
and ledgers are small. Replicated, one directory is wiped or put back as it was long before, which a
ledger of two acknowledgements survives once, or copies of one bookie are damaged, and all copies
must be good again soon after the trouble ends, or a silo is lost for good with its directory,
another one joins, and once copies are made again a second one is lost; and clocks differ. In some
runs one file of the state store with the rows of ledgers is put back as it was before, while silos
run or while all are down; then an operator takes back the rows that are named.
Judged, beside what `streams` judges: what was acknowledged is there after a last power cut, under
its number, and what was refused is nowhere; a number reads the same for everybody and at any time,
and none is missing; what was acknowledged before something was sent is before it; a producer's
sequences are stored once, in their order; what is deleted was handled. After a file was put back a
queue either works, or is refused with the name of a row of that file, and works once the newer
rows are back; queues without a row in the file work all the time.
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
LAST_APPENDS_S = 10.0  # so long something of unknown fate may still be stored


def options_of(rng: Random) -> LedgerOptions:
    """Everything is small: files, ledgers, times."""
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
    """The notes of this suite; `directory`: of the ledgers."""

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
        """Chance of its own for one purpose."""
        return make_random(self.simulation.seed, "ledger", name)

    def queues_for(self, host: Host) -> QueueAdapterFactory:
        """The ledger provider, noted."""
        return NotedLedgerQueues(self, self.directory, self.options_of_queues)

    def publisher(self, host: Host, name: str) -> Program:
        """One that numbers its messages and repeats what failed, and one that does neither."""
        plain = Publisher(self, host, name)
        if name == "client":
            return Together(plain, Writer(self, host, f"{name} again"))
        repeater = Repeater(self, host, f"{name} again")
        return Together(plain, repeater, Tail(self, self, host))

    def have_old_files(self) -> None:
        """A file with rows of ledgers is put back in this run."""
        rows = self._stores["rows"] = FailingStore(self.dice("rows"))
        self.old_files = OldFiles(self, self.dice("old files"), rows)
        self.options_of_queues = replace(self.options_of_queues, store="rows")
        self.figures["runs with an old file"] += 1

    def should_be_stubborn(self) -> bool:
        return not self.is_over and self.simulation.rng.random() < self._stubborn_share

    # -- troubles

    def cut_power(self) -> None:
        """Let every machine lose its power."""
        raise NotImplementedError

    def make_shared(self) -> tuple[dict[str, MemoryStateStore], MemoryMembershipTable]:
        return {**self._stores}, self._table

    def verbs(self, programs: Programs) -> dict[str, Callable[..., object]]:
        assert self.cluster is not None
        return {} if self.old_files is None else self.old_files.verbs(self.cluster, programs)

    def boot(self, name: str, programs: Programs) -> None:
        assert self.cluster is not None
        if name in self.cluster.names:  # it may have left before its machine went down
            programs.boot(name)

    def more_troubles(self, programs: Programs) -> list[Coroutine[Any, Any, None]]:
        stores = self._stores.values()
        return [outages(self, self.dice("outages"), stores, self._table)]

    async def calm_down(self, programs: Programs) -> None:
        """Cut the power a last time: what is there then is what was stored."""
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
        """Read every queue in every silo, from its first message to its end."""
        assert self.cluster is not None
        for name, queue in product(self.cluster.names, self.book.queues):
            reading = read_log(self.book, self.adapters[name], queue, name)
            try:
                log = await self.simulation.call(self.simulation.host(name), reading)
            except StreamError as error:
                self.on_violated(f"{queue} cannot be read by {name} in the end: {error}")
                self.judge()  # nothing that follows says more
            else:
                self.violations += self.book.check_log(queue, log)
                self.figures["messages read in the end"] += log.end - log.first
        self.book.learn()

    # -- judgement

    def check_orders(self, found: dict[str, list[str]]) -> list[str]:
        """Every stored order had its effect once, in order."""
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
        """Each item is stored once at most; what was accepted is, what was refused is not."""
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
    """One machine with one directory."""

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
    """Three or four machines, each with a directory of its own."""

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
        # one loss at a time: a second one must wait for the copies
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
        """What was lost has its copies again, before the power is cut."""
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
    """Run one seed; returns its figures. Raises Violated."""
    is_replicated = make_random(simulation.seed, "ledger", "mode").random() < 0.5
    return await play(ReplicatedRun(simulation) if is_replicated else EmbeddedRun(simulation))
