"""The rebalancing of activations: rounds, orders and moves.

This module drives the decisions of `rebalance`. In each round the coordinator, which is the first
silo that rebalances, orders silos with many activations to give some to others. `migrations` moves
them.

Invariants:

- Any silo may be a coordinator, also two at a time. The silo that gives checks each order against
  its own count and that of the target. It gives to one silo at a time, and a silo gets from one at
  a time.
- Only activations move in which no turn runs and no request waits, which have no tasks and no open
  generators, and which are not kept alive.
- Moves go on in small batches, each of which ends before the next one begins.
- A higher control number replaces a lower one in all silos: odd suspends, even resumes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.definition.markers import timeout
from millstream.runtime.definition.streamed_method import RESULTS
from millstream.runtime.errors import ConfigError, MillstreamError
from millstream.runtime.options import Rebalancing
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.catalog import Catalog
from millstream.runtime.turns.collector import is_collectable
from millstream.runtime.turns.kind import GrainKind

from .gateways import Loads
from .placer import Placer
from .rebalance import Phase, Session, Transfer, measure_unevenness

__all__ = ["ActivationRebalancing", "Rebalancer", "RebalancingStatus"]

log = logging.getLogger("millstream.rebalancing")

BATCH = 20
"""Activations that one silo moves at the same time for rebalancing."""
ORDER_S = 20.0
"""Seconds for the moves of one order. The next round continues."""
BATCH_S = 5.0
"""Seconds that a batch may take. After that, the next batch begins."""
BATCH_LOOK_S = 0.005
ANSWERED_S = ORDER_S + 10.0
"""Seconds until the coordinator gives up an order."""
DRAWS_PER_MOVE = 10
"""Activations that are looked at for each one that is to be moved."""
CONTROL_MOST = 1_000_000_000
"""Control numbers above are ignored."""
REFUSED = -1
"""The answer of a silo that takes part in another transfer, stops, or is suspended."""


class RebalancingTarget(SystemTarget):
    """The `$rebalancing` target: orders of the coordinator, and requests of giving silos."""

    target_name = "$rebalancing"

    def __init__(self, rebalancing: ActivationRebalancing) -> None:
        self._rebalancing = rebalancing

    @timeout(ANSWERED_S)
    async def give(self, to: str, count: int) -> int:
        """Give activations to a silo. Returns how many began to move, or REFUSED."""
        return await self._rebalancing.give(to, count)

    async def reserve(self, source: str) -> int:
        """Expect activations of a silo. Returns this silo's movable activations, or REFUSED."""
        return self._rebalancing.reserve(source)

    async def release(self, source: str) -> None:
        """Hear that a silo has ended its transfer."""
        self._rebalancing.release(source)


class ActivationRebalancing:
    """The rebalancing of one silo, as coordinator, as source and as target.

    Args:
        kinds: the kinds of this process, by name.
        active: returns the active silos, sorted.
        roll: returns an index below its argument.
    """

    def __init__(
        self,
        address: str,
        options: Rebalancing,
        *,
        catalog: Catalog,
        placer: Placer,
        loads: Loads,
        targets: Targets,
        tasks: Tasks,
        kinds: Mapping[str, GrainKind],
        active: Callable[[], Iterable[str]],
        roll: Callable[[int], int],
    ) -> None:
        self._address = address
        self._options = options
        self._catalog = catalog
        self._placer = placer
        self._loads = loads
        self._targets = targets
        self._tasks = tasks
        self._kinds = kinds
        self._active = active
        self._roll = roll
        self._session: Session | None = None
        self._control = 0
        self._is_giving = False
        self._source, self._source_until_s = "", 0.0
        self.moved = 0
        """Activations that this silo has moved to others."""
        loads.rebalancing = lambda: (self.count(), self.learn_control())
        targets.add(RebalancingTarget(self))

    def start(self) -> None:
        """Start the rounds."""
        self._tasks.start(self._run())

    def close(self) -> None:
        """Stop the rounds."""
        self._tasks.cancel()

    # -- what this silo knows

    def learn_control(self) -> int:
        """Take over the highest control number of the newest reports, and return the number.

        Reports expire, so the silo remembers the number.
        """
        heard = (report.control or 0 for report in self._loads.fresh_reports().values())
        self._control = max(self._control, *(one for one in heard if one <= CONTROL_MOST), 0)
        return self._control

    def is_suspended(self) -> bool:
        """Return whether the last order that this silo knows was to suspend rebalancing."""
        return self.learn_control() % 2 == 1

    async def set_suspended(self, is_suspended: bool) -> None:
        """Suspend or resume rebalancing in all silos."""
        if self.is_suspended() is not is_suspended:
            self._control += 1
        await self._loads.tell_now()

    @property
    def session(self) -> Session | None:
        """The session, if this silo is the coordinator."""
        return self._session

    def counts(self) -> dict[str, int]:
        """Return the movable activations of the active silos that rebalance."""
        reports, active = self._loads.fresh_reports(), self._active()
        known = {silo: reports[silo].movable for silo in active if silo in reports}
        return {silo: max(0, count) for silo, count in known.items() if count is not None}

    def find_coordinator(self) -> str:
        """Return the first active silo that rebalances, as far as this silo knows."""
        return min([*self.counts(), self._address])

    def count(self) -> int:
        """Return the activations of this silo that may move, busy ones included."""
        return sum(len(self._catalog.of(kind.name)) for kind in self._list_movable())

    def _list_movable(self) -> list[GrainKind]:
        kinds = (kind for kind in self._kinds.values() if is_movable(kind))
        return [kind for kind in kinds if self._placer.find_others(kind)]

    # -- the coordinator

    async def _run(self) -> None:
        await asyncio.sleep(self._options.first_after_s)
        while True:
            try:
                await self._hold_round()
            except Exception:
                log.exception("%s: a round of rebalancing failed", self._address)
            await asyncio.sleep(self._options.every_s)

    async def _hold_round(self) -> None:
        """Decide and order the transfers of a round, if this silo is the coordinator."""
        if not self._catalog.is_accepting or self.find_coordinator() != self._address:
            self._session = None
            return
        if self.is_suspended():
            return
        if self._session is None:
            self._session = Session(self._options)
        session, before = self._session, self._session.phase
        transfers = session.decide(self.counts())
        if session.phase is not before:
            self._tell_phase(session.phase)
        await asyncio.gather(*(self._order(session, transfer) for transfer in transfers))

    def _tell_phase(self, phase: Phase) -> None:
        counts = self.counts()
        text = "rebalancing is %s: %.1f %% of %d activations are in silos with too many"
        share = measure_unevenness(counts) * 100
        log.info(text, phase.value, share, sum(counts.values()), extra={"silo": self._address})

    async def _order(self, session: Session, transfer: Transfer) -> None:
        source, to, moves = transfer
        try:
            name = RebalancingTarget.target_name
            moved = await self._targets.call(source, name, RebalancingTarget.give, to, moves)
        except MillstreamError as error:
            log.info("%s did not give activations to %s: %s", source, to, error)
            return
        if moved == 0:
            session.note_barren(transfer)

    # -- the target of a transfer

    def reserve(self, source: str) -> int:
        """Expect activations of a silo. Returns the movable activations here, or REFUSED."""
        now_s = asyncio.get_running_loop().time()
        is_free = source == self._source or now_s >= self._source_until_s
        if not is_free or self._is_giving or not self._catalog.is_accepting:
            return REFUSED
        self._source, self._source_until_s = source, now_s + ANSWERED_S
        return self.count()

    def release(self, source: str) -> None:
        """End a reservation."""
        if source == self._source:
            self._source, self._source_until_s = "", 0.0

    # -- the source of a transfer

    async def give(self, to: str, count: int) -> int:
        """Give at most `count` activations to a silo. Returns how many, or REFUSED."""
        now_s = asyncio.get_running_loop().time()
        is_getting = now_s < self._source_until_s
        if self._is_giving or is_getting or self.is_suspended() or not self._catalog.is_accepting:
            return REFUSED
        self._is_giving = True
        try:
            return await self._give_reserved(to, min(count, self._options.moves_max))
        finally:
            self._is_giving = False

    async def _give_reserved(self, to: str, count: int) -> int:
        if self.count() < 2:
            return REFUSED
        call, name = self._targets.call, RebalancingTarget.target_name
        theirs = await call(to, name, RebalancingTarget.reserve, self._address)
        if theirs == REFUSED:
            return REFUSED
        try:
            # never more than half of the difference, whatever the coordinator has counted
            wanted = min(count, (self.count() - theirs) // 2)
            return REFUSED if wanted <= 0 else await self._move(to, wanted)
        finally:
            self._tasks.start(self._release(to))

    async def _release(self, to: str) -> None:
        try:
            name = RebalancingTarget.target_name
            await self._targets.call(to, name, RebalancingTarget.release, self._address)
        except MillstreamError as error:
            log.debug("%s keeps its reservation for a while: %s", to, error)

    async def _move(self, to: str, count: int) -> int:
        """Move random activations, in batches. Returns how many began to move."""
        loop = asyncio.get_running_loop()
        until_s, began = loop.time() + ORDER_S, 0
        drawn = Draw(self._list_all(), self._roll)
        while began < count and loop.time() < until_s and self._may_go_on():
            batch: list[Activation] = []
            while len(batch) < min(BATCH, count - began) and drawn.looked < count * DRAWS_PER_MOVE:
                activation = drawn.take()
                if activation is None:
                    break
                if self._begin(activation, to):
                    batch.append(activation)
            began += len(batch)
            self.moved += len(batch)
            if not batch:
                break
            await wait_gone(batch)
        return began

    def _may_go_on(self) -> bool:
        return self._catalog.is_accepting and not self.is_suspended()

    def _list_all(self) -> list[Activation]:
        return [one for kind in self._list_movable() for one in self._catalog.of(kind.name).all()]

    def _begin(self, activation: Activation, to: str) -> bool:
        """Begin to move an activation. Returns False if it cannot or should not move."""
        if not is_free(activation) or not self._placer.may_give(
            activation.kind, activation.key, to
        ):
            return False
        try:
            self._catalog.move(activation, to)
        except ConfigError as error:  # the silo has just left
            log.debug("%s does not move: %s", activation, error)
            return False
        return True


class Draw:
    """Draws random activations, each once."""

    def __init__(self, activations: list[Activation], roll: Callable[[int], int]) -> None:
        self._left = activations
        self._roll = roll
        self.looked = 0

    def take(self) -> Activation | None:
        """Return the next activation, or None if all were drawn."""
        left = self._left
        if not left:
            return None
        self.looked += 1
        at = self._roll(len(left))
        left[at], left[-1] = left[-1], left[at]
        return left.pop()


async def wait_gone(activations: Iterable[Activation]) -> None:
    """Wait until activations have left this silo, for a bounded time."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + BATCH_S
    while loop.time() < until_s and any(  # noqa: ASYNC110  ends are no event
        not one.is_gone for one in activations
    ):
        await asyncio.sleep(BATCH_LOOK_S)


def is_movable(kind: GrainKind) -> bool:
    """Return whether rebalancing may move activations of a kind, unless they are workers."""
    hosted = kind.hosted
    return hosted is not None and not kind.is_system and not hosted.options.immovable


def is_free(activation: Activation) -> bool:
    """Return whether an activation can move now without an effect on calls or consumers."""
    box = activation.mailbox
    if not is_collectable(activation, asyncio.get_running_loop().time()):
        return False
    if box is None:
        return True
    results = box.extensions.get(RESULTS)
    return box.stop is None and not box.is_awaited and not (results and results.results.is_open)


@dataclass(frozen=True, slots=True, kw_only=True)
class RebalancingStatus:
    """The state of rebalancing, as one silo knows it.

    Attributes:
        coordinator: The address of the silo that decides about moves.
        is_suspended: True if rebalancing is suspended.
        unevenness: The share of all movable activations that are in a silo with too many, from 0
            to 1.
        activations: The movable activations of each silo, by address, up to a second old.
        moved: The activations that this silo has moved to others since its start.
    """

    coordinator: str
    is_suspended: bool
    unevenness: float
    activations: Mapping[str, int]
    moved: int


class Rebalancer:
    """The control of rebalancing in a cluster, as `Silo.rebalancer`. Any silo may use it."""

    __slots__ = ("_rebalancing",)

    def __init__(self, rebalancing: ActivationRebalancing) -> None:
        self._rebalancing = rebalancing

    async def suspend(self) -> None:
        """Suspend rebalancing in all silos, until `resume`. Running moves end.

        Silos that cannot be reached now learn of it with the next report of load, and silos that
        join later, too. If all silos stop, the suspension ends.
        """
        await self._rebalancing.set_suspended(True)

    async def resume(self) -> None:
        """Resume rebalancing in all silos. The next round follows within `every_s`."""
        await self._rebalancing.set_suspended(False)

    def status(self) -> RebalancingStatus:
        """Return the state of rebalancing."""
        rebalancing = self._rebalancing
        counts = rebalancing.counts()
        return RebalancingStatus(
            coordinator=rebalancing.find_coordinator(),
            is_suspended=rebalancing.is_suspended(),
            unevenness=measure_unevenness(counts),
            activations=MappingProxyType(counts),
            moved=rebalancing.moved,
        )
