"""Was every leg flown once, and no plane in two places? Pure checks of workers and queue.

This module owns `Attempt` (the report of a worker, by its clock), `Transition` (the report of the
queue, in its order), and the checks. Each check returns faults as texts. A worker that did not
report its landing counts as flying for ever.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Attempt", "Lease", "Transition", "count_waited", "judge", "leases_of"]


@dataclass(slots=True)
class Attempt:
    """One worker's attempt at one leg. `epoch` is that of its token. All times are of one clock."""

    leg: str
    tail: str
    departs_ms: int
    worker: str
    epoch: int
    begin_s: float
    end_s: float = math.inf
    is_completed: bool = False


class Transition(NamedTuple):
    """A change of a leg in the queue."""

    leg: str
    tail: str
    departs_ms: int
    worker: str
    step: str
    to_state: str


class Lease(NamedTuple):
    """A lease of the queue. `ended` is the step that ended it, empty while it holds."""

    leg: str
    worker: str
    ended: str


def judge(
    legs: Collection[str], attempts: Sequence[Attempt], transitions: Sequence[Transition]
) -> dict[str, list[str]]:
    """Return the faults, by the condition that must hold."""
    return {
        "each leg was completed once": list(check_completed(legs, transitions)),
        "a plane had one leg at a time, by the workers' clock": list(one_by_clock(attempts)),
        "a plane had one leg at a time, by the queue": list(one_by_queue(transitions)),
        "the tokens of a plane rose": list(tokens_rise(attempts)),
        "the legs of a plane were begun by departure": list(by_departure(attempts)),
        "workers and queue agree on the leases": list(
            check_agreed(attempts, leases_of(transitions))
        ),
    }


def check_completed(legs: Collection[str], transitions: Iterable[Transition]) -> Iterator[str]:
    """Check by the queue that each leg was completed once, and nothing else."""
    completed = Counter(one.leg for one in transitions if one.to_state == "completed")
    for leg in sorted({*legs, *completed}):
        if leg not in legs:
            yield f"{leg} was completed, but is not a leg of these days"
        elif completed[leg] != 1:
            yield f"{leg} was completed {completed[leg]} times"


def one_by_clock(attempts: Iterable[Attempt]) -> Iterator[str]:
    """Check that no attempt of a plane begins before all earlier ones have ended."""
    for tail, flown in by_tail(attempts).items():
        last = flown[0]
        for one in flown[1:]:
            if one.begin_s < last.end_s:
                yield f"{tail}: {one.worker} began {one.leg} while {last.worker} flew {last.leg}"
            last = max(last, one, key=lambda each: each.end_s)


def one_by_queue(transitions: Iterable[Transition]) -> Iterator[str]:
    """Check that no leg of a plane is leased while another one is."""
    running: dict[str, set[str]] = defaultdict(set)
    for one in transitions:
        held = running[one.tail]
        if one.step == "dequeued":
            if held:
                yield f"{one.tail}: {one.leg} was leased while {', '.join(sorted(held))} was leased"
            held.add(one.leg)
        elif one.to_state != "running":
            held.discard(one.leg)


def tokens_rise(attempts: Iterable[Attempt]) -> Iterator[str]:
    """Check that the tokens of a plane rise, so that it could refuse an older attempt."""
    for tail, flown in by_tail(attempts).items():
        for last, one in pairwise(flown):
            if one.epoch <= last.epoch:
                yield f"{tail}: {one.leg} has token {one.epoch}, after {last.epoch}"


def by_departure(attempts: Iterable[Attempt]) -> Iterator[str]:
    """Check that each plane began its most urgent leg first.

    All legs were in the queue before the first was flown. A released leg is the most urgent again.
    """
    for tail, flown in by_tail(attempts).items():
        for last, one in pairwise(flown):
            if one.departs_ms < last.departs_ms:
                yield f"{tail}: {one.leg} was begun after {last.leg}"


def check_agreed(attempts: Iterable[Attempt], leases: Sequence[Lease]) -> Iterator[str]:
    """Check that attempts and leases agree.

    Each attempt is a lease of the queue to this worker, and ended as the worker reports. Each
    completed leg was flown.
    """
    flown = Counter(one.epoch for one in attempts)
    yield from (f"token {epoch} was used by {n} attempts" for epoch, n in flown.items() if n > 1)
    for one in attempts:
        lease = leases[one.epoch - 1] if 0 < one.epoch <= len(leases) else None
        if lease is None or (lease.leg, lease.worker) != (one.leg, one.worker):
            yield f"{one.worker} had {one.leg} with token {one.epoch}, but the queue leased {lease}"
        elif one.is_completed and lease.ended != "completed":
            yield f"{one.worker} completed {one.leg}, but the queue says {lease.ended or 'leased'}"
    for epoch, lease in enumerate(leases, 1):
        if lease.ended == "completed" and epoch not in flown:
            yield f"{lease.worker} completed {lease.leg}, but did not fly it"


def leases_of(transitions: Iterable[Transition]) -> list[Lease]:
    """Return all leases of the queue; the n-th has epoch n, because epochs count leases."""
    leases: list[Lease] = []
    latest: dict[str, int] = {}
    for one in transitions:
        if one.step == "dequeued":
            latest[one.leg] = len(leases)
            leases.append(Lease(one.leg, one.worker, ""))
        elif one.to_state != "running" and one.leg in latest:
            at = latest.pop(one.leg)
            leases[at] = leases[at]._replace(ended=one.step)
    return leases


def count_waited(transitions: Iterable[Transition]) -> int:
    """Return how many legs were leased after later ones, because their plane was in the air."""
    latest_ms, leased = -math.inf, dict[str, bool]()
    for one in transitions:
        if one.step == "dequeued" and one.leg not in leased:
            leased[one.leg] = one.departs_ms < latest_ms
            latest_ms = max(latest_ms, one.departs_ms)
    return sum(leased.values())


def by_tail(attempts: Iterable[Attempt]) -> dict[str, list[Attempt]]:
    """Return the attempts of each plane, in the order in which they began."""
    flown: dict[str, list[Attempt]] = defaultdict(list)
    for one in sorted(attempts, key=lambda each: each.begin_s):
        flown[one.tail].append(one)
    return flown
