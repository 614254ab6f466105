"""System targets: actors of a silo at a fixed address, and calls to them.

Owns: `SystemTarget`, and `Targets`: those of one silo. Not: the targets themselves (`directory`,
`member`, the streams' agents). Invariants: a target's methods interleave at every await; calls to
the own silo's target are plain calls; a target call has a deadline and begins a chain of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from millstream.runtime.definition.markers import role_of
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import NotHosted
from millstream.runtime.role import Role
from millstream.runtime.wire.peers import Peers

from .remote import Remote

__all__ = ["SystemTarget", "Targets", "specs_of"]

P = ParamSpec("P")
R = TypeVar("R")


def specs_of(cls: type[Any], extension: str = "") -> dict[str, MethodSpec]:
    """Specs of the public async methods of a target or extension, inherited ones too, by wire
    name."""
    specs: dict[str, MethodSpec] = {}
    found = {name: fn for base in reversed(cls.__mro__) for name, fn in vars(base).items()}
    for name, fn in found.items():
        if name.startswith("_") or not hasattr(fn, "__code__") or not fn.__code__.co_flags & 0x80:
            continue
        spec = MethodSpec(cls.__name__, name, fn, getattr(fn, "__millstream__", []))
        spec.extension, spec.is_internal = extension, True
        role = role_of(cls, name)
        spec.open_to = Role.SILO if role is None else role
        spec.wire_name = f"{extension}.{name}" if extension else name
        fn.__millstream_spec__ = spec
        specs[spec.wire_name] = spec
    return specs


class SystemTarget:
    """Base of system targets; names begin with `$`, and may end in `/` and an instance's name.

    Silos may call every method; clients and operators those that `@open_to` opens to them.
    `together` has, for a method, the plain one that is tried before it while a frame is read, in no
    task: it gets the arguments of each call of the frame, and returns for each the result, the
    error, or NotImplemented: it has done nothing then. Calls with NotImplemented run behind the
    others.
    """

    target_name: ClassVar[str]
    target_specs: ClassVar[dict[str, MethodSpec]]
    together: ClassVar[Mapping[str, Callable[..., list[object]]]] = MappingProxyType({})

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.target_specs = specs_of(cls)


class Targets:
    """The system targets of one silo, and calls to those of every silo."""

    def __init__(self, address: str, peers: Peers, remote: Remote) -> None:
        self._address = address
        self._peers = peers
        self._remote = remote
        self._here: dict[str, SystemTarget] = {}
        self.find = self._here.get
        """The target of this silo by its name, or None; no frame of its own, for each call."""

    def add(self, target: SystemTarget, instance: str = "") -> None:
        """Make a system target callable, as its name or as `name/instance`."""
        name = target.target_name
        self._here[f"{name}/{instance}" if instance else name] = target

    def names(self) -> list[str]:
        """The names of this silo's targets, sorted."""
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
        """Call a method of a silo's target, by the target's name and the method's function:
        `targets.call(silo, T.target_name, T.lookup, ...)`.

        Raises what the method raises, CallTimeout, SiloUnavailable.
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
