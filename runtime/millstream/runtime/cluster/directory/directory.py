"""The grain directory: which silo has a grain, partitioned over the ring.

This module drives this silo's range: `range` decides, and this module sends and waits. It also
registers and looks up grains for this silo. The rows of clients with observers are in the same
ranges (`partition.CLIENT_KIND`).

The design follows the DistributedGrainDirectory of Orleans, with one recovery rule for joins,
leaves and crashes. A silo that gains a range asks every live member for its registered activations
there (docs/decisions/0002-directory-recovery.md).

Invariants:

- A registration may be older than a recovery that this silo has answered. Such a registration is
  made again before user code runs.
- No step over many activations blocks the event loop for more than about a millisecond.
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
from .partition import CLIENT_KIND, Entry
from .range import RETRY, DirectoryRange, point_of

__all__ = ["DirectoryTarget", "GrainDirectory", "LiveMembers"]

P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("millstream.directory")

RETRIES_MAX = 60
END_TRIES_MAX = 5
SCANNED_MAX = 500  # activations that are checked and sent before the loop runs other callbacks


class LiveMembers(Protocol):
    """The membership, as the directory sees it."""

    def is_live(self, silo: str, /) -> bool: ...
    async def refresh_to(self, version: int, /) -> None: ...


class Kind(Protocol):
    """The type of something that is registered."""

    @property
    def name(self) -> str: ...


class Registered(Protocol):
    """Something that is at one silo at a time: an activation, or a client at its gateway.

    `version` is the membership version of its registration; 0 if it has none.
    """

    version: int

    @property
    def kind(self) -> Kind: ...
    @property
    def key(self) -> str: ...
    @property
    def id(self) -> int: ...
    @property
    def is_gone(self) -> bool: ...


class Holder(Protocol):
    """The owner of registered things of this silo: the catalog, or the attached clients."""

    def all(self) -> Sequence[Registered]: ...
    def end_duplicate(self, kind: str, key: str, activation_id: int, /) -> None: ...


class DirectoryTarget(SystemTarget):
    """The `$directory` target: the calls of other silos to this silo's range and activations."""

    target_name = "$directory"

    def __init__(self, directory: GrainDirectory) -> None:
        self._directory = directory

    async def register(
        self, kind: str, key: str, silo: str, activation_id: int, version: int
    ) -> Entry | None:
        """Register by compare-and-set, and return the stored entry.

        An entry without a silo means that this silo does not own the grain at its version.
        """
        question = Register(kind, key, silo, activation_id)
        return await self._directory.answer(question, version)

    async def register_moved(
        self,
        kind: str,
        key: str,
        silo: str,
        activation_id: int,
        former_silo: str,
        former_id: int,
        version: int,
    ) -> Entry | None:
        """Replace the entry of a former activation, and return the stored entry, or None.

        An entry without a silo means that this silo does not own the grain at its version.
        """
        question = Register(kind, key, silo, activation_id, former_silo, former_id)
        return await self._directory.answer(question, version)

    async def lookup(self, kind: str, key: str, version: int) -> Entry | None:
        """Return the entry of a grain, or None.

        An entry without a silo means that this silo does not own the grain at its version.
        """
        return await self._directory.answer(Lookup(kind, key), version)

    async def unregister(self, kind: str, key: str, silo: str, activation_id: int) -> None:
        """Remove an entry. No effect if it names another activation."""
        self._directory.step(Unregister(kind, key, silo, activation_id))

    async def survivors(self, asker: str, version: int, segments: list[Segment]) -> None:
        """Raise the barrier, and send each registered activation in the segments to `asker`."""
        await self._directory.tell_survivors(asker, version, segments)

    async def accept_recovered(self, silo: str, version: int, rows: list[RecoveredRow]) -> None:
        """Receive some of a survivor's registered activations."""
        self._directory.step(Rows(silo, version, rows))

    async def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """End this activation, because another one won the conflict."""
        self._directory.end_duplicate(kind, key, activation_id)


class GrainDirectory:
    """Registration and lookup of grains, at the silo that owns their range."""

    def __init__(
        self,
        me: str,
        *,
        members: LiveMembers,
        holder: Holder,
        targets: Targets,
        tasks: Tasks,
        cache_max: int,
    ) -> None:
        self._me = me
        self._members = members
        self._holders = [holder]
        self._targets = targets
        self._tasks = tasks
        self.range = DirectoryRange(me)
        self._answers: dict[int, asyncio.Future[Entry | None]] = {}
        self._last_ticket = 0
        self.locations = Locations(cache_max)
        targets.add(DirectoryTarget(self))

    def add_holder(self, holder: Holder) -> None:
        """Report the registrations of one more owner in recoveries."""
        self._holders.append(holder)

    def _all_here(self) -> list[Registered]:
        return [one for holder in self._holders for one in holder.all()]

    # -- this silo's range

    @property
    def is_alone(self) -> bool:
        """True if this silo owns the whole ring, with nothing to recover."""
        return self.range.is_alone

    @property
    def is_locked(self) -> bool:
        """True while this silo is gaining a range."""
        return self.range.is_locked

    def apply_view(self, view: TableView) -> None:
        """Apply a newer view: drop lost ranges, and recover gained ones."""
        self.step(ViewApplied(view))
        self.locations.keep(self._members.is_live)

    def step(self, event: Any) -> None:
        """Pass an event to the range, and carry out the resulting actions."""
        for action in self.range.step(event):
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
                if action.kind != CLIENT_KIND:  # a client that attaches elsewhere is no conflict
                    text = "%s/%s was active twice; the activation in %s ends"
                    log.warning(text, *duplicate(action))
                self._tasks.start(self._end_loser(action))
            case GiveUp():
                log.error("%s did not report its grains: it answered with errors only", action.silo)

    def _sweep_on(self) -> None:
        self.step(Swept())

    async def answer(self, question: Register | Lookup, version: int) -> Entry | None:
        """Return the range's answer to a question, once there is one."""
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
            text = "%s cannot reach version %d of the membership table: %s"
            log.warning(text, self._me, version, error)
            self.step(NotReached(version))

    def _tell_here(self, ask: Ask) -> bool:
        """Answer at once for this silo's own activations, if there are not too many.

        A silo that is alone therefore never waits.
        """
        activations = self._all_here() if ask.silo == self._me else []
        if ask.silo != self._me or len(activations) > SCANNED_MAX:
            return False
        self.step(SurvivorsAsked(ask.round))
        rows = [row_of(a) for a in activations if is_registered_in(a, ask.segments)]
        self.step(Rows(self._me, ask.round, rows))
        self.step(Told(self._me, ask.round))
        return True

    async def _ask_survivor(self, ask: Ask) -> None:
        """Ask a survivor for its activations. A failure becomes an event, too."""
        await asyncio.sleep(ask.after_s)
        segments = list(ask.segments)
        try:
            await self._call(ask.silo, DirectoryTarget.survivors, self._me, ask.round, segments)
        except (ClusterError, CallTimeout, Overloaded) as error:
            log.info("%s has not reported its grains yet: %s", ask.silo, error)
            self.step(Failed(ask.silo, ask.round, is_wrong=False))
        except Exception:
            log.exception("%s answered the request for its grains with an error", ask.silo)
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
                log.info("could not tell %s to end %s/%s: %s", loser.silo, kind, key, error)
            if not self._members.is_live(loser.silo):
                return
            await pause(attempt)

    # -- this silo's activations

    async def tell_survivors(self, asker: str, version: int, segments: Sequence[Segment]) -> None:
        """Send the registered activations in the segments to the asking silo, in slices."""
        self.step(SurvivorsAsked(version))
        activations = self._all_here()
        for first in range(0, len(activations), SCANNED_MAX):
            some = activations[first : first + SCANNED_MAX]
            rows = [row_of(a) for a in some if is_registered_in(a, segments)]
            if rows:
                await self._call(asker, DirectoryTarget.accept_recovered, self._me, version, rows)
            await asyncio.sleep(0)

    def end_duplicate(self, kind: str, key: str, activation_id: int) -> None:
        """End an activation that lost a conflict during recovery."""
        for holder in self._holders:
            holder.end_duplicate(kind, key, activation_id)

    # -- for this silo's catalog and router

    def register_now(self, activation: Registered) -> bool:
        """Register without waiting if this silo is alone. Returns True on success."""
        own = self.range
        if not own.is_alone:
            return False
        activation.version = own.register_here(activation.kind.name, activation.key, activation.id)
        return True

    async def register(
        self, activation: Registered, former: tuple[str, int] | None = None
    ) -> str | None:
        """Register an activation before user code runs.

        Args:
            former: silo and id of the activation that this one continues. Its entry is replaced.

        Returns None, or the silo that has the grain, or "" if the former entry is gone. Raises
        SiloUnavailable.
        """
        kind, key = activation.kind.name, activation.key

        async def ask(owner: str, version: int) -> Entry | None:
            if former is None:
                method = DirectoryTarget.register
                return await self._call(owner, method, kind, key, self._me, activation.id, version)
            moved = DirectoryTarget.register_moved
            own, old = (self._me, activation.id), former
            return await self._call(owner, moved, kind, key, *own, *old, version)

        for attempt in range(RETRIES_MAX):
            entry = await self._settle(kind, key, ask)
            if entry is None:
                return ""
            if (entry.silo, entry.activation_id) != (self._me, activation.id):
                return entry.silo
            if self.range.is_current(entry.version):
                activation.version = entry.version
                return None
            # a later owner does not know this registration
            await self._catch_up(self.range.barrier, attempt)
        text = f"the directory did not register {activation}"
        raise SiloUnavailable(text, may_have_run=False)

    async def lookup(self, kind: str, key: str) -> str | None:
        """Return the silo that has a grain, or None. Raises SiloUnavailable."""
        entry = await self.find_entry(kind, key)
        return None if entry is None else entry.silo

    async def find_entry(self, kind: str, key: str) -> Entry | None:
        """Return the entry of a grain or client, or None. Raises SiloUnavailable."""

        async def ask(owner: str, version: int) -> Entry | None:
            return await self._call(owner, DirectoryTarget.lookup, kind, key, version)

        return await self._settle(kind, key, ask)

    async def _settle(
        self, kind: str, key: str, ask: Callable[[str, int], Awaitable[Entry | None]]
    ) -> Entry | None:
        """Ask the grain's owner, and retry until the owner and this silo agree on the ownership."""
        for attempt in range(RETRIES_MAX):
            owner = self.range.owner_of(kind, key)
            if owner is None:
                raise SiloUnavailable("no silo is active", may_have_run=False)
            try:
                entry = await ask(owner, self.range.version)
            except ClusterError:
                await pause(attempt)
                continue
            if entry is None or entry.silo:
                return entry
            await self._catch_up(entry.version, attempt)
        text = f"{kind}/{key}: the directory did not answer"
        raise SiloUnavailable(text, may_have_run=False)

    async def _catch_up(self, version: int, attempt: int) -> None:
        """Try to get a view of at least this version, then pause."""
        try:
            await self._members.refresh_to(version)
        except MillstreamError as error:
            text = "%s has not reached version %d of the membership table: %s"
            log.info(text, self._me, version, error)
        await pause(attempt)

    async def unregister(self, activation: Registered) -> None:
        """Remove the entry of an ending activation.

        This is best effort: a stale entry is corrected later.
        """
        kind, key = activation.kind.name, activation.key
        owner = self.range.owner_of(kind, key)
        version, activation.version = activation.version, 0  # it is not reported in recoveries
        if not version or owner is None:
            return
        if owner == self._me:
            self.step(Unregister(kind, key, self._me, activation.id))
            return
        try:
            await self._call(owner, DirectoryTarget.unregister, kind, key, self._me, activation.id)
        except MillstreamError as error:
            log.debug("%s stays in the directory until a call finds it: %s", activation, error)

    def _call(
        self,
        silo: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]:
        return self._targets.call(silo, DirectoryTarget.target_name, method, *args, **kwargs)

    def close(self) -> None:
        """Stop recovering, and fail the calls that wait."""
        self._tasks.cancel()
        waiters, self._answers = self._answers, {}
        for waiter in waiters.values():
            if not waiter.done():
                waiter.set_exception(SiloUnavailable(f"{self._me} stopped", may_have_run=False))
                waiter.exception()


async def pause(attempt: int) -> None:
    """Wait before another try. The time grows with the number of tries."""
    await asyncio.sleep(RETRY.whole_s(attempt + 1))


def is_registered_in(activation: Registered, segments: Sequence[Segment]) -> bool:
    """Return True if the activation has a registration in the segments."""
    point = point_of(activation.kind.name, activation.key)
    return activation.version > 0 and not activation.is_gone and covers(segments, point)


def row_of(activation: Registered) -> RecoveredRow:
    """Return the data that a survivor reports about an activation."""
    return (activation.kind.name, activation.key, activation.id, activation.version)


def duplicate(found: EndDuplicate) -> tuple[str, str, str]:
    """Return the values for the log line about a duplicate."""
    return found.kind, found.key, found.loser.silo


class Locations:
    """A cache of the silos of grains. No entry is certain.

    The cache has at most `size_max` grains, and drops the oldest first.
    """

    __slots__ = ("_silos", "_size_max")

    def __init__(self, size_max: int) -> None:
        self._silos: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._size_max = size_max

    def __len__(self) -> int:
        return len(self._silos)

    def get(self, kind: str, key: str) -> str | None:
        """Return the last known silo of a grain, or None."""
        return self._silos.get((kind, key))

    def learn(self, kind: str, key: str, silo: str) -> None:
        """Remember the silo of a grain."""
        self._silos[kind, key] = silo
        if len(self._silos) > self._size_max:
            self._silos.popitem(last=False)

    def forget(self, kind: str, key: str) -> None:
        """Forget the location of a grain."""
        self._silos.pop((kind, key), None)

    def keep(self, is_live: Callable[[str], bool]) -> None:
        """Forget the locations on silos that are not live."""
        gone = {silo for silo in set(self._silos.values()) if not is_live(silo)}
        if gone:
            for grain in [grain for grain, silo in self._silos.items() if silo in gone]:
                del self._silos[grain]
