"""Broadcast channels as programs use them: a name, an item type, and handles to publish with.

Owns: `BroadcastChannel`, `Channel`. Not: the listeners, the calls (`fan_out`). Invariant: an item
is encoded once, and decoded for each listener.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from millstream.runtime import NotHosted
from millstream.runtime.extending import Codec, Gateway, Opener, check_text
from millstream.streams.api.namespace import StreamNamespace

from .target import Broadcaster, BroadcastTarget

__all__ = ["BroadcastChannel", "Channel"]

T = TypeVar("T")


class BroadcastChannel(Generic[T]):
    """All channels of one kind: a name, and the type of their items.

    A channel reaches the grains that listen to it now; nothing is stored. Silos, clients, clusters
    and grains open a channel with `stream(channel, key)`.

    ```python
    PRICES = BroadcastChannel("prices", Price)

    await silo.stream(PRICES, "BA").publish(Price(99))
    ```

    Args:
        name: a `str`, not empty, without `/`; unique in its provider. Together with the key it
            names a channel.
        item: the type of the items.
        provider: the name under which silos were given a `Broadcast`.

    Raises:
        TypeError: the name is no `str`, or the item is no type.
        ConfigError: the name or the provider is not valid.
    """

    def __init__(self, name: str, item: type[T], /, *, provider: str = "broadcast") -> None:
        self._kind = StreamNamespace(name, item, provider=provider)

    def __repr__(self) -> str:
        return f"BroadcastChannel({self.name!r})"

    @property
    def name(self) -> str:
        """The name of the channels."""
        return self._kind.name

    @property
    def provider(self) -> str:
        """Name of the provider."""
        return self._kind.provider

    @property
    def item(self) -> Any:
        """The item type."""
        return self._kind.item

    @property
    def codec(self) -> Codec[T]:
        """The codec of one item, built on first use.

        Raises:
            DefinitionError: the item type has no encoding.
        """
        return self._kind.codec

    def open(self, runtime: Opener, key: str, /) -> Channel[T]:
        """Return the channel of a key; `stream(channel, key)` calls this.

        Args:
            runtime: the silo, client, cluster or grain.
            key: the key.
        """
        check_text("the key of a channel", key)
        return Channel(runtime, self, key)


class Channel(Generic[T]):
    """One channel, as seen from a silo, a client, a cluster or a grain: `stream(channel, key)`.

    Attributes:
        key: the key of the channel.
    """

    __slots__ = ("_kind", "_runtime", "key")

    def __init__(self, runtime: Opener, kind: BroadcastChannel[T], key: str) -> None:
        self._runtime = runtime
        self._kind = kind
        self.key = key

    def __repr__(self) -> str:
        return f"<channel {self._kind.name}/{self.key}>"

    async def publish(self, item: T, /) -> None:
        """Send an item to every grain that listens now; nothing is stored for others.

        With `fire_and_forget`, the default of `Broadcast`, the call returns when the calls to the
        listeners are on their way. Otherwise it returns when all listeners have finished.

        Args:
            item: the item, of the channel's type.

        Raises:
            ExceptionGroup: without `fire_and_forget`, the errors of listeners; the other listeners
                got the item.
            TypeError: the item has the wrong type.
            Overloaded: `waiting_max` calls are on their way.
            NotHosted: no silo has the provider.
            ConfigError: this silo has no such provider.
            NotInCluster: the silo or client has ended.
        """
        runtime, kind = self._runtime, self._kind
        runtime.check_running()
        try:
            body = kind.codec.encode(item)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{kind!r}: item: {error}") from None
        if runtime.gateway is None:
            part: Broadcaster = runtime.part(kind.provider)
            await part.broadcast(kind.name, self.key, body)
        else:
            await self._through(runtime.gateway, body)

    async def _through(self, gateway: Gateway, body: bytes) -> None:
        kind = self._kind
        target = f"{BroadcastTarget.target_name}/{kind.provider}"
        publish = BroadcastTarget.publish
        try:
            await gateway.call(repr(self), target, publish, kind.name, self.key, body)
        except NotHosted as error:
            raise NotHosted(
                f"{self!r}: the cluster has no broadcast provider {kind.provider!r}. Try again if "
                "its silos are being restarted; otherwise correct BroadcastChannel(provider=...), "
                f"or Silo(streams=...); {error}"
            ) from None
