"""The reports and counts of an auditor, and its work after a part of it fails."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from tests.providers.ledger.copies import COPIED_S, SOON, Copies, with_copies

from millstream.providers.ledger import RecoveryOptions
from millstream.providers.ledger.handle.context import existing
from millstream.providers.ledger.inspection import LedgerRecord
from millstream.providers.ledger.protocol.errors import BookieOverloaded
from millstream.providers.ledger.recovery.auditor import REPORT_EVERY_S
from millstream.providers.ledger.recovery.bookie_standing import BookieStanding
from millstream.providers.ledger.recovery.copier import (
    BETWEEN_TRIES,
    OVERLOADED_MAX,
    Copied,
    Copier,
    EntriesLost,
)
from millstream.providers.ledger.recovery.report import BookieReport
from millstream.runtime import Etag


def test_it_counts_what_was_found_and_done() -> None:
    async def main(world: Copies) -> None:
        assert not world.auditor(is_first=False).auditor.is_acting
        closed = [await world.ledger(entries=10) for _ in range(3)]
        writer, _ = await world.open_ledger((3, 3, 2), 4)
        auditor = world.auditor().auditor
        assert not auditor.is_acting, "it has not looked yet"
        await asyncio.sleep(SOON.look_every_s + 0.1)
        first = auditor.report()
        assert auditor.is_acting and first.ledgers == 4 and first.filled == 0
        assert first.since_s == first.audited_s and first.since_s > 1_700_000_000
        await asyncio.sleep(SOON.audit_every_s - 2.0)
        assert auditor.report().audited_s == first.audited_s, "not as often as it looks at bookies"
        await asyncio.sleep(3.0)
        assert auditor.report().audited_s > first.audited_s
        records = [await world.record(ledger) for ledger in (*closed, writer.ledger)]
        lost = records[0].fragments[0].bookies[0]
        hit = [one for one in records if lost in one.fragments[0].bookies]
        world.lose(lost)
        await asyncio.sleep(COPIED_S)
        await world.check()
        said = auditor.report()
        sizes = [
            len(packed)
            for one in hit
            for entry in range(len(world.payloads[one.ledger]))
            for packed in [world.bookies.all[lost].entries[one.ledger, entry]]
        ]
        assert (said.filled, said.entries, said.size_bytes) == (len(hit), len(sizes), sum(sizes))
        assert said.ended == (writer.ledger in {one.ledger for one in hit})
        assert (said.lacking, said.places, said.ledgers, said.stuck) == (0, 0, 4, ())
        assert said.since_s == first.since_s and said.audited_s > first.audited_s
        assert auditor.is_lost(lost) and not auditor.is_lost("b9")
        now = [await world.record(one.ledger) for one in records]
        named = [name for one in now for name in one.fragments[0].bookies]
        assert said.bookies == tuple(
            BookieReport(name, "lost" if name == lost else "here", named.count(name))
            for name in sorted(world.bookies.all)
        )

    with_copies(main)


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_one_that_acts_says_what_becomes_of_bookies(
    is_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    texts = (
        "this silo now checks and repairs the replicas of ledgers in ledger/{silo}",
        "bookie b0 is lost: no silo has run it for 6 s",
        "bookie b0 has returned",
        "bookie b1 is being drained",
    )

    async def main(world: Copies) -> None:
        caplog.set_level(logging.INFO, "millstream.ledger")
        for _ in range(3):
            await world.ledger()
        world.auditor(is_first=is_first)
        await asyncio.sleep(1.0)
        world.lose("b0")
        await asyncio.sleep(COPIED_S)
        world.bookies.all["b0"].is_away = False
        world.bookies.all["b1"].is_leaving = True
        await asyncio.sleep(COPIED_S)

    with_copies(main)
    assert [caplog.text.count(text) for text in texts] == [int(is_first)] * len(texts)
    assert caplog.text.count("has returned") == int(is_first)
    filled = re.findall(r"replaced bookies in (\d+) places", caplog.text)
    assert bool(filled) is is_first and "0" not in filled


def test_what_lacks_nothing_any_more_is_taken_off_at_once() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger(entries=9)
        third = (await world.record(ledger)).fragments[0].bookies[2]
        del world.bookies.all[third].entries[ledger, 8]

        def unsure(found: LedgerRecord | None) -> LedgerRecord:
            return msgspec.structs.replace(existing(ledger, found), complete=4)

        await world.writer.rows.update(ledger, unsure)
        auditor = world.auditor().auditor
        async with asyncio.timeout(COPIED_S):
            while not auditor.report().entries:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        said = auditor.report()
        assert (said.lacking, said.filled, said.entries) == (0, 0, 1)
        assert said.checked == 3 * 4 - 1, "entries 5 to 8 where they belong, but one"
        await world.check()

    with_copies(main)


def test_the_report_is_written_when_there_is_news_and_not_too_often() -> None:
    async def main(world: Copies) -> None:
        for _ in range(3):
            await world.ledger(entries=300)
        world.lose("b0")
        options = RecoveryOptions(
            lost_bookie_after_s=2.0, audit_every_s=0.5, copy_bytes_per_s=9_000, ledgers_max=1
        )
        world.auditor(options)
        wrote_s: list[float] = []
        put = world.store.put

        def noted(key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
            if "recovery" in key and "witness" not in key:
                wrote_s.append(asyncio.get_running_loop().time())
            return put(key, data, expect, fence)

        world.store.put = noted  # type: ignore[method-assign]
        await asyncio.sleep(COPIED_S)
        assert len(wrote_s) > 2
        assert all(b - a >= REPORT_EVERY_S for a, b in pairwise(wrote_s))

    with_copies(main)


def test_all_is_looked_at_again_as_soon_as_places_were_filled() -> None:
    async def main(world: Copies) -> None:
        await world.ledger()
        lost = (await world.record(1)).fragments[0].bookies[0]
        auditor = world.auditor(replace(SOON, audit_every_s=1000.0)).auditor
        await asyncio.sleep(5.0)
        world.lose(lost)
        async with asyncio.timeout(COPIED_S):
            while not auditor.report().filled:
                await asyncio.sleep(0.1)
        filled_s = world.writer.clock.wall_s()
        await asyncio.sleep(2 * SOON.look_every_s)
        assert auditor.report().audited_s >= filled_s and not auditor.report().lacking

    with_copies(main)


def test_a_place_that_cannot_be_filled_holds_up_no_other() -> None:
    async def main(world: Copies) -> None:
        writer, first = await world.open_ledger((3, 3, 3), 6, lost_at=3)
        await asyncio.sleep(0.1)
        await writer.close()
        ledger, hurt = writer.ledger, first[1]
        assert len((await world.record(ledger)).fragments) == 2
        world.bookies.all[first[0]].is_away = False
        for name, one in world.bookies.all.items():
            if name != hurt:
                one.entries.pop((ledger, 1), None)
        world.lose(hurt)
        auditor = world.auditor().auditor
        await asyncio.sleep(COPIED_S)
        former, last = (await world.record(ledger)).fragments
        assert hurt in former.bookies and hurt not in last.bookies
        said = auditor.report()
        assert (said.lacking, said.places, said.filled) == (1, 1, 1)
        assert [(one.ledger, one.is_lost) for one in said.stuck] == [(ledger, True)]
        assert f"no bookie has entry 1; restore the directory of bookie {hurt}" in (
            said.stuck[0].why
        )
        assert (await world.record(ledger)).claim is None
        world.bookies.all[hurt].is_away = False
        await asyncio.sleep(COPIED_S)
        assert auditor.report().stuck == ()

    with_copies(main)


def test_copies_that_were_wanted_wait_without_a_claim_while_an_entry_is_missing() -> None:
    async def main(world: Copies) -> None:
        for name in ("b2", "b3", "b4"):
            world.bookies.all[name].is_full = True
        ledger = await world.ledger(entries=6)
        two = [world.bookies.all[name] for name in ("b0", "b1")]
        kept = [one.entries.pop((ledger, 2)) for one in two]
        world.bookies.all["b2"].is_full = False
        auditor = world.auditor().auditor
        await asyncio.sleep(COPIED_S)
        record = await world.record(ledger)
        assert record.quorum == (2, 2, 2) and record.claim is None
        assert "no bookie has entry 2" in auditor.report().stuck[0].why
        two[0].entries[ledger, 2] = kept[0]
        before = auditor.report().filled
        await asyncio.sleep(COPIED_S)
        assert (await world.record(ledger)).quorum == (3, 3, 2)
        assert auditor.report().filled == before + 1

    with_copies(main)


def test_all_that_is_lost_is_looked_for_before_it_is_said() -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger(entries=6)
        record = await world.record(ledger)
        *others, lost = record.fragments[0].bookies
        spare = next(iter(set(world.bookies.all) - set(record.fragments[0].bookies)))
        for name in others:
            for entry in (1, 3, 4):
                del world.bookies.all[name].entries[ledger, entry]
        clock = world.process().clock
        of = {lost: BookieStanding.LOST}
        copier = Copier(
            world.bookies, clock, SOON, lambda n: of.get(n, BookieStanding.HERE), Copied()
        )
        with pytest.raises(EntriesLost, match=r"has entry 1, 3 to 4; restore") as caught:
            await copier.fill(record, [range(6)], spare)
        assert (caught.value.ledger, caught.value.first) == (ledger, 1)
        assert caught.value.gone == (lost,)

    with_copies(main)


@pytest.mark.parametrize("refusals", [OVERLOADED_MAX - 1, OVERLOADED_MAX])
def test_a_bookie_with_much_to_do_is_asked_again_with_pauses_so_many_times(refusals: int) -> None:
    async def main(world: Copies) -> None:
        ledger = await world.ledger(entries=3)
        record, add, asked = await world.record(ledger), world.bookies.add, list[float]()
        spare = next(iter(set(world.bookies.all) - set(record.fragments[0].bookies)))

        async def busy(bookie: str, term: int, entries: Sequence[bytes], /) -> None:
            asked.append(asyncio.get_running_loop().time())
            if len(asked) <= refusals:
                raise BookieOverloaded(f"{bookie} has too much to do")
            await add(bookie, term, entries)

        world.bookies.add = busy  # type: ignore[method-assign]
        process = world.process()
        copied = Copied()
        copier = Copier(
            world.bookies, process.clock, SOON, lambda name: BookieStanding.HERE, copied
        )
        filling = copier.fill(record, [range(3)], spare)
        if refusals < OVERLOADED_MAX:
            await filling
            assert world.has(spare, ledger, 2) and copied.entries == 3
        else:
            with pytest.raises(BookieOverloaded):
                await filling
            assert copied.entries == 0
        assert len(asked) == OVERLOADED_MAX
        pauses = [b - a for a, b in pairwise(asked)]
        most = [BETWEEN_TRIES.delay_s(attempt, 0.999) for attempt in range(1, OVERLOADED_MAX)]
        assert all(0 < pause <= limit for pause, limit in zip(pauses, most, strict=True))

    with_copies(main)
