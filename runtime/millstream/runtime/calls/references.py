"""References: what grains, programs and arguments get of other grains.

Owns: the grain kinds of one process, and one reference class per contract with its stubs. Is the
`Runtime` that codecs decode references and streams for. Invariant: a name has one kind, for good,
since stubs and activations hold it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.definition.grain import Contract, Grain, Openable
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.reference import OptionedReference
from millstream.runtime.errors import ConfigError
from millstream.runtime.public_names import public_name
from millstream.runtime.role import Role
from millstream.runtime.text import check_text, show_text
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.mailbox import WaitingBytes

__all__ = ["Gateway", "References", "modules_of"]

VIEWS_MAX = 1000
"""Types of grains, seen as one that they derive from, whose references one process decodes."""

C = TypeVar("C", bound=Contract)
H = TypeVar("H")
P = ParamSpec("P")
R = TypeVar("R")
BuildClass = Callable[[GrainKind, GrainType, bool], type[Any]]


class Gateway(Protocol):
    """Calls from a client to system targets of the cluster, as `Opener.gateway`."""

    @property
    def frame_bytes_max(self) -> int:
        """The size of the largest frame that the client sends or accepts, in bytes."""
        ...

    def call(
        self,
        name: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]:
        """Call a method of a system target in the gateway that serves a name.

        Calls with one name use one gateway, and keep their order, as long as that gateway works.
        Errors of the method reach the caller.

        Args:
            name: The name that chooses the gateway. Empty: any.
            target: The name of the system target, which begins with `$`.
            method: The method, as the function in the class of the target.
            args: The arguments of the method, by position.
            kwargs: Not allowed.

        Returns:
            The call, to be awaited. It returns the result of the method.

        Raises:
            CallTimeout: The deadline has passed.
            SiloUnavailable: No gateway answers, or the connection broke.
            NotInCluster: The client was closed.
        """
        ...


class References:
    """The references of one silo or client.

    Args:
        address: of this process.
        grains: the classes that it hosts. Raises ConfigError for what is none, and for two of
            one name.
        waiting_calls_max: requests that may wait for one activation.
        waiting_bytes: counts the bytes of those that wait in this process.
        check_running: raises NotInCluster unless this process makes calls.
        part: gives the silo's part of a name. Raises ConfigError.
        brought: those of the classes that parts of the silo bring; only silos may call them, but
            for the methods that are marked by `@open_to`.

    What opens streams also finds `check_running`, `part` and `gateway` here; the last reaches the
    cluster from outside, and is None in a silo. `open` is called once, before the first reference
    is asked for.
    """

    _build: BuildClass

    def __init__(
        self,
        address: str,
        grains: Sequence[type[Contract]],
        known_errors: KnownErrors,
        waiting_calls_max: int,
        waiting_bytes: WaitingBytes,
        check_running: Callable[[], None],
        part: Callable[[str], Any],
        brought: Collection[type[Contract]] = (),
    ) -> None:
        self._brought = frozenset(brought)
        self.address = address
        self.check_running = check_running
        self.part = part
        self.gateway: Gateway | None = None
        self._known_errors = known_errors
        self._waiting_calls_max = waiting_calls_max
        self._waiting_bytes = waiting_bytes
        self._kinds: dict[str, GrainKind] = {}
        self._classes: dict[type[Any], type[Any]] = {}
        self._views: dict[tuple[str, type[Any]], type[Any]] = {}
        self._optioned: dict[tuple[str, type[Any]], type[OptionedReference]] = {}
        self._names = 0
        for cls in grains:
            self._host(cls)

    def open(self, build: BuildClass, gateway: Gateway | None) -> None:
        """From now on reference classes can be made: `build(kind, type, has_options)`."""
        self._build, self.gateway = build, gateway

    def new_name(self) -> str:
        """A name that nothing else in the life of the cluster has."""
        self._names += 1
        return f"{self.address}.{self._names}"

    # -- kinds

    @property
    def kinds(self) -> Mapping[str, GrainKind]:
        """Every kind that is known here, by name."""
        return self._kinds

    def _host(self, cls: type[Contract]) -> None:
        if not (isinstance(cls, type) and issubclass(cls, Grain)):
            raise ConfigError(f"Silo(grains=...): {cls!r} is not a Grain class")
        grain_type = cls.__millstream_type__
        other = self._kinds.get(grain_type.name)
        if other is not None and other.hosted is not None:
            raise ConfigError(
                f"two grain classes are named {grain_type.name!r}: "
                f"{public_name(other.hosted.cls)} and {public_name(cls)}; "
                "give one of them @grain(name=...)"
            )
        grain_type.resolve()
        self._add(grain_type.name, grain_type)

    def _add(self, name: str, hosted: GrainType | None) -> GrainKind:
        is_closed = hosted is not None and hosted.cls in self._brought
        kind = GrainKind(
            name,
            hosted,
            self,
            self.address,
            self._waiting_calls_max,
            self._waiting_bytes,
            Role.SILO if is_closed else Role.CLIENT,
        )
        self._kinds[name] = kind
        return kind

    def kind_named(self, name: str) -> GrainKind:
        """The kind of a name, made for types that are only called."""
        return self._kinds.get(name) or self._add(name, None)

    # -- references (`Runtime`)

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference. Raises TypeError: not a grain class, or a key that is not text."""
        made = self._classes.get(cls)
        if made is None:
            made = self._classes[cls] = self._make(cls, False)
        # what is neither may have a lone surrogate; these tests cost next to nothing
        if type(key) is not str or not (key.isascii() or key.isprintable()):
            check_text("the key of a grain", key)
        reference: C = made(key)
        return reference

    def grain_of(self, name: str, cls: type[C], key: str, /) -> C:
        """A reference to a grain of another type than its class says: one that derives from it.

        Raises TypeError beyond `VIEWS_MAX`.
        """
        made = self._views.get((name, cls))
        if made is None:
            if len(self._views) >= VIEWS_MAX:
                raise TypeError(f"{show_text(name)}: VIEWS_MAX is {VIEWS_MAX}")
            made = self._views[name, cls] = self._make(cls, False, name)
        reference: C = made(key)
        return reference

    def build_optioned(self, name: str, cls: type[Any]) -> type[OptionedReference]:
        """The class of references whose calls have options of their own (see `with_options`)."""
        made = self._optioned.get((name, cls))
        if made is None:
            made = self._optioned[name, cls] = self._make(cls, True, name)
        return made

    def _make(self, cls: type[Any], has_options: bool, name: str = "") -> type[Any]:
        is_root = cls in (Contract, Grain)  # fine for a grain that is named, as an argument may be
        if not (isinstance(cls, type) and issubclass(cls, Contract)) or (is_root and not name):
            raise TypeError(f"{cls!r} is not a Grain or Contract class")
        grain_type: GrainType = cls.__millstream_type__
        grain_type.resolve()
        self._known_errors.add(modules_of([cls]))
        return self._build(self.kind_named(name or grain_type.name), grain_type, has_options)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed stream handle. Raises TypeError: no namespace, or a key that is not text."""
        try:
            opened = namespace.open
        except AttributeError:
            raise TypeError(
                f"stream({show_text(repr(namespace))}, ...): the first argument is a namespace, "
                "such "
                'as StreamNamespace("arrivals", Item)'
            ) from None
        return opened(self, key)


def modules_of(classes: Sequence[type[Any]]) -> list[ModuleType]:
    """The modules in which the classes and their bases are defined."""
    names = {base.__module__ for cls in classes for base in cls.__mro__}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]
