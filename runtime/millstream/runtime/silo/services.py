"""What a silo gives to its parts: members, targets, extensions, stores, tasks, the clock.

Owns: `SiloServices`, one object per silo, and what it is made of. Not: any of the work, which the
parts of the silo do. Invariants: it gives no part of the silo away but those that it names; nobody
inside the runtime is given it.
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
    """The cluster as this silo sees it."""

    @property
    def view(self) -> TableView:
        """The newest view that this silo has."""
        ...

    def is_live(self, silo: str, /) -> bool:
        """Is the silo in the view, and not dead?"""
        ...

    def active(self) -> Sequence[str]:
        """The addresses of active silos, sorted."""
        ...

    def watch(self, listener: Callable[[TableView], None], /) -> Callable[[], None]:
        """Call back with each newer view, in order; returns a function that ends it."""
        ...

    async def refresh(self) -> None:
        """Have a view that was read from the membership table after this call began. Raises
        StorageUnavailable."""
        ...


def is_first_host(members: Members, silo: str, grain_type: str) -> bool:
    """Is the silo the first of those that are active and host a type of grains?

    Who does for all of a kind what one silo should do asks this. Two may believe it for a while,
    which must cost no more than calls; or none, until the next look.
    """
    for other in members.active():
        row = members.view.row(other)
        if row is not None and grain_type in row.grain_types:
            return other == silo
    return False


class Clock(Protocol):
    """Times and chance of one silo; under simulation, the simulator's."""

    def now(self) -> float:
        """Seconds of the loop's clock, for waiting."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970, for stamps that are stored; clocks of silos differ."""
        ...

    def uniform(self, low: float, high: float, /) -> float:
        """A random number in [low, high)."""
        ...


class SiloClock:
    """The `Clock` of a silo."""

    __slots__ = ("_silo", "now", "wall_s")

    def __init__(self, silo: SiloAssembly) -> None:
        self._silo = silo
        self.now = silo.loop.time  # asked several times per event: no frame of its own
        self.wall_s = silo.env.wall_s

    def uniform(self, low: float, high: float, /) -> float:
        return self._silo.env.uniform(low, high)


class Extensions:
    """What this silo's activations are extended by, and calls to extensions, wherever they are."""

    __slots__ = ("_added", "_methods", "_silo")

    def __init__(self, silo: SiloAssembly) -> None:
        self._silo = silo
        self._methods: dict[tuple[str, object, float | None], ExtensionCall] = {}
        self._added: dict[str, type[Any]] = {}

    def add(self, name: str, cls: Callable[[ExtendedGrain], Any]) -> None:
        """Let grains of this silo be extended: `cls(grain)` is made when a call first arrives.

        Again with the same class is harmless. Raises ConfigError: the name is another class's.
        """
        assert isinstance(cls, type)
        known = self._added.setdefault(name, cls)
        if known is not cls:
            raise ConfigError(
                f"extension {name!r} is {public_name(known)} already, not {public_name(cls)}: "
                "give one of them another name"
            )
        self._silo.add_extension(name, cls, lambda activation: cls(ExtendedGrain(activation)))

    def method(
        self,
        kind: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        timeout_s: float | None = None,
    ) -> Callable[Concatenate[str, P], Coroutine[Any, Any, R]]:
        """A method of the extension of a grain, as a function of the grain's key and the arguments.

        A call wakes the grain, and is a turn like any other; it raises what the method raises, and
        what calls raise. One function is made for each combination, of which there should be few.

        Args:
            kind: name of the grain type.
            method: the function in the extension's class.
            timeout_s: deadline of each call; default: `call_timeout_s`.
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
    """One silo, as its parts see it.

    Attributes: `members`, `targets`, `extensions`, `clock`; `tasks`, which end with the silo;
    `budget`, by which work that never suspends yields to the loop; `disk`, under simulation that
    of the simulated machine.
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

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self._silo.cluster

    @property
    def address(self) -> str:
        """`host:port@generation`, unique in the life of the cluster."""
        return self._silo.address

    @property
    def name(self) -> str:
        """The silo's name, for people and balancers; its address if it was given none."""
        return self._name

    @property
    def row(self) -> MemberRow | None:
        """The silo's own row in the present view."""
        return self.members.view.row(self.address)

    @property
    def options(self) -> RuntimeOptions:
        """The silo's options."""
        return self._silo.options

    @property
    def activation_count(self) -> int:
        """Grains that are active in this silo."""
        return self._silo.catalog.count

    def store(self, name: str, /) -> StateStore:
        """The state store of a name. Raises ConfigError."""
        return self._silo.store(name)

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference to a grain."""
        return self._silo.references.grain(cls, key)

    def silo_of(self, kind: str, key: str, /) -> str:
        """The silo that a grain is in, as far as this one knows; empty: it is not known.

        For what people read: where a call goes is found anew for each call.
        """
        return self._silo.router.silo_of(kind, key)

    @property
    def runtime(self) -> object:
        """What codecs decode references and streams for."""
        return self._silo.references

    def grain_types(self) -> list[GrainType]:
        """The grain types that this silo hosts."""
        return [k.hosted for k in self._silo.references.kinds.values() if k.hosted is not None]

    def part(self, name: str, /) -> Any:
        """The silo's part of a name. Raises ConfigError."""
        return self._silo.part(name)

    def send_parcels(self, found: Callable[[State[Any], Callable[[str], Any]], None]) -> None:
        """Call `found(state, part)` for each state that is activated with parcels in its row."""
        self._silo.catalog.on_parcels = lambda state: found(state, self._silo.part)

    def has_brought(self, cls: type[Grain]) -> bool:
        """Does a part bring the class?"""
        return cls in self._brought

    def new_id(self) -> int:
        """A random 63-bit id; under simulation, of the simulator's chance."""
        return self._silo.env.new_id()

    def new_runners(self) -> Runners:
        """Tasks that run short pieces of work again and again."""
        return Runners(self.new_tasks(), self._silo.loop)

    def new_tasks(self) -> Tasks:
        """Tasks and timers of one owner, who ends them."""
        return self._silo.engine.new_tasks()

    def decode_error(self, data: bytes, /) -> Exception:
        """The exception that `encode_error` was given: a fresh one of its type, if known here."""
        return rebuild(data, self._silo.turns.known_errors)


class GrainServices:
    """What a grain that a part brought may use of its silo."""

    __slots__ = ("_activation", "_services")

    def __init__(self, services: SiloServices, activation: Any) -> None:
        self._services = services
        self._activation = activation

    @property
    def fence(self) -> int:
        """Membership version at which this activation was registered: what its writes carry."""
        version: int = self._activation.version
        return version

    @property
    def activation_id(self) -> int:
        """Tells the activations of one silo apart."""
        number: int = self._activation.id
        return number

    def store(self, name: str, /) -> StateStore:
        """The state store of a name. Raises ConfigError."""
        return self._services.store(name)

    def part(self, name: str, /) -> Any:
        """The silo's part of a name. Raises ConfigError."""
        return self._services.part(name)


# by id, which is theirs alone while the services live: they hold them; a key would never be freed
_of_runtime: WeakValueDictionary[int, SiloServices] = WeakValueDictionary()


def services_of(grain: Grain, /) -> GrainServices:
    """The services of a grain that a part brought. Raises ConfigError for any other grain."""
    activation = activation_of(grain)
    services = None if activation is None else _of_runtime.get(id(activation.runtime))
    if services is None or not services.has_brought(type(grain)):
        raise ConfigError(
            f"{type(grain).__name__} is not brought by a part of its silo (SiloPart.grains), so it "
            "gets no services: use self.grain, self.stream and state fields"
        )
    return GrainServices(services, activation)
