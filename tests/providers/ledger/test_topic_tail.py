"""The newest messages of a topic: the kept messages, and the size of a page."""

from __future__ import annotations

import pytest

from millstream.providers.ledger.topic.appending.outbox import Batch
from millstream.providers.ledger.topic.form import TopicMessage
from millstream.providers.ledger.topic.reading import index, tail
from millstream.providers.ledger.topic.reading.tail import PageLimit, TopicTail
from millstream.providers.ledger.topic.record import make_opening


def batch(first: int, size: int = 1, count: int = 1) -> Batch:
    return Batch(first, 7, [TopicMessage(b"x")] * count, size, {})


def test_nothing_is_there_before_the_first_message() -> None:
    made = TopicTail(10)
    assert made.first is None and made.read(1, 9, 9) is None
    made.add(batch(1, count=0))
    assert made.first is None


def test_what_has_room_to_the_last_byte_is_kept_and_no_more() -> None:
    made = TopicTail(100)
    firsts = []
    for number in range(1, 6):
        made.add(batch(number, 50))
        firsts.append(made.first)
    assert firsts == [1, 1, 2, 3, 4]


def test_the_last_one_is_kept_however_large_it_is() -> None:
    made = TopicTail(10)
    for number in (1, 2, 3):
        made.add(batch(number, 50))
        assert made.first == number and len(made.read(number, 9, 9) or ()) == 1


@pytest.mark.parametrize(
    ("kept", "lengths"),
    [
        (3, [1, 2, 3, 4, 5, 6, 3, 4, 5, 6, 3]),
        (10, [*range(1, 20), 10, 11]),
    ],
    ids=["few", "many"],
)
def test_what_was_let_go_of_leaves_the_list_in_time(
    kept: int, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped batches leave the list once they are half of it and at least four."""
    monkeypatch.setattr(tail, "COMPACT_AT", 4)
    made = TopicTail(kept)
    for number, length in enumerate(lengths, 1):
        made.add(batch(number))
        assert len(made._batches) == len(made._firsts) == length
        oldest = max(1, number - kept + 1)
        assert made.first == oldest and made.read(oldest - 1, 9, 9) is None
        found = made.read(oldest, 99, 99)
        assert found is not None
        assert [one.number for one in found] == list(range(oldest, number + 1))


@pytest.mark.parametrize(
    ("messages_max", "bytes_max", "found", "has_room"),
    [(3, 3, 2, True), (2, 3, 2, False), (3, 2, 2, False), (1, 9, 1, False), (9, 0, 1, False)],
)
def test_a_page_says_whether_it_has_room_for_more(
    messages_max: int, bytes_max: int, found: int, has_room: bool
) -> None:
    page = PageLimit(messages_max, bytes_max)
    assert page.take(1, 7, [TopicMessage(b"x")] * 2, 1) is has_room
    assert [one.number for one in page.found] == [1, 2][:found]


def test_an_index_of_nothing_has_all_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    made = index.EntryIndex()
    assert made.around_number(5, 9) == (0, 9) and made.around_time(5, 9) == (-1, 9)
    monkeypatch.setattr(index, "KNOWN_MAX", 3)
    for entry in (10, 20, 40):
        made.note(entry, entry, entry)
    made.note(30, 30, 30)  # the index is full, and this entry is not the last
    assert len(made) == 1 and made.around_number(35, 99) == (30, 99)


def test_each_opening_of_a_topic_has_a_number_of_its_own() -> None:
    record = make_opening("t", 1, "a", None)(None)
    assert (record.opening, make_opening("t", 1, "a", None)(record).opening) == (1, 2)
