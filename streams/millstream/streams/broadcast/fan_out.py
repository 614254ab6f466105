"""Broadcasting in one silo: the listeners, and a call to each.

Owns: `Broadcast`, the part of a silo. Not: marks (`listen`), handles (`channel`). Invariants: the
rows of live silos name the listeners. The calls for one item leave in one iteration of the event
loop, so that the calls to one silo share a frame. A listener that fails, is slow or has ended does
not affect others. At most `waiting_max` calls are on their way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from millstream.runtime import Overloaded, Status, TableView
from millstream.runtime.extending import (
    ExtendedGrain,
    SiloPart,
    SiloServices,
    Tasks,
    check_fields,
    check_kind,
)

from .listen import Listener, ListenMark, listeners_in
from .target import BroadcastTarget

__all__ = ["Broadcast", "BroadcastOptions", "Hearer"]

log = logging.getLogger("millstream.broadcast")

WARN_EVERY_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BroadcastOptions:
    """How a silo broadcasts. Raises `ConfigError` if a value is not valid.

    Attributes:
        fire_and_forget: `publish` does not wait for the listeners; their errors are logged.
        waiting_max: calls that may be on their way from one silo, above 0. Beyond that, `publish`
            raises `Overloaded`.
    """

    fire_and_forget: bool = True
    waiting_max: int = 10_000

    def __post_init__(self) -> None:
        check_fields(self)


class Hearer:
    """Extension `broadcast` of a grain's activation."""

    def __init__(self, grain: ExtendedGrain) -> None:
        self._grain = grain

    async def hear(self, channel: str, handler: str, body: bytes) -> None:
        """Run the handler of a channel. Raises its errors."""
        for mark in self._grain.marks(handler):
            if isinstance(mark, ListenMark) and mark.channel.name == channel:
                item = mark.channel.codec.decode(body, self._grain.runtime)
                await getattr(self._grain.grain, handler)(item)
                return
        raise LookupError(f"{self._grain} has no handler {handler!r} for channel {channel!r}")


class Broadcast(SiloPart):
    """The provider of broadcast channels in a silo: `Silo(streams={"broadcast": Broadcast()})`.

    Make one object per silo.

    Args:
        options: the options. None: the defaults.

    Attributes:
        failed_count: calls to listeners that failed since the start.

    Raises:
        ConfigError: `options` has another type.
    """

    def __init__(self, options: BroadcastOptions | None = None, /) -> None:
        self._options = BroadcastOptions() if options is None else options
        check_kind("Broadcast(options)", self._options, BroadcastOptions)
        self._listeners: dict[str, Sequence[Listener]] = {}
        self._unwatch: Callable[[], None] = lambda: None
        self._tasks: Tasks
        self._services: SiloServices
        self._name = ""
        self._warn_at_s = 0.0
        self.failed_count = 0

    async def open(self, services: SiloServices, name: str, /) -> None:
        """Start; publishing works from here on. The silo calls this.

        Args:
            services: the services of the silo.
            name: name of the provider.
        """
        self._services, self._name, self._tasks = services, name, services.new_tasks()
        services.extensions.add("broadcast", Hearer)
        services.targets.add(BroadcastTarget(self), name)
        self._follow(services.members.view)
        self._unwatch = services.members.watch(self._follow)

    def _follow(self, view: TableView) -> None:
        live = [row for row in view.rows if row.status is not Status.DEAD]
        marks = [one for row in live for one in row.declarations]
        self._listeners = {
            channel: sorted(found, key=lambda one: (one.grain_type, one.handler))
            for channel, found in listeners_in(marks, self._name).items()
        }

    async def broadcast(self, name: str, key: str, body: bytes, /) -> None:
        """Call every listener of a channel; `Channel.publish` calls this.

        Args:
            name: name of the channels.
            key: key of the channel.
            body: the encoded item.

        Raises:
            Overloaded: `waiting_max` calls are on their way.
            ExceptionGroup: without `fire_and_forget`, the errors of listeners.
        """
        listeners = self._listeners.get(name, ())
        waiting, limit = len(self._tasks), self._options.waiting_max
        if waiting + len(listeners) > limit:
            raise Overloaded(
                f"{self._name}: {waiting} calls to listeners are in flight",
                "waiting_max",
                limit,
            )
        calls = [self._tasks.start(self._tell(one, key, body)) for one in listeners]
        if not self._options.fire_and_forget and calls:
            errors = [error for error in await asyncio.gather(*calls) if error is not None]
            if errors:
                raise ExceptionGroup(
                    f"{name}/{key}: {len(errors)} of {len(calls)} listeners failed", errors
                )

    async def _tell(self, listener: Listener, key: str, body: bytes) -> Exception | None:
        hear = self._services.extensions.method(listener.grain_type, Hearer.hear)
        try:
            await hear(key, listener.channel, listener.handler, body)
        except Exception as error:
            self.failed_count += 1
            if self._options.fire_and_forget:
                self._warn(listener, key, error)
            return error
        return None

    def _warn(self, listener: Listener, key: str, error: Exception) -> None:
        now_s = self._services.clock.now()
        if now_s >= self._warn_at_s:
            self._warn_at_s = now_s + WARN_EVERY_S
            where = f"{listener.grain_type}/{key}.{listener.handler}"
            text = "the call of %s for channel %s failed: %s: %s (%d failed since the start)"
            name = type(error).__name__
            log.warning(text, where, listener.channel, name, error, self.failed_count)

    async def stop(self) -> None:
        """Stop following the listeners; calls on their way continue. The silo calls this."""
        self._unwatch()

    async def aclose(self) -> None:
        """End the calls. The silo calls this."""
        await self._tasks.aclose()

    def abort(self) -> None:
        """End at once. The silo calls this."""
        self._unwatch()
        if self._name:
            self._tasks.cancel()
