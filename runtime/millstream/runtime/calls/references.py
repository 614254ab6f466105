"""References to grains, for grains, programs and arguments.

`References` owns the grain kinds of one process, and one reference class with stubs per contract.
It is the `Runtime` for which codecs decode references and streams. A name has one kind forever,
because stubs and activations keep it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from millstream.runtime.codec.failures import rebuild
from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.definition.checks import is_root
from millstream.runtime.definition.filters import CallFilter
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
"""Number of grain types whose references one process decodes by an annotation with a base class."""

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
        address: the address of this process.
        grains: the hosted classes. Raises ConfigError for other objects, and for two classes of one
            name.
        waiting_calls_max: the most requests that may wait for one activation.
        waiting_bytes: counts the bytes of the requests that wait in this process.
        check_running: raises NotInCluster unless this process can make calls.
        part: returns the silo's part with a name. Raises ConfigError if there is none.
        incoming: the filters that run around calls of all hosted classes, except for those that
            parts bring.
        brought: the hosted classes that parts of the silo bring. Only silos may call them, except
            for methods with the mark `@open_to`.

    Code that opens streams also uses `check_running`, `part` and `gateway`. `gateway` reaches the
    cluster from outside, and is None in a silo. `open` is called once, before the first reference.
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
        incoming: Sequence[CallFilter] = (),
    ) -> None:
        self._incoming = incoming
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
        """Set the function that creates reference classes: `build(kind, type, has_options)`."""
        self._build, self.gateway = build, gateway

    def new_name(self) -> str:
        """Return a name that is unique in the whole life of the cluster."""
        self._names += 1
        return f"{self.address}.{self._names}"

    def decode_error(self, data: bytes, /) -> Exception:
        """Return the exception that `encode_error` encoded, or a GrainError for an unknown type."""
        return rebuild(data, self._known_errors)

    # -- kinds

    @property
    def kinds(self) -> Mapping[str, GrainKind]:
        """Every kind that this process knows, by name."""
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
            () if is_closed else self._incoming,
        )
        self._kinds[name] = kind
        return kind

    def kind_named(self, name: str) -> GrainKind:
        """Return the kind with this name. It is created for a type that is only called."""
        return self._kinds.get(name) or self._add(name, None)

    # -- references (`Runtime`)

    def grain(self, cls: type[C], key: str, /) -> C:
        """Return a typed reference.

        Raises TypeError if `cls` is no grain class or contract, or `key` is not text.
        """
        made = self._classes.get(cls)
        if made is None:
            made = self._classes[cls] = self._make(cls, False)
        # a key that passes neither cheap test may contain a lone surrogate
        if type(key) is not str or not (key.isascii() or key.isprintable()):
            check_text("the key of a grain", key)
        reference: C = made(key)
        return reference

    def grain_of(self, name: str, cls: type[C], key: str, /) -> C:
        """Return a reference to a grain of the type `name`, which derives from `cls`.

        Raises TypeError beyond `VIEWS_MAX`.
        """
        made = self._views.get((name, cls))
        if made is None:
            if len(self._views) >= VIEWS_MAX:
                raise TypeError(
                    f"{show_text(name)}: too many views of grains: VIEWS_MAX is {VIEWS_MAX}"
                )
            made = self._views[name, cls] = self._make(cls, False, name)
        reference: C = made(key)
        return reference

    def build_optioned(self, name: str, cls: type[Any]) -> type[OptionedReference]:
        """Return the class of references with options of their own (see `with_options`)."""
        made = self._optioned.get((name, cls))
        if made is None:
            made = self._optioned[name, cls] = self._make(cls, True, name)
        return made

    def _make(self, cls: type[Any], has_options: bool, name: str = "") -> type[Any]:
        is_contract = isinstance(cls, type) and issubclass(cls, Contract)
        # a base class itself is allowed only if a type name is given
        if not is_contract or (is_root(cls) and not name):
            raise TypeError(f"{cls!r} is not a Grain or Contract class")
        grain_type: GrainType = cls.__millstream_type__
        grain_type.resolve()
        self._known_errors.add(modules_of([cls]))
        return self._build(self.kind_named(name or grain_type.name), grain_type, has_options)

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """Return a typed stream handle.

        Raises TypeError if `namespace` is no namespace, or `key` is not text.
        """
        try:
            opened = namespace.open
        except AttributeError:
            raise TypeError(
                f"stream({show_text(repr(namespace))}, ...): the first argument must be a "
                'namespace, such as StreamNamespace("arrivals", Item)'
            ) from None
        return opened(self, key)


def modules_of(classes: Sequence[type[Any]]) -> list[ModuleType]:
    """Return the modules in which the classes and their bases are defined."""
    names = {base.__module__ for cls in classes for base in cls.__mro__}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]
