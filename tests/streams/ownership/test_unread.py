"""A queue that no silo reads for ten seconds is reported, once a minute."""

from __future__ import annotations

from millstream.streams.ownership.unread import TELL_S, UNREAD_S, Unread


def test_a_queue_is_told_of_after_ten_seconds_and_then_once_a_minute() -> None:
    unread = Unread()
    assert unread.see(["q"], 100.0) == {}
    assert unread.see(["q"], 100.0 + UNREAD_S - 0.1) == {}
    assert unread.see(["q"], 100.0 + UNREAD_S) == {"q": UNREAD_S}
    assert unread.see(["q"], 100.0 + UNREAD_S + TELL_S - 0.1) == {}
    assert unread.see(["q"], 100.0 + UNREAD_S + TELL_S) == {"q": UNREAD_S + TELL_S}


def test_a_queue_that_was_read_meanwhile_begins_anew() -> None:
    unread = Unread()
    unread.see(["p", "q"], 0.0)
    unread.see(["q"], 8.0)
    assert unread.see(["p", "q"], 12.0) == {"q": 12.0}


def test_nothing_is_told_of_when_all_are_read() -> None:
    unread = Unread()
    assert unread.see([], 0.0) == {}
    assert unread.see([], 100.0) == {}
    assert unread.see(["q"], 101.0) == {}
    assert unread.see(["q"], 111.0) == {"q": 10.0}
