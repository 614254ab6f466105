"""The transport of a simulated host.

This module owns `SimTransport`, an implementation of `wire.transport.Transport`, and its listeners.
Delays and faults are in `network`. `accept` and the callbacks of links run in the context of their
own host. The probe answer of a live host is called directly, since a thread of a real process gives
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from millstream.runtime.errors import SiloUnavailable
from millstream.runtime.wire.address import Address
from millstream.runtime.wire.transport import PROBE_REPLY_BYTES_MAX, Link

from .host import Host
from .link import SimLink
from .network import SimNetwork

__all__ = ["SimListener", "SimProbeListener", "SimTransport"]


class SimListener:
    """Accepts links for a host, until it is closed."""

    def __init__(
        self, network: SimNetwork, host: Host, address: Address, accept: Callable[[Link], None]
    ) -> None:
        self.host = host
        self.accept = accept
        self._network = network
        self.address = network.bind(address, self)

    def close(self) -> None:
        """Accept no more links."""
        self._network.unbind(self)


class SimProbeListener:
    """Answers probes for a host, until it is closed."""

    def __init__(
        self, network: SimNetwork, host: Host, address: Address, answer: Callable[[], bytes]
    ) -> None:
        self.host = host
        self.answer = answer
        self._network = network
        self.address = network.bind(address, self)

    async def ask(self) -> bytes:
        """Return the host's answer. A paused process answers only when it continues."""
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes] = loop.create_future()

        def answer() -> None:
            if not answered.done():
                answered.set_result(self.answer())

        loop.call_soon(answer, context=self.host.context())
        return await answered

    def close(self) -> None:
        """Answer no more probes."""
        self._network.unbind(self)


class SimTransport:
    """The `Transport` of a simulated host: links, listeners and probes over the simulated network.

    `Simulation.transport` makes it.

    Args:
        network: The network.
        host: The host.
        connect_timeout_s: The longest time for a connection, in virtual seconds.
    """

    def __init__(self, network: SimNetwork, host: Host, connect_timeout_s: float = 5.0) -> None:
        self._network = network
        self._host = host
        self._connect_timeout_s = connect_timeout_s

    async def connect(self, address: Address, /) -> Link:
        """Open a link to an address.

        Without a listener the connection is refused after the latency. On a blocked way it times
        out.

        Args:
            address: The address.

        Raises:
            SiloUnavailable: The connection was refused or timed out. The message has address and
                reason.
        """
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                return await self._handshake(address)
        except TimeoutError:
            reason = f"timed out after {self._connect_timeout_s:g} s"
            text = f"cannot connect to {address}: {reason}"
            raise SiloUnavailable(text, may_have_run=False) from None
        except OSError as error:
            text = f"cannot connect to {address}: {error}"
            raise SiloUnavailable(text, may_have_run=False) from None

    async def _handshake(self, address: Address) -> SimLink:
        me, there = self._host.name, self._network.owner_of(address)
        await self._network.travel(me, there)
        listener = self._network.find(address)
        if not isinstance(listener, SimListener):
            await self._network.travel(there, me)
            raise ConnectionRefusedError("refused: no process listens there")
        peers = str(address), f"{me}:{self._network.free_port()}"
        near, far = self._network.connect((self._host, listener.host), peers)
        self._network.loop.call_soon(listener.accept, far, context=listener.host.context())
        try:
            await self._network.travel(there, me)
        except BaseException:
            near.abort()
            raise
        return near

    async def listen(self, address: Address, accept: Callable[[Link], None], /) -> SimListener:
        """Accept links at an address.

        Args:
            address: The address. Port 0 takes a free port.
            accept: Called with each link.

        Returns:
            The listener, to be closed.

        Raises:
            OSError: The address is taken.
        """
        return SimListener(self._network, self._host, address, accept)

    def listen_probe(self, address: Address, answer: Callable[[], bytes], /) -> SimProbeListener:
        """Answer probes at an address.

        Args:
            address: The address. Port 0 takes a free port.
            answer: Returns the answer to a probe.

        Returns:
            The listener, to be closed.

        Raises:
            OSError: The address is taken.
        """
        return SimProbeListener(self._network, self._host, address, answer)

    async def probe(self, address: Address, timeout_s: float, /) -> bytes:
        """Send a probe, and return the answer.

        Args:
            address: The address that answers probes.
            timeout_s: The longest wait, in virtual seconds.

        Raises:
            TimeoutError: There was no answer in time.
            OSError: Nobody listens there.
        """
        me, there = self._host.name, self._network.owner_of(address)
        async with asyncio.timeout(timeout_s):
            await self._network.travel(me, there)
            listener = self._network.find(address)
            answer = b""
            if isinstance(listener, SimProbeListener):
                answer = await listener.ask()
            await self._network.travel(there, me)
        if not isinstance(listener, SimProbeListener):
            raise ConnectionRefusedError(f"probe of {address} refused: no process answers there")
        return answer[:PROBE_REPLY_BYTES_MAX]
