"""The plan of one seed: the number of silos, and the faults.

Owns: `Plan`. Pure: a seeded random in, data out. Invariants: each kind of fault occurs in a few
seeds. At the end of a script everything is repaired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millstream.runtime.testing import Script, Simulation, make_script

__all__ = ["Plan", "make_plan"]

KINDS = {
    "everything": ("clog", "crash", "hold", "latency", "loss", "partition", "partition_oneway"),
    "crashes": ("crash",),
    "partitions": ("partition", "partition_oneway", "hold"),
    "slow network": ("latency", "loss", "clog"),
}
DOWN = ("crash", "kill", "power_cut", "reboot")


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults of one seed. `kind`: a key of KINDS."""

    kind: str
    silos: int
    script: Script

    @property
    def crashes(self) -> int:
        """The number of hosts that the script crashes."""
        return sum(step.verb in DOWN for step in self.script)


def make_plan(
    simulation: Simulation,
    steady: Sequence[str],
    *,
    duration_s: float,
    kinds: Sequence[str] = (),
    verbs: Mapping[str, Sequence[str]] = KINDS,
    silos_max: int = 5,
) -> Plan:
    """Make the plan of a simulation's seed.

    Args:
        steady: hosts beside the silos that may be cut off but never crash.
        kinds: the permitted keys of `verbs`; default: all.
    """
    rng = simulation.rng
    kind, silos = rng.choice(list(kinds or verbs)), rng.randint(3, silos_max)
    script = make_script(
        rng,
        [*(f"silo-{number}" for number in range(silos)), *steady],
        duration_s=duration_s,
        troubles=rng.randint(3, 10),
        verbs=verbs[kind],
        steady=steady,
        down_max=1 if silos < 5 else 2,
    )
    return Plan(kind, silos, script)
