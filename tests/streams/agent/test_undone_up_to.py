"""The streams that may get events again up to a message, as the owner of a queue knows them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from millstream.streams import CacheLimits, StreamId, Token
from millstream.streams.agent.audience.handover_list import Former
from millstream.streams.agent.cache.lagging_cursors import LaggingCursors
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.losses import Losses
from millstream.streams.agent.progress.tracker import ProgressTracker
from millstream.streams.agent.progress.wary import Wary
from millstream.streams.ownership.record import ListedSubscription, QueueProgress

BARRIER = Token(1, 10)
A = ListedSubscription("n", "a", "sub", Token(1, 7))
LATER = ListedSubscription("n", "b", "sub", Token(2, 1))
NOBODY: frozenset[StreamId] = frozenset()


@dataclass
class Read:
    acked_upto: Token | None = None
    first_read: Token | None = None
    position: Token | None = None
    found_nothing_s: float = -math.inf


NOTHING: Any = Read()


def standing(progress: QueueProgress | None = None) -> ProgressTracker:
    cache = QueueCache(CacheLimits(), None, notes="none")
    behind = LaggingCursors(cache, is_used=True)
    return ProgressTracker(
        behind,
        None,  # type: ignore[arg-type]
        Former(QueueProgress(), is_used=False),
        Wary(QueueProgress(), is_used=False),
        Losses(),
        stored=progress or QueueProgress(),
        has_positions=True,
        is_sole=True,
    )


@pytest.mark.parametrize(
    ("reading", "is_done"),
    [
        (Read(), False),
        (Read(acked_upto=Token(1, 9)), False),
        (Read(acked_upto=Token(1, 10)), True),
        (Read(first_read=Token(1, 10)), False),
        (Read(first_read=Token(2, 1)), True),  # a former owner has done all messages before it
        (Read(found_nothing_s=5.0), False),
        (Read(found_nothing_s=5.1), True),
        (Read(None, Token(1, 3), Token(1, 4), 5.1), False),
        (Read(Token(1, 3), Token(1, 3), Token(1, 4), 5.1), False),
        # other messages were done one by one
        (Read(Token(1, 4), Token(1, 3), Token(1, 4), 5.1), True),
        (Read(Token(1, 4), Token(1, 3), Token(1, 4), 5.0), False),
    ],
)
def test_what_the_provider_was_told_or_gives_no_more_is_done(reading: Any, is_done: bool) -> None:
    owner = standing()
    assert owner.undone_up_to(BARRIER, NOTHING, 5.0) is None
    assert owner.undone_up_to(BARRIER, reading, 9.0) == (NOBODY if is_done else None)


def test_what_the_record_says_is_done_but_for_streams_that_are_behind() -> None:
    owner = standing(QueueProgress(Token(1, 9), (A, LATER)))
    assert owner.undone_up_to(BARRIER, NOTHING, 0.0) is None
    owner.on_stored(QueueProgress(BARRIER, (A, LATER)))
    assert owner.undone_up_to(BARRIER, NOTHING, 0.0) == frozenset({StreamId("n", "a")})
    at_barrier = ListedSubscription("n", "b", "sub", BARRIER)
    owner.on_stored(QueueProgress(BARRIER, (at_barrier,)))
    assert owner.undone_up_to(BARRIER, NOTHING, 0.0) == frozenset({StreamId("n", "b")})
    owner.on_stored(QueueProgress(BARRIER, (LATER,)))
    assert owner.undone_up_to(BARRIER, NOTHING, 0.0) == NOBODY
