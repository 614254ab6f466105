"""The caller's side of every call that is not a direct turn.

Owns: `Caller`: finding the target, waiting in its mailbox or for its reply. Not: the direct turn
(`stubs`), how a turn runs and ends (`turns/run`), the callee's side of remote calls (`callee`).
Invariants: a local turn runs in the task of whoever asked; arguments are isolated or encoded before
the first await; a call that surely did not run is sent on, at most `redirects_max` times; one whose
fate is unknown never is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any

import msgspec

from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import Rejected, SiloUnavailable
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.request import Request, current_request, live_request
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call

from .callee import Callee
from .cycles import check_cycle, note_blockers
from .locator import Destination, Locator
from .remote import Remote
from .waits import LocalWait, Moved, RemoteWait

__all__ = ["Caller"]

Headers = dict[str, str] | None


class Caller:
    """Calls of one process to grains, wherever they are.

    Args:
        shielded: keeps the turns that outlive their callers.
    """

    def __init__(
        self,
        turns: Turns,
        remote: Remote,
        locator: Locator,
        callee: Callee,
        shielded: Tasks,
        new_context: Callable[[], Context],
    ) -> None:
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
        """What calls a method of a grain, wherever it is; to be awaited at once.

        Not a coroutine itself: a frame more would be entered again at each of the call's wake-ups.
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
        """Call in the running task; to be awaited at once.

        Args:
            waiting: the request whose task waits for this one, so that the hop counts as its own.
            begun: receives the request, for who watches it.
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
        destination: Destination | None = None
        try:
            destination = self._locator.find(kind, key)
        except SiloUnavailable:  # it has refused a moment ago
            self._locator.on_lost(kind, key)
        request = self._turns.new_request(spec, timeout_s, kind.is_reentrant, parent)
        if begun is not None:
            begun.append(request)
        request.headers = headers
        if waiting is not None and request.parent is waiting:
            request.same_task = True
        if isinstance(destination, Activation):
            work = self._enter(destination, kind, key, args, request)
        else:
            work = self._route(destination, kind, key, args, request)
        return self._turns.run(request, work, self._turns.settle)

    def _find_quietly(self, kind: GrainKind, key: str) -> Destination | None:
        """Where the grain is, if that is known and the silo has not refused a moment ago."""
        try:
            return self._locator.find(kind, key)
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
            result = await self._turns.begin(activation, request, args)
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
        """Wait until the activation is ours (True) or has ended (False); the caller holds so many
        encoded bytes meanwhile.

        Raises CallCycle where that could never be, Overloaded, and what kept the grain from
        starting.
        """
        future: asyncio.Future[str | None] = self._turns.loop.create_future()
        entry = LocalWait(future, request, self._turns.known_errors, size_bytes)
        activation.queue(entry)
        try:
            if request.same_task or request.chain:
                check_cycle(activation, request)
            moved_to = await future
        except BaseException as error:  # cancelled, a cycle, or the caller's coroutine is closed
            # cancelled in the very iteration of the grant: `finish` leaves the activation again
            if request.activation is None:
                future.cancel()
                activation.withdraw(entry)
                if isinstance(error, asyncio.CancelledError):
                    note_blockers(request, activation)
            raise
        finally:
            entry = future = None  # type: ignore[assignment]  # may hold an exception, and that us
        return moved_to is None

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
        """Call in a new task: for depth, and for `direct=False`."""
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
        """Call a method that, once it has started, ends by itself, whatever its caller does."""
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
                text = f"{spec.label} ended with its silo: {self._turns.ended}"
                raise SiloUnavailable(text) from None
            raise
        finally:
            if not inner.done() and not (begun and begun[0].activation is not None):
                inner.cancel()  # it has not started here; a remote callee decides for itself
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
        """Find the grain and run the call there; send it on while it surely did not run."""
        spec, attempt, options = request.spec, 0, self._turns.options
        request.target = f"{kind.name}/{key}"
        body = spec.arguments.encode(args)
        wait: RemoteWait | None = None
        try:
            while attempt < options.redirects_max:
                if destination is None:
                    pause_s = options.retry_first_s * 2 ** (attempt - 2) if attempt > 1 else 0.0
                    destination = await self._locator.wait(kind, key, pause_s, len(body))
                if isinstance(destination, Activation):
                    args = spec.arguments.decode(body, kind.runtime)
                    if destination.try_enter(request) or await self.wait_turn(
                        destination, request, len(body)
                    ):
                        return await self._run_here(destination, kind, args, request)
                    destination = None
                    continue  # it ended in order: the next one is here, and this is no redirect
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
                        answer = Moved("")  # the connection broke before it was written
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
            body, wait = b"", None  # an error that is kept keeps its frames, and what they hold
        raise Rejected(
            f"{kind.name}/{key}: {spec.label} was sent on {options.redirects_max} times "
            "(redirects_max) without finding the grain"
        )

    async def _is_reached(self, peer: Peer, kind: GrainKind, key: str, size_bytes: int) -> bool:
        """Wait until a connection takes calls; False if it broke, and nothing was sent."""
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
        """Hand a one-way call on; returns once it is queued here or given to the connection.

        Raises Overloaded where the grain is here and its mailbox is full.
        """
        body = spec.arguments.encode(args)
        destination = self._find_quietly(kind, key)
        if not isinstance(destination, Activation) and (
            destination is None or not destination.writer.is_ready
        ):
            destination = await self._locator.wait(kind, key, 0.0, len(body))
        ttl_s = spec.timeout_s or self._turns.options.call_timeout_s
        message = Call(
            0, kind.name, key, spec.wire_name, msgspec.Raw(body), ttl_s, "", [], 0, headers, 0
        )
        if isinstance(destination, Activation):
            self._callee.take_one_way(destination, message, spec)
        else:
            destination.writer.send_one_way(message)
        await self._turns.budget.spend()


async def begin_in_task(begin: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Make the request of a call inside the task that runs it."""
    return await begin()
