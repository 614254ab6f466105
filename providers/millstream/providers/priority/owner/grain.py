"""The grain that owns a queue: one for each, its key is the queue's name.

Owns: `QueueOwner`: what of a queue can be called. Not: opening it (`hold`), waiting (`polls`), what
a command does (the core). Invariants: calls interleave, the queue orders them; who changed the
queue wakes whom that may help, also when the caller is gone; when the queue is lost, or deleted,
the activation ends, and the next one opens it anew.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import ClassVar, NamedTuple, cast

from millstream.providers.priority.core import errors as errors  # known where it is called
from millstream.providers.priority.core.body import checked_number
from millstream.providers.priority.core.commands import (
    Adopt,
    Answered,
    Command,
    Dequeue,
    Enqueue,
    EnqueueMany,
    Look,
    ReadSettings,
    Seen,
    Settle,
    Strays,
)
from millstream.providers.priority.core.errors import PriorityQueueNotFound, SettingsConflict
from millstream.providers.priority.core.requests.sessions import Request
from millstream.providers.priority.core.results import Lease, Moving, PollStatus
from millstream.providers.priority.core.settings import QueueSettings, SettingsRow
from millstream.providers.priority.core.shards import is_wish, named
from millstream.providers.priority.store.contract import ClockReading
from millstream.runtime import (
    DeactivationReason,
    Grain,
    NotInCluster,
    always_interleave,
    grain,
)
from millstream.runtime.extending import Role, isolated, open_to, services_of, stopping

from .hold import Hold, Keeper
from .options import WAIT_MS_MAX
from .polls import Polls
from .relative import dated, is_relative
from .spreading import Spreading

__all__ = ["Polled", "QueueOwner", "owner_of"]

PREFIX = "millstream.PriorityQueue."
CREATING = (Enqueue, EnqueueMany, Dequeue)
"""These create a queue that is not there, where that is allowed."""


class Polled(NamedTuple):
    """What a poll is answered with.

    `now_ms`: the queue's time, by which leases have their deadlines; `layout`: of its settings.
    """

    leases: tuple[Lease, ...]
    status: PollStatus
    now_ms: int
    layout: int = 0


class QueueOwner(Grain):
    """One queue; each part that has queues has a class of its own."""

    part: ClassVar[str]

    async def on_activate(self) -> None:
        """Make ready; the queue is opened when somebody needs it."""
        keeper: Keeper = services_of(self).part(self.part)
        self._hold = Hold(self.key, keeper, self._opened, self._used, self._lost)
        options = keeper.options
        self._polls = Polls(self.key, self._hold, options.waiting_polls_max)
        tasks, period_s = keeper.new_tasks(), options.settle_period_s
        self._spreading = Spreading(self.key, tasks, period_s, keeper.shard, self._settle)

    def _opened(self) -> None:
        if self._hold.settings.layout:
            self._polls.moved()  # who came before it was known
        if named(self.key)[1] == 0:
            self._spreading.begin(self._hold.settings)

    def _set(self, settings: QueueSettings) -> None:
        """The queue has these settings now."""
        is_moved = settings.layout != self._hold.settings.layout
        self._hold.settings = settings
        if is_moved:
            self._polls.moved()
            self._opened()

    async def _settle(self, layout: int) -> QueueSettings:
        row = await self._hold.do(Settle(layout), None, False)
        self._set(row.settings)
        return row.settings

    def _used(self) -> None:
        self._polls.tell()

    def _lost(self) -> None:
        self._polls.stop()
        self._spreading.stop()
        with suppress(NotInCluster):  # its end was forced meanwhile
            self.context.deactivate_when_idle()

    @stopping
    def _stopping(self) -> None:
        """The activation is about to end."""
        self._polls.stop()
        self._spreading.stop()

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Let the queue go."""
        await self._hold.close()

    # -- what can be asked

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def do(self, command: Command, request: Request | None) -> Answered:
        """Do a command; with a request id once. Raises what its operation raises, `OwnerLost`,
        StorageUnavailable, Overloaded, and `PriorityQueueNotFound` if it creates none."""
        creates = isinstance(command, CREATING)
        if is_relative(command):
            command = dated(command, (await self._hold.used(creates)).now_ms())
        answer = cast(Answered, await self._hold.do(command, request, creates))
        if isinstance(answer, SettingsRow):
            self._set(answer.settings)
            self._polls.changed()
        return answer

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def poll(self, command: Dequeue, request: Request, wait_ms: int) -> Polled:
        """Dequeue; if nothing can be had, wait for it: so long, or until this owner ends. Raises as
        `do`."""
        checked_number(self.key, "wait_ms", wait_ms, 0, WAIT_MS_MAX)
        command = command._replace(wanted=tuple(sorted(command.wanted)))
        found = await self._polls.poll(command, request, wait_ms / 1000)
        now_ms = self._hold.now_ms() if found.leases else 0
        return Polled(found.leases, found.status, now_ms, self._hold.settings.layout)

    @open_to(Role.CLIENT)
    @always_interleave
    async def leave(self, session: str) -> None:
        """Nobody waits for the answer of this session's poll: let it be answered."""
        self._polls.leave(session)

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def look(self, look: Look) -> Seen:
        """Look at the queue. Raises what the look raises, and as `do`."""
        seen: Seen = await self._hold.look(look)
        return seen

    @open_to(Role.CLIENT)
    @always_interleave
    @isolated
    async def create(self, settings: QueueSettings) -> SettingsRow:
        """Create the queue; one that has these settings already is left alone.

        Raises: `SettingsConflict`: it has others; and as `do`.
        """
        await self._hold.owned(settings)
        row = await self._hold.look(ReadSettings())
        if not is_wish(settings, row.settings):
            what = f"it exists with other settings, of version {row.version}"
            raise SettingsConflict(self.key, what)
        return row

    @always_interleave
    @isolated
    async def adopt(self, settings: QueueSettings, floor: int) -> Moving:
        """Be a shard of a queue with these settings, whose leases have higher numbers than `floor`;
        what is on its way to another shard. Raises as `do`."""
        await self._hold.owned(settings)
        row = await self._hold.do(Adopt(settings, floor), None, False)
        self._set(row.settings)
        return await self._hold.look(Strays()) if settings.shards_before else Moving(False, 0)

    @open_to(Role.OPERATOR)
    @always_interleave
    async def clock(self, is_reset: bool) -> ClockReading:
        """The queue's time beside its machine's; `is_reset`: set it to that first. Raises as
        `do`."""
        return await self._hold.clock(is_reset)

    @open_to(Role.CLIENT)
    @always_interleave
    async def delete(self) -> None:
        """Delete the queue with its messages. Who waits for messages is told. Raises as `do`."""
        await self._hold.delete()
        self._polls.deleted()  # before they hear that the owner ends

    @always_interleave
    async def wake(self) -> None:
        """Do what is due; asked where nobody may own the queue. One that is gone is left alone."""
        try:
            await self._hold.sweep()
        except PriorityQueueNotFound:
            return


@cache  # one class for each part's name, in every silo and client of the process
def owner_of(part: str) -> type[QueueOwner]:
    """The owners of a part's queues."""
    named = {"__module__": __name__, "__doc__": QueueOwner.__doc__, "part": part}
    return grain(name=f"{PREFIX}{part}")(type("QueueOwner", (QueueOwner,), named))
