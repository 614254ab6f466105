"""The items of generated events: made by the user's function, or defaults by item type.

This module owns `Generated`, `GeneratedEvent` and the default items. An item depends only on the
seed, the stream and its number, so a repeated read of a token has the same item.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import xxhash

from millstream.runtime import ConfigError, StreamError
from millstream.runtime.extending import check_kind
from millstream.streams.api.namespace import StreamNamespace
from millstream.streams.contracts.identity import StreamId

__all__ = ["Generated", "GeneratedEvent", "ItemMaker"]

T = TypeVar("T")
Make = Callable[[StreamId, int], Any]


@dataclass(frozen=True, slots=True)
class GeneratedEvent:
    """The default item of a generated event.

    Attributes:
        key: The key of the stream.
        number: The number of the event in its stream, from 0.
        value: A value in 0..2**63-1 that looks random and depends only on seed, stream and number.
    """

    key: str
    number: int
    value: int


@dataclass(frozen=True, slots=True)
class Generated(Generic[T]):
    """The events of one namespace: `Generated(ARRIVALS, lambda key, number: Flight(...))`.

    Attributes:
        namespace: The namespace of the events.
        make: A function of the stream's key and the event's number in the stream, from 0, that
            returns the item. It must be pure, because after a hand-over another process may make
            the same event again. None: default items. Then the item type must be `GeneratedEvent`,
            `int` (the number) or `str` (`key-number`).

    Raises:
        ConfigError: `namespace` is no `StreamNamespace`, `make` is no function, or the item type
            has no default items.
    """

    namespace: StreamNamespace[T]
    make: Callable[[str, int], T] | None = None

    def __post_init__(self) -> None:
        check_kind("Generated(namespace)", self.namespace, StreamNamespace)
        if self.make is not None and not callable(self.make):
            what = f"Generated({self.namespace!r}, {self.make!r})"
            raise ConfigError(f"{what}: make must be a function of key and number")
        if self.make is None and self.namespace.item not in DEFAULT_ITEMS:
            known = ", ".join(sorted(item.__name__ for item in DEFAULT_ITEMS))
            raise ConfigError(
                f"Generated({self.namespace!r}): {self.namespace.item!r} has no default items "
                f"({known} have); give a function: Generated(namespace, make)"
            )


def value_of(seed: int, stream: StreamId, number: int) -> int:
    """Return a value in 0..2^63-1 that looks random and is the same in every process."""
    name = f"{seed}\0{stream.namespace}\0{stream.key}\0{number}"
    return xxhash.xxh3_64_intdigest(name.encode()) >> 1


DEFAULT_ITEMS: Mapping[Any, Callable[[int, StreamId, int], Any]] = {
    GeneratedEvent: lambda seed, stream, number: GeneratedEvent(
        stream.key, number, value_of(seed, stream, number)
    ),
    int: lambda seed, stream, number: number,
    str: lambda seed, stream, number: f"{stream.key}-{number}",
}


class ItemMaker:
    """Makes and encodes the items of one namespace."""

    __slots__ = ("_codec", "_make", "_seed")

    def __init__(self, generated: Generated[Any], seed: int) -> None:
        self._codec = generated.namespace.codec
        self._seed = seed
        self._make = self._default(generated) if generated.make is None else user_make(generated)

    def _default(self, generated: Generated[Any]) -> Make:
        make = DEFAULT_ITEMS[generated.namespace.item]
        return lambda stream, number: make(self._seed, stream, number)

    def encode(self, stream: StreamId, number: int) -> bytes:
        """Return the encoded item. Raises StreamError that names an event that cannot be made."""
        try:
            return self._codec.encode(self._make(stream, number))
        except Exception as error:
            raise StreamError(
                f"{stream}: event {number} could not be made: {type(error).__name__}: {error}"
            ) from error


def user_make(generated: Generated[Any]) -> Make:
    """Adapt the user's function, which gets only the key of a stream."""
    make = generated.make
    assert make is not None
    return lambda stream, number: make(stream.key, number)
