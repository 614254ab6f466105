"""The rows of dead letters: one for each event and subscription, whatever was stored before."""

from __future__ import annotations

from millstream.runtime import MemoryStateStore
from millstream.streams import DeadLetter, DeadLetters, DeliveryFailure, StreamId, Token


def letter(seq: int, subscription: str = "s", key: str = "a", index: int = 0) -> DeadLetter:
    stream, token = StreamId("lines", key), Token(1, seq, index)
    failure = DeliveryFailure("p", subscription, stream, token, b"\x01", {}, 3, "ValueError: no")
    return DeadLetter(failure, float(seq))


async def test_each_event_that_is_given_up_has_its_own() -> None:
    letters = DeadLetters(MemoryStateStore(), "p")
    given = [letter(1), letter(2), letter(2, index=1), letter(1, key="b"), letter(1, "t")]
    for one in given:
        await letters.put(one)
    assert sorted(await letters.list(), key=given.index) == given
    assert await letters.list("t") == [letter(1, "t")]
    assert len(await letters.list(limit=2)) == 2


async def test_one_that_is_stored_again_stays_as_it_was() -> None:
    letters = DeadLetters(MemoryStateStore(), "p")
    await letters.put(letter(1))
    await letters.put(DeadLetter(letter(1).failure, 99.0))
    assert await letters.list() == [letter(1)]
