"""The services of a silo for its parts: members, targets, extensions, stores, tasks and the clock.

This module owns `SiloServices`, one object for each silo, and the objects in it. The parts of the
silo do the work. A part can reach only the things that the services name. No code inside of the
runtime uses the services.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from copy import copy
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from weakref import WeakValueDictionary

from millstream.runtime.calls.stubs import ExtensionCall
from millstream.runtime.calls.system_target import Targets
from millstream.runtime.cluster.table import MemberRow, TableView
from millstream.runtime.codec.failures import rebuild
from millstream.runtime.definition.grain import Contract, Grain
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.state import State
from millstream.runtime.definition.storage import StateStore
from millstream.runtime.disk.seam import Disk
from millstream.runtime.errors import ConfigError
from millstream.runtime.metrics.registry import MetricRegistry
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.public_names import public_name
from millstream.runtime.tasks import Tasks
from millstream.runtime.turns.budget import Budget
from millstream.runtime.turns.runners import Runners

from .assembly import SiloAssembly
from .extended import ExtendedGrain, activation_of

__all__ = [
    "Clock",
    "Extensions",
    "GrainServices",
    "Members",
    "SiloServices",
    "is_first_host",
    "services_of",
]

C = TypeVar("C", bound=Contract)
P = ParamSpec("P")
R = TypeVar("R")


class Members(Protocol):
    """The cluster as this silo sees it, as `SiloServices.members`."""

    @property
    def view(self) -> TableView:
        """The newest view of the membership table that this silo has."""
        ...

    def is_live(self, silo: str, /) -> bool:
        """Return whether a silo is in the view and not dead.

        Args:
            silo: The address of the silo, `host:port@generation`.
        """
        ...

    def active(self) -> Sequence[str]:
        """Return the addresses of active silos, sorted."""
        ...

    def watch(self, listener: Callable[[TableView], None], /) -> Callable[[], None]:
        """Call a function with each newer view, in order.

        Args:
            listener: The function.

        Returns:
            A function that ends the calls.
        """
        ...

    async def refresh(self) -> None:
        """Read the membership table, so that `view` is at least as new as the start of this call.

        Raises:
            StorageUnavailable: The table did not answer.
        """
        ...


def is_first_host(members: Members, silo: str, grain_type: str) -> bool:
    """Return whether a silo is the first active silo that hosts a grain type.

    Use it for work that only one silo should do for all grains of the type. For a while, two silos
    may both be the first, or none, until their views agree. So double work must do no harm.

    Args:
        members: The members, as this silo sees them.
        silo: The address of the silo.
        grain_type: The name of the grain type.
    """
    for other in members.active():
        row = members.view.row(other)
        if row is not None and grain_type in row.grain_types:
            return other == silo
    return False


class Clock(Protocol):
    """The times and random numbers of one silo, as `SiloServices.clock`. A simulation has
    its own.
    """

    def now(self) -> float:
        """Return the time of the event loop's clock in seconds, for waiting."""
        ...

    def wall_s(self) -> float:
        """Return the wall time in seconds since 1970, for stamps that are stored.

        The clocks of silos differ.
        """
        ...

    def uniform(self, low: float, high: float, /) -> float:
        """Return a random number in [low, high).

        Args:
            low: The least number.
            high: The bound above it.
        """
        ...


class SiloClock:
    """The `Clock` of a silo."""

    __slots__ = ("_silo", "now", "wall_s")

    def __init__(self, silo: SiloAssembly) -> None:
        self._silo = silo
        self.now = silo.loop.time  # called several times per event: save a Python frame
        self.wall_s = silo.env.wall_s

    def uniform(self, low: float, high: float, /) -> float:
        return self._silo.env.uniform(low, high)


class Extensions:
    """The extensions of this silo's activations, and calls to extensions of any grain.

    An extension is an object of a part that lives with an activation and has calls of its own.
    `SiloServices.extensions` is the object of a silo.
    """

    __slots__ = ("_added", "_methods", "_silo")

    def __init__(self, silo: SiloAssembly) -> None:
        self._silo = silo
        self._methods: dict[tuple[str, object, float | None], ExtensionCall] = {}
        self._added: dict[str, type[Any]] = {}

    def add(self, name: str, cls: Callable[[ExtendedGrain], Any]) -> None:
        """Extend the grains of this silo.

        The silo makes `cls(grain)` for an activation when the first call to the extension arrives.
        The public async methods of the class can be called. Adding the same class again does
        nothing.

        Args:
            name: The name of the extension.
            cls: The class. It is called with an `ExtendedGrain`.

        Raises:
            ConfigError: Another class has the name.
        """
        assert isinstance(cls, type)
        known = self._added.setdefault(name, cls)
        if known is not cls:
            raise ConfigError(
                f"extension {name!r} is already {public_name(known)}, not {public_name(cls)}: "
                "give one of them another name"
            )
        self._silo.add_extension(name, cls, lambda activation: cls(ExtendedGrain(activation)))

    def method(
        self,
        kind: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        timeout_s: float | None = None,
    ) -> Callable[Concatenate[str, P], Coroutine[Any, Any, R]]:
        """Return a function that calls a method of a grain's extension, wherever the grain is.

        The function takes the grain's key and the arguments of the method. A call activates the
        grain, and is a turn like any other. It raises the errors of the method and of calls. One
        function is made for each combination of arguments, so use few combinations.

        Args:
            kind: The name of the grain type.
            method: The method, as the function in the extension's class.
            timeout_s: The deadline of each call in seconds. None: `RuntimeOptions.call_timeout_s`.
        """
        made = self._methods.get((kind, method, timeout_s))
        if made is None:
            spec = copy(method.__millstream_spec__)  # type: ignore[attr-defined]
            spec.timeout_s = timeout_s
            found = self._silo.references.kind_named(kind)
            made = self._silo.engine.stubs.build_extension(found, spec)
            self._methods[kind, method, timeout_s] = made
        return made


class SiloServices:
    """One silo, as its parts see it. `SiloPart.open` and `SiloPart.start` get it.

    Attributes:
        members: The cluster as this silo sees it.
        targets: The system targets of this silo, and calls to those of any silo.
        extensions: The extensions of this silo's grains, and calls to those of any grain.
        clock: Times and random numbers.
        tasks: Tasks and timers that end with the silo.
        budget: The budget by which work that never suspends yields to the event loop.
        disk: Files that survive a crash. In a simulation, those of the simulated machine.
        metrics: The metrics of this silo. A part adds functions that read its own.
    """

    def __init__(self, silo: SiloAssembly, name: str, brought: Collection[type[Grain]]) -> None:
        self._silo = silo
        self._name = name
        self._brought = frozenset(brought)
        _of_runtime[id(silo.references)] = self
        self.members: Members = silo.membership
        self.targets: Targets = silo.targets
        self.extensions = Extensions(silo)
        self.clock: Clock = SiloClock(silo)
        self.tasks = self.new_tasks()
        self.budget: Budget = silo.turns.budget
        self.disk: Disk = silo.disk
        self.metrics = MetricRegistry()

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        return self._silo.cluster

    @property
    def address(self) -> str:
        """The address of the silo, `host:port@generation`. It is unique in the life of the
        cluster.
        """
        return self._silo.address

    @property
    def name(self) -> str:
        """The name of the silo for people and balancers; its address if it was given none."""
        return self._name

    @property
    def row(self) -> MemberRow | None:
        """The silo's own row in the current view, or None if it is not in the view."""
        return self.members.view.row(self.address)

    @property
    def options(self) -> RuntimeOptions:
        """The options of the silo."""
        return self._silo.options

    @property
    def activation_count(self) -> int:
        """The number of activations in this silo."""
        return self._silo.catalog.count

    def store(self, name: str, /) -> StateStore:
        """Return the state store of a name.

        Args:
            name: The name, as in `Silo(stores=...)`.

        Raises:
            ConfigError: There is no such store. The message lists those that there are.
        """
        return self._silo.store(name)

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference to a grain.

        Args:
            cls: The grain class, or a contract.
            key: The key of the grain.
        """
        return self._silo.references.grain(cls, key)

    def silo_of(self, kind: str, key: str, /) -> str:
        """Return the silo that has a grain, as far as this silo knows.

        Use it only for people to read: each call looks up its destination anew.

        Args:
            kind: The name of the grain type.
            key: The key of the grain.

        Returns:
            The address of the silo. Empty if it is unknown.
        """
        return self._silo.router.silo_of(kind, key)

    @property
    def runtime(self) -> object:
        """The silo for codecs: pass it to `Codec.decode` and `Codec.isolate`."""
        return self._silo.references

    def grain_types(self) -> list[GrainType]:
        """Return the `GrainType` of each class that this silo hosts."""
        return [k.hosted for k in self._silo.references.kinds.values() if k.hosted is not None]

    def part(self, name: str, /) -> Any:
        """Return another part of the silo.

        Args:
            name: The name, as in `Silo(streams=..., parts=...)`.

        Raises:
            ConfigError: There is no such part. The message lists those that there are.
        """
        return self._silo.part(name)

    def send_parcels(self, found: Callable[[State[Any], Callable[[str], Any]], None]) -> None:
        """Set the function that sends the parcels of states.

        Parcels are bytes that a part stores with the value of a state (`State.parcels`), and sends
        once they are stored.

        Args:
            found: Called as `found(state, part)` for each state that is activated with parcels in
                its row. `part(name)` returns a part of the silo.
        """
        self._silo.catalog.on_parcels = lambda state: found(state, self._silo.part)

    def has_brought(self, cls: type[Grain]) -> bool:
        """Return whether a part of the silo brings a grain class.

        Args:
            cls: The grain class.
        """
        return cls in self._brought

    def new_id(self) -> int:
        """Return a random id of 63 bits. In a simulation it comes from the seed."""
        return self._silo.env.new_id()

    def new_runners(self) -> Runners:
        """Return tasks that run short pieces of work again and again, without a task for each
        piece.
        """
        return Runners(self.new_tasks(), self._silo.loop)

    def new_tasks(self) -> Tasks:
        """Return tasks and timers for one owner, who ends them by `cancel()` or `await
        aclose()`.
        """
        return self._silo.engine.new_tasks()

    def decode_error(self, data: bytes, /) -> Exception:
        """Return the exception that `encode_error` encoded.

        Args:
            data: The result of `encode_error`.

        Returns:
            A fresh exception of the same type, or a GrainError if the type is unknown here.
        """
        return rebuild(data, self._silo.turns.known_errors)


class GrainServices:
    """The services of a silo for a grain that a part brought. `services_of` returns them."""

    __slots__ = ("_activation", "_services")

    def __init__(self, services: SiloServices, activation: Any) -> None:
        self._services = services
        self._activation = activation

    @property
    def fence(self) -> int:
        """The fence of the activation's writes: the version of the membership at its
        registration.
        """
        version: int = self._activation.version
        return version

    @property
    def activation_id(self) -> int:
        """A number that distinguishes the activations of one silo."""
        number: int = self._activation.id
        return number

    def store(self, name: str, /) -> StateStore:
        """Return the state store of a name.

        Args:
            name: The name, as in `Silo(stores=...)`.

        Raises:
            ConfigError: There is no such store.
        """
        return self._services.store(name)

    def part(self, name: str, /) -> Any:
        """Return a part of the silo.

        Args:
            name: The name, as in `Silo(streams=..., parts=...)`.

        Raises:
            ConfigError: There is no such part.
        """
        return self._services.part(name)


# Keyed by id: the services refer to the object, so its id is unique as long as they live.
_of_runtime: WeakValueDictionary[int, SiloServices] = WeakValueDictionary()


def services_of(grain: Grain, /) -> GrainServices:
    """Return the services of a grain that a part brought.

    Args:
        grain: The grain itself, not a reference.

    Raises:
        ConfigError: No part brought the grain's class, or the activation has ended.
    """
    activation = activation_of(grain)
    services = None if activation is None else _of_runtime.get(id(activation.runtime))
    if services is None or not services.has_brought(type(grain)):
        raise ConfigError(
            f"{type(grain).__name__} does not come from a part of its silo (SiloPart.grains), so "
            "it has no services: use self.grain, self.stream and state fields"
        )
    return GrainServices(services, activation)
