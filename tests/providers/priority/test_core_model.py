"""A core behaves as the brute-force model for any operations, also when it is reopened from its
rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.examples import examples
from tests.providers.priority.model import Model, Refused, Settings
from tests.providers.priority.row_store import RowStore

from millstream.providers.priority import (
    Done,
    Enqueued,
    LeaseToken,
    MessageView,
    PriorityQueueError,
    QueueSettings,
    RequestStale,
    State,
)
from millstream.providers.priority.core.body import MessageFields
from millstream.providers.priority.core.core import PriorityCore
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Dequeued

IDS = st.sampled_from("abcdefghijkl")
VALUES = st.sampled_from(["foo", "bar", "baz"])
REGIONS = st.sampled_from(["us", "eu"])
METADATA = st.fixed_dictionaries({"project": VALUES}, optional={"region": REGIONS})
LOOSE = st.fixed_dictionaries({}, optional={"project": VALUES, "region": REGIONS})
WANTED = LOOSE
TERMS = st.one_of(
    st.just((None, None, None)),
    st.tuples(
        st.sampled_from([None, 3, 12]), st.sampled_from([None, 0, 4]), st.sampled_from([None, 1, 3])
    ),
)
SHAPES = st.lists(
    st.sampled_from([("region",), ("project",), ("project", "region")]), unique=True, max_size=3
).map(tuple)
PRIORITIES = st.integers(-2, 2)
LEASES = st.sampled_from([None, 1, 5, 30])
COUNTED: tuple[dict[str, str], ...] = (
    {},
    {"region": "us"},
    {"project": "foo"},
    {"project": "bar", "region": "eu"},
)
COUNTS = st.integers(1, 4)


def outcome(act: Callable[[], Any]) -> Any:
    """Return the result, or the name of the refusal."""
    try:
        return act()
    except PriorityQueueError as refusal:
        return type(refusal).__name__
    except Refused as refusal:
        return refusal.args[0]


def plain(result: Any) -> Any:
    """Return a core's answer in the form of the model."""
    if isinstance(result, Enqueued):
        return (result.id, result.state.name, result.version, result.is_changed)
    if isinstance(result, Done):
        return (result.state.name, *result[1:])
    if isinstance(result, Dequeued):
        return (
            [tuple(lease) for lease in result.leases] if result.status != "blocked" else "blocked"
        )
    return result


def shown(view: MessageView) -> tuple[object, ...]:
    return tuple(one.name if isinstance(one, State) else one for one in view)


class CoreMachine(RuleBasedStateMachine):
    @initialize(
        key=st.sampled_from([None, "project"]),
        limit=st.integers(1, 3),
        shapes=SHAPES,
        invisible=st.sampled_from([0, 0, 3]),
    )
    def begin(self, key: str | None, limit: int, shapes: Any, invisible: int) -> None:
        self.now = 1_000
        self.shapes = shapes
        self.model = Model(Settings(key, limit if key else 1, invisible=invisible), self.now)
        self.core = PriorityCore.create(self.now, "q", self.core_settings())
        self.store = RowStore()
        self.tokens: list[tuple[str, tuple[int, int]]] = [("a", (1, 2))]
        self.asked: dict[tuple[str, int], list[Any]] = {}
        self.numbers = {"s": 0, "t": 0}
        self.acknowledged = {"s": 0, "t": 0}
        self.next_id: tuple[str, int] | None = None
        self.changed: dict[tuple[str, int], tuple[Callable[[], Any], Any]] = {}

    def core_settings(self) -> QueueSettings:
        of = self.model.settings
        return QueueSettings(
            of.key,
            of.limit,
            lease_ms=of.lease,
            invisible_ms=of.invisible,
            attempts=of.attempts,
            retention_ms=of.retention,
            enqueue_blocked=of.enqueue_blocked,
            dequeue_blocked=of.dequeue_blocked,
            shapes=self.shapes,
            answers_kept_ms=86_400_000,
        )

    def both(self, core: Callable[[], Any], model: Callable[[], Any]) -> Any:
        if self.next_id is not None:
            return self.both_once(core, model)
        expected = outcome(model)
        found = plain(outcome(core))
        assert found == expected
        return found

    def both_once(self, core: Callable[[], Any], model: Callable[[], Any]) -> Any:
        """Call both with a request id, and repeat the call at once."""
        assert self.next_id is not None
        (session, acknowledges), self.next_id = self.next_id, None
        request = self.new_request(session, acknowledges)
        expected = outcome(model)
        found = self.once(request, core)
        assert found == expected
        is_change = isinstance(found, tuple) and found[-1] is True
        if is_change or (isinstance(found, list) and found):
            self.acknowledged[session] = max(self.acknowledged[session], request.acknowledged)
            assert self.once(request, core) == found
        if is_change:
            self.changed[session, request.number] = core, found
        return found

    def once(self, request: Request, core: Callable[[], Any]) -> Any:
        return plain(outcome(lambda: self.core.once(self.now, request, "change", core)))

    def new_request(self, session: str, acknowledges: int) -> Request:
        """Make the session's next request. It acknowledges all but the last few."""
        self.numbers[session] += 1
        number = self.numbers[session]
        upto = max(number - 1 - acknowledges, 0)
        for known in (self.asked, self.changed):
            for old in [key for key in known if key[0] == session and key[1] <= upto]:
                del known[old]
                self.acknowledged[session] = max(self.acknowledged[session], upto)
        return Request(session, number, upto)

    # -- rules

    @rule(by=st.sampled_from([0, 1, 2, 3, 5, 10, -4]))
    def time_passes(self, by: int) -> None:
        self.now += by

    def new(self, id: str, priority: int, metadata: Any, terms: Any, text: bytes) -> MessageFields:
        lease, invisible, attempts = terms
        return MessageFields(id, text, priority, metadata, invisible, lease, attempts)

    @rule(id=IDS, priority=PRIORITIES, metadata=METADATA, terms=TERMS, text=st.just(b"x"))
    def enqueue(self, id: str, priority: int, metadata: Any, terms: Any, text: bytes) -> None:
        self.both(
            lambda: self.core.enqueue(self.now, self.new(id, priority, metadata, terms, text)),
            lambda: self.model.enqueue(self.now, id, text, priority, metadata, terms),
        )

    @rule(id=IDS, metadata=LOOSE)
    def enqueue_perhaps_without_key(self, id: str, metadata: Any) -> None:
        self.enqueue(id, 0, metadata, (None, None, None), b"y")

    @rule(
        bodies=st.lists(st.tuples(IDS, PRIORITIES, METADATA, TERMS), max_size=4),
        is_all=st.booleans(),
    )
    def enqueue_many(self, bodies: Any, is_all: bool) -> None:
        news = [self.new(id, priority, data, terms, b"x") for id, priority, data, terms in bodies]
        calls = [(id, b"x", priority, data, terms) for id, priority, data, terms in bodies]
        asked, self.next_id = self.next_id, None
        request = None if asked is None else self.new_request(*asked)
        found = self.entered(news, is_all, request)
        if is_all:
            expected = outcome(lambda: self.all_or_nothing(calls))
        else:
            expected = [outcome(partial(self.model.enqueue, self.now, *call)) for call in calls]
            self.model.at(self.now)
        assert found == expected
        if request is not None and any(isinstance(one, tuple) and one[-1] for one in found):
            self.acknowledged[request.session] = max(
                self.acknowledged[request.session], request.acknowledged
            )
            assert self.entered(news, is_all, request) == found

    def entered(self, news: list[MessageFields], is_all: bool, request: Request | None) -> Any:
        act = partial(self.core.enqueue_many, self.now, news, is_all)
        if request is not None:
            act = partial(self.core.enqueue_many_once, self.now, request, "many", news, is_all)
        found = outcome(act)
        if isinstance(found, str):
            return found
        why = {one.at: one.kind for one in found.refusals}
        return [plain(one) if one else why[at] for at, one in enumerate(found.answers)]

    def all_or_nothing(self, calls: list[Any]) -> list[Any]:
        self.model.at(self.now)
        seen: dict[str, Any] = {}
        is_fresh = False
        for call in calls:
            if self.model.settings.key is not None and self.model.settings.key not in call[3]:
                raise Refused("ExclusivityMissing")
        blocked, self.model.settings.enqueue_blocked = self.model.settings.enqueue_blocked, False
        try:
            for call in calls:
                is_fresh |= self.model.check(*call)
                if call[0] not in self.model.items and seen.setdefault(call[0], call) != call:
                    raise Refused("MessageExists")
        finally:
            self.model.settings.enqueue_blocked = blocked
        if is_fresh and blocked:
            raise Refused("EnqueueBlocked")
        return [self.model.put(*call) for call in calls]

    @rule(
        count=COUNTS,
        wanted=WANTED,
        lease=LEASES,
        same=st.booleans(),
    )
    def dequeue(self, count: int, wanted: Any, lease: int | None, same: bool) -> None:
        self.model.at(self.now)
        ahead = [one.id for one in self.model.choose(count, wanted, False)]
        self.core.sweep(self.now)
        self.model.sweep(self.now, 512)
        assert [view.id for view in self.core.read.peek(count, wanted)] == ahead
        found = self.both(
            lambda: self.core.dequeue(
                self.now, "v", count, wanted, lease_ms=lease, same_value_ok=same
            ),
            lambda: self.model.dequeue(self.now, "v", count, wanted, lease, same),
        )
        if found != "blocked":
            self.tokens += [(one[0], one[4]) for one in found]

    @rule(count=COUNTS, wanted=WANTED)
    def dequeue_without_a_look_before(self, count: int, wanted: Any) -> None:
        found = self.both(
            lambda: self.core.dequeue(self.now, "w", count, wanted),
            lambda: self.model.dequeue(self.now, "w", count, wanted, None, False),
        )
        if found != "blocked":
            self.tokens += [(one[0], one[4]) for one in found]

    @rule(
        which=st.integers(0, 5),
        how=st.sampled_from(["completed", "completed", "canceled", "failed"]),
        reason=st.sampled_from(["", "done"]),
    )
    def finish(self, which: int, how: str, reason: str = "") -> None:
        id, token = self.tokens[-1 - which % len(self.tokens)]
        act = {
            "completed": self.core.complete,
            "canceled": self.core.cancel,
            "failed": self.core.fail,
        }
        self.both(
            lambda: act[how](self.now, id, LeaseToken(*token), reason),
            lambda: self.model.finish(self.now, id, token, how, reason),
        )

    @rule(id=IDS, epoch=st.integers(0, 9), version=st.integers(0, 9))
    def finish_with_any_token(self, id: str, epoch: int, version: int) -> None:
        self.both(
            lambda: self.core.fail(self.now, id, LeaseToken(epoch, version), "why"),
            lambda: self.model.finish(self.now, id, (epoch, version), "failed", "why"),
        )

    @rule(which=st.integers(0, 5), lease=LEASES)
    def extend(self, which: int, lease: int | None) -> None:
        id, token = self.tokens[-1 - which % len(self.tokens)]
        self.both(
            lambda: self.core.extend(self.now, id, LeaseToken(*token), lease),
            lambda: self.model.extend(self.now, id, token, lease),
        )

    @rule(which=st.integers(0, 5), delay=st.sampled_from([0, 0, 4]), refund=st.booleans())
    def release(self, which: int, delay: int, refund: bool) -> None:
        id, token = self.tokens[-1 - which % len(self.tokens)]
        self.both(
            lambda: self.core.release(self.now, id, LeaseToken(*token), delay, refund=refund),
            lambda: self.model.release(self.now, id, token, delay, refund),
        )

    @rule(id=IDS, unless_leased=st.booleans())
    def cancel(self, id: str, unless_leased: bool = False) -> None:
        self.both(
            lambda: self.core.cancel(self.now, id, unless_leased=unless_leased),
            lambda: self.model.cancel(self.now, id, unless_leased),
        )

    @rule(id=IDS, priority=PRIORITIES)
    def prioritise(self, id: str, priority: int) -> None:
        self.both(
            lambda: self.core.prioritise(self.now, id, priority),
            lambda: self.model.prioritise(self.now, id, priority),
        )

    @rule(id=IDS, new_id=IDS)
    def requeue(self, id: str, new_id: str) -> None:
        self.both(
            lambda: self.core.requeue(self.now, id, new_id),
            lambda: self.model.requeue(self.now, id, new_id),
        )

    @rule(steps=st.integers(1, 4))
    def sweep(self, steps: int) -> None:
        self.core.sweep(self.now, steps)
        self.model.sweep(self.now, steps)

    @rule(limit=st.integers(1, 3), shapes=SHAPES, attempts=st.integers(1, 3))
    def configure(self, limit: int, shapes: Any, attempts: int) -> None:
        self.model.at(self.now)
        self.model.settings.limit = limit if self.model.settings.key else 1
        self.model.settings.attempts = attempts
        self.shapes = shapes
        self.core.configure(self.now, self.core_settings())

    @rule(is_in=st.booleans(), is_out=st.booleans())
    def block(self, is_in: bool, is_out: bool) -> None:
        self.model.at(self.now)
        self.model.settings.enqueue_blocked = is_in and not self.model.settings.enqueue_blocked
        self.model.settings.dequeue_blocked = is_out and not self.model.settings.dequeue_blocked
        self.core.configure(self.now, self.core_settings())

    @rule(session=st.sampled_from("st"), acknowledges=st.integers(0, 3), count=COUNTS)
    def ask_once(self, session: str, acknowledges: int, count: int) -> None:
        request = self.new_request(session, acknowledges)
        found = self.request(request, count)
        expected = self.model.dequeue(self.now, "w", count, {}, None, False)
        assert found == expected
        if found and found != "blocked":
            self.asked[session, request.number] = found
            self.acknowledged[session] = max(self.acknowledged[session], request.acknowledged)
            self.tokens += [(one[0], one[4]) for one in found]

    def request(self, request: Request, count: int) -> Any:
        act = partial(self.core.dequeue, self.now, "w", count)
        return plain(self.core.once(self.now, request, "dequeue", act))

    @rule(session=st.sampled_from("st"), back=st.integers(0, 5))
    def ask_again(self, session: str, back: int) -> None:
        number = self.numbers[session] - back
        if (session, number) in self.asked:
            self.model.at(self.now)
            again = [self.as_now(lease) for lease in self.asked[session, number]]
            assert self.request(Request(session, number), 1) == again
        elif 0 < number <= self.acknowledged[session]:
            self.model.at(self.now)
            stale = outcome(lambda: self.request(Request(session, number), 1))
            assert stale == RequestStale.__name__

    @rule(session=st.sampled_from("st"), acknowledges=st.integers(0, 3))
    def the_next_change_has_an_id(self, session: str, acknowledges: int) -> None:
        self.next_id = session, acknowledges

    @rule(which=st.integers(0, 5))
    def ask_for_a_change_again(self, which: int) -> None:
        """A repeated request gets its first answer and changes nothing, whatever happened to the
        message.
        """
        if self.changed:
            (session, number), (core, answer) = list(self.changed.items())[
                which % len(self.changed)
            ]
            self.model.at(self.now)
            assert self.once(Request(session, number), core) == answer

    def as_now(self, lease: Any) -> Any:
        one = self.model.items.get(lease[0])
        holds = one is not None and one.lease is not None and one.state == "RUNNING"
        if holds and one is not None and one.lease is not None and one.lease.token == lease[4]:
            return lease
        return (lease[0], b"", lease[2], (), *lease[4:8], False)

    @rule()
    def open_anew(self) -> None:
        self.reopen()

    def reopen(self) -> None:
        self.store.apply(self.core.drain())
        self.core = self.store.opened()
        self.model.now = self.core.now_ms  # a time without a change is not stored

    # -- invariants after each step

    @invariant()
    def shows_what_the_model_shows(self) -> None:
        assert [shown(view) for view in self.core.read.page(1000)] == self.model.shown()
        self.core.check()

    @invariant()
    def counts_as_the_model(self) -> None:
        for wanted in (
            {},
            {"region": "us"},
            {"project": "foo"},
            {"project": "bar", "region": "eu"},
        ):
            found = {state.name: n for state, n in self.core.read.depth(wanted).items()}
            assert found == self.model.depth(wanted)
        if self.model.settings.key is not None:
            found = {s.name: n for s, n in self.core.read.depth(value="foo").items()}
            assert found == self.model.depth({}, "foo")

    @invariant()
    def stores_what_it_has(self) -> None:
        """Check that all transitions are events in order, and that the rows alone make an equal
        core.
        """
        self.store.apply(self.core.drain())
        events = [
            (one.id, one.version, *map(name, (one.from_state, one.to_state)), one.time_ms)
            for one in self.store.events
        ]
        assert events == self.model.events
        again = self.store.opened()
        assert again.read.page(1000) == self.core.read.page(1000)
        assert again.settings == self.core.settings

    @invariant()
    def knows_when_it_is_next_due(self) -> None:
        dues = [one.due for one in self.model.items.values() if one.due]
        found = self.core.next_due_ms()
        assert found is not None or not dues
        if dues:
            assert found is not None and found <= max(min(dues), self.core.counters().now_ms)


def name(state: State | None) -> str | None:
    return None if state is None else state.name


class Walk:
    """A long random history. Its queues fill up, and most leases are ended in time."""

    machine_class: type[CoreMachine] = CoreMachine

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.machine = machine = self.machine_class()
        rng = self.rng
        machine.begin(rng.choice([None, "project"]), rng.randint(1, 3), self.shapes(), 0)
        self.acts: list[Callable[[], None]] = [
            *[self.time_passes] * 4,
            *[self.enqueue] * 8,
            *[self.dequeue] * 6,
            *[self.finish] * 4,
            *[self.rest] * 8,
        ]

    def run(self, steps: int) -> None:
        machine = self.machine
        for _ in range(steps):
            self.rng.choice(self.acts)()
            machine.shows_what_the_model_shows()
            machine.counts_as_the_model()
            machine.stores_what_it_has()
            machine.knows_when_it_is_next_due()

    def shapes(self) -> tuple[tuple[str, ...], ...]:
        known = [("region",), ("project",), ("project", "region")]
        return tuple(self.rng.sample(known, self.rng.randint(0, 3)))

    def id(self) -> str:
        return f"m{self.rng.randrange(40)}"

    def metadata(self) -> dict[str, str]:
        found = {"project": self.rng.choice(["foo", "bar", "baz"])}
        return found | (
            {"region": self.rng.choice(["us", "eu"])} if self.rng.random() < 0.7 else {}
        )

    def wanted(self) -> dict[str, str]:
        found = self.metadata()
        return {key: found[key] for key in found if self.rng.random() < 0.3}

    def time_passes(self) -> None:
        self.machine.time_passes(self.rng.choice([0, 1, 1, 2, 3, 10, -3]))

    def enqueue(self) -> None:
        rng = self.rng
        terms = (rng.choice([None, 3, 30]), rng.choice([None, None, 4]), rng.choice([None, 1, 3]))
        self.machine.enqueue(self.id(), rng.randint(-2, 2), self.metadata(), terms, b"x")

    def dequeue(self) -> None:
        rng, machine = self.rng, self.machine
        count, wanted = rng.randint(1, 4), self.wanted()
        if rng.random() < 0.5:
            machine.dequeue_without_a_look_before(count, wanted)
        else:
            machine.dequeue(count, wanted, rng.choice([None, 1, 30]), rng.random() < 0.3)

    def finish(self) -> None:
        how = self.rng.choice(["completed", "completed", "canceled", "failed"])
        self.machine.finish(self.rng.randrange(8), how, self.rng.choice(["", "done"]))

    def rest(self) -> None:
        rng, machine = self.rng, self.machine
        which = rng.randrange(8)
        acts: list[Callable[[], None]] = [
            lambda: machine.extend(which, rng.choice([None, 1, 30])),
            lambda: machine.release(which, rng.choice([0, 0, 4]), rng.random() < 0.5),
            lambda: machine.cancel(self.id(), rng.random() < 0.5),
            lambda: machine.prioritise(self.id(), rng.randint(-2, 2)),
            lambda: machine.requeue(self.id(), self.id()),
            lambda: machine.sweep(rng.randint(1, 4)),
            lambda: machine.configure(rng.randint(1, 3), self.shapes(), rng.randint(1, 3)),
            lambda: machine.block(rng.random() < 0.2, rng.random() < 0.2),
            lambda: machine.ask_once(rng.choice("st"), rng.randint(0, 3), rng.randint(1, 3)),
            lambda: machine.ask_again(rng.choice("st"), rng.randint(0, 5)),
            machine.reopen,
            lambda: machine.the_next_change_has_an_id(rng.choice("st"), rng.randint(0, 3)),
            lambda: machine.ask_for_a_change_again(rng.randrange(8)),
        ]
        rng.choice(acts)()


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(10))
def test_a_long_history_is_that_of_the_model(seed: int) -> None:
    Walk(seed).run(300)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(
    max_examples=examples(80),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
