"""The execution of turns, and the objects that all turns of a process share.

`Turns` creates requests and runs them. It defines the order in which a turn ends: context, done
flag, deadlines, release, then everything that may raise. A stub repeats these steps inline for a
direct turn. `Turns.run` executes every other turn.

Invariants:

- An activation that a request entered is always left.
- A turn that the runtime cancelled, by its deadline or by force, never ends as a cancellation. A
  turn that swallowed a cancellation by its caller does end as one.
- Only the request records cancellations by the runtime. The count of a task is used only for tasks
  that do not belong to the runtime.
- No exception keeps a Python frame that keeps the exception.
- A series of turns that never suspend blocks the event loop for at most one slice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from millstream.runtime.codec.failures import isolate_error
from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.definition.filters import FilterChain
from millstream.runtime.definition.grain import states_of
from millstream.runtime.definition.headers import HeaderSet, merge_headers
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
from .call_counts import CallCounts
from .deadlines import Deadlines
from .flows import flowing_of, headers_of
from .kind import view_of
from .mailbox import WaitingBytes
from .request import (
    RUNTIME_TASK,
    Request,
    caller_of,
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
    """The requests of one silo or client. All of them belong to one event loop."""

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
        self.counts: CallCounts | None = None  # None: metrics are off
        # the reason why no turn runs; empty while turns run
        self.ended = "the silo or client was not started"

    def check_running(self) -> None:
        """Raise NotInCluster unless the process has started and not stopped."""
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
        """Create a request of the running task, and watch its deadline.

        `parent` is the result of `live_request`, or None for a call that begins a chain. Raises
        CallError, and NotInCluster if the process has ended, because no deadline is watched then.
        """
        if self.ended:
            self.check_running()
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
        if not (is_inherited and same_task):  # otherwise its parent's deadline is enough
            is_own = is_inherited or timeout_s is not None  # a slot: timeouts may be any number
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
        """Start the method of a request that has entered an activation. `run` awaits the result."""
        spec = request.spec
        current_request.set(request)
        target = activation.grain
        if spec.extension:
            target = self.extension_of(activation, spec.extension)
        method: Coroutine[Any, Any, Any]
        if activation.kind.incoming and spec.is_filtered:
            method = self._filter(activation, request, args)
        else:
            method = spec.invoke(target, *args)
        if activation.kind.writes_each_turn and spec.writes_states:
            return and_write(activation, method)
        return method

    async def _filter(self, activation: Activation, request: Request, args: tuple[Any, ...]) -> Any:
        """Run a method inside the incoming filters of its grain type."""
        kind, spec = activation.kind, request.spec
        shown = headers_of(request)
        caller, grain = caller_of(request), activation.grain
        call = view_of(kind, activation.key, spec, args, dict(shown), caller, grain)

        async def invoke(values: tuple[Any, ...]) -> Any:
            if call.headers != shown:
                own = merge_headers({}, call.headers)
                request.headers = HeaderSet(own, flowing_of(request))
            copies = spec.isolate(values, kind.runtime)
            return await spec.invoke(grain, *copies)

        chain = FilterChain(
            kind.incoming, call, invoke, lambda: request.done, is_streamed=spec.is_streamed
        )
        return await chain.run()

    def extension_of(self, activation: Activation, name: str) -> Any:
        """Return an extension of an activation, created on first use."""
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
        began_s: float = 0.0,
    ) -> Any:
        """Await the work of a request, end the request, and yield to the event loop now and then.

        Args:
            work: the coroutine that `begin` returned, or one that finds the grain first.
            end: ends a failed request and returns the error for its caller: `settle` for callers in
                this process, `end_failed` if the error is sent elsewhere.
            take: converts the result for the caller before any other code runs.
            began_s: when the call arrived, if it came from elsewhere and calls are counted. 0: now.
        """
        failed: BaseException | None = None
        result = None
        counts = self.counts
        if counts is not None and not began_s:
            began_s = self.loop.time()
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
        if counts is not None:
            counts.count(request, failed, self.loop.time() - began_s)
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
        """End a request. No step of this method may raise."""
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
        """Return the error of a cancelled turn whose method returned a result all the same."""
        if is_cancelled_by_caller(request, task):
            return asyncio.CancelledError()
        return self.make_timeout_error(request) if request.expired else make_stopped_error(request)

    def end_failed(self, request: Request, error: BaseException) -> BaseException:
        """End a failed request, and return the error for its caller."""
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
                return own_cancellation(request)  # raised by the method, not by the caller
        if isinstance(error, SystemExit) and request.activation is not None:
            log.error("%s: %s raised %r", turn_name(request), request.spec.label, error)
            return GrainError("SystemExit", f"{turn_name(request)}: {request.spec.label}: {error}")
        return error

    def settle(self, request: Request, error: BaseException) -> BaseException:
        """Call `end_failed`, and isolate the error of a method as its result would be."""
        failed = self.end_failed(request, error)
        if failed is not error:
            return failed  # created by the runtime
        return self.isolate(request, error)

    def isolate(self, request: Request, error: BaseException) -> BaseException:
        """Return the error of a method as its local caller gets it."""
        if request.activation is None or not isinstance(error, Exception):
            return error  # raised by the runtime, so there is nothing to isolate
        return isolate_error(error, self.known_errors, turn_name(request))

    def make_timeout_error(self, request: Request) -> CallTimeout | SiloUnavailable:
        """Return the error of a request whose deadline passed, or whose silo ended.

        The text names the turns that wait for the request.
        """
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
        """Remove the deadline of a request, because a shielded method has started."""
        self.deadlines.remove(request)
        request.deadline = float("inf")

    def close(self) -> None:
        """Stop watching deadlines, and end the requests that still wait.

        The other parts of the process have ended their own requests by then. This method ends
        requests that were between two parts.
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
    """Return True if the caller's own code cancelled the task of a turn that has ended.

    The function takes back the cancellation that the runtime requested. Only the runtime cancels
    the runtime's own tasks, so any other count there comes from the turn itself.
    """
    if task is None:
        return False
    is_of_runtime = request.cancelling == RUNTIME_TASK
    before = 0 if is_of_runtime else request.cancelling
    if request.is_cancelled and task.cancelling() > before:
        task.uncancel()
    return not is_of_runtime and task.cancelling() > before


async def and_write(activation: Activation, method: Coroutine[Any, Any, Any]) -> Any:
    """Run a method, then write the states with write="turn" that it changed."""
    result = await method
    assert activation.kind.hosted is not None
    states = states_of(activation.grain)
    for name, field in activation.kind.hosted.states.items():
        if field.writes_each_turn:
            await states[name].write_if_changed()
    return result


def own_cancellation(request: Request) -> GrainError:
    """Return the error of a call whose method itself raised CancelledError."""
    place = f"{turn_name(request)}: {request.spec.label}"
    return GrainError("asyncio.CancelledError", f"{place} awaited a cancelled task or future")


def make_stopped_error(request: Request) -> SiloUnavailable:
    """Return the error of a turn that was ended by force."""
    return SiloUnavailable(f"{turn_name(request)}: {request.spec.label}: {request.stop_reason}")
