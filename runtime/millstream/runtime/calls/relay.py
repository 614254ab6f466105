"""A gateway's relay of one client call to the silo that has the grain.

Owns: the call between its arrival from the client and its answer. Invariants: bodies pass unread;
a call that surely did not run is sent on; one whose fate is unknown is answered with the error.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from millstream.runtime.codec.failures import describe
from millstream.runtime.errors import CallTimeout, MillstreamError, SiloUnavailable
from millstream.runtime.turns.activation import Activation
from millstream.runtime.wire.message import Call, Failure, Redirect, Reply

from .callee import Served

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost
    from millstream.runtime.turns.catalog import GrainTable
    from millstream.runtime.wire.connection import Peer

    from .search import Place

__all__ = ["Relay"]


class Relay:
    """One relayed call; receives its answer from the silo that ran it."""

    __slots__ = (
        "_call",
        "_client",
        "_client_id",
        "_deadline",
        "_host",
        "_is_cancelled",
        "_peer",
        "_sent_id",
        "_served",
        "_table",
    )

    def __init__(self, host: SiloHost, client: Peer, call: Call, table: GrainTable) -> None:
        self._host = host
        self._client = client
        self._client_id = call.id
        self._call = call
        self._table = table
        self._deadline = host.loop.time() + call.ttl_s
        self._peer: Peer | None = None
        self._sent_id = 0
        self._served: Served | None = None
        self._is_cancelled = False

    def start(self) -> None:
        """Send the call on: now if the place is known and takes calls, else in line with others."""
        try:
            place = self._host.silo_router.find(self._table, self._call.key)
        except SiloUnavailable:
            self._host.silo_router.lost(self._table, self._call.key)
            place = None
        if isinstance(place, Activation) or (place is not None and place.is_ready):
            self._hand_to(place)
            return
        try:
            self._host.silo_router.stand(self._table, self._call.key).add_done_callback(self._found)
        except MillstreamError as error:
            self._fail(error)

    def _found(self, place: asyncio.Future[Place]) -> None:
        error = None if place.cancelled() else place.exception()
        if isinstance(error, SiloUnavailable):
            self._refuse()
        elif isinstance(error, Exception):
            self._fail(error)
        elif not place.cancelled():
            self._hand_to(place.result())

    def _hand_to(self, place: Place) -> None:
        if self._is_cancelled:
            return
        try:
            if isinstance(place, Activation):
                self._serve_here(place)
                return
            ttl_s = self._deadline - self._host.loop.time()
            if self._call.ttl_s > 0 and ttl_s <= 0:
                raise CallTimeout(f"{self._call.kind}/{self._call.key}: no time was left")
            sent = msgspec.structs.replace(self._call, ttl_s=max(ttl_s, 0.0))
            if self._client_id:
                self._peer, self._sent_id = place, place.send_call(sent, self)
            else:
                place.send_one_way(sent)
        except SiloUnavailable:  # the connection closed before anything was sent
            self._refuse()
        except (MillstreamError, ValueError) as error:
            self._fail(error)

    def _serve_here(self, activation: Activation) -> None:
        spec = self._host.spec_of(self._table, self._call.method)
        self._served = Served(self._host, self._client, self._call, spec)
        self._served.submit(activation)

    def _refuse(self) -> None:
        """The call surely did not run: let the client try again."""
        self._client.answer(self._client_id, Redirect(self._client_id, ""))

    def _fail(self, error: Exception) -> None:
        place = f"{self._call.kind}/{self._call.key}"
        body = msgspec.Raw(describe(error, place))
        self._client.answer(self._client_id, Failure(self._client_id, body))

    # -- AnswerReceiver

    def reply(self, body: msgspec.Raw, /) -> None:
        self._client.answer(self._client_id, Reply(self._client_id, body))

    def failure(self, body: msgspec.Raw, /) -> None:
        self._client.answer(self._client_id, Failure(self._client_id, body))

    def redirect(self, silo: str, /) -> None:
        assert self._peer is not None
        self._host.silo_router.moved(self._table, self._call.key, self._peer, silo)
        self._call.hops += 1
        if self._call.hops < self._host.options.redirects_max and silo:
            self.start()
        else:
            self._refuse()

    def broken(self, error: Exception, /) -> None:
        self._fail(error)

    def cancel(self) -> None:
        """The client gave up, or is gone."""
        self._is_cancelled = True
        if self._served is not None:
            self._served.cancel()
        elif self._peer is not None:
            self._peer.cancel_call(self._sent_id)
