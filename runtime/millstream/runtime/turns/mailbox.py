"""What an activation has besides one plain turn: waiting requests, readers, tasks, its end.

Owns: `Mailbox`, made only while it is needed, so that an idle activation stays small, and
`WaitingBytes`, the bytes of encoded calls that wait in one process. Not: the turn rule itself
(`turn_rule`). Invariants: entries are admitted in arrival order, except that one which may start
overtakes those that may not; a withdrawn entry is never granted; bytes that were taken are given
back once, whatever becomes of the call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from millstream.runtime.errors import Overloaded

if TYPE_CHECKING:
    from millstream.runtime.definition.grain import DeactivationReason

    from .request import Request
__all__ = ["Mailbox", "WaitingBytes", "WaitingEntry"]


class WaitingEntry(Protocol):
    """A request that waits for an activation."""

    request: Request
    is_withdrawn: bool
    size_bytes: int  # of the encoded call that it holds meanwhile; 0: none

    def grant(self) -> bool:
        """The activation is yours; False if nobody is there any more to take it."""
        ...

    def on_moved(self, silo: str) -> None:
        """The activation ended; `silo` is where the grain is now, or empty."""
        ...

    def fail(self, error: BaseException) -> None:
        """The activation could not start."""
        ...


class WaitingBytes:
    """Counts the bytes of encoded calls that wait in one silo or client.

    A call that is larger than a limit may wait alone.

    Args:
        each_max: bytes that may wait for one activation, or for the location of one grain.
        all_max: bytes that may wait in this process.

    Attributes: `used`, the bytes that wait now.
    """

    __slots__ = ("_all_max", "_each_max", "used")

    def __init__(self, each_max: int, all_max: int) -> None:
        self._each_max = each_max
        self._all_max = all_max
        self.used = 0

    def take(self, what: object, size_bytes: int, beside_bytes: int) -> None:
        """Let a call wait.

        Args:
            what: where it is going to wait, for the error.
            size_bytes: of the call.
            beside_bytes: what waits there already.

        Raises Overloaded.
        """
        if size_bytes and beside_bytes and beside_bytes + size_bytes > self._each_max:
            fact = f"{what}: {beside_bytes} bytes of calls wait, and {size_bytes} more would"
            raise Overloaded(fact, "waiting_bytes_max", self._each_max)
        if size_bytes and self.used and self.used + size_bytes > self._all_max:
            fact = f"{what}: {self.used} bytes of calls wait in this process, and {size_bytes} more"
            raise Overloaded(f"{fact} would", "silo_waiting_bytes_max", self._all_max)
        self.used += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """The call waits no longer."""
        self.used -= size_bytes


class Mailbox:
    """Side object of one activation."""

    __slots__ = (
        "account",
        "extensions",
        "first_turn_due",
        "gone",
        "interleaving",
        "interleaving_waiting",
        "is_awaited",
        "keep_until",
        "readers",
        "stop",
        "tasks",
        "waiting",
        "waiting_bytes",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.waiting: deque[WaitingEntry] = deque()
        self.withdrawn = 0
        self.waiting_bytes = 0  # of those that wait and are not withdrawn
        self.account: WaitingBytes | None = None  # which counts them; None: none ever waited
        self.gone: str | Exception = ""  # once it is: where the grain is now, or why it has failed
        self.readers: list[Request] = []
        self.interleaving: dict[Request, None] = {}  # such turns that run
        self.interleaving_waiting = 0
        self.is_awaited = False  # callers wait for the grain's location
        self.keep_until = 0.0
        self.stop: DeactivationReason | None = None
        self.first_turn_due = False  # `stop` was asked for before the call that woke it has run
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.extensions: dict[str, Any] = {}

    @property
    def is_needed(self) -> bool:
        """False once nothing is in it, so that it can be dropped."""
        return bool(
            self.waiting
            or self.readers
            or self.interleaving
            or self.is_awaited
            or self.keep_until
            or self.stop
            or self.tasks
            or self.extensions
        )

    def put(
        self, entry: WaitingEntry, where: object = "", account: WaitingBytes | None = None
    ) -> None:
        """Queue an entry. Raises Overloaded if the bytes that it holds are too many.

        Args:
            where: shown in the error.
            account: counts the bytes.
        """
        if entry.size_bytes and account is not None:
            account.take(where, entry.size_bytes, self.waiting_bytes)
            self.account = account
            self.waiting_bytes += entry.size_bytes
        self.waiting.append(entry)
        self.interleaving_waiting += entry.request.is_interleaving

    def own(self, task: asyncio.Task[Any]) -> None:
        """The task belongs to the activation, until it ends."""
        self.tasks[task] = None
        task.add_done_callback(lambda ended: self.tasks.pop(ended, None))

    async def end_tasks(self, within_s: float) -> int:
        """Tell the activation's tasks to end, wait for them; returns how many run all the same."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return sum(not task.done() for task in tasks)

    def release(self, entry: WaitingEntry) -> None:
        """The entry waits no longer, so its bytes count no longer; repeatable."""
        size, entry.size_bytes = entry.size_bytes, 0
        if self.account is not None:
            self.waiting_bytes -= size
            self.account.give_back(size)

    def turn_away(self, entry: WaitingEntry) -> None:
        """The activation is gone: send the entry on, or fail it as those that waited."""
        if isinstance(self.gone, str):
            entry.on_moved(self.gone)
        else:
            entry.fail(self.gone)

    def take_first(self) -> WaitingEntry:
        """Take the oldest entry, withdrawn or not."""
        entry = self.waiting.popleft()
        if entry.is_withdrawn:
            self.withdrawn -= 1
        else:
            self.interleaving_waiting -= entry.request.is_interleaving
        return entry

    def put_back(self, entries: list[WaitingEntry]) -> None:
        """Put entries that were taken back to the front, in their order."""
        self.waiting.extendleft(reversed(entries))
        self.interleaving_waiting += sum(entry.request.is_interleaving for entry in entries)

    def withdraw(self, entry: WaitingEntry) -> None:
        """Forget a waiting entry: marked now, dropped when it is met or when half are marked."""
        if entry.is_withdrawn:
            return
        entry.is_withdrawn = True
        self.withdrawn += 1
        self.release(entry)
        self.interleaving_waiting -= entry.request.is_interleaving
        if self.withdrawn * 2 > len(self.waiting):
            self.waiting = deque(e for e in self.waiting if not e.is_withdrawn)
            self.withdrawn = 0

    def take_all(self) -> Iterator[WaitingEntry]:
        """Empty the mailbox, in order."""
        waiting, self.waiting, self.withdrawn = self.waiting, deque(), 0
        self.interleaving_waiting = 0
        entries = [entry for entry in waiting if not entry.is_withdrawn]
        for entry in entries:
            self.release(entry)
        return iter(entries)
