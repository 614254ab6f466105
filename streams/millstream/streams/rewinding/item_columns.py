"""The columns that items of a type have, in the words of SQL, for programs that read tables. Pure.

Owns: `Column`, `columns_of`. Not: reading items. Invariant: what cannot be said of a type is not
guessed: then the type has no columns.
"""

from __future__ import annotations

from typing import Any

import msgspec
import msgspec.inspect as mi

__all__ = ["Column", "columns_of", "quoted"]

NESTED_MAX = 16
PLAIN: dict[type[mi.Type], str] = {
    mi.BoolType: "boolean",
    mi.IntType: "bigint",
    mi.FloatType: "double",
    mi.StrType: "string",
    mi.UUIDType: "string",
    mi.BytesType: "binary",
    mi.ByteArrayType: "binary",
    mi.DateTimeType: "timestamp",
    mi.DateType: "date",
}
LISTS = (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType)


class Column(msgspec.Struct, array_like=True, frozen=True):
    """A field of an item: its name there, and the type of a column that has it."""

    name: str
    kind: str


class Unsaid(Exception):
    """There is no such type in SQL."""


def columns_of(item: Any) -> list[Column]:
    """The columns of an item type; empty: its items are no maps of fields that can be said."""
    try:
        return fields_of(mi.type_info(item), 0)
    except (Unsaid, TypeError, NameError):
        return []


def fields_of(node: mi.Type, depth: int) -> list[Column]:
    """Of what is a map with fields. Raises Unsaid."""
    if not isinstance(node, mi.StructType | mi.DataclassType | mi.TypedDictType):
        raise Unsaid
    if isinstance(node, mi.StructType) and node.array_like:
        raise Unsaid
    return [Column(one.encode_name, kind_of(one.type, depth + 1)) for one in node.fields]


def kind_of(node: mi.Type, depth: int) -> str:
    """The type of a column. Raises Unsaid."""
    if depth > NESTED_MAX:
        raise Unsaid  # it may have itself inside
    if isinstance(node, mi.UnionType):
        others = [one for one in node.types if not isinstance(one, mi.NoneType)]
        if len(others) != 1:
            raise Unsaid
        return kind_of(others[0], depth)
    if isinstance(node, LISTS):
        return f"array<{kind_of(node.item_type, depth + 1)}>"
    if isinstance(node, mi.DictType):
        if not isinstance(node.key_type, mi.StrType):
            raise Unsaid
        return f"map<string,{kind_of(node.value_type, depth + 1)}>"
    if type(node) in PLAIN:
        return PLAIN[type(node)]
    fields = fields_of(node, depth)
    return f"struct<{','.join(f'{quoted(one.name)}:{one.kind}' for one in fields)}>"


def quoted(name: str) -> str:
    """A name as SQL takes any."""
    return "`" + name.replace("`", "``") + "`"
