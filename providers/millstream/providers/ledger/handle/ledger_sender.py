"""The driver of an `AppendCore`: it sends, waits, asks for other bookies, and ends futures in
order.

Owns: `LedgerSender`. Not: decisions (`protocol.append_core`), storing a change of bookies (the
caller that makes a `LedgerSender`). Invariants: the futures of appends end in the order of entries.
Cancelling a future does not take the entry back. An entry waits at most `unconfirmed_max_s` for
enough bookies. After a failure nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from millstream.providers.ledger.protocol.append_core import (
    Action,
    AppendCore,
    Change,
    Confirm,
    FailAppends,
    Send,
)
from millstream.providers.ledger.protocol.errors import (
    BookieError,
    LedgerError,
    LedgerFenced,
    NotEnoughBookies,
)
from millstream.runtime import StorageError

from .bookie_sender import BookieSender, Outcome, Trouble
from .context import HandleContext, choose

__all__ = ["LedgerSender"]

log = logging.getLogger("millstream.ledger")

AVOID_S = 1.0
"""A bookie that failed a request is not chosen for so many seconds."""

StoreChange = Callable[[int, Mapping[int, tuple[str, str]]], Awaitable[Mapping[int, str]]]
"""Store a change of bookies from an entry on, {place: (old, new)}. Returns {place: stored
bookie}."""


class LedgerSender:
    """Appends entries to one ledger in one term."""

    def __init__(
        self, context: HandleContext, core: AppendCore, term: int, store: StoreChange
    ) -> None:
        self.core = core
        self._context = context
        self._term = term
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._senders: dict[tuple[int, int], BookieSender] = {}  # by place and change
        self._waiting: deque[tuple[int, Future[int], float]] = deque()  # entry, future, since
        self._tending: asyncio.Task[None] | None = None
        self._unwilling: dict[str, float] = {}  # bookies that failed a request, and when
        self._whys: dict[str, str] = {}  # the reasons that bookies gave for failures
        self._is_telling = False
        self._told = core.confirmed

    @property
    def trouble(self) -> str:
        """Why bookies of this ledger do not answer now, or "" if all of them answer."""
        bookies = self.core.bookies()
        away = [bookies[place] for place in self.core.away()]
        return "; ".join(self._whys.get(one) or f"bookie {one} does not answer" for one in away)

    def append(self, payload: bytes) -> Future[int]:
        """Append a payload. The future has the entry's number once it is confirmed."""
        future = self._waits()
        self.do(self.core.append(payload))
        return future

    def append_packed(self, packed: bytes, length: int) -> Future[int]:
        """Append an entry that is packed already."""
        future = self._waits()
        self.do(self.core.append_packed(packed, length))
        return future

    def _waits(self) -> Future[int]:
        """Return the future for the next entry."""
        if self.core.failed is not None:
            raise self.core.failed
        future: Future[int] = self._loop.create_future()
        self._waiting.append((self.core.next_entry, future, self._context.clock.now()))
        return future

    def do(self, actions: list[Action]) -> None:
        """Carry out decisions of the core."""
        for action in actions:
            match action:
                case Send(place, bookie, change, entries):
                    self._sender_of(place, bookie, change).put(entries)
                case Confirm(upto):
                    self._confirm(upto)
                case Change():
                    self._context.tasks.start(self._change(action))
                case FailAppends(error):
                    self._fail(error)
        if not self.core.are_all_good and self.core.failed is None and self._tending is None:
            self._tending = self._context.tasks.start(self._tend())

    # --- bookies ---

    def _sender_of(self, place: int, bookie: str, change: int) -> BookieSender:
        sender = self._senders.get((place, change))
        if sender is None:
            tell = partial(self._on_told, place, change)
            sender = BookieSender(self._context, bookie, self._term, self.core.find_packed, tell)
            self._senders[place, change] = sender
        return sender

    def _on_told(self, place: int, change: int, outcome: Outcome) -> None:
        match outcome:
            case LedgerFenced():
                self.do(self.core.stop(outcome))
            case Trouble(state, why):
                sender = self._senders[place, change]
                sender.clear()
                self._unwilling[sender.bookie] = self._context.clock.now()
                self._whys[sender.bookie] = why
                self.do(self.core.on_unanswered(place, change, state))
            case _:
                self.do(self.core.on_acknowledged(place, change, outcome))

    async def _change(self, change: Change) -> None:
        """Choose other bookies, have them stored, and continue with them."""
        for attempt in range(1, 1_000_000):
            if self.core.failed is not None:
                return
            found = self._others(len(change.places))
            instead = {
                place: (old, new)
                for (place, old), new in zip(change.places.items(), found, strict=False)
            }
            try:
                stored = await self._store(change.first, instead) if instead else {}
            except LedgerError as error:
                self.do(self.core.stop(error))
                return
            except StorageError as error:
                log.warning(
                    "ledger %d: could not replace bookies, retrying: %s", self.core.ledger, error
                )
                await asyncio.sleep(self._context.pause_s(attempt))
                continue
            self._on_changed(change, stored)
            return

    def _others(self, count: int) -> list[str]:
        """Choose substitutes. Bookies that failed a moment ago are left out, since they would
        otherwise be chosen and fail again and again."""
        since_s = self._context.clock.now() - AVOID_S
        self._unwilling = {name: at_s for name, at_s in self._unwilling.items() if at_s > since_s}
        taken = {*self.core.bookies(), *self._unwilling}
        context = self._context
        return choose(context.bookies.writable(), count, taken, context.clock)

    def _on_changed(self, change: Change, stored: Mapping[int, str]) -> None:
        if stored and self.core.failed is None:
            text = "ledger %d: entries from %d on are stored on %s instead of %s"
            old = ", ".join(change.places[place] for place in stored)
            log.warning(text, self.core.ledger, change.first, ", ".join(stored.values()), old)
        self.do(self.core.on_changed(stored))

    async def _tend(self) -> None:
        """While a bookie does not answer, check whether it is back, or others are there."""
        attempt = 0
        try:
            while self.core.failed is None and self.core.away():
                attempt += 1
                await asyncio.sleep(self._context.pause_s(attempt))
                if self._is_too_late():
                    return
                for place in self.core.away():
                    if await self._is_back(place):
                        self.do(self.core.on_returned(place))
                self.do(self.core.try_change())
        finally:
            self._tending = None

    async def _is_back(self, place: int) -> bool:
        bookie = self.core.bookies()[place]
        if bookie in self._context.bookies.writable():
            try:
                first = max(self.core.confirmed, 0)
                await self._context.bookies.read(bookie, self.core.ledger, first, 1, 1, 0)
            except BookieError:
                return False
            return self.core.bookies()[place] == bookie
        return False

    def _is_too_late(self) -> bool:
        """Stop the writer if an entry has waited too long. Return whether this happened."""
        since_s = self._waiting[0][2] if self._waiting else self._context.clock.now()
        limit_s = self._context.options.unconfirmed_max_s
        if self._context.clock.now() - since_s < limit_s:
            return False
        text = f"ledger {self.core.ledger}: entry {self._waiting[0][0]} was not acknowledged by "
        text += f"{self.core.quorum.ack} of {self.core.quorum.write} bookies within {limit_s:g} s: "
        text += self.trouble
        self.do(self.core.stop(NotEnoughBookies(text)))
        return True

    # --- waiting appends ---

    def _confirm(self, upto: int) -> None:
        while self._waiting and self._waiting[0][0] <= upto:
            entry, future, _ = self._waiting.popleft()
            if not future.done():
                future.set_result(entry)
        if not self._is_telling and not self._waiting:
            self._is_telling = True
            self._context.tasks.call_later(self._context.options.tell_after_s, self._tell_idle)

    def _fail(self, error: LedgerError) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, future, _ in waiting:
            if not future.done():
                future.set_exception(error)
                future.exception()  # the caller may not look any more
        for sender in self._senders.values():
            sender.end()

    def _tell_idle(self) -> None:
        """After a pause without appends, tell bookies the last confirmed entry, as the next entry
        would."""
        self._is_telling = False
        if self.core.failed is not None or self._waiting or self._told == self.core.confirmed:
            return
        self.tell(self.core.confirmed)

    def tell(self, confirmed: int) -> None:
        """Tell all bookies the last confirmed entry, even if they were told before."""
        self._told = confirmed
        for bookie in self.core.bookies():
            self._context.tasks.start(self._tell(bookie, confirmed))

    async def _tell(self, bookie: str, confirmed: int) -> None:
        try:
            await self._context.bookies.tell(bookie, self.core.ledger, self._term, confirmed)
        except BookieError:
            log.debug(
                "ledger %d: bookie %s does not know yet that entry %d is confirmed",
                self.core.ledger,
                bookie,
                confirmed,
            )
