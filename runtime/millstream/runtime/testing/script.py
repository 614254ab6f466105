"""A seeded script of troubles, as data.

Owns: `Step`, scripts (make, print, parse, shrink). Not: playing one (`nemesis`).
Invariants: a script is text, one step per line, and the text form parses back to it; a made script
ends its troubles itself: at its end the network is repaired and every crashed host restarted. What
was damaged on a disk stays so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .world.disk.medium import LATENCY_S
from .world.env import Random

__all__ = ["DISK_VERBS", "VERBS", "Script", "Step", "make_script", "parse_script", "shrink"]


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
# And with disks that matter. After `disk_sync_fails` the host is crashed and restarted, since who
# stores anything stops there; after `disk_rollback` it finds its files as they were, after
# `disk_wipe` none. A host that is paused, as by SIGSTOP, keeps its links and locks.
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
# Those by which a host goes down.
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
    """Troubles at random times, each ended after a random time, all by `duration_s`.

    Args:
        hosts: names that may be troubled.
        trouble_s: shortest and longest time of one trouble.
        down_max: most hosts that are down at one time; 0 means no crashes.
        verbs: a subset of VERBS and DISK_VERBS.
        steady: those of `hosts` that never crash and have no disk, as services that are no
            simulated program.
    """
    unknown = [verb for verb in verbs if verb not in (*VERBS, *DISK_VERBS)]
    if unknown or len(hosts) < 2:
        raise ValueError(f"a script needs known verbs (not {unknown}) and 2 hosts, got {hosts}")
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
    """From the text form; empty lines are skipped. Raises ValueError naming the line."""
    steps = []
    for line in filter(None, map(str.strip, text.splitlines())):
        at, *rest = line.split()
        try:
            steps.append(Step(float(at), rest[0], tuple(rest[1:])))
        except (ValueError, IndexError):
            raise ValueError(f"{line!r} is not a step: write seconds, verb, words") from None
    return tuple(steps)


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
