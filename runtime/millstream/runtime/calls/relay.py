"""A gateway's relay of one call: from a client to a grain, or from anywhere to an observer.

`Relay` owns the call between its arrival and its answer. Bodies pass through unread. A call that
certainly did not run is sent again. If a call may have run, its answer is the error.
"""

from __future__ import annotations

import asyncio

import msgspec

from millstream.runtime.codec.failures import describe
from millstream.runtime.errors import CallTimeout, ClusterError, MillstreamError, SiloUnavailable
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, Failure, Redirect, Reply

from .callee import NOTHING, Callee, InboundCall, size_of
from .locator import Destination, Locator

__all__ = ["ClientMoved", "Relay"]


class ClientMoved(ClusterError):
    """The client of an observer is attached to another gateway. Never reaches a program."""


class Relay:
    """One relayed call. It receives the answer of the silo that ran the call."""

    __slots__ = (
        "_call",
        "_callee",
        "_client",
        "_client_id",
        "_deadline",
        "_held_bytes",
        "_inbound",
        "_is_cancelled",
        "_kind",
        "_locator",
        "_peer",
        "_sent_id",
        "_turns",
        "_waiter",
    )

    def __init__(
        self,
        turns: Turns,
        locator: Locator,
        callee: Callee,
        client: Peer,
        call: Call,
        kind: GrainKind,
    ) -> None:
        self._turns = turns
        self._locator = locator
        self._callee = callee
        self._client = client
        self._client_id = call.id
        self._call = call
        self._kind = kind
        self._deadline = turns.loop.time() + call.ttl_s
        self._peer: Peer | None = None
        self._sent_id = 0
        self._held_bytes = 0  # bytes kept for sending the call again
        self._inbound: InboundCall | None = None
        self._waiter: asyncio.Future[Destination] | None = None
        self._is_cancelled = False

    def start(self) -> None:
        """Send the call on now if a destination accepts calls, else wait for one."""
        try:
            found = self._locator.find(self._kind, self._call.key, self._call.version)
        except SiloUnavailable:
            self._locator.on_lost(self._kind, self._call.key)
            found = None
        if isinstance(found, Activation) or (found is not None and found.writer.is_ready):
            self._hand_to(found)
            return
        try:
            size_bytes = size_of(self._call)
            self._waiter = self._locator.wait(
                self._kind, self._call.key, 0.0, size_bytes, self._call.version
            )
            self._waiter.add_done_callback(self._found)
        except MillstreamError as error:
            self._fail(error)

    def _found(self, found: asyncio.Future[Destination]) -> None:
        self._waiter = None
        error = None if found.cancelled() else found.exception()
        if isinstance(error, SiloUnavailable | ClientMoved):
            self._refuse()
        elif isinstance(error, Exception):
            self._fail(error)
        elif not found.cancelled():
            self._hand_to(found.result())

    def _hand_to(self, found: Destination) -> None:
        if self._is_cancelled:
            return
        try:
            if isinstance(found, Activation):
                self._serve_here(found)
                return
            ttl_s = self._deadline - self._turns.loop.time()
            if self._call.ttl_s > 0 and ttl_s <= 0:
                name = f"{self._call.kind}/{self._call.key}"
                raise CallTimeout(f"{name}: the deadline passed before the call was forwarded")
            sent = msgspec.structs.replace(self._call, ttl_s=max(ttl_s, 0.0))
            if self._client_id:
                self._hold()
                self._peer, self._sent_id = found, found.writer.send_call(sent, self)
            else:
                found.writer.send_one_way(sent)
        except SiloUnavailable:  # the connection closed before the call was sent
            self._refuse()
        except (MillstreamError, ValueError) as error:
            self._fail(error)

    def _hold(self) -> None:
        """Count the bytes of the call until it is answered. Raises Overloaded."""
        size_bytes = size_of(self._call)
        self._turns.waiting_bytes.take(f"{self._call.kind}/{self._call.key}", size_bytes, 0)
        self._held_bytes = size_bytes

    def _let_go(self) -> None:
        self._turns.waiting_bytes.give_back(self._held_bytes)
        self._held_bytes = 0

    def _serve_here(self, activation: Activation) -> None:
        spec = self._callee.admit(self._kind, self._call)
        self._inbound = self._callee.accept_relayed(self._client, self._call, spec)
        self._inbound.submit(activation)

    def _refuse(self) -> None:
        """Let the caller try again, because the call certainly did not run."""
        self._let_go()
        if not self._client_id and self._kind.is_observer:
            self._callee.send_on(self._kind, self._call)
        self._client.served.answer(self._client_id, Redirect(self._client_id, ""))

    def _fail(self, error: Exception) -> None:
        self._let_go()
        if not self._client_id:
            self._callee.note_dropped(self._call, error)
        name = f"{self._call.kind}/{self._call.key}"
        body = msgspec.Raw(describe(error, name))
        self._client.served.answer(self._client_id, Failure(self._client_id, body))

    # -- AnswerReceiver

    def reply(self, body: msgspec.Raw, /) -> None:
        self._let_go()
        self._client.served.answer(self._client_id, Reply(self._client_id, body))

    def failure(self, body: msgspec.Raw, /) -> None:
        self._let_go()
        self._client.served.answer(self._client_id, Failure(self._client_id, body))

    def redirect(self, silo: str, /) -> None:
        assert self._peer is not None
        self._let_go()
        self._locator.on_moved(self._kind, self._call.key, self._peer, silo)
        self._call.hops += 1
        if self._call.hops < self._turns.options.redirects_max and silo:
            self.start()
        else:
            self._refuse()

    def on_broken(self, error: Exception, /) -> None:
        if self._kind.is_observer and isinstance(error, SiloUnavailable) and not error.may_have_run:
            self._refuse()
        else:
            self._fail(error)

    def cancel(self) -> None:
        """Cancel the call, because the client gave up or has gone."""
        self._is_cancelled = True
        self._let_go()
        if self._inbound is not None:
            self._inbound.cancel()
        elif self._peer is not None:
            self._peer.writer.cancel_call(self._sent_id)
        else:
            self._call.body = NOTHING
            if self._waiter is not None:
                self._waiter.cancel()
