"""One activation: it applies the turn rule, and serves the requests of its grain.

`Activation` grants turns to the entries that the rule admits. It also implements `Home` and
`StateOwner`, the interfaces for the grain and its states. `turn_rule` owns the rule, `catalog`
creates and ends activations, and `run` executes a turn.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from millstream.runtime.definition.grain import DeactivationReason, Runtime
from millstream.runtime.definition.headers import HeaderSet
from millstream.runtime.definition.names import grain_id
from millstream.runtime.definition.reminders import Reminders
from millstream.runtime.definition.timers import Timer, TimerSchedule
from millstream.runtime.errors import GrainError, NotInCluster, Overloaded
from millstream.runtime.text import show_text

from .flows import header_set_of, hide_sections, open_section
from .kind import GrainKind, Owner
from .mailbox import WaitingEntry
from .request import Request, live_request
from .turn_rule import CREATING, GONE, VALID, ActivationState, Admissions, TurnRule

__all__ = ["Activation", "ActivationState"]

T = TypeVar("T")

log = logging.getLogger("millstream.turns")


class Activation(TurnRule):
    """The one live instance of a grain in this silo."""

    __slots__ = ("grain", "id", "key", "kind", "version")

    def __init__(self, kind: GrainKind, key: str, activation_id: int) -> None:
        self.is_gated = True
        self.running = None
        self.mailbox = None
        self.state = CREATING
        self.is_used = True
        self.grain: Any = None
        self.kind = kind
        self.key = key
        self.version = 0
        self.id = activation_id

    def __str__(self) -> str:
        return show_text(f"{self.kind.name}/{self.key}")

    @property
    def owner(self) -> Owner:
        """The catalog that created this activation."""
        owner = self.kind.owner
        assert owner is not None
        return owner

    # -- driving the rule

    def queue(self, entry: WaitingEntry) -> None:
        """Queue a request that cannot start now. Raises Overloaded at a limit."""
        box, kind = self.ensure_mailbox(), self.kind
        if self.state is GONE:
            box.turn_away(entry)  # it ended after the caller found it
            return
        limit = kind.waiting_calls_max
        if len(box.waiting) - box.withdrawn >= limit:
            kind.waiting_bytes.refused += 1
            raise Overloaded(f"{self}: too many waiting requests", "waiting_calls_max", limit)
        box.put(entry, self, kind.waiting_bytes)

    def leave(self, request: Request) -> None:
        """End the turn of a request, and start the turns that may start now."""
        box = self.mailbox
        if box is None:  # only this request can be running: `left`, without its calls
            self.running = None
            self.is_gated = self.state is not VALID
            return
        is_kept = self.state is VALID and (box.extensions or box.is_kept)
        if is_kept and not (
            box.waiting or box.readers or box.interleaving or box.is_awaited or box.stop
        ):  # `left` has nothing else to do here either
            box.first_turn_due = self.is_gated = False
            self.running = None
            return
        entry = self.hand_over(request)
        if entry is not None:
            if not entry.grant():
                entry.is_withdrawn = True
                self._tell(self.refuse(entry.request))
            return
        admissions = self.left(request)
        if admissions is not None or (self.mailbox is not None and self.mailbox.stop is not None):
            self._tell(admissions)

    def go_on(self, state: ActivationState) -> None:
        """Enter a later state, and start the turns that may start in it."""
        self._tell(self.become(state))

    def end_soon(self, reason: DeactivationReason) -> None:
        """Stop this activation once no turn runs."""
        self.stop(reason)
        self._tell(None)

    def hold(self, is_held: bool) -> None:
        """Set whether direct turns have to wait, because callers wait for the grain's location."""
        self.await_callers(is_held)
        self._tell(None)

    def _tell(self, admissions: Admissions | None) -> None:
        entry = None if admissions is None else next(admissions, None)
        while admissions is not None and entry is not None:
            is_taken = entry.grant()
            if not is_taken:
                entry.is_withdrawn = True
            try:
                entry = admissions.send(is_taken)
            except StopIteration:
                break
        reason = self.end_due
        if reason is not None:
            self.owner.end(self, reason)

    # -- asked by the grain and its states (`Home`, `StateOwner`)

    @property
    def grain_id(self) -> str:
        """The exact `Type/key` of the grain."""
        return grain_id(self.kind.name, self.key)

    @property
    def runtime(self) -> Runtime:
        """The runtime that creates references."""
        return self.kind.runtime

    @property
    def silo(self) -> str:
        """The address of the silo."""
        return self.kind.silo

    def headers(self) -> HeaderSet:
        """Return the headers of the running turn, with those of the runtime."""
        return header_set_of(live_request())

    def section(self, is_open: bool) -> AbstractContextManager[None]:
        """Return a block in which calls of the running turn's chain come back, or may not."""
        request = live_request()
        if request is None or request.activation is not self:
            what = f"{'allow' if is_open else 'suppress'}_call_chain_reentrancy"
            raise NotInCluster(
                f"{self}: context.{what}() is for the code of a running turn: use it in a method "
                "of the grain"
            )
        return open_section(request, self.owner.new_id) if is_open else hide_sections(request)

    def end_when_idle(self) -> None:
        """Start no further turns, and end once the running turns have ended."""
        self.owner.deactivate(self, DeactivationReason.REQUESTED)

    def move_when_idle(self, to: str | None) -> None:
        """Start no further turns, and continue in another silo once the running ones have ended."""
        self.check_running()
        self.owner.move(self, to)

    def on_conflict(self) -> None:
        """End this activation, because a refused write shows that its state is outdated."""
        self.owner.deactivate(self, DeactivationReason.STATE_CONFLICT)

    def check_running(self) -> None:
        """Raise NotInCluster if the activation or its silo has ended."""
        if self.is_gone:
            raise NotInCluster(f"{self}: the activation has ended, so its state cannot be written")
        self.owner.check_running()

    def keep_alive(self, seconds: float, /) -> None:
        """Protect the activation from idle collection for `seconds` from now."""
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or math.isnan(seconds):
            raise TypeError(
                f"{self}: keep_alive({show_text(repr(seconds))}): pass a number of seconds"
            )
        self.ensure_mailbox().keep_until = asyncio.get_running_loop().time() + seconds

    def start_timer(
        self, method: Callable[[], Coroutine[Any, Any, None]], schedule: TimerSchedule, /
    ) -> Timer:
        """Start a timer that ends with the activation."""
        if self.state.value >= ActivationState.DEACTIVATING.value:
            raise NotInCluster(f"{self}: no timer can start, the activation is ending")
        return self.owner.start_timer(self, method, schedule)

    def open_reminders(self) -> Reminders:
        """Return the reminders of the grain."""
        return self.owner.open_reminders(self)

    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Start a task that is cancelled when the activation ends."""
        if self.is_gone:
            coro.close()
            raise NotInCluster(f"{self}: the activation has ended, so no task can start")
        if not asyncio.iscoroutine(coro):
            raise TypeError(f"create_task({coro!r}) needs a coroutine")
        task = asyncio.get_running_loop().create_task(contain(coro, self))
        task.add_done_callback(lambda _: coro.close())  # in case it was cancelled before it began
        self.ensure_mailbox().own(task)
        return task


async def contain(coro: Coroutine[Any, Any, T], activation: Activation) -> T:
    """Run a task of an activation. A SystemExit in it ends only this task."""
    try:
        return await coro
    except SystemExit as error:  # it would end the event loop, and with it the silo
        log.error("%s: a task of the activation raised SystemExit(%s)", activation, error)
        raise GrainError("SystemExit", f"{activation}: a task of the activation: {error}") from None
