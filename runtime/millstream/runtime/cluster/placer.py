"""The silo of a new activation: the candidates in the newest view, and the choice among them.

`Placer` owns the placements of the newest view of this silo, and the errors if no silo is suitable.
The strategies are in `placement`. `router` asks `Placer` after the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from millstream.runtime.errors import NotHosted, SiloUnavailable
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.run import Turns

from .gateways import Loads
from .member import Member
from .placement import HostedTypes, TypePlacement, choose_silo
from .table import Status

__all__ = ["Placer"]


class Placer:
    """Chooses silos for the activations that this silo's callers need.

    Args:
        roll: returns an index below its argument. It is the only source of chance in placement.
    """

    def __init__(
        self,
        address: str,
        turns: Turns,
        member: Member,
        loads: Loads,
        roll: Callable[[int], int],
    ) -> None:
        self._address = address
        self._turns = turns
        self._member = member
        self._loads = loads
        self._roll = roll
        self._types = HostedTypes(member.view)

    def _find(self, kind: GrainKind) -> TypePlacement | None:
        """Return the placement of a type in the newest view, or None if no silo hosts it."""
        view = self._member.view
        if self._types.view is not view:
            self._types = HostedTypes(view)
        return self._types.of(kind.name, kind.hosted)

    def find_worker_silo(self, kind: GrainKind, is_accepting: bool) -> str:
        """Return the silo for a call to a stateless worker: this one, else a random suitable one.

        Returns an empty text if there is none, or the type has no stateless workers. `is_accepting`
        is False while this silo starts no activations.
        """
        if kind.hosted is not None and not kind.workers_max:
            return ""
        found = self._find(kind)
        if found is None or not found.is_worker:
            return ""
        if self._address in found.silos:
            if is_accepting:
                return self._address
            others = [silo for silo in found.silos if silo != self._address]
        else:
            others = list(found.silos)
        return others[self._roll(len(others))] if others else ""

    def choose(self, kind: GrainKind, key: str) -> str:
        """Return the silo for a new activation of an ordinary grain.

        Raises NotHosted if no silo hosts the type, and SiloUnavailable if another try may succeed.
        """
        found = self._find(kind)
        if found is None or found.is_worker:
            raise self._why_not(kind.name, key)
        grain, loads = f"{kind.name}/{key}", self._loads.known
        return choose_silo(found.built_in, found.silos, self._address, grain, loads, self._roll)

    def find_others(self, kind: GrainKind) -> Sequence[str]:
        """Return the other silos that may have an ordinary grain, sorted."""
        found = self._find(kind)
        if found is None or found.is_worker:
            return ()
        return [silo for silo in found.silos if silo != self._address]

    def choose_among(self, kind: GrainKind, key: str, silos: Sequence[str]) -> str:
        """Return one of these silos for an activation that moves."""
        found, loads = self._find(kind), self._loads.known
        assert found is not None
        grain = f"{kind.name}/{key}"
        return choose_silo(found.built_in, silos, self._address, grain, loads, self._roll)

    def _why_not(self, name: str, key: str) -> SiloUnavailable:
        """Return the reason why no silo can be chosen now. Raises NotHosted."""
        if self._turns.ended:
            text = f"{self._address} stopped while it looked for {name}/{key}"
            return SiloUnavailable(text, may_have_run=False)
        self.check_hosted(name)
        text = f"{name}/{key}: a silo that hosts it has just become active: try again"
        return SiloUnavailable(text, may_have_run=False)

    def check_hosted(self, name: str) -> None:
        """Raise NotHosted if no silo hosts a grain type.

        Raises SiloUnavailable instead if silos that host the type are starting or stopping, for
        example during a restart.
        """
        found: dict[Status, set[str]] = {status: set() for status in Status}
        for row in self._member.view.rows:
            found[row.status].update(row.grain_types)
        hosted = found[Status.ACTIVE]
        if name in hosted:
            return
        is_starting = self._member.view.row(self._address) is None
        if is_starting or name in found[Status.JOINING] | found[Status.STOPPING]:
            raise SiloUnavailable(
                f"no active silo hosts grain type {name!r} at the moment, because silos of the "
                "cluster are starting or stopping: try again",
                may_have_run=False,
            )
        raise NotHosted(
            f"no active silo hosts grain type {name!r}; the cluster hosts "
            f"{', '.join(sorted(hosted)) or 'none'}. Try again while silos are being restarted"
        )
