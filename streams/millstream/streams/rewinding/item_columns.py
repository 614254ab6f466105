"""The SQL columns of the items of a type, for programs that read tables. Pure.

Owns: `Column`, `columns_of`. Not: reading items. Invariant: an unclear type is not guessed. A field
of such a type is a column without a type, with the reason; items that are no maps of fields have no
columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any, is_typeddict

import msgspec
import msgspec.inspect as mi

__all__ = ["Column", "columns_of", "quote"]

NESTED_MAX = 16
PLAIN: dict[type[mi.Type], str] = {
    mi.BoolType: "boolean",
    mi.IntType: "bigint",
    mi.FloatType: "double",
    mi.StrType: "string",
    mi.UUIDType: "string",
    mi.TimeType: "string",
    mi.TimeDeltaType: "string",
    mi.BytesType: "binary",
    mi.ByteArrayType: "binary",
    mi.DateTimeType: "timestamp",
    mi.DateType: "date",
    mi.DecimalType: "decimal(38,18)",
}
"""A decimal has the type that Spark gives to Python's `Decimal`; times of day and durations are ISO
text."""
LISTS = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType)


class Column(msgspec.Struct, array_like=True, frozen=True):
    """A field of an item: its name, and the type of its column.

    `unsaid`: why the field has no such type; `kind` is empty then. An empty name: the item itself.
    """

    name: str
    kind: str
    unsaid: str = ""


class Unsaid(Exception):
    """SQL has no such type; the text has the reason."""


def columns_of(item: Any) -> list[Column]:
    """The columns of an item type. The list is empty if its items are no maps of fields."""
    try:
        node = mi.type_info(item)
    except (TypeError, NameError) as error:
        has_fields = is_dataclass(item) or is_typeddict(item) or _is_struct(item)
        return [Column("", "", str(error))] if has_fields else []
    return [_column(one) for one in _fields_of(node) or ()]


def _is_struct(item: Any) -> bool:
    return isinstance(item, type) and issubclass(item, msgspec.Struct)


def _fields_of(node: mi.Type) -> Sequence[mi.Field] | None:
    """The fields of a type that is a map of fields, or None for any other type."""
    if isinstance(node, mi.StructType):
        return None if node.array_like else node.fields
    return node.fields if isinstance(node, mi.DataclassType | mi.TypedDictType) else None


def _column(field: mi.Field) -> Column:
    try:
        return Column(field.encode_name, kind_of(field.type, 1))
    except Unsaid as why:
        return Column(field.encode_name, "", str(why))


def kind_of(node: mi.Type, depth: int) -> str:
    """The type of a column. Raises Unsaid."""
    if depth > NESTED_MAX:
        raise Unsaid(f"the type is nested more than {NESTED_MAX} deep, or contains itself")
    if isinstance(node, mi.UnionType):
        others = [one for one in node.types if not isinstance(one, mi.NoneType)]
        if len(others) != 1:
            names = " or ".join(_show(one) for one in others)
            raise Unsaid(f"the type is {names}")
        (only,) = others
        return kind_of(only, depth)
    if isinstance(node, LISTS):
        return f"array<{kind_of(node.item_type, depth + 1)}>"
    if isinstance(node, mi.DictType):
        return f"map<{_key_kind(node.key_type)},{kind_of(node.value_type, depth + 1)}>"
    if isinstance(node, mi.EnumType | mi.LiteralType):
        return _choice_kind(node)
    return PLAIN.get(type(node)) or _struct_kind(node, depth)


def _struct_kind(node: mi.Type, depth: int) -> str:
    """The type of a map with fields. Raises Unsaid, naming a field."""
    fields = _fields_of(node)
    if fields is None:
        raise Unsaid(f"the type is {_show(node)}")
    kinds: list[str] = []
    for one in fields:
        try:
            kinds.append(f"{quote(one.encode_name)}:{kind_of(one.type, depth + 1)}")
        except Unsaid as why:
            raise Unsaid(f"its field {one.encode_name!r}: {why}") from None
    return f"struct<{','.join(kinds)}>"


def _key_kind(node: mi.Type) -> str:
    """The type of the keys of a map: a scalar. Raises Unsaid."""
    if isinstance(node, mi.EnumType | mi.LiteralType):
        return _choice_kind(node)
    if type(node) not in PLAIN:
        raise Unsaid(f"the keys are {_show(node)}")
    return PLAIN[type(node)]


def _choice_kind(node: mi.EnumType | mi.LiteralType) -> str:
    """The type of the values that a field may have. Raises Unsaid."""
    values: Any
    if isinstance(node, mi.LiteralType):
        values = node.values
    else:
        values = [one.value for one in node.cls.__members__.values()]
    if all(isinstance(one, str) for one in values):
        return "string"
    if all(isinstance(one, int) and not isinstance(one, bool) for one in values):
        return "bigint"
    raise Unsaid(f"the type is one of {', '.join(map(repr, values))}")


def _show(node: mi.Type) -> str:
    """Return a text that describes a type."""
    cls = getattr(node, "cls", None)
    return (
        cls.__name__ if isinstance(cls, type) else type(node).__name__.removesuffix("Type").lower()
    )


def quote(name: str) -> str:
    """Quote a name, so that SQL accepts any characters in it."""
    return "`" + name.replace("`", "``") + "`"
