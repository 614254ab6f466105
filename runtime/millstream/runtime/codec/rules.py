"""What the sender checks of a value before it is encoded, one rule per annotation.

The encoder goes by what a value *is*, the receiver by what was *declared*. A rule closes that gap
for the outermost value: the declared type as it is, a narrower number or an enum as the value that
the wire makes of it, everything else a TypeError where the mistake is. What lies inside containers
and dataclasses is checked by the typed decoder.
Invariants: `direct` holds exact types only; `convert` never changes its argument.
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
    """The value is of a subclass that would arrive as its base."""


class Rule(msgspec.Struct, frozen=True):
    """`direct`: exact types that are encoded as they are. `convert`: for all others."""

    direct: frozenset[type]
    convert: Callable[[Any], object]


_PLAIN = frozenset({NoneType, bool, int, float, str, bytes, list, dict})

# annotation -> (types that are sent as they are, what others that fit are turned into)
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
    """The rule of an annotation that `inspect_hint` let through."""
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
        # A str is a sequence of str to a type checker, and always a mistake here.
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
    # isinstance, not the exact type: a reference says that it is its grain class.
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
