"""The decision which values may be passed without a copy. Pure.

A value passes if it is immutable all the way down and the wire would return an equal one.
`fast_types_of` decides this per type, and `passing_of` per value.

If a test returns True, encoding and decoding would give an equal value of the same exact types in
all parts. In doubt it returns False, and the value is copied.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from decimal import Decimal
from types import NoneType
from typing import Any, get_origin
from uuid import UUID

import msgspec
import msgspec.inspect as mi

from millstream.runtime.text import is_text

__all__ = ["Passing", "any_of", "fast_types_of", "passing_of"]

Passing = Callable[[Any], bool]

INT_MIN, INT_MAX = -(2**63), 2**64 - 1

_PLAIN = frozenset({NoneType, bool, int, float, str, bytes})

_SCALARS: dict[type, frozenset[type]] = {
    mi.AnyType: _PLAIN,
    mi.NoneType: frozenset({NoneType}),
    mi.BoolType: frozenset({bool}),
    mi.IntType: frozenset({int}),
    mi.FloatType: frozenset({float}),
    mi.StrType: frozenset({str}),
    mi.BytesType: frozenset({bytes}),
    mi.DateType: frozenset({dt.date}),
    mi.TimeDeltaType: frozenset({dt.timedelta}),
    mi.UUIDType: frozenset({UUID}),
    mi.DecimalType: frozenset({Decimal}),
}


def fast_types_of(node: mi.Type) -> frozenset[type]:
    """Return the exact types whose values pass without a copy, or an empty set.

    A value outside the wire's range (an int beyond 64 bits, a lone surrogate) is an exception,
    which `passing_of` tests.
    """
    if _is_constrained(node):
        return frozenset()
    if isinstance(node, mi.Metadata):
        return fast_types_of(node.type)
    if isinstance(node, mi.UnionType):
        return frozenset[type]().union(*(fast_types_of(member) for member in node.types))
    if isinstance(node, mi.EnumType):
        return frozenset({node.cls})
    return _SCALARS.get(type(node), frozenset())


def passing_of(node: mi.Type) -> Passing | None:
    """Return the test for values of one type, or None if no value of it ever passes."""
    return _passing(node, ())


def any_of(tests: Iterable[Passing | None]) -> Passing | None:
    """Return a test that passes a value if one of the tests does. None: there are no tests."""
    real = [test for test in tests if test is not None]
    if len(real) <= 1:
        return real[0] if real else None
    return lambda value: any(test(value) for test in real)


def _is_constrained(node: mi.Type) -> bool:
    """Return True if the type has limits, which only the decoder checks.

    Values of such types are always encoded and decoded.
    """
    if isinstance(node, (mi.DateTimeType, mi.TimeType)) and node.tz is None:
        return False
    limits = ("gt", "ge", "lt", "le", "multiple_of", "min_length", "max_length", "pattern", "tz")
    return any(getattr(node, name, None) is not None for name in limits)


def _passing(node: mi.Type, inside: tuple[object, ...]) -> Passing | None:
    if _is_constrained(node):
        return None
    if isinstance(node, mi.Metadata):
        return _passing(node.type, inside)
    if isinstance(node, mi.UnionType):
        return any_of(_passing(member, inside) for member in node.types)
    if isinstance(node, mi.LiteralType):
        return _literal(node)
    if special := _BY_VALUE.get(type(node)):
        return special
    if fast := fast_types_of(node):
        return lambda value: type(value) in fast
    return _composite(node, inside)


def _composite(node: mi.Type, inside: tuple[object, ...]) -> Passing | None:
    if isinstance(node, mi.VarTupleType):
        return _each(tuple, _passing(node.item_type, inside))
    if isinstance(node, mi.FrozenSetType):
        return _each(frozenset, _passing(node.item_type, inside))
    if isinstance(node, mi.TupleType):
        return _row(tuple, [_passing(item, inside) for item in node.item_types])
    if not isinstance(node, (mi.DataclassType, mi.StructType, mi.NamedTupleType)):
        return None
    cls: Any = get_origin(node.cls) or node.cls
    if node.cls in inside or not _is_frozen(node, cls):
        return None
    tests = [_passing(field.type, (*inside, node.cls)) for field in node.fields]
    if isinstance(node, mi.NamedTupleType):
        return _row(cls, tests)
    return _record(cls, [field.name for field in node.fields], tests)


def _is_frozen(node: mi.Type, cls: Any) -> bool:
    if isinstance(node, mi.DataclassType):
        # Use the class's own parameters: a subclass without the decorator may be mutable.
        parameters = vars(cls).get("__dataclass_params__")
        return parameters is not None and bool(parameters.frozen)
    return isinstance(node, mi.NamedTupleType) or bool(cls.__struct_config__.frozen)


def _each(kind: type, test: Passing | None) -> Passing | None:
    if test is None:
        return None

    def passing(value: Any) -> bool:
        if type(value) is not kind:
            return False
        items: Any = value
        return all(map(test, items))

    return passing


def _row(kind: type, tests: list[Passing | None]) -> Passing | None:
    real = [test for test in tests if test is not None]
    if len(real) < len(tests):
        return None

    def passing(value: Any) -> bool:
        if type(value) is not kind:
            return False
        row: Any = value
        if len(row) != len(real):
            return False
        return all(test(item) for test, item in zip(real, row, strict=True))

    return passing


def _record(cls: type, names: list[str], tests: list[Passing | None]) -> Passing | None:
    fields = [(name, test) for name, test in zip(names, tests, strict=True) if test is not None]
    if len(fields) < len(names):
        return None

    def passing(value: object) -> bool:
        if type(value) is not cls:
            return False
        for name, test in fields:
            if not test(getattr(value, name, msgspec.UNSET)):
                return False
        return True

    return passing


def _literal(node: mi.LiteralType) -> Passing:
    allowed = {(type(value), value) for value in node.values}
    return lambda value: type(value) in _PLAIN and (type(value), value) in allowed


# --- types with values that do not pass -----------------------------------------------------------


def _int(value: Any) -> bool:
    return type(value) is int and INT_MIN <= value <= INT_MAX


def _str(value: Any) -> bool:
    return type(value) is str and (value.isascii() or is_text(value))


def _datetime(value: Any) -> bool:
    # Other time zones arrive as UTC, and `fold` is not sent.
    return type(value) is dt.datetime and not value.fold and value.tzinfo in (None, dt.UTC)


def _time(value: Any) -> bool:
    return type(value) is dt.time and not value.fold and value.tzinfo is None


def _plain(value: Any) -> bool:
    return _str(value) or _int(value) or type(value) in (NoneType, bool, float, bytes)


_BY_VALUE: dict[type, Passing] = {
    mi.AnyType: _plain,
    mi.IntType: _int,
    mi.StrType: _str,
    mi.DateTimeType: _datetime,
    mi.TimeType: _time,
}
