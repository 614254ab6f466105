"""Detects whether a shard has messages of another shard without looking at all of them at once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from millstream.providers.priority import QueueSettings
from millstream.providers.priority.core import strays
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.shards import home_of
from millstream.providers.priority.core.strays import StraySearch


class Shard:
    """Messages by sequence. A stray message belongs to another shard."""

    def __init__(self) -> None:
        self.search, self.messages, self.looks = StraySearch(), dict[int, Any](), 0

    def put(self, *sequences: int, is_stray: bool = False) -> None:
        self.messages.update(dict.fromkeys(sequences, not is_stray))

    def belongs(self, message: Any) -> bool:
        self.looks += 1
        return bool(message)

    def has_any(self, layout: int = 1) -> bool:
        return self.search.has_any(layout, self.messages, self.belongs)


@pytest.fixture
def shard(monkeypatch: pytest.MonkeyPatch) -> Shard:
    monkeypatch.setattr(strays, "STEPS", 10)
    return Shard()


def test_a_stray_is_told_until_it_goes_and_what_was_looked_at_is_not_again(shard: Shard) -> None:
    shard.put(1, 2, 3)
    shard.put(4, is_stray=True)
    shard.put(5)
    assert shard.has_any() and shard.has_any() and shard.looks == 5
    del shard.messages[4]
    assert not shard.has_any() and shard.looks == 6
    assert not shard.has_any() and shard.looks == 6
    shard.put(6, is_stray=True)  # beside a message of the same value that existed before
    assert shard.has_any()
    del shard.messages[6]
    assert not shard.has_any()


def test_a_look_is_bounded_and_says_strays_while_some_were_not_looked_at(shard: Shard) -> None:
    shard.put(*range(1, 31))
    found = []
    for _ in range(4):
        before = shard.looks
        found.append(shard.has_any())
        assert shard.looks - before <= 10
    assert found == [True, True, False, False] and shard.looks == 30


def test_what_comes_while_it_looks_is_looked_at_too(shard: Shard) -> None:
    shard.put(*range(1, 11))
    assert not shard.has_any()
    shard.put(*range(11, 21))
    shard.put(21, is_stray=True)
    assert shard.has_any() and shard.has_any() and shard.looks == 21
    shard.messages.clear()
    assert not shard.has_any()


def test_what_comes_when_a_look_ends_with_the_last_that_was_there_is_looked_at(
    shard: Shard,
) -> None:
    shard.put(*range(1, 21))
    assert shard.has_any()
    shard.put(21, is_stray=True)
    assert shard.has_any() and shard.looks == 20
    assert shard.has_any() and shard.looks == 21


def test_another_layout_is_another_search(shard: Shard) -> None:
    shard.put(1, 2)
    assert not shard.has_any(1) and not shard.has_any(2) and shard.looks == 4


def test_an_empty_shard_has_none(shard: Shard) -> None:
    assert not shard.has_any() and shard.looks == 0


def test_messages_of_other_shards_are_strays_by_their_ids() -> None:
    own, other = ([id for id in "abcdefgh" if home_of(id, 2) == shard] for shard in (0, 1))
    for ids, has_strays in ((own, False), ([*own, other[0]], True)):
        core = PriorityCore.create(0, "q", QueueSettings())
        for id in ids:
            core.enqueue(0, MessageFields(id, b"", 0))
        core.adopt(0, replace(QueueSettings(), shards=2, shards_before=1, layout=1))
        assert core.read.moving().has_strays is has_strays
