"""A script of faults, as data.

This module owns `Step`, and makes, prints, parses and shrinks scripts. `nemesis` plays them. A
script is text with one step in each line, and the text parses back to the script. A script that
`make_script` made ends its faults itself: at its end the network is repaired and every crashed host
is restarted. Damage on a disk stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .world.disk.medium import LATENCY_S
from .world.env import Random

__all__ = ["DISK_VERBS", "VERBS", "Script", "Step", "make_script", "parse_script", "shrink"]


class Step(NamedTuple):
    """One step of a script. As text it is one line, such as `7.500000 crash silo-0 reset`.

    Attributes:
        at_s: The virtual time from the start of the script, in seconds.
        verb: The fault, or the end of one.
        words: The arguments of the verb, such as hosts.
    """

    at_s: float
    verb: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join([f"{self.at_s:.6f}", self.verb, *self.words])


Script = tuple[Step, ...]
"""A script of faults: steps in the order of their times."""

VERBS = ("clog", "crash", "hold", "latency", "loss", "partition", "partition_oneway", "power_cut")
"""The faults of `make_script` by default: of hosts and of the network. A step ends each one."""
DISK_VERBS = (
    "disk_damage",
    "disk_full",
    "disk_rollback",
    "disk_slow",
    "disk_stall",
    "disk_sync_fails",
    "disk_wipe",
    "kill",
    "pause",
)
"""Further faults of `make_script`: of disks and processes.

After `disk_sync_fails`, the host crashes and restarts. After `disk_rollback` it finds its files in
an earlier state, and after `disk_wipe` it finds none. A paused host, as by SIGSTOP, keeps its links
and locks. `disk_damage`, `disk_rollback` and `disk_wipe` break the promises of a single disk.
"""
# The faults that take a host down.
DOWN = ("crash", "disk_rollback", "disk_sync_fails", "disk_wipe", "kill", "pause", "power_cut")


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
    """Make a script of random faults. Each fault ends after a random time.

    Args:
        rng: The random numbers of the simulation.
        hosts: The hosts that may have faults. At least two.
        duration_s: The end of the script, when all faults have ended, in virtual seconds.
        troubles: The number of faults, at most. A fault that would take too many hosts down is left
            out.
        trouble_s: The shortest and longest time of one fault, in virtual seconds.
        down_max: The most hosts that are down at the same time. 0: no crashes.
        verbs: The faults to choose from, of VERBS and DISK_VERBS.
        steady: Those of `hosts` that never crash and have no disk, such as
            `SimCluster.service_names`.

    Raises:
        ValueError: A verb is unknown, or there are fewer than two hosts.
    """
    unknown = [verb for verb in verbs if verb not in (*VERBS, *DISK_VERBS)]
    if unknown or len(hosts) < 2:
        raise ValueError(
            f"a script needs known verbs (not {unknown}) and 2 or more hosts, got {hosts}"
        )
    steps: list[Step] = []
    down: list[tuple[float, float, str]] = []
    for _ in range(troubles):
        start_s = rng.uniform(0, duration_s)
        end_s = min(duration_s, start_s + rng.uniform(*trouble_s))
        verb = rng.choice(list(verbs))
        one, other = rng.sample(list(hosts), 2)
        if verb in DISK_VERBS and one in steady:
            continue
        if verb in DOWN:
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
        case "pause":
            return [Step(start_s, verb, (one,)), Step(end_s, "resume", (one,))]
        case "kill":
            return [Step(start_s, verb, (one,)), Step(end_s, "restart", (one,))]
        case _ if verb in DISK_VERBS:
            return _disk_trouble(rng, verb, one, start_s, end_s)
        case "clog":
            words: tuple[str, ...] = (one, other, str(rng.choice((200, 5_000, 100_000))))
        case "loss":
            words = (one, other, f"{rng.choice((0.02, 0.1, 0.3)):g}")
        case _:
            words = (one, other)
    end = Step(end_s, "release" if verb == "hold" else "repair", (one, other))
    return [Step(start_s, verb, words), end]


def _disk_trouble(rng: Random, verb: str, host: str, start_s: float, end_s: float) -> list[Step]:
    match verb:
        case "disk_damage":
            return [Step(start_s, verb, (host, rng.choice(("bit", "sector"))))]
        case "disk_full":
            room = str(rng.choice((0, 1_000, 100_000)))
            return [Step(start_s, verb, (host, room)), Step(end_s, "disk_room", (host,))]
        case "disk_slow":
            high_s = rng.choice((0.02, 0.2, 1.0))
            slow = Step(start_s, verb, (host, f"{high_s / 10:g}", f"{high_s:g}"))
            return [slow, Step(end_s, verb, (host, *(f"{bound_s:g}" for bound_s in LATENCY_S)))]
        case "disk_stall":
            return [Step(start_s, verb, (host, f"{end_s - start_s:g}"))]
        case "disk_sync_fails":
            return [Step(start_s, verb, (host,)), Step(end_s, "reboot", (host,))]
        case "disk_wipe":
            return [Step(start_s, verb, (host,))]
    return [Step(start_s, "disk_copy", (host,)), Step(end_s, verb, (host,))]


def parse_script(text: str) -> Script:
    """Make a script from its text. Empty lines are skipped.

    Args:
        text: The steps, one in each line: seconds, verb, words.

    Raises:
        ValueError: A line is no step. The message names it.
    """
    steps = []
    for line in filter(None, map(str.strip, text.splitlines())):
        at, *rest = line.split()
        try:
            steps.append(Step(float(at), rest[0], tuple(rest[1:])))
        except (ValueError, IndexError):
            raise ValueError(f"{line!r} is not a step: write seconds, verb, words") from None
    return tuple(steps)


def shrink(script: Script, fails: Callable[[Script], bool]) -> Script:
    """Find a shorter script that still fails, by dropping one step after the other.

    It runs `fails` at most as many times as the square of the number of steps.

    Args:
        script: A script that fails.
        fails: Runs a script, and returns whether it fails.

    Raises:
        ValueError: The script does not fail.
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
