"""The ledger provider as the simulation observes it: accepted messages, and messages of readers.

Owns: the observed adapter, `Tail` (a program that reads queues beside their owners), and reading of
whole queues. In some runs owners are stubborn: they report that they handed over a queue, and write
to it for a while. Invariant: the provider's own code runs unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tests.sim.suites.run.programs import Program
from tests.sim.suites.run.record import Run, current_run

from millstream.providers.ledger import LedgerQueues
from millstream.providers.ledger.queues.adapter import LedgerAdapter
from millstream.providers.ledger.queues.receiver import LedgerQueueReader, LedgerReceiver
from millstream.runtime import CursorTooOld, StreamError
from millstream.runtime.extending import Tasks
from millstream.runtime.testing import Host, Random, current_host, make_random
from millstream.streams import AdapterHost, OutMessage, QueueId, QueueReceiver, Token

from .book import Book, Log, content_of

__all__ = ["NotedLedgerQueues", "NotesLedgers", "Tail", "Together", "read_log"]

PAGE_EVENTS = 50
PAGE_BYTES = 1 << 20
LOOK_S = 0.5
ANEW_SHARE = 0.05
BOUNDS_SHARE = 0.2
STUBBORN_S = 8.0
TRIES = 20
TRY_S = 0.5


class NotesLedgers(Protocol):
    """A run with a book; `adapters`: the newest adapter of each host."""

    book: Book
    adapters: dict[str, NotedAdapter]

    def should_be_stubborn(self) -> bool: ...


class NotedLedgerQueues(LedgerQueues):
    """The adapter factory of one silo."""

    def __init__(self, run: NotesLedgers, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._run = run

    async def open(self, provider: str, host: AdapterHost, /) -> Any:
        inner = await super().open(provider, host)
        on = current_host()
        assert on is not None, "a silo is made on its host"
        adapter = self._run.adapters[on.name] = NotedAdapter(inner, self._run, host)
        return adapter


class NotedAdapter:
    """The provider, opened in one silo."""

    def __init__(self, inner: LedgerAdapter, run: NotesLedgers, host: AdapterHost) -> None:
        self._inner = inner
        self._run = run
        self._book = run.book
        self._silo = host.silo
        self._tasks = host.tasks
        self.is_closed = False

    async def enqueue(
        self, queue: QueueId, messages: Sequence[OutMessage], mapper_epoch: int, /
    ) -> Sequence[Token | None]:
        started = [self._book.on_tried(queue, message) for message in messages]
        tokens = await self._inner.enqueue(queue, messages, mapper_epoch)
        for message, token, started_s in zip(messages, tokens, started, strict=True):
            if token is not None:
                self._book.on_accepted(queue, token.seq, message, started_s)
        return tokens

    def receiver(self, queue: QueueId, epoch: int, /) -> QueueReceiver:
        current_run().on_acquired(queue, self._silo, epoch)
        receiver = self._inner.receiver(queue, epoch)
        return Stubborn(receiver, self._tasks) if self._run.should_be_stubborn() else receiver

    def reader(self, queue: QueueId, /) -> LedgerQueueReader:
        return self._inner.reader(queue)

    async def aclose(self) -> None:
        self.is_closed = True
        await self._inner.aclose()


class Stubborn:
    """A receiver that closes its topic later than it says, like an owner that was paused and does
    not know that it lost the queue."""

    def __init__(self, inner: LedgerReceiver, tasks: Tasks) -> None:
        self._tasks = tasks
        self._inner = inner
        self.start, self.read, self.ack = inner.start, inner.read, inner.ack
        self.release, self.extend = inner.release, inner.extend

    async def aclose(self) -> None:
        """Report the end at once, and close the topic later."""
        current_run().figures["stubborn owners"] += 1
        self._tasks.start(self._close())

    async def _close(self) -> None:
        await asyncio.sleep(current_run().simulation.rng.uniform(0.0, STUBBORN_S))
        await self._inner.aclose()


class Together:
    """Programs that run at the same time."""

    def __init__(self, *programs: Program) -> None:
        self._programs = programs

    async def work(self, handle: Callable[[], Any]) -> None:
        """Work until the run is over."""
        await asyncio.gather(*(program.work(handle) for program in self._programs))


class Tail:
    """Reads queues beside their owners."""

    def __init__(self, run: Run, notes: NotesLedgers, host: Host) -> None:
        self._run = run
        self._notes = notes
        self._host = host.name
        self._rng: Random = make_random(run.simulation.seed, "tail", host.name, host.incarnation)

    async def work(self, handle: Callable[[], Any]) -> None:
        """Read queues until the run is over."""
        while not self._run.is_over:
            await asyncio.sleep(self._rng.uniform(0.0, LOOK_S))
            adapter = self._notes.adapters.get(self._host)
            queues = self._notes.book.queues
            if adapter is not None and not adapter.is_closed and queues:
                await self._follow(adapter, self._rng.choice(queues))

    async def _follow(self, adapter: NotedAdapter, queue: str) -> None:
        """Read a queue for a while, from a random position."""
        reader = adapter.reader(queue)
        try:
            first, last = await reader.bounds()
            position = self._rng.choice((first, last)) or Token(0, 1)
            end = last
            while not adapter.is_closed and not self._run.is_over:
                if self._rng.random() < ANEW_SHARE:
                    break
                position, _ = await read_page(self._notes.book, reader, queue, position, self._host)
                if self._rng.random() < BOUNDS_SHARE:
                    end = await self._look_further(reader, queue, position, end)
                await asyncio.sleep(self._rng.uniform(0.0, LOOK_S))
        except StreamError as error:
            self._run.figures[f"reading: {type(error).__name__}"] += 1
        finally:
            await reader.aclose()

    async def _look_further(
        self, reader: LedgerQueueReader, queue: str, position: Token, before: Token | None
    ) -> Token | None:
        """Check that the end of a queue never moves backwards, and is never before a message that
        was read."""
        _, last = await reader.bounds()
        if last is not None and (last < (before or last) or last.seq < position.seq - 1):
            self._run.on_violated(
                f"{queue}: {self._host} sees the end at {last}, after {before}; it read {position}"
            )
        return last or before


async def read_page(
    book: Book, reader: LedgerQueueReader, queue: str, position: Token, who: str
) -> tuple[Token, bool]:
    """Read from a position; return the next position, and whether it is the end."""
    run = current_run()
    try:
        page = await reader.read_from(position, PAGE_EVENTS, PAGE_BYTES, None)
    except CursorTooOld as error:
        assert error.first is not None
        if error.first <= position:
            run.on_violated(
                f"{queue}: {position} is too old for {who}, and {error.first} is the first"
            )
        book.on_trimmed(queue, error.first.seq)
        return error.first, False
    for number, message in enumerate(page.messages, position.seq):
        book.saw(queue, message.token.seq, content_of(message), who)
        run.figures["read beside owners"] += 1
        if message.token.seq != number:
            run.on_violated(f"{queue}: {who} reads {message.token.seq} where {number} follows")
    if page.next.seq != position.seq + len(page.messages):
        run.on_violated(f"{queue}: {who} read {len(page.messages)} at {position}, then {page.next}")
    return page.next, page.at_end


async def read_log(
    book: Book, adapter: NotedAdapter, queue: str, who: str, *, tries: int = TRIES
) -> Log:
    """Read a queue from its first message to its end. Raises StreamError if that fails."""
    for attempt in range(tries):
        reader = adapter.reader(queue)
        try:
            return await _read_all(book, reader, queue, who)
        except StreamError:
            if attempt == tries - 1:
                raise
        finally:
            await reader.aclose()
        await asyncio.sleep(TRY_S)
    raise AssertionError("not reached")


async def _read_all(book: Book, reader: LedgerQueueReader, queue: str, who: str) -> Log:
    first, last = await reader.bounds()
    if first is None or last is None:
        end = await end_of_empty(reader)
        return Log(who, end, end)
    position = first
    while position <= last:
        position, _ = await read_page(book, reader, queue, position, who)
    return Log(who, first.seq, position.seq)


async def end_of_empty(reader: LedgerQueueReader) -> int:
    """Return the next number of a queue that keeps no message."""
    try:
        page = await reader.read_from(Token(0, 1), 1, 1, None)
    except CursorTooOld as error:
        return 0 if error.first is None else int(error.first.seq)
    return page.next.seq
