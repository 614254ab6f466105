"""The simulated network: which hosts can reach each other, how fast, and what breaks.

Owns: `SimNetwork`, its verbs, and who listens where. Not: links (`link`), the transport that a silo
uses (`transport`).
Invariants: equal seeds and programs give the same deliveries at the same times, proved by
`trace_hash`; verbs take host names, so that a script of them is plain data.

Links are ordered bytes, so loss is what TCP makes of it: a lost chunk arrives late, and one that is
lost LOSSES_MAX times in a row breaks the link. A blocked direction (partition, hold, or a host that
died silently) keeps its bytes; they arrive after `repair` or `release`, unless the writer's link
timed out before.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from millstream.runtime.wire.address import Address

from .env import Random
from .host import Host
from .link import SimLink, link_pair
from .loop import SimLoop
from .pipe import Pipe

__all__ = ["SimNetwork"]

LATENCY_S = (0.0005, 0.002)
RETRANSMIT_S = 0.2
LOSSES_MAX = 6
FIRST_PORT = 20_000
PRUNE_LINKS = 64


@dataclass(slots=True)
class Route:
    """One direction between two hosts."""

    latency_s: tuple[float, float] = LATENCY_S
    loss: float = 0.0
    reset: float = 0.0
    is_cut: bool = False
    is_held: bool = False
    bytes_per_s: float = math.inf


class Listening(Protocol):
    """What listens at an address: a listener of links or of probes."""

    host: Host

    @property
    def address(self) -> Address: ...


class SimNetwork:
    """Hosts, the ways between them, and verbs that trouble these.

    Args:
        rng: decides latencies, losses, splits of chunks, and what a crash cuts off.
        split_chance: how often a write arrives in two chunks, 0..1.
        link_timeout_s: how long a writer's end survives with bytes that cannot get through.
    """

    def __init__(
        self,
        loop: SimLoop,
        rng: Random,
        *,
        split_chance: float = 0.02,
        link_timeout_s: float = 60.0,
    ) -> None:
        self.loop = loop
        self.rng = rng
        self.split_chance = split_chance
        self.link_timeout_s = link_timeout_s
        self._default = Route()
        self._routes: dict[tuple[str, str], Route] = {}
        self._hosts: dict[str, Host] = {}
        self._silent: dict[str, None] = {}
        self._listening: dict[Address, Listening] = {}
        self._owners: dict[Address, str] = {}
        self._links: list[tuple[SimLink, SimLink]] = []
        self._prune_at = PRUNE_LINKS
        self._waiters: list[asyncio.Future[None]] = []
        self._next_port = FIRST_PORT
        self._trace = hashlib.blake2b(digest_size=16)

    # Verbs. A pair of hosts means both directions, except for `partition_oneway`.

    def set_latency(
        self, low_s: float, high_s: float, a: str | None = None, b: str | None = None
    ) -> None:
        """Latency of every chunk written from now on, between a and b or (neither) everywhere."""
        if not 0 <= low_s <= high_s < math.inf:
            raise ValueError(f"latency {low_s} to {high_s} s: not a range")
        if a is None or b is None:
            self._default.latency_s = (low_s, high_s)
        for route in self._between(a, b):
            route.latency_s = (low_s, high_s)

    def loss(self, a: str, b: str, chance: float, reset_chance: float | None = None) -> None:
        """Lose each chunk with `chance`; break its link with `reset_chance` (a 20th of it)."""
        for route in self._between(a, b):
            route.loss = chance
            route.reset = chance / 20 if reset_chance is None else reset_chance

    def partition(self, a: str, b: str) -> None:
        """Let nothing through between the two; connecting times out."""
        for route in self._between(a, b):
            route.is_cut = True

    def partition_oneway(self, source: str, target: str) -> None:
        """Let nothing through from source to target; connecting needs both ways."""
        self.route(source, target).is_cut = True

    def isolate(self, host: str) -> None:
        """Partition a host from all others that exist now."""
        for other in self._hosts:
            if other != host:
                self.partition(host, other)

    def hold(self, a: str, b: str) -> None:
        """Keep everything between the two back until `release`."""
        for route in self._between(a, b):
            route.is_held = True

    def release(self, a: str, b: str) -> None:
        """Let what was held go on, in order."""
        for route in self._between(a, b):
            route.is_held = False
        self._on_change({a, b})

    def clog(self, a: str, b: str, bytes_per_s: float) -> None:
        """Let only so much through per second, each way."""
        if not bytes_per_s > 0:
            raise ValueError(f"clog of {bytes_per_s} bytes/s: must be above 0; use hold")
        for route in self._between(a, b):
            route.bytes_per_s = bytes_per_s

    def repair(self, a: str | None = None, b: str | None = None) -> None:
        """End partitions, holds, clogs and losses between a and b or (neither) everywhere.

        Latency and crashed hosts stay as they are.
        """
        for route in self._between(a, b):
            route.is_cut = route.is_held = False
            route.loss = route.reset = 0.0
            route.bytes_per_s = math.inf
        self._on_change(None if a is None or b is None else {a, b})

    def _between(self, a: str | None, b: str | None) -> Iterable[Route]:
        if a is None or b is None:
            assert a is None and b is None, "name both hosts, or neither"
            return self._routes.values()
        return [self.route(a, b), self.route(b, a)]

    def route(self, source: str, target: str) -> Route:
        """The state of one direction; made with the default latency when first asked for."""
        found = self._routes.get((source, target))
        if found is None:
            found = self._routes[source, target] = replace(self._default)
        return found

    def _on_change(self, hosts: set[str] | None) -> None:
        """Wake who waits, and set off anew what is under way among the hosts (None: all)."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        for pipe in self._pipes():
            if hosts is None or hosts.issubset(pipe.names):
                pipe.retime()

    def _pipes(self) -> Iterator[Pipe]:
        for near, far in self._links:
            yield near.outbound
            yield far.outbound

    # Hosts.

    def attach(self, host: Host) -> None:
        """A host came up; one that died silently answers again, if only with resets."""
        self._hosts[host.name] = host
        if host.name in self._silent:
            del self._silent[host.name]
            self._on_change({host.name})

    def crash(self, host: Host, is_silent: bool) -> None:
        """Cut the host off: its peers see resets, or (silent, as at a power cut) nothing."""
        if is_silent:
            self._silent[host.name] = None
        gone = [address for address, item in self._listening.items() if item.host is host]
        for address in gone:
            del self._listening[address]
        for pair in self._links:
            for end in pair:
                if end.host is host:
                    end.crash(is_silent)

    # What links, listeners and transports ask.

    def is_blocked(self, source: str, target: str) -> bool:
        """Whether nothing gets from source to target now."""
        route = self.route(source, target)
        return route.is_cut or route.is_held or target in self._silent

    def delay_s(self, source: str, target: str) -> float:
        """Time on the way of the next chunk; math.inf: its link breaks."""
        route = self.route(source, target)
        delay_s = self.rng.uniform(*route.latency_s)
        if route.loss == route.reset == 0.0:
            return delay_s
        if self.rng.random() < route.reset:
            return math.inf
        for retry in range(LOSSES_MAX):
            if self.rng.random() >= route.loss:
                return delay_s
            delay_s += RETRANSMIT_S * 2**retry
        return math.inf

    def bytes_per_s(self, source: str, target: str) -> float:
        """How much fits through now."""
        return self.route(source, target).bytes_per_s

    def on_delivered(self, source: str, target: str, size_bytes: int) -> None:
        """Note a delivery in the trace."""
        line = f"{self.loop.time()!r} {source}>{target} {size_bytes}\n"
        self._trace.update(line.encode())

    @property
    def trace_hash(self) -> str:
        """Over time, hosts and size of every delivery so far: equal for equal runs."""
        return self._trace.hexdigest()

    async def travel(self, source: str, target: str) -> None:
        """Wait as long as a small packet needs; for ever if it never arrives.

        Cost: on a blocked way, one future until the next change.
        """
        await self._until_open(source, target)
        delay_s = self.delay_s(source, target)
        if delay_s == math.inf:
            await self.loop.create_future()
        await asyncio.sleep(delay_s)
        await self._until_open(source, target)
        self.on_delivered(source, target, 0)

    async def _until_open(self, source: str, target: str) -> None:
        while self.is_blocked(source, target):
            waiter: asyncio.Future[None] = self.loop.create_future()
            self._waiters.append(waiter)
            await waiter

    def bind(self, address: Address, listening: Listening) -> Address:
        """Register what listens; port 0 is replaced by a free one. Raises OSError when taken."""
        if address.port == 0:
            address = Address(address.host, self.free_port())
        if address in self._listening:
            raise OSError(f"{address} is in use by {self._listening[address].host}")
        self._listening[address] = listening
        self._owners[address] = listening.host.name
        return address

    def free_port(self) -> int:
        """A port number that was not given out before."""
        self._next_port += 1
        return self._next_port

    def unbind(self, listening: Listening) -> None:
        """The listener is closed; no effect twice."""
        if self._listening.get(listening.address) is listening:
            del self._listening[listening.address]

    def find(self, address: Address) -> Listening | None:
        """What listens at an address now."""
        return self._listening.get(address)

    def owner_of(self, address: Address) -> str:
        """Name of the host that has, or had, the address; else the address's own host part."""
        return self._owners.get(address, address.host)

    def connect(self, hosts: tuple[Host, Host], peers: tuple[str, str]) -> tuple[SimLink, SimLink]:
        """A new link between two hosts."""
        pair = link_pair(self, hosts, peers)
        self._links.append(pair)
        if len(self._links) > self._prune_at:
            self._links = [pair for pair in self._links if not all(end.is_over for end in pair)]
            self._prune_at = max(PRUNE_LINKS, 2 * len(self._links))
        return pair

    def check(self) -> None:
        """Every pipe and end is consistent; nobody dead listens."""
        for pair in self._links:
            for end in pair:
                end.check()
                end.outbound.check()
        assert all(item.host.alive for item in self._listening.values())
