"""The base classes of what an author writes: `Contract` and `Grain`.

Owns: the six public names of a grain, and the checks that run when a class is defined. Not: what
a definition means (`grain_type`), how a call runs (`calls`).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, overload

from millstream.runtime.errors import DefinitionError, NotInCluster
from millstream.runtime.options import check_fields
from millstream.runtime.text import show_text

from .grain_type import GrainType, define
from .markers import GrainOptions
from .names import check_kind
from .placement import RANDOM, Placement
from .state import State

__all__ = [
    "Acknowledgeable",
    "Contract",
    "DeactivationReason",
    "Ended",
    "Grain",
    "GrainContext",
    "Home",
    "Openable",
    "Program",
    "Runtime",
    "construct",
    "grain",
]

T = TypeVar("T")
C = TypeVar("C", bound="Contract")
G = TypeVar("G", bound="Grain")
H_co = TypeVar("H_co", covariant=True)
H = TypeVar("H")
CT = TypeVar("CT", bound="type[Contract]")


class DeactivationReason(Enum):
    """Why an activation ends; the argument of `on_deactivate`."""

    IDLE = "idle"
    REQUESTED = "requested"
    SILO_STOPS = "silo_stops"
    STATE_CONFLICT = "state_conflict"
    DUPLICATE = "duplicate"


class Runtime(Protocol):
    """What gives references: a silo, a client, a cluster, or a grain's own silo."""

    def grain(self, cls: type[C], key: str, /) -> C: ...
    def stream(self, namespace: Openable[H], key: str, /) -> H: ...


class Openable(Protocol[H_co]):
    """Something that `stream()` opens; `StreamNamespace` is one. Runtime knows no streams."""

    def open(self, runtime: Any, key: str, /) -> H_co: ...


class Program(Protocol):
    """Something that opens streams and the like: a silo, a client, a cluster or a grain."""

    def stream(self, namespace: Openable[H], key: str, /) -> H: ...


class Acknowledgeable(Protocol):
    """Something that `self.context.ack` acknowledges; `Event` of streams is one."""

    def acknowledge_at(self, home: Any, /) -> None:
        """The grain that lives there has it done."""
        ...


class Home(Protocol):
    """What a grain asks of where it lives; the activation is one. `grain_id` is `Type/key`."""

    @property
    def key(self) -> str: ...
    @property
    def grain_id(self) -> str: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def silo(self) -> str: ...
    def headers(self) -> Mapping[str, str]: ...
    def end_when_idle(self) -> None: ...
    def keep_alive(self, seconds: float, /) -> None: ...
    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]: ...


class Ended:
    """What a grain has in place of its home once its activation has ended: key and name only.

    Without it, code that outlives the activation would keep all of it alive, or meet an
    AttributeError that says nothing.
    """

    __slots__ = ("grain_id", "key")

    def __init__(self, home: Home) -> None:
        self.key = home.key
        self.grain_id = home.grain_id

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotInCluster(
            f"{show_text(self.grain_id)}: this activation has ended, so the grain can reach "
            "nothing any more: let its turn await what it starts, or start that by "
            "`self.context.create_task`, which is cancelled before the end"
        )


class Contract:
    """What can be called. A plain class; `Grain` derives from it.

    Programs that must not import an implementation call through a subclass of their own that has
    the same methods; `@grain(name=...)` gives both classes one name.
    """

    __millstream_options__: ClassVar[GrainOptions] = GrainOptions()
    __millstream_type__: ClassVar[GrainType]
    __millstream_hosted__: ClassVar[bool] = False
    __millstream_root__ = True
    _millstream: Any  # a Home; what is built on the runtime knows it as more

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "__millstream_options__" not in cls.__dict__:
            inherited = cls.__millstream_options__
            # a subclass is a grain type of its own: it keeps the options, not the name
            cls.__millstream_options__ = (
                inherited if inherited.name is None else replace(inherited, name=None)
            )
        frame = sys._getframe(1)
        while frame.f_code.co_name == "__init_subclass__" and frame.f_back is not None:
            frame = frame.f_back  # a mixin's, which called this one
        define(cls, frame)

    @property
    def key(self) -> str:
        """The key of this grain."""
        home: Home = self._millstream
        return home.key


class Grain(Contract):
    """A virtual actor: always there by its key, one turn at a time.

    Public `async def` methods can be called through references; everything else is local.
    """

    __millstream_hosted__ = True
    __millstream_root__ = True

    @property
    def context(self) -> GrainContext:
        """What is needed more rarely."""
        return GrainContext(self._millstream)

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference to another grain."""
        home: Home = self._millstream
        return home.runtime.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed handle of a stream."""
        home: Home = self._millstream
        return home.runtime.stream(namespace, key)

    async def on_activate(self) -> None:
        """Runs before the first call, with state loaded."""

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Runs after the last call. Not after a crash: write what must last when it changes."""


def construct(cls: type[G], home: Home, states: Mapping[str, object] | None) -> G:
    """Make a grain that lives at `home`, with its states by attribute, and run its `__init__`."""
    made: Any = object.__new__(cls)
    made._millstream = home
    if states:
        made._millstream_states = states
    if cls.__init__ is not object.__init__:
        made.__init__()
    grain: G = made
    return grain


def is_reentrant(cls: type[Contract]) -> bool:
    """May the turns of one activation of the class overlap?"""
    return cls.__millstream_options__.reentrant


def states_of(grain: Grain) -> Mapping[str, State[Any]]:
    """The states of a grain by attribute; none for one without."""
    states: Mapping[str, State[Any]] = getattr(grain, "_millstream_states", {})
    return states


def end_life(grain: Grain, ended: Ended) -> None:
    """The grain's activation is over: from now on its surface says so (and no cycle is left)."""
    grain._millstream = ended


class GrainContext:
    """The rarer half of a grain's surface. Cheap to make; do not keep it after deactivation."""

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def silo(self) -> str:
        """Address of the silo that hosts this activation."""
        return self._home.silo

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that the caller of the running turn set by `with_options`."""
        return self._home.headers()

    def deactivate_when_idle(self) -> None:
        """End this activation when its running turns have ended; queued calls go to the next.

        Asked in `on_activate` or `__init__`, the call that woke the grain runs first.
        """
        self._home.end_when_idle()

    async def ack(self, event: Acknowledgeable, /) -> None:
        """Acknowledge an event of a subscription with `ack="manual"`, and all before it.

        Again, or late, is harmless. The agent of the queue hears of it with the reply of the
        running delivery, or by a message; if that is lost, the events come again, and are answered
        without running while this activation lives. Raises ValueError: the event is not one that
        this activation was given by such a subscription.
        """
        event.acknowledge_at(self._home)

    def keep_alive(self, seconds: float, /) -> None:
        """Not idle before `seconds` from now, whatever happens."""
        self._home.keep_alive(seconds)

    def create_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Start a task that belongs to this activation: it is cancelled when that ends."""
        return self._home.start_task(coro)

    async def to_thread(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Run blocking code in a thread; the turn waits, the loop does not."""
        return await asyncio.to_thread(fn, *args)


@overload
def grain(cls: CT, /) -> CT: ...
@overload
def grain(
    *,
    name: str | None = None,
    reentrant: bool = False,
    placement: Placement = RANDOM,
    idle_after: float | None = None,
    direct: bool = True,
) -> Callable[[CT], CT]: ...
def grain(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    reentrant: bool = False,
    placement: Placement = RANDOM,
    idle_after: float | None = None,
    direct: bool = True,
) -> Any:
    """Set the options of a grain class.

    Args:
        name: the type name on the wire and in stores; default: the class name.
        reentrant: every method may start at any await point of another.
        placement: which silo gets a new activation.
        idle_after: seconds without use after which an activation is collected.
        direct: False runs local calls in a task of their own, so that context variables of
            caller and callee never meet.

    Raises DefinitionError (another class, the name), ConfigError (another option).
    """
    frame = sys._getframe(1)
    subject = f"{frame.f_code.co_filename}:{frame.f_lineno}: @grain"
    made = GrainOptions(
        name=name, reentrant=reentrant, placement=placement, idle_after=idle_after, direct=direct
    )
    check_fields(made, lambda field: f"{subject}({field}=...)")
    if name is not None:
        check_kind(f"{subject}(name=...)", name)

    def apply(target: Any) -> Any:
        if not isinstance(target, type) or not hasattr(target, "__millstream_options__"):
            raise DefinitionError(
                f"{subject} is for Grain and Contract classes, not {show_text(repr(target))}"
            )
        target.__millstream_options__ = made
        return target

    return apply if cls is None else apply(cls)
