"""The rows of dead letters: one for each event and subscription, in spite of earlier rows."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.conditions import spin

from millstream.runtime import Conflict, Corrupt, MemoryStateStore
from millstream.streams import (
    DeadLetter,
    DeadLetters,
    DeliveryFailure,
    OutMessage,
    ProducerMark,
    StreamId,
    Token,
)
from millstream.streams.agent.delivery.give_ups import ERROR_CHARS_MAX, GiveUps, error_text
from millstream.streams.failures.letters import OUTBOX, LetterRows, letter_id, unsent_letter
from millstream.streams.failures.target import DeadLettersTarget


def letter(
    seq: int, subscription: str = "s", key: str = "a", index: int = 0, body: bytes = b"\x01"
) -> DeadLetter:
    stream, token = StreamId("lines", key), Token(1, seq, index)
    failure = DeliveryFailure("p", subscription, stream, token, body, {}, 3, "ValueError: no")
    return DeadLetter(failure, float(seq), letter_id(failure))


def test_a_refused_message_of_an_outbox_is_a_letter_with_its_number_and_its_grain() -> None:
    mark = ProducerMark("Mill/a b", 7)
    message = OutMessage(StreamId("lines", "a"), [b"\x05"], {"h": "x"}, mark)
    found = unsent_letter("p", message, "StreamError: too large", 9.0)
    assert found.failure == DeliveryFailure(
        "p",
        OUTBOX,
        message.stream,
        Token(0, 7, 0),
        b"\x05",
        {"h": "x"},
        1,
        "StreamError: too large",
        grain_key="Mill/a b",
        decision="dead_letter",
    )
    assert (found.stored_s, found.id) == (9.0, letter_id(found.failure, "Mill%2Fa b"))


class Nobody:
    """Redrives nothing, and counts calls."""

    def __init__(self) -> None:
        self.redriven: list[str] = []
        self.error: Exception | None = None

    async def redrive(self, letter: DeadLetter, /) -> None:
        await spin(1)
        if self.error is not None:
            raise self.error
        self.redriven.append(letter.id)


def letters_over(rows: LetterRows, redriver: Nobody | None = None) -> DeadLetters:
    return DeadLetters(DeadLettersTarget(rows, redriver or Nobody()))


async def test_each_event_that_is_given_up_has_its_own() -> None:
    rows = LetterRows(MemoryStateStore(), "p")
    given = [letter(1), letter(2), letter(2, index=1), letter(1, key="b"), letter(1, "t")]
    for one in given:
        await rows.put(one)
    letters = letters_over(rows)
    assert await letters.list() == given  # by subscription, stream, token
    assert await letters.list("t") == [letter(1, "t")]
    assert await letters.list("s", stream=StreamId("lines", "b")) == [letter(1, key="b")]
    assert len(await letters.list(limit=2)) == 2


async def test_one_that_is_stored_again_stays_as_it_was() -> None:
    rows = LetterRows(MemoryStateStore(), "p")
    await rows.put(letter(1))
    await rows.put(DeadLetter(letter(1).failure, 99.0, letter(1).id))
    assert await letters_over(rows).list() == [letter(1)]


async def test_names_with_separators_are_not_taken_for_others() -> None:
    rows = LetterRows(MemoryStateStore(), "p")
    given = [letter(1, "s/lines", "a"), letter(1, "s", "lines/a"), letter(1, "s%2Flines", "a")]
    for one in given:
        await rows.put(one)
    letters = letters_over(rows)
    assert len(await letters.list()) == 3
    assert [one.failure.stream.key for one in await letters.list("s")] == ["lines/a"]
    assert all(" " not in one.id and one.id.isprintable() for one in await letters.list())


async def test_letters_of_two_providers_are_apart() -> None:
    store = MemoryStateStore()
    await LetterRows(store, "p").put(letter(1))
    assert not await letters_over(LetterRows(store, "q")).list()


async def test_many_are_listed_page_by_page() -> None:
    rows = LetterRows(MemoryStateStore(), "p")
    given = [letter(seq) for seq in range(1, 251)]
    for one in reversed(given):
        await rows.put(one)
    letters = letters_over(rows)
    found: list[DeadLetter] = []
    after, pages = "", 0
    while page := await letters.list(after=after, limit=40):
        found += page
        after, pages = page[-1].id, pages + 1
    assert found == given and pages == 7
    assert [one async for one in letters.all()] == given
    assert [one async for one in letters.all("s", stream=StreamId("lines", "a"))] == given


async def test_a_page_has_a_limit_of_bytes_and_one_letter_at_least() -> None:
    rows = LetterRows(MemoryStateStore(), "p")
    big = bytes(700_000)
    given = [letter(seq, body=big) for seq in (1, 2, 3)] + [letter(4, body=bytes(3 << 20))]
    for one in given:
        await rows.put(one)
    letters = letters_over(rows)
    assert [len(await letters.list(after=given[at].id)) for at in range(4)] == [1, 1, 1, 0]
    assert [one async for one in letters.all()] == given


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_of_another_size_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit is {limit}; it must be 1 to 1000"):
        await letters_over(LetterRows(MemoryStateStore(), "p")).list(limit=limit)


async def test_a_stream_without_its_subscription_is_refused() -> None:
    with pytest.raises(ValueError, match="without a subscription: give both"):
        await letters_over(LetterRows(MemoryStateStore(), "p")).list(stream=StreamId("l", "a"))


async def test_one_is_shown_and_deleted() -> None:
    rows = LetterRows(MemoryStateStore(), "p")
    for seq in (1, 2):
        await rows.put(letter(seq))
    letters = letters_over(rows)
    assert await letters.get(letter(2).id) == letter(2)
    assert await letters.delete(letter(2).id)
    assert not await letters.delete(letter(2).id)
    assert await letters.list() == [letter(1)]
    with pytest.raises(LookupError, match="there is no dead letter"):
        await letters.get(letter(2).id)


async def test_one_that_was_redriven_is_forgotten_and_one_that_failed_again_is_not() -> None:
    rows, redriver = LetterRows(MemoryStateStore(), "p"), Nobody()
    for seq in (1, 2):
        await rows.put(letter(seq))
    letters = letters_over(rows, redriver)
    await letters.redrive(letter(2).id)
    redriver.error = ValueError("still")
    with pytest.raises(ValueError, match="still"):
        await letters.redrive(letter(1).id)
    assert redriver.redriven == [letter(2).id]
    assert await letters.list() == [letter(1)]
    with pytest.raises(LookupError):
        await letters.redrive(letter(2).id)


class Silo:
    """The parts of a silo that storing a letter needs."""

    address = "127.0.0.1:1@1"

    def __init__(self) -> None:
        self.now_s = 5.0
        self.clock = self

    def wall_s(self) -> float:
        self.now_s += 1.0
        return self.now_s


@pytest.mark.parametrize("are_known", [True, False], ids=["tokens stay", "tokens do not stay"])
async def test_where_tokens_do_not_stay_one_event_is_not_taken_for_another(
    are_known: bool,
) -> None:
    rows = LetterRows(MemoryStateStore(), "p")
    services: Any = Silo()
    nobody: Any = None
    give_ups = GiveUps(services, "p", nobody, rows, nobody, are_known=are_known)
    for body in (b"\x01", b"\x02"):
        await give_ups.keep(letter(1, body=body).failure)
    found = [one.failure.body for one in await letters_over(rows).list()]
    assert found == ([b"\x01"] if are_known else [b"\x01", b"\x02"])


def test_an_error_that_is_stored_has_a_limit_and_keeps_both_ends() -> None:
    text = error_text(ValueError("begin" + "x" * 100_000 + "end"))
    assert len(text) <= ERROR_CHARS_MAX
    assert text.startswith("ValueError: begin") and text.endswith("end")
    assert "characters]" in text


async def test_a_page_holds_what_fits_to_the_byte() -> None:
    store = MemoryStateStore()
    for seq in (1, 2, 3):
        await LetterRows(store, "p").put(letter(seq))
    sizes = [len(row.data) for _, row in await store.scan("", "", 9)]
    for frame_bytes, count in ((2 * sum(sizes[:2]), 2), (2 * sum(sizes[:2]) - 1, 1), (1, 1)):
        assert len(await letters_over(LetterRows(store, "p", frame_bytes)).list()) == count


class Overtaken(MemoryStateStore):
    async def clear(self, key: str, expect: str, fence: int, /) -> None:
        raise Conflict("somebody else was first")


async def test_one_that_somebody_else_deletes_meanwhile_is_not_there() -> None:
    rows = LetterRows(Overtaken(), "p")
    await rows.put(letter(1))
    assert not await letters_over(rows).delete(letter(1).id)


def damage(store: MemoryStateStore, one: DeadLetter) -> str:
    """Flip the last bit of a letter's row; return its key."""
    key = f"dead/p/{one.id}"
    row = store.get(key)
    assert row is not None
    store.put(key, row.data[:-1] + bytes([row.data[-1] ^ 1]), row.etag, 0)
    return key


async def test_a_damaged_letter_is_named_and_the_others_are_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    rows, redriver = LetterRows(store, "p"), Nobody()
    given = [letter(seq) for seq in range(1, 41)]
    for one in given:
        await rows.put(one)
    damaged = [given[0], *given[10:30]]  # more than one page in a row
    keys = [damage(store, one) for one in damaged]
    whole = [one for one in given if one not in damaged]
    letters = letters_over(rows, redriver)
    assert await letters.list(limit=100) == whole
    assert [one async for one in letters.all()] == whole
    assert await letters.list(limit=12) == whole[:12]
    ids = [one.id for one in damaged]
    assert await letters.list_damaged() == ids and await letters.list_damaged("t") == []
    assert await letters.list_damaged(after=ids[0], limit=3) == ids[1:4]
    for key in keys:
        assert caplog.text.count(f"row {key} is damaged") == 1
    for act in (letters.get, letters.redrive):
        with pytest.raises(Corrupt, match=f"row {keys[0]} is damaged"):
            await act(ids[0])
    assert not redriver.redriven
    assert await letters.delete(ids[0]) and await letters.list_damaged() == ids[1:]


async def test_a_letter_that_is_damaged_again_is_named_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = MemoryStateStore()
    rows = LetterRows(store, "p")
    await rows.put(letter(1))
    letters = letters_over(rows)
    for _ in range(2):
        key = damage(store, letter(1))
        assert await letters.list() == []
        damage(store, letter(1))  # the same bit, so the row is as before
        assert await letters.list() == [letter(1)]
    assert caplog.text.count(f"row {key} is damaged") == 2


async def test_no_flipped_bit_gives_another_letter() -> None:
    store = MemoryStateStore()
    rows = LetterRows(store, "p")
    await rows.put(letter(1))
    key = f"dead/p/{letter(1).id}"
    row = store.get(key)
    assert row is not None
    etag = row.etag
    for bit in range(8 * len(row.data)):
        data = bytearray(row.data)
        data[bit // 8] ^= 1 << bit % 8
        etag = store.put(key, bytes(data), etag, 0)
        with pytest.raises(Corrupt, match=r"^row dead/p/"):
            await rows.get(letter(1).id)


async def test_a_letter_that_was_written_bare_is_read() -> None:
    store = MemoryStateStore()
    store.put(f"dead/p/{letter(1).id}", msgspec.msgpack.encode(letter(1)), None, 0)
    assert await letters_over(LetterRows(store, "p")).list() == [letter(1)]
