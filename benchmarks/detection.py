"""The time during which grains of a silo that hangs, or is cut off, cannot be called.

There are three silo processes on SQLite. One is stopped by SIGSTOP, or cut off. Calls to its grains
go through the gateways of the other two, and are repeated until they succeed. Figures, in seconds
from the fault: when half and when all of those grains answered again, from their new silos.

To cut off a process on loopback needs root (a packet filter), so the transport of the process does
it. From a signal on, no written byte leaves, no arriving byte is read, and no connection is made.
The probe port accepts connections and does not answer. The membership table is not cut off, because
it is a file that all three silos share.
"""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from millstream.runtime import (
    Address,
    Client,
    Grain,
    Link,
    Listener,
    MembershipOptions,
    MillstreamError,
    Silo,
    TcpTransport,
    connect,
    grain,
)
from millstream.runtime.run import SiloProcess, SiloProcesses

__all__ = ["isolated", "make_silo", "stopped"]

SILOS = 3
GRAINS = 60
RETRY_S = 0.02
RECOVERED_WITHIN_S = 60.0
PATIENT = MembershipOptions(
    probe_every_s=1.0,
    probe_timeout_s=2.5,
    missed_probes_max=3,
    refresh_s=10.0,
    heartbeat_s=5.0,
)
OPTIONS = {"default": MembershipOptions(), "patient": PATIENT}


@grain(name="DetectionTarget")
class Target(Grain):
    """A grain that returns its silo."""

    async def where(self) -> str:
        return self.context.silo


class Cut:
    """A receiver that gets nothing once its process is cut off."""

    def __init__(self, receiver: Any, is_cut: Callable[[], bool]) -> None:
        self._receiver = receiver
        self._is_cut = is_cut

    def on_received(self, data: bytes, /) -> None:
        if not self._is_cut():
            self._receiver.on_received(data)

    def writable(self, is_writable: bool, /) -> None:
        self._receiver.writable(is_writable)

    def on_closed(self, reason: str, /) -> None:
        self._receiver.on_closed(reason)


class CutLink:
    """A link that sends neither bytes nor its close once its process is cut off."""

    def __init__(self, link: Link, is_cut: Callable[[], bool]) -> None:
        self._link = link
        self._is_cut = is_cut
        self.peer, self.certified = link.peer, link.certified

    @property
    def waiting_bytes(self) -> int:
        return self._link.waiting_bytes

    def start(self, receiver: Any, /) -> None:
        self._link.start(Cut(receiver, self._is_cut))

    def write(self, data: bytes, /) -> None:
        if not self._is_cut():
            self._link.write(data)

    def reading(self, is_on: bool, /) -> None:
        self._link.reading(is_on)

    def close(self) -> None:
        if not self._is_cut():
            self._link.close()

    def abort(self) -> None:
        if not self._is_cut():
            self._link.abort()


class CuttableTransport:
    """TCP, until SIGUSR1 cuts this process off."""

    def __init__(self) -> None:
        self._tcp = TcpTransport()
        self._is_cut = threading.Event()
        signal.signal(signal.SIGUSR1, lambda *_: self._is_cut.set())

    async def connect(self, address: Address, /) -> Link:
        if self._is_cut.is_set():
            await asyncio.Event().wait()
        return CutLink(await self._tcp.connect(address), self._is_cut.is_set)

    async def listen(self, address: Address, accept: Callable[[Link], None], /) -> Listener:
        is_cut = self._is_cut.is_set
        return await self._tcp.listen(address, lambda link: accept(CutLink(link, is_cut)))

    def listen_probe(self, address: Address, answer: Callable[[], bytes], /) -> Listener:
        return self._tcp.listen_probe(address, lambda: self._answer(answer))

    def _answer(self, answer: Callable[[], bytes]) -> bytes:
        if self._is_cut.is_set():
            threading.Event().wait(RECOVERED_WITHIN_S)  # in the thread that answers probes
        return answer()

    async def probe(self, address: Address, timeout_s: float, /) -> bytes:
        if self._is_cut.is_set():
            await asyncio.sleep(timeout_s)
            raise TimeoutError
        return await self._tcp.probe(address, timeout_s)


def make_silo(directory: str, detection: str) -> Silo:
    """Return one of the three silos, in its own process."""
    text = f"sqlite:{directory}"
    return Silo(
        grains=[Target],
        membership=text,
        stores={"default": text},
        membership_options=OPTIONS[detection],
        transport=CuttableTransport(),
    )


async def stopped(work: Path) -> dict[str, float]:
    """One silo is stopped by SIGSTOP."""
    return await _both("stopped", signal.SIGSTOP, work)


async def isolated(work: Path) -> dict[str, float]:
    """One silo is cut off."""
    return await _both("isolated", signal.SIGUSR1, work)


async def _both(name: str, fault: signal.Signals, work: Path) -> dict[str, float]:
    figures: dict[str, float] = {}
    for detection in OPTIONS:
        below = work / detection
        below.mkdir()
        times = await _recovery(fault, below, detection)
        figures[f"{name}_{detection}_p50_s"] = statistics.median(times)
        figures[f"{name}_{detection}_max_s"] = max(times)
    return figures


async def _recovery(fault: signal.Signals, work: Path, detection: str) -> list[float]:
    """Return when each grain of the silo with the fault answered again."""
    arguments = {"directory": str(work / "data"), "detection": detection}
    silos = [
        SiloProcess(f"{__name__}:make_silo", arguments, work / f"{number}.log")
        for number in range(SILOS)
    ]
    async with SiloProcesses(silos) as (first, victim, third):
        async with connect(first.gateway) as one, connect(third.gateway) as other:
            homes = {f"{key}": await one.grain(Target, f"{key}").where() for key in range(GRAINS)}
            lost = [key for key, home in homes.items() if home == victim.address]
            for key in lost:  # both clients know the location, and have connections
                await other.grain(Target, key).where()
            os.kill(victim.pid, fault)
            try:
                started = asyncio.get_running_loop().time()
                async with asyncio.timeout(RECOVERED_WITHIN_S):
                    return await asyncio.gather(
                        *(
                            _answered((one, other)[number % 2], key, victim.address, started)
                            for number, key in enumerate(lost)
                        )
                    )
            finally:
                with suppress(ProcessLookupError):  # the silo may have read that it was evicted
                    os.kill(victim.pid, signal.SIGKILL)
                await victim.wait()


async def _answered(client: Client, key: str, lost: str, started: float) -> float:
    """Return the seconds until a call succeeded at another silo; failed calls are repeated."""
    while True:
        try:
            if await client.grain(Target, key).where() != lost:
                return asyncio.get_running_loop().time() - started
        except MillstreamError:
            pass
        await asyncio.sleep(RETRY_S)
