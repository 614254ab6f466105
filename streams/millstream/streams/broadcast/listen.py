"""The `@listen` mark: grains that hear a broadcast channel.

Owns: the mark, and what it tells the cluster. Not: the calls (`fan_out`). Invariant: the key of the
channel is the key of the grain.
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
    """What the publisher has to know of a mark."""

    provider: str
    channel: str
    grain_type: str
    handler: str


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Listener).decode


class ListenMark(Mark):
    """What `@listen` says of a handler."""

    makes_local = True

    def __init__(self, channel: BroadcastChannel[Any]) -> None:
        self.channel = channel

    @property
    def part(self) -> str:
        """The provider, without which nothing would ever be heard."""
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
            return  # not defined yet: a type checker sees it
        if hint is None or not accepts(hint, channel.item):
            raise DefinitionError(
                f"{subject}: {channel!r} has items of {text_of(channel.item)}: annotate "
                f"`{parameter}: {text_of(channel.item)}`"
            )

    def declare(self, grain_type: str, method: str) -> Declaration | None:
        """What every silo has to know, whichever grains it hosts."""
        channel = self.channel
        listener = Listener(channel.provider, channel.name, grain_type, method)
        return Declaration(KIND, _encode(listener))


def listeners_in(declarations: list[Declaration], provider: str) -> dict[str, set[Listener]]:
    """Who listens to the channels of a provider, by the channel's name."""
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
    """Let every grain of the class hear the channel with its own key; what is published wakes it.

    Raises DefinitionError when the class is defined.
    """
    return _Hears(ListenMark(channel))
