"""The callee's side of calls from other silos and clients, and of one-way calls.

`Callee` owns accepted calls until they are answered, and the runner tasks that run them.

Invariants:

- A call is admitted when its frame is read, so calls start in the order of their arrival.
- A call never runs if its caller gave it up, or if its deadline passed while it waited.
- A runner starts each request in a context without variables of other calls.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import Any

import msgspec

from millstream.runtime.codec.failures import answerable, describe
from millstream.runtime.definition.grain import Runtime
from millstream.runtime.definition.headers import HeaderSet, check_size
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import CallCycle, MillstreamError, NotHosted, Overloaded
from millstream.runtime.repeated import Repeated
from millstream.runtime.role import Role, check_role
from millstream.runtime.tasks import Tasks
from millstream.runtime.text import show_text
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.kind import GrainKind, may_interleave
from millstream.runtime.turns.request import RUNTIME_TASK, Request, cancel_turn, current_request
from millstream.runtime.turns.run import Turns, own_cancellation
from millstream.runtime.turns.runners import RunnerTasks
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, Failure, Redirect, Reply
from millstream.runtime.wire.outbox import Outbox

from .cycles import check_cycle, name_blockers
from .locator import Locator
from .remote import EARLIER_PART, EARLIER_S, LONG_S

__all__ = ["NOTHING", "Callee", "InboundCall", "size_of"]

log = logging.getLogger("millstream.callee")

NOTHING = msgspec.Raw(b"")


async def newer(self: object) -> None:
    """Stand for a method that only a later version of a class may have. It never runs."""
    raise AssertionError("a call that wants a later version must not run here")


NEWER = MethodSpec("a later version", newer.__name__, newer, [])
"""The method of a call that wants a later version of its type than this silo hosts."""
PARKED_MAX = 256
"""Number of idle runner tasks that are kept for later calls."""
DROPPED_EVERY_S = 10.0
"""The least time between two log lines about dropped one-way calls of one type, in seconds."""


class InboundCall:
    """One accepted call: the entry that waits in a mailbox, and that a runner runs."""

    __slots__ = (
        "_callee",
        "_turns",
        "call",
        "is_withdrawn",
        "kind",
        "origin",
        "request",
        "size_bytes",
        "target",
        "waits_in",
    )

    def __init__(
        self, callee: Callee, turns: Turns, origin: Peer | None, call: Call, spec: MethodSpec
    ) -> None:
        self._callee = callee
        self._turns = turns
        self.origin = origin
        self.call = call
        self.is_withdrawn = False
        self.size_bytes = 0
        self.kind: GrainKind | None = None
        self.waits_in: Activation | None = None
        self.target: Any = None  # the system target, if it is called; targets have no mailbox
        ttl_s, group = call.ttl_s, None
        deadline = turns.loop.time() + ttl_s
        if ttl_s > 0:
            group = turns.deadlines.slot(deadline)
        self.request = Request(
            None,
            None,
            None,
            spec,
            deadline,
            call.depth or 1,
            0,
            False,
            group,
            spec.is_read_only,
            spec.is_interleaving,
            tuple(call.chain),
            call.caller,
            # the caller's timeout, minus the time until the call was sent: see `Remote`
            ttl_s + EARLIER_S if ttl_s > LONG_S - EARLIER_S else ttl_s / (1 - EARLIER_PART),
            None if call.headers is None and call.flowing is None else headers_in(call),
            None if group is None else self,
        )
        if group is not None:
            group[self.request] = None
            if not turns.deadlines.is_armed:
                turns.deadlines.arm()

    @property
    def arrived_s(self) -> float:
        """When the call arrived, by the clock of the loop; before a shielded method starts."""
        return self.request.deadline - self.call.ttl_s

    def count_unrun(self, error: BaseException) -> None:
        """Count a call to a grain that ends before its turn, if calls are counted."""
        counts, kind, request = self._turns.counts, self.kind, self.request
        if counts is not None and kind is not None and not request.done:
            seconds = max(0.0, self._turns.loop.time() - self.arrived_s)
            counts.of(kind.name, request.spec.wire_name).end(error, seconds)

    @property
    def name(self) -> str:
        """The called grain or system target for messages, such as `Airport/BOS`."""
        call = self.call
        return show_text(f"{call.kind}/{call.key}" if call.key else call.kind)

    # -- until it runs

    def submit(self, activation: Activation) -> None:
        """Start the call, queue it, or refuse it."""
        self.kind = activation.kind
        if self.call.version > self.kind.version:
            self.await_newer(activation)
            return
        if self.kind.is_reentrant:
            self.request.is_interleaving = True
        try:
            if self.kind.may_interleave is not None:
                self.decide(self.kind)
            if activation.try_enter(self.request):
                self._callee.push(self)
                return
            self.wait_in(activation)
            if self.request.chain:
                check_cycle(activation, self.request)
        except CallCycle as error:
            activation.withdraw(self)
            self.fail(error)
        except Exception as error:  # Overloaded, Rejected, or arguments that cannot be decoded
            self.fail(error)

    def await_newer(self, activation: Activation) -> None:
        """Make the activation leave for a silo with a later version of its type, and follow it."""
        try:
            if not activation.owner.outgrow(activation, self.call.version):
                self.on_moved("")  # no silo hosts the version now: the caller looks again
                return
            self.wait_in(activation)
            if self.request.chain:
                check_cycle(activation, self.request)
        except Exception as error:  # CallCycle, Overloaded
            activation.withdraw(self)
            self.fail(error)

    def decide(self, kind: GrainKind) -> None:
        """Set whether the call may interleave, if its class decides that for each call."""
        spec, request = self.request.spec, self.request
        if spec.is_filtered and not request.is_interleaving:
            args = spec.arguments.decode(self.call.body, kind.runtime)
            request.is_interleaving = may_interleave(kind, self.call.key, spec, args, request)

    def wait_in(self, activation: Activation) -> None:
        """Wait until the activation is free. Raises Overloaded."""
        call = self.call
        call.body = call.body.copy()  # the original would keep its whole frame in memory
        self.size_bytes = size_of(call)
        activation.queue(self)
        self.waits_in = activation

    def grant(self) -> bool:
        self._callee.push(self)
        return True

    def on_moved(self, silo: str) -> None:
        if self.call.id == 0 and self.kind is not None:
            self._callee.send_on(self.kind, self.call)
        else:
            self._answer(Redirect(self.call.id, silo))
        self.close()

    def fail(self, error: BaseException) -> None:
        self.count_unrun(error)
        if self.call.id == 0:
            log.error("one-way call %s.%s did not run: %s", self.name, self.call.method, error)
        else:
            self._answer(self._failure(error))
        self.close()

    def cancel(self) -> None:
        """Prevent or stop the call, because its caller gave up or its deadline passed."""
        request = self.request
        if request.done:
            return
        if request.task is not None:
            self._stop(request)
        elif request.activation is not None or self.target is not None:
            self.is_withdrawn = True  # granted already: its runner drops it
        else:
            activation = self.waits_in
            if activation is not None:
                activation.withdraw(self)
            self.is_withdrawn = True
            self.call.body = NOTHING  # the mailbox may keep the entry for a while
            self.give_up(activation)

    def _stop(self, request: Request) -> None:
        """End the running turn once. A second cancellation must not interrupt its clean-up."""
        if request.spec.is_shielded or request.expired or request.stop_reason:
            return
        request.stop_reason = "cancelled by its caller"
        # a turn that cancels itself would cancel the runner's next request
        if request.task is not self._turns.find_task():
            cancel_turn(request)

    def give_up(self, activation: Activation | None) -> None:
        """End a call that did not run.

        After a deadline, the error names the turn that blocked the call.
        """
        if not self.request.expired:
            self.count_unrun(asyncio.CancelledError())
            self.close()
            return
        self.request.target = self.name
        self.request.stop_reason = "" if activation is None else name_blockers(activation)
        self.fail(self._turns.make_timeout_error(self.request))

    # -- its answer

    def reply(self, result: bytes) -> None:
        """Answer with the encoded result of the turn."""
        origin, call_id = self.origin, self.call.id
        if origin is not None and call_id:
            origin.served.answer(call_id, Reply(call_id, msgspec.Raw(result)), len(result))

    def on_failure(self, error: BaseException) -> None:
        """Answer with the error of the turn, unless the caller gave up."""
        if self.request.stop_reason and not self.request.expired:
            self.close()
        elif self.call.id == 0:
            log.error("one-way call %s.%s failed", self.name, self.call.method, exc_info=error)
        else:
            self._answer(self._failure(answerable(error)))

    def _failure(self, error: BaseException) -> Failure:
        return Failure(self.call.id, msgspec.Raw(describe(error, self.name)))

    def _answer(self, message: Reply | Failure | Redirect) -> None:
        if self.origin is not None and self.call.id:
            self.origin.served.answer(self.call.id, message)

    def close(self) -> None:
        """Remove all traces of a call that has ended."""
        self.request.done = True
        self.request.future = None
        if self.request.group is not None:
            self._turns.deadlines.remove(self.request)
        if self.origin is not None:
            self.origin.served.forget(self.call.id)


class Callee(RunnerTasks[InboundCall]):
    """Accepts calls that arrived, and runs them in reusable tasks.

    Args:
        silo: the address of this process.
        runtime: the owner of references in the arguments of system targets.
    """

    def __init__(
        self,
        silo: str,
        turns: Turns,
        tasks: Tasks,
        outbox: Outbox,
        locator: Locator,
        runtime: Runtime,
    ) -> None:
        super().__init__(tasks, turns.loop)
        self._silo = silo
        self._turns = turns
        self._outbox = outbox
        self._locator = locator
        self._runtime = runtime
        self._extension_specs: dict[str, MethodSpec] = {}
        self._dropped = Repeated(log, turns.loop.time, DROPPED_EVERY_S)

    def extend(self, specs: dict[str, MethodSpec]) -> None:
        """Make methods of an extension callable on every grain."""
        self._extension_specs.update(specs)

    def admit(self, kind: GrainKind, call: Call) -> MethodSpec:
        """Return the method that a call names, or `NEWER` if the call wants a later version.

        Raises NotHosted: this silo does not host the grain type, or the type has no such method;
        NotAllowed: the role of the caller may not call the method; ConfigError: the headers exceed
        a limit.
        """
        spec = self.find(kind, call)
        if call.version > kind.version:
            return NEWER
        if spec is None:
            text = f"grain type {kind.name!r} has no method {call.method!r} at {self._silo}"
            raise NotHosted(text)
        return spec

    def find(self, kind: GrainKind, call: Call) -> MethodSpec | None:
        """Return the method that a call names, or None if this silo does not know it.

        Raises NotAllowed, and ConfigError above a limit of headers.
        """
        if call.headers or call.flowing:
            check_size(call.headers, call.flowing)
        spec = None if kind.hosted is None else kind.hosted.specs.get(call.method)
        spec = spec or self._extension_specs.get(call.method)
        if spec is not None and call.role < Role.SILO:
            open_to = kind.open_to if spec.open_to is None else spec.open_to
            check_role(call.role, open_to, f"{kind.name}.{call.method}")
        return spec

    # -- taking

    def accept(self, origin: Peer, call: Call, spec: MethodSpec) -> InboundCall:
        """Register a call of a peer, to be submitted or pushed next. Raises Overloaded."""
        inbound = InboundCall(self, self._turns, origin, call, spec)
        try:
            origin.served.watch(call.id, inbound)
        except Overloaded as error:
            inbound.fail(error)  # this also stops watching its deadline
            raise
        return inbound

    def accept_relayed(self, origin: Peer, call: Call, spec: MethodSpec) -> InboundCall:
        """Accept a client's call that was registered before the search for its grain."""
        return InboundCall(self, self._turns, origin, call, spec)

    @property
    def is_busy(self) -> bool:
        """True if calls wait to run, or if no call can run any more."""
        return bool(self._ready) or self._is_closed

    def take_one_way(self, activation: Activation, call: Call, spec: MethodSpec) -> None:
        """Accept a one-way call of a caller in this process. Raises Overloaded."""
        inbound = InboundCall(self, self._turns, None, call, spec)
        inbound.kind = activation.kind
        if call.version > activation.kind.version:
            inbound.await_newer(activation)
            return
        if activation.kind.is_reentrant:
            inbound.request.is_interleaving = True
        try:
            if activation.kind.may_interleave is not None:
                inbound.decide(activation.kind)
            if activation.try_enter(inbound.request):
                self.push(inbound)
            else:
                inbound.wait_in(activation)
        except Exception:
            inbound.close()
            raise

    def send_on(self, kind: GrainKind, call: Call) -> None:
        """Send a one-way call on, because the activation that had it has ended."""
        self._tasks.start(self._send_on(kind, call))

    async def _send_on(self, kind: GrainKind, call: Call) -> None:
        call.hops += 1
        name, options = show_text(f"{call.kind}/{call.key}.{call.method}"), self._turns.options
        if call.hops > options.redirects_max:
            log.error(
                "one-way call %s was dropped after %d redirects (redirects_max)", name, call.hops
            )
            return
        try:
            if call.version > 1 and call.hops > 1:  # silos with its version may be starting
                await asyncio.sleep(options.retry_first_s * 2 ** (call.hops - 2))
            destination = await self._locator.wait(kind, call.key, 0.0, size_of(call), call.version)
            if isinstance(destination, Activation):
                self.take_one_way(destination, call, self.admit(kind, call))
            else:
                destination.writer.send_one_way(call)
        except MillstreamError as error:
            log.error("one-way call %s was not forwarded: %s", name, error)

    def note_dropped(self, call: Call, error: Exception) -> None:
        """Log that a one-way call of another process was not passed on. Logged at most every 10 s
        for each type.
        """
        name = show_text(f"{call.kind}/{call.key}.{call.method}")
        self._dropped.note(f"one-way call {name} was not passed on: {error}", call.kind)

    # -- running

    def push(self, inbound: InboundCall) -> None:
        """Queue a call whose activation is already entered."""
        self._ready.append(inbound)
        if not self._is_waking and not self._is_closed:
            self._is_waking = True
            self._wake()

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        current_request.set(None)  # every runner's context has this variable, so `clean` counts it
        clean = len(contextvars.copy_context())
        while True:
            while self._ready:
                inbound = self._ready.popleft()
                began_s = 0.0 if self._turns.counts is None else inbound.arrived_s
                work = self._start(inbound, task)
                if work is not None:
                    request = inbound.request
                    try:
                        encode = request.spec.encode_result
                        result = await self._turns.run(
                            request, work, self._turns.end_failed, encode, began_s
                        )
                    except BaseException as error:
                        self._answer_failure(inbound, error)
                    else:
                        inbound.reply(result)
                if self._is_closed or asyncio.current_task(self._loop) is not task:
                    return  # another task is closing this coroutine: no call may begin
                if current_request.get() is not None:
                    current_request.set(None)
                if task.cancelling() or len(contextvars.copy_context()) > clean:
                    self._outbox.flush()
                    return  # the call left a cancellation or context variables: end this runner
            self._outbox.flush()
            if self._is_closed or len(self._parked) >= PARKED_MAX:
                return
            parked = self._loop.create_future()
            self._parked.append(parked)
            await parked

    def _start(self, inbound: InboundCall, task: asyncio.Task[Any]) -> Any:
        """Return the awaitable of a call, or None if the call was given up or cannot be decoded."""
        request = inbound.request
        if inbound.is_withdrawn:
            self._turns.finish(request)
            inbound.give_up(None)
            return None
        request.task, request.future = task, None
        request.cancelling = RUNTIME_TASK
        if request.spec.is_shielded:
            self._turns.unwatch(request)
        spec, activation = request.spec, request.activation
        try:
            if activation is None:
                args = spec.arguments.decode(inbound.call.body, self._runtime)
                current_request.set(request)
                return spec.fn(inbound.target, *args)
            decode, args = spec.quick_arguments, None
            if decode is not None:
                try:
                    args = decode(inbound.call.body)
                except Exception:  # the slow path below raises a better error
                    pass
            if args is None:
                args = spec.arguments.decode(inbound.call.body, activation.kind.runtime)
            return self._turns.begin(activation, request, args)
        except Exception as error:
            inbound.count_unrun(error)
            inbound.on_failure(self._turns.end_failed(request, error))
            return None

    def _answer_failure(self, inbound: InboundCall, error: BaseException) -> None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, asyncio.CancelledError) and not inbound.request.stop_reason:
            if self._turns.ended:
                raise error
            error = own_cancellation(inbound.request)
        inbound.on_failure(error)

    async def aclose(self) -> None:
        """Cancel the running calls, and wait for them."""
        self._is_closed = True
        await self._tasks.aclose()


def size_of(call: Call) -> int:
    """Return the bytes that a waiting call holds, without the parts that all calls have alike."""
    size = len(memoryview(call.body)) + len(call.key) + sum(map(len, call.chain))
    for headers in (call.headers, call.flowing):
        if headers:
            size += sum(len(name) + len(text) for name, text in headers.items())
    return size


def headers_in(call: Call) -> HeaderSet:
    """Return the headers of a call that arrived."""
    return HeaderSet(call.headers or {}, call.flowing)
