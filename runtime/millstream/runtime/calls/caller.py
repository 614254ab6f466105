"""The caller's side of every call that is not a direct turn.

`Caller` finds the target, and waits in its mailbox or for its answer. `stubs` runs direct turns,
`turns/run` runs and ends all other turns, and `callee` is the other side of remote calls.

Invariants:

- A local turn runs in the task of its caller.
- Arguments are isolated or encoded before the first await.
- A call runs only on an activation of the version of its class or contract, or of a later one.
- A call that certainly did not run is sent again, at most `redirects_max` times. A call that may
  have run is never sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import Context
from functools import partial
from typing import Any

import msgspec

from millstream.runtime.definition.filters import CallFilter, FilterChain
from millstream.runtime.definition.headers import HeaderSet, check_size, merge_headers, show_headers
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import Rejected, SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.flows import flowing_of
from millstream.runtime.turns.kind import GrainKind, may_interleave, view_of
from millstream.runtime.turns.request import (
    Request,
    current_request,
    live_request,
    turn_name,
)
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, VersionedCall

from .callee import Callee
from .cycles import check_cycle, note_blockers
from .locator import Destination, Locator
from .remote import Remote
from .waits import LocalWait, Moved, RemoteWait

__all__ = ["Caller"]

Headers = HeaderSet | None


class Caller:
    """The calls of one process to grains anywhere.

    Args:
        shielded: keeps the turns that outlive their callers.
        outgoing: the filters that run around all calls of this process.
        has_outgoing: True if calls of this process, or of a grain type that it hosts, have outgoing
            filters.
    """

    def __init__(
        self,
        turns: Turns,
        remote: Remote,
        locator: Locator,
        callee: Callee,
        shielded: Tasks,
        new_context: Callable[[], Context],
        outgoing: Sequence[CallFilter] = (),
        has_outgoing: bool = False,
    ) -> None:
        self._outgoing = tuple(outgoing)
        self.has_outgoing = has_outgoing
        self._turns = turns
        self._remote = remote
        self._locator = locator
        self._callee = callee
        self._shielded = shielded
        self._new_context = new_context

    def call(
        self,
        kind: GrainKind,
        key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        timeout_s: float | None = None,
        headers: Headers = None,
    ) -> Coroutine[Any, Any, Any]:
        """Return an awaitable that calls a method of a grain anywhere. Await it at once.

        This is no coroutine function: its frame would be entered again at every wake-up of the
        call.
        """
        turns = self._turns
        if turns.ended:
            turns.check_running()
        if spec.is_one_way:
            return self._send_one_way(kind, key, spec, args, headers)
        if spec.is_shielded:
            return self._call_shielded(kind, key, spec, args, timeout_s, headers)
        if not kind.is_direct:
            context = self._new_context()
            context.run(current_request.set, live_request())
            return self._in_own_task(kind, key, spec, args, timeout_s, headers, context)
        parent = live_request()
        if parent is not None and not (parent.depth + 1) % turns.options.nested_turns_max:
            if turns.find_task() is parent.task:
                return self._in_own_task(kind, key, spec, args, timeout_s, headers)
        return self._call_under(parent, kind, key, spec, args, timeout_s, headers)

    async def call_filtered(
        self,
        kind: GrainKind,
        key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        timeout_s: float | None = None,
        headers: Headers = None,
    ) -> Any:
        """Call inside the outgoing filters of the calling grain's class and of this process."""
        if kind.is_system:
            return await self.call(kind, key, spec, args, timeout_s, headers)
        parent = live_request()
        activation = None if parent is None else parent.activation
        own = activation.kind.outgoing if isinstance(activation, Activation) else ()
        shown = show_headers(join_headers(headers, parent) or HeaderSet({}))
        caller = "" if parent is None else turn_name(parent)
        call = view_of(kind, key, spec, spec.isolate(args, kind.runtime), dict(shown), caller)
        passed: list[Any] = []

        async def invoke(values: tuple[Any, ...]) -> Any:
            sent = headers
            if call.headers != shown:
                flowing = None if headers is None else headers.flowing
                sent = HeaderSet(merge_headers({}, call.headers), flowing)
            passed[:] = [await self.call(kind, key, spec, values, timeout_s, sent)]
            return passed[0]

        result = await FilterChain(
            (*own, *self._outgoing), call, invoke, lambda: False, is_streamed=spec.is_streamed
        ).run()
        is_own = bool(passed) and result is passed[0]
        return result if is_own else spec.isolate_result(result, kind.runtime)

    def call_here(
        self,
        kind: GrainKind,
        key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        timeout_s: float | None = None,
        headers: Headers = None,
        waiting: Request | None = None,
        begun: list[Request] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        """Return an awaitable that calls in the running task. Await it at once.

        Args:
            waiting: the request whose task waits for this call, so the hop counts as made by that
                task.
            begun: receives the request, for a caller that watches it.
        """
        return self._call_under(
            live_request(), kind, key, spec, args, timeout_s, headers, waiting, begun
        )

    def _call_under(
        self,
        parent: Request | None,
        kind: GrainKind,
        key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        timeout_s: float | None,
        headers: Headers,
        waiting: Request | None = None,
        begun: list[Request] | None = None,
    ) -> Coroutine[Any, Any, Any]:
        if headers is not None:
            headers = join_headers(headers, parent)
        destination: Destination | None = None
        try:
            destination = self._locator.find(kind, key, spec.version)
        except SiloUnavailable:  # it refused a connection a moment ago
            self._locator.on_lost(kind, key)
        request = self._turns.new_request(spec, timeout_s, kind.is_reentrant, parent)
        if begun is not None:
            begun.append(request)
        request.headers = headers
        if kind.may_interleave is not None and not request.is_interleaving:
            request.is_interleaving = may_interleave(kind, key, spec, args, request)
        if waiting is not None and request.parent is waiting:
            request.same_task = True
        if isinstance(destination, Activation):
            work = self._enter(destination, kind, key, args, request)
        else:
            work = self._route(destination, kind, key, args, request)
        return self._turns.run(request, work, self._turns.settle)

    def _find_quietly(self, kind: GrainKind, key: str, version: int) -> Destination | None:
        """Return the grain's location if it is known and its silo has not refused a moment ago."""
        try:
            return self._locator.find(kind, key, version)
        except SiloUnavailable:
            self._locator.on_lost(kind, key)
            return None

    # -- in this process

    async def _enter(
        self,
        activation: Activation,
        kind: GrainKind,
        key: str,
        args: tuple[Any, ...],
        request: Request,
    ) -> Any:
        spec = request.spec
        if args:
            args = spec.isolate(args, kind.runtime)
        if activation.try_enter(request) or await self.wait_turn(activation, request):
            if spec.is_shielded:
                self._turns.unwatch(request)
            entered = request.activation  # a stateless worker may take calls of another one
            result = await self._turns.begin(entered, request, args)
            return spec.isolate_result(result, kind.runtime)
        return await self._route(None, kind, key, args, request)

    async def _run_here(
        self, activation: Activation, kind: GrainKind, args: tuple[Any, ...], request: Request
    ) -> Any:
        spec = request.spec
        if spec.is_shielded:
            self._turns.unwatch(request)
        return spec.isolate_result(await self._turns.begin(activation, request, args), kind.runtime)

    async def wait_turn(
        self, activation: Activation, request: Request, size_bytes: int = 0
    ) -> bool:
        """Wait for an activation. Returns True once it is entered, False if it has ended.

        The caller holds `size_bytes` of encoded arguments meanwhile. Raises CallCycle if the wait
        could never end, Overloaded, and the error of a failed start.
        """
        blocking = activation.running
        if blocking is not None and blocking.section and activation.try_enter(request):
            return True  # the running turn waits for this request in an open section
        turns = self._turns
        began_s = 0.0 if turns.counts is None else turns.loop.time()
        future: asyncio.Future[str | None] = self._turns.loop.create_future()
        entry = LocalWait(future, request, self._turns.known_errors, size_bytes)
        activation.queue(entry)
        try:
            if request.same_task or request.chain:
                check_cycle(activation, request)
            moved_to = await future
        except BaseException as error:  # cancelled, a cycle, or the caller's coroutine is closed
            # otherwise the turn was granted in the same iteration: `finish` leaves the activation
            if request.activation is None:
                future.cancel()
                activation.withdraw(entry)
                if isinstance(error, asyncio.CancelledError):
                    note_blockers(request, activation)
                self._count_waited(activation, request, error, began_s)
            raise
        finally:
            entry = future = None  # type: ignore[assignment]  # may hold an exception
        return moved_to is None

    def _count_waited(
        self, activation: Activation, request: Request, error: BaseException, began_s: float
    ) -> None:
        """Count a call of this process that ended while it waited for its turn."""
        counts = self._turns.counts
        if counts is not None and not request.target:  # else `Turns.run` counts it as sent
            if request.expired:
                error = self._turns.make_timeout_error(request)
            calls = counts.of(activation.kind.name, request.spec.wire_name)
            calls.end(error, self._turns.loop.time() - began_s)

    async def _in_own_task(
        self,
        kind: GrainKind,
        key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        timeout_s: float | None,
        headers: Headers,
        context: Context | None = None,
    ) -> Any:
        """Call in a new task, for deep chains of calls and for `direct=False`."""
        parent = live_request()
        is_hop = parent is not None and parent.task is self._turns.find_task()
        args = spec.isolate(args, kind.runtime)
        begin = partial(self.call_here, kind, key, spec, args, timeout_s, headers)
        inner = self._turns.loop.create_task(
            begin_in_task(partial(begin, parent if is_hop else None)), context=context
        )
        try:
            return await inner
        finally:
            inner = None  # type: ignore[assignment]

    def _call_shielded(
        self,
        kind: GrainKind,
        key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        timeout_s: float | None,
        headers: Headers,
    ) -> Coroutine[Any, Any, Any]:
        """Call a method that, once started, runs to its end even if its caller gives up."""
        args = spec.isolate(args, kind.runtime)
        begun: list[Request] = []
        begin = partial(self.call_here, kind, key, spec, args, timeout_s, headers, None, begun)
        inner = self._turns.loop.create_task(begin_in_task(begin))
        self._shielded.keep(inner)
        outer = self._turns.new_request(spec, timeout_s, False, live_request())
        return self._turns.run(outer, self._wait_shielded(inner, begun, spec), self._turns.settle)

    async def _wait_shielded(
        self, inner: asyncio.Task[Any], begun: list[Request], spec: MethodSpec
    ) -> Any:
        try:
            return await asyncio.shield(inner)
        except asyncio.CancelledError:
            if inner.cancelled() and self._turns.ended:
                text = f"{spec.label} ended because its silo stopped: {self._turns.ended}"
                raise SiloUnavailable(text) from None
            raise
        finally:
            if not inner.done() and not (begun and begun[0].activation is not None):
                inner.cancel()  # not started here; a remote callee decides for itself
            inner = None  # type: ignore[assignment]

    # -- elsewhere

    async def _route(
        self,
        destination: Destination | None,
        kind: GrainKind,
        key: str,
        args: tuple[Any, ...],
        request: Request,
    ) -> Any:
        """Find the grain and call it there. A call that certainly did not run is sent again."""
        spec, attempt, options = request.spec, 0, self._turns.options
        request.target = f"{kind.name}/{key}"
        body = spec.arguments.encode(args)
        wait: RemoteWait | None = None
        try:
            while attempt < options.redirects_max:
                if destination is None:
                    pause_s = options.retry_first_s * 2 ** (attempt - 2) if attempt > 1 else 0.0
                    destination = await self._locator.wait(
                        kind, key, pause_s, len(body), spec.version
                    )
                if isinstance(destination, Activation):
                    if spec.version > kind.version:
                        await self._await_newer(destination, request, len(body), attempt)
                        attempt, destination = attempt + 1, None
                        continue
                    args = spec.arguments.decode(body, kind.runtime)
                    if destination.try_enter(request) or await self.wait_turn(
                        destination, request, len(body)
                    ):
                        return await self._run_here(request.activation, kind, args, request)
                    destination = None
                    continue  # it ended normally: the next one is here too, so this is no redirect
                if destination.writer.is_ready or await self._is_reached(
                    destination, kind, key, len(body)
                ):
                    try:
                        wait = self._remote.send(
                            destination, kind.name, key, body, request, attempt
                        )
                        answer = await wait.future
                    except SiloUnavailable as error:
                        if error.may_have_run:
                            raise
                        answer = Moved("")  # the connection closed before the call was written
                    except BaseException:  # cancelled, or the caller's coroutine is closed
                        if wait is not None:
                            destination.writer.cancel_call(wait.call_id)
                        raise
                    wait = None
                    if type(answer) is not Moved:
                        return self._remote.take(spec, answer)
                    self._locator.on_moved(kind, key, destination, answer.silo)
                attempt, destination = attempt + 1, None
        finally:
            body, wait = b"", None  # a stored error keeps its frames and their variables
        raise Rejected(
            f"{kind.name}/{key}: {spec.label} was redirected {options.redirects_max} times "
            "(redirects_max) without reaching the grain"
        )

    async def _await_newer(
        self, activation: Activation, request: Request, size_bytes: int, attempt: int
    ) -> None:
        """Make an activation leave for a silo with a later version, and wait until it has left.

        If no silo has the version now, wait for some time, because one may be starting.
        """
        if not activation.owner.outgrow(activation, request.spec.version):
            await asyncio.sleep(self._turns.options.retry_first_s * 2**attempt)
            return
        is_entered = await self.wait_turn(activation, request, size_bytes)
        assert not is_entered, "an activation that leaves starts no turn"

    async def _is_reached(self, peer: Peer, kind: GrainKind, key: str, size_bytes: int) -> bool:
        """Wait until a connection accepts calls. Returns False if it closed before that."""
        try:
            await peer.writer.ready(size_bytes)
        except SiloUnavailable:
            self._locator.on_lost(kind, key)
            return False
        return True

    async def _send_one_way(
        self,
        kind: GrainKind,
        key: str,
        spec: MethodSpec,
        args: tuple[Any, ...],
        headers: Headers,
    ) -> None:
        """Pass a one-way call on. Returns once it is queued here or given to the connection.

        Raises Overloaded if the grain is here and its mailbox is full.
        """
        body = spec.arguments.encode(args)
        sent = join_headers(headers, live_request())
        destination = self._find_quietly(kind, key, spec.version)
        if not isinstance(destination, Activation) and (
            destination is None or not destination.writer.is_ready
        ):
            destination = await self._locator.wait(kind, key, 0.0, len(body), spec.version)
        ttl_s = spec.timeout_s or self._turns.options.call_timeout_s
        raw = msgspec.Raw(body)
        make = Call if spec.version == 1 else VersionedCall
        message = make(0, kind.name, key, spec.wire_name, raw, ttl_s, "", [], 0, None, 0)
        if make is VersionedCall:
            message.version = spec.version  # type: ignore[misc]
        if sent is not None:
            message.headers, message.flowing = sent.own or None, sent.flowing or None
        if isinstance(destination, Activation):
            self._callee.take_one_way(destination, message, spec)
        else:
            destination.writer.send_one_way(message)
        await self._turns.budget.spend()


def join_headers(headers: Headers, parent: Request | None) -> Headers:
    """Return the headers of a call with those that flow from its calling turn.

    Raises ConfigError above a limit.
    """
    flowing = {} if parent is None else flowing_of(parent)
    if headers is None:
        return HeaderSet({}, flowing) if flowing else None
    if headers.flowing:
        flowing = {**flowing, **headers.flowing}
    check_size(headers.own, flowing)
    return HeaderSet(headers.own, flowing)


async def begin_in_task(begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Create the request of a call inside the task that runs it."""
    return await begin()
