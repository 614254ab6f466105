"""The `@listen` mark: grains that hear a broadcast channel.

Owns: the mark, and the data that the cluster learns of it. Not: the calls (`fan_out`). Invariant:
the key of the channel is the key of the grain.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar, get_type_hints

import msgspec

from millstream.runtime import DefinitionError
from millstream.runtime.extending import Declaration, Mark, add_mark, source_of
from millstream.streams.api.handlers import accepts, parameter_of, text_of

from .channel import BroadcastChannel

__all__ = ["ListenMark", "Listener", "listen", "listeners_in"]

T = TypeVar("T")
G = TypeVar("G")
KIND = "listen"


class Listener(msgspec.Struct, array_like=True, frozen=True):
    """The part of a mark that a publisher needs."""

    provider: str
    channel: str
    grain_type: str
    handler: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Listener).decode


class ListenMark(Mark):
    """The data of `@listen` on a handler."""

    makes_local = True
    needs_one_activation = True

    def __init__(self, channel: BroadcastChannel[Any]) -> None:
        self.channel = channel

    @property
    def part(self) -> str:
        """The provider that the silo needs, because no other part calls the handler."""
        return self.channel.provider if isinstance(self.channel, BroadcastChannel) else ""

    def __str__(self) -> str:
        return f"`@listen({self.channel!r})`"

    def define(self, owner: type, name: str, fn: Callable[..., Any]) -> None:
        """Check the handler. Raises DefinitionError with file and line."""
        subject = f"{source_of(fn)}: {owner.__name__}.{name}"
        channel = self.channel
        if not isinstance(channel, BroadcastChannel):
            raise DefinitionError(
                f"{subject}: `@listen` takes a channel, such as "
                f'BroadcastChannel("prices", Item), not {channel!r}'
            )
        try:
            channel.codec  # noqa: B018  builds it
        except DefinitionError as error:
            raise DefinitionError(f"{subject}: {error}") from None
        parameter = parameter_of(fn, subject, text_of(channel.item))
        try:
            hint = get_type_hints(fn, include_extras=True).get(parameter)
        except NameError:
            return  # not defined yet: a type checker checks it
        if hint is None or not accepts(hint, channel.item):
            raise DefinitionError(
                f"{subject}: {channel!r} has items of {text_of(channel.item)}: annotate "
                f"`{parameter}: {text_of(channel.item)}`"
            )

    def declare(self, grain_type: str, method: str) -> Declaration | None:
        """The data that every silo needs, whichever grains it hosts."""
        channel = self.channel
        listener = Listener(channel.provider, channel.name, grain_type, method)
        return Declaration(KIND, _encode(listener))


def listeners_in(declarations: list[Declaration], provider: str) -> dict[str, set[Listener]]:
    """The listeners of the channels of a provider, by the channel's name."""
    found: dict[str, set[Listener]] = {}
    for one in declarations:
        if one.kind == KIND:
            listener = _decode(one.body)
            if listener.provider == provider:
                found.setdefault(listener.channel, set()).add(listener)
    return found


class _Hears(Generic[T]):
    def __init__(self, mark: ListenMark) -> None:
        self._mark = mark

    def __call__(
        self, method: Callable[[G, T], Coroutine[Any, Any, None]], /
    ) -> Callable[[G, T], Coroutine[Any, Any, None]]:
        add_mark(method, self._mark)
        return method


def listen(channel: BroadcastChannel[T], /) -> _Hears[T]:
    """Let every grain of the class hear the channel with the grain's own key.

    Put it on an `async def` method with one argument, the item. A published item activates the
    grain.

    Args:
        channel: the channels to hear.

    Raises:
        DefinitionError: the method cannot take the items; raised with file and line when the class
            is defined.
    """
    return _Hears(ListenMark(channel))
