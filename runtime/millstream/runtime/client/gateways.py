"""A client's gateways: which it is connected to, and which grain goes through which.

Owns: `Gateways`: asking for the list of all, and choosing. Is the `Locator` of a client. Not:
which of them may be used (`gateway_list`), the membership table (`gateway_table`). Invariants:
calls to one grain go through one gateway while that is connected and the list gives them no other
one, so they keep their order; a call whose gateway is lost after it was sent ends with
SiloUnavailable, one that was not sent yet goes through another gateway; one question for the list
is under way at a time, not counting those to gateways that leave; the table is read at the start,
and later only when no known gateway answers.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from millstream.runtime.calls.locator import Destination
from millstream.runtime.calls.remote import Remote
from millstream.runtime.calls.search import Searches
from millstream.runtime.cluster.gateways import GatewayTarget
from millstream.runtime.codec.failures import describe
from millstream.runtime.errors import (
    CallError,
    MillstreamError,
    NotHosted,
    NotInCluster,
    Rejected,
    SiloUnavailable,
)
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.message import Call, Failure, GatewayView
from millstream.runtime.wire.peers import Peers

from .gateway_list import GatewayList
from .gateway_table import GatewayTable, Reading

__all__ = ["GatewayCalls", "Gateways"]

P = ParamSpec("P")
R = TypeVar("R")
GATEWAYS_EVERY_S = 10.0
TABLE_EVERY_S = 1.0
"""Least time between two readings of the membership table while no gateway answers."""
ASK_AGAIN_S = 1.0
"""Longest wait before a system target is asked for again that starting silos may have."""
LIST_SPEC: Any = GatewayTarget.gateways.__millstream_spec__  # type: ignore[attr-defined]
EVICTED_SPEC: Any = GatewayTarget.list_evicted.__millstream_spec__  # type: ignore[attr-defined]

log = logging.getLogger("millstream.client")


class Gateways:
    """The gateways of one client (`Locator`, `Inbox`, `Welcome`).

    Args:
        given: `host:port` of those that the program named.
        table: where others are found, if the program has named it.
    """

    def __init__(
        self,
        given: Sequence[str],
        table: GatewayTable | None,
        turns: Turns,
        end: LocalEnd,
        peers: Peers,
        remote: Remote,
    ) -> None:
        self.options = turns.options
        self.remote = remote
        self._table = table
        self._reading: Reading | None = None
        self._looked_up_s = -math.inf
        self._turns = turns
        self._end = end
        self._peers = peers
        self._list = GatewayList(given)
        self._list_wanted = asyncio.Event()
        self._searches = Searches(turns, end.tasks, self._locate, self.on_lost)
        self.looked_for = self._searches.under_way
        self.has_waiting = self._searches.has_waiting
        """Do calls wait for a connection to this grain's gateway?"""

    @property
    def known(self) -> list[str]:
        """The gateways that the cluster told, without those that leave."""
        return self._list.known

    @property
    def addresses(self) -> list[str]:
        """All gateways that would be asked now, in order."""
        return self._list.order("")

    @property
    def table_texts(self) -> list[str]:
        """Which membership table the client was given, for messages; empty if none."""
        if self._reading is None:
            return []
        return [f"the membership table of this client is {self._reading.text}"]

    # -- finding (`Locator`)

    def find(self, kind: GrainKind, key: str, /) -> Destination | None:
        """The connection that carries the grain's calls: the first that works, or may."""
        if self.looked_for and (kind.name, key) in self.looked_for:
            return None
        if self._list.only:
            try:
                return self._peers.get(self._list.only)
            except SiloUnavailable:
                pass
        for gateway in self._list.order(f"{kind.name}/{key}"):
            try:
                return self._peers.get(gateway)
            except SiloUnavailable:
                continue
        return None

    def wait(
        self, kind: GrainKind, key: str, pause_s: float = 0.0, size_bytes: int = 0, /
    ) -> asyncio.Future[Destination]:
        """Wait for a gateway (see `Searches.wait`)."""
        return self._searches.wait(kind, key, pause_s, size_bytes)

    async def _locate(self, kind: GrainKind, key: str) -> Destination:
        return await self.ready(kind.name, key)

    def on_moved(self, kind: GrainKind, key: str, peer: Peer, silo: str, /) -> None:
        """The gateway looks the grain up anew."""

    def on_lost(self, kind: GrainKind, key: str, /) -> None:
        """The gateway could not be reached; the next try goes over all of them."""

    def _only(self) -> Peer | None:
        """The connection to the only gateway; None: there are others, or it is not ready."""
        if not self._list.only:
            return None
        try:
            peer = self._peers.get(self._list.only)
        except SiloUnavailable:
            return None
        return peer if peer.is_ready else None

    async def ready(self, *name: str) -> Peer:
        """A connected gateway; one that refuses is passed over. Raises SiloUnavailable."""
        if (only := self._only()) is not None:  # then no name has another first one
            return only
        refused: list[str] = []
        for gateway in self._list.order("/".join(name)):
            try:
                peer = self._peers.get(gateway)
                if not peer.is_ready:
                    await peer.ready()
                return peer
            except SiloUnavailable as error:
                refused.append(str(error))
        raise SiloUnavailable(f"no gateway answers: {'; '.join(refused)}", may_have_run=False)

    # -- told by connections (`Welcome`, `Inbox`)

    def on_greeted(self, peer: Peer, /) -> None:
        """A gateway that was known by its address has told its whole name."""
        if self._list.is_evicted(peer.name):
            peer.close("evicted from the cluster, and does not know it yet")
        else:
            self._peers.know_as(peer.name, peer)

    def leaving(self, peer: Peer, /) -> None:
        """The gateway stops: use others for new calls. It knows them best, and is connected."""
        self._list.leave(peer.name)
        try:
            LastQuestion(self, peer).ask()
        except MillstreamError as error:
            log.info("gateway %s leaves, and could not be asked for others: %s", peer.name, error)
            self.want_list()

    def on_gateways(self, peer: Peer, view: GatewayView, /) -> None:
        """A gateway tells which gateways there are, asked or not."""
        self._list.learn(view, peer.table_id)

    def serve(self, peer: Peer, call: Call, /) -> None:
        """Nothing can be called on a client."""
        error = NotInCluster("a client serves no calls")
        peer.refuse(call.id, Failure(call.id, msgspec.Raw(describe(error, call.kind))))

    def on_frame_end(self) -> None:
        """Every call has been refused."""

    # -- asked by the watch for evictions

    def oldest_calls(self) -> dict[str, int]:
        """The id of the oldest outstanding call of each connected gateway; 0: none."""
        oldest: dict[str, int] = {}
        for peer in self._peers.list_known():  # of two to one gateway, the one that is asked
            if "@" in peer.name:
                oldest[peer.name] = peer.oldest_call or oldest.get(peer.name, 0)
        return oldest

    def gateways_to_ask(self) -> list[str]:
        """Those that the cluster told; the others when there are none."""
        return self._list.known or self._list.order("")

    async def ask_evicted(self, gateway: str, silos: list[str], /) -> list[str]:
        """Which of the silos are dead, as a gateway reads the table. Raises MillstreamError."""
        peer = self._peers.get(gateway)
        evicted: list[str] = await self.remote.call(
            peer, GatewayTarget.target_name, "", EVICTED_SPEC, (silos,)
        )
        return evicted

    def drop_evicted(self, silo: str, /) -> None:
        """Never use a gateway again; what waits for it ends with SiloUnavailable."""
        log.warning("gateway %s was evicted from the cluster: calls that it had end", silo)
        self._list.evict(silo)
        for peer in self._peers.list_known():
            if peer.name == silo:
                peer.close("evicted from the cluster")

    # -- the list

    def want_list(self) -> None:
        """The list of gateways may be out of date: ask for it soon."""
        self._list_wanted.set()

    async def refresh(self) -> None:
        """Ask for the current list, one gateway after the other until one answers: those that are
        known, those that the membership table names, and at last all whose addresses are kept.

        What the answer does not name is used as a last resort only, by its address. Raises
        SiloUnavailable.
        """
        failures: dict[str, str] = {}
        if await self._ask_any(self._list.known, failures):
            return
        why = await self._look_up_again()
        named = [] if self._reading is None else self._reading.addresses
        if not await self._ask_any([*named, *self._list.order("")], failures):
            raise SiloUnavailable("; ".join([*failures.values(), *why]), may_have_run=False)

    async def _ask_any(self, gateways: Sequence[str], failures: dict[str, str]) -> bool:
        """Learn the list of the first that answers, of those that have not failed. The answer of a
        gateway that is not known is believed: those that are known were asked before."""
        for gateway in [one for one in gateways if one not in failures]:
            try:
                peer = self._peers.get(gateway)
                view = await self.remote.call(peer, GatewayTarget.target_name, "", LIST_SPEC, ())
            except (MillstreamError, TypeError) as error:  # TypeError: the answer is none
                failures[gateway] = str(error)
                continue
            if peer.name in self._list.known:
                self._list.learn(view, peer.table_id)
            else:
                self._list.start_over(view, peer.table_id)
            return True
        return False

    async def _look_up_again(self) -> list[str]:
        """Read the table, unless that was done a moment ago; what to say if nobody answers."""
        if self._turns.loop.time() - self._looked_up_s >= TABLE_EVERY_S:
            try:
                await self.look_up()
            except MillstreamError as error:
                return [str(error)]
        return [] if self._reading is None else [self._reading.advice]

    async def look_up(self) -> None:
        """Read the membership table, if there is one: keep the addresses that it names, and refuse
        silos that follow another table. Raises StorageUnavailable, ConfigError."""
        if self._table is None:
            return
        self._looked_up_s = self._turns.loop.time()
        reading = self._reading = await self._table.read()
        self._end.follow(reading.table_id)
        self._list.suggest(reading.addresses)

    async def keep_list(self) -> None:
        """Ask for the list every 10 s, and when a gateway was lost; for ever.

        Gateways tell of changes unasked; whoever missed that finds out here.
        """
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(GATEWAYS_EVERY_S):
                    await self._list_wanted.wait()
            await self._ask_some_times()
            self._list_wanted.clear()  # what was lost meanwhile was lost to the asking

    async def _ask_some_times(self) -> None:
        for attempt in range(self.options.redirects_max):
            if attempt:
                await asyncio.sleep(self.options.retry_first_s * 2 ** (attempt - 1))
            try:
                await self.refresh()
            except MillstreamError as error:
                log.info("the list of gateways could not be refreshed: %s", error)
            else:
                return

    async def ask(
        self, name: str, target: str, instance: str, spec: Any, args: tuple[Any, ...]
    ) -> Any:
        """Call a system target of the gateway that serves `name`, or of the next one that has it:
        each silo has what it was started with. While silos start, it is asked for again."""
        begun_s, pause_s = self._turns.loop.time(), self.options.retry_first_s
        while True:
            self._turns.check_running()
            first = self._only() or await self.ready(name)
            try:
                return await self.remote.call(first, target, instance, spec, args)
            except (NotHosted, Rejected) as error:
                missing = error
            try:
                return await self._ask_others(first, missing, name, target, instance, spec, args)
            except Rejected:
                limit_s = spec.timeout_s or self.options.call_timeout_s
                if self._turns.loop.time() + pause_s > begun_s + limit_s:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, ASK_AGAIN_S)

    async def _ask_others(
        self,
        first: Peer,
        missing: CallError,
        name: str,
        target: str,
        instance: str,
        spec: Any,
        args: tuple[Any, ...],
    ) -> Any:
        """Ask the other gateways; `missing`: what the first one has answered."""
        for gateway in self._list.order(name):
            try:
                peer = self._peers.get(gateway)
                await peer.ready()
            except SiloUnavailable:
                continue
            if peer is first:
                continue
            try:
                return await self.remote.call(peer, target, instance, spec, args)
            except NotHosted:
                continue
            except Rejected as error:
                missing = error  # it may be there soon, wherever it is not now
        raise missing


class GatewayCalls:
    """Calls to system targets through a client's gateways."""

    __slots__ = ("_gateways",)

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways

    @property
    def frame_bytes_max(self) -> int:
        """The client's own limit of a frame."""
        return self._gateways.options.frame_bytes_max

    def call(
        self,
        name: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]:
        """Call a target of the gateway that serves `name`: calls of one name keep their order.

        Raises what the method raises, CallTimeout, SiloUnavailable, NotInCluster (it was closed).
        """
        assert not kwargs, "arguments of targets are given by position"
        spec = method.__millstream_spec__  # type: ignore[attr-defined]
        return self._gateways.ask(name, target, "", spec, args)


class LastQuestion:
    """Asks a gateway that leaves for the list (`AnswerReceiver`).

    Sent before its goodbye has been dealt with, so that the connection stays for the answer.
    """

    __slots__ = ("_gateways", "_peer")

    def __init__(self, gateways: Gateways, peer: Peer) -> None:
        self._gateways = gateways
        self._peer = peer

    def ask(self) -> None:
        """Send the question. Raises Overloaded, SiloUnavailable."""
        body = msgspec.Raw(LIST_SPEC.arguments.encode(()))
        ttl_s = self._gateways.options.call_timeout_s
        name, method = GatewayTarget.target_name, LIST_SPEC.wire_name
        self._peer.send_call(Call(0, name, "", method, body, ttl_s, "", [], 0, None), self)

    def reply(self, body: msgspec.Raw, /) -> None:
        try:
            self._gateways.on_gateways(self._peer, self._gateways.remote.take(LIST_SPEC, body))
        except TypeError as error:
            log.warning("a gateway that leaves: %s", error)
            self._gateways.want_list()

    def failure(self, body: msgspec.Raw, /) -> None:
        self._gateways.want_list()

    def redirect(self, silo: str, /) -> None:
        self._gateways.want_list()

    def on_broken(self, error: Exception, /) -> None:
        self._gateways.want_list()
