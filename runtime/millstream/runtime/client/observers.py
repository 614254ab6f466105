"""The observers of a client: objects that grains call.

`Observers` keeps the objects, and serves the calls that a gateway passes on (`Inbox`). A call runs
as it does in a silo: `calls/callee.py` accepts it, the turn rule admits it, and a runner task runs
it.
The module `attachment` keeps a gateway.

Invariants:

- Only observers whose context has not ended are called, and only through their own class.
- The client holds an object until its context has ended.
- An observer that has ended fails all later calls with ObserverGone, and those that waited.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from millstream.runtime.calls.engine import CallEngine
from millstream.runtime.codec.failures import describe
from millstream.runtime.definition.grain import DeactivationReason
from millstream.runtime.definition.grain_type import GrainType
from millstream.runtime.definition.names import OBSERVER_SIGN, observer_key
from millstream.runtime.definition.observer import Observer
from millstream.runtime.definition.reference import is_reference
from millstream.runtime.definition.reminders import Reminders
from millstream.runtime.definition.timers import Timer, TimerSchedule
from millstream.runtime.errors import (
    ConfigError,
    MillstreamError,
    NotInCluster,
    ObserverGone,
    Overloaded,
)
from millstream.runtime.public_names import public_name
from millstream.runtime.text import show_text
from millstream.runtime.turns.activation import Activation, ActivationState
from millstream.runtime.turns.kind import GrainKind
from millstream.runtime.turns.request import live_request
from millstream.runtime.wire.connection import Peer
from millstream.runtime.wire.message import Call, Failure

from .attachment import Attachment

__all__ = ["OBSERVERS_MAX", "Observers", "check_observer"]

OB = TypeVar("OB", bound=Observer)

OBSERVERS_MAX = 100_000
"""Observers that one client may have at a time."""


class Observers:
    """The observers of one client (`Inbox`, and `Owner` of their activations)."""

    def __init__(
        self, engine: CallEngine, attachment: Attachment, new_id: Callable[[], int]
    ) -> None:
        self._engine = engine
        self._client = engine.address
        self._attachment = attachment
        self.new_id = new_id
        self._here: dict[str, Activation] = {}
        self._kinds: dict[type[Observer], GrainKind] = {}
        self._ended: dict[Activation, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def hold(self, observer: OB) -> AsyncIterator[OB]:
        """Let grains call an object until the context ends. Gives the reference."""
        activation = self._add(observer)
        try:
            await self._attachment.ready()
            yield self._engine.references.grain(type(observer), activation.key)
        finally:
            await self._remove(activation)

    def _add(self, observer: Observer) -> Activation:
        if len(self._here) >= OBSERVERS_MAX:
            text = f"{self._client} has too many observers"
            raise Overloaded(text, "OBSERVERS_MAX", OBSERVERS_MAX)
        number = self.new_id()
        key = observer_key(self._client, number)
        activation = Activation(self._kind_of(type(observer)), key, number)
        activation.grain = observer
        activation.go_on(ActivationState.VALID)
        self._here[key] = activation
        return activation

    def _kind_of(self, cls: type[Observer]) -> GrainKind:
        kind = self._kinds.get(cls)
        if kind is None:
            kind = self._kinds[cls] = self._make_kind(cls)
        return kind

    def _make_kind(self, cls: type[Observer]) -> GrainKind:
        grain_type: GrainType = cls.__millstream_type__
        grain_type.resolve()
        engine, options = self._engine, self._engine.turns.options
        kind = GrainKind(
            grain_type.name,
            grain_type,
            engine.references,
            self._client,
            options.waiting_calls_max,
            engine.turns.waiting_bytes,
            incoming=engine.filters.incoming,
        )
        kind.owner = self
        return kind

    # -- ending

    async def _remove(self, activation: Activation) -> None:
        """End an observer: calls that wait fail, and calls that run are awaited."""
        self._here.pop(activation.key, None)
        if self._engine.turns.ended:
            return  # the client was closed: its calls were cancelled
        ended = self._ended[activation] = self._engine.loop.create_future()
        if activation.mailbox is not None:
            for entry in activation.mailbox.take_all():
                entry.fail(self._make_gone_error(activation.kind.name, activation.key))
        activation.end_soon(DeactivationReason.REQUESTED)
        if not is_inside(activation):
            await ended

    def _make_gone_error(self, kind: str, key: str) -> ObserverGone:
        name = show_text(f"{kind}/{key}")
        return ObserverGone(
            f"{name}: client {self._client} lives, but it does not have this observer any more: "
            "its `async with client.observe(...)` has ended"
        )

    def end(self, activation: Activation, reason: DeactivationReason, /) -> None:
        """Forget an observer whose context has ended, once no call of it runs (`Owner`)."""
        activation.abandon()
        activation.grain = None
        ended = self._ended.pop(activation, None)
        if ended is not None and not ended.done():
            ended.set_result(None)

    def close(self) -> None:
        """Let no context wait for the end of calls, because the client closes."""
        for activation in list(self._ended):
            self.end(activation, DeactivationReason.REQUESTED)

    # -- asked by activations (`Owner`)

    def deactivate(self, activation: Activation, reason: DeactivationReason, /) -> None:
        """Never called: an observer has no states and no context."""
        raise NotInCluster(f"{activation}: only its client ends an observer")

    def move(self, activation: Activation, to: str | None, /) -> None:
        """Never called: an observer has no context."""
        raise NotInCluster(f"{activation}: an observer stays in its client")

    def outgrow(self, activation: Activation, version: int, /) -> bool:
        """Never called: an observer has no versions."""
        return False

    def check_running(self) -> None:
        """Raise NotInCluster if the client was closed."""
        self._engine.turns.check_running()

    def extension_of(self, activation: Activation, name: str, /) -> None:
        """Return None: observers have no extensions."""

    def start_timer(self, activation: Activation, method: Any, schedule: TimerSchedule, /) -> Timer:
        """Never called: an observer has no timers."""
        raise NotInCluster(f"{activation}: an observer has no timers")

    def open_reminders(self, activation: Activation, /) -> Reminders:
        """Never called: an observer has no context."""
        raise NotInCluster(f"{activation}: an observer has no reminders")

    # -- calls (`Inbox`)

    def serve(self, peer: Peer, call: Call, /) -> None:
        """Accept a call to an observer. Other calls are refused."""
        try:
            self._take(peer, call)
        except MillstreamError as error:
            body = msgspec.Raw(describe(error, f"{call.kind}/{call.key}"))
            peer.served.refuse(call.id, Failure(call.id, body))

    def _take(self, peer: Peer, call: Call) -> None:
        if not call.kind.startswith(OBSERVER_SIGN):
            raise NotInCluster("a client serves no calls, except those to its observers")
        activation = self._here.get(call.key)
        if activation is None or activation.kind.name != call.kind:
            raise self._make_gone_error(call.kind, call.key)
        spec = self._engine.callee.admit(activation.kind, call)
        self._engine.callee.accept(peer, call, spec).submit(activation)

    def on_frame_end(self) -> None:
        """Do nothing: every call was accepted or refused when its frame was read."""


def is_inside(activation: Activation) -> bool:
    """Return True if the running task is a turn of an activation, or waits in one."""
    request = live_request()
    while request is not None:
        if request.activation is activation:
            return True
        request = request.parent
    return False


def check_observer(observer: object) -> None:
    """Check the argument of `Client.observe`.

    Raises TypeError for anything but an object of an Observer class, and ConfigError in a grain.
    """
    what = show_text(repr(observer))
    if is_reference(observer):
        raise TypeError(f"observe({what}): it is a reference already: pass it to grains as it is")
    if isinstance(observer, type) and issubclass(observer, Observer):
        name = observer.__name__
        raise TypeError(f"observe({name}): pass an object, and not the class: observe({name}(...))")
    if not isinstance(observer, Observer):
        raise TypeError(
            f"observe({what}): {public_name(type(observer))} is not an Observer class: derive it "
            "from `Observer`, as in `class Viewer(Observer)`"
        )
    if type(observer).__millstream_hosted__:
        raise TypeError(f"observe({what}): it is a grain: a grain passes `self` to other grains")
    request = live_request()
    if request is not None and request.activation is not None:
        kind: Any = getattr(request.activation, "kind", None)
        if kind is not None and not kind.is_observer:
            raise ConfigError(
                f"observe({what}) in a turn of {request.activation}: a grain cannot have "
                "observers: let its own class derive from the observer class, and pass `self`"
            )
