"""Stream namespaces: a name and an item type.

Owns: `StreamNamespace` and its codec. Invariant: the codec is built on first use, at the latest
when a handler is marked or an item is published. Before that, annotations inside the item type may
name classes that are not defined yet. The item type itself must be defined when the namespace is
created.
"""

from __future__ import annotations

from inspect import isfunction
from typing import Any, Generic, TypeVar, get_args, get_origin, overload

from millstream.runtime import ConfigError, DefinitionError
from millstream.runtime.extending import Codec, Opener, check_text, codec_of, show_text

from .implicit import SubscriptionKinds
from .stream import Stream

__all__ = ["StreamNamespace", "SubscriptionKinds"]

T = TypeVar("T")


def _check(name: object, item: Any, provider: Any, subscriptions: object) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"StreamNamespace({name!r}): the first argument must be the name, a str: write "
            'StreamNamespace("name", Item)'
        )
    if not name or "/" in name:
        raise ConfigError(
            f"StreamNamespace({name!r}): the name must not be empty, and must not contain '/'"
        )
    check_text("the name of a namespace", name)
    if not (item is None or callable(item) or get_origin(item)) or isfunction(item):
        raise TypeError(
            f"StreamNamespace({name!r}, {show_text(repr(item))}): the second argument must be the "
            "type of the events"
        )
    check_text(f"StreamNamespace({name!r}): the name of a provider", provider)
    if not provider or "/" in provider:
        raise ConfigError(
            f"StreamNamespace({name!r}): provider={provider!r} is not the name of a stream "
            "provider: the name must not be empty, and must not contain '/'"
        )
    kinds = get_args(SubscriptionKinds)
    if subscriptions not in kinds:
        known = ", ".join(map(repr, kinds))
        raise ConfigError(
            f"StreamNamespace({name!r}): subscriptions={subscriptions!r}: write one of {known}"
        )


class StreamNamespace(Generic[T]):
    """All streams of one kind: a name, and the type of their events.

    Create one object per kind, usually as a constant of a module. Silos, clients, clusters and
    grains open a stream with `stream(namespace, key)`.

    ```python
    ARRIVALS = StreamNamespace("arrivals", Flight)

    await silo.stream(ARRIVALS, "BOS").publish(Flight("BA213"))
    ```

    Args:
        name: a `str`, not empty, without `/`; unique in its provider. Together with the key it
            names a stream.
        item: the type of the events. For a union write `StreamNamespace[A | B]("moves")`.
        provider: the name under which silos were given the provider.
        subscriptions: `"both"`; `"implicit"`: only marks create subscriptions, which saves the
            agent a lookup for each stream; `"explicit"`: marks create no subscriptions, but a
            marked method can be the handler of `Stream.subscribe`.

    Attributes:
        name: as in the arguments.
        provider: as in the arguments.
        subscriptions: as in the arguments.

    Raises:
        TypeError: the name is no `str`, or the item is no type.
        ConfigError: the name, the provider or `subscriptions` is not valid.
    """

    @overload
    def __init__(
        self,
        name: str,
        item: type[T],
        /,
        *,
        provider: str = "default",
        subscriptions: SubscriptionKinds = "both",
    ) -> None: ...
    @overload
    def __init__(
        self,
        name: str,
        /,
        *,
        provider: str = "default",
        subscriptions: SubscriptionKinds = "both",
    ) -> None: ...
    def __init__(
        self,
        name: str,
        item: Any = None,
        /,
        *,
        provider: str = "default",
        subscriptions: SubscriptionKinds = "both",
    ) -> None:
        _check(name, item, provider, subscriptions)
        self.name = name
        self.provider = provider
        self.subscriptions: SubscriptionKinds = subscriptions
        self._item = item
        self._codec: Codec[T] | None = None

    def __repr__(self) -> str:
        return f"StreamNamespace({self.name!r})"

    @property
    def item(self) -> Any:
        """The item type.

        Raises:
            DefinitionError: the namespace has no item type.
        """
        if self._item is None:
            arguments = get_args(getattr(self, "__orig_class__", None))
            if not arguments:
                raise DefinitionError(
                    f"{self!r} has no item type: write StreamNamespace({self.name!r}, Item)"
                )
            self._item = arguments[0]
        return self._item

    @property
    def codec(self) -> Codec[T]:
        """The codec of one item: `codec.decode(body)` decodes the `body` of a `DeliveryFailure`.

        The codec is built on first use.

        Raises:
            DefinitionError: the item type is missing or has no encoding.
        """
        if self._codec is None:
            self._codec = codec_of(self.item, f"items of {self!r}")
        return self._codec

    def open(self, runtime: Opener, key: str, /) -> Stream[T]:
        """Return the stream of a key; `stream(namespace, key)` calls this.

        Args:
            runtime: the silo, client, cluster or grain.
            key: the key.
        """
        return Stream(runtime, self, key)
