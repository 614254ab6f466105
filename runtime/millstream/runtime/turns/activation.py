"""One activation: its state and the turn rule. No I/O, no clock.

Owns: which request runs now and which waits. Not: creating and ending activations (`catalog`),
running a turn (`stubs`, `turns`). Invariants: `gate` is 0 exactly when an exclusive turn may start
without asking further; a turn is entered once and left once; nothing starts before `valid` or
after a stop was asked for, save the one turn that is owed to the call that woke the grain. The
order of the rule is Orleans': idle, always-interleave, read-only with read-only, wait; the scan
goes on past blocked entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

from millstream.runtime.definition.grain import DeactivationReason, Runtime
from millstream.runtime.definition.names import grain_id
from millstream.runtime.errors import NotInCluster, Overloaded
from millstream.runtime.text import shown

from .mailbox import Mailbox, WaitingEntry
from .request import live_parent

if TYPE_CHECKING:
    from .catalog import GrainTable
    from .request import Request

__all__ = ["Activation", "ActivationState"]

T = TypeVar("T")


class ActivationState(Enum):
    """The life of an activation, one way."""

    CREATING = 0
    REGISTERING = 1
    ACTIVATING = 2
    VALID = 3
    DEACTIVATING = 4
    GONE = 5


VALID = ActivationState.VALID
GONE = ActivationState.GONE


class Activation:
    """The one live instance of a grain in this silo."""

    __slots__ = (
        "gate",
        "grain",
        "id",
        "is_used",
        "key",
        "mailbox",
        "running",
        "state",
        "table",
        "version",
    )

    def __init__(self, table: GrainTable, key: str, activation_id: int) -> None:
        self.gate = 1
        self.running: Request | None = None
        self.mailbox: Mailbox | None = None
        self.grain: Any = None
        self.table = table
        self.key = key
        self.state = ActivationState.CREATING
        self.is_used = True
        self.version = 0
        self.id = activation_id

    def __str__(self) -> str:
        return shown(f"{self.table.name}/{self.key}")

    @property
    def is_gone(self) -> bool:
        """True once the activation no longer takes anything."""
        return self.state is GONE

    @property
    def is_idle(self) -> bool:
        """No turn runs and none waits."""
        box = self.mailbox
        return self.running is None and (
            box is None or not (box.readers or box.beside or box.waiting)
        )

    def ensure_mailbox(self) -> Mailbox:
        """The mailbox, made if there is none; its owner calls `regate()` after changing it."""
        if self.mailbox is None:
            self.mailbox = Mailbox()
        return self.mailbox

    def become(self, state: ActivationState) -> None:
        """Go on to a later state, and let in what may start in it."""
        assert state.value > self.state.value, f"{self}: {self.state} -> {state}"
        self.state = state
        self.admit()

    def may_start(self, request: Request) -> bool:
        """The turn rule, for a request that waits or arrives."""
        box = self.mailbox
        if self.state is not VALID or (box is not None and box.stop and not box.owes_turn):
            return False
        if request.is_interleaving:
            return True
        if self.running is not None:
            return False
        return box is None or not box.readers or request.is_read

    def enter(self, request: Request) -> None:
        """Record that the request's turn runs."""
        request.activation = self
        self.is_used = True
        if request.is_interleaving:
            self.ensure_mailbox().beside[request] = None
        elif request.is_read:
            self.ensure_mailbox().readers.append(request)
        else:
            assert self.running is None, f"{self}: two exclusive turns"
            self.running = request
        self.gate = 1

    def leave(self, request: Request) -> None:
        """Record that the turn ended, and hand the activation on."""
        if self.running is request:
            self.running = None
            if self.mailbox is None:
                self.gate = 0 if self.state is VALID else 1
                return
        else:
            assert self.mailbox is not None
            if request.is_interleaving:
                del self.mailbox.beside[request]
            else:
                self.mailbox.readers.remove(request)
        self.mailbox.owes_turn = False
        self.admit()

    def turns(self) -> list[Request]:
        """Every turn that runs."""
        beside = [] if self.mailbox is None else list(self.mailbox.beside)
        return [*self.blocking(), *beside]

    def blocking(self) -> list[Request]:
        """The turns that keep exclusive requests waiting."""
        readers = [] if self.mailbox is None else list(self.mailbox.readers)
        return readers if self.running is None else [self.running, *readers]

    def try_enter(self, request: Request) -> bool:
        """Start the request now, if it may and nobody in line could start as well."""
        if self.may_start(request) and (self.mailbox is None or not self._has_line()):
            self.enter(request)
            return True
        return False

    def queue(self, entry: WaitingEntry) -> None:
        """Let a request that cannot start now wait in line. Raises Overloaded at the limit."""
        box = self.ensure_mailbox()
        if self.state is GONE:
            box.turn_away(entry)  # it ended after the caller had found it
            return
        limit = self.table.host.options.waiting_calls_max
        if len(box.waiting) - box.withdrawn >= limit:
            raise Overloaded(f"{self}: too many waiting requests", "waiting_calls_max", limit)
        box.put(entry)
        self.gate = 1

    def _has_line(self) -> bool:
        """An entry waits that could start."""
        assert self.mailbox is not None
        return any(
            not entry.is_withdrawn and self.may_start(entry.request)
            for entry in self.mailbox.waiting
        )

    def admit(self) -> None:
        """Grant every waiting entry that may start, in order."""
        box = self.mailbox
        if box is not None and box.waiting and self.state is VALID:
            self._grant(box)
            if self.running is not None:
                return  # the gate is closed, and whoever leaves comes here again
        self.regate()

    def _grant(self, box: Mailbox) -> None:
        kept: list[WaitingEntry] = []
        while box.waiting:  # another deque, perhaps, after a withdrawal
            if self.running is not None and not box.interleaving_waiting:
                break
            entry = box.take_first()
            if entry.is_withdrawn:
                continue
            if not self.may_start(entry.request):
                kept.append(entry)
            else:
                self.enter(entry.request)
                if not entry.grant():
                    entry.is_withdrawn = True  # it is out of the line already
                    self._take_back(entry.request)
        if kept:
            box.put_back(kept)

    def _take_back(self, request: Request) -> None:
        """Undo `enter` for an entry whose caller is gone."""
        assert self.mailbox is not None
        request.activation = None
        if self.running is request:
            self.running = None
        elif request.is_interleaving:
            del self.mailbox.beside[request]
        else:
            self.mailbox.readers.remove(request)

    def hold(self, is_held: bool) -> None:
        """While callers stand in line for the grain's place, direct turns wait behind them."""
        if is_held or self.mailbox is not None:
            self.ensure_mailbox().is_held = is_held
            self.regate()

    def regate(self) -> None:
        """Compute `gate` anew; drop a mailbox that is not needed; start the end if it is due."""
        box = self.mailbox
        if box is not None and not box.is_needed:
            box = self.mailbox = None
        is_open = self.state is VALID and self.running is None
        if box is not None:
            is_open = is_open and not (box.readers or box.waiting or box.stop or box.is_held)
            if box.stop is not None and self.state is VALID and self._is_done(box):
                self.table.host.catalog.end(self, box.stop)
        self.gate = 0 if is_open else 1

    def _is_done(self, box: Mailbox) -> bool:
        """No turn runs, and nobody stands in line for one that is owed."""
        is_owing = box.owes_turn and box.is_held
        return not (self.running is not None or box.readers or box.beside or is_owing)

    # -- asked by the grain and its states (`Home`, `StateOwner`)

    @property
    def grain_id(self) -> str:
        """`Type/key`, exactly."""
        return grain_id(self.table.name, self.key)

    @property
    def runtime(self) -> Runtime:
        """What gives references."""
        runtime: Runtime = self.table.host
        return runtime

    @property
    def silo(self) -> str:
        """Address of the silo."""
        return str(self.table.host.address)

    def headers(self) -> Mapping[str, str]:
        """Headers of the running turn."""
        request = live_parent()
        return {} if request is None or request.headers is None else dict(request.headers)

    def end_when_idle(self) -> None:
        """Take no further turns, and end when the running ones have ended."""
        self.table.host.catalog.deactivate(self, DeactivationReason.REQUESTED)

    def conflicted(self) -> None:
        """A write was refused: what is in memory is not what is stored."""
        self.table.host.catalog.deactivate(self, DeactivationReason.STATE_CONFLICT)

    def check_running(self) -> None:
        """Raise NotInCluster once the activation or its silo has ended."""
        if self.is_gone:
            raise NotInCluster(f"{self}: the activation has ended, its state writes no more")
        self.table.host.check_running()

    def keep_alive(self, seconds: float, /) -> None:
        """Not idle before `seconds` from now."""
        self.ensure_mailbox().keep_until = self.table.host.loop.time() + seconds

    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Start a task that is cancelled when the activation ends."""
        if self.is_gone:
            coro.close()
            raise NotInCluster(f"{self}: no task can start, the activation has ended")
        task = asyncio.get_running_loop().create_task(coro)
        self.ensure_mailbox().own(task)
        return task

    # -- the end

    def abandon(self) -> None:
        """The silo is gone: no direct turn may start any more."""
        self.state = GONE
        self.gate = 1

    def check(self) -> None:
        """Assert the invariants."""
        box = self.mailbox
        assert self.running is None or not self.running.done
        assert self.gate or (self.state is VALID and self.running is None)
        assert box is None or all(not reader.done for reader in box.readers)
        assert box is None or all(not beside.done for beside in box.beside)
