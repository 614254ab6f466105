"""Calls of a client to system targets of the cluster.

This module owns `GatewayCalls`. The module `gateways` chooses the gateway of a name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from millstream.runtime.calls.remote import Remote
from millstream.runtime.errors import CallError, NotHosted, Rejected, SiloUnavailable
from millstream.runtime.turns.run import Turns
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.peers import Peers

from .gateways import Gateways

__all__ = ["GatewayCalls"]

P = ParamSpec("P")
R = TypeVar("R")
ASK_AGAIN_S = 1.0
"""Longest wait before a client asks again for a target that starting silos may have, in seconds."""


class GatewayCalls:
    """Calls to system targets through a client's gateways."""

    __slots__ = ("_gateways", "_peers", "_remote", "_turns")

    def __init__(self, gateways: Gateways, turns: Turns, peers: Peers, remote: Remote) -> None:
        self._gateways = gateways
        self._turns = turns
        self._peers = peers
        self._remote = remote

    @property
    def frame_bytes_max(self) -> int:
        """The client's own limit for a frame, in bytes."""
        return self._turns.options.frame_bytes_max

    def call(
        self,
        name: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]:
        """Call a target of the gateway that serves `name`. Calls of one name keep their order.

        Raises the errors of the method, CallTimeout, SiloUnavailable, and NotInCluster if it was
        closed.
        """
        assert not kwargs, "arguments of system targets are positional"
        spec = method.__millstream_spec__  # type: ignore[attr-defined]
        return self.ask(name, target, "", spec, args)

    async def ask(
        self, name: str, target: str, instance: str, spec: Any, args: tuple[Any, ...]
    ) -> Any:
        """Call a system target of the gateway that serves `name`, or of the next gateway that has
        it.

        Silos may have different targets. While silos start, the client asks again.
        """
        begun_s, pause_s = self._turns.loop.time(), self._turns.options.retry_first_s
        while True:
            self._turns.check_running()
            first = self._gateways.find_only() or await self._gateways.ready(name)
            try:
                return await self._remote.call(first, target, instance, spec, args)
            except (NotHosted, Rejected) as error:
                missing = error
            try:
                return await self._ask_others(first, missing, name, target, instance, spec, args)
            except Rejected:
                limit_s = spec.timeout_s or self._turns.options.call_timeout_s
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
        """Ask the other gateways. `missing` is the answer of the first one."""
        for gateway in self._gateways.order(name):
            try:
                peer = self._peers.get(gateway)
                await peer.writer.ready()
            except SiloUnavailable:
                continue
            if peer is first:
                continue
            try:
                return await self._remote.call(peer, target, instance, spec, args)
            except NotHosted:
                continue
            except Rejected as error:
                missing = error  # the target may exist there soon
        raise missing
