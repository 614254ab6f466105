"""Judgements over a history. No I/O.

This module owns one function for each promise of the runtime, and `Findings`, the result of each. A
checker that finds nothing to judge raises an error, so a history in which nobody recorded anything
does not pass for a good one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from .history import (
    Activated,
    CallEnded,
    CallStarted,
    Deactivated,
    DeadLettered,
    Delivered,
    Event,
    History,
    HostDown,
    Published,
    QueueAcquired,
    Repaired,
    SiloDeclaredDead,
    Subscribed,
    Token,
    Unsubscribed,
    ViewAdopted,
)
from .world.errors import SimulationError

__all__ = [
    "Findings",
    "NothingToJudge",
    "check_all",
    "check_live_after_repair",
    "check_nothing_lost",
    "check_one_activation",
    "check_one_owner",
    "check_tokens_rise",
    "check_views",
]


class NothingToJudge(SimulationError):
    """A history has no event of the kinds that a checker judges.

    Either these events were not recorded, or the run has not done such work yet.
    """


class Findings(list[str]):
    """The violations that a checker found, each as text. It is a list, so `== []` means that there
    are none.

    Attributes:
        looked_at: The number of judged events, by kind.
    """

    def __init__(self, found: Iterable[str], looked_at: dict[str, int]) -> None:
        super().__init__(found)
        self.looked_at = looked_at


def _judge(history: History, found: Iterable[str], *kinds: type[Event]) -> Findings:
    """Return the findings among events of some kinds. Raises NothingToJudge if there are none."""
    counts = {kind.__name__: sum(1 for _ in history.of(kind)) for kind in kinds}
    if not any(counts.values()):
        raise NothingToJudge(
            f"no {' or '.join(counts)} among the {len(history.events)} events of this history:"
            " record these events, or do not call this checker"
        )
    return Findings(found, counts)


class _Activations:
    """The live activations at one point of a history."""

    def __init__(self, across_versions: bool) -> None:
        self._across_versions = across_versions
        self._live: dict[str, list[Activated]] = {}
        self._dead: set[str] = set()

    def step(self, event: Event) -> Activated | None:
        """Take the next event; return the live activation with which a new one collides, or
        None."""
        match event:
            case Activated():
                return self._find_rival(event)
            case Deactivated(grain, silo):
                self._end(grain, lambda live: live.silo == silo)
            case SiloDeclaredDead(silo):
                self._dead.add(silo)
                for grain in self._live:
                    self._end(grain, lambda live: live.silo == silo)
            case HostDown(host):
                for grain in self._live:
                    self._end(grain, lambda live: live.host == host)
            case _:
                pass
        return None

    def _find_rival(self, event: Activated) -> Activated | None:
        if event.silo in self._dead:
            return None  # the silo does not know yet that it is dead; its writes are fenced
        live = self._live.setdefault(event.grain, [])
        rival = next((other for other in live if self._collide(other, event)), None)
        live.append(event)
        return rival

    def _collide(self, one: Activated, other: Activated) -> bool:
        return self._across_versions or one.registered_version == other.registered_version

    def _end(self, grain: str, is_over: Callable[[Activated], bool]) -> None:
        live = self._live.get(grain, [])
        live[:] = [one for one in live if not is_over(one)]


def check_one_activation(history: History, *, across_versions: bool = False) -> Findings:
    """Check that a grain has at most one live activation in each version of the view.

    Stateless workers do not count. An activation ends by `Deactivated`, with its host, or when the
    view declares its silo dead.

    Args:
        history: The history of the run.
        across_versions: True: at most one activation of a grain, whatever the versions.

    Raises:
        NothingToJudge: The history has no `Activated`.
    """
    activations = _Activations(across_versions)
    found = []
    for at_s, event in history.events:
        if isinstance(event, Activated) and event.is_worker:
            continue
        rival = activations.step(event)
        if rival is not None and isinstance(event, Activated):
            found.append(
                f"t={at_s:.6f}: {event.grain} activated in {event.silo}"
                f" (view {event.registered_version}) while live in {rival.silo}"
                f" (view {rival.registered_version})"
            )
    return _judge(history, found, Activated)


def check_tokens_rise(history: History) -> Findings:
    """Check that each subscription gets the events of a stream in rising order of tokens.

    Redelivered events may break the order. Stray deliveries do not count, because the next owner of
    a queue cannot know which messages an evicted silo still handles.

    Args:
        history: The history of the run.

    Raises:
        NothingToJudge: The history has no `Delivered`.
    """
    highest: dict[tuple[str, str], Token] = {}
    found = []
    for at_s, event in history.of(Delivered):
        if event.is_stray:
            continue
        who = (event.stream, event.subscription)
        top = highest.get(who)
        if top is not None and event.token <= top and not event.is_redelivered:
            found.append(
                f"t={at_s:.6f}: {event.subscription} got {tuple(event.token)} of {event.stream}"
                f" after {tuple(top)}, not marked as redelivered"
            )
        highest[who] = event.token if top is None else max(top, event.token)
    return _judge(history, found, Delivered)


class _Debts:
    """The events that each subscription must get, and when it got them."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._seen: dict[tuple[str, str, str], float] = {}
        for at_s, event in history.events:
            if isinstance(event, Delivered | DeadLettered):
                key = (event.stream, event.subscription, event.item)
                self._seen.setdefault(key, at_s)
        self._spans = self._subscription_spans()

    def _subscription_spans(self) -> dict[str, list[tuple[str, float, float]]]:
        spans: dict[str, list[tuple[str, float, float]]] = {}
        ends = {(gone.stream, gone.subscription): at for at, gone in self._history.of(Unsubscribed)}
        for at_s, event in self._history.of(Subscribed):
            until_s = ends.get((event.stream, event.subscription), float("inf"))
            spans.setdefault(event.stream, []).append((event.subscription, at_s, until_s))
        return spans

    def iter_owed(self) -> Iterator[tuple[float, Published, str, float | None]]:
        """Yield (accepted at, event, subscription, delivered at or None) for each event that is
        due.

        An event is due if the subscription existed during the whole publish and never ended.
        """
        for at_s, event in self._history.of(Published):
            started_s = at_s if event.started_s is None else event.started_s
            for subscription, from_s, until_s in self._spans.get(event.stream, []):
                if from_s <= started_s and until_s == float("inf"):
                    key = (event.stream, subscription, event.item)
                    yield at_s, event, subscription, self._seen.get(key)


def check_nothing_lost(history: History) -> Findings:
    """Check that each accepted event reached every subscription that existed before its publish
    began.

    A dead letter counts as delivered. A subscription that ended need not get events.

    Args:
        history: The history of the run.

    Raises:
        NothingToJudge: The history has no `Published`.
    """
    found = [
        f"t={at_s:.6f}: {event.item} of {event.stream} was accepted, {subscription} never got it"
        for at_s, event, subscription, seen_s in _Debts(history).iter_owed()
        if seen_s is None
    ]
    return _judge(history, found, Published)


def check_one_owner(history: History) -> Findings:
    """Check that no epoch of a queue has two owners.

    Args:
        history: The history of the run.

    Raises:
        NothingToJudge: The history has no `QueueAcquired`.
    """
    owners: dict[tuple[str, int], str] = {}
    found = []
    for at_s, event in history.of(QueueAcquired):
        first = owners.setdefault((event.queue, event.epoch), event.owner)
        if first != event.owner:
            found.append(
                f"t={at_s:.6f}: {event.queue} epoch {event.epoch} is owned by {event.owner},"
                f" and by {first}"
            )
    return _judge(history, found, QueueAcquired)


def check_views(history: History) -> Findings:
    """Check the views of the silos.

    The versions that a silo sees rise, one version is equal for all silos, and dead silos stay
    dead.

    Args:
        history: The history of the run.

    Raises:
        NothingToJudge: The history has no `ViewAdopted`.
    """
    last: dict[str, int] = {}
    texts: dict[int, tuple[tuple[str, str], ...]] = {}
    found = []
    for at_s, event in history.of(ViewAdopted):
        if event.version <= last.get(event.silo, 0):
            found.append(
                f"t={at_s:.6f}: {event.silo} went from version {last[event.silo]}"
                f" to {event.version}"
            )
        last[event.silo] = event.version
        statuses = tuple(sorted(event.statuses))
        if texts.setdefault(event.version, statuses) != statuses:
            found.append(f"t={at_s:.6f}: {event.silo} reads version {event.version} differently")
    return _judge(history, found + _find_risen(texts), ViewAdopted)


def _find_risen(texts: dict[int, tuple[tuple[str, str], ...]]) -> list[str]:
    dead: dict[str, int] = {}
    found = []
    for version in sorted(texts):
        for silo, status in texts[version]:
            if status == "dead":
                dead.setdefault(silo, version)
            elif silo in dead:
                found.append(f"version {version}: {silo} is {status}, dead since {dead[silo]}")
    return found


def check_live_after_repair(history: History, within_s: float) -> Findings:
    """Check that pending and new work ends in time after the last repair of the network.

    A call must end, with a result or an error, unless its caller's host went down. An accepted
    event must be delivered. Only work that had its full time before the end of the history is
    judged. Without `Repaired`, the whole run is judged.

    Args:
        history: The history of the run.
        within_s: The time in virtual seconds, from the repair or the beginning of the work,
            whichever is later.

    Raises:
        NothingToJudge: The history has no `CallStarted` and no `Published`.
    """
    repaired_s = max((at_s for at_s, _ in history.of(Repaired)), default=0.0)
    ended_s = history.ended_s

    def is_late(start_s: float, end_s: float | None) -> bool:
        due_s = max(start_s, repaired_s) + within_s
        return due_s <= ended_s and (end_s is None or end_s > due_s)

    limit = f"within {within_s:g} s of the repair at {repaired_s:.6f}"
    late = [
        f"t={start_s:.6f}: call {call.call} {call.what} from {call.host or 'the driver'}"
        f" did not end {limit}"
        for start_s, call, end_s in _calls(history)
        if is_late(start_s, end_s)
    ]
    late += [
        f"t={at_s:.6f}: {event.item} of {event.stream} did not reach {subscription} {limit}"
        for at_s, event, subscription, seen_s in _Debts(history).iter_owed()
        if is_late(at_s, seen_s)
    ]
    return _judge(history, late, CallStarted, Published)


def _calls(history: History) -> Iterator[tuple[float, CallStarted, float | None]]:
    """Yield (start, call, end or None) of the calls whose caller stayed alive until they ended."""
    ends = {event.call: at_s for at_s, event in history.of(CallEnded)}
    downs: dict[str, list[float]] = {}
    for at_s, down in history.of(HostDown):
        downs.setdefault(down.host, []).append(at_s)
    for start_s, call in history.of(CallStarted):
        end_s = ends.get(call.call)
        crashes = downs.get(call.host, [])
        if end_s is not None or not any(at_s >= start_s for at_s in crashes):
            yield start_s, call, end_s


def check_all(history: History, *, live_within_s: float) -> Findings:
    """Run all checkers, and return the violations of each.

    A checker whose events were not recorded is skipped.

    Args:
        history: The history of the run.
        live_within_s: The argument `within_s` of `check_live_after_repair`.

    Raises:
        NothingToJudge: No checker found anything to judge.
    """
    checks: list[Callable[[], Findings]] = [
        lambda: check_one_activation(history),
        lambda: check_tokens_rise(history),
        lambda: check_nothing_lost(history),
        lambda: check_one_owner(history),
        lambda: check_views(history),
        lambda: check_live_after_repair(history, live_within_s),
    ]
    found: list[str] = []
    looked_at: dict[str, int] = {}
    missing: NothingToJudge | None = None
    for check in checks:
        try:
            findings = check()
        except NothingToJudge as error:
            missing = error
        else:
            found += findings
            looked_at |= findings.looked_at
    if not looked_at:
        assert missing is not None
        raise missing
    return Findings(found, looked_at)
