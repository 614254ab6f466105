"""The player of a script of faults against a simulation.

This module owns `Nemesis`. Scripts are in `script`, and the effects of verbs in `network`, `disk`
and `simulation`. At its end, every host that it took down is restarted, and no host is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from .script import Step
from .world.disk.simulated import SimDisk
from .world.errors import SimulationError
from .world.network import SimNetwork

__all__ = ["Nemesis"]

UNKNOWN = "unknown verb, or the wrong number of words"


class Troubled(Protocol):
    """The simulation as a nemesis uses it."""

    network: SimNetwork

    def is_up(self, name: str) -> bool: ...
    def crash(self, name: str, /, *, is_silent: bool = False) -> None: ...
    def kill(self, name: str, /) -> None: ...
    def pause(self, name: str, /) -> None: ...
    def resume(self, name: str, /) -> None: ...
    def disk(self, name: str, /) -> SimDisk: ...
    def machine(self, name: str) -> Sequence[str]:
        """Return the hosts that go down with this one when its machine does."""
        ...

    def cut_power(self, name: str, /) -> None: ...
    def cut_power_after(self, name: str, changes: int) -> None: ...
    def keep_power(self, name: str) -> None: ...
    def note_repaired(self) -> None:
        """Record in the history that the whole network was repaired."""
        ...


class Nemesis:
    """Plays a script of faults against a simulation. `Simulation.nemesis` makes and runs one.

    Args:
        simulation: The simulation.
        script: The steps.
        restart: Called with the name of a host that is down. It must restart the host and its
            program.
        verbs: Verbs of your own, with the function of each. The function gets the words of its
            step.
    """

    def __init__(
        self,
        simulation: Troubled,
        script: Iterable[Step],
        restart: Callable[[str], object],
        verbs: Mapping[str, Callable[..., object]] | None = None,
    ) -> None:
        self._simulation = simulation
        self._script = tuple(script)
        self._restart = restart
        self._verbs = dict(verbs or {})
        self._down: dict[str, None] = {}
        self._paused: dict[str, None] = {}
        self._copies: dict[str, Mapping[str, bytes]] = {}

    async def run(self) -> None:
        """Play every step at its time, counted from now. Then restart the hosts that are still
        down.
        """
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        for step in self._script:
            await asyncio.sleep(start_s + step.at_s - loop.time())
            self.play(step)
        for host in list(self._paused):
            self._resume(host)
        for host in list(self._down):
            self._restart_if_down(host)

    def play(self, step: Step) -> None:
        """Play one step now.

        Args:
            step: The step.

        Raises:
            SimulationError: The step has an unknown verb or wrong words.
        """
        try:
            self._play(step.verb, step.words)
        except (TypeError, ValueError, LookupError) as error:
            raise SimulationError(f"nemesis step {step}: {error}") from error

    def _play(self, verb: str, words: tuple[str, ...]) -> None:
        network = self._simulation.network
        if verb in self._verbs:
            self._verbs[verb](*words)
            return
        match verb, words:
            case ("crash", (host, ("silent" | "reset") as how)):
                self._down[host] = None
                if self._simulation.is_up(host):
                    self._simulation.crash(host, is_silent=how == "silent")
            case ("power_cut", (host, changes)):
                self._down.update(dict.fromkeys(self._simulation.machine(host)))
                if self._simulation.is_up(host):
                    self._simulation.cut_power_after(host, int(changes))
            case "kill", (host,):
                self._down[host] = None
                if self._simulation.is_up(host):
                    self._simulation.kill(host)
            case "pause", (host,):
                if self._simulation.is_up(host):
                    self._paused[host] = None
                    self._simulation.pause(host)
            case "resume", (host,):
                self._resume(host)
            case "restart", (host,):
                self._restart_machine(host)
            case "reboot", (host,):
                self._reboot(host)
            case "latency", (low, high, *pair):
                network.set_latency(float(low), float(high), *pair)
            case "loss", (a, b, chance):
                network.loss(a, b, float(chance))
            case "clog", (a, b, rate):
                network.clog(a, b, float(rate))
            case "repair", ():
                network.repair()
                self._simulation.note_repaired()
            case (("partition" | "partition_oneway" | "hold" | "release" | "repair"), (a, b)):
                getattr(network, verb)(a, b)
            case _, (host, *rest):
                self._play_on_disk(verb, host, rest)
            case _:
                raise ValueError(UNKNOWN)

    def _play_on_disk(self, verb: str, host: str, words: Sequence[str]) -> None:
        if not verb.startswith("disk_"):
            raise ValueError(UNKNOWN)
        disk = self._simulation.disk(host)
        match verb, words:
            case "disk_damage", (("bit" | "sector") as what,):
                disk.damage(is_unreadable=what == "sector")
            case "disk_full", (room,):
                disk.fill_up(int(room))
            case "disk_room", ():
                disk.make_room()
            case "disk_slow", (low, high):
                disk.set_latency(float(low), float(high))
            case "disk_stall", (for_s,):
                disk.stall(float(for_s))
            case "disk_sync_fails", ():
                disk.fail_sync()
            case "disk_copy", ():
                self._copies[host] = disk.copy_of("/")
            case "disk_wipe", ():
                self._reboot(host, lambda: disk.restore("/", {}))
            case "disk_rollback", ():
                self._reboot(host, lambda: disk.restore("/", self._copies[host]))
            case _:
                raise ValueError(UNKNOWN)

    def _resume(self, host: str) -> None:
        if host in self._paused:
            del self._paused[host]
            self._simulation.resume(host)

    def _reboot(self, host: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Cut the power of the host's machine, and restart the hosts on it."""
        names = self._simulation.machine(host)
        if any(self._simulation.is_up(name) for name in names):
            self._simulation.cut_power(host)
        meanwhile()
        self._restart_machine(host)

    def _restart_machine(self, host: str) -> None:
        """Restart every host of a machine that is down."""
        for name in self._simulation.machine(host):
            self._restart_if_down(name)

    def _restart_if_down(self, host: str) -> None:
        self._down.pop(host, None)
        self._simulation.keep_power(host)  # a `power_cut` may not have happened yet
        if not self._simulation.is_up(host):
            self._restart(host)
