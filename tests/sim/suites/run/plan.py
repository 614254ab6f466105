"""What happens to a cluster in one seed: how many silos, and which troubles.

Owns: `Plan`. Pure: a seeded random in, data out. Invariants: every kind of trouble comes up in a
few seeds; a script ends with everything repaired.
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
    """One seed's troubles. `kind`: a key of KINDS."""

    kind: str
    silos: int
    script: Script

    @property
    def crashes(self) -> int:
        """How many hosts the script kills."""
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
    """The plan of a simulation's seed.

    Args:
        steady: hosts beside the silos that may be cut off but never crash.
        kinds: of those in `verbs`; default: all.
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
