"""A gateway's relay of one client call to the silo that has the grain.

Owns: the call between its arrival from the client and its answer. Invariants: bodies pass unread;
a call that surely did not run is sent on; one whose fate is unknown is answered with the error.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from .activation import Activation
from .errors import CallTimeout, MillstreamError, SiloUnavailable
from .failures import describe
from .message import Call, Failure, Redirect, Reply
from .serving import Served

if TYPE_CHECKING:
    from .catalog import GrainTable
    from .connection import Peer
    from .silo_host import SiloHost

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
        """Send the call on, now if the place is known."""
        try:
            place = self._host.silo_router.find(self._table, self._call.key)
        except MillstreamError:
            place = None
        if place is None:
            self._host.silo_router.expect(self._table, self._call.key)
            self._host.spawn(self._start_later())
        elif not isinstance(place, Activation) and not place.is_ready:
            self._stand_in_line(place)
        else:
            self._hand_to(place)

    async def _start_later(self) -> None:
        try:
            place = await self._host.silo_router.locate(self._table, self._call.key)
        except SiloUnavailable as error:
            self._refuse(error)
        except MillstreamError as error:
            self._fail(error)
        else:
            if isinstance(place, Activation) or place.is_ready:
                self._hand_to(place)
            else:
                self._stand_in_line(place)

    def _stand_in_line(self, peer: Peer) -> None:
        """Take the place in line now, so that no later call is sent first."""
        try:
            turn = peer.stand_in_line()
        except SiloUnavailable as error:
            self._refuse(error)
        except MillstreamError as error:
            self._fail(error)
        else:
            # callbacks run in the order of the line, which tasks begun at other times need not
            turn.add_done_callback(partial(self._have_turn, peer))

    def _have_turn(self, peer: Peer, turn: asyncio.Future[None]) -> None:
        error = None if turn.cancelled() else turn.exception()
        if isinstance(error, SiloUnavailable):
            self._refuse(error)
        elif isinstance(error, Exception):
            self._fail(error)
        elif not turn.cancelled():
            self._hand_to(peer)

    def _hand_to(self, place: Any) -> None:
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
        except (MillstreamError, ValueError) as error:
            self._fail(error)

    def _serve_here(self, activation: Activation) -> None:
        spec = self._host.spec_of(self._table, self._call.method)
        self._served = Served(self._host, self._client, self._call, spec)
        self._served.submit(activation)

    def _refuse(self, error: Exception) -> None:
        """The call surely did not run: let the client try again."""
        self._host.directory.forget(self._table.name, self._call.key)
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
            self._refuse(SiloUnavailable("the grain moved"))

    def broken(self, error: Exception, /) -> None:
        self._fail(error)

    def cancel(self) -> None:
        """The client gave up, or is gone."""
        self._is_cancelled = True
        if self._served is not None:
            self._served.cancel()
        elif self._peer is not None:
            self._peer.cancel_call(self._sent_id)
