"""The observers of one grain, and notifications to all of them.

This module owns `ObserverSet`, modelled on the `ObserverManager` of Orleans. The set belongs to an
activation: it is not stored, and ends with the activation.

Invariants:

- The calls to one observer keep their order, and at most one of them runs.
- No observer waits for another one.
- At most `waiting_max` notifications wait for one observer. The oldest one makes room.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar

from millstream.runtime.definition.grain import Contract, Grain, Home
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import ClientUnavailable, ObserverGone, Overloaded
from millstream.runtime.options import check_fields
from millstream.runtime.public_names import public_name
from millstream.runtime.repeated import Repeated
from millstream.runtime.text import show_text
from millstream.runtime.turns.request import current_request

__all__ = ["ObserverSet"]

log = logging.getLogger("millstream.observers")

OB = TypeVar("OB", bound=Contract)
P = ParamSpec("P")
BEGUN_AT_ONCE = 25
"""Calls that begin in one iteration of the event loop. One takes about 0.1 ms."""
LOGGED_EVERY_S = 10.0
"""The least time between two log lines about failed notifications of one kind, in seconds."""


class Notice(NamedTuple):
    """One notification: the name of the method, and its arguments."""

    method: str
    args: tuple[object, ...]
    kwargs: dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLimits:
    """The limits of an `ObserverSet`, checked."""

    expires_s: float
    deadline_s: float
    waiting_max: int
    observers_max: int

    def __post_init__(self) -> None:
        check_fields(self, lambda field: f"ObserverSet({field}=...)")


class Line(Generic[OB]):
    """One observer, and the notifications that wait for it."""

    __slots__ = ("is_busy", "notices", "observer", "seen_s")

    def __init__(self, observer: OB, waiting_max: int) -> None:
        self.observer = observer
        self.seen_s = 0.0
        self.notices: deque[Notice] = deque(maxlen=waiting_max)
        self.is_busy = False


class ObserverSet(Generic[OB]):
    """The observers of one grain, and notifications to all of them.

    ```python
    class Match(Grain):
        def __init__(self) -> None:
            self.viewers = ObserverSet(self, Viewer, expires_s=600)

        async def watch(self, viewer: Viewer) -> None:
            self.viewers.add(viewer)

        async def score(self, scorer: str) -> None:
            self.viewers.notify(Viewer.goal, scorer)
    ```

    `notify` returns at once. The calls run in the background, in tasks of the activation. Each
    observer gets its calls one after the other, and a slow observer delays no other one. An
    observer leaves the set when it is removed, when a call to it ends with ClientUnavailable or
    ObserverGone, or when it was not added again within `expires_s`. A program that observes for
    longer adds itself again in time, for example after each third of it.

    The set is not stored, and ends with the activation. It adds about 1 KB for each observer.

    Args:
        grain: The grain that has the set, `self`.
        observed: The class of its observers: a class derived from `Observer`, or a contract that
            grains implement.
        expires_s: An observer that was not added again for this long leaves the set, in seconds.
        deadline_s: The deadline of each call to an observer, in seconds.
        waiting_max: Notifications that wait for one observer. Above, the oldest one is dropped, and
            counted in `dropped`.
        observers_max: Observers in the set. Above, `add` raises Overloaded.

    Attributes:
        dropped: Notifications that were dropped because their observer was too slow.

    Raises:
        TypeError: `grain` is no grain, or `observed` is no class of observers.
        ConfigError: A number is not positive and finite.
    """

    def __init__(
        self,
        grain: Grain,
        observed: type[OB],
        /,
        *,
        expires_s: float,
        deadline_s: float = 5.0,
        waiting_max: int = 100,
        observers_max: int = 100_000,
    ) -> None:
        if not isinstance(grain, Grain):
            raise TypeError(f"ObserverSet({show_text(repr(grain))}, ...): pass `self` of the grain")
        if not (isinstance(observed, type) and issubclass(observed, Contract)):
            what = show_text(repr(observed))
            raise TypeError(f"ObserverSet(self, {what}): pass a class derived from Observer")
        self._home: Home = grain._millstream
        self._type: GrainType = observed.__millstream_type__
        self._limits = SetLimits(
            expires_s=expires_s,
            deadline_s=deadline_s,
            waiting_max=waiting_max,
            observers_max=observers_max,
        )
        self._lines: dict[OB, Line[OB]] = {}
        self._ready: deque[Line[OB]] = deque()  # lines whose first call has to begin
        self._is_starting = False
        self._failures: Repeated | None = None
        self.dropped = 0

    # -- membership

    def add(self, observer: OB, /) -> None:
        """Add an observer, or renew it.

        Args:
            observer: The reference of the observer, as the grain got it.

        Raises:
            Overloaded: The set is full.
        """
        line = self._lines.get(observer)
        if line is None:
            self._check_room()
            line = self._lines[observer] = Line(observer, self._limits.waiting_max)
        line.seen_s = asyncio.get_running_loop().time()

    def _check_room(self) -> None:
        limit = self._limits.observers_max
        if len(self._lines) >= limit:
            self._drop_expired()
        if len(self._lines) >= limit:
            what = f"{show_text(self._home.grain_id)}: the set of observers is full"
            raise Overloaded(what, "observers_max", limit)

    def remove(self, observer: OB, /) -> None:
        """Remove an observer, and drop the notifications that wait for it.

        Nothing happens if it is not in the set. A call that runs is not cancelled.

        Args:
            observer: The reference of the observer.
        """
        line = self._lines.pop(observer, None)
        if line is not None:
            line.notices.clear()

    def clear(self) -> None:
        """Remove every observer."""
        for observer in list(self._lines):
            self.remove(observer)

    def __len__(self) -> int:
        """Return the number of observers that have not expired."""
        self._drop_expired()
        return len(self._lines)

    def __contains__(self, observer: object) -> bool:
        """Return whether an observer is in the set and has not expired."""
        self._drop_expired()
        return observer in self._lines

    def __iter__(self) -> Iterator[OB]:
        """Iterate over the observers that have not expired, in the order of their addition."""
        self._drop_expired()
        return iter(list(self._lines))

    def _drop_expired(self) -> None:
        """Remove the observers that were not added again in time."""
        if not self._lines:
            return
        latest_s = asyncio.get_running_loop().time() - self._limits.expires_s
        for observer in [one.observer for one in self._lines.values() if one.seen_s <= latest_s]:
            self.remove(observer)

    # -- notifying

    def notify(
        self,
        method: Callable[Concatenate[OB, P], Coroutine[Any, Any, object]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of every observer, in the background.

        The arguments are copied now, so the grain may change them afterwards. Results are dropped.
        An error of an observer is logged, and the observer stays in the set, except after
        ClientUnavailable and ObserverGone.

        Args:
            method: The method, as the function in the class of observers, such as `Viewer.goal`.
            args: Its arguments.
            kwargs: Its arguments by name.

        Raises:
            TypeError: The class of observers has no such method, or the arguments do not fit.
            NotInCluster: The activation has ended.
        """
        self._notify(None, method, args, kwargs)

    def notify_where(
        self,
        is_wanted: Callable[[OB], bool],
        method: Callable[Concatenate[OB, P], Coroutine[Any, Any, object]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Call a method of the observers for which a predicate is True (see `notify`).

        Args:
            is_wanted: Gets each observer, at once.
            method: The method.
            args: Its arguments.
            kwargs: Its arguments by name.

        Raises:
            TypeError: The class of observers has no such method, or the arguments do not fit.
            NotInCluster: The activation has ended.
        """
        self._notify(is_wanted, method, args, kwargs)

    def _notify(
        self,
        is_wanted: Callable[[OB], bool] | None,
        method: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        notice = self._make_notice(method, args, kwargs)
        self._drop_expired()
        lines = list(self._lines.values())
        if is_wanted is not None:
            lines = [line for line in lines if is_wanted(line.observer)]
        waiting_max = self._limits.waiting_max
        for line in lines:
            self.dropped += len(line.notices) == waiting_max
            line.notices.append(notice)
            if not line.is_busy:
                line.is_busy = True
                self._ready.append(line)
        if self._ready and not self._is_starting:
            self._home.start_task(self._start_lines())
            self._is_starting = True

    def _make_notice(
        self, method: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Notice:
        """Check the call, and copy its arguments. Raises TypeError."""
        spec = self._spec_of(method)
        bound = spec.signature.bind(None, *args, **kwargs)
        bound.apply_defaults()
        values = tuple(bound.arguments[one.name] for one in spec.parameters)
        copies = spec.isolate(values, self._home.runtime)
        count = sum(one.kind is not one.KEYWORD_ONLY for one in spec.parameters)
        names = [one.name for one in spec.parameters[count:]]
        return Notice(spec.name, copies[:count], dict(zip(names, copies[count:], strict=True)))

    def _spec_of(self, method: Callable[..., Any]) -> MethodSpec:
        spec = self._type.specs.get(getattr(method, "__name__", ""))
        if spec is None:
            name, names = public_name(self._type.cls), ", ".join(self._type.specs) or "nothing"
            raise TypeError(
                f"notify({show_text(repr(method))}): pass a method of {name}, such as "
                f"`{self._type.cls.__name__}.{next(iter(self._type.specs), 'method')}`; it has: "
                f"{names}"
            )
        return spec

    async def _start_lines(self) -> None:
        """Begin the calls of idle observers, a few in each iteration of the event loop."""
        current_request.set(None)  # the calls belong to no turn, and have deadlines of their own
        try:
            while self._ready:
                for _ in range(min(BEGUN_AT_ONCE, len(self._ready))):
                    self._home.start_task(self._serve(self._ready.popleft()))
                await asyncio.sleep(0)
        finally:
            self._is_starting = False

    async def _serve(self, line: Line[OB]) -> None:
        """Call one observer until no notification waits for it."""
        try:
            while line.notices:
                notice = line.notices.popleft()
                try:
                    async with asyncio.timeout(self._limits.deadline_s):
                        await getattr(line.observer, notice.method)(*notice.args, **notice.kwargs)
                except (ClientUnavailable, ObserverGone) as error:
                    log.debug("%s: %s", self._home.grain_id, error)
                    self._drop(line)
                except Exception as error:
                    self._note_failure(line, error)
        finally:
            line.is_busy = False

    def _drop(self, line: Line[OB]) -> None:
        """Remove an observer that is gone, unless it was added again meanwhile by another line."""
        line.notices.clear()
        if self._lines.get(line.observer) is line:
            del self._lines[line.observer]

    def _note_failure(self, line: Line[OB], error: Exception) -> None:
        if self._failures is None:
            self._failures = Repeated(log, asyncio.get_running_loop().time, LOGGED_EVERY_S)
        name, kind = show_text(self._home.grain_id), type(error).__name__
        text = f"{name}: an observer was not notified: {show_text(str(line.observer))}"
        self._failures.note(f"{text}: {kind}: {show_text(str(error))}", kind)
