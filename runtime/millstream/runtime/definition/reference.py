"""References: the objects by which callers call grains.

This module owns the identity, equality and text of references, and refuses access to names that
cannot be called. The stubs are in `calls.stubs`. References are equal if type name and key are
equal, whichever silo or client gave them. A reference class is not a subclass of the grain class,
so neither state nor private methods are visible; `isinstance` still returns True, as a type checker
expects.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from millstream.runtime.errors import ConfigError, NotRemote
from millstream.runtime.text import show_text

from .headers import HeaderSet, check_size, merge_headers
from .method import MethodSpec
from .names import grain_id

if TYPE_CHECKING:
    from .grain import Contract
    from .grain_type import GrainType

__all__ = [
    "MethodReference",
    "OptionedReference",
    "Reference",
    "is_reference",
    "method_reference",
    "with_options",
]

C = TypeVar("C", bound="Contract")


class Reference:
    """The base of the generated reference classes."""

    __slots__ = ("_ms_key",)
    _ms_type: GrainType
    _ms_kind: str
    _ms_optioned: Callable[[str, type[Any]], type[OptionedReference]]
    _ms_key: str
    _ms_timeout_s: float | None = None
    _ms_headers: HeaderSet | None = None

    def __init__(self, key: str) -> None:
        object.__setattr__(self, "_ms_key", key)

    @property
    def key(self) -> str:
        """The key of the grain."""
        return self._ms_key

    @property
    def __class__(self) -> Any:
        return self._ms_type.cls

    @__class__.setter
    def __class__(self, value: object) -> NoReturn:
        raise NotRemote("the class of a reference cannot be changed")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotRemote(_explain(self._ms_type, name))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise NotRemote(f"{self}: a reference has no state; call a method that sets `{name}`")

    def __delattr__(self, name: str) -> NoReturn:
        raise NotRemote(f"{self}: a reference has no state that could be deleted")

    def __eq__(self, other: object) -> bool:
        if not is_reference(other):
            return NotImplemented
        return (self._ms_kind, self._ms_key) == (
            other._ms_kind,  # type: ignore[attr-defined]
            other._ms_key,  # type: ignore[attr-defined]
        )

    def __hash__(self) -> int:
        return hash((self._ms_kind, self._ms_key))

    def __str__(self) -> str:
        return grain_id(self._ms_kind, self._ms_key)

    def __repr__(self) -> str:
        return f"<reference {show_text(str(self))}>"

    def __dir__(self) -> list[str]:
        return ["key", *self._ms_type.specs]

    def __copy__(self) -> Reference:
        return self

    def __deepcopy__(self, memo: object) -> Reference:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled: send str(reference), and call "
            "`grain(cls, key)` at the receiver"
        )


class OptionedReference(Reference):
    """The base of generated classes whose calls have a deadline or headers of their own."""

    __slots__ = ("_ms_headers", "_ms_timeout_s")

    def __init__(self, key: str, timeout_s: float | None, headers: HeaderSet | None) -> None:
        object.__setattr__(self, "_ms_key", key)
        object.__setattr__(self, "_ms_timeout_s", timeout_s)
        object.__setattr__(self, "_ms_headers", headers)


def is_reference(obj: object, /) -> bool:
    """Return whether an object is a reference, and not a grain itself.

    Args:
        obj: Any object.
    """
    return issubclass(type(obj), Reference)


@dataclass(frozen=True, slots=True)
class MethodReference:
    """A method of a reference, such as `airport.land`, as `method_reference` finds it.

    Attributes:
        type_name: The name of the grain type on the wire.
        key: The key of the grain.
        spec: The method.
        timeout_s: The deadline that the reference sets, in seconds. None: that of the method.
        headers: The headers that the reference sets for the callee only.
        flowing_headers: The headers that the reference sets for the whole chain.
    """

    type_name: str
    key: str
    spec: MethodSpec
    timeout_s: float | None
    headers: Mapping[str, str]
    flowing_headers: Mapping[str, str]

    def encode_arguments(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Encode the arguments of a call, with the defaults of the method.

        Args:
            args: The arguments by position.
            kwargs: The arguments by name.

        Returns:
            One MessagePack array, for `Arguments.decode` of the method.

        Raises:
            TypeError: An argument is missing, unknown or of another type than its annotation.
        """
        try:
            bound = self.spec.signature.bind(None, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self.spec.label}: {error}") from None
        bound.apply_defaults()
        return self.spec.arguments.encode(tuple(bound.arguments.values())[1:])


def method_reference(method: object, /) -> MethodReference | None:
    """Find the grain and the method of a bound method of a reference.

    Args:
        method: Any object, such as `airport.land`.

    Returns:
        The method of the reference. None if the object is nothing of that kind.
    """
    if not isinstance(method, MethodType) or not is_reference(method.__self__):
        return None
    found: Any = method.__self__
    spec = found._ms_type.spec_of(method.__name__)
    if spec is None:
        return None
    headers = found._ms_headers or HeaderSet({})
    return MethodReference(
        found._ms_kind,
        found._ms_key,
        spec,
        found._ms_timeout_s,
        headers.own,
        headers.flowing or {},
    )


def with_options(
    reference: C,
    /,
    *,
    timeout: float | None = None,
    headers: Mapping[str, str] | None = None,
    flowing_headers: Mapping[str, str] | None = None,
) -> C:
    """Return a reference to the same grain whose calls have a deadline or headers of their own.

    ```python
    airport = with_options(silo.grain(Airport, "BOS"), timeout=2.0, headers={"trace": "17"})
    ```

    The callee reads the headers by `GrainContext.headers`. `headers` end at the callee.
    `flowing_headers` go along the whole chain: each call that the callee's turn makes carries them,
    and so on, one-way calls included. Timers, reminders and stream deliveries begin a chain without
    headers. Nothing flows back to the caller.

    Options that the given reference already has stay, header by header. Such calls never take the
    direct path within a silo, so each costs about 3 µs more.

    Args:
        reference: The reference.
        timeout: The deadline of each call in seconds, positive and finite. None: unchanged.
        headers: Texts by name. One call has at most 100 headers with 65,536 bytes, flowing ones
            included. None: unchanged.
        flowing_headers: Texts by name that flow along the chain of calls. None: unchanged.

    Raises:
        TypeError: `reference` is no reference, or a header is no text.
        ConfigError: The deadline is not a positive, finite number, or the headers exceed a limit.
    """
    if not is_reference(reference):
        raise TypeError(f"with_options needs a reference, not {type(reference).__name__}")
    found: Any = reference
    timeout_s, sent = found._ms_timeout_s, found._ms_headers
    if timeout is not None:
        timeout_s = _check_timeout(timeout)
    if headers is not None or flowing_headers is not None:
        sent = _merge(sent or HeaderSet({}), headers or {}, flowing_headers)
    cls: Any = found._ms_optioned(found._ms_kind, found._ms_type.cls)
    made: C = cls(found._ms_key, timeout_s, sent)
    return made


def _merge(old: HeaderSet, own: Mapping[str, str], flowing: Mapping[str, str] | None) -> HeaderSet:
    merged = merge_headers(old.own, own)
    flows = old.flowing if flowing is None else merge_headers(old.flowing or {}, flowing)
    check_size(merged, flows)
    return HeaderSet(merged, flows)


def _check_timeout(timeout: object) -> float:
    if isinstance(timeout, int | float) and not isinstance(timeout, bool):
        if 0 < timeout < math.inf:
            return float(timeout)
    text = f"with_options(timeout={show_text(repr(timeout))}): pass a positive, finite number of"
    text = f"{text} seconds"
    raise ConfigError(text)


def _explain(grain_type: GrainType, name: str) -> str:
    callable_names = ", ".join(grain_type.specs) or "nothing"
    cls = grain_type.cls.__name__
    reason = grain_type.local_names.get(name)
    if reason is None and name in dir(grain_type.cls):
        reason = "works only inside the grain"
    if reason is not None:
        return f"{cls}.{name} {_verb(reason)}; through a reference you can call: {callable_names}"
    close = difflib.get_close_matches(name, grain_type.specs, 1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return (
        f"{cls} has no method {name!r}; through a reference you can call methods, but not read "
        f"attributes; you can call: {callable_names}.{hint}"
    )


def _verb(reason: str) -> str:
    return reason if reason.startswith("works") else f"is {reason}"
