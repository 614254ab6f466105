"""The base classes of authors: `Contract` and `Grain`, and the decorator `grain`.

This module owns the public members of a grain and starts the checks when a class is defined. The
module `grain_type` analyses the class, and the package `calls` runs its methods.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any, ClassVar, NoReturn, Protocol, TypeVar, overload

from millstream.runtime.errors import ConfigError, DefinitionError, NotInCluster
from millstream.runtime.options import check_fields
from millstream.runtime.text import show_text, show_value

from .checks import takes_positional
from .filters import NO_FILTERS, CallFilters, GrainCall, check_decision
from .grain_type import GrainType, define
from .headers import CLIENT, HeaderSet, show_headers
from .labels import requirements_of
from .markers import GrainOptions
from .names import check_kind
from .placement import RANDOM, Placement, PlacementStrategy, StatelessWorker
from .reminders import Reminders
from .state import State
from .timers import Timer, TimerSchedule, make_schedule
from .versions import FIRST_VERSION

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
    """The reason why an activation ends. It is the argument of `Grain.on_deactivate`.

    Attributes:
        IDLE: The activation was unused for `idle_after` seconds, or its pool of stateless workers
            does not need it.
        REQUESTED: The grain called `deactivate_when_idle`.
        SILO_STOPS: The silo is stopping.
        STATE_CONFLICT: A write of a state conflicted with the stored row.
        MIGRATING: The grain moves to another silo.
        DUPLICATE: Another activation of the grain has the newer registration in the directory.
        OUTGROWN: A call wants a later version of the class than this silo hosts. The grain goes on
            in a silo that hosts it.
    """

    IDLE = "idle"
    REQUESTED = "requested"
    SILO_STOPS = "silo_stops"
    STATE_CONFLICT = "state_conflict"
    MIGRATING = "migrating"
    DUPLICATE = "duplicate"
    OUTGROWN = "outgrown"


class Runtime(Protocol):
    """Anything that gives references and stream handles: a silo, a client, a local cluster or a
    grain.

    Use it as the type of a parameter in functions that call grains and publish events.
    """

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference to a grain.

        Args:
            cls: The grain class, or a contract.
            key: The key of the grain.
        """
        ...

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return a typed handle of a stream.

        Args:
            namespace: The namespace of the stream, such as a `StreamNamespace`.
            key: The key of the stream.
        """
        ...


class Openable(Protocol[H_co]):
    """Anything that `stream()` opens, such as a `StreamNamespace`. The runtime itself knows no
    streams.
    """

    def open(self, runtime: Any, key: str, /) -> H_co:
        """Return the handle for a key.

        Args:
            runtime: The inside of the silo or client that opens it, an `Opener` of
                `millstream.runtime.extending`.
            key: The key, as given to `stream()`.
        """
        ...


class Program(Protocol):
    """Anything that opens streams: a silo, a client, a local cluster or a grain.

    Use it as the type of a parameter in functions that open an `Openable` by `stream()`.
    """

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return a typed handle of a stream.

        Args:
            namespace: The namespace of the stream.
            key: The key of the stream.
        """
        ...


class Acknowledgeable(Protocol):
    """Anything that `GrainContext.ack` acknowledges, such as an `Event` of a stream."""

    def acknowledge_at(self, home: Any, /) -> None:
        """Acknowledge the event for the grain that lives at `home`.

        Args:
            home: The grain's activation. `extension_at(home, name)` gives an extension of it.
        """
        ...


class Home(Protocol):
    """The questions of a grain to its surroundings; an activation answers them. `grain_id` is
    `Type/key`.
    """

    @property
    def key(self) -> str: ...
    @property
    def grain_id(self) -> str: ...
    @property
    def runtime(self) -> Runtime: ...
    @property
    def silo(self) -> str: ...
    def headers(self) -> HeaderSet: ...
    def section(self, is_open: bool) -> AbstractContextManager[None]: ...
    def end_when_idle(self) -> None: ...
    def move_when_idle(self, to: str | None) -> None: ...
    def keep_alive(self, seconds: float, /) -> None: ...
    def start_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]: ...
    def start_timer(
        self, method: Callable[[], Coroutine[Any, Any, None]], schedule: TimerSchedule, /
    ) -> Timer: ...
    def open_reminders(self) -> Reminders: ...


class Ended:
    """The home of a grain whose activation has ended: it has key and name only.

    Without it, code that outlives the activation would keep the whole activation in memory, or
    would meet an AttributeError that explains nothing.
    """

    __slots__ = ("grain_id", "key")

    def __init__(self, home: Home) -> None:
        self.key = home.key
        self.grain_id = home.grain_id

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotInCluster(
            f"{show_text(self.grain_id)}: this activation has ended, so its grain object cannot be "
            "used any more: await in each turn the work that it starts, or start the work with "
            "`self.context.create_task`, which cancels it when the activation ends"
        )


class Contract:
    """The base class of classes that are called but not hosted.

    A program that must not import the implementation of a grain calls it through a contract: a
    class with the same name and the same methods, whose bodies are empty. `@grain(name=...)` gives
    both classes the same name. `Grain` derives from `Contract`.

    ```python
    @grain(name="Airport")
    class AirportCalls(Contract):
        async def land(self, flight: str) -> int: ...
    ```

    Raises:
        DefinitionError: The subclass cannot be a contract, for example because a method cannot be
            called remotely. Raised when the class is defined.
    """

    __millstream_options__: ClassVar[GrainOptions] = GrainOptions()
    __millstream_type__: ClassVar[GrainType]
    __millstream_hosted__: ClassVar[bool] = False
    __millstream_observer__: ClassVar[bool] = False
    __millstream_root__ = True
    _millstream: Any  # a Home; in a silo, the activation

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
    """The base class of grains: virtual actors that silos host.

    A grain exists always, by its class and key. A silo activates it at the first call, and
    deactivates it when it is idle. In a healthy cluster it has at most one activation at a time,
    except for stateless workers (`stateless_worker`). An activation runs one turn at a time, unless
    its class or methods permit interleaving.

    Public `async def` methods can be called through references. Their parameters and results need
    annotations. All other attributes are local to the grain.

    ```python
    class Airport(Grain):
        async def land(self, flight: str) -> int:
            ...

    async with Silo(grains=[Airport]) as silo:
        runway = await silo.grain(Airport, "BOS").land("MS 12")
    ```

    `silo.grain(Airport, "BOS")` returns a reference. References are equal if type name and key are
    equal. `reference.key` is the key, and `str(reference)` is `Airport/BOS`; a `/` in the name of
    the type becomes `%2F` in it. `isinstance(reference, Airport)` is true.

    `__init__` is called without arguments. A subclass must not redefine `key`, `grain`, `stream` or
    `context`. Two states of one class need different names or different stores.

    Raises:
        DefinitionError: The subclass cannot be a grain as it is written. Raised when the class is
            defined, with file and line.
    """

    __millstream_hosted__ = True
    __millstream_root__ = True

    @property
    def context(self) -> GrainContext:
        """The less frequent abilities of a grain, such as its headers and its deactivation."""
        return GrainContext(self._millstream)

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference to another grain.

        Args:
            cls: The grain class, or a contract.
            key: The key of the grain.

        Raises:
            NotInCluster: This activation has ended.
        """
        home: Home = self._millstream
        return home.runtime.grain(cls, key)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return a typed handle of a stream.

        Args:
            namespace: The namespace of the stream.
            key: The key of the stream.

        Raises:
            NotInCluster: This activation has ended.
        """
        home: Home = self._millstream
        return home.runtime.stream(namespace, key)

    async def on_activate(self) -> None:
        """Run before the first call of an activation. Override it to prepare the grain.

        The states are already loaded. An exception fails the activation, and with it the calls that
        wait for it. `RuntimeOptions.activation_timeout_s` limits its time.
        """

    async def on_deactivate(self, reason: DeactivationReason, /) -> None:
        """Run after the last call of an activation. Override it to clean up.

        It does not run after a crash, so do not rely on it: write a state when it changes.
        `RuntimeOptions.deactivation_timeout_s` limits its time.

        Args:
            reason: Why the activation ends.
        """


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
    """Return whether the turns of one activation of a grain class may overlap.

    Args:
        cls: The grain class.
    """
    return cls.__millstream_options__.reentrant


def is_stateless_worker(cls: type[Contract]) -> bool:
    """Return whether a silo may have several activations of one key of a grain class.

    Args:
        cls: The grain class.
    """
    return cls.__millstream_type__.is_worker


def states_of(grain: Grain) -> Mapping[str, State[Any]]:
    """Return the states of a grain object by attribute; an empty mapping if it has none.

    Args:
        grain: The grain itself, not a reference.
    """
    states: Mapping[str, State[Any]] = getattr(grain, "_millstream_states", {})
    return states


def end_life(grain: Grain, ended: Ended) -> None:
    """Detach a grain from its ended activation. Later uses raise NotInCluster, and no cycle is
    left.
    """
    grain._millstream = ended


class GrainContext:
    """The less frequent abilities of a grain, as `self.context`.

    It is cheap to make. Do not keep it after the deactivation.
    """

    __slots__ = ("_home",)

    def __init__(self, home: Home) -> None:
        self._home = home

    @property
    def silo(self) -> str:
        """The address of the silo that hosts this activation."""
        return self._home.silo

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers of the running turn: those that its caller set by `with_options`, and those
        that flow along the chain of calls.
        """
        return show_headers(self._home.headers())

    @property
    def client(self) -> str:
        """The name of the client that began the chain of calls of the running turn.

        It is the name in the certificate that the client has shown by TLS. No
        caller can set it. It flows along calls of grains, and not along streams, reminders, timers
        and jobs. Empty: no client with a certificate has begun the chain.
        """
        return (self._home.headers().flowing or {}).get(CLIENT, "")

    def allow_call_chain_reentrancy(self) -> AbstractContextManager[None]:
        """Let calls back into this grain start at once, while the `with` block runs.

        A call starts if the running turn waits for it, directly or through other grains, tasks and
        silos. Calls of other chains wait as always. Without the block, such a call raises
        CallCycle, or waits until its deadline.

        ```python
        with self.context.allow_call_chain_reentrancy():
            await self.grain(Partner, key).ask_back(self.key)
        ```

        Raises:
            NotInCluster: No turn of this grain runs in this task. Raised at the start of the block.
        """
        return self._home.section(True)

    def suppress_call_chain_reentrancy(self) -> AbstractContextManager[None]:
        """Make calls in the `with` block that may not come back to a waiting grain of the chain.

        This hides each `allow_call_chain_reentrancy` of this turn and of the turns that wait for
        it.

        Raises:
            NotInCluster: No turn of this grain runs in this task. Raised at the start of the block.
        """
        return self._home.section(False)

    def deactivate_when_idle(self) -> None:
        """End this activation when its running turns have ended.

        Queued calls go to the next activation. If the grain asks for it in `__init__` or
        `on_activate`, the call that activated the grain still runs.
        """
        self._home.end_when_idle()

    def migrate_when_idle(self, *, to: str | None = None) -> None:
        """Move this activation to another silo when its running turns have ended.

        The grain continues there with its states, as they are in memory, and with the value of
        `on_dehydrate`. Queued calls follow. Tasks, timers of run time and streamed results end, and
        timers with `@timer` start again. If the move fails, the activation ends as usual, and the
        next call activates the grain from its store. If no other silo can host the grain, nothing
        happens.

        ```python
        class Game(Grain):
            def on_dehydrate(self) -> Board: ...
            def on_rehydrate(self, value: Board) -> None: ...
        ```

        Args:
            to: The address of the new silo, as `silo` gives it there. None: the placement of the
                class chooses another silo.

        Raises:
            ConfigError: `to` is no other active silo that can host the grain.
            NotInCluster: The activation has ended.
        """
        self._home.move_when_idle(to)

    async def ack(self, event: Acknowledgeable, /) -> None:
        """Acknowledge an event of a subscription with `ack="manual"`, and all events before it.

        Repeated and late acknowledgements do no harm. The pulling agent of the queue learns of it
        with the reply to the running delivery, or by a message. If that message is lost, the events
        are delivered again. While this activation lives, it acknowledges such redeliveries without
        running the handler.

        Args:
            event: The event that the handler got.

        Raises:
            ValueError: This activation did not get the event from a subscription with
                `ack="manual"`.
        """
        event.acknowledge_at(self._home)

    def keep_alive(self, seconds: float, /) -> None:
        """Prevent the deactivation for idleness for some time.

        Args:
            seconds: The activation does not count as idle before this many seconds from now.
        """
        self._home.keep_alive(seconds)

    def create_task(self, coro: Coroutine[Any, Any, T], /) -> asyncio.Task[T]:
        """Start a task that belongs to this activation.

        The task is cancelled when the activation ends. The activation waits for it, at most for
        `RuntimeOptions.deactivation_timeout_s`. SystemExit in the task becomes a GrainError.

        Args:
            coro: The coroutine to run.
        """
        return self._home.start_task(coro)

    def timer(
        self,
        method: Callable[[], Coroutine[Any, Any, None]],
        /,
        *,
        every: float | None,
        first: float | None = None,
        keep_alive: bool = False,
        interleave: bool = False,
    ) -> Timer:
        """Start a timer that calls a method of the grain. Its ticks are like those of `@timer`.

        Args:
            method: An async method of the grain, or another async function, without arguments.
            every: Seconds from the end of a tick to the next one. None: one tick only.
            first: Seconds from now to the first tick. None: `every`.
            keep_alive: True: a tick counts as a use, as a call does.
            interleave: True: a tick may start at any await point of other turns.

        Returns:
            The timer. It ends with the activation, also if nothing refers to it.

        Raises:
            ConfigError: A time is not valid.
            TypeError: `method` is not an async function that can be called without arguments.
            NotInCluster: The activation is ending.
        """
        if not inspect.iscoroutinefunction(method) or not takes_positional(method, 0):
            raise TypeError(
                f"{self._home.grain_id}: context.timer({show_text(repr(method))}): give an "
                "`async def` method without arguments, such as `self.flush`, and do not call it"
            )
        where = f"{show_text(self._home.grain_id)}: context.timer"
        return self._home.start_timer(
            method,
            make_schedule(where, every, first, keep_alive=keep_alive, interleave=interleave),
        )

    @property
    def reminders(self) -> Reminders:
        """The reminders of this grain: `set`, `cancel` and `list`.

        Raises:
            ConfigError: The class has no method with `@reminder`.
            NotInCluster: The activation has ended.
        """
        return self._home.open_reminders()

    async def to_thread(self, fn: Callable[..., T], /, *args: Any) -> T:
        """Run blocking code in a thread.

        The turn waits for it, and the event loop does not.

        Args:
            fn: The function to call.
            args: Its arguments.

        Returns:
            The result of the function.
        """
        return await asyncio.to_thread(fn, *args)


def check_strategy(subject: str, strategy: PlacementStrategy) -> None:
    """Raise ConfigError for a function that cannot choose a silo."""
    if isinstance(strategy, Placement | StatelessWorker):
        return
    is_class, is_async = isinstance(strategy, type), inspect.iscoroutinefunction(strategy)
    if is_class or is_async or not takes_positional(strategy, 1):
        raise ConfigError(
            f"{subject} is {show_value(strategy)}; it must be a constant such as PREFER_LOCAL, "
            "stateless_worker(...), or a plain function that takes a PlacementRequest"
        )


@overload
def grain(cls: CT, /) -> CT: ...
@overload
def grain(
    *,
    name: str | None = None,
    reentrant: bool = False,
    placement: PlacementStrategy = RANDOM,
    idle_after: float | None = None,
    direct: bool = True,
    filters: CallFilters = NO_FILTERS,
    may_interleave: Callable[[GrainCall], bool] | None = None,
    requires: Mapping[str, str | Collection[str]] | None = None,
    version: int = FIRST_VERSION,
    immovable: bool = False,
) -> Callable[[CT], CT]: ...
def grain(
    cls: Any = None,
    /,
    *,
    name: str | None = None,
    reentrant: bool = False,
    placement: PlacementStrategy = RANDOM,
    idle_after: float | None = None,
    direct: bool = True,
    filters: CallFilters = NO_FILTERS,
    may_interleave: Callable[[GrainCall], bool] | None = None,
    requires: Mapping[str, str | Collection[str]] | None = None,
    version: int = FIRST_VERSION,
    immovable: bool = False,
) -> Any:
    """Set the options of a grain class: `@grain(name="Airport", placement=HASHED)`.

    A class without the decorator has the defaults. A subclass inherits the options except for the
    name.

    Args:
        cls: The class, if the decorator is used without options.
        name: The type name on the wire and in stores: printable text that begins with neither `$`
            nor `~`. None: the class name.
        reentrant: True lets every method start at any await point of another method.
        placement: The silo that gets a new activation: a constant such as `PREFER_LOCAL`, or a
            function that takes a `PlacementRequest` and returns one of its `candidates`. Such a
            function runs in the event loop of a silo that hosts the class, so it must not block.
            Or `stateless_worker(...)` for several activations of each key in each silo.
        idle_after: Seconds without use after which an activation ends. None:
            `RuntimeOptions.idle_after_s`.
        direct: False runs local calls in a task of their own, so that caller and callee never share
            context variables.
        filters: Functions that run around calls: incoming ones around each call of this class,
            outgoing ones around each call that its turns make.
        may_interleave: Decides for each call, when it arrives, whether the call may start at any
            await point of other turns; turns that did so block no call. It must not change the
            arguments. None: no call may, except for methods with `@always_interleave`.
        requires: The labels that a silo needs for activations of this class, by name: a value, or a
            set of allowed values. At most 32 names. None: every silo is suitable.
        version: The version of the class, from 1 to 65,535. It takes all calls of earlier versions.
            A call through a class or contract runs only on its version or a later one.
        immovable: True keeps activations of this class in their silo when a cluster evens out its
            activations (`Rebalancing`). They still move on `migrate_when_idle`, and when their silo
            stops.

    Raises:
        DefinitionError: The class is no Grain, Contract or Observer, or the name is invalid. Or a
            class of stateless workers has a state, a reminder or a subscription. Or an observer has
            a version.
        ConfigError: Another option has a wrong type or range.
    """
    frame = sys._getframe(1)
    subject = f"{frame.f_code.co_filename}:{frame.f_lineno}: @grain"
    made = GrainOptions(
        name=name,
        reentrant=reentrant,
        placement=placement,
        idle_after=idle_after,
        direct=direct,
        filters=filters,
        may_interleave=may_interleave,
        requires=requirements_of(f"{subject}(requires=...)", requires),
        version=version,
        immovable=immovable,
    )
    check_options(subject, made)
    apply = partial(give_options, subject, made)
    return apply if cls is None else apply(cls)


def check_options(subject: str, made: GrainOptions) -> None:
    """Check the options of a class. Raises ConfigError, and DefinitionError for the name."""
    check_fields(made, lambda field: f"{subject}({field}=...)")
    check_strategy(f"{subject}(placement=...)", made.placement)
    if made.may_interleave is not None:
        check_decision(f"{subject}(may_interleave=...)", made.may_interleave)
    if made.name is not None:
        check_kind(f"{subject}(name=...)", made.name)


def give_options(subject: str, made: GrainOptions, target: Any) -> Any:
    """Give a class its options, and return the class. Raises DefinitionError."""
    if not isinstance(target, type) or not hasattr(target, "__millstream_options__"):
        raise DefinitionError(
            f"{subject} is for classes of Grain, Contract and Observer, not "
            f"{show_text(repr(target))}"
        )
    cls: Any = target
    cls.__millstream_options__ = made
    grain_type: GrainType | None = cls.__dict__.get("__millstream_type__")  # Contract has none
    if grain_type is not None:
        grain_type.apply_options(subject)
    return cls
