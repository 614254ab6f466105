"""References: what a caller holds of a grain.

Owns: identity, equality, text and the guard against what is not remote (spec/api.md T2-T4). Not:
the stubs (`stubs`). Invariants: equal by grain name and key, whatever host gave it; not a subclass
of the grain class, so neither state nor private methods leak, though `isinstance` says yes, as a
type checker does.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from millstream.runtime.errors import NotRemote

if TYPE_CHECKING:
    from .grain import Contract
    from .grain_type import GrainType

__all__ = ["Reference", "check_text", "is_reference", "with_options"]

C = TypeVar("C", bound="Contract")


class Reference:
    """Base of the generated reference classes."""

    __slots__ = ("_ms_key",)
    _ms_type: GrainType
    _ms_kind: str
    _ms_optioned: Callable[[type[Any], str, float | None, dict[str, str] | None], Any]
    _ms_options: tuple[float | None, dict[str, str] | None]
    _ms_key: str

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
        return f"{self._ms_kind}/{self._ms_key}"

    def __repr__(self) -> str:
        return f"<reference {self}>"

    def __dir__(self) -> list[str]:
        return ["key", *self._ms_type.specs]

    def __copy__(self) -> Reference:
        return self

    def __deepcopy__(self, memo: object) -> Reference:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled: send str(reference), and rebuild it with "
            "`grain(cls, key)` where it arrives"
        )


def check_text(what: str, text: object) -> None:
    """Raise TypeError for what is no `str`, or cannot be sent and stored as UTF-8.

    A `str` that is ASCII or printable passes: no need to ask, where that counts.
    """
    if type(text) is not str:
        raise TypeError(f"{what} is a str, not {text!r}: convert it, for example by str(...)")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise TypeError(
            f"{what}, {text!r}, has a lone surrogate at position {error.start}, which UTF-8 "
            "cannot carry: decode it anew with errors='replace', or leave that out"
        ) from None


def is_reference(obj: object, /) -> bool:
    """Is `obj` a reference (and not a grain)?"""
    return issubclass(type(obj), Reference)


def with_options(
    reference: C, /, *, timeout: float | None = None, headers: Mapping[str, str] | None = None
) -> C:
    """The same grain, called with a deadline (seconds) or headers of its own.

    Such calls always take the general path: about 3 µs more than a direct turn.
    """
    if not is_reference(reference):
        raise TypeError(f"with_options needs a reference, not {type(reference).__name__}")
    kind: Any = type(reference)
    old_timeout, old_headers = kind._ms_options
    made: C = kind._ms_optioned(
        kind._ms_type.cls,
        reference.key,
        old_timeout if timeout is None else timeout,
        old_headers if headers is None else {**(old_headers or {}), **headers},
    )
    return made


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
        f"{cls} has no method {name!r}, and only methods can be called through a reference, "
        f"what a grain keeps in attributes cannot; you can call: {callable_names}.{hint}"
    )


def _verb(reason: str) -> str:
    return reason if reason.startswith("works") else f"is {reason}"
