"""Kills silo processes while events flow, and restarts them.

This module owns `Killing`, which decides the times (pure), and `Killer`, which kills. `cluster`
owns the processes. One silo is down at a time. A silo that restarts is back before the next kill,
and before the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

__all__ = ["CHAOS", "ONE", "Killer", "Killing", "Victims"]

LOOK_S = 0.05
DOWN_S = 1.0
"""How long a killed silo is down, in seconds."""
UP_S = 1.0
"""The time from its return to the next kill, in seconds."""


@dataclass(frozen=True, slots=True)
class Killing:
    """One kill for each `every` of the job, at most `kills_max`; events flow after the last one.

    `restarts`: a killed silo is restarted, and the next victim is another silo.
    """

    every: float
    kills_max: int
    restarts: bool

    def is_due(self, kills: int, share: float) -> bool:
        """Is the next kill due at this delivered share of the job (0..1)?"""
        return kills < self.kills_max and share >= (kills + 1) * self.every

    def holds(self, kills: int, share: float) -> bool:
        """Must publishing wait for a kill at this published share of the job?"""
        return kills < self.kills_max and share >= (kills + 2) * self.every

    def victim(self, kills: int, silos: int) -> int:
        """Return the next victim, beginning with the last silo."""
        return (silos - 1 - kills) % silos


ONE = Killing(every=0.3, kills_max=1, restarts=False)
CHAOS = Killing(every=0.125, kills_max=6, restarts=True)


class Victims(Protocol):
    """Silo processes by number."""

    async def kill(self, number: int, /) -> str:
        """Kill with SIGKILL; return the name of the silo."""
        ...

    async def start_again(self, number: int, /) -> None:
        """Restart a silo; return once it is active. Raises ClusterError."""
        ...


class Killer:
    """Kills as the plan says, until `stop`.

    Args:
        share: Returns the delivered share of the job, 0..1.
        say: Prints a line for people.
    """

    def __init__(
        self,
        victims: Victims,
        plan: Killing,
        silos: int,
        share: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self.kills = 0
        self.back_max_s = 0.0  # from a kill to the return
        self.is_busy = False  # a killed silo is about to come back
        self._victims = victims
        self._plan = plan
        self._silos = silos
        self._share = share
        self._say = say
        self._is_over = False

    def stop(self) -> None:
        """Kill no more; `run` ends when a killed silo is back."""
        self._is_over = True

    def holds(self, share: float) -> bool:
        """Must publishing wait at this published share of the job?"""
        return not self._is_over and self._plan.holds(self.kills, share)

    async def run(self) -> None:
        """Kill and restart. Raises ClusterError: a silo did not come back."""
        while not self._is_over and self.kills < self._plan.kills_max:
            if self._plan.is_due(self.kills, self._share()):
                await self._kill(self._plan.victim(self.kills, self._silos))
            await asyncio.sleep(LOOK_S)

    async def _kill(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        self.is_busy = self._plan.restarts
        killed_s = loop.time()
        who = await self._victims.kill(number)
        self.kills += 1
        self._say(f"killed {who} with SIGKILL")
        if not self._plan.restarts:
            return
        await asyncio.sleep(DOWN_S)
        await self._victims.start_again(number)
        took_s = loop.time() - killed_s
        self.back_max_s = max(self.back_max_s, took_s)
        self._say(f"  back after {took_s:.1f} s")
        await asyncio.sleep(UP_S)
        self.is_busy = False
