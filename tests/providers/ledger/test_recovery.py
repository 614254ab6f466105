"""Lost copies are made again, over bookies of the model."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest
from tests.providers.ledger.copies import COPIED_S, SOON, Copies, with_copies
from tests.providers.ledger.test_handle import outcome

from millstream.providers.ledger import Quorum, RecoveryOptions
from millstream.providers.ledger.handle.context import existing
from millstream.providers.ledger.inspection import LedgerState
from millstream.providers.ledger.metadata.rows import ROW_TRIES_MAX
from millstream.providers.ledger.protocol.errors import LedgerFenced
from millstream.providers.ledger.recovery.changes import claim
from millstream.providers.ledger.recovery.report import report_rows
from millstream.runtime import StorageUnavailable


@pytest.mark.parametrize("quorum", [(3, 3, 2), (4, 3, 2), (2, 2, 2), (5, 3, 3)])
def test_what_a_lost_bookie_had_is_copied_to_others(quorum: tuple[int, int, int]) -> None:
    async def main(world: Copies) -> None:
        for _ in range(4):
            await world.ledger(quorum, entries=23)
        auditor = world.auditor()
        lost = (await world.record(1)).fragments[0].bookies[1]
        world.lose(lost)
        await asyncio.sleep(SOON.lost_bookie_after_s - 0.5)
        assert await world.missing(1), "it may be back soon"
        assert auditor.auditor.report().filled == 0
        await asyncio.sleep(COPIED_S)
        await world.check(copies=quorum[1])
        for ledger in world.payloads:
            assert lost not in (await world.record(ledger)).fragments[0].bookies

    with_copies(main, bookies=6)


def test_a_bookie_that_is_back_in_time_costs_nothing() -> None:
    async def main(world: Copies) -> None:
        await world.ledger()
        auditor = world.auditor()
        before = await world.record(1)
        world.lose("b0", "b1", "b2")
        await asyncio.sleep(SOON.lost_bookie_after_s - 2.0)
        for one in world.bookies.all.values():
            one.is_away = False
        await asyncio.sleep(COPIED_S)
        assert (await world.record(1)).fragments == before.fragments
        assert auditor.auditor.report().entries == 0

    with_copies(main)


def test_a_ledger_whose_deletion_stopped_halfway_lacks_nothing_for_ever() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        key = world.writer.metadata.key(f"ledgers/{ledger:019d}")
        world.store.fail("clear", key, times=ROW_TRIES_MAX)
        with pytest.raises(StorageUnavailable):
            await world.writer.ledgers.delete(ledger)
        assert world.store.get(key) is not None
        world.lose("b0", "b1", "b2", "b3")
        auditor = world.auditor()
        await asyncio.sleep(COPIED_S)
        assert world.store.get(key) is None
        assert auditor.auditor.report().lacking == 0

    with_copies(main)


def test_several_that_are_lost_one_after_the_other_lose_nothing() -> None:
    async def main(world: Copies) -> None:
        for _ in range(5):
            await world.ledger()
        world.auditor()
        for bookie in ("b0", "b1", "b2", "b3"):
            world.lose(bookie)
            await asyncio.sleep(COPIED_S)
            await world.check()
        assert not [one for one in world.bookies.all.values() if one.is_full]

    with_copies(main, bookies=7)


def test_two_lost_at_once_are_replaced_where_fewest_copies_are_first() -> None:
    async def main(world: Copies) -> None:
        for _ in range(16):
            await world.ledger()
        hurt: dict[int, int] = {}
        for ledger in world.payloads:
            bookies = (await world.record(ledger)).fragments[0].bookies
            hurt[ledger] = len({"b0", "b1"} & set(bookies))
        hurt = {ledger: count for ledger, count in hurt.items() if count}
        assert set(hurt.values()) == {1, 2}
        options = RecoveryOptions(lost_bookie_after_s=1.0, ledgers_max=1, copy_bytes_per_s=4000)
        world.auditor(options)
        world.lose("b0", "b1")
        done: list[int] = []
        while len(done) < len(hurt):
            await asyncio.sleep(0.02)
            done += [n for n in hurt if n not in done and not await world.missing(n)]
        counts = [hurt[ledger] for ledger in done]
        assert counts == sorted(counts, reverse=True)
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main, bookies=6)


def test_a_damaged_copy_is_not_passed_on() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        one, two, three = (await world.record(ledger)).fragments[0].bookies
        world.damage(two, ledger, 0)
        world.damage(three, ledger, 9)
        world.lose(one)
        world.auditor()
        await asyncio.sleep(COPIED_S)
        new = (await world.record(ledger)).fragments[0].bookies[0]
        assert new != one and all(world.has(new, ledger, entry) for entry in range(10))

    with_copies(main)


def test_what_nobody_has_is_said_once_and_left_until_its_bookie_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: Copies) -> None:
        caplog.set_level(logging.INFO)
        ledger, other = await world.ledger(), await world.ledger()
        one, two, three = (await world.record(ledger)).fragments[0].bookies
        for entry in (2, 3, 4, 7):
            for bookie in (two, three):
                world.damage(bookie, ledger, entry)
        world.lose(one)
        auditor = world.auditor(replace(SOON, retry_after_s=900.0))
        await asyncio.sleep(COPIED_S)
        assert not await world.missing(other)
        assert (await world.record(ledger)).claim is None
        assert one in (await world.record(ledger)).fragments[0].bookies, "it may be back"
        said = [line for line in caplog.messages if "no bookie has entry" in line]
        assert len(said) == 1, said
        assert f"ledger {ledger} of t: no bookie has entry 2 to 4, 7; restore" in said[0]
        assert one in said[0]
        report = auditor.auditor.report()
        assert (report.lacking, report.places) == (1, 1)
        copies = [name for name, one in world.bookies.all.items() if (ledger, 9) in one.entries]
        assert sorted(copies) == sorted([one, two, three]), "no more is copied than is of use"
        assert [(stuck.ledger, stuck.is_lost) for stuck in report.stuck] == [(ledger, True)]
        reads = world.bookies.calls[two]
        await asyncio.sleep(7200.0)
        assert world.bookies.calls[two] - reads <= 16, "it is not tried in a tight loop"
        world.bookies.all[one].is_away = False
        await asyncio.sleep(COPIED_S)
        assert not auditor.auditor.report().stuck
        await world.check_readable()

    with_copies(main)


def test_an_entry_that_never_reached_all_its_bookies_gets_there() -> None:
    async def main(world: Copies) -> None:
        writer = await world.writer.ledgers.create(Quorum(3, 3, 2), "t")
        ledger = writer.ledger
        world.payloads[ledger] = [b"%d" % number for number in range(12)]
        names = (await world.record(ledger)).fragments[0].bookies
        for number, payload in enumerate(world.payloads[ledger]):
            world.bookies.all[names[1]].is_away = number in range(3, 6)
            world.bookies.all[names[2]].is_away = number == 8
            await writer.append(payload)
            await asyncio.sleep(3.0)
        await writer.close()
        assert len(await world.missing(ledger)) >= 4
        auditor = world.auditor()
        await asyncio.sleep(COPIED_S)
        await world.check()
        assert 4 <= auditor.auditor.report().entries < 12 and auditor.auditor.report().filled == 0

    with_copies(main)


def test_where_a_copy_belongs_and_has_no_room_another_bookie_takes_the_place() -> None:
    async def main(world: Copies) -> None:
        writer = await world.writer.ledgers.create(Quorum(3, 3, 2), "t")
        world.payloads[writer.ledger] = [b"0", b"1"]
        names = (await world.record(writer.ledger)).fragments[0].bookies
        world.bookies.all[names[1]].hangs = True
        for payload in world.payloads[writer.ledger]:
            await writer.append(payload)
        await writer.close()
        world.bookies.all[names[1]].hangs = False
        world.bookies.all[names[1]].is_full = True
        world.auditor()
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main)


@pytest.mark.parametrize("seed", range(5))
def test_full_bookies_get_nothing_and_one_that_refuses_is_asked_once(seed: int) -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        record = await world.record(ledger)
        free = sorted(world.bookies.all.keys() - set(record.fragments[0].bookies))
        for bookie in free[:2]:
            world.bookies.all[bookie].fences[ledger] = 99
        for bookie in free[2:-1]:
            world.bookies.all[bookie].is_full = True
        auditor = world.auditor()
        world.lose(record.fragments[0].bookies[0])
        await asyncio.sleep(COPIED_S)
        await world.check()
        assert (await world.record(ledger)).fragments[0].bookies[0] == free[-1]
        assert auditor.auditor.report().filled == 1
        assert max(world.bookies.calls[bookie] for bookie in free[:2]) <= 1

    with_copies(main, bookies=8, seed=seed)


def test_an_entry_is_not_given_up_while_somebody_who_may_have_it_is_silent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        one, two, three = (await world.record(ledger)).fragments[0].bookies
        world.damage(two, ledger, 3)
        world.lose(one)
        world.bookies.all[three].hangs = True
        auditor = world.auditor()
        await asyncio.sleep(COPIED_S)
        assert [stuck.is_lost for stuck in auditor.auditor.report().stuck] == [False]
        assert not [line for line in caplog.messages if "no bookie has entry" in line]
        world.bookies.all[three].hangs = False
        await asyncio.sleep(COPIED_S)
        assert await world.missing(ledger) == [(3, two)]

    with_copies(main)


def test_without_another_bookie_it_waits_for_one(caplog: pytest.LogCaptureFixture) -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        record = await world.record(ledger)
        spare = next(iter(world.bookies.all.keys() - set(record.fragments[0].bookies)))
        world.bookies.all[spare].is_full = True
        world.lose(record.fragments[0].bookies[2])
        world.auditor()
        await asyncio.sleep(COPIED_S)
        assert (
            sum("no other running bookie has free disk space; start" in m for m in caplog.messages)
            == 1
        )
        assert (await world.record(ledger)).claim is None
        await world.check_readable()
        world.bookies.all[spare].is_full = False
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main, bookies=4)


def test_when_bookies_come_what_failed_is_tried_at_once() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        bookies = (await world.record(ledger)).fragments[0].bookies
        spare = next(iter(world.bookies.all.keys() - set(bookies)))
        world.lose(bookies[2], spare)
        world.auditor(replace(SOON, retry_after_s=3000.0))
        await asyncio.sleep(6000.0)
        assert await world.missing(ledger)
        world.bookies.all[spare].is_away = False
        await asyncio.sleep(10.0)
        await world.check()

    with_copies(main, bookies=4)


def test_a_ledger_that_was_fenced_is_copied_too() -> None:  # BookKeeper #4163
    async def main(world: Copies) -> None:
        writer, _ = await world.open_ledger((3, 3, 2), 9)
        record = await world.process().ledgers.recover(writer.ledger)
        assert record.term > 1
        for one in world.bookies.all.values():
            one.fences[writer.ledger] = record.term
        world.lose(record.fragments[0].bookies[0])
        world.auditor()
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main)


def test_an_open_ledger_is_left_to_its_writer_for_a_while_and_ended_then() -> None:
    async def main(world: Copies) -> None:
        world.auditor()
        writer, (lost, *_) = await world.open_ledger((3, 3, 2), 20, lost_at=10)
        waits_s = SOON.lost_bookie_after_s + SOON.open_fragment_after_s
        await asyncio.sleep(waits_s - 1.0)
        record = await world.record(writer.ledger)
        assert record.state is LedgerState.OPEN and lost in record.fragments[-1].bookies
        assert world.bookies.all[lost].entries.keys() == {(writer.ledger, n) for n in range(10)}
        await asyncio.sleep(COPIED_S)
        assert (await world.record(writer.ledger)).state is LedgerState.CLOSED
        await world.check()
        assert await outcome(writer.append(b"late")) is LedgerFenced

    with_copies(main)


def test_a_writer_that_does_without_the_lost_one_in_time_is_not_disturbed() -> None:
    async def main(world: Copies) -> None:
        world.auditor()
        writer, _ = await world.open_ledger((3, 3, 3), 20, lost_at=10)
        await asyncio.sleep(COPIED_S)
        record = await world.record(writer.ledger)
        assert record.state is LedgerState.OPEN and len(record.fragments) == 2
        assert not await world.missing(writer.ledger), "the former fragment has its copies"
        assert await writer.append(b"more") == 20
        world.payloads[writer.ledger].append(b"more")
        await writer.close()
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main)


def test_former_fragments_are_copied_before_the_writer_has_had_its_time() -> None:
    async def main(world: Copies) -> None:
        writer, first = await world.open_ledger((3, 3, 3), 6, lost_at=3)
        ledger = writer.ledger
        world.lose(first[1])  # the bookie is in both fragments
        world.auditor()
        await asyncio.sleep(SOON.lost_bookie_after_s + SOON.open_fragment_after_s - 1.0)
        record = await world.record(ledger)
        assert record.state is LedgerState.OPEN and not await world.missing(ledger)
        assert first[1] in record.fragments[-1].bookies
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main, bookies=6)


def test_a_recovery_keeps_what_was_copied_meanwhile() -> None:
    async def main(world: Copies) -> None:
        writer, first = await world.open_ledger((3, 3, 3), 6, lost_at=3)
        ledger, fence, gate = writer.ledger, world.bookies.fence, asyncio.Event()

        async def late(bookie: str, of: int, term: int, /) -> int:
            await gate.wait()
            return await fence(bookie, of, term)

        world.bookies.fence = late  # type: ignore[method-assign]
        recovering = asyncio.ensure_future(world.process().ledgers.recover(ledger))
        await asyncio.sleep(1.0)
        world.auditor(RecoveryOptions(lost_bookie_after_s=2.0, open_fragment_after_s=900.0))
        await asyncio.sleep(10.0)
        copied = await world.record(ledger)
        assert copied.state is LedgerState.RECOVERING and not await world.missing(ledger)
        gate.set()
        assert (await recovering).fragments[0] == copied.fragments[0]
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main)


def test_a_claim_that_a_crash_has_left_is_released() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        await world.writer.rows.update(
            ledger, lambda found: claim(existing(ledger, found), "of one that died", ["b4"])
        )
        world.auditor()
        await asyncio.sleep(COPIED_S)
        await world.check()

    with_copies(main)


def test_a_ledger_made_with_too_few_bookies_gets_the_copies_that_were_wanted() -> None:
    async def main(world: Copies) -> None:
        for one in ("b2", "b3", "b4"):
            world.bookies.all[one].is_full = True
        ledger = await world.ledger()
        writer, _ = await world.open_ledger((3, 3, 2), 7)
        assert (await world.record(ledger)).quorum == (2, 2, 2)
        world.auditor()
        await asyncio.sleep(COPIED_S)
        assert (await world.record(ledger)).quorum == (2, 2, 2)
        assert (await world.record(writer.ledger)).state is LedgerState.OPEN
        world.bookies.all["b3"].is_full = False
        await asyncio.sleep(COPIED_S)
        await world.check()
        assert (await world.record(ledger)).wanted is None
        assert (await world.record(writer.ledger)).state is LedgerState.CLOSED
        world.lose("b0", "b1")
        await world.check_readable()

    with_copies(main)


def test_what_only_the_drained_bookie_has_is_copied_from_it() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger()
        one, two, three = (await world.record(ledger)).fragments[0].bookies
        for bookie in (two, three):
            world.damage(bookie, ledger, 4)
        world.auditor()
        world.bookies.all[one].is_leaving = True
        await asyncio.sleep(COPIED_S)
        assert await world.missing(ledger) == [(4, two), (4, three)]
        world.lose(one)
        await world.check_readable()

    with_copies(main)


def test_an_open_ledger_of_a_drained_bookie_is_ended_in_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: Copies) -> None:
        caplog.set_level(logging.INFO)
        writer = await world.writer.ledgers.create(Quorum(3, 3, 2), "t")
        world.payloads[writer.ledger] = [b"x"]
        await writer.append(b"x")
        leaving = (await world.record(writer.ledger)).fragments[0].bookies[1]
        world.auditor()
        world.bookies.all[leaving].is_leaving = True
        await asyncio.sleep(SOON.open_fragment_after_s - 0.5)
        assert (await world.record(writer.ledger)).state is LedgerState.OPEN
        await asyncio.sleep(COPIED_S)
        await world.check()
        said = f"bookie {leaving} is drained: no ledger needs it; its directory can be removed"
        assert caplog.messages.count(said) == 1
        more = await world.writer.ledgers.create(Quorum(3, 3, 2), "t")
        assert leaving not in (await world.record(more.ledger)).fragments[0].bookies

    with_copies(main)


def test_a_drained_bookie_has_nothing_that_is_needed() -> None:
    async def main(world: Copies) -> None:
        for _ in range(4):
            await world.ledger()
        auditor = world.auditor()
        world.bookies.all["b1"].is_leaving = True
        await asyncio.sleep(COPIED_S)
        found = {one.bookie: one for one in auditor.auditor.report().bookies}
        assert found["b1"].is_drained and not found["b2"].is_drained
        world.lose("b1")
        await world.check()
        stored = await report_rows(world.writer.metadata).read("ledger/{silo}")
        assert stored is not None and stored.filled == auditor.auditor.report().filled > 0
        assert stored.auditor.startswith("auditor")

    with_copies(main)


def test_two_auditors_at_once_do_no_harm() -> None:
    async def main(world: Copies) -> None:
        for _ in range(8):
            await world.ledger(entries=30)
        for is_first in (True, True, False):
            world.auditor(is_first=is_first)
        collecting = asyncio.ensure_future(world.keep_collecting())
        for bookie in ("b0", "b3"):
            world.lose(bookie)
            await asyncio.sleep(2 * COPIED_S)
            await world.check()
        collecting.cancel()

    with_copies(main, bookies=6)


def test_who_is_not_the_first_does_nothing() -> None:
    async def main(world: Copies) -> None:
        await world.ledger()
        auditor = world.auditor(is_first=False)
        world.lose((await world.record(1)).fragments[0].bookies[0])
        await asyncio.sleep(COPIED_S)
        assert await world.missing(1) and not auditor.auditor.is_acting
        assert auditor.auditor.report().ledgers == 0
        assert await report_rows(world.writer.metadata).read("ledger/{silo}") is None

    with_copies(main)


def test_copies_that_are_needed_no_more_can_go_and_others_stay() -> None:
    async def main(world: Copies) -> None:
        for _ in range(6):
            await world.ledger()
        collecting = asyncio.ensure_future(world.keep_collecting())
        world.auditor()
        for bookie in ("b0", "b1", "b2", "b0", "b3"):
            world.lose(bookie)
            await asyncio.sleep(SOON.lost_bookie_after_s + 1.5)  # in the middle of copying
            world.bookies.all[bookie].is_away = False
            await asyncio.sleep(COPIED_S)
            await world.check()
        collecting.cancel()
        copies = sum(len(one.entries) for one in world.bookies.all.values())
        assert copies == 6 * 10 * 3

    with_copies(main, bookies=5)


def test_a_ledger_that_is_deleted_while_it_is_copied_is_no_trouble(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger(entries=900)
        world.lose((await world.record(ledger)).fragments[0].bookies[0])
        options = RecoveryOptions(
            lost_bookie_after_s=2.0, copy_bytes_per_s=9000, audit_every_s=10 * COPIED_S
        )
        auditor = world.auditor(options)  # only the copying itself notices the deletion
        await asyncio.sleep(5.0)
        assert 0 < auditor.auditor.report().entries < 900
        await world.writer.ledgers.delete(ledger)
        await asyncio.sleep(COPIED_S)
        assert auditor.auditor.report().lacking == 0 and not caplog.messages[1:]

    with_copies(main)


def test_copying_keeps_to_its_pace() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger(entries=400)
        record = await world.record(ledger)
        world.lose(record.fragments[0].bookies[0])
        auditor = world.auditor(
            RecoveryOptions(lost_bookie_after_s=1.0, copy_bytes_per_s=2_000, page_entries=8)
        )
        size = 400 * 56 + record.length
        loop, begin_s = asyncio.get_running_loop(), 0.0
        while await world.missing(ledger):
            begin_s = begin_s or (loop.time() if auditor.auditor.report().entries else 0.0)
            await asyncio.sleep(0.1)
        took_s = loop.time() - begin_s
        assert 0.8 * size / 2_000 < took_s < 1.3 * size / 2_000

    with_copies(main)
