"""Judges whether the queues kept their promises.

The evidence is the outbox, which has all committed transitions in order, and the notes of the
programs. Owns: `replay` and the `judge_` functions. Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from millstream.providers.priority import State
from millstream.providers.priority.core.changes import ChangeEvent
from millstream.providers.priority.core.message import TRANSITIONS, Step
from millstream.providers.priority.core.shards import split_name

from .notes import Given, PriorityRun, Seen

__all__ = ["Replay", "judge_given", "judge_order", "judge_seen", "judge_values", "replay"]

Key = tuple[str, str]
RUNNING, PENDING = State.RUNNING, State.PENDING


@dataclass(slots=True)
class Now:
    """One message after some of the events."""

    sequence: int
    state: State
    version: int
    priority: int
    value: str
    due_ms: int = 0


@dataclass
class Replay:
    """One queue, rebuilt from its events."""

    queue: str
    is_exclusive: bool
    messages: dict[str, Now] = field(default_factory=dict)
    held: Counter[str] = field(default_factory=Counter)
    time_ms: int = 0
    wrong: list[str] = field(default_factory=list)

    def play(self, event: ChangeEvent) -> None:
        """Apply one event."""
        if event.time_ms < self.time_ms:
            self._on_violated(event, f"the time was {self.time_ms} before")
        self.time_ms = event.time_ms
        now = self.messages.get(event.id)
        if now is None:
            now = Now(len(self.messages), State.INVISIBLE, 0, 0, dict(event.metadata)["value"])
            self.messages[event.id] = now
        self._check(event, now)
        if event.step is Step.DEQUEUED:
            self._check_choice(event, now)
        self.held[now.value] += (event.to_state == RUNNING) - (event.from_state == RUNNING)
        assert event.to_state is not None, "nothing is collected within a run"
        now.state, now.version = State(event.to_state), event.version
        now.priority, now.due_ms = event.priority, event.due_ms
        if self.is_exclusive and self.held[now.value] > 1:
            self._on_violated(event, f"value {now.value} is held {self.held[now.value]} times")

    def _check(self, event: ChangeEvent, now: Now) -> None:
        """Check the next version: it follows the current state by a permitted transition."""
        if event.version != now.version + 1:
            self._on_violated(event, f"it was in version {now.version}")
        was = None if now.version == 0 else now.state
        if event.from_state != was:
            self._on_violated(event, f"it was {was!r}")
        if (event.from_state, event.to_state) not in TRANSITIONS[event.step]:
            self._on_violated(event, "there is no such transition")
        if event.step is Step.EXPIRED and event.time_ms < now.due_ms:
            self._on_violated(event, f"its lease was until {now.due_ms}")
        if event.step is Step.COMPLETED and event.time_ms >= now.due_ms:
            self._on_violated(event, f"its lease was over at {now.due_ms}")

    def _check_choice(self, event: ChangeEvent, now: Now) -> None:
        """Check that the message was the most urgent of the available ones."""
        order = (now.priority, now.sequence)
        for id, other in self.messages.items():
            is_blocked = self.is_exclusive and self.held[other.value]
            if other.state == PENDING and not is_blocked:
                if (other.priority, other.sequence) < order:
                    self._on_violated(event, f"{id} was more urgent")
                    return

    def _on_violated(self, event: ChangeEvent, why: str) -> None:
        self.wrong.append(f"{self.queue}: {event.step} of {event.id} v{event.version}: {why}")


def replay(queue: str, is_exclusive: bool, events: Iterable[ChangeEvent]) -> Replay:
    """Rebuild a queue from all of its events."""
    queue_replay = Replay(queue, is_exclusive)
    for event in events:
        if event.queue == queue:
            queue_replay.play(event)
    return queue_replay


def judge_given(given: Iterable[Given], events: Sequence[ChangeEvent]) -> Iterator[str]:
    """Check that each lease of a program was given once, to that worker, as an event says."""
    found = [e for e in events if e.step is Step.DEQUEUED]
    leased = {(split_name(e.queue)[0], e.id, e.version): e for e in found}
    shards = {(split_name(e.queue)[0], e.id): e.queue for e in found}
    tokens: set[tuple[str, int]] = set()
    for one in given:
        event = leased.get((one.queue, one.id, one.token.version))
        if event is None:
            yield f"{one}: no event says so"
        elif (event.worker, event.attempt) != (one.worker, one.attempt):
            yield f"{one}: it was leased to {event.worker}, attempt {event.attempt}"
        shard = shards.get((one.queue, one.id), one.queue)
        if (shard, one.token.epoch) in tokens:
            yield f"{one}: its token was given before"
        tokens.add((shard, one.token.epoch))


def lying(given: Iterable[Given], events: Sequence[ChangeEvent]) -> list[ChangeEvent]:
    """Find leases that no program received or returned, and that ended by their time."""
    known = {(one.queue, one.id, one.token.version) for one in given}
    ends = {(e.queue, e.id, e.version - 1): e for e in events}
    leased = [e for e in events if e.step is Step.DEQUEUED and e.worker not in ("drain", "probe")]
    found = [e for e in leased if (split_name(e.queue)[0], e.id, e.version) not in known]
    return [e for e in found if ends[e.queue, e.id, e.version].step is Step.EXPIRED]


def judge_seen(seen: Iterable[Seen], events: Sequence[ChangeEvent]) -> Iterator[str]:
    """Check that each observed version is stored, and that a call's own change was made by its
    step."""
    steps = {(split_name(e.queue)[0], e.id, e.version): e.step for e in events}
    for one in seen:
        step = steps.get((one.queue, one.id, one.version))
        if step is None:
            yield f"{one}: there is no such version"
        elif one.step and one.step != step:
            yield f"{one}: that version came by {step}"


def judge_order(seen: Iterable[Seen]) -> Iterator[str]:
    """Check that nobody sees an older version after somebody has seen a newer one."""
    by_message: dict[Key, list[Seen]] = defaultdict(list)
    for one in seen:
        by_message[one.queue, one.id].append(one)
    for found in by_message.values():
        ends = sorted(found, key=lambda one: one.end_s)
        at, known, who = 0, 0, None
        for one in sorted(found, key=lambda one: one.start_s):
            while at < len(ends) and ends[at].end_s < one.start_s:
                if ends[at].version > known:
                    known, who = ends[at].version, ends[at]
                at += 1
            if one.version < known:
                yield f"{one} came after {who}"


def judge_lost(run: PriorityRun, queue: str, shards: Sequence[Replay]) -> Iterator[str]:
    """Check that accepted messages exist in one shard, and that all messages are finished."""
    places = Counter(id for shard in shards for id in shard.messages)
    for name, id in run.ids:
        if name == queue and not places[id]:
            yield f"{queue}: {id} was accepted, and is not there"
    for id, count in places.items():
        if count > 1:
            yield f"{queue}: {id} is in {count} shards"
    for shard in shards:
        for id, now in shard.messages.items():
            if now.state < State.COMPLETED:
                yield f"{shard.queue}: {id} is {now.state.name.lower()} in the end"


def judge_values(queue: str, events: Iterable[ChangeEvent]) -> Iterator[str]:
    """Check that the unfinished messages of an exclusivity value are in one shard at a time."""
    open_in: dict[str, Counter[str]] = defaultdict(Counter)
    for event in events:
        if split_name(event.queue)[0] != queue:
            continue
        value = dict(event.metadata)["value"]
        was_open = event.from_state is not None and event.from_state < State.COMPLETED
        is_open = event.to_state is not None and event.to_state < State.COMPLETED
        open_in[value][event.queue] += is_open - was_open
        found = [name for name, count in open_in[value].items() if count]
        if len(found) > 1:
            yield f"{queue}: value {value} is in {found} as {event.id} is {event.step}"
