"""Checks whether some order of the calls of one queue explains all answers.

This is the search of Wing and Gong with a memory of visited states. The next call may be any call
that began before the first end of the remaining calls. A call with an unknown outcome may take
effect at any time after its begin, or never. The queue is the brute-force model.

The store's clock takes few values, which the history records. A call takes effect at a value that
the clock had during the call, and the model's time never goes back. The owner may do due work at
any of the values. Reads show the last state of the queue and do not change the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

from tests.providers.priority.model import Model, Refused, Settings

from millstream.providers.priority.core.commands import (
    Cancel,
    Complete,
    Dequeue,
    Enqueue,
    Extend,
    Get,
    Page,
    Peek,
    Release,
)

__all__ = ["NEVER", "UNKNOWN", "Call", "GiveBack", "is_linearizable"]

UNKNOWN = object()
"""The outcome of a cancelled or failed call, which took effect, will take effect, or never does."""
NEVER = inf
"""The end of a call with an unknown outcome."""
NOBODY = "no caller took it"
LOOKS = (Get, Peek, Page)


class GiveBack(NamedTuple):
    """Follows a cancelled dequeue: this worker's lease is released with a refund."""

    worker: str


class Call(NamedTuple):
    """A client's call: its begin and end, the clock's values in between, and the answer.

    With `may_lack`, a repeated dequeue may lack leases that have ended.
    """

    what: Any
    begun: int
    ended: float
    times: tuple[int, ...]
    answer: Any = UNKNOWN
    may_lack: bool = False

    @property
    def is_known(self) -> bool:
        return self.answer is not UNKNOWN

    def is_answered_by(self, found: Any) -> bool:
        """Does the model's answer match the client's answer?"""
        if self.may_lack and isinstance(found, list) and isinstance(self.answer, list):
            return [one for one in found if one in self.answer] == self.answer
        return bool(found == self.answer)


def is_linearizable(calls: Sequence[Call], settings: Settings, begin_ms: int) -> bool:
    """Is there such an order, beginning with an empty queue at `begin_ms`?"""
    return Search(calls).can_go_on(0, Model(settings, begin_ms))


class Search:
    """Searches the orders of some calls, and skips states that it has visited."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.known = sum(1 << at for at, call in enumerate(calls) if call.is_known)
        self.clock = sorted({now for call in calls for now in call.times})
        self.seen: dict[Any, int] = {}

    def can_go_on(self, done: int, model: Model) -> bool:
        """Can the search reach the end of all known calls from here?"""
        if done & self.known == self.known:
            return True
        here = (done, shape_of(model))
        if self.seen.get(here, model.now + 1) <= model.now:
            return False  # every continuation was possible then, too
        self.seen[here] = model.now
        return any(self.can_go_on(*step) for step in self.steps(done, model))

    def steps(self, done: int, model: Model) -> list[tuple[int, Model]]:
        """The possible next steps. A call that does not change the queue is taken first and
        alone.
        """
        left = [(at, call) for at, call in enumerate(self.calls) if not done >> at & 1]
        known = [call for _, call in left if call.is_known]
        first_end, last_ms = min(c.ended for c in known), min(c.times[-1] for c in known)
        found = []
        before = (shape_of(model), model.now)
        for at, call in left if model.now <= last_ms else ():
            for after in self.after(call, model, last_ms) if call.begun < first_end else ():
                step, shape = (done | 1 << at, after), shape_of(after)
                if call.is_known and not call.may_lack and (shape, after.now) == before:
                    return [step]
                if call.is_known or shape != before[0]:
                    found.append(step)
        return found + [(done, after) for after in self.unasked(model, last_ms)]

    def unasked(self, model: Model, last_ms: int) -> Iterator[Model]:
        """Yield the model after the owner did its due work, for each time."""
        for now in self.clock:
            if now <= last_ms and is_due(model, now):
                (after := copied(model)).at(now)
                yield after

    def after(self, call: Call, model: Model, last_ms: int) -> Iterator[Model]:
        """Yield the model after a call, for each time that gives the recorded answer."""
        is_look = isinstance(call.what, LOOKS)
        for now in call.times[-1:] if is_look else call.times:
            if is_look or model.now <= now <= last_ms:
                after = copied(model)
                found = outcome(act_of(after, call.what, now))
                if call.is_answered_by(found) if call.is_known else not isinstance(found, str):
                    yield after


def outcome(act: Callable[[], Any]) -> Any:
    """Return the result, or the name of the refusal."""
    try:
        return act()
    except Refused as refusal:
        return refusal.args[0]


def act_of(model: Model, what: Any, now: int) -> Callable[[], Any]:
    """Return a client's call as an act of the model."""
    if isinstance(what, LOOKS):
        return lambda: look(model, what)
    acts: dict[type[Any], Callable[[], Any]] = {
        Enqueue: lambda: model.enqueue(
            now, what.id, what.payload, what.priority, dict(what.metadata), (None, None, None)
        ),
        Dequeue: lambda: model.dequeue(
            now, what.worker, what.at_most, dict(what.wanted), what.lease_ms, False
        ),
        Complete: lambda: model.finish(now, what.id, tuple(what.token), "completed"),
        Extend: lambda: model.extend(now, what.id, tuple(what.token), what.lease_ms),
        Release: lambda: model.release(now, what.id, tuple(what.token), what.delay_ms, what.refund),
        Cancel: lambda: model.cancel(now, what.id),
        GiveBack: lambda: give_back(model, now, what.worker),
    }
    return acts[type(what)]


def look(model: Model, what: Any) -> Any:
    if isinstance(what, Get):
        return model.item(what.id).shown()
    if isinstance(what, Page):
        return model.shown()
    return [one.shown() for one in model.choose(what.at_most, dict(what.wanted), False)]


def give_back(model: Model, now: int, worker: str) -> Any:
    leases = [(one.id, one.lease) for one in model.items.values() if one.lease is not None]
    for id, lease in leases:
        if lease.worker == worker and lease.ended == "":
            done = model.release(now, id, lease.token, 0, True)
            lease.reason = NOBODY
            return done
    raise Refused("MessageNotFound")


# -- states of the model


def is_due(model: Model, now: int) -> bool:
    """Would the owner act at this time by itself?"""
    waiting = [one for one in model.items.values() if one.state in ("INVISIBLE", "RUNNING")]
    return now >= model.now and any(one.due <= now for one in waiting)


def copied(model: Model) -> Model:
    """Copy a model without its events."""
    after = copy(model)
    after.events = []
    after.items = {
        id: replace(one, lease=one.lease and replace(one.lease)) for id, one in model.items.items()
    }
    return after


def shape_of(model: Model) -> Any:
    """The form that distinguishes models, without the time: everything that answers depend on."""
    items = ((*one.shown(), one.lease and one.lease.ended) for one in model.items.values())
    return model.sequence, model.epoch, tuple(items)
