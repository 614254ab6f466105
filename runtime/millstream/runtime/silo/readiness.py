"""Whether a silo is ready for calls: its place in the cluster, and a probe turn.

This module owns `Readiness`. A silo is ready if it is active in its own view, does not stop, and a
turn of its own machinery ends in time. Stores, queues and other silos do not count: one outage of a
database would make every silo unready at once.

Invariant: at most one probe turn runs, however many ask.
"""

from __future__ import annotations

import asyncio

from millstream.runtime.cluster.table import Status
from millstream.runtime.definition.grain import Grain, grain
from millstream.runtime.definition.placement import stateless_worker
from millstream.runtime.errors import MillstreamError
from millstream.runtime.public_names import OWN

from .assembly import SiloAssembly
from .services import SiloServices

__all__ = ["Readiness", "ReadinessProbe"]

KEY = "probe"


@grain(name=f"{OWN}ReadinessProbe", placement=stateless_worker(max_local=1))
class ReadinessProbe(Grain):
    """Runs the probe turns of its silo. A stateless worker: no directory knows it."""

    async def probe(self) -> None:
        """Do nothing."""


class Readiness:
    """The readiness of one silo.

    Args:
        timeout_s: A probe turn must end within this time.
    """

    def __init__(self, silo: SiloAssembly, services: SiloServices, timeout_s: float) -> None:
        self._silo = silo
        self._services = services
        self._timeout_s = timeout_s
        self._probing: asyncio.Task[str] | None = None

    async def list_reasons(self) -> list[str]:
        """Return the reasons why the silo is not ready. Empty: it is. Takes at most the timeout."""
        reasons = list_standing(self._silo)
        if not reasons:
            reason = await self._probe()
            reasons = [reason] if reason else list_standing(self._silo)
        return reasons

    async def _probe(self) -> str:
        if self._probing is None or self._probing.done():
            self._probing = self._services.tasks.start(self._run_turn())
        probing = self._probing
        await asyncio.wait([probing])
        return "the silo has ended" if probing.cancelled() else probing.result()

    async def _run_turn(self) -> str:
        """Run a probe turn. Returns the reason of a failure, or ""."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._services.grain(ReadinessProbe, KEY).probe()
        except TimeoutError:
            return f"a probe turn did not end within {self._timeout_s:g} s"
        except MillstreamError as error:
            return f"a probe turn failed: {type(error).__name__}: {error}"
        return ""


def list_standing(silo: SiloAssembly) -> list[str]:
    """Return the reasons that the place of a silo in the cluster gives, without a turn."""
    if silo.turns.ended:
        return ["the silo has ended"]
    row = silo.membership.view.row(silo.address)
    if row is None:
        return ["the silo has not joined the cluster"]
    if row.status is not Status.ACTIVE:
        return [f"the silo is {row.status.value}"]
    return [] if silo.visitors.is_gateway_open else ["the silo is stopping"]
