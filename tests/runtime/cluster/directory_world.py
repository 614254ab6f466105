"""A few directory ranges, the activations of their silos, and a network that delivers in any order.

This module takes the role of the driver `directory`. Sent messages join the messages on the way.
Any of them may be next or be lost. `test_directory_range` uses this module.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from millstream.runtime import MemberRow, Status, TableView
from millstream.runtime.cluster.directory.events import (
    Ask,
    EndDuplicate,
    Failed,
    NotReached,
    QuestionReceived,
    Refresh,
    Register,
    Rows,
    SendAnswer,
    SurvivorsAsked,
    Sweep,
    Swept,
    Told,
    Unregister,
    ViewApplied,
)
from millstream.runtime.cluster.directory.partition import Entry
from millstream.runtime.cluster.directory.range import DirectoryRange, point_of
from millstream.runtime.cluster.ring import covers

KEYS = ("p", "q", "r", "s", "t")
SILOS_MAX = 5


class Holding:
    """One activation, which is registering (version 0) or valid."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.version = 0


class SiloModel:
    """A silo with its range and its activations by key."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.range = DirectoryRange(name)
        self.held: dict[str, Holding] = {}
        self.ids = 0
        self.waiting: dict[int, tuple[str, str, int]] = {}  # by ticket: asker, key, activation

    def step(self, event: Any) -> None:
        if self.world.silos.get(self.name) is not self:
            return  # the silo has crashed
        for action in self.range.step(event):
            self.do(action)
        self.range.check()

    def do(self, action: Any) -> None:
        world = self.world
        match action:
            case SendAnswer():
                asker, key, number = self.waiting.pop(action.ticket)
                world.check_reply(self, key, action.entry)
                if asker:
                    world.send(
                        lambda: world.granted(asker, key, number, action.entry),
                        lambda: world.again(asker, key, number),
                    )
            case Refresh():
                version = action.version

                def refresh() -> None:
                    self.apply(world.views[-1])

                world.send(refresh, lambda: self.step(NotReached(version)))
            case Ask():
                failed = Failed(action.silo, action.round, is_wrong=False)
                world.send(lambda: world.survivors(self, action), lambda: self.step(failed))
            case EndDuplicate():
                kind, key, loser = action.kind, action.key, action.loser
                world.duplicates += 1
                assert kind == "K"
                world.send(lambda: world.end(loser.silo, key, loser.activation_id), None)
            case Sweep():
                world.send(lambda: self.step(Swept()), None, is_local=True)

    def apply(self, view: TableView) -> None:
        self.step(ViewApplied(view))

    @property
    def is_active(self) -> bool:
        view = self.world.views[self.range.version - 1] if self.range.version else TableView(0)
        return self.name in view.with_status(Status.ACTIVE)

    def activate(self, key: str) -> None:
        if key in self.held or not self.is_active:
            return
        self.ids += 1
        self.held[key] = holding = Holding(self.ids)
        if self.range.is_alone:
            holding.version = self.range.register_here("K", key, self.ids)
        else:
            self.register(key, self.ids)

    def register(self, key: str, number: int) -> None:
        """Ask the owner to register, and ask again after a loss."""
        holding = self.held.get(key)
        owner = self.range.owner_of("K", key)
        has_crashed = self.world.silos.get(self.name) is not self
        if has_crashed or holding is None or holding.id != number or holding.version:
            return
        version, me = self.range.version, self.name
        again = lambda: self.register(key, number)  # noqa: E731
        if owner is None:
            self.world.send(again, again)
            return
        self.world.send(
            lambda: self.world.ask(owner, Register("K", key, me, number), version, me), again
        )

    def deactivate(self, key: str) -> None:
        holding = self.held.get(key)
        owner = self.range.owner_of("K", key)
        if holding is None or not holding.version:
            return
        del self.held[key]
        event = Unregister("K", key, self.name, holding.id)
        if owner is not None:
            self.world.send(lambda: self.world.tell(owner, event), None)


class World:
    """Tables, silos and messages. `turn()` lets one event happen."""

    def __init__(self, seed: int, losses: float = 0.1) -> None:
        self.rng = random.Random(seed)
        self.losses = losses
        self.views = [TableView(1, ())]
        self.silos: dict[str, SiloModel] = {}
        self.mail: list[tuple[Callable[[], None], Callable[[], None] | None, bool]] = []
        self.tickets = 0
        self.duplicates = 0
        self.replies = 0
        self.generation = 0
        self.most_valid = 0
        for _ in range(self.rng.randint(1, 3)):
            self.join()

    # -- the network

    def send(
        self,
        arrive: Callable[[], None],
        lose: Callable[[], None] | None,
        *,
        is_local: bool = False,
    ) -> None:
        """Put a message on its way. `lose` is the sender's view of a loss."""
        self.mail.append((arrive, lose, is_local))

    def deliver(self, losses: float) -> None:
        arrive, lose, is_local = self.mail.pop(self.rng.randrange(len(self.mail)))
        if is_local or self.rng.random() >= losses:
            arrive()
        elif lose is not None:
            lose()

    def ask(self, owner: str, question: Register, version: int, asker: str) -> None:
        silo = self.silos.get(owner)
        if silo is None:
            self.again(asker, question.key, question.activation_id)
            return
        self.tickets += 1
        silo.waiting[self.tickets] = (asker, question.key, question.activation_id)
        silo.step(QuestionReceived(self.tickets, question, version))

    def again(self, asker: str, key: str, number: int) -> None:
        if asker in self.silos:
            self.silos[asker].register(key, number)

    def tell(self, silo: str, event: Any) -> None:
        if silo in self.silos:
            self.silos[silo].step(event)

    def survivors(self, asker: SiloModel, ask: Ask) -> None:
        """Send a survivor's rows, then a message that says that these were all."""
        silo, round_ = self.silos.get(ask.silo), ask.round
        failed = Failed(ask.silo, round_, is_wrong=False)
        if silo is None:
            return asker.step(failed)
        silo.step(SurvivorsAsked(round_))
        rows = [
            ("K", key, held.id, held.version)
            for key, held in silo.held.items()
            if held.version and covers(ask.segments, point_of("K", key))
        ]

        def arrive() -> None:
            if asker.name in self.silos:
                asker.step(Rows(ask.silo, round_, rows))
                self.send(lambda: asker.step(Told(ask.silo, round_)), lambda: asker.step(failed))

        return self.send(arrive, lambda: asker.step(failed))

    def granted(self, asker: str, key: str, number: int, entry: Entry | None) -> None:
        """Handle an answer as `Directory.register` does."""
        silo = self.silos.get(asker)
        holding = None if silo is None else silo.held.get(key)
        if silo is None or holding is None or holding.id != number or holding.version:
            return
        assert entry is not None
        if entry.silo and (entry.silo, entry.activation_id) != (asker, number):
            del silo.held[key]
            return
        if entry.silo and silo.range.is_current(entry.version):
            holding.version = entry.version
            return
        silo.apply(self.views[-1])  # the silo reads the table and asks again
        silo.register(key, number)

    def end(self, name: str, key: str, number: int) -> None:
        silo = self.silos.get(name)
        if silo is not None and key in silo.held and silo.held[key].id == number:
            del silo.held[key]

    # -- events

    def turn(self) -> None:
        rng = self.rng
        roll = rng.random()
        names = list(self.silos)
        if self.mail and roll < 0.6:
            self.deliver(self.losses)
        elif roll < 0.75 and names:
            self.silos[rng.choice(names)].activate(rng.choice(KEYS))
        elif roll < 0.82 and names:
            self.silos[rng.choice(names)].deactivate(rng.choice(KEYS))
        elif roll < 0.93 and names:
            silo = self.silos[rng.choice(names)]
            later = self.views[silo.range.version :]
            if later:
                silo.apply(rng.choice(later[:2]) if rng.random() < 0.7 else later[-1])
        elif roll < 0.96 and len(names) < SILOS_MAX:
            self.join()
        elif names:
            self.leave(rng.choice(names))
        self.check()

    def join(self) -> None:
        self.generation += 1
        name = f"s{self.rng.randrange(SILOS_MAX)}:1@{self.generation}"
        self.silos[name] = SiloModel(self, name)
        self.change(name, Status.ACTIVE)
        self.silos[name].apply(self.views[-1])

    def leave(self, name: str) -> None:
        """Crash a silo and update the table at once, or let the silo begin to stop."""
        if self.rng.random() < 0.3:
            self.change(name, Status.STOPPING)
            return
        crashed = self.silos.pop(name)
        self.change(name, Status.DEAD)
        for asker, key, number in crashed.waiting.values():
            self.again(asker, key, number)  # its connection broke

    def change(self, name: str, status: Status) -> None:
        view = self.views[-1]
        rows = [row for row in view.rows if row.silo != name]
        self.views.append(TableView(view.version + 1, (*rows, MemberRow(name, status))))

    def settle(self) -> None:
        """End all losses, let all silos read the table, and deliver all messages."""
        self.join()  # so that some silo is active
        for silo in self.silos.values():
            silo.apply(self.views[-1])
        for _ in range(20_000):
            if not self.mail:
                return
            self.deliver(0.0)
            self.check()
        raise AssertionError("it never comes to rest")

    # -- invariants

    def check(self) -> None:
        """Check that no grain is valid in two silos."""
        for key in KEYS:
            valid = [s.name for s in self.silos.values() if key in s.held and s.held[key].version]
            assert len(valid) <= 1, f"{key} is valid in {valid}"
            self.most_valid = max(self.most_valid, len(valid))

    def check_reply(self, silo: SiloModel, key: str, entry: Entry | None) -> None:
        """Check that only the owner answers, and that no answer names a silo that is dead in its
        view.
        """
        self.replies += 1
        is_owner = silo.range.owner_of("K", key) == silo.name
        if entry is not None and entry.silo:
            view = self.views[silo.range.version - 1]
            found = view.row(entry.silo)
            assert is_owner
            assert found is not None and found.status is not Status.DEAD
