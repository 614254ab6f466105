"""All activations of this silo: find, create, end.

Owns: `GrainTable` (one per grain type and silo or client) and the life of each activation after
DESIGN 5b: creating, registering, activating, valid, deactivating, gone. Not: the turn rule
(`activation`), who else has what (`directory`). Invariants: an activation is registered before any
user code runs; the loser of a race runs none and sends its queue to the winner; `on_activate` and
`on_deactivate` never overlap a turn; an activation that failed to start fails exactly the requests
that were queued on it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from millstream.runtime.definition.grain import DeactivationReason, Ended, Grain
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.markers import Flag
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.names import row_key
from millstream.runtime.definition.state import State
from millstream.runtime.errors import (
    ActivationTimeout,
    CallTimeout,
    GrainError,
    Rejected,
    SiloUnavailable,
)
from millstream.runtime.tasks import Tasks

from .activation import Activation, ActivationState
from .request import Request, current_request

if TYPE_CHECKING:
    from millstream.runtime.calls.engine import Host
    from millstream.runtime.silo.parts import SiloHost

__all__ = ["Catalog", "GrainTable"]

log = logging.getLogger("millstream.catalog")

FORCED_ITERATIONS = 10  # of the loop, for cancelled turns to unwind


class HookSpec:
    """Stands for `on_activate` and `on_deactivate` where a `MethodSpec` is shown."""

    def __init__(self, label: str, timeout_s: float) -> None:
        self.label = label
        self.timeout_s = timeout_s


class GrainTable:
    """One grain type as one silo or client sees it; `activations` is the hot dictionary."""

    def __init__(self, host: Host, name: str, hosted: GrainType | None) -> None:
        self.host: Any = host
        self.name = name
        self.hosted = hosted
        self.activations: dict[str, Activation] = {}
        options = None if hosted is None else hosted.options
        self.is_reentrant = options is not None and options.reentrant
        self.is_direct = options is None or options.direct
        states = {} if hosted is None else hosted.states
        self.writes_each_turn = any(field.writes_each_turn for field in states.values())
        cls = Grain if hosted is None else hosted.cls
        self.has_activate_hook = cls.on_activate is not Grain.on_activate
        self.has_deactivate_hook = cls.on_deactivate is not Grain.on_deactivate
        marks = {} if hosted is None else hosted.marks
        hooks = [name for name, of_name in marks.items() if Flag("stopping") in of_name]
        self.stopping_hook = hooks[0] if hooks else ""
        self.is_simple = not states and not self.has_activate_hook

    def own_spec(self, spec: MethodSpec) -> MethodSpec:
        """The hosted class's method for a contract's; the contract's own if none is hosted."""
        if self.hosted is None:
            return spec
        found = self.hosted.spec_of(spec.wire_name)
        if found is None:
            raise Rejected(
                f"{self.name} has no method {spec.wire_name!r}, which {spec.label} needs"
            )
        difference = spec.differs_from(found)
        if difference:
            raise Rejected(f"{self.name}: {difference}")
        return found.seen_through(spec)


class Catalog:
    """Activations of one silo."""

    def __init__(self, host: SiloHost) -> None:
        self._host = host
        self._next_id = 0
        self._tasks = Tasks(host.loop, host.env.new_context)
        self.extension_types: dict[str, Callable[[Activation], Any]] = {}
        self.is_accepting = True
        self.count = 0
        # for tools and tests: the grain's own code may run from here, and no longer
        self.on_started: Callable[[Activation], None] | None = None
        self.on_ended: Callable[[Activation], None] | None = None

    def obtain(self, table: GrainTable, key: str) -> Activation:
        """The activation of a grain here, created if there is none; it may not be valid yet.

        Raises Rejected when this silo does not host the type or takes no new activations.
        """
        activation = table.activations.get(key)
        if activation is not None:
            return activation
        if table.hosted is None:
            raise Rejected(f"{self._host.address} does not host grain type {table.name!r}")
        if not self.is_accepting:
            raise Rejected(f"{self._host.address} is stopping: no new activation of {table.name}")
        self._next_id += 1
        activation = table.activations[key] = Activation(table, key, self._next_id)
        self.count += 1
        if table.is_simple and self._host.directory.register_now(activation):
            self._start_simple(activation)
        else:
            self._tasks.start(self._start(activation))
        return activation

    def _start_simple(self, activation: Activation) -> None:
        if self.on_started is not None:
            self.on_started(activation)
        try:
            activation.grain = self._construct(activation)
        except BaseException as error:
            activation.state = ActivationState.ACTIVATING
            self._tasks.start(self._fail(activation, answer_of(activation, "__init__", error)))
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        activation.state = ActivationState.VALID
        activation.gate = 0

    def _construct(self, activation: Activation) -> Any:
        assert activation.table.hosted is not None
        cls = activation.table.hosted.cls
        grain: Any = object.__new__(cls)
        grain._millstream = activation
        states = activation.table.hosted.states
        if states:
            grain._millstream_states = {
                name: State(
                    field,
                    activation,
                    self._host.store(field.store),
                    row_key(activation.table.name, activation.key, field.name),
                    self._host,
                )
                for name, field in states.items()
            }
        if cls.__init__ is not object.__init__:
            grain.__init__()
        return grain

    async def _start(self, activation: Activation) -> None:
        try:
            activation.become(ActivationState.REGISTERING)
            winner = await self._host.directory.register(activation)
            if winner is not None:
                self._retire(activation, winner)
                return
            activation.become(ActivationState.ACTIVATING)
            if self.on_started is not None:
                self.on_started(activation)
            activation.grain = self._construct(activation)
            for state in getattr(activation.grain, "_millstream_states", {}).values():
                await state.read()
            if activation.table.has_activate_hook:
                await self._run_hook(
                    activation, "on_activate", self._host.options.activation_timeout_s
                )
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            await self._fail(activation, cancelled_hook(activation, "on_activate"))
            return
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # else its callers would wait for ever
            await self._fail(activation, answer_of(activation, "on_activate", error))
            return
        activation.become(ActivationState.VALID)

    async def _run_hook(
        self, activation: Activation, name: str, seconds: float, *args: Any
    ) -> None:
        """Run a life-cycle hook as a turn of its own, in this task, with a deadline."""
        spec: Any = HookSpec(f"{activation.table.name}.{name}", seconds)
        task = asyncio.current_task()
        now = self._host.loop.time()
        request = Request(None, task, activation, spec, now + seconds, 1)
        self._host.pending.add(request, seconds)
        current_request.set(request)
        try:
            await getattr(activation.grain, name)(*args)
        except asyncio.CancelledError:
            if not request.expired:
                raise
            assert task is not None
            task.uncancel()
            late = ActivationTimeout if name == "on_activate" else CallTimeout
            raise late(f"{activation}: {name} did not end within {seconds:g} s") from None
        finally:
            request.done, request.task = True, None
            self._host.pending.remove(request)

    async def _fail(self, activation: Activation, error: Exception) -> None:
        log.warning("%s could not start: %s: %s", activation, type(error).__name__, error)
        if activation.state is ActivationState.ACTIVATING and self.on_ended is not None:
            self.on_ended(activation)
        self._turn_all_away(activation, error)
        await self._host.directory.unregister(activation)

    def _retire(self, activation: Activation, winner: str) -> None:
        """The registration was lost: forward the queue; no user code has run."""
        self._host.router.learn(activation.table.name, activation.key, winner)
        self._turn_all_away(activation, winner)

    def _turn_all_away(self, activation: Activation, gone: str | Exception) -> None:
        self._drop(activation)
        box = activation.ensure_mailbox()
        box.gone = gone
        for entry in box.take_all():
            box.turn_away(entry)

    def _drop(self, activation: Activation) -> None:
        if activation.table.activations.get(activation.key) is activation:
            del activation.table.activations[activation.key]
        activation.state = ActivationState.GONE
        activation.gate = 1
        self.count -= 1
        if activation.grain is not None:
            activation.grain._millstream = Ended(activation)  # no cycle: freed at once
            activation.grain = None

    # -- ending

    def deactivate(self, activation: Activation, reason: DeactivationReason) -> None:
        """End an activation once its running turns have ended.

        If it asks for that itself while it starts, the call that woke it still runs.
        """
        if activation.state.value >= ActivationState.DEACTIVATING.value:
            return
        box = activation.ensure_mailbox()
        if reason is DeactivationReason.REQUESTED:
            if box.stop is not None:
                return  # its end was asked for already
            box.owes_turn = activation.state is not ActivationState.VALID
        else:
            box.owes_turn = False
        box.stop = reason
        hook = activation.table.stopping_hook
        if hook and activation.grain is not None:
            getattr(activation.grain, hook)()  # a part's grain ends turns that only wait
        activation.regate()

    def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """Another silo has the grain by a newer registration: end this activation of it."""
        table = self._host.tables.get(kind)
        activation = None if table is None else table.activations.get(key)
        if activation is not None and activation.id == activation_id:
            activation.version = 0
            self.deactivate(activation, DeactivationReason.DUPLICATE)

    def end(self, activation: Activation, reason: DeactivationReason) -> None:
        """Begin the end of an activation in which no turn runs (called by the activation)."""
        activation.state = ActivationState.DEACTIVATING
        activation.gate = 1
        self._tasks.start(self._end(activation, reason))

    async def _end(self, activation: Activation, reason: DeactivationReason) -> None:
        box = activation.ensure_mailbox()
        try:
            await box.end_tasks()
            if activation.table.has_deactivate_hook:
                seconds = self._host.options.deactivation_timeout_s
                await self._run_hook(activation, "on_deactivate", seconds, reason)
        except asyncio.CancelledError:
            if is_cancelled():
                raise
            log.error("%s", cancelled_hook(activation, "on_deactivate"))
        except Exception:
            log.exception("%s: on_deactivate failed", activation)
        if self.on_ended is not None:
            self.on_ended(activation)
        try:
            await self._host.directory.unregister(activation)
        finally:
            self._drop(activation)
            entries = list(box.take_all())
            activation.mailbox = None
            for entry in entries:
                entry.moved("")

    async def end_all(self, reason: DeactivationReason, within_s: float) -> None:
        """End every activation; waits at most `within_s` for running turns."""
        self.is_accepting = False
        for activation in self.all():
            self.deactivate(activation, reason)
        deadline = self._host.loop.time() + within_s
        while self._tasks or self.count:
            left_s = deadline - self._host.loop.time()
            if left_s <= 0:
                await self.end_by_force()
                break
            if self._tasks:
                await asyncio.wait(list(self._tasks), timeout=left_s)
            else:
                await asyncio.sleep(min(0.01, left_s))

    async def end_by_force(self) -> None:
        """Cancel the turns that did not end, and fail what waits for them."""
        if not self.count:
            return
        reason = f"{self._host.address} stopped and did not wait any longer"
        for activation in self.all():
            for request in activation.turns():
                request.expired, request.is_forced, request.stop_reason = True, True, reason
                if request.task is not None:
                    request.task.cancel()
            if activation.mailbox is not None:
                for entry in activation.mailbox.take_all():
                    entry.fail(SiloUnavailable(f"{activation}: {reason}"))
        for _ in range(FORCED_ITERATIONS):
            await asyncio.sleep(0)

    def all(self) -> list[Activation]:
        """Every activation of this silo."""
        tables = self._host.tables.values()
        return [activation for table in tables for activation in table.activations.values()]

    async def aclose(self) -> None:
        """Cancel starts and ends that have not finished."""
        await self._tasks.aclose()

    # -- used by turns

    def extension_of(self, activation: Activation, name: str) -> Any:
        """The extension object of an activation, made on first use."""
        extensions = activation.ensure_mailbox().extensions
        if name not in extensions:
            extensions[name] = self.extension_types[name](activation)
        return extensions[name]

    async def write_changed(self, activation: Activation) -> None:
        """Write the states marked write="turn" that the turn changed."""
        assert activation.table.hosted is not None
        for name, field in activation.table.hosted.states.items():
            if field.writes_each_turn:
                await activation.grain._millstream_states[name].write_if_changed()


def is_cancelled() -> bool:
    """Was the running task itself cancelled, rather than something that it awaited?"""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def answer_of(activation: Activation, name: str, error: BaseException) -> Exception:
    """What the callers of an activation get that could not start."""
    if isinstance(error, asyncio.CancelledError):
        return cancelled_hook(activation, name)
    if not isinstance(error, Exception):
        return GrainError(type(error).__name__, f"{name} raised: {error}")
    return error


def cancelled_hook(activation: Activation, name: str) -> GrainError:
    """The error of a hook that raised CancelledError by itself."""
    text = f"{activation}: {name} awaited something that was cancelled"
    return GrainError("asyncio.CancelledError", text)
