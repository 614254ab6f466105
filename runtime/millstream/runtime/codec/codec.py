"""The codec of one annotation: encode, decode, isolate.

A local call and a remote call give the callee the same value, because both use the checks and
conversions of this module. Errors are TypeErrors without a subject. The caller that knows the
subject adds it, for example `arguments`.

Invariants:

- `isolate(v)` returns `v` itself only if it is immutable all the way down. Otherwise the result
  equals `decode(encode(v))`.
- Pickle is never used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from millstream.runtime.errors import MillstreamError

from .hooks import RuntimeDecoder, decode_hook, encode_any
from .immutable import Passing, fast_types_of, passing_of
from .rules import rule_for
from .types import inspect_hint
from .unions import Wrapped, needs_wrappers, wrap_union

__all__ = [
    "Codec",
    "Data",
    "build_codec",
    "codec_between",
    "decoders_of",
    "reason",
]

T = TypeVar("T")

Data = bytes | bytearray | memoryview | msgspec.Raw
QuickCopy = tuple[frozenset[type], Callable[[bytes], Any]]


class Codec(Generic[T]):
    """Encodes, decodes and copies the values of one annotation. `codec_of` builds it.

    A local call and a remote call give the callee the same value, because both use the same checks
    and conversions. Values are never pickled.

    Attributes:
        hint: The annotation as it was written.
        fast_types: Exact types whose values can be passed without a copy. Empty if there are none.
        needs_runtime: Whether `decode` and `isolate` need the silo or client.
        direct: Exact types that are encoded without a conversion. `Arguments` uses it.
        convert: The conversion of all other values. `Arguments` uses it.
        wire: The type that is decoded. `Arguments` uses it.
        unwrap: Makes the value from a decoded one, or None. `Arguments` uses it.
    """

    __slots__ = (
        "_decode",
        "_passing",
        "_plain",
        "convert",
        "direct",
        "fast_types",
        "hint",
        "needs_runtime",
        "unwrap",
        "wire",
    )

    def __init__(
        self,
        hint: object,
        wire: object,
        direct: frozenset[type],
        convert: Callable[[Any], object],
        unwrap: Callable[[Any], Any] | None,
        needs_runtime: bool,
        fast_types: frozenset[type],
        passing: Passing | None,
    ) -> None:
        self.hint = hint
        self.wire = wire
        self.direct = direct
        self.convert = convert
        self.unwrap = unwrap
        self.needs_runtime = needs_runtime
        self.fast_types = fast_types
        self._passing = passing
        self._plain, self._decode = decoders_of(wire, needs_runtime)

    @property
    def quick_decode(self) -> Callable[[Data], Any] | None:
        """A function that decodes by one call of msgspec, or None if the type needs more.

        If it raises, call `decode` to get an error that explains the problem.
        """
        return self._plain if self.unwrap is None else None

    def encode(self, value: T) -> bytes:
        """Encode one value as MessagePack.

        Args:
            value: A value of the annotation's type.

        Raises:
            TypeError: The value has another type or is of a subclass that would lose fields. Or
                the value contains an int of more than 64 bits or a lone surrogate, at any depth.
                Values of a wrong type inside a container or dataclass are found only by `decode`.
        """
        try:
            if type(value) in self.direct:
                return encode_any(value)
            return encode_any(self.convert(value))
        except Exception as error:
            raise TypeError(reason(error)) from None

    def encode_many(self, values: Sequence[T]) -> list[bytes]:
        """Encode each value as `encode` does.

        For types that need no conversion it costs a third of single calls.

        Args:
            values: Values of the annotation's type.

        Raises:
            TypeError: As `encode`.
        """
        if self.direct.issuperset(map(type, values)):
            try:
                return list(map(encode_any, values))
            except Exception:  # `encode` raises the error
                pass
        return [self.encode(value) for value in values]

    def decode(self, data: Data, runtime: object = None) -> T:
        """Decode a value of the annotation's type.

        Args:
            data: The bytes.
            runtime: The silo or client to which references and streams in the value belong.

        Raises:
            TypeError: The bytes are no such value. The text names the path inside the value.
        """
        try:
            plain = self._plain
            value = self._decode(data, runtime) if plain is None else plain(data)
        except MillstreamError:
            raise
        except Exception as error:
            raise TypeError(self._reason(error)) from None
        found: T = value if self.unwrap is None else self.unwrap(value)
        return found

    def decode_many(self, parts: Sequence[Data], runtime: object = None) -> list[T]:
        """Decode each part as `decode` does.

        For types that need no conversion it costs half of single calls.

        Args:
            parts: The bytes of each value.
            runtime: The silo or client to which references and streams in the values belong.

        Raises:
            TypeError: As `decode`.
        """
        plain = self._plain
        if plain is not None and self.unwrap is None:
            try:
                return list(map(plain, parts))
            except Exception:  # `decode` raises the error
                pass
        return [self.decode(part, runtime) for part in parts]

    @property
    def quick_copy(self) -> QuickCopy | None:
        """The exact types that `isolate` copies by one encode and one decode, and the decoder, or
        None.

        If encoding or decoding raises, call `isolate` to get an error that explains the problem.
        """
        if self._passing is None and self.unwrap is None and self._plain is not None:
            return (self.direct, self._plain) if self.direct else None
        return None

    def isolate(self, value: T, runtime: object = None) -> T:
        """Return the value that a remote receiver would get.

        Args:
            value: A value of the annotation's type.
            runtime: The silo or client to which references and streams in the value belong.

        Returns:
            The value itself if it is immutable all the way down, else a copy.

        Raises:
            TypeError: As `encode` and `decode`.
        """
        passing = self._passing
        if passing is not None and passing(value):
            return value
        return self.decode(self.encode(value), runtime)

    def _reason(self, error: Exception) -> str:
        text = reason(error)
        return text.replace("`$[1]", "`$", 1) if self.unwrap is not None else text

    def __repr__(self) -> str:
        return f"<Codec {self.hint!r}>"


def build_codec(hint: object, subject: str) -> Codec[Any]:
    """Build the codec of an annotation.

    This takes about 100 µs, so build one per annotation and keep it. `subject` begins every error
    text: "Airport.add: argument `by`". Raises DefinitionError if a part of the type cannot be
    encoded, and NameError if a name in it is not defined yet.
    """
    if needs_wrappers(hint):
        return _union_codec(hint, wrap_union(hint, subject))
    shape = inspect_hint(hint, subject)
    rule = rule_for(hint)
    return Codec(
        hint,
        hint,
        rule.direct,
        rule.convert,
        None,
        shape.needs_runtime,
        fast_types_of(shape.node),
        passing_of(shape.node),
    )


def codec_between(sender: Codec[Any], receiver: Codec[Any]) -> Codec[Any]:
    """Return a codec that encodes like `sender` and decodes like `receiver`."""
    passing, other = sender._passing, receiver._passing
    both = None
    if passing is not None and other is not None:
        both = lambda value: passing(value) and other(value)  # noqa: E731
    return Codec(
        receiver.hint,
        receiver.wire,
        sender.direct,
        sender.convert,
        receiver.unwrap,
        receiver.needs_runtime,
        sender.fast_types & receiver.fast_types,
        both,
    )


def _union_codec(hint: object, union: Wrapped) -> Codec[Any]:
    return Codec(
        hint,
        union.wire,
        frozenset(),
        union.convert,
        union.unwrap,
        union.needs_runtime,
        union.fast_types,
        union.passing,
    )


def decoders_of(
    wire: object, needs_runtime: bool
) -> tuple[Callable[[Any], Any] | None, Callable[[Any, object], Any]]:
    """Return two decoders of a type.

    The first decodes from data alone. It is None if a hook in the type needs the silo or client
    that decodes. The second takes the data, and the silo or client. Both raise the errors of
    msgspec.
    """
    if needs_runtime:
        return None, RuntimeDecoder(wire).decode
    decoder: msgspec.msgpack.Decoder[Any]
    decoder = msgspec.msgpack.Decoder(wire, dec_hook=decode_hook)
    decode = decoder.decode
    return decode, lambda data, _runtime: decode(data)


def reason(error: Exception) -> str:
    """Describe in one line why the codec refused a value."""
    if isinstance(error, OverflowError):
        return f"out of range: {error}"
    if isinstance(error, UnicodeEncodeError):
        return f"str with a lone surrogate at position {error.start}"
    if isinstance(error, RecursionError):
        return "contains itself, or is nested too deeply"
    if isinstance(error, (TypeError, ValueError)):
        return str(error)
    return f"{type(error).__qualname__}: {error}"
