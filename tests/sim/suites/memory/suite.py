"""Suite `memory`: like `streams`, through the memory provider, which loses content in a crash.

The suite judges the promises of `streams` and these:

- A refused message is not stored. An accepted one is stored once, even if its producer repeats it.
- A graceful stop loses nothing and keeps the numbers.
- Handlers get accepted messages only.
- If the holder of an era crashed, was evicted, or could not reach the store at its end, each stream
  has had its effects up to some event, in order, and no effect after it.
- A handler hears of a gap before it gets an event after the gap, whichever owner found the gap.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby

from tests.sim.suites.run.record import current_run
from tests.sim.suites.streams.handlers import HANDLING_S, Heard
from tests.sim.suites.streams.repeating import Repeater, Writer
from tests.sim.suites.streams.suite import (
    RECOVERY_S,
    StreamsRun,
    difference,
    play,
)
from tests.sim.suites.streams.traffic import KEYS, Publisher

from millstream.providers.memory import MemoryOptions
from millstream.runtime.testing import (
    Delivered,
    History,
    Host,
    Published,
    Simulation,
    check_all,
    make_random,
)
from millstream.streams import Gap, ProducerMark, QueueAdapterFactory, Token

from .queues import Era, Ledger, NotedQueues, StoredItem

__all__ = ["memory"]


class Distinct(Repeater):
    """A publisher with other items in each attempt, so that a check sees which attempt was
    stored."""

    def try_items(self, items: list[str], attempt: int) -> list[str]:
        return [f"{item}~{attempt}" for item in items]

    def list_stored(self, mark: ProducerMark, tried: list[str]) -> list[str]:
        return memory_run().ledger.find_stored(mark) or tried


class DistinctWriter(Distinct, Writer):
    """The same, from outside of the cluster."""


class MemoryRun(StreamsRun):
    """The notes of this suite. In some runs handlers are slow and queues small. Then queues fill,
    and move with their content."""

    stop_every_s = (2.0, 15.0)

    def __init__(self, simulation: Simulation) -> None:
        super().__init__(simulation)
        rng = simulation.rng
        self.ledger = Ledger(self)
        self.handling_s = rng.choice((HANDLING_S, 0.2))
        self._options = MemoryOptions(
            capacity_events=rng.choice((20, 200, 10_000)), enqueue_wait_s=1.0
        )

    def queues_for(self, host: Host) -> QueueAdapterFactory:
        """Return the memory provider, observed."""
        return NotedQueues(self._options)

    def publisher(self, host: Host, name: str) -> Publisher:
        """Return a publisher; some repeat failed messages."""
        is_repeater = make_random(self.simulation.seed, "kind", name).random() < 0.5
        if not is_repeater:
            return Publisher(self, host, name)
        return (DistinctWriter if name == "client" else Distinct)(self, host, name)

    def check_orders(self, found: dict[str, list[str]]) -> list[str]:
        """Check that each order that cannot be lost had its effect once, in order."""
        lost = self.ledger.find_lost_eras()
        violations = []
        for key in KEYS:
            wanted = list(self._iter_owed(f"orders/{key}", found[key], lost))
            if found[key] != wanted:
                violations.append(f"orders/{key}: {difference(wanted, found[key])}")
        return violations

    def _iter_owed(self, stream: str, found: list[str], lost: dict[Era, bool]) -> Iterator[str]:
        """Yield items that must have had their effect; of a lost era, those before the first
        missing one."""
        seen = set(found)
        for era, group in groupby(self.ledger.items_of(stream), StoredItem.era_of):
            for stored in group:
                if lost[era] and stored.item not in seen:
                    break
                yield stored.item

    def check_all(self, found: dict[str, list[str]]) -> list[str]:
        """Check the promises of `streams` without lost events, and the notes about the queues."""
        lost = self.ledger.find_lost_eras()
        self.figures["eras"] += len(lost)
        self.figures["eras lost"] += sum(lost.values())
        return [
            *check_all(self._owing(lost), live_within_s=RECOVERY_S),
            *self.check_orders(found),
            *self.check_by_hand(self._find_kept(found, lost)),
            *self.ledger.check_eras(lost),
            *self.ledger.check_repeats(lost),
            *self._check_accepted(),
            *self._check_handled(),
            *self._check_told(),
            *self._check_publishers(),
        ]

    def _find_kept(
        self, found: dict[str, list[str]], lost: dict[Era, bool]
    ) -> dict[str, list[str]]:
        """Return the effects of items that cannot be lost."""
        stored = {item: self.ledger.find(item) for items in found.values() for item in items}
        gone = {item for item, at in stored.items() if at is None or lost[at.era_of()]}
        return {key: [item for item in items if item not in gone] for key, items in found.items()}

    def _owing(self, lost: dict[Era, bool]) -> History:
        """Return the history without publishes of items that may be lost."""
        history = History(self.simulation.loop.time)
        for at_s, event in self.history.events:
            if isinstance(event, Published):
                stored = self.ledger.find(event.item)
                if stored is None or lost[stored.era_of()]:
                    continue
            history.events.append((at_s, event))
        return history

    def _check_accepted(self) -> Iterator[str]:
        """Check that the answers to publishers are true."""
        for stream, items in self.accepted.items():
            for item in items:
                if self.ledger.find(item) is None:
                    yield f"{stream}: {item} was accepted, and is not stored"
        for item, why in self.refused.items():
            if self.ledger.find(item) is not None:
                yield f"{item} is stored, although its publish ended with {why}"

    def _check_handled(self) -> Iterator[str]:
        """Check that each handled item is stored, at the position that its handler saw."""
        for at_s, event in self.history.of(Delivered):
            stored = self.ledger.find(event.item)
            if stored is None or stored.token != tuple(event.token):
                yield (
                    f"t={at_s:.6f}: {event.subscription} got {event.item} of {event.stream} as "
                    f"{tuple(event.token)}, stored is {stored}"
                )

    def _check_told(self) -> Iterator[str]:
        """Check that a gap is reported before any event after it, and that it covers no handled
        event."""
        handled: dict[tuple[str, str], set[Token]] = defaultdict(set)
        told: dict[tuple[str, str], list[Gap]] = defaultdict(list)
        tops: dict[tuple[str, str], Token] = {}
        stored: dict[str, list[StoredItem]] = {}
        for one in self.heard:
            who = (one.stream, one.subscription)
            if isinstance(one.what, Gap):
                told[who].append(one.what)
                continue
            handled[who].add(one.token)
            if one.is_stray:
                continue
            if one.stream not in stored:
                stored[one.stream] = list(self.ledger.items_of(one.stream))
            top = tops.get(who, Token(0, 0))
            tops[who] = max(top, one.token)
            missed = [item for item in stored[one.stream] if top < item.token < one.token]
            missed = [item for item in missed if item.token not in handled[who]]
            unheard = [m for m in missed if not any(spans(gap, m, one) for gap in told[who])]
            if unheard:
                yield f"{who} got {one.what} and had not heard that {unheard[0]} is gone"
            self.figures["losses heard of"] += bool(missed) and not unheard

    def _check_publishers(self) -> Iterator[str]:
        """Check that items of one publisher to a stream are stored in the order of its
        publishes."""
        last: dict[tuple[str, str], StoredItem] = {}
        for _, event in self.history.of(Published):
            who = (event.stream, event.item.removeprefix("poison ").rpartition(":")[0])
            stored = self.ledger.find(event.item)
            if stored is None:
                continue
            if who in last and stored.token <= last[who].token:
                yield f"{event.stream}: {stored} was published after {last[who]}"
            last[who] = stored


def spans(gap: Gap, item: StoredItem, one: Heard) -> bool:
    """Did the gap cover this item, and come before that event?"""
    is_behind = gap.after is None or gap.after < item.token
    return is_behind and item.token < gap.first <= one.token


def memory_run() -> MemoryRun:
    """Return the run that is being simulated."""
    run = current_run()
    assert isinstance(run, MemoryRun)
    return run


async def memory(simulation: Simulation) -> Counter[str]:
    """Run one seed; return its figures. Raises Violated."""
    return await play(MemoryRun(simulation))
