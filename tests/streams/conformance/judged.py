"""Records and judges a run with faults: each publish and each delivery, with its time.

The programs publish one item after the other, and note the accepted ones. Items that were refused,
or whose fate is unknown, are not judged. Silos stop, crash and restart meanwhile, as the seed
decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from tests.streams.conformance.actors import LINES, Counter, Listener, Tally, ears
from tests.streams.conformance.adapters import NUMBERS
from tests.streams.conformance.place import Place
from tests.streams.conformance.watched import watch

from millstream.runtime import MillstreamError
from millstream.runtime.testing import (
    Delivered,
    History,
    Published,
    QueueAcquired,
    Random,
    Repaired,
    Subscribed,
    check_live_after_repair,
    check_nothing_lost,
    check_one_owner,
    check_tokens_rise,
)
from millstream.runtime.testing.history import Event
from millstream.streams import Capability

KEYS = ("a", "b", "c")
LATE = "late"
ITEMS = 40
PAUSE_S = 0.3


@dataclass(frozen=True)
class Accepted:
    stream: str
    item: int
    began_s: float
    at_s: float


class Run:
    """One run: publishers, consumers, faults; then `findings`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._rng: Random = place.simulation.rng
        self.accepted: list[Accepted] = []
        self._subscribed: list[tuple[float, str, str]] = []
        self._calm_from_s = 0.0
        self._counts = Counter in place.setting.grains
        self.tallies: dict[str, Tally] = {}

    @property
    def _now(self) -> float:
        return self._place.simulation.loop.time()

    # -- events

    async def play(self, *, crashes: bool) -> None:
        for key in KEYS:
            self._subscribed.append((0.0, f"numbers/{key}", key))
            if self._counts:
                self._subscribed.append((0.0, f"numbers/{key}", f"counter/{key}"))
            await self._listen(f"l-{key}", key)
        programs = [asyncio.ensure_future(self._publish(key)) for key in KEYS]
        await asyncio.gather(self._trouble(crashes), self._come_late(), *programs)
        self._calm_from_s = self._now
        await self._settle()

    async def _publish(self, key: str) -> None:
        for item in range(ITEMS):
            for namespace in (NUMBERS, LINES):
                began_s = self._now
                try:
                    await self._place.stream(namespace, key).publish(item)
                except MillstreamError:
                    continue
                where = f"{namespace.name}/{key}"
                self.accepted.append(Accepted(where, item, began_s, self._now))
            await asyncio.sleep(self._rng.uniform(0, 2 * PAUSE_S))

    async def _listen(self, who: str, key: str) -> None:
        """Subscribe; repeat the call if its silo crashes."""
        while True:
            try:
                await self._place.grain(Listener, who).listen(key)
            except MillstreamError:
                await asyncio.sleep(0.5)
            else:
                return self._subscribed.append((self._now, f"lines/{key}", who))

    async def _come_late(self) -> None:
        await asyncio.sleep(ITEMS * PAUSE_S / 2)
        await self._listen(LATE, KEYS[0])

    async def _trouble(self, crashes: bool) -> None:
        """Take one silo after the other away for a while; the others stay."""
        place = self._place
        for _ in range(3):
            await asyncio.sleep(self._rng.uniform(0.5, 4))
            number = self._rng.randrange(place.setting.silos)
            if crashes and self._rng.random() < 0.7:
                silent = self._rng.random() < 0.3
                place.simulation.crash(f"silo-{number}", is_silent=silent)
            else:
                await place.leave(number)
            await asyncio.sleep(self._rng.uniform(1, 20))
            place.cluster.boot(f"silo-{number}")
            await place.until(lambda: len(place.cluster.silos()) == place.setting.silos)

    async def _settle(self) -> None:
        """Wait until all owed events have arrived; give up after a minute."""
        wanted = {(one.stream, one.item) for one in self.accepted}
        owed = [(who, stream, item) for stream, item in wanted for who in self._of(stream)]
        try:
            await self._place.until(
                lambda: all(item in ears.items(who) for who, _, item in owed), within_s=60
            )
        except TimeoutError:
            return
        await self._place.calm(10)
        for key in KEYS if self._counts else ():
            self.tallies[key] = await self._place.grain(Counter, key).counted()

    def _of(self, stream: str) -> list[str]:
        return [who for _, found, who in self._subscribed if found == stream and who != LATE]

    # -- checks

    def findings(self) -> list[str]:
        history = self._history()
        found = [*check_nothing_lost(history), *check_one_owner(history)]
        found += check_live_after_repair(history, within_s=60.0)
        if Capability.ORDERED in self._place.adapter.capabilities:
            found += self._out_of_order()
            found += self._counted_wrongly()
        if {Capability.ORDERED, Capability.STABLE_TOKENS} <= self._place.adapter.capabilities:
            found += check_tokens_rise(history)
        return found

    def _history(self) -> History:
        """Return the events in the order of their times; the notes are global and survive
        crashes."""
        events: list[tuple[float, Event]] = [(self._calm_from_s, Repaired())]
        events += [(at_s, Subscribed(stream, who)) for at_s, stream, who in self._subscribed]
        events += [
            (one.at_s, Published(one.stream, f"{one.item}", one.began_s)) for one in self.accepted
        ]
        for _, stream, who in self._subscribed:
            events += [
                (h.at_s, Delivered(stream, who, h.token, f"{h.item}", h.is_redelivered))
                for h in ears.by[who]
            ]
        events += [
            (one.at_s, QueueAcquired(one.queue, one.silo, one.epoch))
            for one in watch.of("receiver")
        ]
        return in_order_of_time(events, self._now)

    def _out_of_order(self) -> list[str]:
        """Check that first deliveries of accepted items are in the order of their publishes."""
        found = []
        for _, stream, who in self._subscribed:
            sent = {one.item for one in self.accepted if one.stream == stream}
            first = [item for item in dict.fromkeys(ears.items(who)) if item in sent]
            if first != sorted(first):
                found.append(f"{who} heard {stream} in the order {first}")
        return found

    def _counted_wrongly(self) -> list[str]:
        """With `commit_with`, check that each accepted event has one effect, and no event has
        two."""
        found = []
        for key, tally in self.tallies.items():
            sent = {one.item for one in self.accepted if one.stream == f"numbers/{key}"}
            twice = len(tally.seen) - len(set(tally.seen))
            if twice or not sent <= set(tally.seen):
                found.append(f"{key} counted {tally.seen}, of {sorted(sent)}")
        return found


def in_order_of_time(events: Iterable[tuple[float, Event]], ended_s: float) -> History:
    at_s = 0.0
    history = History(lambda: at_s)
    for when_s, event in sorted(events, key=lambda pair: pair[0]):
        at_s = when_s
        history.record(event)
    at_s = ended_s
    history.close()
    return history
