"""The callee's side of calls that come from elsewhere: other silos, clients, one-way callers.

Owns: accepted calls until they are answered, and the runner tasks that run them. Source: runner
tasks and direct flush, spec/hotpath.md rule 8, traps 13, 14. Invariants: a call is admitted when
its frame is read, so order of arrival is order of start; a call whose caller gave it up, or whose
deadline passed while it waited, never runs; a runner starts each request in a clean context.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.runtime.codec.failures import answerable, describe
from millstream.runtime.errors import CallCycle, Overloaded
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.request import (
    Request,
    current_request,
    turn_name,
    waits_for,
)
from millstream.runtime.turns.run import begin_turn, finish, own_cancellation, timed_out
from millstream.runtime.wire.message import Call, Failure, Redirect, Reply

if TYPE_CHECKING:
    from millstream.runtime.definition.method import MethodSpec
    from millstream.runtime.wire.connection import Peer

    from .engine import Host

__all__ = ["Runners", "Served"]

log = logging.getLogger("millstream.serving")


class Served:
    """One accepted call; the entry that waits in a mailbox and that a runner runs."""

    __slots__ = ("call", "host", "is_withdrawn", "origin", "request", "target", "waits_in")

    def __init__(self, host: Host, origin: Peer | None, call: Call, spec: MethodSpec) -> None:
        self.host = host
        self.origin = origin
        self.call = call
        self.is_withdrawn = False
        self.waits_in: Activation | None = None
        self.target: Any = None  # a system target, which has no mailbox
        self.request = request = Request(
            None,
            None,
            None,
            spec,
            host.loop.time() + call.ttl_s,
            1,
            is_read=spec.is_read_only,
            is_interleaving=spec.is_interleaving,
            chain=tuple(call.chain),
            caller=call.caller,
            timeout_s=call.ttl_s,
            headers=call.headers,
        )
        if call.ttl_s > 0:
            request.future = self
            host.pending.add(request, None)

    def submit(self, activation: Activation) -> None:
        """Start the call, queue it, or refuse it."""
        if activation.table.is_reentrant:
            self.request.is_interleaving = True
        try:
            if activation.try_enter(self.request):
                self.host.runners.push(self)
                return
            activation.queue(self)
            self.waits_in = activation
            if self.request.chain:
                self._refuse_cycle(activation)
        except Overloaded as error:
            self.fail(error)

    def _refuse_cycle(self, activation: Activation) -> None:
        if any(waits_for(blocking, self.request) for blocking in activation.blocking()):
            assert activation.mailbox is not None
            activation.mailbox.withdraw(self)
            names = [turn_id.partition("#")[0] for turn_id in self.request.chain]
            self.fail(CallCycle(*names[::-1], str(activation)))

    def grant(self) -> bool:
        self.host.runners.push(self)
        return True

    def moved(self, silo: str) -> None:
        if self.call.id == 0:
            self.host.router.resend(self.call)
        else:
            self._answer(Redirect(self.call.id, silo))
        self._close()

    def fail(self, error: BaseException) -> None:
        if self.origin is None:
            log.error("%s/%s.%s failed: %s", self.call.kind, self.call.key, self.call.method, error)
        else:
            place = f"{self.call.kind}/{self.call.key}"
            self._answer(Failure(self.call.id, msgspec.Raw(describe(error, place))))
        self._close()

    def cancel(self) -> None:
        """The caller gave up, or the deadline passed: never run, or stop running."""
        request = self.request
        if request.done:
            return
        if request.task is not None:
            if not request.spec.is_shielded:
                request.stop_reason = request.stop_reason or "cancelled by its caller"
                # from within the very turn, a cancellation would hit the runner's next request
                if request.task is not self.host.find_task():
                    request.task.cancel()
            return
        if request.activation is not None or self.target is not None:
            self.is_withdrawn = True  # granted, and waiting for a runner, which drops it
            return
        if self.waits_in is not None and self.waits_in.mailbox is not None:
            self.waits_in.mailbox.withdraw(self)
        self.is_withdrawn = True
        self._close()

    def _answer(self, message: Any) -> None:
        if self.origin is not None and self.call.id:
            self.origin.answer(self.call.id, message)

    def _close(self) -> None:
        self.request.done = True
        self.request.future = None
        if self.request.group is not None:
            self.host.pending.remove(self.request)
        if self.origin is not None:
            self.origin.forget_served(self.call.id)

    async def run(self, task: asyncio.Task[Any]) -> None:
        """Run the turn and answer. Errors of the method become the answer."""
        request, host = self.request, self.host
        request.task, request.future = task, None
        request.cancelling = task.cancelling()
        if request.spec.is_shielded:
            host.pending.remove(request)
            request.deadline = math.inf
        activation, spec = request.activation, request.spec
        message: Any = None
        try:
            args = spec.arguments.decode(self.call.body, host)
            if self.target is None:
                result = await begin_turn(activation, request, args)
            else:
                current_request.set(request)
                result = await spec.fn(self.target, *args)
            message = Reply(self.call.id, msgspec.Raw(spec.encode_result(result)))
        except asyncio.CancelledError:
            if not (request.expired or request.stop_reason):
                if task.cancelling() > request.cancelling and not host.is_running:
                    finish(host, request)
                    raise
                message = self._failure(own_cancellation(request))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt | SystemExit):
                finish(host, request)
                raise
            message = self._failure(answerable(error))
            del error
        finish(host, request)
        if request.expired:
            message = self._failure(timed_out(host, request))
        while task.cancelling() > request.cancelling:
            task.uncancel()
        if message is not None:
            self._answer(message)
        elif self.origin is not None:
            self.origin.forget_served(self.call.id)

    def _failure(self, error: BaseException) -> Failure:
        if not self.call.id:
            log.error("one-way %s failed", self.request.spec.label, exc_info=error)
        return Failure(self.call.id, msgspec.Raw(describe(error, turn_name(self.request))))


class Runners:
    """Reusable tasks that run accepted calls, one after the other."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._ready: deque[Served] = deque()
        self._parked: list[asyncio.Future[None]] = []
        self._tasks = Tasks(host.loop, host.env.new_context)
        self._is_waking = False
        self._is_closed = False

    def push(self, served: Served) -> None:
        """Queue a call whose activation is already entered."""
        self._ready.append(served)
        if not self._is_waking and not self._is_closed:
            self._is_waking = True
            self._wake()

    def _wake(self) -> None:
        parked = self._parked.pop() if self._parked else None
        if parked is not None and not parked.done():
            parked.set_result(None)
        else:
            self._tasks.start(self._run())
        # runs after the runner's next step: work left by then means that the runner suspended
        self._host.loop.call_soon(self._check)

    def _check(self) -> None:
        if self._ready:
            self._wake()
        else:
            self._is_waking = False

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        current_request.set(None)  # so that it counts as a variable of every runner
        clean = len(contextvars.copy_context())
        while True:
            while self._ready:
                served = self._ready.popleft()
                if served.is_withdrawn:
                    finish(self._host, served.request)
                    served._close()
                    continue
                await served.run(task)
                if self._is_closed:
                    return
                if current_request.get() is not None:
                    current_request.set(None)
                if len(contextvars.copy_context()) > clean:
                    self._flush()
                    return  # the call left context variables behind: this runner retires
            self._flush()
            if self._is_closed:
                return
            parked = self._host.loop.create_future()
            self._parked.append(parked)
            await parked

    def _flush(self) -> None:
        self._host.outbox.flush()

    async def aclose(self) -> None:
        """Cancel what still runs, and wait for it."""
        self._is_closed = True
        await self._tasks.aclose()
