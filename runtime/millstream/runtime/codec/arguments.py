"""The codec of a method's argument list: one MessagePack array, in order.

`Arguments` checks and encodes the whole list at once, and decodes it at once. Only after a failure
does it look at the values one by one, to name the wrong argument in the error. `isolate(values)`
returns the same values as `decode(encode(values))`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from millstream.runtime.errors import MillstreamError

from .codec import Codec, Data, decoders_of, reason
from .hooks import encode_any

__all__ = ["Arguments"]

_PATH = re.compile(r"`\$\[(\d+)\](\[1\])?")
_EMPTY = b"\x90"

Row = tuple[object, ...]


class Arguments:
    """Encodes, decodes and copies the positional arguments of one method.

    `names` and `codecs` are in the order of the method's parameters. `subject` ("Airport.add")
    begins every error text. `encode(values)` returns one MessagePack array. A value of a wrong type
    raises TypeError "Airport.add: argument `by`: ..." before anything is sent.
    """

    __slots__ = (
        "_codecs",
        "_decode",
        "_isolates",
        "_names",
        "_plain",
        "_subject",
        "_unwraps",
        "encode",
        "needs_runtime",
    )

    encode: Callable[[Row], bytes]

    def __init__(self, names: Sequence[str], codecs: Sequence[Codec[Any]], subject: str) -> None:
        assert len(names) == len(codecs), f"{subject}: {len(names)} names, {len(codecs)} codecs"
        self._names = tuple(names)
        self._codecs = tuple(codecs)
        self._subject = subject
        self.needs_runtime = any(codec.needs_runtime for codec in codecs)
        self._isolates = [codec.isolate for codec in codecs]
        self._unwraps = [(at, c.unwrap) for at, c in enumerate(codecs) if c.unwrap is not None]
        wires = tuple(codec.wire for codec in codecs)
        wire = tuple[wires]  # type: ignore[valid-type]
        self._plain, self._decode = decoders_of(wire, self.needs_runtime)
        self.encode = self._encoder()

    def decode(self, body: Data, runtime: object = None) -> Row:
        """Return the values with their declared types. Raises TypeError that names the argument."""
        try:
            plain = self._plain
            values: Row = self._decode(body, runtime) if plain is None else plain(body)
        except MillstreamError:
            raise
        except Exception as error:
            raise TypeError(self._locate(reason(error))) from None
        return self._unwrap(values) if self._unwraps else values

    @property
    def quick_decode(self) -> Callable[[Data], Row] | None:
        """The decoder of msgspec, if `decode` does nothing else, or None.

        If it raises an error, call `decode`, which raises a better one.
        """
        return None if self._unwraps else self._plain

    def isolate(self, values: Row, runtime: object = None) -> Row:
        """Return the values that a remote callee would get. Raises TypeError like `decode`."""
        found: list[object] = []
        at = 0
        try:
            for isolate in self._isolates:  # an index is twice as fast as a strict zip
                found.append(isolate(values[at], runtime))
                at += 1
        except TypeError as error:
            raise TypeError(self._of(at, str(error))) from None
        return tuple(found)

    def _unwrap(self, values: Row) -> Row:
        found = list(values)
        for at, unwrap in self._unwraps:
            found[at] = unwrap(found[at])
        return tuple(found)

    def _of(self, at: int, text: str) -> str:
        return f"{self._subject}: argument `{self._names[at]}`: {text}"

    def _locate(self, text: str) -> str:
        """Replace the array index in an error text of msgspec by the argument's name."""
        found = _PATH.search(text)
        if found is None:
            return f"{self._subject}: arguments: {text}"
        at = int(found[1])
        inner = "" if self._codecs[at].unwrap is not None else found[2] or ""
        text = text[: found.start()] + "`$" + inner + text[found.end() :]
        return self._of(at, text.removesuffix(" - at `$`"))

    # --- encoding --------------------------------------------------------------------------------

    def _encoder(self) -> Callable[[Row], bytes]:
        """Return the fast encoder for no argument, for one, or for several."""
        directs = [codec.direct for codec in self._codecs]
        only = directs[0] if directs else frozenset[type]()
        checked = self._encode_checked

        def encode_one(values: Row) -> bytes:
            (value,) = values
            if type(value) not in only:
                return checked(values)
            try:
                return encode_any(values)
            except Exception:
                return checked(values)  # fails again, with the argument's name

        def encode_several(values: Row) -> bytes:
            for value, direct in zip(values, directs, strict=True):
                if type(value) not in direct:
                    return checked(values)
            try:
                return encode_any(values)
            except Exception:
                return checked(values)

        if not directs:
            return lambda _values: _EMPTY
        return encode_one if len(directs) == 1 else encode_several

    def _encode_checked(self, values: Row) -> bytes:
        plain = tuple(self._convert(at, value) for at, value in enumerate(values))
        try:
            return encode_any(plain)
        except Exception as error:
            for at, value in enumerate(plain):
                self._encode_alone(at, value)
            raise TypeError(f"{self._subject}: arguments: {reason(error)}") from None

    def _convert(self, at: int, value: Any) -> object:
        codec = self._codecs[at]
        try:
            return value if type(value) in codec.direct else codec.convert(value)
        except Exception as error:
            raise TypeError(self._of(at, reason(error))) from None

    def _encode_alone(self, at: int, value: object) -> None:
        try:
            encode_any(value)
        except Exception as error:
            raise TypeError(self._of(at, reason(error))) from None
