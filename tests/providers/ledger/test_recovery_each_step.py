"""The auditor crashes or fails at each step. Another auditor continues, and no entry is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest
from tests.providers.ledger.copies import COPIED_S, Audits, Copies, with_copies

from millstream.providers.ledger.protocol.errors import BookieAway
from millstream.runtime import Etag, StorageUnavailable

WRITES = 40  # the writes of the whole run, and some more
ADDS = 16


def at_write(world: Copies, count: int, act: Callable[[], None], is_done: bool) -> None:
    """Call `act` when the store is asked for its `count`th change of a ledger's row."""
    put, left = world.store.put, count

    def watched(key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        nonlocal left
        left -= "/ledgers/" in key
        if left != -1 or "/ledgers/" not in key:
            return put(key, data, expect, fence)
        etag = put(key, data, expect, fence) if is_done else ""
        act()
        return etag

    world.store.put = watched  # type: ignore[method-assign]


def at_add(world: Copies, count: int, act: Callable[[], None], is_done: bool) -> None:
    """Call `act` when entries are added for the `count`th time."""
    add, left = world.bookies.add, count

    async def watched(bookie: str, term: int, entries: Sequence[bytes], /) -> None:
        nonlocal left
        left -= 1
        if left != -1:
            return await add(bookie, term, entries)
        if is_done:
            await add(bookie, term, entries)
        act()

    world.bookies.add = watched  # type: ignore[method-assign]


async def begin(world: Copies) -> Audits:
    """Make a closed ledger with two fragments, one with too few copies, and one that is open.

    All of them lose a bookie, and a bookie that must be emptied has the remaining copies.
    """
    writer, first = await world.open_ledger((3, 3, 3), 9, lost_at=5)
    ledger = writer.ledger
    await asyncio.sleep(0.1)
    await writer.close()
    assert len((await world.record(ledger)).fragments) == 2
    others = [name for name in world.bookies.all if name not in first[:2]]
    for name in others:
        world.bookies.all[name].is_full = True
    world.bookies.all[first[0]].is_away = False
    short = await world.ledger((3, 3, 2), entries=6)
    assert (await world.record(short)).quorum == (2, 2, 2)
    for name in others:
        world.bookies.all[name].is_full = False
    await world.open_ledger((3, 3, 2), 6)
    world.lose(first[0])
    world.bookies.all[first[1]].is_leaving = True
    return world.auditor()


async def goes_on(world: Copies, auditor: Audits) -> None:
    collecting = asyncio.ensure_future(world.keep_collecting())
    await asyncio.sleep(COPIED_S / 2)
    world.auditor()
    await asyncio.sleep(COPIED_S)
    collecting.cancel()
    await world.check()
    lost = [name for name, one in world.bookies.all.items() if one.is_away or one.is_leaving]
    for ledger in world.payloads:
        for fragment in (await world.record(ledger)).fragments:
            assert not set(lost) & set(fragment.bookies)


Step = Callable[[Copies, int, Callable[[], None], bool], None]


def play(step: Step, error: Exception, count: int, is_done: bool, dies: bool) -> None:
    """Let the `count`th step of its kind fail, before or after its effect. The auditor may crash
    then.
    """

    async def main(world: Copies) -> None:
        auditor = await begin(world)

        def act() -> None:
            if dies:
                auditor.kill()
            raise error

        step(world, count, act, is_done)
        await goes_on(world, auditor)

    with_copies(main, bookies=6)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("count", range(WRITES))
@pytest.mark.parametrize("dies", [True, False])
def test_a_change_of_a_record_is_the_last_thing_it_does_or_fails(
    count: int, is_done: bool, dies: bool
) -> None:
    play(at_write, StorageUnavailable("on purpose"), count, is_done, dies)


@pytest.mark.one_in(7)
@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("count", range(ADDS))
@pytest.mark.parametrize("dies", [True, False])
def test_a_copy_that_is_sent_is_the_last_thing_it_does_or_fails(
    count: int, is_done: bool, dies: bool
) -> None:
    play(at_add, BookieAway("on purpose"), count, is_done, dies)


def test_the_story_has_as_many_steps_as_are_tried() -> None:
    async def main(world: Copies) -> None:
        auditor = await begin(world)
        steps: list[str] = []
        at_write(world, WRITES, lambda: steps.append("write"), True)
        at_add(world, ADDS, lambda: steps.append("add"), True)
        await goes_on(world, auditor)
        assert steps == [], len(steps)

    with_copies(main, bookies=6)
