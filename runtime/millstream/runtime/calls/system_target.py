"""System targets: actors of a silo at a fixed address, and calls to them.

Owns: `SystemTarget`, and `Targets`: those of one silo. Not: the targets themselves (`directory`,
`member`, the streams' agents). Invariants: a target's methods interleave at every await; calls to
the own silo's target are plain calls; a target call has a deadline and begins a chain of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import Rejected, SiloUnavailable
from millstream.runtime.turns.run import finish, settle, timed_out

from .caller import ask, new_request, take_answer

if TYPE_CHECKING:
    from millstream.runtime.silo.parts import SiloHost

__all__ = ["SystemTarget", "Targets", "specs_of"]

P = ParamSpec("P")
R = TypeVar("R")


def specs_of(cls: type[Any], extension: str = "") -> dict[str, MethodSpec]:
    """Specs of the public async methods of a target or extension, by wire name."""
    specs: dict[str, MethodSpec] = {}
    for name, fn in vars(cls).items():
        if name.startswith("_") or not hasattr(fn, "__code__") or not fn.__code__.co_flags & 0x80:
            continue
        spec = MethodSpec(cls.__name__, name, fn, getattr(fn, "__millstream__", []))
        spec.extension, spec.is_internal = extension, True
        spec.wire_name = f"{extension}.{name}" if extension else name
        fn.__millstream_spec__ = spec
        specs[spec.wire_name] = spec
    return specs


class SystemTarget:
    """Base of system targets; names begin with `$`, and may end in `/` and an instance's name."""

    target_name: ClassVar[str]
    target_specs: ClassVar[dict[str, MethodSpec]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.target_specs = specs_of(cls)


class TargetTable:
    """Stands for a grain table where a message is addressed to a system target."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Targets:
    """The system targets of one silo, and calls to those of every silo."""

    def __init__(self, host: SiloHost) -> None:
        self._host = host
        self._here: dict[str, SystemTarget] = {}

    def add(self, target: SystemTarget, instance: str = "") -> None:
        """Make a system target callable, as its name or as `name/instance`."""
        name = target.target_name
        self._here[f"{name}/{instance}" if instance else name] = target

    def find(self, name: str) -> SystemTarget | None:
        """The target of this silo by its name, or None."""
        return self._here.get(name)

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
        if silo == self._host.address:
            local = self._here.get(target)
            if local is None:
                raise Rejected(f"{silo} has no system target {target}")
            return await method(local, *args, **kwargs)
        result: R = await _call_remote(self._host, silo, target, method, args)
        return result


async def _call_remote(
    host: SiloHost, silo: str, name: str, method: Any, args: tuple[Any, ...]
) -> Any:
    spec: MethodSpec = method.__millstream_spec__
    peer = host.peers.get(silo, is_system=True)
    if peer is None:
        raise SiloUnavailable(f"{silo} is not a member")
    request = new_request(host, spec, None, False, begins_chain=True)
    failed: BaseException | None = None
    result = None
    try:
        body = spec.arguments.encode(args)
        table: Any = TargetTable(name)
        if not peer.is_ready:
            await peer.ready()
        answer = await ask(host, peer, table, "", body, request, 0)
        result = take_answer(host, spec, answer)
    except BaseException as error:
        failed = settle(host, request, error)
    else:
        finish(host, request)
        if request.expired:
            failed = timed_out(host, request)
    if failed is not None:
        try:
            raise failed
        finally:
            failed = request = None  # type: ignore[assignment]
    return result
