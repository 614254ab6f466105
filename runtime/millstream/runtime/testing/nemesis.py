"""A seeded script of troubles, as data.

Owns: `Step`, scripts (make, print, parse, shrink) and `Nemesis`, which plays one. Not: what a verb
does (`network`, `simulation`).
Invariants: a script is text, one step per line, and the text form parses back to it; a made script
ends its troubles itself: at its end the network is repaired and every crashed host restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from .world.env import Random
from .world.errors import SimulationError
from .world.network import SimNetwork

__all__ = ["VERBS", "Nemesis", "Script", "Step", "make_script", "parse_script", "shrink"]


class Step(NamedTuple):
    """One line of a script: when, what, and its words."""

    at_s: float
    verb: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.at_s:.6f}", self.verb, *self.words])


Script = tuple[Step, ...]

# What a script may be made of: each trouble, and the step that ends it.
VERBS = ("clog", "crash", "hold", "latency", "loss", "partition", "partition_oneway", "power_cut")


def make_script(
    rng: Random,
    hosts: Sequence[str],
    *,
    duration_s: float = 60.0,
    troubles: int = 8,
    trouble_s: tuple[float, float] = (0.5, 15.0),
    down_max: int = 1,
    verbs: Sequence[str] = VERBS,
    steady: Sequence[str] = (),
) -> Script:
    """Troubles at random times, each ended after a random time, all by `duration_s`.

    Args:
        hosts: names that may be troubled.
        trouble_s: shortest and longest time of one trouble.
        down_max: most hosts that are down at one time; 0 means no crashes.
        verbs: a subset of VERBS.
        steady: those of `hosts` that never crash, as services that are no simulated program.
    """
    unknown = [verb for verb in verbs if verb not in VERBS]
    if unknown or len(hosts) < 2:
        raise ValueError(f"a script needs known verbs (not {unknown}) and 2 hosts, got {hosts}")
    steps: list[Step] = []
    down: list[tuple[float, float, str]] = []
    for _ in range(troubles):
        start_s = rng.uniform(0, duration_s)
        end_s = min(duration_s, start_s + rng.uniform(*trouble_s))
        verb = rng.choice(list(verbs))
        one, other = rng.sample(list(hosts), 2)
        if verb in ("crash", "power_cut"):
            if one in steady or not _may_go_down(down, (start_s, end_s, one), down_max):
                continue
            down.append((start_s, end_s, one))
        steps += _trouble(rng, verb, one, other, start_s, end_s)
    return (*sorted(steps), Step(duration_s, "repair"))


def _may_go_down(
    down: list[tuple[float, float, str]], new: tuple[float, float, str], down_max: int
) -> bool:
    start_s, end_s, host = new
    overlapping = [span for span in down if span[0] <= end_s and start_s <= span[1]]
    return len(overlapping) < down_max and all(span[2] != host for span in overlapping)


def _trouble(
    rng: Random, verb: str, one: str, other: str, start_s: float, end_s: float
) -> list[Step]:
    match verb:
        case "crash":
            how = "silent" if rng.random() < 0.3 else "reset"
            return [Step(start_s, verb, (one, how)), Step(end_s, "restart", (one,))]
        case "power_cut":
            changes = str(rng.randrange(20))
            return [Step(start_s, verb, (one, changes)), Step(end_s, "restart", (one,))]
        case "latency":
            high_s = rng.choice((0.05, 0.5, 3.0))
            slow = Step(start_s, verb, (f"{high_s / 10:g}", f"{high_s:g}", one, other))
            return [slow, Step(end_s, verb, ("0.0005", "0.002", one, other))]
        case "clog":
            words: tuple[str, ...] = (one, other, str(rng.choice((200, 5_000, 100_000))))
        case "loss":
            words = (one, other, f"{rng.choice((0.02, 0.1, 0.3)):g}")
        case _:
            words = (one, other)
    end = Step(end_s, "release" if verb == "hold" else "repair", (one, other))
    return [Step(start_s, verb, words), end]


def parse_script(text: str) -> Script:
    """From the text form; empty lines are skipped. Raises ValueError naming the line."""
    steps = []
    for line in filter(None, map(str.strip, text.splitlines())):
        at, *rest = line.split()
        try:
            steps.append(Step(float(at), rest[0], tuple(rest[1:])))
        except (ValueError, IndexError):
            raise ValueError(f"{line!r} is not a step: write seconds, verb, words") from None
    return tuple(steps)


class Troubled(Protocol):
    """What a nemesis needs of a simulation."""

    network: SimNetwork

    def is_up(self, name: str) -> bool: ...
    def crash(self, name: str, /, *, is_silent: bool = False) -> None: ...
    def cut_power_after(self, name: str, changes: int) -> None: ...
    def keep_power(self, name: str) -> None: ...
    def repaired(self) -> None:
        """The whole network was repaired: note it in the history."""
        ...


class Nemesis:
    """Plays a script against a simulation.

    Args:
        restart: makes a host new and starts its program; called for a host that is down.
    """

    def __init__(
        self, simulation: Troubled, script: Iterable[Step], restart: Callable[[str], object]
    ) -> None:
        self._simulation = simulation
        self._script = tuple(script)
        self._restart = restart
        self._down: dict[str, None] = {}

    async def run(self) -> None:
        """Play every step at its time, counted from now; then restart what is still down."""
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        for step in self._script:
            await asyncio.sleep(start_s + step.at_s - loop.time())
            self.play(step)
        for host in list(self._down):
            self._restart_if_down(host)

    def play(self, step: Step) -> None:
        """Do one step now. Raises SimulationError for a step that makes no sense."""
        try:
            self._play(step.verb, step.words)
        except (TypeError, ValueError, IndexError) as error:
            raise SimulationError(f"nemesis step {step}: {error}") from error

    def _play(self, verb: str, words: tuple[str, ...]) -> None:
        network = self._simulation.network
        match verb, words:
            case ("crash", (host, ("silent" | "reset") as how)):
                self._down[host] = None
                if self._simulation.is_up(host):
                    self._simulation.crash(host, is_silent=how == "silent")
            case ("power_cut", (host, changes)):
                self._down[host] = None
                if self._simulation.is_up(host):
                    self._simulation.cut_power_after(host, int(changes))
            case "restart", (host,):
                self._restart_if_down(host)
            case "latency", (low, high, *pair):
                network.set_latency(float(low), float(high), *pair)
            case "loss", (a, b, chance):
                network.loss(a, b, float(chance))
            case "clog", (a, b, rate):
                network.clog(a, b, float(rate))
            case "repair", ():
                network.repair()
                self._simulation.repaired()
            case (("partition" | "partition_oneway" | "hold" | "release" | "repair"), (a, b)):
                getattr(network, verb)(a, b)
            case _:
                raise ValueError("unknown verb, or the wrong number of words")

    def _restart_if_down(self, host: str) -> None:
        self._down.pop(host, None)
        self._simulation.keep_power(host)  # it may have written too little to lose it
        if not self._simulation.is_up(host):
            self._restart(host)


def shrink(script: Script, fails: Callable[[Script], bool]) -> Script:
    """A shorter script that still fails: drops one line after the other while it does.

    Cost: at most the square of the number of lines, in runs.
    """
    if not fails(script):
        raise ValueError("the script does not fail: nothing to shrink")
    at = len(script) - 1
    while at >= 0:
        shorter = script[:at] + script[at + 1 :]
        if fails(shorter):
            script, at = shorter, len(shorter)
        at -= 1
    return script
