"""Of which streams something up to a message may come again, as the owner of a queue knows it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from millstream.streams import StreamId, Token
from millstream.streams.agent.cache.lagging import Laggards
from millstream.streams.agent.cache.limits import CacheLimits
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.progress.done_before import DoneBefore
from millstream.streams.agent.progress.standing import Standing
from millstream.streams.agent.progress.wary import Wary
from millstream.streams.ownership.record import BehindAt, Progress, SentAt

BARRIER = Token(1, 10)
A = BehindAt("n", "a", "sub", Token(1, 7))
LATER = BehindAt("n", "b", "sub", Token(2, 1))
NOBODY: frozenset[StreamId] = frozenset()


@dataclass
class Reading:
    acked_upto: Token | None = None
    first_read: Token | None = None
    position: Token | None = None
    found_nothing_s: float = -math.inf


class Undone:
    def hand_over(self) -> None: ...
    def sent(self, frontier: Token | None) -> tuple[SentAt, ...] | None:
        return ()


def standing(progress: Progress | None = None) -> Standing:
    cache = QueueCache(CacheLimits(), None, notes="none")
    behind = Laggards(cache, is_used=True)
    return Standing(
        behind,
        DoneBefore(()),
        Undone(),
        notes=(Wary(progress or Progress(), is_used=False),),
        has_positions=True,
        is_sole=True,
        progress=progress,
    )


@pytest.mark.parametrize(
    ("reading", "is_done"),
    [
        (Reading(), False),
        (Reading(acked_upto=Token(1, 9)), False),
        (Reading(acked_upto=Token(1, 10)), True),
        (Reading(first_read=Token(1, 10)), False),
        (Reading(first_read=Token(2, 1)), True),  # what is before it was done by a former owner
        (Reading(found_nothing_s=5.0), False),
        (Reading(found_nothing_s=5.1), True),
        (Reading(None, Token(1, 3), Token(1, 4), 5.1), False),
        (Reading(Token(1, 3), Token(1, 3), Token(1, 4), 5.1), False),
        (Reading(Token(1, 4), Token(1, 3), Token(1, 4), 5.1), True),  # others were done one by one
        (Reading(Token(1, 4), Token(1, 3), Token(1, 4), 5.0), False),
    ],
)
def test_what_the_provider_was_told_or_gives_no_more_is_done(
    reading: Reading, is_done: bool
) -> None:
    owner = standing()
    assert owner.undone_up_to(BARRIER, Reading(), 5.0) is None
    assert owner.undone_up_to(BARRIER, reading, 9.0) == (NOBODY if is_done else None)


def test_what_the_record_says_is_done_but_for_streams_that_are_behind() -> None:
    owner = standing(Progress(Token(1, 9), (A, LATER)))
    assert owner.undone_up_to(BARRIER, Reading(), 0.0) is None
    owner.stored(Progress(BARRIER, (A, LATER)))
    assert owner.undone_up_to(BARRIER, Reading(), 0.0) == frozenset({StreamId("n", "a")})
    owner.stored(Progress(BARRIER, (LATER,)))
    assert owner.undone_up_to(BARRIER, Reading(), 0.0) == NOBODY
