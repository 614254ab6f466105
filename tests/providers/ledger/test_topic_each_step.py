"""Every write of a row fails once, loses its answer once, and is once the owner's last step.

Acknowledged messages stay, and no list names a ledger that is deleted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from tests.providers.ledger.topic_history import History
from tests.providers.ledger.worlds import World, in_a_world, marked

from millstream.providers.ledger import LedgerTopicOptions, LedgerTopicSettings
from millstream.runtime import Etag, StorageError, StorageUnavailable, StreamError

OPTIONS = LedgerTopicOptions(snapshot_entries=2, enqueue_wait_s=1.0)
SETTINGS = LedgerTopicSettings(ledger_entries_max=3)
WRITES = 90  # the writes of the whole run, and some more


def at_write(world: World, count: int, act: Callable[[], None], is_done: bool) -> None:
    """Call `act` before or after the store's `count`th change."""
    put, remove, left = world.store.put, world.store.remove, count

    def is_due() -> bool:
        nonlocal left
        left -= 1
        return left == -1

    def watched_put(key: str, data: bytes, expect: Etag | None, fence: int) -> Etag:
        if not is_due():
            return put(key, data, expect, fence)
        etag = put(key, data, expect, fence) if is_done else ""
        act()
        return etag

    def watched_remove(key: str, expect: Etag, fence: int) -> None:
        if not is_due():
            return remove(key, expect, fence)
        if is_done:
            remove(key, expect, fence)
        act()

    world.store.put = watched_put  # type: ignore[method-assign]
    world.store.remove = watched_remove  # type: ignore[method-assign]


async def story(world: World, heard: list[int]) -> None:
    """An owner appends over several ledgers, a cursor follows, and the topic closes."""
    topic = await world.open(1, OPTIONS, SETTINGS)
    cursor = await topic.cursors.open("c")
    for seq in range(1, 11):
        await topic.append(marked("p", seq))
        heard.append(seq)
        cursor.acknowledge(seq - 2)
        await asyncio.sleep(0.3)
    await topic.aclose()


async def judge(world: World, history: History, heard: list[int]) -> None:
    topic = await world.open(2, OPTIONS)
    cursor = await topic.cursors.open("c", 1)
    assert cursor.mark <= max(0, len(heard) - 1)
    await topic.append(marked("p", *range(1, 13)))
    await topic.aclose()
    log = history.log()
    assert [log[number].seq for number in sorted(log)] == list(range(1, 13))
    history.judge()
    for span in topic.record.spans:
        assert span.ledger in world.bookies.ledgers


@pytest.mark.one_in(4)
@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("count", range(WRITES))
def test_a_change_of_a_row_that_fails_costs_nothing(count: int, is_done: bool) -> None:
    async def main(world: World) -> None:
        history, heard = History(world), list[int]()
        history.watch()

        def fail() -> None:
            raise StorageUnavailable("on purpose")

        at_write(world, count, fail, is_done)
        await story(world, heard)
        assert len(heard) == 10
        await judge(world, history, heard)

    in_a_world(main)


@pytest.mark.one_in(4)
@pytest.mark.parametrize("is_done", [True, False])
@pytest.mark.parametrize("count", range(WRITES))
def test_an_owner_that_dies_at_a_change_of_a_row_loses_nothing(count: int, is_done: bool) -> None:
    async def main(world: World) -> None:
        history, heard = History(world), list[int]()
        history.watch()
        dead = asyncio.Event()

        def die() -> None:
            if len(world.processes) == 1:
                world.processes[0].kill()
                telling.cancel()
                dead.set()
            raise StorageUnavailable("its process is dead")

        at_write(world, count, die, is_done)
        telling = asyncio.ensure_future(story(world, heard))
        await asyncio.wait([telling])
        if dead.is_set():
            assert telling.cancelled() or isinstance(
                telling.exception(), StreamError | StorageError
            )
        await asyncio.sleep(1)
        await judge(world, history, heard)

    in_a_world(main)


def test_the_story_has_no_more_changes_than_are_tried() -> None:
    async def main(world: World) -> None:
        late: list[int] = []
        at_write(world, WRITES, lambda: late.append(1), True)
        await story(world, [])
        assert not late

    in_a_world(main)
