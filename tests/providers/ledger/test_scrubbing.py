"""A bookie reads all its entries, and repairs damaged or missing ones from other bookies."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import msgspec
import pytest
from tests.providers.ledger.alone.machine import VirtualEnv
from tests.providers.ledger.bookie.kit import SMALL, new_disk, on_loop, opened
from tests.providers.ledger.replicated import SMALL_BOOKIE, Silos, with_silos
from tests.sim.suites.ledger.damage import bad_copies, copies_at, flip

from millstream.providers.ledger import (
    LedgerOptions,
    LedgerTopicOptions,
    LedgerTopicSettings,
    Quorum,
    RecoveryOptions,
    ScrubOptions,
)
from millstream.providers.ledger.alone.process import OneProcess
from millstream.providers.ledger.bookie.bookie import Bookie, BookieState
from millstream.providers.ledger.bookie.damage.segment_check import SegmentCheck
from millstream.providers.ledger.bookie.local import LocalBookies
from millstream.providers.ledger.handle.context import HandleContext
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.handle.writer import LedgerWriter
from millstream.providers.ledger.inspection import (
    BookieLedgers,
    LedgerRecord,
    LedgerState,
    ScrubReport,
    verify,
)
from millstream.providers.ledger.metadata.ledgers import LedgerIds, ledger_rows
from millstream.providers.ledger.metadata.metadata import Metadata
from millstream.providers.ledger.protocol.found import Missing
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding
from millstream.providers.ledger.recovery.copier import EntriesLost
from millstream.providers.ledger.scrubbing.docket import Failure
from millstream.providers.ledger.scrubbing.repairer import Repairer, why_lost
from millstream.providers.ledger.scrubbing.report import scrub_rows
from millstream.providers.ledger.scrubbing.scrubber import AFTER_FAILURE_S, Scrubber
from millstream.runtime import Corrupt, MemoryStateStore, StorageUnavailable
from millstream.runtime.extending import unseal
from millstream.runtime.testing import SimDisk, Simulation

REPAIRED_S = 100.0
"""Long enough for a pass, its repairs, and the collection of damaged segments."""
USUAL = Quorum(3, 3, 2)
NEVER = ScrubOptions(is_on=False)
OFTEN = ScrubOptions(scrub_every_s=20.0)


def silos(simulation: Simulation, quorum: Quorum, scrub: ScrubOptions) -> Silos:
    """Start as many silos as there are copies, with small ledgers. Nothing is deleted."""
    options = LedgerOptions(
        settings=LedgerTopicSettings(quorum=quorum, ledger_entries_max=7),
        topic=LedgerTopicOptions(tend_every_s=5.0, entry_bytes_max=1 << 19, retention_s=1e6),
        bookie=replace(SMALL_BOOKIE, cache_bytes=1024),
        scrub=scrub,
    )
    return Silos(simulation, quorum.ensemble, options=options)


def disk_of(world: Silos, name: str) -> SimDisk:
    return world.simulation.disk(name)


def bad(world: Silos) -> list[tuple[str, int, int]]:
    """List the copies of closed ledgers that are missing or damaged."""
    disks = {
        one.bookie: (disk_of(world, silo), f"/ledger/{silo}")
        for silo, one in world.bookies().items()
    }
    closed = [one for one in world.ledgers() if one.state is LedgerState.CLOSED]
    return bad_copies(disks, closed)


def reports(world: Silos) -> dict[str, ScrubReport]:
    rows = world.store.range("ledger/sim/scrubs/", "", 100)
    datas = [unseal(key, row.data).content for key, row in rows]
    found = [msgspec.msgpack.decode(data, type=ScrubReport) for data in datas]
    return {one.bookie: one for one in found}


async def publish(world: Silos, count: int) -> list[str]:
    words = [f"word {number} " + "x" * 200 for number in range(count)]
    for word in words:
        await world.publish("silo-0", word)
    return words


@pytest.mark.parametrize("quorum", [Quorum(3, 3, 2), Quorum(2, 2, 2), Quorum(4, 3, 2)])
def test_all_damaged_copies_of_a_bookie_are_good_again_after_a_pass(quorum: Quorum) -> None:
    async def main(simulation: Simulation) -> None:
        async with silos(simulation, quorum, OFTEN) as world:
            words = await publish(world, 40)
            await asyncio.sleep(2.0)
            assert flip(disk_of(world, "silo-1"), "/ledger/silo-1") > 10
            assert bad(world)
            await asyncio.sleep(REPAIRED_S)
            assert bad(world) == []
            report = reports(world)[world.bookies()["silo-1"].bookie]
            assert report.damaged == report.repaired > 10 and report.failed == 0
            assert report.passes >= 2 and report.segments >= 1
            assert await world.words("silo-1") == words

    with_silos(main)


def test_a_directory_that_was_repaired_is_whole_for_verify() -> None:
    async def main(simulation: Simulation) -> None:
        async with silos(simulation, Quorum(3, 3, 2), OFTEN) as world:
            await publish(world, 30)
            await asyncio.sleep(2.0)
            flip(disk_of(world, "silo-1"), "/ledger/silo-1")
            await asyncio.sleep(REPAIRED_S)
            simulation.crash("silo-1")
            await asyncio.sleep(1.0)
            verified = verify(disk_of(world, "silo-1"), "/ledger/silo-1")
            assert verified.faults == () and verified.entries > 20

    with_silos(main)


def test_a_damaged_frame_head_costs_no_copy_and_its_segment_goes() -> None:
    async def main(simulation: Simulation) -> None:
        async with silos(simulation, Quorum(3, 3, 2), OFTEN) as world:
            words = await publish(world, 30)
            await asyncio.sleep(2.0)
            disk, path = disk_of(world, "silo-1"), "/ledger/silo-1"
            files = sorted({(file, offset) for _, _, file, offset in copies_at(disk, path)})
            file, offset = files[9]
            disk.flip_bit(file, offset // 512 * 512 + 20)
            await asyncio.sleep(REPAIRED_S)
            assert bad(world) == [] and await world.words("silo-1") == words
            simulation.crash("silo-1")
            await asyncio.sleep(1.0)
            assert verify(disk, path).faults == ()

    with_silos(main)


def test_a_copy_that_a_reader_finds_damaged_is_repaired_without_a_pass() -> None:
    async def main(simulation: Simulation) -> None:
        async with silos(simulation, Quorum(3, 3, 2), NEVER) as world:
            words = await publish(world, 40)
            await asyncio.sleep(2.0)
            others = {"silo-0", "silo-1", "silo-2"} - {await world.owner()}  # the owner has a cache
            for name in sorted(others):
                assert flip(disk_of(world, name), f"/ledger/{name}", 2, 3) == 1
                assert await world.words(name) == words
                await asyncio.sleep(5.0)
                assert bad(world) == []
            await asyncio.sleep(5.0)
            assert sum(one.repaired for one in reports(world).values()) == 2

    with_silos(main)


def test_a_copy_that_a_reader_misses_is_repaired() -> None:
    """A bookie whose directory was restored lacks the copies of later entries."""

    async def main(simulation: Simulation) -> None:
        async with silos(simulation, Quorum(3, 3, 2), NEVER) as world:
            words = await publish(world, 20)
            disk = disk_of(world, "silo-1")
            old = disk.copy_of("/")
            await asyncio.sleep(20.0)
            words += [f"later {number}" for number in range(20)]
            for word in words[20:]:
                await world.publish("silo-0", word)
            simulation.cut_power("silo-1")
            disk.restore("/", old)
            world.cluster.boot("silo-1")
            await world.cluster.until_active()
            await asyncio.sleep(10.0)
            lacking = len(bad(world))
            assert lacking > 5
            assert await world.words("silo-1") == words
            await asyncio.sleep(10.0)
            assert len(bad(world)) < lacking

    with_silos(main)


def test_a_pass_finds_what_the_records_say_and_the_directory_lacks() -> None:
    async def main(simulation: Simulation) -> None:
        async with silos(simulation, Quorum(3, 3, 2), OFTEN) as world:
            await publish(world, 20)
            disk = disk_of(world, "silo-1")
            old = disk.copy_of("/")
            await asyncio.sleep(20.0)
            await publish(world, 20)
            simulation.cut_power("silo-1")
            disk.restore("/", old)
            world.cluster.boot("silo-1")
            await world.cluster.until_active()
            await asyncio.sleep(REPAIRED_S)
            assert bad(world) == []
            assert reports(world)[world.bookies()["silo-1"].bookie].missing > 5

    with_silos(main)


def test_an_entry_without_a_good_copy_is_said_with_its_file_and_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(simulation: Simulation) -> None:
        async with silos(simulation, Quorum(2, 2, 2), OFTEN) as world:
            await publish(world, 20)
            await asyncio.sleep(2.0)
            for name in ("silo-0", "silo-1"):
                assert flip(disk_of(world, name), f"/ledger/{name}", 1, 4) == 1
            await asyncio.sleep(REPAIRED_S)
            for name in ("silo-0", "silo-1"):
                bookie = world.bookies()[name].bookie
                (fault,) = reports(world)[bookie].faults
                assert (fault.ledger, fault.entry, fault.is_lost) == (1, 4, True)
                assert fault.file.startswith(f"/ledger/{name}/") and fault.offset > 512
                assert str(fault) in caplog.text and "--accept-loss" in fault.advice
                assert reports(world)[bookie].failed == 1
            assert len(bad(world)) == 2, "the damaged copies stay where they are"
            assert caplog.text.count("entry 4 of ledger 1 cannot be repaired") == 2

    caplog.set_level(logging.ERROR, "millstream.ledger")
    with_silos(main)


def test_a_lost_entry_is_repaired_once_the_bookie_with_its_copy_is_back() -> None:
    async def main(simulation: Simulation) -> None:
        async with silos(simulation, Quorum(2, 2, 2), OFTEN) as world:
            await publish(world, 20)
            await asyncio.sleep(2.0)
            simulation.crash("silo-0")
            flip(disk_of(world, "silo-1"), "/ledger/silo-1", 1)
            await asyncio.sleep(REPAIRED_S)
            report = reports(world)[world.bookies()["silo-1"].bookie]
            assert report.failed == 7 and report.repaired == 0
            world.cluster.boot("silo-0")
            await world.cluster.until_active()
            await asyncio.sleep(400.0)
            assert bad(world) == []
            report = reports(world)[world.bookies()["silo-1"].bookie]
            assert (report.failed, report.repaired, report.damaged) == (0, 7, 7)

    with_silos(main)


class Copies:
    """Three bookies of one process, each with its scrubber, and one closed ledger."""

    def __init__(self) -> None:
        self.env = VirtualEnv(1)
        self.process = OneProcess(self.env)
        self.disks = {name: new_disk(name) for name in ("a", "b", "c")}
        self.metadata = Metadata(MemoryStateStore(), "t", self.process.clock, "p")
        self.rows = ledger_rows(self.metadata)
        self.bookies: dict[str, Bookie] = {}
        self.context = HandleContext(
            LocalBookies(self.bookies),
            self.rows,
            self.process.clock,
            self.process.tasks,
            HandleOptions(),
        )

    async def open(self, **options: Any) -> None:
        for number, disk in enumerate(self.disks.values()):
            bookie = await opened(disk, replace(SMALL, **options), fresh=f"{number:032x}")
            self.bookies[bookie.name] = bookie

    async def ledger(self, entries: int, quorum: Quorum = USUAL) -> LedgerWriter:
        ledgers = BookieLedgers(self.context, LedgerIds(self.metadata), quorum)
        writer = await ledgers.create(None, "t")
        for number in range(entries):
            await writer.append(b"%d" % number * 50)
        await asyncio.sleep(0.1)
        return writer

    def scrubber(self, bookie: Bookie, options: ScrubOptions) -> Scrubber:
        made = Scrubber(
            self.context,
            self.metadata,
            self.rows,
            lambda: bookie,
            lambda _: BookieStanding.HERE,
            options,
            RecoveryOptions(),
        )
        self.process.tasks.start(made.run())
        return made

    def repairer(self) -> Repairer:
        return Repairer(self.context, RecoveryOptions(), lambda _: BookieStanding.HERE)

    async def record(self, ledger: int) -> LedgerRecord:
        found = await self.rows.read(ledger)
        assert found is not None
        return found

    def flip(self, bookie: Bookie, ledger: int, *entries: int) -> None:
        disk = list(self.disks.values())[int(bookie.name, 16)]
        for entry in entries:
            file, offset = bookie.where(ledger, entry)
            disk.flip_bit(file, offset + 60)

    async def damaged(self, bookie: Bookie, ledger: int, entries: int) -> list[int]:
        return [n for n in range(entries) if await bookie.is_damaged(ledger, n)]


def test_a_repair_brings_nothing_back_of_a_ledger_that_was_deleted_meanwhile() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(6)
        await writer.close()
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 2)
        old = await world.record(writer.ledger)
        await world.rows.delete(writer.ledger)

        async def is_gone(ledger: int) -> bool:
            return True

        class Stale:  # the record was read before the ledger was deleted
            async def read(self, key: int) -> LedgerRecord:
                await bookie.collect(is_gone)
                return old

        world.context = world.context._replace(rows=cast(Any, Stale()))
        outcome = await world.repairer().repair(bookie, writer.ledger, [2, 3])
        assert outcome.repaired == 0
        found = await bookie.read(writer.ledger, 0, 10, 10_000)
        assert found.entries == () and found.missing is Missing.UNKNOWN

    on_loop(main)


def test_a_repair_in_a_term_of_before_a_recovery_changes_nothing() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(6)
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 2)
        await bookie.fence(writer.ledger, 7)  # by a recovery that the repair does not know
        outcome = await world.repairer().repair(bookie, writer.ledger, [2])
        assert outcome.repaired == 0 and "term 7" in outcome.failures[2].why
        assert not outcome.failures[2].is_lost
        assert await world.damaged(bookie, writer.ledger, 6) == [2]

    on_loop(main)


def test_an_entry_of_an_open_ledger_is_repaired_once_it_is_known_to_be_confirmed() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(6)
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 2, 5)
        outcome = await world.repairer().repair(bookie, writer.ledger, [2, 5, 6, 9])
        assert outcome.damaged == {2, 5} and outcome.missing == set()
        assert list(outcome.failures) == ([] if bookie.store.index.find_confirmed(1) >= 5 else [5])
        assert 2 not in await world.damaged(bookie, writer.ledger, 6)
        await writer.close()
        await world.repairer().repair(bookie, writer.ledger, [5, 6, 9])
        assert await world.damaged(bookie, writer.ledger, 10) == []
        assert not bookie.has(writer.ledger, 6)

    on_loop(main)


def test_a_bookie_that_lost_fences_is_repaired_by_a_fence_first() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(6)
        await writer.close()
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 2)
        bookie.store.state.doubt(writer.ledger + 1)
        outcome = await world.repairer().repair(bookie, writer.ledger, [2])
        assert outcome.repaired == 1 and await world.damaged(bookie, writer.ledger, 6) == []
        assert bookie.store.is_fenced(writer.ledger, (await world.record(writer.ledger)).term)

    on_loop(main)


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_bookie_that_is_in_no_doubt_is_repaired_without_a_fence(is_closed: bool) -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(6)
        if is_closed:
            await writer.close()
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 2)
        bookie.store.state.doubt(writer.ledger)  # only the ledgers before this one are in doubt
        outcome = await world.repairer().repair(bookie, writer.ledger, [2])
        assert outcome.repaired == 1 and await world.damaged(bookie, writer.ledger, 6) == []
        assert bookie.store.state.term_of(writer.ledger) == 0

    on_loop(main)


def test_an_entry_that_may_not_be_confirmed_is_looked_at_again_and_not_copied() -> None:
    async def main() -> None:
        world = Copies()
        world.context = world.context._replace(options=HandleOptions(tell_after_s=1e6))
        await world.open()
        writer = await world.ledger(6)
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 5)
        outcome = await world.repairer().repair(bookie, writer.ledger, [5])
        assert outcome.damaged == {5} and outcome.repaired == 0
        assert outcome.failures == {5: Failure("the entry is not known to be confirmed yet")}

    on_loop(main)


def test_a_bookie_without_room_says_so_and_gets_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(6)
        await writer.close()
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 2, 3)
        monkeypatch.setattr(Bookie, "state", BookieState.READ_ONLY)
        outcome = await world.repairer().repair(bookie, writer.ledger, [2, 3])
        assert outcome.repaired == 0
        assert outcome.failures == dict.fromkeys([2, 3], Failure("the disk of the bookie is full"))

    on_loop(main)


def test_the_segment_of_a_damaged_copy_goes_once_the_copy_is_repaired() -> None:
    async def main() -> None:
        async def none(ledger: int) -> bool:
            return False

        world = Copies()
        await world.open()
        writer = await world.ledger(60)
        await writer.close()
        bookie = next(iter(world.bookies.values()))
        world.flip(bookie, writer.ledger, 2)
        bookie.collection.wear_out(1)
        await bookie.collect(none)
        assert 1 in bookie.segments(), "the damaged copy cannot be moved"
        await world.repairer().repair(bookie, writer.ledger, [2])
        await bookie.collect(none)
        assert 1 not in bookie.segments()

    on_loop(main)


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        ((), "no other bookie has a good replica"),
        (("x", "y"), "the other replicas are on bookie x and y, which no silo runs"),
    ],
)
def test_why_nobody_gives_an_entry_is_told(gone: tuple[str, ...], why: str) -> None:
    assert why_lost(EntriesLost("lost", 1, 2, gone)) == why


def test_a_scrubber_that_has_seen_no_bookie_has_nothing_to_report() -> None:
    async def main() -> None:
        world = Copies()
        scrubber = world.scrubber(cast(Any, None), ScrubOptions())
        await asyncio.sleep(10.0)
        assert scrubber.report() == ScrubReport("", 0.0)

    on_loop(main)


def test_after_a_whole_pass_the_next_one_comes_when_it_is_due() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        await (await world.ledger(4)).close()
        bookie = next(iter(world.bookies.values()))
        scrubber = world.scrubber(bookie, ScrubOptions())
        await asyncio.sleep(3 * AFTER_FAILURE_S)
        assert scrubber.report().passes == 1
        ends = bookie.store.ends.values()
        assert scrubber.report().pass_bytes == sum(ends) - 512 * len(ends)

    on_loop(main)


async def passes_s(world: Copies, scrubber: Scrubber, seconds: int) -> list[int]:
    """The second in which each pass ended."""
    found: list[int] = []
    for second in range(seconds):
        await asyncio.sleep(1.0)
        while scrubber.report().passes > len(found):
            found.append(second)
    return found


@pytest.mark.parametrize(
    ("passed_s", "began_s", "waits_s"),
    [
        (0.0, 0.0, 40),
        (-10.0, 0.0, 30),
        (-39.5, 0.0, 1),  # at the next look
        (-99.0, 0.0, 0),
        (30.0, 0.0, 40),  # written by a clock that was wrong
        (0.0, 5.0, 0),  # the silo ended in the middle of a pass
    ],
)
def test_a_pass_is_due_so_long_after_the_last_one_whichever_silo_made_it(
    passed_s: float, began_s: float, waits_s: int
) -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        await (await world.ledger(4)).close()
        bookie = next(iter(world.bookies.values()))
        wall_s = world.process.clock.wall_s() + 1.0
        before = ScrubReport(bookie.name, wall_s, passed_s=wall_s + passed_s, began_s=began_s)
        await scrub_rows(world.metadata).update(bookie.name, lambda _: before)
        scrubber = world.scrubber(bookie, ScrubOptions(scrub_every_s=40.0))
        (first, *_) = await passes_s(world, scrubber, 60)
        assert first == pytest.approx(waits_s + 1, abs=0.6)

    on_loop(main)


def test_damage_that_found_no_place_on_the_list_is_looked_for_in_two_passes_more() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        await (await world.ledger(4)).close()
        bookie = next(iter(world.bookies.values()))
        scrubber = world.scrubber(bookie, ScrubOptions())
        assert len(await passes_s(world, scrubber, 5)) == 1
        bookie.suspects.has_overflowed = True
        first, second, third = await passes_s(world, scrubber, 200)
        assert first == 0 and second == pytest.approx(AFTER_FAILURE_S, abs=2)
        assert third == pytest.approx(2 * AFTER_FAILURE_S, abs=4)
        assert not bookie.suspects.has_overflowed

    on_loop(main)


def test_what_a_scrubber_knows_is_of_the_bookie_that_runs_here_now() -> None:
    async def main() -> None:
        world = Copies()
        await world.open(segment_bytes=65_536)
        writer = await world.ledger(100, Quorum(1, 1, 1))
        await writer.close()
        (holder,) = (await world.record(writer.ledger)).holders(2)
        first = world.bookies[holder]
        second = next(one for one in world.bookies.values() if one is not first)
        world.flip(first, writer.ledger, 2)
        first.suspect(writer.ledger, 2)
        here: list[Bookie | None] = [first]
        scrubber = Scrubber(
            world.context,
            world.metadata,
            world.rows,
            lambda: here[0],
            lambda _: BookieStanding.HERE,
            ScrubOptions(scrub_bytes_per_s=100),
            RecoveryOptions(),
        )
        tasks = asyncio.all_tasks()
        world.process.tasks.start(scrubber.run())
        await asyncio.sleep(8.0)
        assert scrubber.report().failed == 1 and scrubber.report().began_s > 0
        assert len(asyncio.all_tasks() - tasks) == 2, "it runs, and a pass does"
        here[0] = None
        await asyncio.sleep(2.0)
        assert len(asyncio.all_tasks() - tasks) == 1, "the pass ended"
        stored = msgspec.structs.replace(scrubber.report(), passes=77)
        await scrub_rows(world.metadata).update(first.name, lambda _: stored)
        here[0] = first
        await asyncio.sleep(2.0)
        assert scrubber.report().passes == 77, "another silo had it meanwhile"
        here[0] = second
        await asyncio.sleep(1.5)
        assert (scrubber.report().bookie, scrubber.report().failed) == (second.name, 0)
        assert scrubber.report().began_s > 0, "a pass over it began"

    on_loop(main)


def test_a_report_is_written_each_five_seconds_while_there_is_news() -> None:
    async def main() -> None:
        world = Copies()
        await world.open(segment_bytes=65_536)
        await (await world.ledger(100)).close()
        wrote_s: list[float] = []
        store = cast(Any, world.metadata.store)
        put = store.put

        def noted(key: str, *of: Any) -> Any:
            if "/scrubs/" in key:
                wrote_s.append(asyncio.get_running_loop().time())
            return put(key, *of)

        store.put = noted
        bookie = next(iter(world.bookies.values()))
        world.scrubber(bookie, ScrubOptions(scrub_bytes_per_s=200))
        await asyncio.sleep(22.0)
        assert [b - a for a, b in pairwise(wrote_s)] == pytest.approx([5.0] * 4, abs=0.01)

    on_loop(main)


def test_a_pass_closes_each_segment_that_it_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[SegmentCheck] = []
    close = SegmentCheck.close

    def noted(check: SegmentCheck) -> None:
        closed.append(check)
        close(check)

    monkeypatch.setattr(SegmentCheck, "close", noted)

    async def main() -> None:
        world = Copies()
        await world.open()
        await (await world.ledger(100)).close()
        bookie = next(iter(world.bookies.values()))
        scrubber = world.scrubber(bookie, ScrubOptions())
        await asyncio.sleep(30.0)
        assert scrubber.report().passes == 1
        assert len(closed) == len(bookie.segments()) > 1

    on_loop(main)


def test_a_pass_that_cannot_go_on_is_tried_again_a_minute_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(4)
        await writer.close()
        scans_s: list[float] = []

        class Away:
            def scan(self) -> Any:
                scans_s.append(asyncio.get_running_loop().time())
                raise StorageUnavailable("no rows")

            async def read(self, key: int) -> LedgerRecord | None:
                return await world.rows.read(key)

        bookie = next(iter(world.bookies.values()))
        rows = world.rows
        world.rows = cast(Any, Away())
        scrubber = world.scrubber(bookie, ScrubOptions())
        await asyncio.sleep(2.5 * AFTER_FAILURE_S)
        assert [b - a for a, b in pairwise(scans_s)] == pytest.approx([AFTER_FAILURE_S] * 2, abs=2)
        assert scrubber.report().passes == 0 and scrubber.report().segment == 1
        assert caplog.text.count("scrubbing is postponed: no rows") == 3
        world.rows = rows

    on_loop(main)


def test_what_was_repaired_is_logged_and_what_was_not_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        whole, alone = await world.ledger(4), await world.ledger(4, Quorum(1, 1, 1))
        for writer in (whole, alone):
            await writer.close()
        (holder,) = (await world.record(alone.ledger)).holders(2)
        bookie = world.bookies[holder]
        for writer in (whole, alone):
            world.flip(bookie, writer.ledger, 2)
        scrubber = world.scrubber(bookie, ScrubOptions())
        await asyncio.sleep(10.0)
        report = scrubber.report()
        assert (report.passes, report.segment, report.repaired, report.failed) == (1, 0, 1, 1)
        said = [
            one.getMessage() for one in caplog.records if "from other bookies" in one.getMessage()
        ]
        (line,) = said
        assert f"1 damaged or missing entries of ledger {whole.ledger} from" in line

    caplog.set_level(logging.INFO, "millstream.ledger")
    on_loop(main)


def test_the_end_of_a_scrubber_ends_its_pass() -> None:
    async def main() -> None:
        world = Copies()
        await world.open(segment_bytes=65_536)
        await (await world.ledger(100)).close()
        bookie = next(iter(world.bookies.values()))
        tasks = asyncio.all_tasks()
        scrubber = world.scrubber(bookie, ScrubOptions(scrub_bytes_per_s=100))
        (run,) = asyncio.all_tasks() - tasks
        await asyncio.sleep(5.0)
        assert scrubber.report().began_s > 0
        run.cancel()
        await asyncio.sleep(1.0)
        assert asyncio.all_tasks() <= tasks

    on_loop(main)


def test_one_lost_entry_of_a_run_does_not_keep_the_others_from_their_repair() -> None:
    async def main() -> None:
        world = Copies()
        await world.open(cache_bytes=1)
        writer = await world.ledger(8)
        await writer.close()
        bookie, *others = world.bookies.values()
        world.flip(bookie, writer.ledger, 1, 2, 3, 4)
        for other in others:
            world.flip(other, writer.ledger, 2)
        outcome = await world.repairer().repair(bookie, writer.ledger, range(8))
        assert list(outcome.failures) == [2] and outcome.failures[2].is_lost
        assert await world.damaged(bookie, writer.ledger, 8) == [2]

    on_loop(main)


def test_a_bookie_without_others_says_where_the_damage_is() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(4, Quorum(1, 1, 1))
        await writer.close()
        (holder,) = (await world.record(writer.ledger)).holders(2)
        bookie = world.bookies[holder]
        world.flip(bookie, writer.ledger, 2)
        scrubber = world.scrubber(bookie, ScrubOptions())
        await asyncio.sleep(10.0)
        report = scrubber.report()
        (fault,) = report.faults
        assert (fault.file, fault.offset) == bookie.where(writer.ledger, 2)
        assert fault.is_lost and fault.why == "no other bookie has replicas of this ledger"
        assert (report.passes, report.damaged, report.failed) == (1, 1, 1)
        # a restart continues with the known progress
        again = world.scrubber(bookie, ScrubOptions())
        await asyncio.sleep(5.0)
        assert again.report().faults == (fault,) and again.report().passes == 1
        assert again.report().damaged == 1, "it was counted before"

    on_loop(main)


def test_a_pass_reads_no_faster_than_its_rate_and_waits_for_callers() -> None:
    async def main() -> None:
        world = Copies()
        await world.open(segment_bytes=65_536)
        writer = await world.ledger(100)
        await writer.close()
        bookie = next(iter(world.bookies.values()))
        size_bytes = sum(bookie.store.ends.values())
        slow = ScrubOptions(scrub_bytes_per_s=size_bytes // 20)
        scrubber = world.scrubber(bookie, slow)
        await asyncio.sleep(11.0)
        assert 0.4 * size_bytes < scrubber.report().pass_bytes < 0.6 * size_bytes
        assert scrubber.report().began_s > 0
        bookie.journal.unsynced_bytes += slow.busy_unsynced_bytes + 1
        before = scrubber.report().pass_bytes
        await asyncio.sleep(slow.busy_max_s - 1.0)
        assert scrubber.report().pass_bytes - before < 0.1 * size_bytes
        bookie.journal.unsynced_bytes -= slow.busy_unsynced_bytes + 1
        await asyncio.sleep(20.0)
        assert scrubber.report().passes == 1 and scrubber.report().began_s == 0

    on_loop(main)


def test_a_bookie_that_stops_ends_the_pass_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(100)
        await writer.close()
        bookie = next(iter(world.bookies.values()))
        scrubber = world.scrubber(bookie, ScrubOptions(scrub_bytes_per_s=2_000))
        await asyncio.sleep(5.0)
        assert scrubber.report().began_s > 0
        await bookie.aclose()
        await asyncio.sleep(100.0)
        assert scrubber.report().passes == 0

        assert not caplog.records

    on_loop(main)


def test_one_record_that_cannot_be_read_keeps_no_other_ledger_from_its_repair() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        first, second = await world.ledger(4), await world.ledger(4)
        bookie = next(iter(world.bookies.values()))
        for writer in (first, second):
            await writer.close()
            world.flip(bookie, writer.ledger, 2)
            bookie.suspect(writer.ledger, 2)

        class Broken:
            async def read(self, key: int) -> LedgerRecord | None:
                if key == first.ledger:
                    raise Corrupt("the row of the first ledger is damaged")
                return await world.rows.read(key)

        world.context = world.context._replace(rows=cast(Any, Broken()))
        scrubber = world.scrubber(bookie, NEVER)
        await asyncio.sleep(7.0)
        (fault,) = scrubber.report().faults
        assert fault.ledger == first.ledger and "Corrupt: the row" in fault.why
        assert await world.damaged(bookie, second.ledger, 4) == []
        stored = await scrub_rows(world.metadata).read(bookie.name)
        assert stored is not None and stored.repaired == 1

    on_loop(main)


def test_a_damaged_report_begins_anew() -> None:
    async def main() -> None:
        world = Copies()
        await world.open()
        writer = await world.ledger(4)
        await writer.close()
        bookie = next(iter(world.bookies.values()))
        key = world.metadata.key(f"scrubs/{bookie.name}")
        await world.metadata.store.write(key, b"no report", None, 0)
        scrubber = world.scrubber(bookie, ScrubOptions())
        await asyncio.sleep(10.0)
        assert scrubber.report().passes == 1
        assert (await scrub_rows(world.metadata).read(bookie.name)) is not None

    on_loop(main)
