"""The progress that an owner stores in the record, and callers that wait for the write."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.streams.agent.cursors import add, restored

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.audience.handover_list import Former
from millstream.streams.agent.cache.lagging_cursors import UNKNOWN, LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.losses import Loss, Losses
from millstream.streams.agent.progress.tracker import ProgressTracker
from millstream.streams.agent.progress.wary import Wary
from millstream.streams.ownership.record import (
    ListedSubscription,
    LostRanges,
    QueueProgress,
    Suspect,
)

STREAM = StreamId("notes", "a")
SLOW = ListedSubscription(*STREAM, "slow", Token(1, 5), Token(1, 5))


def message(seq: int) -> QueueMessage:
    return QueueMessage(STREAM, Token(1, seq), [b"x"])


class Owner:
    """The owner of a queue that was taken over with this progress."""

    def __init__(
        self,
        stored: QueueProgress,
        *listed: ListedSubscription,
        can_rewind: bool = False,
        is_sole: bool = True,
    ) -> None:
        self.cache = QueueCache(CacheLimits(), stored.upto if can_rewind else stored.floor)
        self.laggards = LaggingCursors(self.cache, is_used=can_rewind)
        self.losses = Losses(stored.lost, is_noted=True)
        self.wary = Wary(stored, is_used=True)
        everyone: Any = SimpleNamespace(list_unfinished=lambda: listed)
        self.standing = ProgressTracker(
            self.laggards,
            everyone,
            Former(stored, is_used=not can_rewind),
            self.wary,
            self.losses,
            stored=stored,
            has_positions=True,
            is_sole=is_sole,
        )


def test_the_list_of_the_former_owner_is_said_until_all_that_it_had_read_is_done() -> None:
    stored = QueueProgress(Token(1, 9), (SLOW,), Token(1, 3))
    owner = Owner(stored)
    assert owner.standing.progress() == stored
    add(owner.cache, message(4), message(8))
    assert owner.standing.progress() == QueueProgress(Token(1, 9), (SLOW,), Token(1, 8))
    add(owner.cache, message(9))
    assert owner.standing.progress() == QueueProgress(Token(1, 9), (), Token(1, 9))
    add(owner.cache, message(10))
    assert owner.standing.progress() == QueueProgress(Token(1, 10), (), Token(1, 10))


def test_where_the_provider_keeps_the_position_a_list_is_said_until_it_is_empty() -> None:
    owner = Owner(QueueProgress(Token(1, 9), (SLOW,), Token(1, 3)), is_sole=False)
    add(owner.cache, message(9))
    progress = owner.standing.progress()
    assert progress == QueueProgress(Token(1, 9), (), Token(1, 9))
    owner.standing.on_stored(progress)
    assert owner.standing.progress() is None


def test_what_is_known_of_deaths_and_losses_is_said_and_waited_for() -> None:
    suspect = Suspect(*STREAM, "slow", Token(1, 5), 2)
    owner = Owner(QueueProgress(Token(1, 4), floor=Token(1, 4), deaths=2, suspects=(suspect,)))
    owner.losses.note(Loss(Token(1, 1), Token(1, 3)), 7.0)
    progress = owner.standing.progress()
    assert progress is not None and owner.standing.is_awaited
    assert (progress.deaths, progress.suspects) == (2, (suspect,))
    assert progress.lost == LostRanges(7.0, ((Token(1, 1), Token(1, 3)),))
    assert owner.standing.handoff(is_known=True) == QueueProgress(
        Token(1, 4), (), Token(1, 4), 2, (suspect,), progress.lost, is_told=True
    )
    owner.standing.on_stored(progress)
    assert not owner.standing.is_awaited


def test_one_that_lags_no_more_matters_until_the_record_names_nobody() -> None:
    owner = Owner(QueueProgress(Token(1, 9)), can_rewind=True)
    restored(owner.laggards, SLOW, Token(1, 9)).close()
    assert owner.laggards.matters
    owner.standing.on_stored(QueueProgress(Token(1, 9)))
    assert not owner.laggards.matters


@pytest.mark.parametrize("who", ["x", UNKNOWN])
@pytest.mark.parametrize("sent", [None, Token(1, 6)])
def test_what_was_sent_is_told_unless_it_is_not_known_to_whom(who: str, sent: Token | None) -> None:
    owner = Owner(QueueProgress(), ListedSubscription(*STREAM, who, Token(1, 5), sent))
    handed = owner.standing.handoff(is_known=True)
    assert handed is not None and handed.is_told is (who == "x" or sent is None)


async def waits(owner: Owner, key: tuple[StreamId, str] = (STREAM, "slow")) -> asyncio.Task[bool]:
    async def wait() -> bool:
        return await owner.standing.until_stored(key)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    return task


async def test_callers_wait_until_the_record_lists_a_subscription() -> None:
    owner = Owner(QueueProgress(Token(1, 9)), can_rewind=True)
    restored(owner.laggards, SLOW, Token(1, 9))
    first, second = await waits(owner), await waits(owner)
    owner.standing.look()
    owner.standing.on_stored(
        QueueProgress(Token(1, 9), (ListedSubscription(*STREAM, "x", Token(1, 1)),))
    )
    await asyncio.sleep(0)
    assert not first.done() and owner.standing.is_awaited
    owner.standing.on_stored(QueueProgress(Token(1, 9), (SLOW,)))
    assert await first and await second and not owner.standing.is_awaited


async def test_callers_wait_no_longer_for_one_that_lags_no_more_or_when_the_agent_ends() -> None:
    owner = Owner(QueueProgress(Token(1, 9)), can_rewind=True)
    cursor = restored(owner.laggards, SLOW, Token(1, 9))
    waiting = await waits(owner)
    cursor.close()
    owner.standing.look()
    assert await waiting
    restored(owner.laggards, SLOW, Token(1, 9))
    waiting = await waits(owner)
    owner.standing.close()
    assert not await waiting and not owner.standing.is_awaited
    owner.standing.close()
