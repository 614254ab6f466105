"""One method that can be called through a reference: its flags, parameters and codecs.

This module owns `MethodSpec`; `grain_type` finds the methods of a class. The codecs of a spec are
built once. If a name in an annotation is not defined yet, the spec stays pending until its first
use.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from functools import cached_property
from typing import Any

from millstream.runtime.codec.arguments import Arguments
from millstream.runtime.codec.codec import Codec, Data, build_codec, codec_between
from millstream.runtime.codec.hooks import encode_any
from millstream.runtime.codec.types import resolve_hints
from millstream.runtime.errors import CallTimeout, DefinitionError
from millstream.runtime.role import Role

from .markers import Flag, Mark, Timeout
from .versions import FIRST_VERSION

__all__ = ["MethodSpec", "source_of"]


def source_of(fn: Any) -> str:
    """Return `file:line` of a function or class, for error messages; `?` if it is unknown.

    Args:
        fn: The function or class.
    """
    code = getattr(inspect.unwrap(fn), "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    try:
        return f"{inspect.getsourcefile(fn)}:{inspect.getsourcelines(fn)[1]}"
    except (OSError, TypeError):
        return "?"


class MethodSpec:
    """One method that can be called through a reference."""

    late = CallTimeout  # raised by a turn that does not end in time
    writes_states = True  # applies to states that are written after each turn
    is_filtered = True  # call filters run around it
    is_streamed = False  # its result is an async generator

    def __init__(self, owner: str, name: str, fn: Callable[..., Any], marks: list[Mark]) -> None:
        self.owner = owner
        self.owner_class: type[Any] = object
        self.name = name
        self.fn = fn
        self.signature = inspect.signature(fn)
        self.parameters = list(self.signature.parameters.values())[1:]
        flags = {mark.name for mark in marks if isinstance(mark, Flag)}
        self.is_read_only = "read_only" in flags
        self.is_interleaving = "always_interleave" in flags
        self.is_one_way = "one_way" in flags
        self.is_shielded = "shielded" in flags
        timeouts = [mark.seconds for mark in marks if isinstance(mark, Timeout)]
        self.timeout_s = timeouts[0] if timeouts else None
        self.open_to: Role | None = None  # None: the default of the class
        self.invoke: Callable[..., Any] = invoker(fn, self.parameters)
        self.version = FIRST_VERSION  # of the class: the version that calls by this method want
        self.extension = ""
        self.is_internal = "isolated" in flags  # nothing else refers to its arguments
        self.wire_name = name
        self.localns: Mapping[str, Any] = {}
        self.codecs: list[Codec[Any]] = []
        self._arguments: Arguments | None = None
        self._result: Codec[Any] | None = None

    def differs_from(self, other: MethodSpec) -> str:
        """Describe how the parameters of two methods of one name differ; empty if they do not."""
        if self.is_streamed != other.is_streamed:
            streamed, plain = (self, other) if self.is_streamed else (other, self)
            return f"{streamed.label} is an async generator, and {plain.label} is not"
        own = [(p.name, p.kind) for p in self.parameters]
        others = [(p.name, p.kind) for p in other.parameters]
        if own == others:
            return ""
        return f"{self.label}{self.signature} and {other.label}{other.signature} differ"

    @property
    def label(self) -> str:
        """`Airport.add`, as shown in messages."""
        return f"{self.owner}.{self.wire_name}"

    @cached_property
    def arguments(self) -> Arguments:
        """Codec of the argument list; resolves the annotations on first use."""
        if self._arguments is None:
            self.resolve()
        assert self._arguments is not None
        return self._arguments

    @cached_property
    def result(self) -> Codec[Any]:
        """Codec of the result; resolves the annotations on first use."""
        if self._result is None:
            self.resolve()
        assert self._result is not None
        return self._result

    @cached_property
    def quick_arguments(self) -> Callable[[Data], tuple[object, ...]] | None:
        """`Arguments.quick_decode`."""
        return self.arguments.quick_decode

    @cached_property
    def quick_result(self) -> Callable[[Data], Any] | None:
        """`Codec.quick_decode` of the result."""
        return self.result.quick_decode

    def resolve(self) -> None:
        """Build the codecs. Raises NameError (an annotation is not defined yet)."""
        if self._result is not None:
            return
        hints = resolve_hints(self.fn, self.localns, self.owner_class)
        subject = f"{source_of(self.fn)}: {self.label}"
        for parameter in [*self.parameters, None]:
            name = "return" if parameter is None else parameter.name
            if name not in hints:
                what = "the result" if parameter is None else f"argument `{name}`"
                raise DefinitionError(f"{subject}: {what} needs an annotation")
        self.codecs = [
            build_codec(hints[p.name], f"{subject}: argument `{p.name}`") for p in self.parameters
        ]
        self._arguments = Arguments([p.name for p in self.parameters], self.codecs, self.label)
        self._result = self.build_result(hints["return"], subject)

    def build_result(self, hint: object, subject: str) -> Codec[Any]:
        """Return the codec of the result. Raises DefinitionError, NameError."""
        return build_codec(hint, f"{subject}: result")

    def see_through(self, contract: MethodSpec) -> MethodSpec:
        """Return this method for callers of a contract, whose value classes may be different
        classes.

        Values are converted from the contract's types to this method's types and back, as between
        two processes.
        """
        self.resolve()
        contract.resolve()
        own, theirs = [*self.codecs, self.result], [*contract.codecs, contract.result]
        if [codec.hint for codec in own] == [codec.hint for codec in theirs]:
            return self
        made = copy(self)
        for cached in ("arguments", "result", "quick_arguments", "quick_result"):
            made.__dict__.pop(cached, None)
        made.owner = contract.owner
        made.codecs = [
            codec_between(sender, receiver)
            for sender, receiver in zip(contract.codecs, self.codecs, strict=True)
        ]
        made._arguments = Arguments([p.name for p in self.parameters], made.codecs, made.label)
        made._result = codec_between(self.result, contract.result)
        return made

    def isolate_argument(self, index: int, value: object, runtime: object) -> object:
        """Return the value that the callee gets for an argument. A TypeError names the argument."""
        try:
            return self.codecs[index].isolate(value, runtime)
        except (TypeError, ValueError, OverflowError) as error:
            name = self.parameters[index].name
            raise TypeError(f"{self.label}: argument `{name}`: {error}") from None

    def isolate(self, values: tuple[object, ...], runtime: object) -> tuple[object, ...]:
        """Return the values that the callee gets for all arguments."""
        return values if self.is_internal else self.arguments.isolate(values, runtime)

    def encode_result(self, value: object) -> bytes:
        """Encode the result. A TypeError names the method."""
        result = self.result
        if type(value) in result.direct:
            try:
                return encode_any(value)
            except Exception:  # `encode` explains the error
                pass
        try:
            return result.encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{self.label}: result: {error}") from None

    def isolate_result(self, value: object, runtime: object) -> object:
        """Return the value that the caller gets. A TypeError names the method."""
        if self.is_internal:
            return value
        try:
            return self.result.isolate(value, runtime)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"{self.label}: result: {error}") from None


def invoker(fn: Callable[..., Any], parameters: list[inspect.Parameter]) -> Callable[..., Any]:
    """Return `fn`, called with a target and all its arguments in order, also keyword-only ones."""
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    if not names:
        return fn
    count = len(parameters) - len(names)

    def invoke(target: Any, *args: Any) -> Any:
        return fn(target, *args[:count], **dict(zip(names, args[count:], strict=True)))

    return invoke
