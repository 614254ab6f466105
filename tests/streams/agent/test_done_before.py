"""After a clean hand-off, who was ahead of the slowest sees nothing twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.streams.agent.caches import cursor_at, release
from tests.streams.agent.cursors import append

from millstream.streams import CacheLimits, QueueMessage, StreamId, Token
from millstream.streams.agent.cache.queue_cache import QueueCache
from millstream.streams.agent.progress.done_before import DoneBefore

STREAMS = [StreamId("n", key) for key in "abc"]
HANDED = st.lists(st.lists(st.booleans(), max_size=12), max_size=4)


def test_messages_that_are_done_have_no_items() -> None:
    done = DoneBefore([(Token(1, 3), Token(1, 4)), (Token(1, 7), Token(2, 1))])
    messages = [QueueMessage(STREAMS[0], Token(1, seq), [b"x"]) for seq in range(2, 10)]
    kept = [one.token.seq for one in done.blanked(messages) if one.items]
    assert kept == [2, 5, 6]
    assert done.is_left and done.above(Token(1, 9)) == [(Token(1, 7), Token(2, 1))]
    assert done.above(None) == done.above(Token(2, 0)) == [(Token(1, 7), Token(2, 1))]
    assert done.above(Token(2, 1)) == []
    assert [bool(one.items) for one in done.blanked([*messages[:0], _of(2, 1), _of(2, 2)])] == [
        False,
        True,
    ]
    assert not done.is_left and done.above(None) == []


def _of(era: int, seq: int) -> QueueMessage:
    return QueueMessage(STREAMS[0], Token(era, seq), [b"x"])


@given(handed=HANDED, keys=st.lists(st.sampled_from(STREAMS), min_size=12, max_size=12))
def test_each_message_is_done_once_over_any_number_of_owners(
    handed: list[list[bool]], keys: list[StreamId]
) -> None:
    """Each owner reads on from the frontier and does some of it, in the order of each stream."""
    log = [QueueMessage(key, Token(1, seq), [b"x"]) for seq, key in enumerate(keys, 1)]
    done: list[Token] = []
    frontier: Token | None = None
    ranges = DoneBefore()
    for owner in [*handed, [True] * 99]:
        cache = QueueCache(CacheLimits(), frontier)
        for message in ranges.blanked([one for one in log if not frontier or one.token > frontier]):
            slot = append(cache, message)
            if message.items:
                cursor = cursor_at(cache, slot.index)
                wants = owner[message.token.seq - 1 : message.token.seq] == [True]
                if wants and cache.first_of(message.stream) == slot.index:  # in its turn
                    done.append(message.token)
                    cursor.close()
            cache.release(slot)
        frontier = cache.acked_upto()
        ranges = DoneBefore(cache.done_ranges(100))
    assert sorted(done) == [one.token for one in log]


def test_what_is_done_above_the_frontier_is_named_as_ranges_the_oldest_first() -> None:
    cache = QueueCache(CacheLimits(), Token(1, 2))
    for seq in (3, 4, 5, 7, 8):  # there is no message 6
        cache.append(QueueMessage(STREAMS[seq % 2], Token(1, seq), [b"x"]))
    assert cache.done_ranges(9) == []
    release(cache, 1, 4)  # messages 4 and 8, each the oldest of its stream once 4 is gone
    assert cache.acked_upto() == Token(1, 2)
    assert cache.done_ranges(9) == [(Token(1, 4), Token(1, 4)), (Token(1, 8), Token(1, 8))]
    assert cache.done_ranges(1) == [(Token(1, 4), Token(1, 4))]
    release(cache, 0, 2, 3)
    assert cache.acked_upto() == Token(1, 8) and cache.done_ranges(9) == []
