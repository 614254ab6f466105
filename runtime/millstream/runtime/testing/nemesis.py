"""Playing a script of troubles against a simulation.

Owns: `Nemesis`. Not: scripts (`script`), what a verb does (`network`, `disk`, `simulation`).
Invariant: at its end every host that it took down was restarted, and none is paused.
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
    """What a nemesis needs of a simulation."""

    network: SimNetwork

    def is_up(self, name: str) -> bool: ...
    def crash(self, name: str, /, *, is_silent: bool = False) -> None: ...
    def kill(self, name: str, /) -> None: ...
    def pause(self, name: str, /) -> None: ...
    def resume(self, name: str, /) -> None: ...
    def disk(self, name: str, /) -> SimDisk: ...
    def machine(self, name: str) -> Sequence[str]:
        """The hosts that go down with this one when its machine does."""
        ...

    def cut_power(self, name: str, /) -> None: ...
    def cut_power_after(self, name: str, changes: int) -> None: ...
    def keep_power(self, name: str) -> None: ...
    def note_repaired(self) -> None:
        """The whole network was repaired: note it in the history."""
        ...


class Nemesis:
    """Plays a script against a simulation.

    Args:
        restart: makes a host new and starts its program; called for a host that is down.
        verbs: further verbs, each with the function that is called with the words of its step.
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
        """Play every step at its time, counted from now; then restart what is still down."""
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
        """Do one step now. Raises SimulationError for a step that makes no sense."""
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
        """Cut the power of the host's machine, and start what ran there again."""
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
        self._simulation.keep_power(host)  # it may have written too little to lose it
        if not self._simulation.is_up(host):
            self._restart(host)
