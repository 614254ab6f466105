"""Unions that MessagePack cannot distinguish, sent as `[member name, value]`.

msgspec decodes a union only if its members look different on the wire. For all other unions (two
dataclasses, `str | datetime`, two grain classes, ...), this module generates one array-like Struct
per member, tagged with the member's name. This works for a whole argument, result, state or stream
item.

Invariants: the members have different names, no exact type fits two members, and None is sent
without a wrapper.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import NoneType
from typing import Any, Union

import msgspec
import msgspec.inspect as mi

from millstream.runtime.errors import DefinitionError

from .immutable import Passing, any_of, fast_types_of, passing_of
from .rules import Rule, rule_for
from .types import bare, inspect_hint, show_hint, union_members

Wrapper = Callable[[Any], object]

__all__ = ["Wrapped", "needs_wrappers", "wrap_union"]


class Wrapped:
    """The parts of the codec for one such union.

    `wire` is the type that is decoded. `convert` wraps a value, or raises TypeError. `unwrap`
    returns the value.
    """

    __slots__ = ("_by_type", "_members", "_rule", "needs_runtime", "nodes", "wire")

    def __init__(self, hint: object, members: tuple[object, ...], subject: str) -> None:
        shapes = [
            inspect_hint(member, f"{subject}: union member `{show_hint(member)}`")
            for member in members
        ]
        self.needs_runtime = any(shape.needs_runtime for shape in shapes)
        self.nodes: list[mi.Type] = [shape.node for shape in shapes]
        self._rule = rule_for(hint)
        self._members = [(rule_for(member), _wrapper(member)) for member in members]
        _check_tags(members, subject)
        self._by_type = _index(hint, self._members, subject)
        self.wire: Any = Union[tuple(wrap or NoneType for _, wrap in self._members)]  # noqa: UP007

    @property
    def fast_types(self) -> frozenset[type]:
        """The types whose values pass without a copy (see `Codec.fast_types`)."""
        return frozenset[type]().union(*map(fast_types_of, self.nodes))

    @property
    def passing(self) -> Passing | None:
        """The test for values that need no copy. None: all values need one."""
        return any_of(map(passing_of, self.nodes))

    def convert(self, value: Any) -> object:
        """Return the value in the wrapper of its member, for the encoder."""
        wrapper = self._by_type.get(type(value))
        if wrapper is not None:
            return wrapper(value)
        return self._convert_other(value)

    def _convert_other(self, value: Any) -> object:
        if value is None and NoneType in self._by_type:
            return None
        for rule, wrapper in self._members:
            try:
                inner = value if type(value) in rule.direct else rule.convert(value)
            except TypeError:
                continue
            return inner if wrapper is None else wrapper(inner)
        self._rule.convert(value)
        raise AssertionError("refused by each member, admitted by the union")

    @staticmethod
    def unwrap(value: Any) -> Any:
        """Return the value in a decoded wrapper."""
        return None if value is None else value.v


def needs_wrappers(hint: object) -> bool:
    """Return whether an annotation is a union that msgspec cannot decode by itself.

    Args:
        hint: The annotation.
    """
    if not union_members(hint):
        return False
    try:
        mi.type_info(bare(hint))
    except TypeError:
        return True
    return False


def wrap_union(hint: object, subject: str) -> Wrapped:
    """Create the wrappers of a union. Raises DefinitionError naming `subject` and the member."""
    return Wrapped(hint, union_members(hint), subject)


def _wrapper(member: object) -> Wrapper | None:
    if bare(member) is NoneType:
        return None
    name = _tag(member)
    return msgspec.defstruct(f"W_{name}", [("v", member)], tag=name, array_like=True)


def _tag(member: object) -> str:
    """Return the member's name on the wire. Every annotation that can be encoded has one."""
    kind: Any = bare(member)
    return str(kind.__name__)


def _check_tags(members: tuple[object, ...], subject: str) -> None:
    """Refuse members that the receiver could not distinguish."""
    for tag, count in Counter(map(_tag, members)).items():
        if count > 1:
            raise DefinitionError(
                f"{subject}: two members of the union have the name `{tag}` on the wire;"
                " rename one of them"
            )


def _index(
    hint: object, members: list[tuple[Rule, Wrapper | None]], subject: str
) -> dict[type, Wrapper | None]:
    """Return the wrapper of each exact type.

    Refuses members that the sender could not distinguish.
    """
    found: dict[type, Wrapper | None] = {}
    for rule, wrapper in members:
        for kind in rule.direct:
            if kind in found:
                raise DefinitionError(
                    f"{subject}: a `{kind.__qualname__}` fits two members of `{show_hint(hint)}`;"
                    " use distinct classes"
                )
            found[kind] = wrapper
    return found
