"""One grain type as one process sees it: what the paths of a call need, worked out once.

Owns: `GrainKind`. Not: activations (`catalog`), the definition itself (`definition`). Invariant:
nothing in it changes but who owns its activations, which is set before there is one; so whoever has
a call or an activation may read it at any time.
"""

from __future__ import annotations

from typing import Any, Protocol

from millstream.runtime.definition.grain import DeactivationReason, Grain, Runtime
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.markers import Flag
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.errors import NotHosted
from millstream.runtime.role import Role

from .mailbox import WaitingBytes

__all__ = ["GrainKind", "Owner"]


class Owner(Protocol):
    """What the activations of a kind ask of the catalog that makes them."""

    def end(self, activation: Any, reason: DeactivationReason, /) -> None:
        """Begin its end: no turn runs in it."""

    def deactivate(self, activation: Any, reason: DeactivationReason, /) -> None:
        """End it once its running turns have ended."""

    def check_running(self) -> None:
        """Raise NotInCluster once the silo has ended."""

    def extension_of(self, activation: Any, name: str, /) -> Any:
        """The extension of a name, made on first use; None if the silo has none of it."""


class GrainKind:
    """A grain type that this process hosts, or only calls.

    Args:
        name: the type's name on the wire.
        hosted: the class as it was defined, or None for a type that is only called.
        runtime: what gives references to values that arrive.
        silo: address of this process.
        waiting_calls_max: requests that may wait for one activation.
        waiting_bytes: counts the bytes of those of the whole process.
        open_to: who may call the methods that are not marked by `@open_to`.
    """

    __slots__ = (
        "has_activate_hook",
        "has_deactivate_hook",
        "hosted",
        "is_direct",
        "is_reentrant",
        "is_simple",
        "name",
        "open_to",
        "owner",
        "runtime",
        "silo",
        "stopping_hook",
        "waiting_bytes",
        "waiting_calls_max",
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
    ) -> None:
        self.name = name
        self.open_to = open_to
        self.owner: Owner | None = None  # one for all activations of it, so that they need no field
        self.hosted = hosted
        self.runtime = runtime
        self.silo = silo
        self.waiting_calls_max = waiting_calls_max
        self.waiting_bytes = waiting_bytes
        options = None if hosted is None else hosted.options
        self.is_reentrant = options is not None and options.reentrant
        self.is_direct = options is None or options.direct
        states = {} if hosted is None else hosted.states
        self.writes_each_turn = any(field.writes_each_turn for field in states.values())
        cls = Grain if hosted is None else hosted.cls
        self.has_activate_hook = cls.on_activate is not Grain.on_activate
        self.has_deactivate_hook = cls.on_deactivate is not Grain.on_deactivate
        marks = {} if hosted is None else hosted.marks
        hooks = [name for name, of_name in marks.items() if Flag("stopping") in of_name]
        self.stopping_hook = hooks[0] if hooks else ""
        self.is_simple = not states and not self.has_activate_hook

    def own_spec(self, spec: MethodSpec) -> MethodSpec:
        """The hosted class's method for a contract's; the contract's own if none is hosted.

        Raises NotHosted when the hosted class has no such method, or another signature.
        """
        if self.hosted is None:
            return spec
        found = self.hosted.spec_of(spec.wire_name)
        if found is None:
            raise NotHosted(
                f"{self.name} has no method {spec.wire_name!r}, which {spec.label} needs"
            )
        difference = spec.differs_from(found)
        if difference:
            raise NotHosted(f"{self.name}: {difference}")
        return found.see_through(spec)
