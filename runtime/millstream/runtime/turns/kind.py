"""A grain type as one process sees it: the data that the paths of a call need, computed once.

`GrainKind` owns this data. `catalog` owns the activations, and `definition` the definition itself.
A kind never changes, except for `owner`, which is set before the first activation exists. Code that
has a call or an activation may therefore read it at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, Protocol

from millstream.runtime.definition.filters import CallFilter, GrainCall
from millstream.runtime.definition.grain import DeactivationReason, Grain, Runtime
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.markers import Flag, GrainOptions, Mark, Timeout
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.names import OBSERVER_SIGN
from millstream.runtime.definition.placement import Placement, StatelessWorker
from millstream.runtime.definition.reminders import ReminderMark, Reminders
from millstream.runtime.definition.timers import Timer, TimerMark, TimerSchedule
from millstream.runtime.definition.versions import VERSION_MAX
from millstream.runtime.env import processors
from millstream.runtime.errors import NotHosted, Rejected
from millstream.runtime.public_names import OWN
from millstream.runtime.role import Role

from .flows import headers_of
from .mailbox import WaitingBytes
from .request import Request, caller_of

__all__ = ["GrainKind", "Owner", "may_interleave", "view_of"]


class Owner(Protocol):
    """The catalog, as the activations that it created see it."""

    new_id: Callable[[], int]
    """Returns a number that cannot be guessed."""

    def end(self, activation: Any, reason: DeactivationReason, /) -> None:
        """Begin to end an activation in which no turn runs."""

    def deactivate(self, activation: Any, reason: DeactivationReason, /) -> None:
        """End an activation once its running turns have ended."""

    def move(self, activation: Any, to: str | None, /) -> None:
        """End an activation as `deactivate` does, and continue in another silo."""

    def outgrow(self, activation: Any, version: int, /) -> bool:
        """End an activation, because a call wants a later version of its type. Returns False if no
        silo hosts that version now."""
        ...

    def check_running(self) -> None:
        """Raise NotInCluster if the silo has ended."""

    def extension_of(self, activation: Any, name: str, /) -> Any:
        """Return the extension with this name, created on first use, or None if there is none."""

    def start_timer(self, activation: Any, method: Any, schedule: TimerSchedule, /) -> Timer:
        """Start a timer of the activation."""
        ...

    def open_reminders(self, activation: Any, /) -> Reminders:
        """Return the reminders of the grain."""
        ...


class GrainKind:
    """A grain type that this process hosts, or only calls.

    Args:
        name: the type's name on the wire.
        hosted: the class as it was defined, or None for a type that is only called.
        runtime: creates the references in values that arrive.
        silo: the address of this process.
        waiting_calls_max: the most requests that may wait for one activation.
        waiting_bytes: counts the bytes of the waiting requests of the whole process.
        open_to: the role that may call methods without the mark `@open_to`.
        incoming: the filters that run around calls of the type, before those of its class.
    """

    __slots__ = (
        "arms_reminders",
        "has_activate_hook",
        "has_deactivate_hook",
        "hosted",
        "incoming",
        "is_direct",
        "is_observer",
        "is_reentrant",
        "is_simple",
        "is_system",
        "may_be_anywhere",
        "may_interleave",
        "name",
        "open_to",
        "outgoing",
        "owner",
        "runtime",
        "silo",
        "stopping_hook",
        "timers",
        "version",
        "waiting_bytes",
        "waiting_calls_max",
        "workers_max",
        "writes_each_turn",
    )

    def __init__(
        self,
        name: str,
        hosted: GrainType | None,
        runtime: Runtime,
        silo: str,
        waiting_calls_max: int,
        waiting_bytes: WaitingBytes,
        open_to: Role = Role.CLIENT,
        incoming: Sequence[CallFilter] = (),
    ) -> None:
        self.name = name
        self.is_observer = name.startswith(OBSERVER_SIGN)
        self.open_to = open_to
        self.owner: Owner | None = None  # shared, so that activations need no field
        self.hosted = hosted
        self.runtime = runtime
        self.silo = silo
        self.waiting_calls_max = waiting_calls_max
        self.waiting_bytes = waiting_bytes
        options = None if hosted is None else hosted.options
        self.version = VERSION_MAX if hosted is None or self.is_observer else hosted.version
        """The latest version that calls may want here. It has no effect if the type is only called
        by this process, or has observers."""
        self.is_system = name.startswith(OWN)  # a type of the runtime or of a provider
        self.is_reentrant = options is not None and options.reentrant
        self.is_direct = options is None or options.direct
        self.may_interleave = None if options is None else options.may_interleave
        self.workers_max = 0 if options is None else workers_max_of(options)
        """The most activations of one key here, for a class of stateless workers. Else 0."""
        self.may_be_anywhere = options is None or may_be_anywhere(options)
        """True if each silo that hosts the type may have its activations, one for each key."""
        self.incoming = () if options is None else (*incoming, *options.filters.incoming)
        self.outgoing = () if options is None else tuple(options.filters.outgoing)
        states = {} if hosted is None else hosted.states
        self.writes_each_turn = any(field.writes_each_turn for field in states.values())
        is_grain = hosted is not None and issubclass(hosted.cls, Grain)
        cls = hosted.cls if hosted is not None and is_grain else Grain
        self.has_activate_hook = cls.on_activate is not Grain.on_activate
        self.has_deactivate_hook = cls.on_deactivate is not Grain.on_deactivate
        marks = {} if hosted is None else hosted.marks
        hooks = [name for name, of_name in marks.items() if Flag("stopping") in of_name]
        self.stopping_hook = hooks[0] if hooks else ""
        self.timers = tuple(list_timers(marks))
        self.arms_reminders = any(
            isinstance(mark, ReminderMark) and mark.schedule is not None
            for of_name in marks.values()
            for mark in of_name
        )
        is_ready = not self.has_activate_hook and not self.arms_reminders
        self.is_simple = not states and is_ready

    def own_spec(self, spec: MethodSpec) -> MethodSpec:
        """Return the hosted class's method for a method of a contract.

        If no class is hosted here, or one of an earlier version, the result is the contract's own
        method. Raises NotHosted if the hosted class lacks the method, or has another signature.
        """
        if self.hosted is None or spec.version > self.version:
            return spec
        found = self.hosted.spec_of(spec.wire_name)
        if found is None:
            raise NotHosted(
                f"{self.name} has no method {spec.wire_name!r}, which {spec.label} needs"
            )
        difference = spec.differs_from(found)
        if difference:
            raise NotHosted(f"{self.name}: {difference}")
        made = found.see_through(spec)
        if made.version != spec.version:
            made = copy(made)
            made.version = spec.version
        return made


def may_interleave(
    kind: GrainKind, key: str, spec: MethodSpec, args: Sequence[object], request: Request
) -> bool:
    """Return the decision of `@grain(may_interleave=...)`. Raises Rejected if it fails."""
    if kind.may_interleave is None or not spec.is_filtered:
        return False
    call = view_of(kind, key, spec, args, headers_of(request), caller_of(request))
    try:
        return bool(kind.may_interleave(call))
    except Exception as error:
        raise Rejected(
            f"{call}: may_interleave of the class raised {type(error).__name__}: {error}; the call "
            "did not run"
        ) from error


def view_of(
    kind: GrainKind,
    key: str,
    spec: MethodSpec,
    args: Sequence[object],
    headers: dict[str, str],
    caller: str,
    grain: object | None = None,
) -> GrainCall:
    """Return a call as filters see it."""
    names = [parameter.name for parameter in spec.parameters]
    arguments = dict(zip(names, args, strict=True))
    return GrainCall(
        kind.name, key, spec.wire_name, arguments, headers, caller, grain, spec.is_one_way
    )


def workers_max_of(options: GrainOptions) -> int:
    """Return the most workers of one key in one silo; 0 for a class that has one activation."""
    placement = options.placement
    if not isinstance(placement, StatelessWorker):
        return 0
    return placement.max_local or processors()


def may_be_anywhere(options: GrainOptions) -> bool:
    """Return True if a built-in strategy chooses among all silos that host the class."""
    return isinstance(options.placement, Placement) and not options.requires


def list_timers(
    marks: Mapping[str, Sequence[Mark]],
) -> Iterator[tuple[str, TimerSchedule, float | None]]:
    """Yield the methods with `@timer`, with their schedules and their own deadlines in seconds."""
    for name, of_name in marks.items():
        seconds = [mark.seconds for mark in of_name if isinstance(mark, Timeout)]
        for mark in of_name:
            if isinstance(mark, TimerMark):
                yield name, mark.schedule, seconds[0] if seconds else None
