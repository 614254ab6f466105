"""The time at which a stream that blocks its queue begins to lag, and the choice of the stream."""

from __future__ import annotations

import math

import pytest
from tests.streams.agent.caches import release
from tests.streams.agent.cursors import append

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.reading import relief as module
from millstream.streams.agent.reading.relief import Relief
from millstream.streams.agent.reading.steps import Relieve

A, B, C = (StreamId("n", key) for key in "abc")
LIMITS = CacheLimits(events_max=8, stream_events_max=2)


class Desk:
    """A cache of eight events, of which a stream should have two."""

    def __init__(self, limits: CacheLimits = LIMITS) -> None:
        self.cache = QueueCache(limits)
        self.relief = Relief(self.cache)
        self.seq = 0

    def comes(self, *streams: StreamId) -> list[StreamId]:
        """Append one event of each stream; return the streams that should lag."""
        slots = []
        for stream in streams:
            self.seq += 1
            slots.append(append(self.cache, QueueMessage(stream, Token(1, self.seq), [b"x"])))
        return [one.stream for one in self.relief.on_appended(slots)]

    def done(self, *indices: int) -> None:
        release(self.cache, *indices)

    def asks(
        self, now_s: float, *, is_reading: bool = False, has_waiting: bool = False
    ) -> list[StreamId]:
        found = self.relief.ask(now_s, is_reading, has_waiting)
        assert all(isinstance(one, Relieve) for one in found)
        return [one.stream for one in found]


def test_who_came_and_has_more_than_its_share_of_a_half_full_cache_is_asked_once() -> None:
    desk = Desk()
    assert desk.comes(A, A, A) == [], "the cache is not half full"
    assert desk.comes(B) == [], "B has its share, and A did not come"
    assert desk.comes(A, B, A) == [A]
    assert desk.comes(B) == [B]


def test_a_queue_with_room_or_with_a_read_under_way_is_not_held_up() -> None:
    desk = Desk()
    assert not desk.relief.is_long
    assert desk.asks(0.0, is_reading=True) == [] and not desk.relief.is_long
    desk.comes(A, B)
    for now_s in (0.0, 5.0):
        assert desk.asks(now_s) == [] and desk.relief.at_s == math.inf
    desk.comes(A, A, B, B, C, C)
    for now_s in (10.0, 20.0):
        assert desk.asks(now_s, is_reading=True) == [] and desk.relief.at_s == math.inf


def test_who_holds_up_a_full_queue_for_a_second_falls_behind() -> None:
    desk = Desk()
    desk.comes(B, A, A, A, B, B, C, C)
    assert desk.asks(10.0) == [] and desk.relief.at_s == 11.0
    assert desk.asks(10.999) == [] and desk.relief.at_s == 11.0
    assert desk.asks(11.0) == [B], "the oldest message is of B"
    assert desk.relief.at_s == 12.0, "if it does not help, it is asked again"
    assert desk.asks(11.5) == [] and desk.asks(12.0) == [B]


def test_who_moves_in_time_does_not_fall_behind() -> None:
    desk = Desk()
    desk.comes(B, B, A, A, A, B, C, C)
    desk.asks(10.0, has_waiting=True)
    desk.done(0)
    assert desk.asks(10.9, has_waiting=True) == [] and desk.relief.at_s == 11.9
    assert desk.asks(11.0, has_waiting=True) == []
    desk.done(1)
    assert desk.asks(11.9) == [] and desk.relief.at_s == math.inf, "there is room"
    assert desk.asks(12.5, has_waiting=True) == [] and desk.relief.at_s == 13.5
    assert desk.asks(13.5, has_waiting=True) == [A]


def test_a_read_that_begins_meanwhile_begins_the_second_anew() -> None:
    desk = Desk()
    desk.comes(B, A, A, A, B, B, C, C)
    desk.asks(10.0)
    assert desk.asks(10.5, is_reading=True) == [] and desk.relief.at_s == math.inf
    assert desk.asks(11.2) == [] and desk.relief.at_s == 12.2


def test_what_was_read_and_has_no_room_holds_up_the_queue_though_some_is_free() -> None:
    desk = Desk()
    desk.comes(A)
    assert desk.asks(0.0, has_waiting=True) == [] and desk.relief.at_s == 1.0
    assert desk.asks(1.0, has_waiting=True) == [A]


def test_a_queue_that_is_held_up_by_nothing_that_it_has_relieves_nobody() -> None:
    desk = Desk()
    desk.asks(0.0, has_waiting=True)
    assert desk.asks(1.0, has_waiting=True) == []


@pytest.fixture
def span_of_three(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let three messages count as many."""
    monkeypatch.setattr(module, "SPAN_MAX", 3)


@pytest.mark.usefixtures("span_of_three")
def test_who_is_far_behind_the_newest_holds_up_a_queue_that_is_read_on() -> None:
    desk = Desk(CacheLimits())
    desk.comes(A, B, B)
    assert not desk.relief.is_long
    desk.comes(B)
    assert desk.relief.is_long
    assert desk.asks(10.0, is_reading=True) == [] and desk.relief.at_s == 11.0
    assert desk.asks(11.0, is_reading=True) == [A]
    desk.done(0)
    assert desk.asks(11.1, is_reading=True) == [] and desk.relief.at_s == math.inf
    assert not desk.relief.is_long


@pytest.mark.usefixtures("span_of_three")
def test_who_was_far_behind_and_moves_is_not_asked_to_fall_behind() -> None:
    desk = Desk(CacheLimits())
    desk.comes(A, B, B, B)
    desk.asks(10.0, is_reading=True)
    desk.done(0, 1)
    desk.comes(C)
    assert not desk.relief.is_long and desk.relief.at_s == 11.0, "it is to be asked once more"
    assert desk.asks(11.0, is_reading=True) == [] and desk.relief.at_s == math.inf
