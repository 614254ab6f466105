"""The turn rule of one activation: who runs and who waits. Pure: no I/O, no clock, no futures.

Owns: `TurnRule`. Each method is an event; those that let somebody in give the entries one by one,
and whoever drives the rule tells them and answers whether they took it (`activation`). Invariants:
`is_gated` is False exactly when an exclusive turn may start without asking further; a turn is
entered once and left once; between two events nobody waits who could start; nothing starts before
`valid`, or after a stop was asked for, save the first turn of an activation that asked for its own
end while it started. The order is Orleans': idle, always-interleave, read-only with read-only,
wait; the scan goes on past blocked entries.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum

from millstream.runtime.definition.grain import DeactivationReason

from .mailbox import Mailbox, WaitingEntry
from .request import Request

__all__ = ["ActivationState", "TurnRule"]


class ActivationState(Enum):
    """The life of an activation, one way."""

    CREATING = 0
    REGISTERING = 1
    ACTIVATING = 2
    VALID = 3
    DEACTIVATING = 4
    GONE = 5


CREATING = ActivationState.CREATING
VALID = ActivationState.VALID
GONE = ActivationState.GONE
Admissions = Generator[WaitingEntry, bool, None]
"""Gives who is let in, one by one; is sent whether he is still there to take it."""


class TurnRule:
    """Which request runs now, and which waits.

    The class that drives it sets the fields: `is_gated`, `state` CREATING, nothing runs or waits.
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
        """True once the activation no longer takes anything."""
        return self.state is GONE

    @property
    def is_idle(self) -> bool:
        """No turn runs and none waits."""
        box = self.mailbox
        return self.running is None and (
            box is None or not (box.readers or box.interleaving or box.waiting)
        )

    @property
    def end_due(self) -> DeactivationReason | None:
        """Why the activation has to end now; None while it has not to, or turns run."""
        box = self.mailbox
        if box is None or box.stop is None or self.state is not VALID or self.running is not None:
            return None
        is_owing = box.first_turn_due and box.is_awaited
        return None if box.readers or box.interleaving or is_owing else box.stop

    def turns(self) -> list[Request]:
        """Every turn that runs."""
        interleaving = [] if self.mailbox is None else list(self.mailbox.interleaving)
        return [*self.blocking(), *interleaving]

    def blocking(self) -> list[Request]:
        """The turns that keep exclusive requests waiting."""
        readers = [] if self.mailbox is None else list(self.mailbox.readers)
        return readers if self.running is None else [self.running, *readers]

    def may_start(self, request: Request) -> bool:
        """The rule itself, for a request that waits or arrives."""
        box = self.mailbox
        if self.state is not VALID or (box is not None and box.stop and not box.first_turn_due):
            return False
        if request.is_interleaving:
            return True
        if self.running is not None:
            return False
        return box is None or not box.readers or request.is_read

    # -- events

    def try_enter(self, request: Request) -> bool:
        """A request arrives; False: it has to wait. Nobody who waits could start as well."""
        if not self.is_gated and not (request.is_interleaving or request.is_read):
            request.activation = self  # idle, and nothing to ask: as `enter`
            self.is_used = True
            self.running = request
            self.is_gated = True
            return True
        if not self.may_start(request):
            return False
        self.enter(request)
        return True

    def enter(self, request: Request) -> None:
        """The request's turn runs from now on (also a life-cycle hook, in any state)."""
        request.activation = self
        self.is_used = True
        if request.is_interleaving:
            self.ensure_mailbox().interleaving[request] = None
        elif request.is_read:
            self.ensure_mailbox().readers.append(request)
        else:
            assert self.running is None, f"{self}: two exclusive turns"
            self.running = request
        self.is_gated = True

    def withdraw(self, entry: WaitingEntry) -> None:
        """Who waited gave up."""
        if self.mailbox is not None:
            self.mailbox.withdraw(entry)

    def left(self, request: Request) -> Admissions | None:
        """A turn ended."""
        self._remove(request)
        if self.mailbox is not None and self.state is VALID:  # else it was a hook
            self.mailbox.first_turn_due = False
        return self.admit()

    def hand_over(self, request: Request) -> WaitingEntry | None:
        """A turn ended; the first that waits, if he is next by all rules. None: ask `left`.

        As `left` where exclusive requests wait for an exclusive one, in one step.
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
        """Who was handed the activation is gone: take it back, and let in who comes next."""
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
        """Go on to a later state, and let in what may start in it."""
        assert state.value > self.state.value, f"{self}: {self.state} -> {state}"
        self.state = state
        return self.admit()

    def stop(self, reason: DeactivationReason) -> None:
        """Take no further turns, and end when the running ones have ended.

        Asked for by the activation itself while it starts, the call that woke it still runs.
        """
        if self.state.value >= ActivationState.DEACTIVATING.value:
            return
        box = self.ensure_mailbox()
        if reason is not DeactivationReason.REQUESTED:
            box.first_turn_due = False
        elif box.stop is None:
            box.first_turn_due = self.state is not VALID
        else:
            return  # its end was asked for already
        box.stop = reason
        self.regate()

    def await_callers(self, is_awaited: bool) -> None:
        """While callers wait for the grain's location, direct turns wait behind them."""
        if is_awaited or self.mailbox is not None:
            self.ensure_mailbox().is_awaited = is_awaited
            self.regate()

    def admit(self) -> Admissions | None:
        """Let in every waiting entry that may start, in order; None: nobody waits."""
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
        if self.running is None:  # else it is gated, and whoever leaves comes here again
            self.regate()

    def ensure_mailbox(self) -> Mailbox:
        """The mailbox, made if there is none; who changes what `regate` reads calls that."""
        if self.mailbox is None:
            self.mailbox = Mailbox()
        return self.mailbox

    def regate(self) -> None:
        """Compute `is_gated` anew, and drop a mailbox that is not needed."""
        box = self.mailbox
        if box is not None and not box.is_needed:
            box = self.mailbox = None
        is_open = self.state is VALID and self.running is None
        if box is not None:
            is_open = is_open and not (box.readers or box.waiting or box.stop or box.is_awaited)
        self.is_gated = not is_open

    def abandon(self) -> None:
        """The silo is gone: no direct turn may start any more."""
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
