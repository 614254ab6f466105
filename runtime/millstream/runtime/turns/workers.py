"""Stateless workers: the activations of one key in one silo, and the choice of a worker for a call.

`ActivationTable` has the activations of an ordinary grain type, one for each key. `WorkerTable` is
the same for a type of stateless workers: it has a `Pool` for each key. `get` of both tables returns
the activation for a call, so the code that finds activations does not differ. `catalog` creates and
ends the activations, and `collector` ends workers that are not needed.

Invariants:

- A pool has at most `workers_max` activations, with those that start or end.
- A call gets an idle worker if there is one. Else it creates a worker if the pool has room. Else it
  waits at the worker with the fewest waiting calls.
- No call waits in a pool that has an idle worker: a worker that becomes free takes calls that wait
  at other workers. Ticks of timers stay with their own worker.

Source: `StatelessWorkerGrainContext` of Orleans, whose workers do not take calls from each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from millstream.runtime.definition.method import MethodSpec

from .activation import Activation
from .kind import GrainKind
from .mailbox import Mailbox, WaitingEntry
from .request import Request
from .turn_rule import GONE, ActivationState

__all__ = ["QUIET_LOOKS", "ActivationTable", "Pool", "WorkerActivation", "WorkerTable"]

QUIET_LOOKS = 10
"""Looks in a row that find a worker too many before the pool ends workers, one with each look."""


class ActivationTable(dict[str, Activation]):
    """The activations of one grain type in one silo, by key.

    Stubs call `get` for each direct turn, so this class leaves `get` of `dict` as it is.
    """

    __slots__ = ()

    def add(self, kind: GrainKind, key: str, activation_id: int) -> Activation:
        """Create the activation of a key that `get` did not find."""
        made = self[key] = Activation(kind, key, activation_id)
        return made

    def remove(self, activation: Activation) -> None:
        """Remove an activation that has ended, or could not start."""
        if self.get(activation.key) is activation:
            del self[activation.key]

    def all(self) -> Collection[Activation]:
        """Return every activation."""
        return self.values()


class WorkerTable(ActivationTable):
    """The workers of one grain type in one silo.

    As a `dict`, it has the first worker of each key.

    Args:
        workers_max: the most workers of one key.
    """

    __slots__ = ("_crowded", "_pools", "_workers_max")

    def __init__(self, workers_max: int) -> None:
        super().__init__()
        self._workers_max = workers_max
        self._pools: dict[str, Pool] = {}
        self._crowded: dict[str, Pool] = {}  # the pools of several workers

    def get(self, key: str, default: Any = None) -> Any:
        """Return the worker for the next call of a key.

        Returns None if the call needs a new worker, because none is idle and the pool has room.
        """
        pool = self._pools.get(key)
        return default if pool is None else pool.choose()

    def add(self, kind: GrainKind, key: str, activation_id: int) -> WorkerActivation:
        """Create one more worker of a key."""
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(self._workers_max)
        worker = WorkerActivation(kind, key, activation_id)
        pool.add(worker)
        if len(pool.workers) == 1:
            self[key] = worker
        else:
            self._crowded[key] = pool
        return worker

    def remove(self, activation: Activation) -> None:
        """Remove a worker that has ended, or could not start."""
        key = activation.key
        pool = self._pools.get(key)
        if pool is None or not pool.remove(activation):
            return
        if len(pool.workers) < 2:
            self._crowded.pop(key, None)
        if pool.workers:
            self[key] = pool.workers[0]
        else:
            del self[key], self._pools[key]

    def all(self) -> list[Activation]:
        """Return every worker of every key."""
        return [worker for pool in self._pools.values() for worker in pool.workers]

    def list_crowded(self) -> list[Pool]:
        """Return the pools of several workers."""
        return list(self._crowded.values())


class Pool:
    """The workers of one key in one silo, in the order of their creation.

    Calls prefer the oldest idle worker. Workers that the load does not need therefore stay idle at
    the end of the list.

    Args:
        workers_max: the most workers.
    """

    __slots__ = ("_quiet", "_used", "_workers_max", "workers")

    def __init__(self, workers_max: int) -> None:
        self.workers: list[WorkerActivation] = []
        self._workers_max = workers_max
        self._used = 0  # workers that calls have used since the last look
        self._quiet = 0  # looks in a row that found a worker too many

    def add(self, worker: WorkerActivation) -> None:
        """Add a worker that starts."""
        assert len(self.workers) < self._workers_max, f"{worker}: too many workers"
        worker.pool = self
        self.workers.append(worker)
        self._used = len(self.workers)

    def remove(self, activation: Activation) -> bool:
        """Remove a worker. Returns False if the pool does not have it."""
        found = [worker for worker in self.workers if worker is not activation]
        is_found = len(found) < len(self.workers)
        self.workers = found
        return is_found

    def choose(self) -> WorkerActivation | None:
        """Return the worker for a call, or None if the pool should grow."""
        workers, at = self.workers, 0
        for worker in workers:
            at += 1
            if worker.is_free:
                if at > self._used:
                    self._used = at
                return worker
        if at < self._workers_max:
            return None
        self._used = at
        live = (worker for worker in workers if not worker.is_ending)
        return min(live, key=load_of, default=workers[0])

    def take_waiting(self) -> WaitingEntry | None:
        """Take a call from the worker with the most waiting entries that has one.

        Returns None if no call waits.
        """
        crowded = [worker for worker in self.workers if waiting_at(worker)]
        for worker in sorted(crowded, key=waiting_at, reverse=True):
            box = worker.mailbox
            entry = None if box is None else take_call(box)
            if entry is not None:
                worker.regate()
                return entry
        return None

    def find_surplus(self, may_end: Callable[[WorkerActivation], bool]) -> WorkerActivation | None:
        """Look at the pool. Returns an idle worker that is not needed and may end, or None.

        The pool needs as many workers as calls have used at one time since the last look. It has
        a worker too many after `QUIET_LOOKS` looks that find fewer. While a worker ends, no other
        one does.
        """
        used, self._used = max(self._used, 1), 0
        busy = sum(not worker.is_idle for worker in self.workers)
        self._quiet = self._quiet + 1 if max(used, busy) < len(self.workers) else 0
        if self._quiet < QUIET_LOOKS or any(worker.is_ending for worker in self.workers):
            return None
        return next((worker for worker in reversed(self.workers) if may_end(worker)), None)


class WorkerActivation(Activation):
    """An activation of a stateless worker.

    It keeps its mailbox for its whole life, so that every turn ends by `leave`.
    """

    __slots__ = ("pool",)
    pool: Pool

    def __init__(self, kind: GrainKind, key: str, activation_id: int) -> None:
        super().__init__(kind, key, activation_id)
        self.ensure_mailbox()

    def ensure_mailbox(self) -> Mailbox:
        """Return the mailbox."""
        box = super().ensure_mailbox()
        box.is_kept = self.state is not GONE
        return box

    @property
    def is_free(self) -> bool:
        """True if a turn may start and none runs, not even one that lets others start."""
        box = self.mailbox
        return not self.is_gated and (box is None or not box.interleaving)

    @property
    def is_ending(self) -> bool:
        """True once the end of the worker was requested."""
        box = self.mailbox
        is_stopped = box is not None and box.stop is not None
        return is_stopped or self.state.value > ActivationState.VALID.value

    def leave(self, request: Request) -> None:
        """End the turn of a request, and start a call that waits here or at another worker."""
        super().leave(request)
        if len(self.pool.workers) > 1:
            self._relieve()

    def go_on(self, state: ActivationState) -> None:
        """Enter a later state, and start the turns that may start in it."""
        super().go_on(state)
        self._relieve()

    def _relieve(self) -> None:
        """Start calls that wait at other workers, while this worker is free."""
        while self.is_free:
            entry = self.pool.take_waiting()
            if entry is None:
                return
            self.enter(entry.request)
            if not entry.grant():
                entry.is_withdrawn = True
                self._tell(self.refuse(entry.request))


def waiting_at(worker: WorkerActivation) -> int:
    """Return the number of calls and ticks that wait at a worker."""
    box = worker.mailbox
    return 0 if box is None else len(box.waiting) - box.withdrawn


def load_of(worker: WorkerActivation) -> tuple[int, int]:
    """Return the order of workers for a call that has to wait: waiting entries, then turns."""
    return waiting_at(worker), len(worker.turns())


def take_call(box: Mailbox) -> WaitingEntry | None:
    """Take the oldest waiting call out of a mailbox. Ticks of timers stay."""
    kept: list[WaitingEntry] = []
    found: WaitingEntry | None = None
    for entry in take_each(box):
        if isinstance(entry.request.spec, MethodSpec):
            found = entry
            break
        kept.append(entry)
    if kept:
        box.put_back(kept)
    if found is not None:
        box.release(found)
    return found


def take_each(box: Mailbox) -> Iterator[WaitingEntry]:
    """Take the waiting entries that are not withdrawn, one by one."""
    while box.waiting:
        entry = box.take_first()
        if not entry.is_withdrawn:
            yield entry
