"""Balancing by deployment: a fixed list of silo names, or the live membership.

Owns: `DeploymentBalancer` and when it computes anew. Not: acquiring or releasing queues. Source:
Orleans' DeploymentBasedQueueBalancer without the maturity wait; Solace's rebalance delay.
Invariants: the first answer comes at once; after a death the others take over at once; joins are
collected for `rebalance_delay_s`, and never longer than three times that.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from millstream.runtime import ConfigError
from millstream.streams.contracts.identity import QueueId
from millstream.streams.contracts.mapping import SiloSet

from .best_fit import best_fit

__all__ = ["DeploymentBalancer"]

DELAYS_MAX = 3


def _check(what: str, number: object) -> None:
    if isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf:
        return
    raise ConfigError(f"{what} is {number!r}; it must be a finite number that is not negative")


def listed(silos: object) -> Iterable[object]:
    """What the names of silos are to be; one that is no list is its own member."""
    if silos is None:
        return ()
    return silos if isinstance(silos, Iterable) else (silos,)


class DeploymentBalancer:
    """Each silo reads its even share of the queues.

    Args:
        silos: names of all silos of the deployment; then a queue stays with its silo even while
            that is down. None: the silos that are alive share all queues.
        rebalance_delay_s: how long joins are collected before queues move to new silos.
        weights: shares by silo name.
    """

    def __init__(
        self,
        *,
        silos: Sequence[str] | None = None,
        rebalance_delay_s: float = 5.0,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        _check("rebalance_delay_s", rebalance_delay_s)
        if isinstance(silos, str) or not all(isinstance(one, str) for one in listed(silos)):
            raise ConfigError(f"silos is {silos!r}: give a list of names")
        if weights is not None and not isinstance(weights, Mapping):
            raise ConfigError(f"weights is {weights!r}: give a dict of shares by silo name")
        for name, weight in (weights or {}).items():
            if not isinstance(name, str):
                raise ConfigError(f"weights[{name!r}]: the name of a silo is a str")
            _check(f"weights[{name!r}]", weight)
        self._deployment = None if silos is None else tuple(silos)
        self._delay_s = rebalance_delay_s
        self._weights = dict(weights or {})
        self._queues: Sequence[QueueId] = ()
        self._silos: SiloSet | None = None
        self._wanted: Callable[[frozenset[QueueId]], None] = lambda queues: None
        self._unwatch: Callable[[], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._first_change_s = 0.0
        self._counted: frozenset[str] = frozenset()

    async def start(
        self,
        queues: Sequence[QueueId],
        silos: SiloSet,
        wanted: Callable[[frozenset[QueueId]], None],
        /,
    ) -> None:
        """Answer at once, and again after each change."""
        self._queues, self._silos, self._wanted = queues, silos, wanted
        self._unwatch = silos.watch(self._changed)
        self._answer()

    async def aclose(self) -> None:
        """Answer no more."""
        if self._unwatch is not None:
            self._unwatch()
            self._unwatch = None
        self._cancel()

    def _changed(self) -> None:
        assert self._silos is not None
        present = frozenset(self._silos.silos())
        if present == self._counted:
            self._cancel()
        elif self._counted - present:
            self._answer()  # somebody is gone: nobody reads its queues
        else:
            self._answer_later()

    def _answer_later(self) -> None:
        assert self._silos is not None
        now = asyncio.get_running_loop().time()
        if self._timer is None:
            self._first_change_s = now
        self._cancel()
        latest_s = self._first_change_s + DELAYS_MAX * self._delay_s
        when_s = min(now + self._delay_s, latest_s)
        self._timer = self._silos.tasks.call_at(when_s, self._answer)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _answer(self) -> None:
        self._cancel()
        assert self._silos is not None
        present = self._silos.silos()
        self._counted = frozenset(present)
        names, me = self._silos.names(), self._silos.me
        if me not in self._counted:
            self._wanted(frozenset())
            return
        if self._deployment is not None:
            dealt = best_fit(self._queues, self._deployment, self._weights)
            self._wanted(frozenset(dealt.get(names.get(me, me), ())))
            return
        weights = {silo: self._weights.get(names.get(silo, silo), 1.0) for silo in present}
        self._wanted(frozenset(best_fit(self._queues, present, weights)[me]))
