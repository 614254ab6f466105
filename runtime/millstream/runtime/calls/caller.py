"""The caller's side of every call that is not a direct turn.

Owns: finding the target, waiting in its mailbox or for its reply, deadline and cancellation of the
wait. Not: the direct turn (`stubs`), the callee's side of remote calls (`serving`). Invariants: a
local turn runs in the task of whoever asked; arguments are isolated or encoded before the first
await; a call that surely did not run is sent on, at most `redirects_max` times; one whose fate is
unknown never is.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine
from contextvars import Context
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.runtime.codec.failures import isolate_error, rebuild
from millstream.runtime.errors import CallCycle, CallError, CallTimeout, Rejected, SiloUnavailable
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.request import (
    Request,
    chain_of,
    current_request,
    live_parent,
    path_to,
    turn_name,
    waits_for,
)
from millstream.runtime.turns.run import begin_turn, finish, settle, timed_out
from millstream.runtime.wire.message import Call

from .callee import Served

if TYPE_CHECKING:
    from millstream.runtime.definition.method import MethodSpec
    from millstream.runtime.turns.catalog import GrainTable
    from millstream.runtime.wire.connection import Peer

    from .engine import Host
    from .search import Place

__all__ = ["call", "new_request"]

log = logging.getLogger("millstream.calls")


class LocalWait:
    """A local caller that waits for an activation; it is handed the turn in its own task."""

    __slots__ = ("future", "host", "is_withdrawn", "request")

    def __init__(self, host: Host, request: Request) -> None:
        future: asyncio.Future[str | None] = host.loop.create_future()
        self.host = host
        self.request = request
        self.future = future
        self.is_withdrawn = False

    def grant(self) -> bool:
        if self.future.done():
            return False
        self.future.set_result(None)
        return True

    def moved(self, silo: str) -> None:
        if not self.future.done():
            self.future.set_result(silo)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            assert isinstance(error, Exception)
            place = self.request.spec.label
            self.future.set_exception(isolate_error(error, self.host.known_errors, place))


class RemoteWait:
    """A caller that waits for a reply; the future gives the encoded result or the redirect."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def reply(self, body: msgspec.Raw) -> None:
        if not self.future.done():
            self.future.set_result(body)

    def failure(self, body: msgspec.Raw) -> None:
        if not self.future.done():
            self.future.set_result(RemoteFailure(body))

    def redirect(self, silo: str) -> None:
        if not self.future.done():
            self.future.set_result(Moved(silo))

    def broken(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class RemoteFailure:
    """The callee raised; `body` is the encoded error."""

    __slots__ = ("body",)

    def __init__(self, body: msgspec.Raw) -> None:
        self.body = body


class Moved:
    """The call did not run; the grain is at `silo`, or must be looked up if that is empty."""

    __slots__ = ("silo",)

    def __init__(self, silo: str) -> None:
        self.silo = silo


def new_request(
    host: Host, spec: MethodSpec, timeout_s: float | None, is_reentrant: bool, begins_chain: bool
) -> Request:
    """A request of the running task, with its deadline watched."""
    task = host.find_task()
    parent = None if begins_chain else live_parent()
    seconds = timeout_s or spec.timeout_s or host.options.call_timeout_s
    deadline, is_regular = host.loop.time() + seconds, True
    depth, is_tight = 1, False
    if parent is not None:
        depth, is_tight = parent.depth + 1, parent.task is task
        if parent.deadline < deadline:
            deadline, is_regular = parent.deadline, False
        if depth > host.options.chain_turns_max:
            raise CallError(
                f"{turn_name(parent)}: the chain of calls is longer than chain_turns_max "
                f"{host.options.chain_turns_max}"
            )
    request = Request(parent, task, None, spec, deadline, depth, task.cancelling(), is_tight)
    if spec.is_read_only:
        request.is_read = True
    if is_reentrant or spec.is_interleaving:
        request.is_interleaving = True
    if timeout_s:
        request.timeout_s = timeout_s
    if is_regular or not is_tight:
        is_grouped = is_regular and timeout_s is None  # chosen time-outs may be any number
        host.pending.add(request, seconds if is_grouped else None)
    return request


def call(
    host: Host,
    table: GrainTable,
    key: str,
    spec: MethodSpec,
    args: tuple[Any, ...],
    timeout_s: float | None = None,
    headers: dict[str, str] | None = None,
) -> Coroutine[Any, Any, Any]:
    """What calls a method of a grain, wherever it is; to be awaited at once.

    Not a coroutine itself: a frame more would be entered again at each of the call's wake-ups.
    """
    host.check_running()
    if spec.is_one_way:
        return send_one_way(host, table, key, spec, args, headers)
    if spec.is_shielded:
        return call_shielded(host, table, key, spec, args, timeout_s, headers)
    parent = live_parent()
    if not table.is_direct:
        context = host.env.new_context()
        context.run(current_request.set, parent)
        return in_own_task(host, table, key, spec, args, timeout_s, headers, context)
    if parent is not None and not (parent.depth + 1) % host.options.nested_turns_max:
        if host.find_task() is parent.task:
            return in_own_task(host, table, key, spec, args, timeout_s, headers)
    return call_here(host, table, key, spec, args, timeout_s, headers)


async def call_here(
    host: Host,
    table: GrainTable,
    key: str,
    spec: MethodSpec,
    args: tuple[Any, ...],
    timeout_s: float | None,
    headers: dict[str, str] | None,
    tight_parent: Request | None = None,
    begun: list[Request] | None = None,
) -> Any:
    """Call in the running task; `begun` receives the request, for who watches it."""
    request = new_request(host, spec, timeout_s, table.is_reentrant, begins_chain=False)
    if begun is not None:
        begun.append(request)
    request.headers = headers
    if tight_parent is not None and request.parent is tight_parent:
        request.is_tight = True
    failed: BaseException | None = None
    result = None
    try:
        place = find_quietly(host, table, key)
        if isinstance(place, Activation):  # the common case, without the frame of `travel`
            args = spec.isolate(args, host)
            if place.try_enter(request) or await wait_turn(host, place, request):
                if spec.is_shielded:
                    unwatch(host, request)
                result = spec.isolate_result(await begin_turn(place, request, args), host)
            else:
                result = await travel(host, table, key, args, request, None)
        else:
            result = await travel(host, table, key, args, request, place)
    except BaseException as error:
        failed = settle(host, request, error)
    else:
        finish(host, request)
        if request.expired:
            host.find_task().uncancel()
            failed = timed_out(host, request)
    if failed is not None:
        try:
            raise failed
        finally:
            failed = request = None  # type: ignore[assignment]
    return result


async def in_own_task(
    host: Host,
    table: GrainTable,
    key: str,
    spec: MethodSpec,
    args: tuple[Any, ...],
    timeout_s: float | None,
    headers: dict[str, str] | None,
    context: Context | None = None,
) -> Any:
    """Call in a new task: for depth, and for `direct=False`."""
    parent = live_parent()
    is_tight = parent is not None and parent.task is host.find_task()
    args = spec.isolate(args, host)
    inner = host.loop.create_task(
        call_here(host, table, key, spec, args, timeout_s, headers, parent if is_tight else None),
        context=context,
    )
    try:
        return await inner
    finally:
        inner = None  # type: ignore[assignment]


async def call_shielded(
    host: Host,
    table: GrainTable,
    key: str,
    spec: MethodSpec,
    args: tuple[Any, ...],
    timeout_s: float | None,
    headers: dict[str, str] | None,
) -> Any:
    """Call a method that, once it has started, runs to its end whatever happens to the caller."""
    args = spec.isolate(args, host)
    begun: list[Request] = []
    inner = host.loop.create_task(
        call_here(host, table, key, spec, args, timeout_s, headers, begun=begun)
    )
    host.shielded.keep(inner)
    outer = new_request(host, spec, timeout_s, False, begins_chain=False)
    failed: BaseException | None = None
    result = None
    try:
        result = await asyncio.shield(inner)
    except BaseException as error:
        failed = settle(host, outer, error)
        if inner.cancelled() and not host.is_running:
            failed = SiloUnavailable(f"{host.address} has ended, and {spec.label} with it")
        if not inner.done() and not (begun and begun[0].activation is not None):
            inner.cancel()  # it has not started here; a remote callee decides for itself
    else:
        finish(host, outer)
    if failed is not None:
        try:
            raise failed
        finally:
            failed = outer = inner = None  # type: ignore[assignment]
    return result


def find_quietly(host: Host, table: GrainTable, key: str) -> Place | None:
    """Where the grain is, if that is known and the place has not refused a moment ago."""
    try:
        return host.router.find(table, key)
    except SiloUnavailable:
        host.router.lost(table, key)
        return None


async def is_reached(host: Host, peer: Peer, table: GrainTable, key: str) -> bool:
    """Wait until a connection takes calls; False if it broke, and nothing was sent."""
    try:
        await peer.ready()
    except SiloUnavailable:
        host.router.lost(table, key)
        return False
    return True


async def travel(
    host: Host,
    table: GrainTable,
    key: str,
    args: tuple[Any, ...],
    request: Request,
    place: Place | None,
) -> Any:
    """Find the grain and run the call there; send it on while it surely did not run."""
    spec, attempt = request.spec, 0
    body = spec.arguments.encode(args)
    while attempt < host.options.redirects_max:
        if place is None:
            pause_s = host.options.retry_first_s * 2 ** (attempt - 2) if attempt > 1 else 0.0
            place = await host.router.stand(table, key, pause_s)
        if isinstance(place, Activation):
            args = spec.arguments.decode(body, host)
            if place.try_enter(request) or await wait_turn(host, place, request):
                if spec.is_shielded:
                    unwatch(host, request)
                return spec.isolate_result(await begin_turn(place, request, args), host)
            place = None
            continue  # it ended in order while this waited: the next one is here, no redirect
        if place.is_ready or await is_reached(host, place, table, key):
            answer = await ask(host, place, table, key, body, request, attempt)
            if type(answer) is not Moved:
                return take_answer(host, spec, answer)
            host.router.moved(table, key, place, answer.silo)
        attempt, place = attempt + 1, None
    raise Rejected(
        f"{table.name}/{key}: {spec.label} was sent on {host.options.redirects_max} times "
        "(redirects_max) without finding the grain"
    )


def unwatch(host: Host, request: Request) -> None:
    """From now on no deadline ends the request (a shielded method has started)."""
    host.pending.remove(request)
    request.deadline = math.inf


async def wait_turn(host: Host, activation: Activation, request: Request) -> bool:
    """Wait in line until the activation is ours (True) or has moved (False)."""
    entry = LocalWait(host, request)
    activation.queue(entry)
    if (request.is_tight or request.chain) and is_cycle(activation, request):
        assert activation.mailbox is not None
        activation.mailbox.withdraw(entry)
        raise CallCycle(*cut_path(path_to(request), str(activation)))
    try:
        moved_to = await entry.future
    except asyncio.CancelledError:
        # cancelled in the very iteration of the grant: `finish` leaves the activation again
        if entry.future.cancelled() and activation.mailbox is not None:
            activation.mailbox.withdraw(entry)
            blame(request, activation)
        raise
    finally:
        entry = None  # type: ignore[assignment]  # its future may hold an exception, and that us
    return moved_to is None


def is_cycle(activation: Activation, request: Request) -> bool:
    """Does a turn that keeps the request waiting itself wait for it?"""
    return any(waits_for(blocking, request) for blocking in activation.blocking())


def cut_path(waiters: list[str], target: str) -> list[str]:
    """The part of the chain that is the cycle: from the target back to the target."""
    start = max((i for i, name in enumerate(waiters) if name == target), default=0)
    return [*waiters[start:], target]


def blame(request: Request, activation: Activation) -> None:
    """If a deadline ended the wait, tell the turn that it belonged to what was waited for."""
    while not request.expired and request.is_tight:
        request = request.parent
    if request.expired and not request.is_forced:
        request.stop_reason = name_blockers(activation)


def name_blockers(activation: Activation) -> str:
    """What a request that waited too long waited for."""
    names = [
        f"{request.spec.label} for {request.caller or 'a caller'}"
        for request in activation.blocking()
    ]
    return f"waited for {activation}, which runs {', '.join(names)}" if names else ""


async def ask(
    host: Host,
    peer: Peer,
    table: GrainTable,
    key: str,
    body: bytes,
    request: Request,
    hops: int,
) -> Any:
    """Send the call and wait for its answer; on cancellation tell the callee.

    The connection takes calls now: `ready()` has returned in this very step of the task.
    """
    ttl_s = request.deadline - host.loop.time()
    if ttl_s <= 0:
        limit_s = request.timeout_s or request.spec.timeout_s or host.options.call_timeout_s
        raise CallTimeout(
            f"{table.name}/{key}: {request.spec.label}: no time was left to send it "
            f"(timeout {limit_s:g} s)"
        )
    caller = turn_name(request.parent) if request.is_tight else ""
    message = Call(
        0,
        table.name,
        key,
        request.spec.wire_name,
        msgspec.Raw(body),
        ttl_s,
        caller,
        chain_of(request, host.env.new_id) if request.is_tight or request.chain else [],
        hops,
        request.headers,
    )
    wait = RemoteWait(host.loop.create_future())
    call_id = peer.send_call(message, wait)
    try:
        return await wait.future
    except asyncio.CancelledError:
        peer.cancel_call(call_id)
        raise
    finally:
        wait = None  # type: ignore[assignment]  # its future may hold an exception, and that us


def take_answer(host: Host, spec: MethodSpec, answer: Any) -> Any:
    """Decode a result, or raise the callee's error."""
    if type(answer) is RemoteFailure:
        raise rebuild(answer.body, host.known_errors)
    try:
        return spec.result.decode(answer, host)
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(f"{spec.label}: result: {error}") from None


async def send_one_way(
    host: Host,
    table: GrainTable,
    key: str,
    spec: MethodSpec,
    args: tuple[Any, ...],
    headers: dict[str, str] | None,
) -> None:
    """Hand a one-way call on; returns once it is queued here or written to the peer."""
    body = spec.arguments.encode(args)
    place = find_quietly(host, table, key)
    if not isinstance(place, Activation) and (place is None or not place.is_ready):
        place = await host.router.stand(table, key)
    ttl_s = spec.timeout_s or host.options.call_timeout_s
    message = Call(0, table.name, key, spec.wire_name, msgspec.Raw(body), ttl_s, "", [], 0, headers)
    if isinstance(place, Activation):
        Served(host, None, message, spec).submit(place)
    else:
        place.send_one_way(message)
