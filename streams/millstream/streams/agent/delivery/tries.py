"""How often one event was tried, and what follows from that.

Owns: `Tries`, which are values. Pure. Invariant: an event is not given up for deaths alone, unless
one of them was while it ran alone.
"""

from __future__ import annotations

import msgspec

from .steps import Died, Failure, FailureKind

__all__ = ["FATE_WAIT_S", "UNTRIED", "Tries"]

FATE_WAIT_S = 30.0  # for it to be known whether a silo died, before an event's last try
DEATHS_FEARED = 2  # an item that had so many runs alone in its queue


class Tries(msgspec.Struct, frozen=True):
    """The tries of one item, as far as they were seen here.

    `failures`: of its handler; `deaths`: of silos that had it; `died_alone`: one of them while
    nothing else of its queue was out; `error`: the last of both.
    """

    failures: int = 0
    deaths: int = 0
    died_alone: bool = False
    error: Failure | None = None

    def failed(self, error: Failure) -> Tries:
        """Its handler did."""
        return msgspec.structs.replace(self, failures=self.failures + 1, error=error)

    def died(self, event: Died) -> Tries:
        """A silo did that had it."""
        deaths = self.deaths + event.times
        text = f"SiloUnavailable: the silo of its handler died {deaths} times while it ran"
        is_alone = self.died_alone or event.is_alone
        return Tries(self.failures, deaths, is_alone, Failure(FailureKind.DEATH, text))

    def is_hopeless(self, tried: int, retries: int) -> bool:
        """Is it to be given up? `tried`: all that are known of, here and elsewhere."""
        if self.error is None:
            return False
        if self.error.is_final:
            return True
        is_known = self.died_alone or self.error.kind is not FailureKind.DEATH
        return is_known and tried > retries

    def is_feared(self, more: int, tried: int, retries: int) -> bool:
        """Is it to run alone, if so many more deaths are counted for it than are known?"""
        deaths = self.deaths + more
        return deaths >= DEATHS_FEARED or (deaths > 0 and tried > retries)


UNTRIED = Tries()
