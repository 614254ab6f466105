"""A store behaves as the brute-force model for any operations.

Commits fail before or after they are stored, owners change, and the clock goes back.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule
from tests.providers.priority.stored_core import Stage, StoredCore
from tests.providers.priority.test_core_model import (
    SHAPES,
    CoreMachine,
    Walk,
    name,
)

from millstream.providers.priority import OwnerLost
from millstream.providers.priority.core.commands import Dequeue
from millstream.providers.priority.core.requests.sessions import Request
from millstream.runtime import StorageUnavailable


class StoreMachine(CoreMachine):
    """The machine of the core over a store. Its events are those of the outboxes."""

    kind = "memory"
    core: StoredCore  # type: ignore[assignment]

    @initialize(
        key=st.sampled_from([None, "project"]),
        limit=st.integers(1, 3),
        shapes=SHAPES,
        invisible=st.sampled_from([0, 0, 3]),
    )
    def begin(self, key: str | None, limit: int, shapes: Any, invisible: int) -> None:
        super().begin(key, limit, shapes, invisible)
        self.stage = Stage(self.kind)
        self.core = self.stage.core(self.core_settings(), self.now)
        self.happened: list[Any] = []

    def teardown(self) -> None:
        if hasattr(self, "stage"):
            self.stage.__exit__(None, None, None)

    def reopen(self) -> None:
        before = self.core.owned
        self.stage.place.clock.now_ms = self.now
        self.core.reopen()
        with pytest.raises(OwnerLost):
            self.core.run(before.do(Dequeue("late", 4)))
        # A time without a change is not stored, and the new owner has read its clock.
        self.model.now = self.core.owned.now_ms()

    # -- failed commits

    @rule(is_stored=st.booleans(), count=st.integers(1, 3))
    def a_poll_is_lost_and_asked_again(self, is_stored: bool, count: int) -> None:
        """Repeat a poll of a session. A stored poll is answered again, and another one is done
        now.
        """
        self.numbers["s"] += 1
        request = Request("s", self.numbers["s"])
        expected = self.model.dequeue(self.now, "w", count, {}, None, False)
        faults = self.stage.place.faults
        setattr(faults, "failing_after" if is_stored else "failing_before", 1)
        try:
            found = self.request(request, count)
        except StorageUnavailable:
            self.core.reopen()
            self.model.now = self.core.owned.now_ms()
            found = self.request(request, count)
        faults.failing_after = faults.failing_before = 0
        assert found == expected
        if found and found != "blocked":
            self.asked["s", request.number] = found
            self.tokens += [(one[0], one[4]) for one in found]

    # -- invariants after each step

    @invariant()
    def stores_what_it_has(self) -> None:
        """Check that all transitions are in the outbox, in order, whichever owner made them."""
        drained = self.core.drain()
        self.happened += [
            (one.id, one.version, name(one.from_state), name(one.to_state), one.time_ms)
            for one in (drained.events if drained else ())
        ]
        assert self.happened == self.model.events

    @invariant()
    def knows_when_it_is_next_due(self) -> None:
        dues = [one.due for one in self.model.items.values() if one.due]
        found = self.core.next_due_ms()
        assert found is not None or not dues
        if dues:
            assert found is not None and found <= max(min(dues), self.core.owned.now_ms())
        if found is not None:
            assert self.core.run(self.core.stores[0].due(found, "", 9)) == [self.core.queue]


class EmbeddedMachine(StoreMachine):
    kind = "embedded"


class StoreWalk(Walk):
    machine_class: type[CoreMachine] = StoreMachine

    def rest(self) -> None:
        rng, machine = self.rng, self.machine
        assert isinstance(machine, StoreMachine)
        if rng.random() < 0.2:
            machine.a_poll_is_lost_and_asked_again(rng.random() < 0.5, rng.randint(1, 3))
        else:
            super().rest()


class EmbeddedWalk(StoreWalk):
    machine_class = EmbeddedMachine


@pytest.mark.parametrize(("walk", "seed"), [(StoreWalk, 1), (StoreWalk, 2), (EmbeddedWalk, 3)])
def test_a_long_history_is_that_of_the_model(walk: type[StoreWalk], seed: int) -> None:
    history = walk(seed)
    try:
        history.run(150)
    finally:
        history.machine.teardown()


QUICK = settings(
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestMemory = StoreMachine.TestCase
TestMemory.settings = QUICK
TestEmbedded = EmbeddedMachine.TestCase
# No shrinking phase, because files are slow and failing examples are small enough.
TestEmbedded.settings = settings(
    QUICK, max_examples=6, phases=[Phase.explicit, Phase.reuse, Phase.generate]
)
