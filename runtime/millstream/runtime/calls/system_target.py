"""System targets: actors of a silo at a fixed address, and calls to them.

`Targets` keeps the targets of one silo. The targets themselves belong to other packages, for
example `directory`, `member`, and the agents of streams.

Invariants:

- A target's methods interleave at every await.
- Calls to a target of the own silo are plain calls.
- A call of a target over a connection has a deadline and begins a chain of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from millstream.runtime.definition.markers import role_of
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import NotHosted
from millstream.runtime.role import Role
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.peers import Peers

from .remote import Remote

__all__ = ["SystemTarget", "Targets", "specs_of"]

P = ParamSpec("P")
R = TypeVar("R")


def specs_of(cls: type[Any], extension: str = "") -> dict[str, MethodSpec]:
    """Return the specs of the public async methods of a target or extension, by wire name.

    Inherited methods are included.
    """
    specs: dict[str, MethodSpec] = {}
    found = {name: fn for base in reversed(cls.__mro__) for name, fn in vars(base).items()}
    for name, fn in found.items():
        if name.startswith("_") or not hasattr(fn, "__code__") or not fn.__code__.co_flags & 0x80:
            continue
        spec = MethodSpec(cls.__name__, name, fn, getattr(fn, "__millstream__", []))
        spec.extension, spec.is_internal, spec.is_filtered = extension, True, False
        role = role_of(cls, name)
        spec.open_to = Role.SILO if role is None else role
        spec.wire_name = f"{extension}.{name}" if extension else name
        fn.__millstream_spec__ = spec
        specs[spec.wire_name] = spec
    return specs


class SystemTarget:
    """The base class of system targets: actors at a fixed address in each silo.

    Define `target_name` and public async methods, and add an object by
    `services.targets.add(target)`. The methods interleave at every await. By default only silos may
    call them; `@open_to(role)` opens a method to operators or clients. A call has a deadline, and
    begins a chain of calls of its own.

    ```python
    class Limits(SystemTarget):
        target_name = "$limits"

        @open_to(Role.CLIENT)
        async def figures(self) -> list[int]:
            ...
    ```

    Attributes:
        target_name: The name of the target. It begins with `$`.
        target_specs: The methods that can be called, by name. Set when the class is defined.
        together: For some methods, a plain function that takes all calls of one frame together,
            before any task starts. It gets the arguments of each call. For each call it returns the
            result, an error, or NotImplemented if it did nothing. A call with NotImplemented then
            runs as a usual call of the method.
    """

    target_name: ClassVar[str]
    target_specs: ClassVar[dict[str, MethodSpec]]
    together: ClassVar[Mapping[str, Callable[..., list[object]]]] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.target_specs = specs_of(cls)

    def bind(self, peer: Peer) -> SystemTarget:
        """Return the object whose methods run for the calls of a connection: this one.

        A target whose answers depend on the calling process overrides it.

        Args:
            peer: The connection. It has the name and the role of the process.
        """
        return self


class Targets:
    """The system targets of one silo, and calls to those of every silo, as
    `SiloServices.targets`.
    """

    def __init__(self, address: str, peers: Peers, remote: Remote) -> None:
        self._address = address
        self._peers = peers
        self._remote = remote
        self._here: dict[str, SystemTarget] = {}
        self.find = self._here.get
        """Returns the target of this silo with a name, or None. A bound method saves a call."""

    def add(self, target: SystemTarget, instance: str = "") -> None:
        """Make a system target callable in this silo.

        Args:
            target: The target.
            instance: Empty: the target has its `target_name`. Else its name is
                `target_name/instance`.
        """
        name = target.target_name
        self._here[f"{name}/{instance}" if instance else name] = target

    def names(self) -> list[str]:
        """Return the names of this silo's targets, sorted."""
        return sorted(self._here)

    async def call(
        self,
        silo: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R:
        """Call a method of a system target in any silo.

        ```python
        await services.targets.call(silo, Limits.target_name, Limits.figures)
        ```

        A call to the own silo is a plain call of the method. Errors of the method reach the caller.

        Args:
            silo: The address of the silo, `host:port@generation`.
            target: The name of the target.
            method: The method, as the function in the class of the target.
            args: The arguments of the method, by position.
            kwargs: Not allowed.

        Returns:
            The result of the method.

        Raises:
            CallTimeout: The deadline has passed.
            SiloUnavailable: The silo cannot be reached, or the connection broke.
            NotHosted: The silo has no such target.
        """
        assert not kwargs
        if silo == self._address:
            local = self._here.get(target)
            if local is None:
                raise NotHosted(f"{silo} has no system target {target}")
            return await method(local, *args, **kwargs)
        spec: MethodSpec = method.__millstream_spec__  # type: ignore[attr-defined]
        peer = self._peers.get(silo, is_system=True)
        result: R = await self._remote.call(peer, target, "", spec, args)
        return result
