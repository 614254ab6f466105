"""A brute-force model of a priority queue, written from the specification alone, without
indexes."""

from __future__ import annotations

from dataclasses import dataclass, field

FINISHED = ("COMPLETED", "CANCELED", "ERRORED")


class Refused(Exception):
    """An expected refusal. `args[0]` is the name of the error class."""


@dataclass
class Lease:
    token: tuple[int, int]
    worker: str
    ended: str = ""
    reason: str = ""


@dataclass
class Item:
    id: str
    payload: bytes
    first_priority: int
    priority: int
    sequence: int
    metadata: dict[str, str]
    terms: tuple[int | None, int | None, int | None]
    attempts: int
    left: int
    created: int
    changed: int
    state: str = "PENDING"
    version: int = 1
    due: int = 0
    lease: Lease | None = None

    def shown(self) -> tuple[object, ...]:
        lease = self.lease
        payload = b"" if self.state == "COMPLETED" else self.payload
        return (
            *(self.id, self.state, self.priority, self.sequence),
            tuple(sorted(self.metadata.items())),
            *(payload, self.version, self.attempts, self.left, self.due),
            *(self.created, self.changed),
            *((lease.worker, lease.token, lease.reason) if lease else ("", None, "")),
        )


@dataclass
class Settings:
    key: str | None
    limit: int = 1
    lease: int = 10
    invisible: int = 0
    attempts: int = 2
    retention: int = 20
    enqueue_blocked: bool = False
    dequeue_blocked: bool = False


@dataclass
class Model:
    settings: Settings
    now: int = 0
    sequence: int = 0
    epoch: int = 0
    items: dict[str, Item] = field(default_factory=dict)
    events: list[tuple[str, int, str | None, str | None, int]] = field(default_factory=list)
    steps: int = 0

    # -- time

    def at(self, now: int, steps: int = 10**6) -> None:
        self.now = max(self.now, now)
        waiting = [one for one in self.items.values() if one.state in ("INVISIBLE", "RUNNING")]
        due = [one for one in waiting if one.due <= self.now]
        self.steps = 0
        for one in sorted(due, key=lambda one: (one.due, one.sequence))[:steps]:
            self.steps += 1
            if one.state == "INVISIBLE":
                self.move(one, "PENDING")
            else:
                self.end(one, "expired")
                self.give_back(one, 0)

    def sweep(self, now: int, steps: int) -> None:
        self.at(now, steps)
        done = [one for one in self.items.values() if one.state in FINISHED]
        old = [one for one in done if one.due <= self.now]
        for one in sorted(old, key=lambda one: (one.due, one.sequence))[: steps - self.steps]:
            self.move(one, None)
            del self.items[one.id]

    def move(self, one: Item, state: str | None, due: int = 0) -> None:
        one.version += 1
        source, one.due, one.changed = one.state, due, self.now
        if state is not None:
            one.state = state
        self.events.append((one.id, one.version, source, state, self.now))

    def end(self, one: Item, how: str, reason: str = "") -> None:
        assert one.lease is not None
        one.lease.ended, one.lease.reason = how, reason

    def give_back(self, one: Item, due: int) -> None:
        if one.left == 0:
            self.move(one, "ERRORED", self.now + self.settings.retention)
        else:
            self.move(one, "INVISIBLE" if due else "PENDING", due)

    # -- enqueueing

    def enqueue(
        self,
        now: int,
        id: str,
        payload: bytes,
        priority: int,
        metadata: dict[str, str],
        terms: tuple[int | None, int | None, int | None],
    ) -> tuple[object, ...]:
        self.at(now)
        self.check(id, payload, priority, metadata, terms)
        return self.put(id, payload, priority, metadata, terms)

    def check(
        self,
        id: str,
        payload: bytes,
        priority: int,
        metadata: dict[str, str],
        terms: tuple[int | None, int | None, int | None],
    ) -> bool:
        """Check a message, and return whether it would be new."""
        if self.settings.key is not None and self.settings.key not in metadata:
            raise Refused("ExclusivityMissing")
        old = self.items.get(id)
        if old is not None:
            body = (old.payload, old.first_priority, old.metadata, old.terms)
            if body != (payload, priority, metadata, terms):
                raise Refused("MessageExists")
            return False
        if self.settings.enqueue_blocked:
            raise Refused("EnqueueBlocked")
        return True

    def put(
        self,
        id: str,
        payload: bytes,
        priority: int,
        metadata: dict[str, str],
        terms: tuple[int | None, int | None, int | None],
    ) -> tuple[object, ...]:
        if id in self.items:
            old = self.items[id]
            return (id, old.state, old.version, False)
        self.sequence += 1
        lease, invisible, attempts = terms
        invisible = self.settings.invisible if invisible is None else invisible
        attempts = self.settings.attempts if attempts is None else attempts
        one = Item(
            id,
            payload,
            priority,
            priority,
            self.sequence,
            metadata,
            terms,
            attempts,
            attempts,
            self.now,
            self.now,
        )
        if invisible:
            one.state, one.due = "INVISIBLE", self.now + invisible
        self.items[id] = one
        self.events.append((id, 1, None, one.state, self.now))
        return (id, one.state, 1, True)

    def requeue(self, now: int, id: str, new_id: str) -> tuple[object, ...]:
        self.at(now)
        one = self.item(id)
        if one.state not in ("CANCELED", "ERRORED"):
            raise Refused("RequestInvalid")
        lease, _, attempts = one.terms
        body = (new_id, one.payload, one.priority, dict(one.metadata), (lease, 0, attempts))
        self.check(*body)
        return self.put(*body)

    # -- dequeueing

    def value(self, one: Item) -> str | None:
        return None if self.settings.key is None else one.metadata[self.settings.key]

    def held(self, value: str) -> int:
        running = [one for one in self.items.values() if one.state == "RUNNING"]
        return sum(self.value(one) == value for one in running)

    def dequeue(
        self,
        now: int,
        worker: str,
        count: int,
        wanted: dict[str, str],
        lease: int | None,
        same: bool,
    ) -> list[tuple[object, ...]] | str:
        self.at(now)
        if self.settings.dequeue_blocked:
            return "blocked"
        found = self.choose(count, wanted, same)
        return [self.take(one, worker, lease) for one in found]

    def choose(self, count: int, wanted: dict[str, str], same: bool) -> list[Item]:
        """Take the available message with the smallest priority and sequence, again and again."""
        chosen: list[Item] = []
        pending = [one for one in self.items.values() if one.state == "PENDING"]
        fitting = [one for one in pending if wanted.items() <= one.metadata.items()]
        for one in sorted(fitting, key=lambda one: (one.priority, one.sequence)):
            value = self.value(one)
            is_taken = value is not None and value in [self.value(other) for other in chosen]
            is_free = value is None or self.held(value) < self.settings.limit
            if len(chosen) < count and is_free and (same or not is_taken):
                chosen.append(one)
        return chosen

    def take(self, one: Item, worker: str, lease: int | None) -> tuple[object, ...]:
        lease = lease if lease is not None else one.terms[0]
        lease = lease if lease is not None else self.settings.lease
        one.left -= 1
        self.epoch += 1
        self.move(one, "RUNNING", self.now + lease)
        one.lease = Lease((self.epoch, one.version), worker)
        metadata = tuple(sorted(one.metadata.items()))
        numbers = (self.now + lease, one.attempts - one.left, one.left)
        return (one.id, one.payload, one.priority, metadata, one.lease.token, *numbers, True)

    # -- leases

    def item(self, id: str) -> Item:
        if id not in self.items:
            raise Refused("MessageNotFound")
        return self.items[id]

    def held_by(self, id: str, token: tuple[int, int], how: str) -> tuple[Item, bool]:
        """Return the message, and whether this operation was done before."""
        one = self.item(id)
        lease = one.lease
        if lease is None:
            raise Refused("LeaseForeign")
        if lease.token == token:
            if lease.ended == "":
                return one, False
            if lease.ended == how:
                return one, True
            is_finished = one.state in FINISHED and lease.ended != "expired"
            raise Refused("MessageFinished" if is_finished else "LeaseLost")
        if token[0] < lease.token[0] and 1 < token[1] < lease.token[1]:
            raise Refused("LeaseLost")
        raise Refused("LeaseForeign")

    def finish(
        self, now: int, id: str, token: tuple[int, int], how: str, reason: str = ""
    ) -> tuple[object, ...]:
        self.at(now)
        one, is_repeat = self.held_by(id, token, how)
        if not is_repeat:
            self.end(one, how, reason)
            state = {"completed": "COMPLETED", "canceled": "CANCELED", "failed": "ERRORED"}[how]
            self.move(one, state, self.now + self.settings.retention)
        return (one.state, one.version, one.due, not is_repeat)

    def extend(
        self, now: int, id: str, token: tuple[int, int], lease: int | None
    ) -> tuple[object, ...]:
        self.at(now)
        one, _ = self.held_by(id, token, "never")
        lease = lease if lease is not None else one.terms[0]
        lease = lease if lease is not None else self.settings.lease
        is_later = self.now + lease > one.due
        if is_later:
            self.move(one, "RUNNING", self.now + lease)
        return (one.state, one.version, one.due, is_later)

    def release(
        self, now: int, id: str, token: tuple[int, int], delay: int, refund: bool
    ) -> tuple[object, ...]:
        self.at(now)
        one, is_repeat = self.held_by(id, token, "released")
        if not is_repeat:
            self.end(one, "released")
            one.left += refund
            self.give_back(one, self.now + delay if delay else 0)
        return (one.state, one.version, one.due, not is_repeat)

    def cancel(self, now: int, id: str, unless_leased: bool = False) -> tuple[object, ...]:
        self.at(now)
        one = self.item(id)
        if one.state in ("COMPLETED", "ERRORED"):
            raise Refused("MessageFinished")
        is_changed = one.state != "CANCELED" and not (unless_leased and one.state == "RUNNING")
        if is_changed:
            if one.state == "RUNNING":
                self.end(one, "canceled")
            self.move(one, "CANCELED", self.now + self.settings.retention)
        return (one.state, one.version, one.due, is_changed)

    def prioritise(self, now: int, id: str, priority: int) -> tuple[object, ...]:
        self.at(now)
        one = self.item(id)
        if one.state in FINISHED:
            raise Refused("MessageFinished")
        is_changed = one.priority != priority
        if is_changed:
            one.priority = priority
            self.move(one, one.state, one.due)
        return (one.state, one.version, one.due, is_changed)

    # -- reads

    def shown(self) -> list[tuple[object, ...]]:
        return [one.shown() for one in sorted(self.items.values(), key=lambda one: one.sequence)]

    def depth(self, wanted: dict[str, str], value: str | None = None) -> dict[str, int]:
        found = [one for one in self.items.values() if wanted.items() <= one.metadata.items()]
        if value is not None:
            found = [one for one in found if self.value(one) == value]
        states = ("INVISIBLE", "PENDING", "RUNNING", *FINISHED)
        return {state: [one.state for one in found].count(state) for state in states}
