"""The turn rule compared with a model of plain lists after each random event."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.call_count import calls_of
from tests.examples import examples

from millstream.runtime import DeactivationReason, Overloaded
from millstream.runtime.turns.activation import Activation, ActivationState
from millstream.runtime.turns.mailbox import WaitingBytes
from millstream.runtime.turns.request import Request


class Entry:
    """A waiting entry that records its events."""

    def __init__(self, machine: RuleBesideModel, name: int, kind: str) -> None:
        spec: Any = SimpleNamespace(label=kind, is_read_only=kind == "read")
        self.request = Request(None, None, None, spec, 0.0, 1)
        self.request.is_read = kind == "read"
        self.request.is_interleaving = kind == "interleave"
        self.is_withdrawn = False
        self.size_bytes = self.held_bytes = name % 3
        self.machine, self.name, self.kind = machine, name, kind
        self.takes = True

    def grant(self) -> bool:
        self.machine.granted.append(self.name)
        return self.takes

    def on_moved(self, silo: str) -> None:
        self.machine.moved.append(self.name)

    def fail(self, error: BaseException) -> None:
        raise AssertionError(f"{self.name}: {error}")


class RuleBesideModel(RuleBasedStateMachine):
    """An activation compared with lists of running and waiting entries."""

    running = Bundle("running")
    waiting = Bundle("waiting")
    LIMIT = 6

    @initialize()
    def begin(self) -> None:
        self.ended: list[DeactivationReason] = []
        owner: Any = SimpleNamespace(end=self._end)
        self.account = WaitingBytes(1000, 1000)
        self.kind: Any = SimpleNamespace(
            name="K", waiting_calls_max=self.LIMIT, waiting_bytes=self.account
        )
        kind: Any = self.kind
        kind.owner = owner
        self.activation = Activation(kind, "k", 1)
        self.granted: list[int] = []
        self.moved: list[int] = []
        self.count = 0
        self.model_running: list[Entry] = []
        self.model_waiting: list[Entry] = []
        self.is_valid = False
        self.is_stopping = False

    def _end(self, activation: Activation, reason: DeactivationReason) -> None:
        assert not self.model_running_now() and not self.ended
        self.ended.append(reason)
        activation.state = ActivationState.DEACTIVATING
        activation.is_gated = True

    def model_running_now(self) -> list[Entry]:
        return [entry for entry in self.model_running if not entry.request.done]

    def may_start(self, kind: str) -> bool:
        if not self.is_valid or self.is_stopping:
            return False
        kinds = [entry.kind for entry in self.model_running if entry.kind != "interleave"]
        if kind == "interleave" or not kinds:
            return True
        return kind == "read" and set(kinds) == {"read"}

    def model_admit(self) -> list[int]:
        """Return the entries that start now, in order. The scan skips those that may not start."""
        started = []
        for entry in list(self.model_waiting):
            if self.may_start(entry.kind):
                self.model_waiting.remove(entry)
                started.append(entry.name)
                if entry.takes:
                    self.model_running.append(entry)
        return started

    @precondition(lambda self: not self.is_valid and not self.ended)
    @rule()
    def becomes_valid(self) -> None:
        self.granted.clear()
        self.is_valid = True
        expected = self.model_admit()
        self.activation.go_on(ActivationState.VALID)
        assert self.granted == expected

    @rule(target=waiting, kind=st.sampled_from(["plain", "plain", "read", "interleave"]))
    def arrives(self, kind: str) -> Entry:
        self.count += 1
        entry = Entry(self, self.count, kind)
        if self.may_start(kind):
            assert self.activation.try_enter(entry.request)
            self.model_running.append(entry)
        elif len(self.model_waiting) >= self.LIMIT:
            assert not self.activation.try_enter(entry.request)
            with pytest.raises(Overloaded):
                self.activation.queue(entry)
            entry.is_withdrawn = True
        else:
            assert not self.activation.try_enter(entry.request)
            self.activation.queue(entry)
            self.model_waiting.append(entry)
        return entry

    @rule(entry=consumes(waiting))
    def ends_or_withdraws(self, entry: Entry) -> None:
        self.granted.clear()
        if entry in self.model_running:
            self.model_running.remove(entry)
            expected = self.model_admit()
            entry.request.done = True
            self.activation.leave(entry.request)
            assert self.granted == expected
        elif entry in self.model_waiting:
            self.model_waiting.remove(entry)
            self.activation.withdraw(entry)
        elif not entry.takes:
            # Its grant was refused in the meantime, but its task still wakes up and withdraws it.
            self.activation.withdraw(entry)

    @rule(entry=waiting)
    def caller_goes_away_without_a_word(self, entry: Entry) -> None:
        """The entry refuses its grant, as when its task is cancelled and has not run yet."""
        if entry in self.model_waiting:
            entry.takes = False

    @precondition(lambda self: not self.is_stopping)
    @rule()
    def stops(self) -> None:
        self.is_stopping = True
        self.activation.end_soon(DeactivationReason.IDLE)

    @invariant()
    def agrees_with_the_model(self) -> None:
        if not hasattr(self, "activation"):
            return
        activation = self.activation
        activation.check()
        assert self.account.used == sum(entry.held_bytes for entry in self.model_waiting)
        box = activation.mailbox
        live = [] if box is None else [e for e in box.waiting if not e.is_withdrawn]
        assert [e.name for e in live] == [e.name for e in self.model_waiting]  # type: ignore[attr-defined]
        plain = [e.request for e in self.model_running if e.kind == "plain"]
        assert ([activation.running] if activation.running else []) == plain
        readers = [] if box is None else box.readers
        assert readers == [e.request for e in self.model_running if e.kind == "read"]
        interleaved = 0 if box is None else len(box.interleaving)
        assert interleaved == sum(e.kind == "interleave" for e in self.model_running)
        if not activation.is_gated:
            assert self.may_start("plain") and not self.model_waiting
        idle = self.is_valid and self.is_stopping and not self.model_running
        assert bool(self.ended) == idle
        if box is not None:
            assert box.withdrawn == sum(entry.is_withdrawn for entry in box.waiting)
        if not self.model_running and not self.model_waiting and not self.is_stopping:
            assert self.is_valid is not activation.is_gated


class ExtendedBesideModel(RuleBesideModel):
    """The same with an extension, so that the mailbox stays."""

    @initialize()
    def begin(self) -> None:
        super().begin()
        self.activation.ensure_mailbox().extensions["notes"] = object()


TestExtendedBesideModel = ExtendedBesideModel.TestCase
TestRuleBesideModel = RuleBesideModel.TestCase
TestRuleBesideModel.settings = settings(max_examples=examples(150), stateful_step_count=40)
TestExtendedBesideModel.settings = settings(TestRuleBesideModel.settings, max_examples=examples(60))


def test_letting_one_in_does_not_look_at_all_ten_thousand_that_wait() -> None:
    machine = RuleBesideModel()
    machine.begin()
    machine.kind.waiting_calls_max, machine.kind.waiting_bytes = 10_000, None
    machine.becomes_valid()
    entries = [Entry(machine, i, "plain") for i in range(10_000)]
    for entry in entries:
        if not machine.activation.try_enter(entry.request):
            machine.activation.queue(entry)

    def leave() -> None:
        for entry in entries[:200]:
            entry.request.done = True
            machine.activation.leave(entry.request)

    calls = calls_of(leave)
    assert machine.granted == list(range(1, 201))
    assert calls < 200 * 50


def test_the_gate_is_closed_while_callers_wait_for_the_location() -> None:
    owner: Any = SimpleNamespace()
    kind: Any = SimpleNamespace(name="K", waiting_calls_max=6, waiting_bytes=None)
    kind.owner = owner
    activation = Activation(kind, "k", 1)
    activation.become(ActivationState.VALID)
    assert not activation.is_gated
    activation.await_callers(True)
    assert activation.is_gated
    activation.await_callers(False)
    assert not activation.is_gated and activation.mailbox is None
    activation.check()


def an_activation() -> Activation:
    owner: Any = SimpleNamespace()
    kind: Any = SimpleNamespace(name="K", waiting_calls_max=6, waiting_bytes=None)
    kind.owner = owner
    return Activation(kind, "k", 1)


def test_who_comes_after_the_end_is_sent_where_the_grain_went() -> None:
    machine: Any = SimpleNamespace(granted=[], moved=[])
    activation = an_activation()
    activation.ensure_mailbox().gone = "silo:1@1"
    activation.abandon()
    activation.queue(Entry(machine, 7, "work"))
    assert machine.moved == [7] and not activation.ensure_mailbox().waiting


def test_withdrawn_entries_are_counted_as_they_are_met() -> None:
    machine: Any = SimpleNamespace(granted=[], moved=[])
    box = an_activation().ensure_mailbox()
    entries = [Entry(machine, number, "work") for number in range(6)]
    for entry in entries:
        box.put(entry)
    box.withdraw(entries[0])
    box.withdraw(entries[1])
    assert box.withdrawn == 2
    assert [box.take_first() for _ in range(2)] == entries[:2]
    assert box.withdrawn == 0
