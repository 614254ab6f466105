"""The target in a silo for outside readers: pages, extents, and faulty readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from datetime import datetime
from typing import Any

import msgspec
import pytest

from millstream.runtime import (
    ConfigError,
    CursorTooOld,
    MemoryStateStore,
    SiloUnavailable,
    StreamError,
)
from millstream.runtime.extending import Tasks
from millstream.streams import Capability, Page, QueueMessage, StreamId, Token
from millstream.streams.contracts.answers import AdapterFault
from millstream.streams.rewinding import kept
from millstream.streams.rewinding import target as target_module
from millstream.streams.rewinding.adapter_calls import FORM, QUEUES_MAX, AdapterCalls, refusal_of
from millstream.streams.rewinding.incarnation import Incarnation
from millstream.streams.rewinding.item_columns import Column
from millstream.streams.rewinding.kept import KeptReaders
from millstream.streams.rewinding.target import Extent, ReadSpan, RewindTarget, span_of

END = Token(1 << 31, 0)


def message(number: int, namespace: str = "n", items: int = 1) -> QueueMessage:
    bodies = [msgspec.msgpack.encode([number, item]) for item in range(items)]
    return QueueMessage(StreamId(namespace, f"k{number % 3}"), Token(0, number), bodies, {}, 7.5)


class Shelf:
    """Queues in memory, without the deleted messages before `first`."""

    def __init__(self, *counts: int) -> None:
        self.queues = {
            f"q{at}": [message(number) for number in range(1, count + 1)]
            for at, count in enumerate(counts)
        }
        self.first = 1
        self.made: list[ShelfReader] = []
        self.odd: Callable[[ShelfReader], Any] | None = None

    def reader(self, queue: str, /) -> ShelfReader:
        self.made.append(ShelfReader(self, queue))
        return self.made[-1]


class ShelfReader:
    def __init__(self, shelf: Shelf, queue: str) -> None:
        self.shelf, self.queue = shelf, queue
        self.is_closed = False

    async def answer(self) -> Any:
        assert not self.is_closed
        found = self.shelf.odd(self) if self.shelf.odd else NotImplemented
        return await found if asyncio.iscoroutine(found) else found

    def kept(self) -> list[QueueMessage]:
        return [one for one in self.shelf.queues[self.queue] if one.token.seq >= self.shelf.first]

    async def bounds(self) -> tuple[Token | None, Token | None]:
        odd = await self.answer()
        if odd is not NotImplemented:
            return odd  # type: ignore[no-any-return]
        found = self.kept()
        return (found[0].token, found[-1].token) if found else (None, None)

    async def seek(self, when: datetime, /) -> Token | None:
        odd = await self.answer()
        number = int(when.timestamp())
        found = [one.token for one in self.kept() if one.token.seq >= number]
        return odd if odd is not NotImplemented else found[0] if found else None

    async def read_from(
        self, position: Token, max_events: int, max_bytes: int, streams: Any, /
    ) -> Page:
        odd = await self.answer()
        if odd is not NotImplemented:
            return odd  # type: ignore[no-any-return]
        if position.seq < self.shelf.first:
            raise CursorTooOld("gone", first=Token(0, self.shelf.first))
        behind = [one for one in self.kept() if one.token >= position]
        found = behind[: max(1, max_events)]
        following = Token(0, found[-1].token.seq + 1) if found else position
        return Page(found, following, len(found) == len(behind))

    async def aclose(self) -> None:
        self.is_closed = True


def tasks() -> Tasks:
    return Tasks(asyncio.get_running_loop(), Context)


class Others:
    """Other silos: their answers, by name; None: they never answer."""

    def __init__(self, **answers: list[Any] | Exception | None) -> None:
        self.answers = answers

    def silos(self) -> list[str]:
        return list(self.answers)

    async def extents(self, silo: str, queues: object, /) -> list[Any]:
        answer = self.answers[silo]
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            await asyncio.Event().wait()
        return answer or []

    columns = extents


def unknown(namespace: str) -> list[Column]:
    return []


def target_of(shelf: Shelf, limit_s: float = 5.0, refusal: str = "") -> RewindTarget:
    return made(shelf, lambda: list(shelf.queues), Others(), limit_s, refusal)


def made(
    shelf: Shelf,
    queues: Callable[[], list[str]],
    others: Others,
    limit_s: float = 5.0,
    refusal: str = "",
    columns: Callable[[str], list[Column]] = unknown,
) -> RewindTarget:
    incarnation = Incarnation(MemoryStateStore(), "p", lambda: 7)
    calls = AdapterCalls("p", shelf, queues, tasks(), limit_s, incarnation, refusal)
    return RewindTarget(calls, columns, others)


async def numbers(target: RewindTarget, start: int, end: Token = END, events_max: int = 4) -> Any:
    """Return the messages of q0 from a number on, and the number of pages."""
    position, found, pages = Token(0, start), list[int](), 0
    while True:
        page = await target.read(FORM, "", "q0", "n", position, end, events_max, 1 << 20)
        found += [one.token.seq for one in page.messages]
        pages, position = pages + 1, page.next
        if page.at_end or page.next >= end:
            return found, pages


async def test_pages_have_everything_from_a_position_on_and_before_the_end() -> None:
    target = target_of(Shelf(10))
    assert await numbers(target, 1) == (list(range(1, 11)), 3)
    assert await numbers(target, 4, Token(0, 8)) == ([4, 5, 6, 7], 1)
    assert await numbers(target, 4, Token(0, 9)) == ([4, 5, 6, 7, 8], 2)
    assert await numbers(target, 11) == ([], 1)
    await target.aclose()


async def test_a_page_has_what_its_messages_have_and_no_other_namespace() -> None:
    shelf = Shelf(0)
    shelf.queues["q0"] = [message(1, "other"), message(2, items=3), message(3, "other")]
    target = target_of(shelf)
    page = await target.read(FORM, "", "q0", "n", Token(0, 1), END, 100, 1 << 20)
    (one,) = page.messages
    assert (one.key, one.token, one.enqueued_s, one.headers) == ("k2", Token(0, 2), 7.5, None)
    assert [msgspec.msgpack.decode(item) for item in one.items] == [[2, 0], [2, 1], [2, 2]]
    assert page.next == Token(0, 4) and page.at_end


async def test_a_range_that_ends_before_what_is_there_is_said_to_end() -> None:
    page = await target_of(Shelf(9)).read(
        FORM, "", "q0", "n", Token(0, 1), Token(0, 3), 100, 1 << 20
    )
    assert page.next == Token(0, 3) and [one.token.seq for one in page.messages] == [1, 2]


async def test_what_is_gone_is_said_with_the_first_that_is_kept() -> None:
    shelf = Shelf(9)
    shelf.first = 5
    target = target_of(shelf)
    page = await target.read(FORM, "", "q0", "n", Token(0, 2), END, 100, 1 << 20)
    assert page.gone == Token(0, 5) and not page.messages
    await target.read(FORM, "", "q0", "n", Token(0, 5), END, 100, 1 << 20)
    assert len(shelf.made) == 1  # an answer, so the reader works


async def test_extents_are_of_the_queues_now_and_of_those_asked_for() -> None:
    shelf = Shelf(3, 0)
    target = made(shelf, lambda: ["q0"], Others())
    assert (await target.extents(FORM, ["q1", "q0"])).queues == [
        Extent("q0", Token(0, 1), Token(0, 3), True),
        Extent("q1", None, None, False),
    ]
    assert await target.seek(FORM, 2.0) == {"q0": Token(0, 2)}
    assert await target.seek(FORM, 4.0) == {"q0": None}


@pytest.mark.parametrize(
    ("here", "there", "both"),
    [
        ((1, 5), (1, 7), (1, 7)),
        ((3, 9), (1, 7), (3, 9)),
        (None, (1, 7), (1, 7)),
        ((1, 7), None, (1, 7)),
        (None, None, None),
    ],
)
async def test_what_another_silo_knows_farther_holds(here: Any, there: Any, both: Any) -> None:
    def extent(of: Any) -> Extent:
        first, last = (None, None) if of is None else (Token(0, of[0]), Token(0, of[1]))
        return Extent("q0", first, last, False)

    shelf = Shelf(0)
    shelf.odd = lambda reader: (extent(here).first, extent(here).last)
    told = [extent(there), Extent("unknown", None, None)]
    target = made(
        shelf, lambda: ["q0"], Others(hung=None, dead=SiloUnavailable("it died"), other=told)
    )
    assert (await target.extents(FORM, [])).queues == [
        msgspec.structs.replace(extent(both), is_open=True)
    ]
    await target.aclose()


async def test_columns_that_are_not_known_here_are_those_of_the_first_silo_that_knows() -> None:
    known, other = [Column("n", "bigint")], [Column("m", "string")]
    others = Others(hung=None, dead=SiloUnavailable("it died"), dull=[], one=known, two=other)
    target = made(Shelf(1), list, others)
    assert await target.columns(FORM, "n") == known
    assert (
        await made(Shelf(1), list, others, columns=lambda name: other).columns(FORM, "n") == other
    )
    assert await made(Shelf(1), list, Others(dull=[])).columns(FORM, "n") == []
    await target.aclose()


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "ASK_LIMIT_S", 0.05)


async def raised(call: Any) -> str:
    with pytest.raises(StreamError) as caught:
        await call
    return str(caught.value)


async def late(reader: ShelfReader) -> Any:
    await asyncio.Event().wait()


async def cancelled(reader: ShelfReader) -> Any:
    raise asyncio.CancelledError


async def breaks(reader: ShelfReader) -> Any:
    raise KeyError("a drawer")


@pytest.mark.parametrize(
    ("odd", "text"),
    [
        (lambda reader: None, "returned NoneType, not a Page"),
        (lambda reader: Page([None], END, True), "returned None among its messages"),  # type: ignore[list-item]
        (lambda reader: Page([], Token(0, 5), False), "an empty Page with next="),
        (lambda reader: Page([], Token(0, 4), True), "which is not after"),
        (lambda reader: Page([message(6)], Token(0, 6), True), "which is not after"),
        (lambda reader: Page([message(6)], Token(0, 5), True), "which is not after"),
        (lambda reader: Page([message(3)], Token(0, 9), True), "which is before"),
        (lambda reader: Page([message(7), message(6)], Token(0, 9), True), "must rise"),
        (lambda reader: Page([], None, True), "with next=None, which is not after"),  # type: ignore[arg-type]
        (lambda reader: Page([], "5", True), "as a token"),  # type: ignore[arg-type]
        (late, "did not answer within call_limit_s, 0.01 s"),
        (cancelled, "was cancelled by the adapter itself"),
        (breaks, "raised KeyError: 'a drawer'"),
    ],
)
async def test_an_odd_reader_is_named_and_harms_nobody(odd: Any, text: str) -> None:
    shelf = Shelf(9)
    target = target_of(shelf, limit_s=0.01)
    shelf.odd = odd
    said = await raised(target.read(FORM, "", "q0", "n", Token(0, 5), END, 100, 1 << 20))
    assert text in said and "stream provider 'p', queue q0: reader.read_from" in said
    shelf.odd = None
    assert (await numbers(target, 5))[0] == [5, 6, 7, 8, 9]
    assert len(shelf.made) == (2 if odd in (late, cancelled, breaks) else 1)
    await target.aclose()


@pytest.mark.parametrize("first", [None, Token(0, 5), "x"])
async def test_what_is_gone_without_a_first_behind_it_is_a_fault(first: Any) -> None:
    def odd(reader: ShelfReader) -> Any:
        raise CursorTooOld("gone", first=first)

    shelf = Shelf(9)
    shelf.odd = odd
    text = await raised(target_of(shelf).read(FORM, "", "q0", "n", Token(0, 5), END, 100, 1 << 20))
    assert "raised CursorTooOld" in text or "as a token" in text


@pytest.mark.parametrize("answer", [None, (Token(0, 1),), ("a", "b"), 7])
async def test_odd_bounds_are_a_fault(answer: Any) -> None:
    shelf = Shelf(3)
    shelf.odd = lambda reader: answer
    with pytest.raises(AdapterFault):
        await target_of(shelf).extents(FORM, [])


async def spans(target: RewindTarget, bytes_max: int, end: Token = END) -> list[tuple[int, int]]:
    """Return the end and the size of each part of q0 with at most `bytes_max` bytes."""
    position, found = Token(0, 1), list[tuple[int, int]]()
    while True:
        span = await target.measure(FORM, "", "q0", "n", position, end, bytes_max)
        if span.next == position:
            return found
        found.append((span.next.seq, span.bytes))
        position = span.next


async def test_a_part_of_a_queue_is_measured_in_bytes_of_items() -> None:
    size = len(message(1).items[0])
    target = target_of(Shelf(9))
    assert await spans(target, 4 * size) == [(5, 4 * size), (9, 4 * size), (10, size)]
    assert await spans(target, 4 * size + 2) == [(5, 4 * size), (9, 4 * size), (10, size)]
    assert await spans(target, 1) == [(number, size) for number in range(2, 11)]
    assert await spans(target, 4 * size, Token(0, 3)) == [(3, 2 * size)]
    shelf = Shelf(9)
    shelf.queues["q0"][1:4] = [message(number, "other") for number in (2, 3, 4)]
    assert await spans(target_of(shelf), 3 * size) == [(7, 3 * size), (10, 3 * size)]
    shelf.first = 6
    assert await spans(target_of(shelf), 2 * size) == [(8, 2 * size), (10, 2 * size)]
    span = await target.measure(FORM, "", "q0", "n", Token(0, 4), Token(0, 4), 100)
    assert span == ReadSpan(Token(0, 4), 0, is_over=True)
    with pytest.raises(ConfigError, match="incarnation other"):
        await target.measure(FORM, "other", "q0", "n", Token(0, 1), END, 100)


def test_a_span_that_is_full_is_over() -> None:
    page, begun = Page([message(1)], Token(0, 2), False), ReadSpan(Token(0, 1), 0, is_over=False)
    size = len(message(1).items[0])
    for bytes_max, is_over in ((size, True), (size + 1, False)):
        assert span_of(begun, page, "n", END, bytes_max) == ReadSpan(Token(0, 2), size, is_over)


async def test_one_call_measures_so_many_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_module, "PAGE_EVENTS_MAX", 2)
    monkeypatch.setattr(target_module, "SPAN_PAGES_MAX", 3)
    size = len(message(1).items[0])
    span = await target_of(Shelf(9)).measure(FORM, "", "q0", "n", Token(0, 1), END, 1 << 20)
    assert span == ReadSpan(Token(0, 7), 6 * size, is_over=False)


async def test_pages_of_another_incarnation_are_refused() -> None:
    target = target_of(Shelf(3))
    own = (await target.extents(FORM, [])).incarnation
    assert own == f"{7:016x}"
    for incarnation in (own, ""):
        await target.read(FORM, incarnation, "q0", "n", Token(0, 1), END, 10, 100)
    with pytest.raises(ConfigError, match=f"has incarnation {own} here, .* incarnation other"):
        await target.read(FORM, "other", "q0", "n", Token(0, 1), END, 10, 100)


async def test_an_incarnation_is_made_once_whoever_asks_first() -> None:
    store, ids = MemoryStateStore(), iter(range(9))
    silos = [Incarnation(store, "p", lambda: next(ids)) for _ in range(3)]
    found = set(await asyncio.gather(*(silo.text() for silo in silos)))
    assert len(found) == 1 == len({await Incarnation(store, "p", lambda: 99).text(), *found})
    assert await Incarnation(store, "other", lambda: 99).text() == f"{99:016x}"
    assert await Incarnation(MemoryStateStore(), "p", lambda: 98).text() == f"{98:016x}"


async def test_who_reads_in_another_form_or_too_much_is_refused() -> None:
    target = target_of(Shelf(3))
    with pytest.raises(ConfigError, match="form 9 .* cluster uses form 2: install the same"):
        await target.extents(9, [])
    with pytest.raises(ValueError, match="QUEUES_MAX is 4096"):
        await target.extents(FORM, ["q"] * (QUEUES_MAX + 1))
    for odd in ("", "q" * 513):
        with pytest.raises(ValueError, match="bytes; it must have 1 to 512"):
            await target.read(FORM, "", odd, "n", Token(0, 1), END, 10, 100)
    with pytest.raises(ValueError, match="is not a time"):
        await target.seek(FORM, 1e30)
    with pytest.raises(ConfigError, match="no, says p"):
        await target_of(Shelf(3), refusal="no, says p").extents(FORM, [])


def test_a_provider_that_forgets_is_refused() -> None:
    log = {Capability.ORDERED, Capability.STABLE_TOKENS}
    assert not refusal_of("p", log | {Capability.REWIND})
    assert "it has no REWIND" in refusal_of("p", log)
    assert "deletes each message" in refusal_of("p", log | {Capability.REWIND, Capability.ITEM_ACK})


# -- readers that are kept


async def test_a_reader_is_used_again_by_one_call_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept, "READERS_MAX", 2)
    shelf = Shelf(1, 1)
    readers = KeptReaders(shelf.reader, tasks(), 1.0)
    async with readers.reader("q0") as one, readers.reader("q0") as two:
        assert one is not two
    async with readers.reader("q0") as again:
        assert again in (one, two)
    async with readers.reader("q1") as other:
        assert other not in (one, two)
    assert readers.idle == 2 and len(shelf.made) == 3
    await readers.aclose()
    assert all(reader.is_closed for reader in shelf.made)
    with pytest.raises(SiloUnavailable):
        async with readers.reader("q0"):
            pytest.fail("it is closed")


async def test_who_is_cancelled_half_way_leaves_no_reader_behind() -> None:
    shelf = Shelf(3)
    target = target_of(shelf)
    shelf.odd = late
    call = asyncio.ensure_future(target.extents(FORM, []))
    while not shelf.made:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await target.aclose()
    assert [reader.is_closed for reader in shelf.made] == [True]


async def test_more_calls_than_may_be_under_way_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "READS_MAX", 2)
    shelf = Shelf(3)
    target, gate = target_of(shelf), asyncio.Event()

    async def held(reader: ShelfReader) -> Any:
        await gate.wait()
        return NotImplemented

    shelf.odd = held
    calls = [asyncio.ensure_future(target.extents(FORM, [])) for _ in range(5)]
    for _ in range(50):
        await asyncio.sleep(0)
    assert len(shelf.made) == 2
    gate.set()
    assert len(await asyncio.gather(*calls)) == 5 and len(shelf.made) == 2
    await target.aclose()


async def test_a_reader_that_lies_idle_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "IDLE_S", 0.0)
    shelf = Shelf(3)
    target = target_of(shelf)
    await target.extents(FORM, [])
    while not shelf.made[0].is_closed:
        await asyncio.sleep(0)
    await target.aclose()
