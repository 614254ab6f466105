"""The sources of a client's list of gateways: the gateways themselves, and the membership table.

This module owns `ListUpdates`. The module `gateway_list` owns the list, `gateway_table` reads the
table, and `gateways` chooses the gateway of a call. At most one request for the list is under way,
not counting requests to leaving gateways. The table is read at the start, and later only when no
known gateway answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from millstream.runtime.calls.remote import Remote
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.errors import MillstreamError, SiloUnavailable
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.message import Call
from millstream.runtime.wire.peers import Peers

from .gateway_list import GatewayList
from .gateway_table import GatewayTable, Reading

__all__ = ["ListUpdates"]

GATEWAYS_EVERY_S = 10.0
TABLE_EVERY_S = 1.0
"""The least time between two readings of the table while no gateway answers, in seconds."""
LIST_SPEC: Any = GatewayTarget.gateways.__millstream_spec__  # type: ignore[attr-defined]

log = logging.getLogger("millstream.client")


class ListUpdates:
    """Keeps the list of gateways of one client up to date.

    `table` is the membership table, if the program has named it.
    """

    def __init__(
        self,
        gateway_list: GatewayList,
        table: GatewayTable | None,
        end: LocalEnd,
        peers: Peers,
        remote: Remote,
    ) -> None:
        self._list = gateway_list
        self._table = table
        self._end = end
        self._options = end.options
        self._peers = peers
        self._remote = remote
        self._reading: Reading | None = None
        self._looked_up_s = -math.inf
        self._wanted = asyncio.Event()

    @property
    def table_texts(self) -> list[str]:
        """Return a list with one sentence for errors, which names the client's membership table.

        The list is empty if the client has not read a membership table.
        """
        if self._reading is None:
            return []
        return [f"the membership table of this client is {self._reading.text}"]

    def want(self) -> None:
        """Ask for the list soon, because it may be out of date."""
        self._wanted.set()

    async def refresh(self) -> None:
        """Ask for the current list, one gateway after the other until one answers.

        The order is: known gateways, those in the membership table, and all addresses that are
        kept. Gateways that the answer does not name are then used as a last resort only, by their
        address. Raises SiloUnavailable.
        """
        failures: dict[str, str] = {}
        if await self._ask_any(self._list.known, failures):
            return
        why = await self._look_up_again()
        named = [] if self._reading is None else self._reading.addresses
        if not await self._ask_any([*named, *self._list.order("")], failures):
            raise SiloUnavailable("; ".join([*failures.values(), *why]), may_have_run=False)

    async def _ask_any(self, gateways: Sequence[str], failures: dict[str, str]) -> bool:
        """Learn the list of the first gateway that answers, without those that have failed.

        The answer of an unknown gateway is trusted, because the known ones were asked before.
        """
        for gateway in [one for one in gateways if one not in failures]:
            try:
                peer = self._peers.get(gateway)
                view = await self._remote.call(peer, GatewayTarget.target_name, "", LIST_SPEC, ())
            except (MillstreamError, TypeError) as error:  # TypeError: an invalid answer
                failures[gateway] = str(error)
                continue
            if peer.name in self._list.known:
                self._list.learn(view, peer.table_id)
            else:
                self._list.start_over(view, peer.table_id)
            return True
        return False

    async def _look_up_again(self) -> list[str]:
        """Read the table, unless it was just read; return the advice for an error message."""
        if self._end.loop.time() - self._looked_up_s >= TABLE_EVERY_S:
            try:
                await self.look_up()
            except MillstreamError as error:
                return [str(error)]
        return [] if self._reading is None else [self._reading.advice]

    async def look_up(self) -> None:
        """Read the membership table, if there is one. Raises StorageUnavailable, ConfigError.

        Its addresses are kept, and silos that follow another table are refused.
        """
        if self._table is None:
            return
        self._looked_up_s = self._end.loop.time()
        reading = self._reading = await self._table.read()
        self._end.follow(reading.table_id)
        self._list.suggest(reading.addresses)

    async def run(self) -> None:
        """Ask for the list every 10 s, and when a gateway was lost; forever.

        Gateways announce changes themselves. A client that missed an announcement learns the change
        here.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATEWAYS_EVERY_S):
                    await self._wanted.wait()
            await self._ask_some_times()
            self._wanted.clear()  # a loss during the request was noticed by the request

    async def _ask_some_times(self) -> None:
        for attempt in range(self._options.redirects_max):
            if attempt:
                await asyncio.sleep(self._options.retry_first_s * 2 ** (attempt - 1))
            try:
                await self.refresh()
            except MillstreamError as error:
                log.info("could not refresh the list of gateways: %s", error)
            else:
                return

    def ask_leaving(self, peer: Peer) -> None:
        """Ask a leaving gateway for the others: it knows them best, and is connected.

        The request is sent before its goodbye is handled, so the connection stays until the answer.
        """
        body = msgspec.Raw(LIST_SPEC.arguments.encode(()))
        name, method = GatewayTarget.target_name, LIST_SPEC.wire_name
        call = Call(0, name, "", method, body, self._options.call_timeout_s, "", [], 0, None)
        try:
            peer.writer.send_call(call, LastQuestion(self, peer))
        except MillstreamError as error:
            text = "gateway %s is shutting down, and could not be asked for other gateways: %s"
            log.info(text, peer.name, error)
            self.want()

    def on_last_answer(self, peer: Peer, body: msgspec.Raw, /) -> None:
        """Take the answer of a leaving gateway."""
        try:
            self._list.learn(self._remote.take(LIST_SPEC, body), peer.table_id)
        except TypeError as error:
            text = "gateway %s, which is shutting down, sent an invalid list of gateways: %s"
            log.warning(text, peer.name, error)
            self.want()


class LastQuestion:
    """The request for the list to a leaving gateway (`AnswerReceiver`)."""

    __slots__ = ("_peer", "_updates")

    def __init__(self, updates: ListUpdates, peer: Peer) -> None:
        self._updates = updates
        self._peer = peer

    def reply(self, body: msgspec.Raw, /) -> None:
        self._updates.on_last_answer(self._peer, body)

    def failure(self, body: msgspec.Raw, /) -> None:
        self._updates.want()

    def redirect(self, silo: str, /) -> None:
        self._updates.want()

    def on_broken(self, error: Exception, /) -> None:
        self._updates.want()
