"""A method whose result is an async generator, and the batches in which its items travel.

This module owns `StreamedMethod` and the form of a batch. `turns/results` runs the generators, and
`calls/result_reader` reads them.

Source: async enumerable calls of Orleans.
"""

from __future__ import annotations

import collections.abc
from collections.abc import AsyncGenerator, Callable, Coroutine
from copy import copy
from types import NoneType
from typing import Any, NamedTuple, get_args, get_origin

from millstream.runtime.codec.codec import Codec, build_codec, codec_between
from millstream.runtime.errors import DefinitionError

from .markers import Mark
from .method import MethodSpec

__all__ = ["RESULTS", "Batch", "StreamedMethod"]

RESULTS = "$results"
"""The name of the extension that has the generators of an activation."""


class Batch(NamedTuple):
    """Items of a generator that travel together.

    Attributes:
        generator: The id of the generator. It cannot be guessed, so it admits its holder.
        items: The encoded items, in order.
        end: None: more items may follow. Empty: the generator has ended. Else the encoded error
            that the generator raised after these items.
    """

    generator: int
    items: list[bytes]
    end: bytes | None


class StreamedMethod(MethodSpec):
    """An async generator method. A call of it starts the generator and returns the first batch."""

    is_streamed = True

    def __init__(self, owner: str, name: str, fn: Callable[..., Any], marks: list[Mark]) -> None:
        super().__init__(owner, name, fn, marks)
        self.is_interleaving = True
        self._generate: Callable[..., AsyncGenerator[Any, None]] = self.invoke
        self.invoke = self._start
        self._item: Codec[Any] | None = None

    @property
    def item(self) -> Codec[Any]:
        """The codec of an item; resolves the annotations on first use."""
        if self._item is None:
            self.resolve()
        assert self._item is not None
        return self._item

    def build_result(self, hint: object, subject: str) -> Codec[Any]:
        """Return the codec of a batch, and keep that of an item."""
        item, *sent = get_args(hint) or (None,)
        is_generator = get_origin(hint) is collections.abc.AsyncGenerator
        if not is_generator or any(one not in (None, NoneType) for one in sent):
            raise DefinitionError(
                f"{subject}: the result of an async generator is annotated with {hint!r}: write "
                "`AsyncGenerator[T, None]`, where T is the type of an item"
            )
        self._item = build_codec(item, f"{subject}: item")
        return build_codec(Batch, f"{subject}: result")

    def see_through(self, contract: MethodSpec) -> MethodSpec:
        """Return this method for callers of a contract, as `MethodSpec.see_through` does."""
        made = super().see_through(contract)
        assert isinstance(contract, StreamedMethod)
        if self.item.hint == contract.item.hint:
            return made
        made = copy(made)
        assert isinstance(made, StreamedMethod)
        made._item = codec_between(self.item, contract.item)
        return made

    def isolate_result(self, value: object, runtime: object) -> object:
        """Return a batch as it is, because its items are encoded."""
        return value

    def encode_item(self, value: object) -> bytes:
        """Encode an item. A TypeError names the method."""
        try:
            return self.item.encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{self.label}: item: {error}") from None

    def _start(self, grain: Any, *args: Any) -> Coroutine[Any, Any, Batch]:
        home = grain._millstream
        results = home.owner.extension_of(home, RESULTS).results
        started: Coroutine[Any, Any, Batch] = results.start(self, self._generate(grain, *args))
        return started
