"""The proof of `examples/flights_queue` detects every broken history, and no fault in a correct
one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLE = Path(__file__).parents[3] / "examples" / "flights_queue"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"flights_{name}", EXAMPLE / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


legs, proof = load("legs"), load("proof")

ONCE = "each leg was completed once"
BY_CLOCK = "a plane had one leg at a time, by the workers' clock"
BY_QUEUE = "a plane had one leg at a time, by the queue"
TOKENS = "the tokens of a plane rose"
ORDER = "the legs of a plane were begun by departure"
AGREED = "workers and queue agree on the leases"
DEPARTS = {"a1": 10, "b1": 20, "a2": 30, "a3": 40}


class History:
    """Two planes, A and B. The first lease of leg a2 expires, and the leg is leased again."""

    def __init__(self) -> None:
        self.transitions: list[Any] = []
        self.attempts: list[Any] = []
        for leg in DEPARTS:
            self.step(leg, "", "enqueued", "pending")
        self.flown("a1", "w1", 1, 0.0, 5.0)
        self.flown("b1", "w2", 2, 1.0, 9.0)
        self.flown("a2", "w1", 3, 6.0, 7.0, "expired", "pending")
        self.flown("a2", "w3", 4, 8.0, 10.0)
        self.flown("a3", "w1", 5, 10.0, 12.0)

    def step(self, leg: str, worker: str, step: str, state: str) -> None:
        tail, departs_ms = leg[0].upper(), DEPARTS.get(leg, 0)
        self.transitions.append(proof.Transition(leg, tail, departs_ms, worker, step, state))

    def flown(
        self,
        leg: str,
        worker: str,
        epoch: int,
        begin_s: float,
        end_s: float,
        step: str = "completed",
        state: str = "completed",
    ) -> None:
        """Record a leg from its lease to its end with one extension, on both sides."""
        self.step(leg, worker, "dequeued", "running")
        self.step(leg, worker, "extended", "running")
        self.step(leg, worker, step, state)
        tail, departs_ms = leg[0].upper(), DEPARTS.get(leg, 0)
        times = (begin_s, end_s, step == "completed")
        self.attempts.append(proof.Attempt(leg, tail, departs_ms, worker, epoch, *times))

    def attempt(self, epoch: int) -> Any:
        (found,) = (one for one in self.attempts if one.epoch == epoch)
        return found

    def place(self, leg: str, step: str) -> int:
        """The index of the leg's first such transition."""
        steps = [(one.leg, one.step) for one in self.transitions]
        return steps.index((leg, step))

    def wrong(self) -> set[str]:
        judged = proof.judge(set(DEPARTS), self.attempts, self.transitions)
        return {what for what, faults in judged.items() if faults}


def test_an_honest_history_is_proved() -> None:
    history = History()
    assert history.wrong() == set()
    history.attempts.reverse()
    judged = proof.judge(set(DEPARTS), history.attempts, history.transitions)
    assert judged == {what: [] for what in (ONCE, BY_CLOCK, BY_QUEUE, TOKENS, ORDER, AGREED)}


def lost(history: History) -> None:
    del history.transitions[history.place("a3", "completed")]
    history.attempts.pop()


def doubled(history: History) -> None:
    history.flown("b1", "w1", 6, 20.0, 21.0)


def strange(history: History) -> None:
    history.flown("c1", "w1", 6, 20.0, 21.0)


def errored(history: History) -> None:
    at = history.place("a3", "completed")
    history.transitions[at] = history.transitions[at]._replace(step="failed", to_state="errored")
    history.attempt(5).is_completed = False


def begun_too_soon(history: History) -> None:
    history.attempt(4).begin_s = 6.9


def begun_while_an_older_one_goes_on(history: History) -> None:
    history.attempt(1).end_s = 11.0


def never_landed(history: History) -> None:
    one = history.attempt(3)
    at = history.attempts.index(one)
    told = (one.leg, one.tail, one.departs_ms, one.worker, one.epoch, one.begin_s)
    history.attempts[at] = proof.Attempt(*told)


def leased_too_soon(history: History) -> None:
    moved = history.transitions.pop(history.place("a1", "completed"))
    history.transitions.insert(history.place("a2", "dequeued") + 1, moved)


def token_goes_back(history: History) -> None:
    history.attempt(4).epoch, history.attempts[-1].epoch = 5, 4


def later_departure_first(history: History) -> None:
    for attempt in history.attempts:
        if attempt.leg == "a1":
            attempt.departs_ms = 35


def token_of_two(history: History) -> None:
    history.attempts.append(replace(history.attempt(2), begin_s=9.0))


def token_of_another_worker(history: History) -> None:
    history.attempt(2).worker = "w9"


def token_of_another_leg(history: History) -> None:
    history.attempt(4).leg = "a1"


def token_that_was_never_given(history: History) -> None:
    history.attempt(5).epoch = 6


def completed_though_it_was_broken_off(history: History) -> None:
    history.attempt(3).is_completed = True


def completed_and_not_flown(history: History) -> None:
    history.attempts.remove(history.attempt(2))


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [
        (lost, {ONCE}),
        (doubled, {ONCE}),
        (strange, {ONCE}),
        (errored, {ONCE}),
        (begun_too_soon, {BY_CLOCK}),
        (begun_while_an_older_one_goes_on, {BY_CLOCK}),
        (never_landed, {BY_CLOCK}),
        (leased_too_soon, {BY_QUEUE}),
        (token_goes_back, {TOKENS, AGREED}),
        (later_departure_first, {ORDER}),
        (token_of_two, {AGREED, TOKENS}),
        (token_of_another_worker, {AGREED}),
        (token_of_another_leg, {AGREED}),
        (token_that_was_never_given, {AGREED}),
        (completed_though_it_was_broken_off, {AGREED}),
        (completed_and_not_flown, {AGREED}),
    ],
    ids=lambda one: one.__name__ if callable(one) else "",
)
def test_a_broken_history_is_seen(broken: Callable[[History], None], wrong: set[str]) -> None:
    history = History()
    broken(history)
    assert history.wrong() == wrong


def test_each_attempt_that_began_while_its_plane_was_away_is_told() -> None:
    history = History()
    begun_while_an_older_one_goes_on(history)
    judged = proof.judge(set(DEPARTS), history.attempts, history.transitions)
    told = [f"A: {one} while w1 flew a1" for one in ("w1 began a2", "w3 began a2", "w1 began a3")]
    assert judged[BY_CLOCK] == told


def test_the_leases_of_a_queue_are_numbered_as_its_epochs() -> None:
    history = History()
    history.step("b2", "w2", "dequeued", "running")
    leases = [tuple(lease) for lease in proof.leases_of(history.transitions)]
    assert leases == [
        ("a1", "w1", "completed"),
        ("b1", "w2", "completed"),
        ("a2", "w1", "expired"),
        ("a2", "w3", "completed"),
        ("a3", "w1", "completed"),
        ("b2", "w2", ""),
    ]


def test_a_leg_waited_that_a_later_departure_overtook() -> None:
    history = History()
    history.step("a1", "w2", "dequeued", "running")
    assert proof.count_waited(history.transitions) == 0  # a leg that is leased again did not wait
    at_the_time_of_a3 = history.transitions[-2]._replace(leg="d1", step="dequeued")
    history.transitions.append(at_the_time_of_a3)
    assert proof.count_waited(history.transitions) == 0
    history.transitions.append(history.transitions.pop(history.place("b1", "dequeued")))
    assert proof.count_waited(history.transitions) == 1


def test_a_leg_departs_by_the_hour_in_utc_and_the_minute() -> None:
    line = {
        **{"time_hour": "2013-07-05T03:00:00Z", "minute": "59", "tailnum": "N563JB"},
        **{"carrier": "B6", "flight": "839", "origin": "JFK", "dest": "BQN", "air_time": "199"},
    }
    leg = legs.leg_of(line)  # 23:59 of the fourth in New York
    assert leg == ("2013-07-05T03:59Z B6839 JFK-BQN", "N563JB", 1372996740000, 199)
    message = leg.message()
    assert (message.id, message.priority) == (leg.id, leg.departs_ms)
    assert message.metadata == {"tail": "N563JB"} and legs.minutes_of(message.payload) == 199
    assert legs.leg_of({**line, "air_time": "NA"}).minutes == 0
