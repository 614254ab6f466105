"""What a silo and a client have in common: references, pending calls, connections.

Owns: grain tables, reference classes, the loop's deadline sweep and yield budget. Not: activations
(`catalog`), routing (`silo_host`, `client`). Invariants: everything here belongs to one loop; a
table's `activations` dictionary is never replaced, since stubs hold it.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from millstream.runtime.codec.known_errors import KnownErrors
from millstream.runtime.definition.grain import Contract, Grain, Openable
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.method import MethodSpec
from millstream.runtime.definition.reference import OptionedReference
from millstream.runtime.env import Env
from millstream.runtime.errors import ConfigError, NotInCluster
from millstream.runtime.options import RuntimeOptions
from millstream.runtime.tasks import Tasks
from millstream.runtime.text import check_text
from millstream.runtime.turns.budget import Budget
from millstream.runtime.turns.catalog import GrainTable
from millstream.runtime.turns.deadlines import Pending
from millstream.runtime.turns.request import find_task
from millstream.runtime.wire.connection import LocalEnd, Peer
from millstream.runtime.wire.greeting import Identity
from millstream.runtime.wire.message import Call
from millstream.runtime.wire.outbox import Outbox
from millstream.runtime.wire.peers import Peers
from millstream.runtime.wire.transport import Transport

from .callee import Runners
from .search import Place
from .stubs import build_reference_class

__all__ = ["Gateway", "Host", "Router"]

C = TypeVar("C", bound=Contract)
H = TypeVar("H")
P = ParamSpec("P")
R = TypeVar("R")

log = logging.getLogger("millstream.host")


class Router(Protocol):
    """Where the calls of a host go."""

    def find(self, table: GrainTable, key: str, /) -> Place | None: ...
    def stand(
        self, table: GrainTable, key: str, pause_s: float = 0.0, /
    ) -> asyncio.Future[Place]: ...
    def moved(self, table: GrainTable, key: str, peer: Peer, silo: str, /) -> None: ...
    def lost(self, table: GrainTable, key: str, /) -> None: ...
    def learn(self, kind: str, key: str, silo: str, /) -> None: ...
    def resend(self, call: Call, /) -> None: ...


class Gateway(Protocol):
    """Calls to system targets of the cluster, from outside of it."""

    @property
    def frame_bytes_max(self) -> int: ...
    def call(
        self,
        name: str,
        target: str,
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Coroutine[Any, Any, R]:
        """Call a target of the gateway that serves `name`: calls of one name keep their order."""
        ...


class Host:
    """Base of `SiloHost` and `ClientHost`."""

    is_silo = False
    router: Router

    def __init__(
        self,
        *,
        cluster: str,
        address: str,
        grains: Sequence[type[Contract]],
        options: RuntimeOptions,
        env: Env,
        transport: Transport,
    ) -> None:
        self.cluster = cluster
        self.address = address
        self.options = options
        self.env = env
        self.transport = transport
        self.is_running = False
        self.loop = asyncio.get_running_loop()
        self.find_task: Callable[[], Any] = find_task(self.loop)
        self.pending = Pending(self.loop, options.sweep_s)
        self.budget = Budget(self.loop.time, options.slice_s)
        self.outbox = Outbox(self.loop)
        self.runners = Runners(self)
        self.shielded = Tasks(self.loop, env.new_context)
        self.extension_specs: dict[str, MethodSpec] = {}
        self._tasks = Tasks(self.loop, env.new_context)
        identity = Identity(cluster, address, self.is_silo)
        self.end = LocalEnd(identity, options, self.loop, self._tasks, self.outbox)
        self.peers = Peers(
            self.end,
            transport,
            Tasks(self.loop, env.new_context),
            has_left=self.has_left,
            lost=self.peer_lost,
        )
        self._classes: dict[type[Any], type[Any]] = {}
        self._optioned: dict[type[Any], type[OptionedReference]] = {}
        self.tables: dict[str, GrainTable] = {}
        for cls in grains:
            self._add_grain(cls)
        self.known_errors = KnownErrors(modules_of(grains))

    def _add_grain(self, cls: type[Contract]) -> None:
        if not (isinstance(cls, type) and issubclass(cls, Grain)):
            raise ConfigError(f"Silo(grains=...): {cls!r} is not a Grain class")
        grain_type = cls.__millstream_type__
        other = self.tables.get(grain_type.name)
        if other is not None and other.hosted is not None:
            raise ConfigError(
                f"two grain classes are named {grain_type.name!r}: {other.hosted.cls.__module__}."
                f"{other.hosted.cls.__qualname__} and {cls.__module__}.{cls.__qualname__}; "
                "give one of them @grain(name=...)"
            )
        grain_type.resolve()
        self.tables[grain_type.name] = GrainTable(self, grain_type.name, grain_type)

    # -- references

    def table_of(self, grain_type: GrainType) -> GrainTable:
        """The table of a type, made for types that are only called."""
        table = self.tables.get(grain_type.name)
        if table is None:
            grain_type.resolve()
            table = self.tables[grain_type.name] = GrainTable(self, grain_type.name, None)
        return table

    def table_named(self, name: str) -> GrainTable:
        """The table of a grain type by name, for callers without its class."""
        table = self.tables.get(name)
        if table is None:
            table = self.tables[name] = GrainTable(self, name, None)
        return table

    def grain(self, cls: type[C], key: str, /) -> C:
        """A typed reference. Raises TypeError: not a grain class, or a key that is not text."""
        made = self._classes.get(cls)
        if made is None:
            made = self._reference_class(cls)
        # what is neither may have a lone surrogate; these tests cost next to nothing
        if type(key) is not str or not (key.isascii() or key.isprintable()):
            check_text("the key of a grain", key)
        reference: C = made(key)
        return reference

    def _reference_class(self, cls: type[Any]) -> type[Any]:
        if not (isinstance(cls, type) and issubclass(cls, Contract)):
            raise TypeError(f"{cls!r} is not a Grain or Contract class")
        grain_type = cls.__millstream_type__
        self.known_errors.add(modules_of([cls]))
        made = build_reference_class(self, self.table_of(grain_type), grain_type)
        self._classes[cls] = made
        return made

    def optioned(self, cls: type[Any]) -> type[OptionedReference]:
        """The class of references whose calls have options of their own (see `with_options`)."""
        made = self._optioned.get(cls)
        if made is None:
            grain_type = cls.__millstream_type__
            table = self.table_of(grain_type)
            made = build_reference_class(self, table, grain_type, OptionedReference)
            self._optioned[cls] = made
        return made

    def stream(self, namespace: Openable[H], key: str, /) -> H:
        """A typed stream handle."""
        return namespace.open(self, key)

    @property
    def gateway(self) -> Gateway | None:
        """What reaches a cluster from outside; None in a silo."""
        return None

    def part(self, name: str, /) -> Any:
        """The silo's part of a name. Raises ConfigError; a client has none."""
        raise ConfigError(f"{self.address} is a client and has no parts")

    # -- running

    def check_running(self) -> None:
        """Raise NotInCluster unless started and not stopped."""
        if not self.is_running:
            raise NotInCluster(self._explain_end())

    def _explain_end(self) -> str:
        if self.is_silo:
            return (
                f"silo {self.address} was stopped or evicted: use one that runs, or start another"
            )
        return f"client {self.address} was closed: open another by `async with connect(...)`"

    def spawn(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a background task of the host; its failure is logged."""
        task = self._tasks.start(coro)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: a background task failed", self.address, exc_info=task.exception())

    async def close_calls(self) -> None:
        """End everything that is pending, and every connection."""
        self.is_running = False
        for table in self.tables.values():
            for activation in table.activations.values():
                activation.abandon()
            table.activations.clear()
        await self._tasks.aclose()
        await self.shielded.aclose()
        await self.runners.aclose()
        await self.peers.aclose()
        self.pending.close()

    # -- asked by connections

    def has_left(self, silo: str) -> bool:
        """Is the silo known to be stopping, so that no connection to it should be opened?"""
        return False

    def peer_lost(self, name: str) -> None:
        """A connection closed."""


def modules_of(classes: Sequence[type[Any]]) -> list[ModuleType]:
    """The modules in which the classes and their bases are defined."""
    names = {base.__module__ for cls in classes for base in cls.__mro__}
    return [sys.modules[name] for name in sorted(names) if name in sys.modules]
