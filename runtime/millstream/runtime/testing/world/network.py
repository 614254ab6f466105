"""The simulated network: which hosts can reach each other, how fast, and with which faults.

This module owns `SimNetwork`, its verbs, and the listeners of all hosts. Links are in `link`, and
the transport of a silo in `transport`. Equal seeds and programs give the same deliveries at the
same times, which `trace_hash` proves. Verbs take names of hosts, so a script of verbs is plain
data.

Links carry ordered bytes, so losses look as they do with TCP. A lost chunk arrives late, and a
chunk that is lost LOSSES_MAX times in a row breaks the link. A blocked direction (a partition, a
hold, or a host that crashed silently) keeps its bytes. They arrive after `repair` or `release`,
unless the writer's link timed out before.
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
    """A listener of links or of probes."""

    host: Host

    @property
    def address(self) -> Address: ...


class SimNetwork:
    """The network between simulated hosts, and the faults of it that a test can order.

    `Simulation.network` is the network of a run. The verbs take the names of two hosts, and affect
    both directions, except for `partition_oneway`.

    Args:
        loop: The simulated loop.
        rng: Decides latencies, losses, splits of chunks, and which bytes a crash cuts off.
        split_chance: How often a write arrives in two chunks, from 0 to 1.
        link_timeout_s: How long a link survives while its bytes cannot get through, in virtual
            seconds.

    Attributes:
        split_chance: As the argument.
        link_timeout_s: As the argument.
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

    # Verbs: a pair of hosts means both directions, except for `partition_oneway`.

    def set_latency(
        self, low_s: float, high_s: float, a: str | None = None, b: str | None = None
    ) -> None:
        """Set the latency of every chunk that is written from now on.

        Args:
            low_s: The shortest latency in virtual seconds.
            high_s: The longest latency in virtual seconds.
            a: One host. Without hosts, the latency is set everywhere.
            b: The other host.

        Raises:
            ValueError: The latencies are no range.
        """
        if not 0 <= low_s <= high_s < math.inf:
            raise ValueError(f"latency {low_s} to {high_s} s: not a range")
        if a is None or b is None:
            self._default.latency_s = (low_s, high_s)
        for route in self._between(a, b):
            route.latency_s = (low_s, high_s)

    def loss(self, a: str, b: str, chance: float, reset_chance: float | None = None) -> None:
        """Lose each chunk with a probability, and sometimes break its link.

        Args:
            a: One host.
            b: The other host.
            chance: The probability of a loss, from 0 to 1.
            reset_chance: The probability that the link breaks. None: a 20th of `chance`.
        """
        for route in self._between(a, b):
            route.loss = chance
            route.reset = chance / 20 if reset_chance is None else reset_chance

    def partition(self, a: str, b: str) -> None:
        """Let nothing through between two hosts. Connections between them time out.

        Args:
            a: One host.
            b: The other host.
        """
        for route in self._between(a, b):
            route.is_cut = True

    def partition_oneway(self, source: str, target: str) -> None:
        """Let nothing through in one direction. New connections need both directions.

        Args:
            source: The sending host.
            target: The receiving host.
        """
        self.route(source, target).is_cut = True

    def isolate(self, host: str) -> None:
        """Partition a host from all other hosts that exist now.

        Args:
            host: The host.
        """
        for other in self._hosts:
            if other != host:
                self.partition(host, other)

    def hold(self, a: str, b: str) -> None:
        """Keep all traffic between two hosts back until `release`.

        Args:
            a: One host.
            b: The other host.
        """
        for route in self._between(a, b):
            route.is_held = True

    def release(self, a: str, b: str) -> None:
        """Deliver the traffic that `hold` kept back, in order.

        Args:
            a: One host.
            b: The other host.
        """
        for route in self._between(a, b):
            route.is_held = False
        self._on_change({a, b})

    def clog(self, a: str, b: str, bytes_per_s: float) -> None:
        """Limit the bandwidth between two hosts.

        Args:
            a: One host.
            b: The other host.
            bytes_per_s: The bandwidth of each direction. Above 0.

        Raises:
            ValueError: The bandwidth is not above 0.
        """
        if not bytes_per_s > 0:
            raise ValueError(f"clog of {bytes_per_s} bytes/s: pass a rate above 0, or use hold")
        for route in self._between(a, b):
            route.bytes_per_s = bytes_per_s

    def repair(self, a: str | None = None, b: str | None = None) -> None:
        """End partitions, holds, clogs and losses.

        Latencies stay, and so do crashed hosts. `Simulation.repair` also records the repair in the
        history.

        Args:
            a: One host. Without hosts, the whole network is repaired.
            b: The other host.
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
        """Return the state of one direction. It begins with the default latency."""
        found = self._routes.get((source, target))
        if found is None:
            found = self._routes[source, target] = replace(self._default)
        return found

    def _on_change(self, hosts: set[str] | None) -> None:
        """Wake the waiters, and give bytes in transit between the hosts new arrival times.

        None stands for all hosts.
        """
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
        """Connect a host that was started. If it had crashed silently, peers get resets from now
        on.
        """
        self._hosts[host.name] = host
        if host.name in self._silent:
            del self._silent[host.name]
            self._on_change({host.name})

    def crash(self, host: Host, is_silent: bool) -> None:
        """Cut a host off. Its peers see resets, or nothing if the crash is silent, as at a power
        cut.
        """
        if is_silent:
            self._silent[host.name] = None
        gone = [address for address, item in self._listening.items() if item.host is host]
        for address in gone:
            del self._listening[address]
        for pair in self._links:
            for end in pair:
                if end.host is host:
                    end.crash(is_silent)

    # For links, listeners and transports.

    def is_blocked(self, source: str, target: str) -> bool:
        """Return whether nothing gets from source to target now."""
        route = self.route(source, target)
        return route.is_cut or route.is_held or target in self._silent

    def delay_s(self, source: str, target: str) -> float:
        """Return the transit time of the next chunk, or math.inf if its link breaks."""
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
        """Return the current bandwidth of a direction."""
        return self.route(source, target).bytes_per_s

    def on_delivered(self, source: str, target: str, size_bytes: int) -> None:
        """Add a delivery to the trace."""
        line = f"{self.loop.time()!r} {source}>{target} {size_bytes}\n"
        self._trace.update(line.encode())

    @property
    def trace_hash(self) -> str:
        """A hash over time, hosts and size of every delivery so far. It is equal for equal runs."""
        return self._trace.hexdigest()

    async def travel(self, source: str, target: str) -> None:
        """Wait as long as a small packet needs; forever if it never arrives.

        On a blocked way it costs one future until the next change.
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
        """Register a listener. Port 0 is replaced by a free one. Raises OSError if the address is
        taken.
        """
        if address.port == 0:
            address = Address(address.host, self.free_port())
        if address in self._listening:
            raise OSError(f"{address} is in use by {self._listening[address].host}")
        self._listening[address] = listening
        self._owners[address] = listening.host.name
        return address

    def free_port(self) -> int:
        """Return a port number that was not used before."""
        self._next_port += 1
        return self._next_port

    def unbind(self, listening: Listening) -> None:
        """Remove a closed listener. Repeated calls do nothing."""
        if self._listening.get(listening.address) is listening:
            del self._listening[listening.address]

    def find(self, address: Address) -> Listening | None:
        """Return the listener at an address, or None."""
        return self._listening.get(address)

    def owner_of(self, address: Address) -> str:
        """Return the host that has or had an address; else the host part of the address."""
        return self._owners.get(address, address.host)

    def connect(self, hosts: tuple[Host, Host], peers: tuple[str, str]) -> tuple[SimLink, SimLink]:
        """Make a new link between two hosts."""
        pair = link_pair(self, hosts, peers)
        self._links.append(pair)
        if len(self._links) > self._prune_at:
            self._links = [pair for pair in self._links if not all(end.is_over for end in pair)]
            self._prune_at = max(PRUNE_LINKS, 2 * len(self._links))
        return pair

    def check(self) -> None:
        """Assert that every pipe and end is consistent, and that no crashed host listens."""
        for pair in self._links:
            for end in pair:
                end.check()
                end.outbound.check()
        assert all(item.host.alive for item in self._listening.values())
