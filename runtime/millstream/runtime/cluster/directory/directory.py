"""The grain directory: which silo has a grain, partitioned over the ring.

Owns: the driver of this silo's range (`range` decides, this sends and waits), and the client side
of registration and lookup. Source: Orleans' DistributedGrainDirectory, with one recovery rule for
joins, leaves and crashes alike: a silo that gains a range asks every live member for its registered
activations there (docs/decisions/0002-directory-recovery.md).
Invariants: a registration granted under a view older than one whose recovery this silo has answered
is made again before user code runs; no step over many activations holds the loop for more than
about a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from millstream.runtime.calls.system_target import SystemTarget, Targets
from millstream.runtime.cluster.ring import Segment, covers
from millstream.runtime.cluster.table import TableView
from millstream.runtime.errors import (
    CallTimeout,
    ClusterError,
    MillstreamError,
    Overloaded,
    SiloUnavailable,
)
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.activation import Activation
from millstream.runtime.turns.catalog import Catalog

from .events import (
    Action,
    Ask,
    EndDuplicate,
    Failed,
    GiveUp,
    Lookup,
    NotReached,
    QuestionReceived,
    RecoveredRow,
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
    Withdrawn,
)
from .partition import Entry
from .range import RETRY, DirectoryRange, point_of

__all__ = ["DirectoryTarget", "GrainDirectory", "LiveMembers"]

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("millstream.directory")

RETRIES_MAX = 60
END_TRIES_MAX = 5
SCANNED_MAX = 500  # activations looked at, and sent, before others have the loop


class LiveMembers(Protocol):
    """What the directory asks the membership."""

    def is_live(self, silo: str, /) -> bool: ...
    async def refresh_to(self, version: int, /) -> None: ...


class DirectoryTarget(SystemTarget):
    """What other silos ask of this silo's range, and of its activations."""

    target_name = "$directory"

    def __init__(self, directory: GrainDirectory) -> None:
        self._directory = directory

    async def register(
        self, kind: str, key: str, silo: str, activation_id: int, version: int
    ) -> Entry | None:
        """Compare-and-set; the stored entry, or one without a silo: not ours at its version."""
        question = Register(kind, key, silo, activation_id)
        return await self._directory.answer(question, version)

    async def lookup(self, kind: str, key: str, version: int) -> Entry | None:
        """The entry, None, or an entry without a silo: not ours at its version."""
        return await self._directory.answer(Lookup(kind, key), version)

    async def unregister(self, kind: str, key: str, silo: str, activation_id: int) -> None:
        """Remove an entry; no effect if it names another activation."""
        self._directory.step(Unregister(kind, key, silo, activation_id))

    async def survivors(self, asker: str, version: int, segments: list[Segment]) -> None:
        """Raise the barrier, and send the asker each registered activation in the segments."""
        await self._directory.tell_survivors(asker, version, segments)

    async def accept_recovered(self, silo: str, version: int, rows: list[RecoveredRow]) -> None:
        """Some of what a survivor has."""
        self._directory.step(Rows(silo, version, rows))

    async def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """Another activation won: end this one."""
        self._directory.end_duplicate(kind, key, activation_id)


class GrainDirectory:
    """Registration and lookup, here or at the owner."""

    def __init__(
        self,
        me: str,
        *,
        members: LiveMembers,
        holder: Catalog,
        targets: Targets,
        tasks: Tasks,
        cache_max: int,
    ) -> None:
        self._me = me
        self._members = members
        self._holder = holder
        self._targets = targets
        self._tasks = tasks
        self._range = DirectoryRange(me)
        self._answers: dict[int, asyncio.Future[Entry | None]] = {}
        self._last_ticket = 0
        self.locations = Locations(cache_max)
        targets.add(DirectoryTarget(self))

    # -- this silo's range

    @property
    def is_alone(self) -> bool:
        """Does this silo own everything, with nothing to recover?"""
        return self._range.is_alone

    @property
    def is_locked(self) -> bool:
        """Is a range being gained?"""
        return self._range.is_locked

    def apply_view(self, view: TableView) -> None:
        """Take a newer view: let go what is no longer ours, gain what is."""
        self.step(ViewApplied(view))
        self.locations.keep(self._members.is_live)

    def step(self, event: Any) -> None:
        """Let the range take an event, and do what it wants."""
        for action in self._range.step(event):
            self._do(action)

    def _do(self, action: Action) -> None:
        match action:
            case SendAnswer():
                waiter = self._answers.pop(action.ticket, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(action.entry)
            case Refresh():
                self._tasks.start(self._refresh(action.version))
            case Ask():
                if not self._tell_here(action):
                    self._tasks.start(self._ask_survivor(action))
            case Sweep():
                self._tasks.call_later(0, self._sweep_on)
            case EndDuplicate():
                log.warning("%s/%s was active twice; %s ends", *duplicate(action))
                self._tasks.start(self._end_loser(action))
            case GiveUp():
                log.error("%s answered with errors only: its grains are not known", action.silo)

    def _sweep_on(self) -> None:
        self.step(Swept())

    async def answer(self, question: Register | Lookup, version: int) -> Entry | None:
        """The range's answer, when it has one."""
        self._last_ticket += 1
        ticket = self._last_ticket
        waiter: asyncio.Future[Entry | None] = asyncio.get_running_loop().create_future()
        self._answers[ticket] = waiter
        self.step(QuestionReceived(ticket, question, version))
        try:
            return await waiter
        finally:
            if self._answers.pop(ticket, None) is not None:
                self.step(Withdrawn(ticket))

    async def _refresh(self, version: int) -> None:
        try:
            await self._members.refresh_to(version)
        except MillstreamError as error:
            log.warning("%s was asked about version %d: %s", self._me, version, error)
            self.step(NotReached(version))

    def _tell_here(self, ask: Ask) -> bool:
        """Tell at once what this silo itself has, if that is little: a lone silo never waits."""
        activations = self._holder.all() if ask.silo == self._me else []
        if ask.silo != self._me or len(activations) > SCANNED_MAX:
            return False
        self.step(SurvivorsAsked(ask.round))
        rows = [row_of(a) for a in activations if is_registered_in(a, ask.segments)]
        self.step(Rows(self._me, ask.round, rows))
        self.step(Told(self._me, ask.round))
        return True

    async def _ask_survivor(self, ask: Ask) -> None:
        """Have a survivor tell what it has; whatever goes wrong is an event, too."""
        await asyncio.sleep(ask.after_s)
        segments = list(ask.segments)
        try:
            await self._call(ask.silo, DirectoryTarget.survivors, self._me, ask.round, segments)
        except (ClusterError, CallTimeout, Overloaded) as error:
            log.info("%s did not answer for its grains yet: %s", ask.silo, error)
            self.step(Failed(ask.silo, ask.round, is_wrong=False))
        except Exception:
            log.exception("%s answered with an error when asked for its grains", ask.silo)
            self.step(Failed(ask.silo, ask.round, is_wrong=True))
        else:
            self.step(Told(ask.silo, ask.round))

    async def _end_loser(self, found: EndDuplicate) -> None:
        kind, key, loser = found.kind, found.key, found.loser
        for attempt in range(END_TRIES_MAX):
            try:
                await self._call(
                    loser.silo, DirectoryTarget.end_duplicate, kind, key, loser.activation_id
                )
                return
            except MillstreamError as error:
                log.info("%s was not told to end %s/%s: %s", loser.silo, kind, key, error)
            if not self._members.is_live(loser.silo):
                return
            await pause(attempt)

    # -- this silo's activations

    async def tell_survivors(self, asker: str, version: int, segments: Sequence[Segment]) -> None:
        """Send the asker what is registered here in the segments, in slices."""
        self.step(SurvivorsAsked(version))
        activations = self._holder.all()
        for first in range(0, len(activations), SCANNED_MAX):
            some = activations[first : first + SCANNED_MAX]
            rows = [row_of(a) for a in some if is_registered_in(a, segments)]
            if rows:
                await self._call(asker, DirectoryTarget.accept_recovered, self._me, version, rows)
            await asyncio.sleep(0)

    def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """End an activation that lost a recovery."""
        self._holder.end_duplicate(kind, key, activation_id)

    # -- for this silo's catalog and router

    def register_now(self, activation: Activation) -> bool:
        """Register without waiting, if this silo is alone; True if that worked."""
        own = self._range
        if not own.is_alone:
            return False
        activation.version = own.register_here(activation.kind.name, activation.key, activation.id)
        return True

    async def register(self, activation: Activation) -> str | None:
        """Register before user code runs; the winner's silo if that is another activation.

        Raises SiloUnavailable.
        """
        kind, key = activation.kind.name, activation.key

        async def ask(owner: str, version: int) -> Entry | None:
            return await self._call(
                owner, DirectoryTarget.register, kind, key, self._me, activation.id, version
            )

        for attempt in range(RETRIES_MAX):
            entry = await self._settle(kind, key, ask)
            assert entry is not None
            if (entry.silo, entry.activation_id) != (self._me, activation.id):
                return entry.silo
            if self._range.is_current(entry.version):
                activation.version = entry.version
                return None
            await self._catch_up(self._range.barrier, attempt)  # a later owner does not know it
        text = f"{activation}: the directory did not register it"
        raise SiloUnavailable(text, may_have_run=False)

    async def lookup(self, kind: str, key: str) -> str | None:
        """The silo that has a grain, or None. Raises SiloUnavailable."""

        async def ask(owner: str, version: int) -> Entry | None:
            return await self._call(owner, DirectoryTarget.lookup, kind, key, version)

        entry = await self._settle(kind, key, ask)
        return None if entry is None else entry.silo

    async def _settle(
        self, kind: str, key: str, ask: Callable[[str, int], Awaitable[Entry | None]]
    ) -> Entry | None:
        """The answer of a grain's owner, asked until it and this silo agree who that is."""
        for attempt in range(RETRIES_MAX):
            owner = self._range.owner_of(kind, key)
            if owner is None:
                raise SiloUnavailable("no silo is active", may_have_run=False)
            try:
                entry = await ask(owner, self._range.version)
            except ClusterError:
                await pause(attempt)
                continue
            if entry is None or entry.silo:
                return entry
            await self._catch_up(entry.version, attempt)
        text = f"{kind}/{key}: the directory did not answer"
        raise SiloUnavailable(text, may_have_run=False)

    async def _catch_up(self, version: int, attempt: int) -> None:
        """Have a view of at least that version, if the table can be read; not too often."""
        try:
            await self._members.refresh_to(version)
        except MillstreamError as error:
            log.info("%s stays behind version %d: %s", self._me, version, error)
        await pause(attempt)

    async def unregister(self, activation: Activation) -> None:
        """Remove the entry of an ending activation; best effort (a stale entry is corrected)."""
        kind, key = activation.kind.name, activation.key
        owner = self._range.owner_of(kind, key)
        version, activation.version = activation.version, 0  # survivors tell of it no more
        if not version or owner is None:
            return
        if owner == self._me:
            self.step(Unregister(kind, key, self._me, activation.id))
            return
        try:
            await self._call(owner, DirectoryTarget.unregister, kind, key, self._me, activation.id)
        except MillstreamError as error:
            log.debug("%s stays in the directory until it is met: %s", activation, error)

    def _call(
        self,
        silo: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]:
        return self._targets.call(silo, DirectoryTarget.target_name, method, *args, **kwargs)

    def close(self) -> None:
        """Recover no more; whoever waits is told."""
        self._tasks.cancel()
        waiters, self._answers = self._answers, {}
        for waiter in waiters.values():
            if not waiter.done():
                waiter.set_exception(SiloUnavailable(f"{self._me} stopped", may_have_run=False))
                waiter.exception()


async def pause(attempt: int) -> None:
    """Wait before another try, the longer the more were made."""
    await asyncio.sleep(RETRY.whole_s(attempt + 1))


def is_registered_in(activation: Activation, segments: Sequence[Segment]) -> bool:
    """Does the activation hold a registration in the segments?"""
    point = point_of(activation.kind.name, activation.key)
    return activation.version > 0 and not activation.is_gone and covers(segments, point)


def row_of(activation: Activation) -> RecoveredRow:
    """What a survivor tells of an activation."""
    return (activation.kind.name, activation.key, activation.id, activation.version)


def duplicate(found: EndDuplicate) -> tuple[str, str, str]:
    """What the log says of it."""
    return found.kind, found.key, found.loser.silo


class Locations:
    """Silos by grain, as they were learnt; none of them is certain. They spare questions.

    Invariant: at most `size_max` grains; the oldest learnt leaves first.
    """

    __slots__ = ("_silos", "_size_max")

    def __init__(self, size_max: int) -> None:
        self._silos: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._size_max = size_max

    def get(self, kind: str, key: str) -> str | None:
        """Where a grain was last seen, or None."""
        return self._silos.get((kind, key))

    def learn(self, kind: str, key: str, silo: str) -> None:
        """Note where a grain is."""
        self._silos[kind, key] = silo
        if len(self._silos) > self._size_max:
            self._silos.popitem(last=False)

    def forget(self, kind: str, key: str) -> None:
        """The grain is not where it was."""
        self._silos.pop((kind, key), None)

    def keep(self, is_live: Callable[[str], bool]) -> None:
        """Forget what is not on a live silo."""
        gone = {silo for silo in set(self._silos.values()) if not is_live(silo)}
        if gone:
            for grain in [grain for grain, silo in self._silos.items() if silo in gone]:
                del self._silos[grain]
