"""The one way to run a turn, and what every turn of a process shares.

Owns: `Turns`: making requests, running them, and the order in which a turn ends: context, done
flag, deadlines, release, then everything that may raise. Stubs inline these steps for a direct
turn; every other turn, whichever door it came through, is `Turns.run`. Invariants: an activation
that was entered is left whatever happens; a turn that the runtime cancelled (deadline, forced end)
never ends as a cancellation, and one that swallowed a cancellation of its caller ends as one; only
the request says what the runtime cancelled, and the count of a task counts only for tasks that are
not the runtime's; no
exception keeps a frame that keeps the exception; no run of turns that never suspend keeps the loop
for longer than a slice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from millstream.runtime.codec.failures import isolate_error
from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.definition.grain import states_of
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import (
    CallError,
    CallTimeout,
    GrainError,
    NotInCluster,
    SiloUnavailable,
)
from millstream.runtime.options import RuntimeOptions

from .activation import Activation
from .budget import Budget
from .deadlines import Deadlines
from .mailbox import WaitingBytes
from .request import (
    RUNTIME_TASK,
    Request,
    cancel_turn,
    current_request,
    find_task,
    path_to,
    turn_name,
)
from .task_groups import correct_task_groups

__all__ = ["Turns"]

log = logging.getLogger("millstream.turns")


class Turns:
    """Requests of one silo or client. Invariant: everything in it belongs to one loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        options: RuntimeOptions,
        known_errors: KnownErrors,
        new_id: Callable[[], int],
    ) -> None:
        correct_task_groups()
        self.loop = loop
        self.options = options
        self.known_errors = known_errors
        self.new_id = new_id
        self.deadlines = Deadlines(loop, options.sweep_s)
        self.budget = Budget(loop, options.slice_s)
        self.waiting_bytes = WaitingBytes(options.waiting_bytes_max, options.silo_waiting_bytes_max)
        self.find_task: Callable[[], Any] = find_task(loop)
        self.extensions: dict[str, Callable[[Activation], Any]] = {}
        self.ended = "it was not started"  # why nothing runs here; empty while it does

    def check_running(self) -> None:
        """Raise NotInCluster unless started and not stopped."""
        if self.ended:
            raise NotInCluster(self.ended)

    # -- making

    def new_request(
        self,
        spec: MethodSpec,
        timeout_s: float | None,
        is_reentrant: bool,
        parent: Request | None,
    ) -> Request:
        """A request of the running task, with its deadline watched. Raises CallError.

        `parent` is what `live_request` gives; None for a call that begins a chain.
        """
        task = self.find_task()
        seconds = timeout_s or spec.timeout_s or self.options.call_timeout_s
        deadline, is_inherited = self.loop.time() + seconds, False
        depth, same_task = 1, False
        if parent is not None:
            depth, same_task = parent.depth + 1, parent.task is task
            if parent.deadline < deadline:
                deadline, is_inherited = parent.deadline, True
            if depth > self.options.chain_turns_max:
                raise self._too_deep(parent)
        group = None
        if not (is_inherited and same_task):  # else its parent's deadline is enough
            is_own = is_inherited or timeout_s is not None  # chosen time-outs may be any number
            group = self.deadlines.slot(deadline) if is_own else self.deadlines.groups[seconds]
        request = Request(
            parent,
            task,
            None,
            spec,
            deadline,
            depth,
            task.cancelling(),
            same_task,
            group,
            spec.is_read_only,
            is_reentrant or spec.is_interleaving,
        )
        if timeout_s:
            request.timeout_s = timeout_s
        if group is not None:
            group[request] = None
            if not self.deadlines.is_armed:
                self.deadlines.arm()
        return request

    def _too_deep(self, parent: Request) -> CallError:
        return CallError(
            f"{turn_name(parent)}: the chain of calls is longer than chain_turns_max "
            f"{self.options.chain_turns_max}"
        )

    # -- running

    def begin(
        self, activation: Activation, request: Request, args: tuple[Any, ...]
    ) -> Coroutine[Any, Any, Any]:
        """The method of a request that has entered an activation, to be awaited by `run`."""
        spec = request.spec
        current_request.set(request)
        target = activation.grain
        if spec.extension:
            target = self.extension_of(activation, spec.extension)
        method: Coroutine[Any, Any, Any] = spec.invoke(target, *args)
        if activation.kind.writes_each_turn and spec.writes_states:
            return and_write(activation, method)
        return method

    def extension_of(self, activation: Activation, name: str) -> Any:
        """The extension of an activation, made on first use."""
        made = activation.ensure_mailbox().extensions
        if name not in made:
            made[name] = self.extensions[name](activation)
        return made[name]

    async def run(
        self,
        request: Request,
        work: Awaitable[Any],
        end: Callable[[Request, BaseException], BaseException],
        take: Callable[[Any], Any] | None = None,
    ) -> Any:
        """Await what a request does, end the request, and let others run now and then.

        Args:
            work: the method that `begin` gave, or what finds its grain first.
            end: ends a failed request and gives the error of its caller: `settle` for callers
                here, `end_failed` where the error is sent elsewhere.
            take: makes of the result what the caller gets, before anything else runs.
        """
        failed: BaseException | None = None
        result = None
        try:
            result = await work
            if take is not None:
                result = take(result)
        except BaseException as error:
            failed = end(request, error)
        else:
            task = request.task
            self.finish(request)
            is_cancelled = task is not None and task.cancelling() > request.cancelling
            if is_cancelled or request.expired or request.stop_reason:
                failed = self.replace_swallowed(request, task)
            task = None
        if failed is None or isinstance(failed, Exception):
            self.budget.left -= 1
            if not self.budget.left:
                await self.budget.pause()
        if failed is not None:
            try:
                raise failed
            finally:
                failed = request = work = None  # type: ignore[assignment]
        return result

    # -- ending

    def finish(self, request: Request) -> None:
        """End a request: nothing here may raise."""
        if current_request.get() is request:
            current_request.set(request.parent)
        request.done = True
        group = request.group
        if group is not None:
            request.group = None
            del group[request]
        activation, request.task, request.future = request.activation, None, None
        if activation is not None:
            activation.leave(request)

    def replace_swallowed(self, request: Request, task: asyncio.Task[Any] | None) -> BaseException:
        """The turn was cancelled, and the method returned all the same: what is raised instead."""
        if is_cancelled_by_caller(request, task):
            return asyncio.CancelledError()
        return self.make_timeout_error(request) if request.expired else make_stopped_error(request)

    def end_failed(self, request: Request, error: BaseException) -> BaseException:
        """End a failed request and say what its caller gets."""
        task = request.task
        self.finish(request)
        is_by_caller = is_cancelled_by_caller(request, task)
        if request.expired or request.stop_reason:
            if is_by_caller and isinstance(error, asyncio.CancelledError):
                return error
            return (
                self.make_timeout_error(request) if request.expired else make_stopped_error(request)
            )
        if isinstance(error, asyncio.CancelledError) and request.activation is not None:
            if not (is_by_caller or request.cancelling == RUNTIME_TASK):
                return own_cancellation(request)  # nobody cancelled the caller: the method did
        if isinstance(error, SystemExit) and request.activation is not None:
            log.error("%s: %s raised %r", turn_name(request), request.spec.label, error)
            return GrainError("SystemExit", f"{turn_name(request)}: {request.spec.label}: {error}")
        return error

    def settle(self, request: Request, error: BaseException) -> BaseException:
        """`end_failed`, and what a method raised is isolated as its result would be."""
        failed = self.end_failed(request, error)
        if failed is not error:
            return failed  # of the runtime's own making
        return self.isolate(request, error)

    def isolate(self, request: Request, error: BaseException) -> BaseException:
        """What a method raised, as its local caller gets it."""
        if request.activation is None or not isinstance(error, Exception):
            return error  # raised by the runtime, not by the callee: nothing to isolate
        return isolate_error(error, self.known_errors, turn_name(request))

    def make_timeout_error(self, request: Request) -> CallTimeout | SiloUnavailable:
        """The error of a request whose deadline passed, with who waited; or its silo ended."""
        if request.is_forced:
            return make_stopped_error(request)
        target = "" if request.activation is None and not request.target else turn_name(request)
        waiters = path_to(request)
        waited = f"; waited for by {' → '.join(waiters)}" if waiters else ""
        seconds = request.timeout_s or request.spec.timeout_s or self.options.call_timeout_s
        blocked = f"; {request.stop_reason}" if request.stop_reason else ""
        late: type[CallTimeout] = request.spec.late
        return late(
            f"{target}{': ' if target else ''}{request.spec.label} did not end within its deadline "
            f"(at most {seconds:.2g} s){waited}{blocked}"
        )

    def unwatch(self, request: Request) -> None:
        """From now on no deadline ends the request (a shielded method has started)."""
        self.deadlines.remove(request)
        request.deadline = float("inf")

    def close(self) -> None:
        """Watch no deadlines any more; whoever still waits is told that this process has ended.

        Its parts end what they know; this ends what was just between two of them.
        """
        for request in list(self.deadlines.iter_watched()):
            if not (request.done or request.expired):
                request.expired, request.is_forced, request.stop_reason = True, True, self.ended
                if request.future is None:
                    cancel_turn(request)
                else:
                    request.future.cancel()
        self.deadlines.close()


def is_cancelled_by_caller(request: Request, task: asyncio.Task[Any] | None) -> bool:
    """Did the caller's own code cancel the task of a turn that has ended?

    Takes back what the runtime itself asked of that task. Nobody but the runtime cancels its own
    tasks, so what else their count may say is the doing of the turn.
    """
    if task is None:
        return False
    is_of_runtime = request.cancelling == RUNTIME_TASK
    before = 0 if is_of_runtime else request.cancelling
    if request.is_cancelled and task.cancelling() > before:
        task.uncancel()
    return not is_of_runtime and task.cancelling() > before


async def and_write(activation: Activation, method: Coroutine[Any, Any, Any]) -> Any:
    """Run a method, and write the states marked write="turn" that it changed."""
    result = await method
    assert activation.kind.hosted is not None
    states = states_of(activation.grain)
    for name, field in activation.kind.hosted.states.items():
        if field.writes_each_turn:
            await states[name].write_if_changed()
    return result


def own_cancellation(request: Request) -> GrainError:
    """What a caller gets when the method itself raised CancelledError."""
    place = f"{turn_name(request)}: {request.spec.label}"
    return GrainError("asyncio.CancelledError", f"{place} awaited something that was cancelled")


def make_stopped_error(request: Request) -> SiloUnavailable:
    """The error of a turn that was ended by force."""
    return SiloUnavailable(f"{turn_name(request)}: {request.spec.label}: {request.stop_reason}")
