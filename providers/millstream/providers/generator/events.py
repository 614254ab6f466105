"""The items of generated events: what the user's function makes, or a default by item type.

Owns: `Generated`, `GeneratedEvent` and the default items. Invariant: an item depends on the
seed, the stream and its number alone, so a token that is read again has the same item.
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
    """The default item: the stream's key, the event's number from 0, and a 63-bit value."""

    key: str
    number: int
    value: int


@dataclass(frozen=True, slots=True)
class Generated(Generic[T]):
    """Events of one namespace: `Generated(ARRIVALS, lambda key, number: Flight(...))`.

    `make` gets the key of the stream and the event's number, which counts from 0 in each stream.
    It must be pure: after a hand-over the same event is made again, perhaps in another process.
    Without it the item type must be GeneratedEvent, int (the number) or str (`key-number`).
    """

    namespace: StreamNamespace[T]
    make: Callable[[str, int], T] | None = None

    def __post_init__(self) -> None:
        check_kind("Generated(namespace)", self.namespace, StreamNamespace)
        if self.make is not None and not callable(self.make):
            what = f"Generated({self.namespace!r}, {self.make!r})"
            raise ConfigError(f"{what}: make is a function of key and number")
        if self.make is None and self.namespace.item not in DEFAULT_ITEMS:
            known = ", ".join(sorted(item.__name__ for item in DEFAULT_ITEMS))
            raise ConfigError(
                f"Generated({self.namespace!r}): {self.namespace.item!r} has no default items "
                f"({known} have); give a function: Generated(namespace, make)"
            )


def value_of(seed: int, stream: StreamId, number: int) -> int:
    """A value in 0..2^63-1 that looks random and is the same everywhere."""
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
        """The encoded item. Raises StreamError naming the event that could not be made."""
        try:
            return self._codec.encode(self._make(stream, number))
        except Exception as error:
            raise StreamError(
                f"{stream}: event {number} could not be made: {type(error).__name__}: {error}"
            ) from error


def user_make(generated: Generated[Any]) -> Make:
    """The user's function, which knows keys only."""
    make = generated.make
    assert make is not None
    return lambda stream, number: make(stream.key, number)
