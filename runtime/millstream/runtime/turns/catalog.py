"""All activations of this silo: finding, creating and ending them.

`Catalog` owns the life of each activation: creating, registering, activating, valid, deactivating,
gone. `turn_rule` decides which turn runs, and a `Registrar` knows the activations of other silos.

Invariants:

- An activation is registered before user code runs in it, except for a stateless worker.
- An activation that loses a registration race runs no user code. Its waiting requests are sent to
  the winner.
- `on_activate` and `on_deactivate` never overlap a turn.
- If an activation fails to start, exactly the requests that wait for it fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

from millstream.runtime.definition.grain import (
    DeactivationReason,
    Ended,
    construct,
    end_life,
    states_of,
)
from millstream.runtime.definition.names import row_key
from millstream.runtime.definition.reminders import REMINDERS, Reminders
from millstream.runtime.definition.state import State
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.definition.streamed_method import RESULTS
from millstream.runtime.definition.timers import Timer, TimerSchedule
from millstream.runtime.errors import (
    ActivationTimeout,
    CallTimeout,
    ConfigError,
    GrainError,
    NotHosted,
    NotInCluster,
    Rejected,
    SiloUnavailable,
    StateTooNew,
)
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.tasks import Tasks

from .activation import Activation, ActivationState
from .kind import GrainKind
from .package import open_package, pack
from .request import RUNTIME_TASK, Request, cancel_turn
from .run import Turns
from .timers import Timers, make_tick
from .turn_rule import ASKED_BY_GRAIN
from .workers import ActivationTable, WorkerTable

__all__ = ["Catalog", "Former", "Mover", "Registrar"]

log = logging.getLogger("millstream.catalog")

HOOK_END_S = 1.0
"""Seconds that a life-cycle step may take to end after its deadline has cancelled it."""
MOVED_PART = 0.8
"""The part of the time of a stop during which activations are still sent to other silos."""
MOVED_AT_STOP_MAX = 10_000
"""Activations that a stopping silo tries to move. Calls of the others do not wait for a move."""
UNMOVED = (DeactivationReason.STATE_CONFLICT, DeactivationReason.DUPLICATE)
"""Reasons to end an activation whose states in memory are outdated."""
FORCED_ITERATIONS = 10  # iterations of the event loop that cancelled turns get to unwind
DRAIN_LOOK_S = 0.01


class Registrar(Protocol):
    """The directory of grains, which is asked before user code runs."""

    def register_now(self, activation: Activation, /) -> bool:
        """Register the activation without waiting, or return False if that is impossible."""
        ...

    async def register(self, activation: Activation, former: Former | None = None, /) -> str | None:
        """Register the activation, in place of a former one if it is given. Returns None, or the
        silo that has the grain, or "" if no silo has the former activation.
        """
        ...

    async def unregister(self, activation: Activation, /) -> None:
        """Remove the directory entry of an activation that ends. Best effort: raises nothing."""


class Former(NamedTuple):
    """The activation in another silo that a new activation continues."""

    silo: str
    activation_id: int


class Mover(Protocol):
    """Sends activations to other silos."""

    until_s: float

    def may_move(self, activation: Activation, to: str | None, /) -> bool:
        """Return whether another silo is suitable. Raises ConfigError if `to` is not."""
        ...

    async def send(
        self, activation: Activation, to: str, pack: Callable[[], bytes | None], /
    ) -> str:
        """Send a package, once there is a place for it. Returns the new silo, or "" if the
        activation did not move."""
        ...

    def find_newer(self, kind: GrainKind, key: str, version: int, /) -> str:
        """Return another silo that hosts a version of the type or a later one, or ""."""
        ...

    def is_newer_changing(self, kind: GrainKind, version: int, /) -> bool:
        """Return whether a silo with a version of the type, or a later one, starts or stops."""
        ...


class Arrival(NamedTuple):
    """A package that has arrived. `registered` gets whether the directory has the activation."""

    former: Former
    package: bytes
    registered: asyncio.Future[bool]


class Catalog:
    """The activations of one silo.

    Args:
        silo: the address of the silo.
        store: returns the state store with a name. Raises ConfigError if there is none.
        learned: called with kind, key and silo when a registration is lost to that silo.
        kinds: the kinds that this silo hosts.

    `registrar` and `mover` are set before the first activation is requested. Tools and tests may
    set `on_started` and `on_ended`: between these two calls the grain's own code may run.
    """

    registrar: Registrar
    mover: Mover

    def __init__(
        self,
        silo: str,
        turns: Turns,
        tasks: Tasks,
        store: Callable[[str], StateStore],
        learned: Callable[[str, str, str], None],
        kinds: Iterable[GrainKind],
    ) -> None:
        self._silo = silo
        self._turns = turns
        self.new_id = turns.new_id
        self._tasks = tasks
        self._store = store
        self._learned = learned
        self._next_id = 0
        self._activations: dict[str, ActivationTable] = {
            kind.name: WorkerTable(kind.workers_max) for kind in kinds if kind.workers_max
        }
        self._timers = Timers(turns, tasks)
        self.is_accepting = True
        self._is_closed = False
        self.count = 0
        self.created = self.failed = 0  # activations since the start of the silo
        self.ended: dict[DeactivationReason, int] = {}
        self.on_started: Callable[[Activation], None] | None = None
        self.on_ended: Callable[[Activation], None] | None = None
        self.on_parcels: Callable[[State[Any]], None] | None = None  # for unsent parcels

    # -- finding

    def of(self, kind: str) -> ActivationTable:
        """Return the activations of a kind, by key.

        Stubs keep this table, so it is always the same object.
        """
        found = self._activations.get(kind)
        if found is None:
            found = self._activations[kind] = ActivationTable()
        return found

    def find(self, kind: str, key: str) -> Activation | None:
        """Return the activation of a grain in this silo for a call, or None.

        Returns None for a stateless worker if the call needs a new worker.
        """
        activations = self._activations.get(kind)
        return None if activations is None else activations.get(key)

    def all(self) -> list[Activation]:
        """Return every activation of this silo."""
        return [one for activations in self._activations.values() for one in activations.all()]

    def obtain(self, kind: GrainKind, key: str) -> Activation:
        """Return the activation of a grain, and create it if there is none.

        The activation may not be valid yet. Raises NotHosted if this silo does not host the type,
        and Rejected if the silo is stopping.
        """
        activations = self._activations.get(kind.name)
        if activations is None:
            activations = self.of(kind.name)
        activation = activations.get(key)
        if activation is not None:
            return activation
        if kind.hosted is None:
            raise NotHosted(f"{self._silo} does not host grain type {kind.name!r}")
        if not self.is_accepting:
            raise Rejected(f"{self._silo} is stopping: no new activation of {kind.name}")
        activation = self._make(kind, key)
        if kind.is_simple and (kind.workers_max or self.registrar.register_now(activation)):
            self._start_simple(activation)
        else:
            self._tasks.start(self._start(activation))
        return activation

    def _make(self, kind: GrainKind, key: str, former_id: int = 0) -> Activation:
        self._next_id = max(self._next_id, former_id) + 1  # a recovery prefers the higher id
        kind.owner = self
        activation = self.of(kind.name).add(kind, key, self._next_id)
        self.count += 1
        self.created += 1
        return activation

    async def receive(self, kind: GrainKind, key: str, former: Former, package: bytes) -> bool:
        """Continue an activation of another silo. Returns False if this silo cannot have it."""
        is_suitable = kind.hosted is not None and not kind.workers_max and self.is_accepting
        if not is_suitable or self.find(kind.name, key) is not None:
            return False
        registered: asyncio.Future[bool] = self._turns.loop.create_future()
        activation = self._make(kind, key, former.activation_id)
        self._tasks.start(self._start(activation, Arrival(former, package, registered)))
        return await registered

    # -- starting

    def _start_simple(self, activation: Activation) -> None:
        if self.on_started is not None:
            self.on_started(activation)
        try:
            assert activation.kind.hosted is not None
            activation.grain = construct(activation.kind.hosted.cls, activation, None)
        except BaseException as error:
            activation.state = ActivationState.ACTIVATING
            self._tasks.start(self._fail(activation, start_error(activation, error)))
            if isinstance(error, KeyboardInterrupt):
                raise
            return
        activation.state = ActivationState.VALID
        activation.is_gated = False
        self._timers.start_marked(activation)

    def _make_states(self, activation: Activation) -> dict[str, State[Any]]:
        kind = activation.kind
        assert kind.hosted is not None
        return {
            name: State(
                field,
                activation,
                self._store(field.store),
                row_key(kind.name, activation.key, field.name),
                kind.runtime,
                kind.hosted.upgrades[name],
            )
            for name, field in kind.hosted.states.items()
        }

    async def _start(self, activation: Activation, arrival: Arrival | None = None) -> None:
        try:
            activation.go_on(ActivationState.REGISTERING)
            is_listed = not activation.kind.workers_max  # no directory knows workers
            winner = await register(self.registrar, activation, arrival) if is_listed else None
            if winner is not None:
                self._retire(activation, winner)
                return
            if arrival is None and activation.ensure_mailbox().wanted_version:
                await self._give_way(activation)
                return
            activation.go_on(ActivationState.ACTIVATING)
            if self.on_started is not None:
                self.on_started(activation)
            spec = HookSpec("on_activate", self._turns.options.activation_timeout_s)
            await self._run_hook(
                activation,
                spec,
                partial(self._activate, activation, None if arrival is None else arrival.package),
                partial(self._fail, activation),
            )
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # its callers must not wait forever
            if self._is_closed:
                raise
            if not activation.is_gone:
                await self._fail(activation, start_error(activation, error))
            return
        if not activation.is_gone:  # gone: the start took too long and was abandoned
            activation.go_on(ActivationState.VALID)
            self._timers.start_marked(activation)

    async def _activate(
        self, activation: Activation, package: bytes | None, request: Request
    ) -> None:
        """Read the states and call the hook: all steps of a start that may take time."""
        hosted, states = activation.kind.hosted, self._make_states(activation)
        assert hosted is not None
        request.spec.label = "reading its states"
        if package is None:
            for state in states.values():  # before the class runs any code
                await read_state(activation, state, self.mover, self._turns.options)
            activation.grain = construct(hosted.cls, activation, states)
            if hosted.cls.__init__ is not object.__init__:
                for state in states.values():
                    state.restore()  # what `__init__` changed
        else:
            activation.grain = construct(hosted.cls, activation, states)
            known = self._rehydrate(activation, package)
            for name, state in states_of(activation.grain).items():
                if name not in known:
                    await read_state(activation, state, self.mover, self._turns.options)
        for state in states_of(activation.grain).values():
            if state.parcels.has_unsent and self.on_parcels is not None:
                self.on_parcels(state)
        request.spec.label = request.spec.name
        if activation.kind.has_activate_hook:
            await self._turns.begin(activation, request, ())
        if activation.kind.arms_reminders:
            request.spec.label = "storing its reminders"
            await self._turns.extension_of(activation, REMINDERS).reminders.arm_marked()

    def _rehydrate(self, activation: Activation, package: bytes) -> Collection[str]:
        """Open the package of a moved activation. Returns the states that came along; none if the
        grain must start anew."""
        try:
            return open_package(activation, self._turns, package)
        except Exception:
            text = "%s cannot continue where it was in another silo; it starts from its store"
            log.exception(text, activation)
            activation.ensure_mailbox().extensions.clear()
            hosted, states = activation.kind.hosted, self._make_states(activation)
            assert hosted is not None
            activation.grain = construct(hosted.cls, activation, states)
            return ()

    async def _run_hook(
        self,
        activation: Activation,
        spec: HookSpec,
        work: Callable[[Request], Coroutine[Any, Any, None]],
        go_on: Callable[[Exception], Coroutine[Any, Any, None]],
    ) -> None:
        """Run a life-cycle step of an activation as its only turn, in this task.

        Args:
            work: creates the step from its request.
            go_on: continues instead of this task if the step ignores its cancellation; gets the
                error of the step.
        """
        turns, task = self._turns, self._turns.find_task()
        deadline = turns.loop.time() + spec.timeout_s
        request = Request(None, task, None, spec, deadline, 1, RUNTIME_TASK)
        turns.deadlines.add(request, spec.timeout_s)
        activation.enter(request)
        leaving = partial(self._leave_behind, task, request, go_on)
        request.future = LateStep(request, partial(self._tasks.call_later, HOOK_END_S, leaving))
        await turns.run(request, work(request), turns.end_failed)

    def _leave_behind(
        self,
        task: asyncio.Task[Any],
        request: Request,
        go_on: Callable[[Exception], Coroutine[Any, Any, None]],
    ) -> None:
        """Abandon a life-cycle step that ignores its cancellation, and continue without it."""
        if request.done:
            return
        text = "%s: %s ignored its cancellation and still runs; it is no longer awaited"
        log.error(text, request.activation, request.spec.label)
        self._tasks.let_go(task)
        self._tasks.start(go_on(self._turns.make_timeout_error(request)))

    async def _fail(self, activation: Activation, error: Exception) -> None:
        if isinstance(error, StateTooNew) and find_newer(self.mover, activation):
            if self.on_ended is not None:
                self.on_ended(activation)
            await self._give_way(activation)
            return
        log.warning("%s could not start: %s: %s", activation, type(error).__name__, error)
        self.failed += 1
        if activation.state is ActivationState.ACTIVATING and self.on_ended is not None:
            self.on_ended(activation)
        self._turn_all_away(activation, error)
        await self.registrar.unregister(activation)

    def _retire(self, activation: Activation, winner: str) -> None:
        """Forward the waiting requests to another silo. No user code has run."""
        if winner:
            self._learned(activation.kind.name, activation.key, winner)
        self._turn_all_away(activation, winner)

    async def _give_way(self, activation: Activation) -> None:
        """Leave a grain to a silo with a later version of its type. No user code has run."""
        await self.registrar.unregister(activation)
        if not activation.is_gone:
            self._retire(activation, find_newer(self.mover, activation))

    def _turn_all_away(self, activation: Activation, gone: str | Exception) -> None:
        self._drop(activation)
        box = activation.ensure_mailbox()
        box.gone = gone
        for entry in box.take_all():
            box.turn_away(entry)

    def _drop(self, activation: Activation) -> None:
        self.of(activation.kind.name).remove(activation)
        activation.abandon()
        self._timers.end(activation)
        self.count -= 1
        if activation.grain is not None:
            end_life(activation.grain, Ended(activation))
            activation.grain = None

    # -- ending (`Owner`)

    def check_running(self) -> None:
        """Raise NotInCluster if the silo has ended."""
        self._turns.check_running()

    def extension_of(self, activation: Activation, name: str) -> Any:
        """Return the extension with this name, created on first use, or None if there is none."""
        known = name in self._turns.extensions
        return self._turns.extension_of(activation, name) if known else None

    def open_reminders(self, activation: Activation) -> Reminders:
        """Return the reminders of a grain."""
        if activation.is_gone:
            raise NotInCluster(f"{activation}: the activation has ended, so it has no reminders")
        extension = self.extension_of(activation, REMINDERS)
        if extension is None:
            raise ConfigError(
                f"{activation}: context.reminders: no grain class of this silo has a method with "
                "`@reminder`: write `@reminder` above `async def remind(self, occurrence)`"
            )
        reminders: Reminders = extension.reminders
        return reminders

    def start_timer(
        self,
        activation: Activation,
        method: Callable[[], Coroutine[Any, Any, None]],
        schedule: TimerSchedule,
    ) -> Timer:
        """Start a timer of an activation."""
        return self._timers.start(activation, make_tick(method), schedule)

    def deactivate(self, activation: Activation, reason: DeactivationReason) -> None:
        """End an activation once its running turns have ended.

        If an activation requests its own end while it starts, the call that woke it still runs.
        """
        box = activation.mailbox
        if box is not None and reason in UNMOVED:
            box.move_to = None
        if activation.state.value >= ActivationState.DEACTIVATING.value:
            return
        hook = activation.kind.stopping_hook
        if hook and activation.grain is not None:
            getattr(activation.grain, hook)()  # lets a part's grain end turns that only wait
        if box is not None and RESULTS in box.extensions:
            box.extensions[RESULTS].results.stop(reason.value)
        activation.end_soon(reason)

    def move(self, activation: Activation, to: str | None) -> None:
        """End an activation as `deactivate` does, and continue in another silo.

        Does nothing if no other silo is suitable. Raises ConfigError if `to` is not.
        """
        if self.mover.may_move(activation, to):
            activation.ensure_mailbox().move_to = to or ""
            self.deactivate(activation, DeactivationReason.MIGRATING)

    def outgrow(self, activation: Activation, version: int) -> bool:
        """End an activation, because a call wants a later version of its type than this silo hosts.

        Its running turns end first. Then it moves to a silo that hosts this version or a later one,
        and the waiting calls follow. Returns False if there is no such silo now.
        """
        kind, key = activation.kind, activation.key
        if kind.workers_max or not self.mover.find_newer(kind, key, version):
            return False
        box = activation.ensure_mailbox()
        box.wanted_version = max(box.wanted_version, version)
        if box.stop is None or box.stop in ASKED_BY_GRAIN:
            box.move_to = box.move_to or ""
            self.deactivate(activation, DeactivationReason.OUTGROWN)
        return True

    def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """End this activation, because another silo has a newer registration of the grain."""
        activation = self.find(kind, key)
        if activation is not None and activation.id == activation_id:
            activation.version = 0
            self.deactivate(activation, DeactivationReason.DUPLICATE)

    def end(self, activation: Activation, reason: DeactivationReason) -> None:
        """Begin to end an activation in which no turn runs. Called by the activation."""
        activation.state = ActivationState.DEACTIVATING
        activation.is_gated = True
        self.ended[reason] = self.ended.get(reason, 0) + 1
        self._tasks.start(self._end(activation, reason))

    async def _end(self, activation: Activation, reason: DeactivationReason) -> None:
        box = activation.ensure_mailbox()
        try:
            seconds = self._turns.options.deactivation_timeout_s
            if left := await box.end_tasks(seconds):
                log.error("%s: %d of its tasks did not end within %g s", activation, left, seconds)
            if activation.kind.has_deactivate_hook:
                await self._run_hook(
                    activation,
                    HookSpec("on_deactivate", seconds),
                    lambda request: self._turns.begin(activation, request, (reason,)),
                    lambda error: self._forget_hung(activation),
                )
        except KeyboardInterrupt:
            raise
        except BaseException:  # the activation must end, or its callers would wait forever
            if self._is_closed:
                raise
            log.exception("%s: on_deactivate failed", activation)
        if not activation.is_gone:  # gone: the hook took too long and was abandoned
            await self._forget(activation)

    async def _forget_hung(self, activation: Activation) -> None:
        """Remove an activation whose hook does not end. It does not move, since code still runs."""
        activation.ensure_mailbox().move_to = None
        await self._forget(activation)

    async def _forget(self, activation: Activation) -> None:
        """Remove an activation that has ended, or send it to another silo."""
        to, moved_to, is_noted = activation.ensure_mailbox().move_to, "", False

        def note_end() -> None:
            nonlocal is_noted
            if self.on_ended is not None and not is_noted:
                self.on_ended(activation)
            is_noted = True

        def take_package() -> bytes | None:
            package = try_pack(activation)
            if package is not None:
                note_end()  # the grain may run in the other silo from now on
            return package

        try:
            if to is not None:
                moved_to = await self.mover.send(activation, to, take_package)
            note_end()
            if not moved_to:
                await self.registrar.unregister(activation)
                moved_to = find_newer(self.mover, activation)  # where its waiting calls go
        finally:
            self._let_go(activation, moved_to)

    def _let_go(self, activation: Activation, moved_to: str) -> None:
        """Remove an ended activation, and send its waiting requests on."""
        if moved_to:
            self._learned(activation.kind.name, activation.key, moved_to)
        entries = list(activation.ensure_mailbox().take_all())
        self._drop(activation)
        activation.mailbox = None
        for entry in entries:
            entry.on_moved(moved_to)

    async def end_all(self, reason: DeactivationReason, within_s: float) -> None:
        """End every activation. Waits at most `within_s` for running turns."""
        self.is_accepting = False
        began_s, mover = self._turns.loop.time(), self.mover
        deadline = began_s + within_s
        mover.until_s = min(mover.until_s, began_s + within_s * MOVED_PART)
        moving = 0
        for activation in self.all():
            may_move = mover.until_s > began_s and moves_at_stop(activation)
            if may_move and moving < MOVED_AT_STOP_MAX and mover.may_move(activation, None):
                activation.ensure_mailbox().move_to = ""
                moving += 1
            self.deactivate(activation, reason)
            await self._turns.budget.spend()
        while self._tasks or self.count:
            left_s = deadline - self._turns.loop.time()
            if left_s <= 0:
                await self.end_by_force()
                break
            if self._tasks:
                await asyncio.wait(list(self._tasks), timeout=left_s)
            else:
                await asyncio.sleep(min(DRAIN_LOOK_S, left_s))

    async def end_by_force(self) -> None:
        """Cancel the turns that did not end, and fail the requests that wait."""
        if not self.count:
            return
        reason = f"{self._silo} stopped and no longer waits for calls"
        for activation in self.all():
            for request in activation.turns():
                request.expired, request.is_forced, request.stop_reason = True, True, reason
                cancel_turn(request)
            if activation.mailbox is not None:
                for entry in activation.mailbox.take_all():
                    entry.fail(SiloUnavailable(f"{activation}: {reason}", may_have_run=False))
        for _ in range(FORCED_ITERATIONS):
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Cancel unfinished starts and ends. No turn can start afterwards."""
        self._is_closed = True
        await self._tasks.aclose()
        for activation in self.all():
            activation.abandon()
            self._timers.end(activation)
        self._activations.clear()


async def register(
    registrar: Registrar, activation: Activation, arrival: Arrival | None
) -> str | None:
    """Register an activation. Returns the silo of the winner if another one is registered."""
    if arrival is None:
        return await registrar.register(activation)
    winner: str | None = ""
    try:
        winner = await registrar.register(activation, arrival.former)
    finally:
        if not arrival.registered.done():
            arrival.registered.set_result(winner is None)
    return winner


async def read_state(
    activation: Activation, state: State[Any], mover: Mover, options: RuntimeOptions
) -> None:
    """Read a state. If a later version has stored it, the activation wants that version.

    If the only silos with that version are starting or stopping, wait for one of them as long as a
    call does that is sent again.
    """
    try:
        await state.read()
    except StateTooNew as error:
        box, kind = activation.ensure_mailbox(), activation.kind
        box.wanted_version = max(box.wanted_version, error.stored)
        for attempt in range(options.redirects_max):
            is_awaited = mover.is_newer_changing(kind, box.wanted_version)
            if not is_awaited or find_newer(mover, activation):
                break
            await asyncio.sleep(options.retry_first_s * 2**attempt)
        raise


def find_newer(mover: Mover, activation: Activation) -> str:
    """Return a silo with the version that the waiting calls want; "" if this silo has it, or no
    silo does."""
    version = activation.ensure_mailbox().wanted_version
    return mover.find_newer(activation.kind, activation.key, version) if version else ""


def try_pack(activation: Activation) -> bytes | None:
    """Return the package of an activation that moves, or None if a hook fails."""
    try:
        return pack(activation)
    except Exception:
        log.exception("%s does not move to another silo; it ends as usual", activation)
        return None


def moves_at_stop(activation: Activation) -> bool:
    """Return whether an activation moves when its silo stops: it has something to take along."""
    kind = activation.kind
    assert kind.hosted is not None
    carries = bool(kind.hosted.states) or kind.hosted.move_hooks is not None
    return carries and not kind.is_system and activation.state is ActivationState.VALID


def start_error(activation: Activation, error: BaseException) -> Exception:
    """Return the error for the callers of an activation that could not start."""
    if isinstance(error, Exception):
        return error
    if isinstance(error, asyncio.CancelledError):
        text = f"{activation}: the start of the grain awaited a cancelled task or future"
        return GrainError("asyncio.CancelledError", text)
    return GrainError(type(error).__name__, f"{activation}: the grain could not start: {error}")


class HookSpec:
    """One life-cycle hook of a grain type with its deadline, in the form of a `MethodSpec`."""

    __slots__ = ("label", "late", "name", "timeout_s")
    extension = ""
    writes_states = False
    is_filtered = False

    def __init__(self, name: str, timeout_s: float) -> None:
        self.name = name
        self.label = name
        self.timeout_s = timeout_s
        self.late = ActivationTimeout if name == "on_activate" else CallTimeout

    def invoke(self, grain: Any, *args: Any) -> Coroutine[Any, Any, Any]:
        """Call the hook."""
        hook: Coroutine[Any, Any, Any] = getattr(grain, self.name)(*args)
        return hook


class LateStep:
    """A life-cycle step with a deadline.

    The deadline sweep cancels this object instead of the task.

    Args:
        leave: called after the task is cancelled; ensures that no caller waits for it forever.
    """

    __slots__ = ("_leave", "_request")

    def __init__(self, request: Request, leave: Callable[[], object]) -> None:
        self._request = request
        self._leave = leave

    def cancel(self) -> None:
        """Cancel the step, because its deadline has passed."""
        cancel_turn(self._request)
        self._leave()
