"""Stream namespaces: a name and an item type.

Owns: `StreamNamespace` and its codec. Invariants: the item type is known when a handler is marked
or an item is published, not necessarily when the namespace is made.
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
            f"StreamNamespace({name!r}): the first argument is the name, a str: write "
            'StreamNamespace("name", Item)'
        )
    if not name or "/" in name:
        raise ConfigError(f"StreamNamespace({name!r}): a name is not empty and has no '/'")
    check_text("the name of a namespace", name)
    if not (item is None or callable(item) or get_origin(item)) or isfunction(item):
        raise TypeError(
            f"StreamNamespace({name!r}, {show_text(repr(item))}): the second argument is the type "
            "of the events"
        )
    check_text(f"StreamNamespace({name!r}): the name of a provider", provider)
    if not provider or "/" in provider:
        raise ConfigError(
            f"StreamNamespace({name!r}): provider={provider!r} is no name that a stream provider "
            "can have: it is not empty and has no '/'"
        )
    kinds = get_args(SubscriptionKinds)
    if subscriptions not in kinds:
        known = ", ".join(map(repr, kinds))
        raise ConfigError(
            f"StreamNamespace({name!r}): subscriptions={subscriptions!r} is none of {known}"
        )


class StreamNamespace(Generic[T]):
    """All streams of one kind: `ARRIVALS = StreamNamespace("arrivals", Flight)`.

    Args:
        name: unique in its provider; with the key it names a stream.
        item: the type of the events; for unions write `StreamNamespace[A | B]("moves")`.
        provider: the name under which silos were given the provider.
        subscriptions: "implicit" spares the agent a question per stream when only marked
            handlers subscribe; "explicit" leaves marked handlers out.

    Raises TypeError (the name is no str, the item no type) or ConfigError.
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
        """The item type. Raises DefinitionError if none was given."""
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
        """Codec of one item, built on first use."""
        if self._codec is None:
            self._codec = codec_of(self.item, f"items of {self!r}")
        return self._codec

    def open(self, runtime: Opener, key: str, /) -> Stream[T]:
        """The stream of a key; used by `stream(namespace, key)`."""
        return Stream(runtime, self, key)
