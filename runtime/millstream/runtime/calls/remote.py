"""One call over a connection, and its answer.

`Remote` builds the message of a request, waits for the answer, and gives calls up. A call that is
given up is cancelled at the callee. A `Locator` chooses the connection, and `wire` owns it.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

import msgspec

from millstream.runtime.codec.failures import rebuild
from millstream.runtime.definition.grain import Runtime
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import CallTimeout
from millstream.runtime.turns.flows import flowing_of
from millstream.runtime.turns.request import Request, chain_of, turn_name
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, VersionedCall

from .waits import RemoteFailure, RemoteWait

__all__ = ["Remote"]

EARLIER_S = 0.05
"""Seconds by which the callee's deadline is earlier, so that the callee can report the reason."""
EARLIER_PART = 0.1
"""Upper limit of that time, as a part of the time that is left."""
LONG_S = EARLIER_S / EARLIER_PART


class Remote:
    """The calls of one process over its connections."""

    __slots__ = ("_runtime", "_turns")

    def __init__(self, turns: Turns, runtime: Runtime) -> None:
        self._turns = turns
        self._runtime = runtime

    def call(
        self, peer: Peer, name: str, key: str, spec: MethodSpec, args: tuple[Any, ...]
    ) -> Coroutine[Any, Any, Any]:
        """Return an awaitable that calls a system target over a connection. Await it at once.

        The call begins a new chain. Raises the errors of the method, CallTimeout, SiloUnavailable.
        """
        request = self._turns.new_request(spec, None, False, None)
        return self._turns.run(
            request, self._call(peer, name, key, args, request), self._turns.settle
        )

    async def _call(
        self, peer: Peer, name: str, key: str, args: tuple[Any, ...], request: Request
    ) -> Any:
        spec: MethodSpec = request.spec
        request.target = f"{name}/{key}" if key else name
        body = spec.arguments.encode(args)
        try:
            if not peer.writer.is_ready:
                await peer.writer.ready(len(body))
            wait = self.send(peer, name, key, body, request, 0)
            try:
                return self.take(spec, await wait.future)
            except BaseException:  # cancel the call at the callee, as `Caller._route` does
                peer.writer.cancel_call(wait.call_id)
                raise
        finally:
            body, wait = b"", None  # type: ignore[assignment]  # see `Caller._route`

    def send(
        self, peer: Peer, name: str, key: str, body: bytes, request: Request, hops: int
    ) -> RemoteWait:
        """Send the call. `wait.future` of the result gets the answer.

        Call this only directly after `ready()` has returned, without an await between the two. A
        caller that stops waiting calls `cancel_call(wait.call_id)`, and keeps neither body nor
        wait: a stored error keeps its Python frames, and these would keep both. This is no
        coroutine function, because its frame would be entered again at each wake-up.
        """
        wait = RemoteWait(self._turns.loop.create_future())
        call = self._message(name, key, body, request, hops)
        body_bytes, body = len(body), b""
        wait.call_id = peer.writer.send_call(call, wait, body_bytes)
        return wait

    def _message(self, name: str, key: str, body: bytes, request: Request, hops: int) -> Call:
        ttl_s = request.deadline - self._turns.loop.time()
        if ttl_s <= 0:
            options = self._turns.options
            limit_s = request.timeout_s or request.spec.timeout_s or options.call_timeout_s
            raise CallTimeout(
                f"{name}/{key}: {request.spec.label}: the deadline passed before the call was sent "
                f"(timeout {limit_s:g} s)"
            )
        is_hop, spec, headers = request.same_task, request.spec, request.headers
        make = Call if spec.version == 1 else VersionedCall
        call = make(
            0,
            name,
            key,
            spec.wire_name,
            msgspec.Raw(body),
            ttl_s - (EARLIER_S if ttl_s > LONG_S else ttl_s * EARLIER_PART),
            turn_name(request.parent) if is_hop else "",
            chain_of(request, self._turns.new_id) if is_hop or request.chain else [],
            hops,
            None if headers is None else headers.own or None,
            request.depth,
        )
        if make is VersionedCall:
            call.version = spec.version  # type: ignore[misc]
        if headers is not None or request.parent is not None:
            call.flowing = flowing_of(request) or None
        return call

    def take(self, spec: MethodSpec, answer: Any) -> Any:
        """Decode a result, or raise the callee's error."""
        if type(answer) is RemoteFailure:
            raise rebuild(answer.body, self._turns.known_errors)
        decode = spec.quick_result
        if decode is not None:
            try:
                return decode(answer)
            except Exception:  # the slow path below raises a better error
                pass
        try:
            return spec.result.decode(answer, self._runtime)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{spec.label}: result: {error}") from None
