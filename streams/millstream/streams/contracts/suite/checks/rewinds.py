"""Reading again, by readers other than the owner: bounds, times, pages, and kept messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from millstream.runtime import CursorTooOld
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.queue import Retains
from millstream.streams.contracts.suite.bench import (
    BYTES_MAX,
    COLLECT_S,
    EVENTS_MAX,
    POLL_S,
    AdapterBench,
    expect_first,
    texts,
)
from millstream.streams.contracts.suite.check import CheckList
from millstream.streams.contracts.suite.guarded import GuardedReader
from millstream.streams.contracts.suite.verdict import ContractBroken, NotRun, expect
from millstream.streams.contracts.token import Token

__all__ = ["rewinding"]

rewinding = CheckList()
REWIND = Capability.REWIND
PAGES_MAX = 1000
FAR_FUTURE = datetime(2500, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1980, 1, 1, tzinfo=UTC)
BESIDE = timedelta(microseconds=500)


@rewinding.check(REWIND)
async def bounds_are_the_first_and_the_last_message(bench: AdapterBench) -> None:
    """`bounds` is None while the queue is empty, then the first kept and the last accepted
    message."""
    reader = bench.reader()
    empty = await reader.bounds()
    expect(empty == (None, None), "(None, None) for an empty queue", empty)
    await bench.publish("a", "b", "c")
    found = await bench.collect(await bench.begin(), 3)
    came, wanted = await reader.bounds(), (found[0].token, found[-1].token)
    expect(came == wanted, str(wanted), came)


async def pages(
    reader: GuardedReader,
    position: Token,
    events_max: int = EVENTS_MAX,
    bytes_max: int = BYTES_MAX,
    streams: frozenset[StreamId] | None = None,
) -> list[QueueMessage]:
    """Return all messages from a position on. Raises ContractBroken if `next` does not advance."""
    found = list[QueueMessage]()
    for _ in range(PAGES_MAX):
        page = await reader.read_from(position, events_max, bytes_max, streams)
        found += page.messages
        if page.at_end:
            return found
        expect(page.next > position, f"Page.next above {position}", page.next)
        position = page.next
    wanted = f"a Page with at_end within {PAGES_MAX} pages"
    raise ContractBroken(wanted, f"{len(found)} messages")


@rewinding.check(REWIND)
async def messages_are_read_again_from_a_position(bench: AdapterBench) -> None:
    """`read_from` a position (inclusive) returns the tokens, items, headers and streams that `read`
    returned."""
    await bench.publish(*map(str, range(20)))
    found = await bench.collect(await bench.begin(), 20)
    reader = bench.reader()
    for at in (0, 7, 19):
        came = await pages(reader, found[at].token)
        is_so = list(map(content, came)) == list(map(content, found[at:]))
        expect(is_so, f"messages {at} to 19 as they were read", texts(came))


def content(message: QueueMessage) -> tuple[object, ...]:
    """The parts of a message that are the same for every read."""
    items = [bytes(item) for item in message.items]
    return message.stream, message.token, items, dict(message.headers)


@rewinding.check(REWIND, generated=True)
async def pages_follow_each_other(bench: AdapterBench) -> None:
    """A page has at most `max_events` events; the next page begins at its `next`, and none is
    lost."""
    wanted = await bench.publish(*map(str, range(10)))
    found = await bench.collect(await bench.begin(), 10)
    reader, position, came = bench.reader(), found[0].token, list[QueueMessage]()
    while len(came) < 10:
        page = await reader.read_from(position, 3, BYTES_MAX)
        expect(len(page.messages) <= 3, "at most 3 events", texts(page.messages))
        expect(page.next > position, f"Page.next above {position}", page.next)
        came += page.messages
        position = page.next
    bench.same(came[:10], wanted)
    expect([m.token for m in came[:10]] == [m.token for m in found], "the same tokens", texts(came))


@rewinding.check(REWIND)
async def pages_are_of_the_streams_that_were_asked_for(bench: AdapterBench) -> None:
    """`streams` filters a page. Messages of other streams count for the limits, and do not end the
    reading."""
    names = [bench.stream(number) for number in range(3)]
    for number in range(12):
        message = bench.message(str(number), names[number % 3])
        await bench.adapter.enqueue(bench.queue, [message])
    found = await bench.collect(await bench.begin(), 12)
    reader, first = bench.reader(), found[0].token
    for events_max in (1, 2, EVENTS_MAX):
        came = await pages(reader, first, events_max, BYTES_MAX, frozenset({names[1], names[2]}))
        bench.same(came, [str(number) for number in range(12) if number % 3])
    came = await pages(reader, first, EVENTS_MAX, BYTES_MAX, frozenset())
    expect(not came, "no message, because `streams` was empty", texts(came))


@rewinding.check(REWIND)
async def max_bytes_bounds_what_is_looked_at(bench: AdapterBench) -> None:
    """A page for a rare stream ends after `max_bytes`, found or not, and the next page
    continues."""
    await bench.publish(*["x" * 100] * 30)
    rare = bench.stream(1)
    await bench.adapter.enqueue(bench.queue, [bench.message("rare", rare)])
    found = await bench.collect(await bench.begin(), 31)
    reader, first = bench.reader(), found[0].token
    page = await reader.read_from(first, EVENTS_MAX, 500, frozenset({rare}))
    most = found[10].token  # twice the limit, because a provider may read in blocks
    is_so = first < page.next <= most and not page.at_end and not page.messages
    expect(is_so, f"an empty Page with next of at most {most}, and without at_end", page)
    came = await pages(reader, first, EVENTS_MAX, 500, frozenset({rare}))
    expect(texts(came) == ["rare"], "rare", texts(came))
    came = await pages(reader, first, EVENTS_MAX, 1)
    expect(len(came) == 31, "31 messages, because each page reads at least one", len(came))


@rewinding.check(REWIND)
async def a_reader_sees_what_read_has_returned(bench: AdapterBench) -> None:
    """In the owner's process, `read_from` sees a message as soon as `read` has returned it."""
    receiver, reader = await bench.begin(), bench.reader()
    first: Token | None = None
    for number in range(5):
        await bench.publish(str(number))
        (found,) = await bench.collect(receiver, 1)
        first = first or found.token
        came = await pages(reader, first)
        is_so = bool(came) and content(came[-1]) == content(found)
        expect(is_so, f"messages up to {number}", texts(came))


@rewinding.check(REWIND)
async def a_reader_goes_on_at_the_end(bench: AdapterBench) -> None:
    """At the end, a page is empty and has `at_end`; later messages are found at its `next`."""
    await bench.publish("a")
    (found,) = await bench.collect(await bench.begin(), 1)
    reader = bench.reader()
    page = await reader.read_from(found.token, EVENTS_MAX, BYTES_MAX)
    wanted = "a Page with at_end, and with next after the message"
    expect(page.at_end and page.next > found.token, wanted, page)
    empty = await reader.read_from(page.next, EVENTS_MAX, BYTES_MAX)
    expect(empty.at_end and not empty.messages, "an empty Page with at_end", empty)
    await bench.publish("b")
    came = await read_until_some(reader, empty.next)
    expect(texts(came) == ["b"], "b", texts(came))


async def read_until_some(reader: GuardedReader, position: Token) -> list[QueueMessage]:
    """Wait until there are messages from a position on, and return them."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + COLLECT_S
    while not (came := await pages(reader, position)):
        expect(loop.time() < end_s, f"a message at {position}", "no message")
        await asyncio.sleep(POLL_S)
    return came


@rewinding.check(REWIND)
async def a_reader_of_another_silo_sees_the_queue(bench: AdapterBench) -> None:
    """Readers also work in silos that do not own the queue, and without an owner."""
    told = await bench.adapter.enqueue(bench.queue, [bench.message("a"), bench.message("b")])
    reader = bench.reader(await bench.another_silo())
    first = told[0] or (await reader.bounds())[0]
    expect(first is not None, "bounds of the accepted messages", first)
    came = await read_until_some(reader, first or Token(0, 0))
    bench.same(came, ["a", "b"])


@rewinding.check(REWIND)
async def readers_disturb_nobody(bench: AdapterBench) -> None:
    """The receiver, and other readers, still read the messages that a reader has read."""
    wanted = await bench.publish("a", "b", "c")
    receiver, readers = await bench.begin(), (bench.reader(), bench.reader())
    for reader in readers:
        low, _ = await reader.bounds()
        came = await pages(reader, low or Token(0, 0))
        bench.same(came, wanted)
        await reader.aclose()
        await reader.aclose()
    bench.same(await bench.everything(receiver, 3), wanted)


@rewinding.check(REWIND)
async def seek_finds_the_first_message_at_or_after_a_time(bench: AdapterBench) -> None:
    """`seek` uses the time of acceptance. It finds a message of exactly that time, and the first of
    several. A time long ago leads to the first kept message, and the future to None."""
    for texts_of_one_time in (("a",), ("b", "c"), ("d", "e", "f"), ("g",)):
        await bench.publish(*texts_of_one_time)
        bench.move_clock(10.0)
        await asyncio.sleep(POLL_S)
    found = await bench.collect(await bench.begin(), 7)
    reader = bench.reader()
    for when, wanted in times(found):
        came = await reader.seek(when)
        expect(came == wanted, f"{wanted} for {when.isoformat()}", came)


def times(found: Sequence[QueueMessage]) -> list[tuple[datetime, Token | None]]:
    """Pair times with the token that `seek` must find, or None if no message is that late.

    The first two times are long before and long after all messages. The others are those of the
    messages, if the messages have times.
    """
    wanted: list[tuple[datetime, Token | None]] = [(LONG_AGO, found[0].token), (FAR_FUTURE, None)]
    stamps = [message.enqueued_s for message in found]
    if 0.0 in stamps:
        return wanted
    for stamp in sorted(set(stamps)):
        exact = exactly(stamp)
        for when in (exact - BESIDE, exact, exact + BESIDE):
            at_s = when.timestamp()
            first = next((one.token for one in found if one.enqueued_s >= at_s), None)
            wanted.append((when, first))
    return wanted


def exactly(stamp: float) -> datetime:
    """A time of acceptance; if a datetime cannot represent it, the microsecond before."""
    when = datetime.fromtimestamp(stamp, UTC)
    return when if when.timestamp() <= stamp else when - timedelta(microseconds=1)


@rewinding.check(REWIND, hooks=("forget",))
async def a_page_before_what_is_kept_is_refused(bench: AdapterBench) -> None:
    """`read_from` a position at or before a lost message raises CursorTooOld. Its `first` is above
    all lost messages and not above the oldest kept one, and leads to that one."""
    await bench.publish("a", "b", "c")
    found = await bench.collect(await bench.begin(), 3)
    await bench.forget(2)
    reader, wanted = bench.reader(), found[2].token
    for gone in found[:2]:
        first = await page_too_old(reader, gone.token)
        expect_first(first, found[1].token, wanted)
        bench.same(await pages(reader, first or wanted), ["c"])
    low, _ = await reader.bounds()
    expect(low == wanted, f"{wanted} as the lower bound", low)
    bench.same(await pages(reader, wanted), ["c"])


async def page_too_old(reader: GuardedReader, position: Token) -> Token | None:
    """Return the first message that is kept, as CursorTooOld names it."""
    try:
        page = await reader.read_from(position, EVENTS_MAX, BYTES_MAX)
    except CursorTooOld as error:
        first: Token | None = error.first
        return first
    raise ContractBroken("CursorTooOld", page)


@rewinding.check(REWIND, hooks=("forget",))
async def a_page_of_a_queue_that_lost_everything_is_refused(bench: AdapterBench) -> None:
    """If no message is kept, `first` is None, or above all lost messages and not above the next
    message."""
    await bench.publish("a", "b")
    receiver = await bench.begin()
    found = await bench.collect(receiver, 2)
    await receiver.aclose()
    await bench.forget(2)
    reader = bench.reader()
    first = await page_too_old(reader, found[0].token)
    await bench.publish("c")
    came = await read_until_some(reader, first or behind(found[1].token))
    bench.same(came, ["c"])
    if first is not None:
        expect_first(first, found[1].token, came[0].token)


def behind(token: Token) -> Token:
    """The position after a message."""
    return token._replace(seq=token.seq + 1)


@rewinding.check(REWIND, hooks=("skip",))
async def pages_go_over_holes_in_the_numbers(bench: AdapterBench) -> None:
    """A page may begin in a hole (numbers without a message), and has the messages after it. If
    nothing follows the hole, the page has `at_end`. No message is lost, so CursorTooOld is not
    raised."""
    await bench.publish("a")
    await bench.skip(3)
    await bench.publish("b")
    await bench.skip(2)
    found = await bench.collect(await bench.begin(), 2)
    reader = bench.reader()
    bench.same(await pages(reader, found[0].token, 1), ["a", "b"])
    for within in (behind(found[0].token), found[1].token._replace(seq=found[1].token.seq - 1)):
        bench.same(await pages(reader, within), ["b"])
    page = await reader.read_from(behind(found[1].token), EVENTS_MAX, BYTES_MAX)
    expect(page.at_end and not page.messages, "an empty Page with at_end", page)
    await bench.publish("c")
    bench.same(await read_until_some(reader, page.next), ["c"])


@rewinding.check(REWIND, hooks=("forget", "skip"))
async def a_page_in_a_hole_behind_what_is_gone_is_given(bench: AdapterBench) -> None:
    """A page that begins in a hole is returned, even if the message before the hole is gone."""
    await bench.publish("a")
    await bench.skip(3)
    await bench.publish("b")
    found = await bench.collect(await bench.begin(), 2)
    await bench.forget(1)
    bench.same(await pages(bench.reader(), behind(found[0].token)), ["b"])


Body = Callable[[AdapterBench], Coroutine[Any, Any, None]]


def where_it_can(body: Body) -> Body:
    """Run a check only for adapters with `Retains`, which is optional."""

    @wraps(body)
    async def check(bench: AdapterBench) -> None:
        if isinstance(bench.adapter.raw, Retains):
            await body(bench)
        else:
            raise NotRun("the adapter does not implement `Retains`")

    return check


async def found(bench: AdapterBench, *items: str) -> list[QueueMessage]:
    """Publish messages, and return them as the owner has read them."""
    await bench.publish(*items)
    return await bench.collect(await bench.begin(), len(items))


async def is_told(bench: AdapterBench, wanted: dict[str, Token]) -> None:
    came = dict(await bench.adapter.list_retained(bench.queue))
    expect(came == wanted, f"the retained positions {wanted}", came)


@rewinding.check(REWIND)
@where_it_can
async def what_is_retained_is_told(bench: AdapterBench) -> None:
    """`list_retained` returns each reader of this queue with its position, in every silo."""
    first, second, _ = await found(bench, "a", "b", "c")
    await is_told(bench, {})
    other = await bench.another_silo()
    await bench.adapter.retain(bench.queue, "one", first.token)
    await other.retain(bench.queue, "two", second.token)
    wanted = {"one": first.token, "two": second.token}
    await is_told(bench, wanted)
    came = dict(await other.list_retained(bench.queue))
    expect(came == wanted, f"the retained positions {wanted} in another silo", came)
    if bench.other_queue is not None:
        came = dict(await bench.adapter.list_retained(bench.other_queue))
        expect(came == {}, "no retained position in another queue", came)


@rewinding.check(REWIND)
@where_it_can
async def a_retained_position_never_goes_back(bench: AdapterBench) -> None:
    """The highest of all positions of a reader counts, in any order of the calls."""
    first, second, third = await found(bench, "a", "b", "c")
    for position, wanted in (
        (second.token, second.token),
        (first.token, second.token),
        (None, second.token),
        (second.token, second.token),
        (third.token, third.token),
    ):
        await bench.adapter.retain(bench.queue, "r", position)
        await is_told(bench, {"r": wanted})


@rewinding.check(REWIND)
@where_it_can
async def a_reader_without_a_position_retains_all_that_is_there(bench: AdapterBench) -> None:
    """Position None retains from the first kept message on; in an empty queue, from the next
    message on."""
    await bench.adapter.retain(bench.queue, "early", None)
    first, _ = await found(bench, "a", "b")
    await bench.adapter.retain(bench.queue, "late", None)
    for name, position in (await bench.adapter.list_retained(bench.queue)).items():
        is_so = position <= first.token
        expect(is_so, f"a position of reader {name} of at most {first.token}", position)


@rewinding.check(REWIND)
@where_it_can
async def who_is_let_go_retains_nothing(bench: AdapterBench) -> None:
    """`let_go` may be repeated, and may name an unknown reader; other readers stay."""
    first, second = await found(bench, "a", "b")
    await bench.adapter.retain(bench.queue, "one", second.token)
    await bench.adapter.retain(bench.queue, "two", second.token)
    for name in ("one", "one", "nobody"):
        await bench.adapter.let_go(bench.queue, name)
        await is_told(bench, {"two": second.token})
    await bench.adapter.retain(bench.queue, "one", first.token)
    await is_told(bench, {"one": first.token, "two": second.token})


@rewinding.check(REWIND, Capability.DURABLE)
@where_it_can
async def what_is_retained_outlives_every_silo(bench: AdapterBench) -> None:
    """With DURABLE, readers and their positions survive a restart."""
    _, second = await found(bench, "a", "b")
    await bench.adapter.retain(bench.queue, "r", second.token)
    await bench.reopen()
    await is_told(bench, {"r": second.token})


@rewinding.check(REWIND)
@where_it_can
async def what_is_retained_is_kept(bench: AdapterBench) -> None:
    """The provider's retention removes no message at a reader's position or after it."""
    messages = await found(bench, "a", "b", "c", "d")
    position = messages[1].token
    await bench.adapter.retain(bench.queue, "r", position)
    await bench.forget(3)
    came = texts(await pages(bench.reader(), position))
    expect(came == ["b", "c", "d"], "b, c, d", came)
    await bench.adapter.retain(bench.queue, "r", messages[2].token)
    await bench.forget(1)
    came = texts(await pages(bench.reader(), messages[2].token))
    expect(came == ["c", "d"], "c, d", came)
    await bench.adapter.let_go(bench.queue, "r")
    await bench.forget(1)
    low, _ = await bench.reader().bounds()
    is_free = low is not None and low > messages[2].token
    wanted = f"a first kept message after {messages[2].token}, because the reader was removed"
    expect(is_free, wanted, low)
