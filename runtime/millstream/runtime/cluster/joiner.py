"""The step of joining in which a silo reaches every active silo before it becomes active itself.

`Reach` owns this step, and `member` owns the rows. The step ends when each active silo has read the
new silo's row and answered it, or has been evicted. It fails after `join_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from millstream.runtime.errors import ClusterError, ConfigError, MillstreamError
from millstream.runtime.wire.handshake import OtherTable

__all__ = ["Joiner", "Reach"]

log = logging.getLogger("millstream.member")

PAUSE_FIRST_S = 0.05
PAUSE_CEILING_S = 0.25
WAIT_TOLD_EVERY_S = 5.0


class Joiner(Protocol):
    """The member that joins, as `Reach` sees it."""

    @property
    def address(self) -> str: ...
    @property
    def table_text(self) -> str: ...
    def active(self) -> Sequence[str]: ...
    def is_dead(self, silo: str, /) -> bool: ...
    def refusal_of(self, silo: str, /) -> Exception | None: ...
    def wait_for(self, silos: Iterable[str], /) -> None: ...
    async def greet(self, silo: str, /) -> None: ...
    async def refresh(self) -> None: ...


class Reach:
    """Exchanges a message with every active silo, or waits for the eviction of the silo."""

    def __init__(self, joiner: Joiner, limit_s: float) -> None:
        self._joiner = joiner
        self._limit_s = limit_s
        self._now = asyncio.get_running_loop().time
        self._started = self._now()
        self._told: float | None = None
        self._why: dict[str, str] = {}

    async def everyone(self) -> None:
        """Reach every active silo.

        Raises ClusterError after `limit_s`, and ConfigError at once for a silo that will never
        answer.
        """
        try:
            async with asyncio.timeout(self._limit_s):
                await self._reach()
        except TimeoutError:
            me = self._joiner.address
            text = f"{me} did not join within {self._limit_s:g} s (join_timeout_s): {self.why}"
            raise ClusterError(text) from None
        finally:
            self._joiner.wait_for(())

    async def _reach(self) -> None:
        joiner = self._joiner
        reached, pause_s = {joiner.address}, PAUSE_FIRST_S
        while left := [silo for silo in joiner.active() if silo not in reached]:
            joiner.wait_for(left)
            self._why = {silo: self._why.get(silo, "no answer yet") for silo in left}
            self._why = failures = await self._greet_all(left)
            reached.update(silo for silo in left if silo not in failures)
            self._tell()
            await asyncio.sleep(pause_s if failures else 0)
            pause_s = min(2 * pause_s, PAUSE_CEILING_S)
            await joiner.refresh()
            self._check(failures)

    def _check(self, failures: Iterable[str]) -> None:
        if self._joiner.is_dead(self._joiner.address):
            raise ClusterError(f"{self._joiner.address} was evicted while it joined")
        for silo in failures:
            why = self._joiner.refusal_of(silo)
            if isinstance(why, OtherTable):
                raise ConfigError(self._why_copied(silo, why))
            if why is not None:
                me = self._joiner.address
                text = f"{me} cannot join {silo}, which has the same membership table: {why}"
                raise ConfigError(text)

    def _why_copied(self, silo: str, why: OtherTable) -> str:
        """Explain that the table is a copy.

        Only a copy lists a running silo that follows another table.
        """
        me, table = self._joiner.address, self._joiner.table_text
        return (
            f"{me} cannot join: its membership table ({table}) is a copy of the table of {silo}, "
            f"which is running ({why}). To continue from the copy, stop every silo of that cluster "
            "first. To run a second cluster, give this silo its own membership table, in a new "
            "directory"
        )

    async def _greet_all(self, silos: Sequence[str]) -> dict[str, str]:
        """Return the silos that did not answer, each with the reason."""
        errors = await asyncio.gather(*map(self._greet, silos))
        return {silo: error for silo, error in zip(silos, errors, strict=True) if error}

    async def _greet(self, silo: str) -> str:
        try:
            await self._joiner.greet(silo)
        except MillstreamError as error:
            return str(error)
        return ""

    def _tell(self) -> None:
        """Log the silos that did not answer, unless that was logged recently."""
        now = self._now()
        if self._why and (self._told is None or now - self._told >= WAIT_TOLD_EVERY_S):
            self._told = now
            text = "%s waits to join, %.1f s of at most %g s (join_timeout_s): %s"
            me = self._joiner.address
            log.warning(text, me, now - self._started, self._limit_s, self.why)

    @property
    def why(self) -> str:
        """The silos that did not answer, each with the reason."""
        return "; ".join(f"{silo} does not answer ({why})" for silo, why in self._why.items())
