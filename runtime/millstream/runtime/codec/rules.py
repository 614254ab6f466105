"""The sender's check of a value before it is encoded, one rule per annotation.

The encoder uses the actual type of a value, and the receiver uses the declared type. A rule checks
the outermost value. A value of the declared type passes unchanged. A narrower number or an enum
becomes the value that the wire makes of it. Any other value raises TypeError at the sender. The
typed decoder checks values inside containers and dataclasses.

Invariants: `direct` contains exact types only, and `convert` never changes its argument.
"""

from __future__ import annotations

import collections.abc as abc
from collections.abc import Callable
from enum import Enum
from types import NoneType
from typing import Any, Literal, get_args, get_origin, is_typeddict

import msgspec
import msgspec.inspect as mi

from .hooks import find_hook, plain_scalar
from .types import bare, show_hint, union_members

__all__ = ["Rule", "Unfit", "rule_for"]


class Unfit(TypeError):
    """The value has another type than its annotation."""


class LosesFields(Unfit):
    """The value is of a subclass and would arrive as its base class."""


class Rule(msgspec.Struct, frozen=True):
    """The rule of one annotation.

    `direct` contains the exact types that are encoded unchanged. `convert` converts or refuses all
    other values.
    """

    direct: frozenset[type]
    convert: Callable[[Any], object]


_PLAIN = frozenset({NoneType, bool, int, float, str, bytes, list, dict})

# annotation -> (types that are sent unchanged, type to which other fitting values are converted)
_CONTAINERS: dict[object, tuple[frozenset[type], type]] = {
    list: (frozenset({list}), list),
    tuple: (frozenset({tuple}), tuple),
    set: (frozenset({set}), set),
    frozenset: (frozenset({frozenset}), frozenset),
    dict: (frozenset({dict}), dict),
    abc.MutableSequence: (frozenset({list}), list),
    abc.Sequence: (frozenset({list, tuple}), list),
    abc.Collection: (frozenset({list, tuple, set, frozenset}), list),
    abc.MutableSet: (frozenset({set}), set),
    abc.Set: (frozenset({set, frozenset}), set),
    abc.Mapping: (frozenset({dict}), dict),
    abc.MutableMapping: (frozenset({dict}), dict),
}


def rule_for(hint: object) -> Rule:
    """Return the rule of an annotation that `inspect_hint` has accepted."""
    if members := union_members(hint):
        return _union_rule(hint, [rule_for(member) for member in members])
    hint = bare(hint)
    origin: Any = get_origin(hint) or hint
    if origin is Any:
        return Rule(_PLAIN, lambda value: value)
    if origin is Literal:
        return _literal_rule(hint)
    if origin in (int, float, str, bytes):
        return _scalar_rule(origin)
    if origin in _CONTAINERS:
        return _container_rule(hint, origin)
    if is_typeddict(origin):
        return _container_rule(hint, dict)
    if isinstance(mi.type_info(hint), mi.CustomType):
        return _custom_rule(hint, origin)
    return Rule(frozenset({origin}), _refuser(hint, origin))


def _unfit(hint: object, value: object) -> Unfit:
    return Unfit(f"expected `{show_hint(hint)}`, got `{type(value).__qualname__}`")


def _loses(hint: object, origin: type, value: object) -> LosesFields:
    kind = type(value)
    extra = [name for name in _fields(kind) if name not in _fields(origin)]
    what = "fields " + ", ".join(f"`{name}`" for name in extra) if extra else "its own class"
    return LosesFields(
        f"expected `{show_hint(hint)}`, got its subclass `{kind.__qualname__}`, which would lose "
        f"{what}"
    )


def _fields(cls: type) -> list[str]:
    return [
        name for base in reversed(cls.__mro__) for name in vars(base).get("__annotations__", ())
    ]


def _refuser(hint: object, origin: type) -> Callable[[object], object]:
    def convert(value: object) -> object:
        if isinstance(value, origin):
            raise _loses(hint, origin, value)
        raise _unfit(hint, value)

    return convert


def _scalar_rule(kind: type) -> Rule:
    wider = {float: (float, int), bytes: (bytes, bytearray, memoryview)}.get(kind, (kind,))

    def convert(value: object) -> object:
        if not isinstance(value, wider):
            raise _unfit(kind, value)
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        plain = plain_scalar(value)
        return float(plain) if kind is float else plain  # type: ignore[arg-type]

    return Rule(frozenset({kind}), convert)


def _literal_rule(hint: object) -> Rule:
    allowed = {(type(value), value) for value in get_args(hint)}
    kinds = {kind for kind, _value in allowed}

    def convert(value: object) -> object:
        plain = plain_scalar(value) if isinstance(value, Enum) else value
        if type(plain) not in kinds or (type(plain), plain) not in allowed:
            raise Unfit(f"expected `{show_hint(hint)}`, got {value!r}")
        return plain

    return Rule(frozenset(), convert)


def _container_rule(hint: object, origin: type) -> Rule:
    direct, build = _CONTAINERS[origin]

    def convert(value: object) -> object:
        # Type checkers accept a str as a sequence of str, but here it is always a mistake.
        if not isinstance(value, origin) or isinstance(value, (str, bytes, bytearray, memoryview)):
            raise _unfit(hint, value)
        if isinstance(value, build) and getattr(value, "__dict__", None):
            raise LosesFields(
                f"expected `{show_hint(hint)}`, got `{type(value).__qualname__}`,"
                f" which would lose fields {', '.join(f'`{name}`' for name in vars(value))}"
            )
        return build(value)

    return Rule(direct, convert)


def _custom_rule(hint: object, origin: Any) -> Rule:
    # Use isinstance, not the exact type: a reference claims to be an instance of its grain class.
    hook = find_hook(origin)
    exact = hook is not None and hook.exact

    def convert(value: object) -> object:
        if not isinstance(value, origin):
            raise _unfit(hint, value)
        if exact and type(value) is not origin:
            raise _loses(hint, origin, value)
        return value

    return Rule(frozenset(), convert)


def _union_rule(hint: object, rules: list[Rule]) -> Rule:
    def convert(value: object) -> object:
        for rule in rules:
            try:
                return value if type(value) in rule.direct else rule.convert(value)
            except LosesFields:
                raise
            except Unfit:
                continue
        raise _unfit(hint, value)

    return Rule(frozenset[type]().union(*(rule.direct for rule in rules)), convert)
