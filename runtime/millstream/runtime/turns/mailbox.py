"""The mailbox of an activation: waiting requests, running readers, tasks and the requested end.

A `Mailbox` exists only while it is needed, so that an idle activation stays small. `WaitingBytes`
counts the bytes of encoded calls that wait in one process. `turn_rule` decides which request
starts.

Invariants:

- Entries are admitted in order of arrival, but an entry that may start overtakes entries that may
  not.
- A withdrawn entry is never granted.
- Bytes that were taken from the count are returned once, whatever happens to the call.
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
    size_bytes: int  # bytes of the encoded call that it holds; 0 if it holds none

    def grant(self) -> bool:
        """Give the activation to this request. Returns False if its caller has gone."""
        ...

    def on_moved(self, silo: str) -> None:
        """The activation ended. `silo` has the grain, or is empty if the location is unknown."""
        ...

    def fail(self, error: BaseException) -> None:
        """The activation could not start."""
        ...


class WaitingBytes:
    """Counter for the bytes of encoded calls that wait in one silo or client.

    A call that is larger than a limit may wait if no other call does.

    Args:
        each_max: the most bytes that may wait for one activation, or for the location of one grain.
        all_max: the most bytes that may wait in this process.

    Attributes:
        used: the bytes that wait now.
        refused: the calls that were refused since the start, because a mailbox was full.
    """

    __slots__ = ("_all_max", "_each_max", "refused", "used")

    def __init__(self, each_max: int, all_max: int) -> None:
        self._each_max = each_max
        self._all_max = all_max
        self.used = 0
        self.refused = 0

    def take(self, what: object, size_bytes: int, beside_bytes: int) -> None:
        """Count the bytes of a call that is going to wait. Raises Overloaded at a limit.

        Args:
            what: the place where the call will wait, for the error text.
            size_bytes: the bytes of the call.
            beside_bytes: the bytes that already wait there.
        """
        if size_bytes and beside_bytes and beside_bytes + size_bytes > self._each_max:
            self.refused += 1
            fact = f"{what}: {beside_bytes} bytes of calls wait, no room for {size_bytes} more"
            raise Overloaded(fact, "waiting_bytes_max", self._each_max)
        if size_bytes and self.used and self.used + size_bytes > self._all_max:
            self.refused += 1
            fact = f"{what}: {self.used} bytes of calls wait in this process"
            fact = f"{fact}, no room for {size_bytes} more"
            raise Overloaded(fact, "silo_waiting_bytes_max", self._all_max)
        self.used += size_bytes

    def give_back(self, size_bytes: int) -> None:
        """Subtract the bytes of a call that no longer waits."""
        self.used -= size_bytes


class Mailbox:
    """The mutable state that an activation needs beyond one plain turn."""

    __slots__ = (
        "account",
        "extensions",
        "first_turn_due",
        "gone",
        "interleaving",
        "interleaving_waiting",
        "is_awaited",
        "is_kept",
        "keep_until",
        "move_to",
        "readers",
        "stop",
        "tasks",
        "waiting",
        "waiting_bytes",
        "wanted_version",
        "withdrawn",
    )

    def __init__(self) -> None:
        self.waiting: deque[WaitingEntry] = deque()
        self.withdrawn = 0
        self.waiting_bytes = 0  # of waiting entries that are not withdrawn
        self.account: WaitingBytes | None = None  # counts these bytes; None before the first
        self.gone: str | Exception = ""  # of an ended activation: the new silo or the error
        self.readers: list[Request] = []
        self.interleaving: dict[Request, None] = {}  # running turns
        self.interleaving_waiting = 0
        self.is_awaited = False  # callers wait for the grain's location
        self.is_kept = False  # the mailbox of a stateless worker: see `WorkerActivation`
        self.keep_until = 0.0
        self.move_to: str | None = None  # its next silo: "" is any; None: it does not move
        self.wanted_version = 0  # the highest version that a call wants and this silo lacks
        self.stop: DeactivationReason | None = None
        self.first_turn_due = False  # the end was requested before the first call has run
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.extensions: dict[str, Any] = {}

    @property
    def is_needed(self) -> bool:
        """False once the mailbox is empty and can be dropped."""
        return bool(
            self.waiting
            or self.readers
            or self.interleaving
            or self.is_awaited
            or self.is_kept
            or self.keep_until
            or self.stop
            or self.tasks
            or self.extensions
        )

    def put(
        self, entry: WaitingEntry, where: object = "", account: WaitingBytes | None = None
    ) -> None:
        """Queue an entry. Raises Overloaded if the waiting bytes exceed a limit.

        Args:
            where: the activation, for the error text.
            account: counts the bytes.
        """
        if entry.size_bytes and account is not None:
            account.take(where, entry.size_bytes, self.waiting_bytes)
            self.account = account
            self.waiting_bytes += entry.size_bytes
        self.waiting.append(entry)
        self.interleaving_waiting += entry.request.is_interleaving

    def own(self, task: asyncio.Task[Any]) -> None:
        """Keep a task of the activation until it ends."""
        self.tasks[task] = None
        task.add_done_callback(lambda ended: self.tasks.pop(ended, None))

    async def end_tasks(self, within_s: float) -> int:
        """Cancel the activation's tasks and wait for them. Returns the number that still runs."""
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return sum(not task.done() for task in tasks)

    def release(self, entry: WaitingEntry) -> None:
        """Stop counting the bytes of an entry that no longer waits. Repeatable."""
        size, entry.size_bytes = entry.size_bytes, 0
        if self.account is not None:
            self.waiting_bytes -= size
            self.account.give_back(size)

    def turn_away(self, entry: WaitingEntry) -> None:
        """Send an entry on, or fail it like the earlier ones, because the activation is gone."""
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
        """Mark a waiting entry as withdrawn.

        It is removed when it is reached, or when more than half of the entries are marked.
        """
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
        """Empty the mailbox and return its entries in order."""
        waiting, self.waiting, self.withdrawn = self.waiting, deque(), 0
        self.interleaving_waiting = 0
        entries = [entry for entry in waiting if not entry.is_withdrawn]
        for entry in entries:
            self.release(entry)
        return iter(entries)
