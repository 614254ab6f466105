"""Reading again, beside the owner: bounds, times, pages; and keeping what is not read yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import Any

from millstream.runtime import CursorTooOld
from millstream.streams.contracts.capability import Capability
from millstream.streams.contracts.identity import StreamId
from millstream.streams.contracts.message import QueueMessage
from millstream.streams.contracts.queue import Retains
from millstream.streams.contracts.token import Token

from .bench import BYTES_MAX, COLLECT_S, EVENTS_MAX, POLL_S, AdapterBench, texts
from .check import Checks
from .guarded import GuardedReader
from .verdict import ContractBroken, expect

__all__ = ["rewinding"]

rewinding = Checks()
REWIND = Capability.REWIND
PAGES_MAX = 1000
FAR_FUTURE = datetime(2500, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(1980, 1, 1, tzinfo=UTC)


@rewinding.check(REWIND)
async def bounds_are_the_first_and_the_last_message(bench: AdapterBench) -> None:
    """None while the queue is empty, then the first that is kept and the last that was accepted."""
    reader = bench.reader()
    empty = await reader.bounds()
    expect(empty == (None, None), "(None, None) of an empty queue", empty)
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
    """Everything from a position on. Raises ContractBroken: a page does not lead on."""
    found = list[QueueMessage]()
    for _ in range(PAGES_MAX):
        page = await reader.read_from(position, events_max, bytes_max, streams)
        found += page.messages
        if page.at_end:
            return found
        expect(page.next > position, f"Page.next above {position}", page.next)
        position = page.next
    raise ContractBroken(f"the end within {PAGES_MAX} pages", f"{len(found)} messages")


@rewinding.check(REWIND)
async def messages_are_read_again_from_a_position(bench: AdapterBench) -> None:
    """From this position (inclusive) on, as `read` gave them: tokens, items, headers, streams."""
    await bench.publish(*map(str, range(20)))
    found = await bench.collect(await bench.begin(), 20)
    reader = bench.reader()
    for at in (0, 7, 19):
        came = await pages(reader, found[at].token)
        is_so = list(map(content, came)) == list(map(content, found[at:]))
        expect(is_so, f"messages {at} to 19 as they were read", texts(came))


def content(message: QueueMessage) -> tuple[object, ...]:
    """What stays of a message, however it is read."""
    items = [bytes(item) for item in message.items]
    return message.stream, message.token, items, dict(message.headers)


@rewinding.check(REWIND, generated=True)
async def pages_follow_each_other(bench: AdapterBench) -> None:
    """A page has at most `max_events` events; the next one begins where it says, losing nothing."""
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
    """`streams` filters; what is left out is looked at all the same, and is not at the end."""
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
    expect(not came, "nothing of no streams", texts(came))


@rewinding.check(REWIND)
async def max_bytes_bounds_what_is_looked_at(bench: AdapterBench) -> None:
    """Found or not: a page for a rare stream ends after `max_bytes`, and the next one goes on."""
    await bench.publish(*["x" * 100] * 30)
    rare = bench.stream(1)
    await bench.adapter.enqueue(bench.queue, [bench.message("rare", rare)])
    found = await bench.collect(await bench.begin(), 31)
    reader, first = bench.reader(), found[0].token
    page = await reader.read_from(first, EVENTS_MAX, 500, frozenset({rare}))
    most = found[10].token  # twice the limit: a provider may read in blocks
    is_so = first < page.next <= most and not page.at_end and not page.messages
    expect(is_so, f"an empty page that ends at {most} at the latest, not at the end", page)
    came = await pages(reader, first, EVENTS_MAX, 500, frozenset({rare}))
    expect(texts(came) == ["rare"], "rare", texts(came))
    came = await pages(reader, first, EVENTS_MAX, 1)
    expect(len(came) == 31, "one message at least is looked at: 31 in all", len(came))


@rewinding.check(REWIND)
async def a_reader_sees_what_read_has_returned(bench: AdapterBench) -> None:
    """In the owner's process there is no delay between `read` and `read_from`."""
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
    """At the end a page is empty and says so; its `next` is where later messages are found."""
    await bench.publish("a")
    (found,) = await bench.collect(await bench.begin(), 1)
    reader = bench.reader()
    page = await reader.read_from(found.token, EVENTS_MAX, BYTES_MAX)
    expect(page.at_end and page.next > found.token, "the end, behind the message", page)
    empty = await reader.read_from(page.next, EVENTS_MAX, BYTES_MAX)
    expect(empty.at_end and not empty.messages, "an empty page at the end", empty)
    await bench.publish("b")
    came = await seen(reader, empty.next)
    expect(texts(came) == ["b"], "b", texts(came))


async def seen(reader: GuardedReader, position: Token) -> list[QueueMessage]:
    """What is found from a position on, once there is something."""
    loop = asyncio.get_running_loop()
    end_s = loop.time() + COLLECT_S
    while not (came := await pages(reader, position)):
        expect(loop.time() < end_s, f"a message at {position}", "nothing")
        await asyncio.sleep(POLL_S)
    return came


@rewinding.check(REWIND)
async def a_reader_of_another_silo_sees_the_queue(bench: AdapterBench) -> None:
    """Readers stand in silos that do not own the queue, too, and without an owner."""
    told = await bench.adapter.enqueue(bench.queue, [bench.message("a"), bench.message("b")])
    reader = bench.reader(await bench.another_silo())
    first = told[0] or (await reader.bounds())[0]
    expect(first is not None, "bounds of what was accepted", first)
    came = await seen(reader, first or Token(0, 0))
    bench.same(came, ["a", "b"])


@rewinding.check(REWIND)
async def readers_disturb_nobody(bench: AdapterBench) -> None:
    """What readers read is read by the receiver all the same, and by each other."""
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
    """By the time of acceptance: the first that is kept for long ago, None for the future."""
    for text in ("a", "b", "c"):
        await bench.publish(text)
        bench.move_clock(10.0)
        await asyncio.sleep(POLL_S)
    found = await bench.collect(await bench.begin(), 3)
    reader = bench.reader()
    for when, wanted in times(found):
        came = await reader.seek(when)
        expect(came == wanted, f"{wanted} for {when.isoformat()}", came)


def times(found: Sequence[QueueMessage]) -> list[tuple[datetime, Token | None]]:
    """Times, and the message that each leads to; where messages have no times, the ends only."""
    wanted: list[tuple[datetime, Token | None]] = [(LONG_AGO, found[0].token), (FAR_FUTURE, None)]
    stamps = [message.enqueued_s for message in found]
    if 0.0 in stamps or len(set(stamps)) < len(stamps):
        return wanted
    for at, stamp in enumerate(stamps):
        when = datetime.fromtimestamp(stamp, UTC)
        late = when + timedelta(microseconds=500)
        wanted += [(when - timedelta(microseconds=500), found[at].token)]
        wanted += [(late, found[at + 1].token if at + 1 < len(found) else None)]
    return wanted


@rewinding.check(REWIND)
async def a_page_before_what_is_kept_is_refused(bench: AdapterBench) -> None:
    """`read_from` a position that is gone raises CursorTooOld(first), as `bounds` has it."""
    if bench.forget is None:
        print("skipped: a_page_before_what_is_kept_is_refused: no `forget` is given")
        return
    await bench.publish("a", "b", "c")
    found = await bench.collect(await bench.begin(), 3)
    await bench.forget(bench.queue, 2)
    reader = bench.reader()
    try:
        came: object = await reader.read_from(found[0].token, EVENTS_MAX, BYTES_MAX)
    except CursorTooOld as error:
        came = error.first
    wanted = found[2].token
    expect(came == wanted, f"CursorTooOld(first={wanted})", came)
    low, _ = await reader.bounds()
    expect(low == wanted, f"{wanted} as the lower bound", low)
    bench.same(await pages(reader, wanted), ["c"])


Body = Callable[[AdapterBench], Coroutine[Any, Any, None]]


def where_it_can(body: Body) -> Body:
    """It is optional: an adapter without it keeps the rule."""

    @wraps(body)
    async def checked(bench: AdapterBench) -> None:
        if isinstance(bench.adapter.raw, Retains):
            await body(bench)
        else:
            print(f"skipped: {body.__name__}: the adapter is not `Retains`")

    return checked


async def found(bench: AdapterBench, *items: str) -> list[QueueMessage]:
    """These messages, as the owner has read them."""
    await bench.publish(*items)
    return await bench.collect(await bench.begin(), len(items))


async def is_told(bench: AdapterBench, wanted: dict[str, Token]) -> None:
    came = dict(await bench.adapter.retained(bench.queue))
    expect(came == wanted, f"{wanted} as what is retained", came)


@rewinding.check(REWIND)
@where_it_can
async def what_is_retained_is_told(bench: AdapterBench) -> None:
    """`retained` names each reader and its position, of this queue, in every silo."""
    first, second, _ = await found(bench, "a", "b", "c")
    await is_told(bench, {})
    other = await bench.another_silo()
    await bench.adapter.retain(bench.queue, "one", first.token)
    await other.retain(bench.queue, "two", second.token)
    wanted = {"one": first.token, "two": second.token}
    await is_told(bench, wanted)
    came = dict(await other.retained(bench.queue))
    expect(came == wanted, f"{wanted} in another silo", came)
    if bench.other_queue is not None:
        came = dict(await bench.adapter.retained(bench.other_queue))
        expect(came == {}, "nothing of another queue", came)


@rewinding.check(REWIND)
@where_it_can
async def a_retained_position_never_goes_back(bench: AdapterBench) -> None:
    """Of all positions that a reader named the last one counts, whatever their order."""
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
    """None: from the first message that is kept, and in an empty queue from the next one, on."""
    await bench.adapter.retain(bench.queue, "early", None)
    first, _ = await found(bench, "a", "b")
    await bench.adapter.retain(bench.queue, "late", None)
    for name, position in (await bench.adapter.retained(bench.queue)).items():
        is_so = position <= first.token
        expect(is_so, f"a position of {name} at {first.token} at the latest", position)


@rewinding.check(REWIND)
@where_it_can
async def who_is_let_go_retains_nothing(bench: AdapterBench) -> None:
    """Again is harmless, and so is a reader that nobody knows; others stay."""
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
    """DURABLE: also the names of readers and their positions."""
    _, second = await found(bench, "a", "b")
    await bench.adapter.retain(bench.queue, "r", second.token)
    await bench.reopen()
    await is_told(bench, {"r": second.token})


@rewinding.check(REWIND)
@where_it_can
async def what_is_retained_is_kept(bench: AdapterBench) -> None:
    """The provider's retention takes nothing at a reader's position, or behind it."""
    if bench.forget is None:
        print("skipped: what_is_retained_is_kept: no `forget` is given")
        return
    forget: Callable[[str, int], Awaitable[None]] = bench.forget
    messages = await found(bench, "a", "b", "c", "d")
    position = messages[1].token
    await bench.adapter.retain(bench.queue, "r", position)
    await forget(bench.queue, 3)
    came = texts(await pages(bench.reader(), position))
    expect(came == ["b", "c", "d"], "b, c, d", came)
    await bench.adapter.retain(bench.queue, "r", messages[2].token)
    await forget(bench.queue, 1)
    came = texts(await pages(bench.reader(), messages[2].token))
    expect(came == ["c", "d"], "c, d", came)
    await bench.adapter.let_go(bench.queue, "r")
    await forget(bench.queue, 1)
    low, _ = await bench.reader().bounds()
    is_free = low is not None and low > messages[2].token
    expect(is_free, "nothing is kept for who was let go", low)
