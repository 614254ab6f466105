"""The turn rule of one activation: which request runs and which waits. Pure.

`TurnRule` uses no I/O, clock or futures. Each method is an event. An event that admits entries
yields them one by one; the driver (`activation`) grants each turn and sends back whether the
request could still start.

The order is that of Orleans: a request starts if the activation is idle, if it always interleaves,
if it is read-only and only read-only turns run, or if every turn that blocks it waits for it in an
open section. Otherwise it waits. The scan of waiting entries
continues past blocked ones.

Invariants:

- `is_gated` is False exactly if an exclusive turn may start without further checks.
- A turn is entered once and left once.
- Between two events, no request waits that could start.
- No turn starts before `VALID` or after a stop was requested. The exception is the first turn of an
  activation that requested its own end while it started.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum

from millstream.runtime.definition.grain import DeactivationReason

from .flows import is_in_section
from .mailbox import Mailbox, WaitingEntry
from .request import Request

__all__ = ["ActivationState", "TurnRule"]


class ActivationState(Enum):
    """The states of an activation's life, in order."""

    CREATING = 0
    REGISTERING = 1
    ACTIVATING = 2
    VALID = 3
    DEACTIVATING = 4
    GONE = 5


ASKED_BY_GRAIN = (DeactivationReason.REQUESTED, DeactivationReason.MIGRATING)
CREATING = ActivationState.CREATING
VALID = ActivationState.VALID
GONE = ActivationState.GONE
Admissions = Generator[WaitingEntry, bool, None]
"""Yields admitted entries one at a time. The driver sends back whether the request could start."""


class TurnRule:
    """Decides which request runs and which waits.

    The subclass that drives the rule sets the fields: `is_gated` True, `state` CREATING, and no
    running or waiting request.
    """

    __slots__ = ("is_gated", "is_used", "mailbox", "running", "state")
    is_gated: bool
    is_used: bool
    mailbox: Mailbox | None
    running: Request | None
    state: ActivationState

    # -- questions

    @property
    def is_gone(self) -> bool:
        """True once the activation accepts no more requests."""
        return self.state is GONE

    @property
    def is_idle(self) -> bool:
        """True if no turn runs and no request waits."""
        box = self.mailbox
        return self.running is None and (
            box is None or not (box.readers or box.interleaving or box.waiting)
        )

    @property
    def end_due(self) -> DeactivationReason | None:
        """The reason why the activation must end now, or None if it need not or turns still run."""
        box = self.mailbox
        if box is None or box.stop is None or self.state is not VALID or self.running is not None:
            return None
        is_owing = box.first_turn_due and box.is_awaited
        return None if box.readers or box.interleaving or is_owing else box.stop

    def turns(self) -> list[Request]:
        """Return every running turn."""
        interleaving = [] if self.mailbox is None else list(self.mailbox.interleaving)
        return [*self.blocking(), *interleaving]

    def blocking(self) -> list[Request]:
        """Return the running turns that block exclusive requests."""
        readers = [] if self.mailbox is None else list(self.mailbox.readers)
        return readers if self.running is None else [self.running, *readers]

    def may_start(self, request: Request) -> bool:
        """Apply the rule to a request that waits or arrives."""
        box = self.mailbox
        if self.state is not VALID or (box is not None and box.stop and not box.first_turn_due):
            return False
        if request.is_interleaving:
            return True
        if self.running is not None:
            return is_in_section(request, self.running)
        if box is None or not box.readers or request.is_read:
            return True
        return all(is_in_section(request, reader) for reader in box.readers)

    # -- events

    def try_enter(self, request: Request) -> bool:
        """Start the turn of an arriving request, or return False if it has to wait.

        No waiting request could start at this moment, so the arriving one overtakes none.
        """
        if not self.is_gated and not (request.is_interleaving or request.is_read):
            request.activation = self  # idle without further checks: same as `enter`
            self.is_used = True
            self.running = request
            self.is_gated = True
            return True
        if not self.may_start(request):
            return False
        self.enter(request)
        return True

    def enter(self, request: Request) -> None:
        """Start the turn of a request. Life-cycle hooks enter in any state."""
        request.activation = self
        if request.is_use:
            self.is_used = True
        if self.running is not None and not request.is_interleaving:
            assert is_in_section(request, self.running), f"{self}: two exclusive turns"
            request.is_interleaving = True
        if request.is_interleaving:
            self.ensure_mailbox().interleaving[request] = None
        elif request.is_read:
            self.ensure_mailbox().readers.append(request)
        else:
            self.running = request
        self.is_gated = True

    def withdraw(self, entry: WaitingEntry) -> None:
        """Remove the entry of a caller that gave up."""
        if self.mailbox is not None:
            self.mailbox.withdraw(entry)

    def left(self, request: Request) -> Admissions | None:
        """End a turn, and admit the next entries. Returns what `admit` does."""
        self._remove(request)
        if self.mailbox is not None and self.state is VALID:  # in other states it was a hook
            self.mailbox.first_turn_due = False
        return self.admit()

    def hand_over(self, request: Request) -> WaitingEntry | None:
        """End an exclusive turn and return the next exclusive entry, if it may start by all rules.

        This is a fast path for `left`. If the result is None, nothing has changed: call `left`.
        """
        box = self.mailbox
        if box is None or self.running is not request or self.state is not VALID:
            return None
        if not box.waiting or box.stop is not None or box.interleaving_waiting:
            return None
        entry = box.waiting[0]
        if entry.is_withdrawn or entry.request.is_read:
            return None
        box.waiting.popleft()
        if entry.size_bytes:
            box.release(entry)
        entry.request.activation = self
        self.running = entry.request
        return entry

    def refuse(self, request: Request) -> Admissions | None:
        """Take the activation back from a caller that has gone, and admit the next entries. Returns
        what `admit` does."""
        request.activation = None
        self._remove(request)
        return self.admit()

    def _remove(self, request: Request) -> None:
        if self.running is request:
            self.running = None
            return
        assert self.mailbox is not None
        if request.is_interleaving:
            del self.mailbox.interleaving[request]
        else:
            self.mailbox.readers.remove(request)

    def become(self, state: ActivationState) -> Admissions | None:
        """Enter a later state, and admit the entries that may start in it. Returns what `admit`
        does."""
        assert state.value > self.state.value, f"{self}: {self.state} -> {state}"
        self.state = state
        return self.admit()

    def stop(self, reason: DeactivationReason) -> None:
        """Start no further turns, and end once the running turns have ended.

        If the activation requests this itself while it starts, the call that woke it still runs.
        """
        if self.state.value >= ActivationState.DEACTIVATING.value:
            return
        box = self.ensure_mailbox()
        if reason not in ASKED_BY_GRAIN:
            box.first_turn_due = False
        elif box.stop is None:
            box.first_turn_due = self.state is not VALID
        else:
            return  # its end was requested before
        box.stop = reason
        self.regate()

    def await_callers(self, is_awaited: bool) -> None:
        """Set whether direct turns queue behind callers that wait for the grain's location."""
        if is_awaited or self.mailbox is not None:
            self.ensure_mailbox().is_awaited = is_awaited
            self.regate()

    def admit(self) -> Admissions | None:
        """Admit every waiting entry that may start, in order. Returns None if no entry waits."""
        box = self.mailbox
        if box is None or not box.waiting or self.state is not VALID:
            self.regate()
            return None
        return self._admit(box)

    def _admit(self, box: Mailbox) -> Admissions:
        kept: list[WaitingEntry] = []
        while box.waiting and (self.running is None or box.interleaving_waiting):
            entry = box.take_first()
            if entry.is_withdrawn:
                continue
            if not self.may_start(entry.request):
                kept.append(entry)
                continue
            self.enter(entry.request)
            box.release(entry)
            is_taken = yield entry
            if not is_taken:
                entry.request.activation = None
                self._remove(entry.request)
        if kept:
            box.put_back(kept)
        if self.running is None:  # otherwise it stays gated until the running turn leaves
            self.regate()

    def ensure_mailbox(self) -> Mailbox:
        """Return the mailbox, and create it if there is none.

        Code that changes a field which `regate` reads calls `regate` afterwards.
        """
        if self.mailbox is None:
            self.mailbox = Mailbox()
        return self.mailbox

    def regate(self) -> None:
        """Recompute `is_gated`, and drop a mailbox that is not needed."""
        box = self.mailbox
        if box is not None and not box.is_needed:
            box = self.mailbox = None
        is_open = self.state is VALID and self.running is None
        if box is not None:
            is_open = is_open and not (box.readers or box.waiting or box.stop or box.is_awaited)
        self.is_gated = not is_open

    def abandon(self) -> None:
        """Prevent all further direct turns, because the silo has ended."""
        self.state = GONE
        self.is_gated = True

    def check(self) -> None:
        """Assert the invariants."""
        box = self.mailbox
        assert self.running is None or not self.running.done
        assert self.is_gated or (self.state is VALID and self.running is None)
        if box is not None:
            assert all(not reader.done for reader in box.readers)
            assert all(not request.done for request in box.interleaving)
            waiting = [entry for entry in box.waiting if not entry.is_withdrawn]
            assert not any(self.may_start(entry.request) for entry in waiting)
            assert box.withdrawn == len(box.waiting) - len(waiting)
