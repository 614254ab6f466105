"""What an activation has besides one plain turn: waiting requests, readers, tasks, its end.

Owns: `Mailbox`, made only while it is needed, so that an idle activation stays small. Not: the
turn rule itself (`turn_rule`). Invariants: entries are admitted in arrival order,
except that one which may start overtakes those that may not; a withdrawn entry is never granted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from millstream.runtime.definition.grain import DeactivationReason

    from .request import Request

__all__ = ["Mailbox", "WaitingEntry"]


class WaitingEntry(Protocol):
    """A request that waits for an activation."""

    request: Request
    is_withdrawn: bool

    def grant(self) -> bool:
        """The activation is yours; False if nobody is there any more to take it."""
        ...

    def moved(self, silo: str) -> None:
        """The activation ended; `silo` is where the grain is now, or empty."""
        ...

    def fail(self, error: BaseException) -> None:
        """The activation could not start."""
        ...


class Mailbox:
    """Side object of one activation."""

    __slots__ = (
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
        "withdrawn",
    )

    def __init__(self) -> None:
        self.waiting: deque[WaitingEntry] = deque()
        self.withdrawn = 0
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

    def put(self, entry: WaitingEntry) -> None:
        """Queue an entry."""
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

    def turn_away(self, entry: WaitingEntry) -> None:
        """The activation is gone: send the entry on, or fail it as those that waited."""
        if isinstance(self.gone, str):
            entry.moved(self.gone)
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
        self.interleaving_waiting -= entry.request.is_interleaving
        if self.withdrawn * 2 > len(self.waiting):
            self.waiting = deque(e for e in self.waiting if not e.is_withdrawn)
            self.withdrawn = 0

    def take_all(self) -> Iterator[WaitingEntry]:
        """Empty the mailbox, in order."""
        waiting, self.waiting, self.withdrawn = self.waiting, deque(), 0
        self.interleaving_waiting = 0
        return (entry for entry in waiting if not entry.is_withdrawn)
