"""Balancing by deployment: a fixed list of silo names, or the live membership.

Owns: `DeploymentBalancer`. Not: the moments of its answers (`rounds`), the shares (`best_fit`),
acquiring or handing over queues. Source: Orleans' DeploymentBasedQueueBalancer. Invariants: with a
list, a queue stays with its silo even while other silos are down. With the live membership, every
silo computes the same shares from the same queue records, so a queue moves only if the shares
demand it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from millstream.runtime import ConfigError
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import SiloSet

from .best_fit import best_fit
from .rounds import CALM_LOOK_S, LOOK_S, Rounds, Wish, check_number

__all__ = ["DeploymentBalancer"]


def list_names(silos: object) -> Iterable[object]:
    """The given names of silos; a value that is no list is its own only member."""
    if silos is None:
        return ()
    return silos if isinstance(silos, Iterable) else (silos,)


class DeploymentBalancer:
    """Each silo reads an even share of the queues; the default, with the name `"deployment"`.

    A silo keeps its queues up to its share, so that the fewest queues move. The balancer reads the
    queue records: every second until each queue has its owner, then every 10 s. While the state
    store does not answer, the last answer stays valid.

    Args:
        silos: names of all silos of the deployment: a queue then stays with its silo even while
            that silo is down. None: the live silos share all queues.
        rebalance_delay_s: seconds for which joins are collected before queues move to new silos, at
            most three times that in all; 0 or more. When a silo is gone, its queues move at once.
        weights: shares by silo name, finite and above 0; a silo that is not named has 1.

    Raises:
        ConfigError: an argument is not valid.
    """

    def __init__(
        self,
        *,
        silos: Sequence[str] | None = None,
        rebalance_delay_s: float = 5.0,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        check_number("rebalance_delay_s", rebalance_delay_s)
        if isinstance(silos, str) or not all(isinstance(one, str) for one in list_names(silos)):
            raise ConfigError(f"silos is {silos!r}: give a list of silo names")
        if weights is not None and not isinstance(weights, Mapping):
            raise ConfigError(f"weights is {weights!r}: give a dict of weights by silo name")
        for name, weight in (weights or {}).items():
            if not isinstance(name, str):
                raise ConfigError(f"weights[{name!r}]: the name of a silo must be a str")
            check_number(f"weights[{name!r}]", weight, may_be_zero=False)
        self._deployment = None if silos is None else tuple(silos)
        self._delay_s = rebalance_delay_s
        self._weights = dict(weights or {})
        self._queues: Sequence[QueueId] = ()
        self._silos: SiloSet
        self._rounds: Rounds | None = None

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[Iterable[QueueId]], None],
        /,
    ) -> None:
        """Answer at once, and again after each change. The provider calls this.

        Args:
            queues: all queues of the provider.
            silos: the live silos and the owners of queues.
            wanted: takes the queues that this silo wants.
        """
        self._queues, self._silos = queues, silos
        wish = self._wish_share if self._deployment is None else self._wish_from_list
        self._rounds = Rounds(silos, self._delay_s, wanted, wish)
        await self._rounds.start()

    async def aclose(self) -> None:
        """Stop answering. The provider calls this."""
        if self._rounds is not None:
            await self._rounds.aclose()

    async def _wish_from_list(self, counted: frozenset[str]) -> Wish:
        """The queues of this silo by the list."""
        assert self._deployment is not None
        me = self._silos.me
        dealt = best_fit(self._queues, self._deployment, self._weights)
        return Wish(frozenset(dealt.get(self._silos.names().get(me, me), ())))

    async def _wish_share(self, counted: frozenset[str]) -> Wish:
        """Return this silo's share of all queues."""
        held = {queue: owner.silo for queue, owner in (await self._silos.owners()).items()}
        names = self._silos.names()
        weights = {silo: self._weights.get(names.get(silo, silo), 1.0) for silo in counted}
        dealt = best_fit(self._queues, sorted(counted), weights, held)
        is_settled = all(held.get(queue) == silo for silo in dealt for queue in dealt[silo])
        return Wish(frozenset(dealt[self._silos.me]), CALM_LOOK_S if is_settled else LOOK_S)
