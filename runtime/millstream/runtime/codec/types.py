"""Annotations: resolving them, walking them, and refusing types that cannot be encoded.

This module decides which types may cross the wire, and writes the texts of a `DefinitionError`. It
handles no values: `rules` checks them, and `immutable` decides about copies.

Invariants:

- If `inspect_hint` accepts an annotation, every part of it has an encoder and a decoder.
- `NameError` is never wrapped. It means "not defined yet", and the caller tries again later.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args, get_origin

import msgspec
import msgspec.inspect as mi

from millstream.runtime.errors import DefinitionError

from .hooks import find_hook

__all__ = ["Shape", "bare", "inspect_hint", "resolve_hints", "show_hint", "union_members"]


class Shape(msgspec.Struct, frozen=True):
    """An annotation that can be encoded.

    `needs_runtime` is True if a hook in it needs the silo or client that decodes.
    """

    node: mi.Type
    needs_runtime: bool


def bare(hint: object) -> object:
    """Return an annotation without `Annotated`, `Final`, `NewType` and `type X = ...` around it.

    Args:
        hint: The annotation.
    """
    while True:
        if get_origin(hint) in (typing.Annotated, typing.Final):
            hint = get_args(hint)[0]
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__  # type: ignore[attr-defined]  # 3.12 and later
        else:
            return types.NoneType if hint is None else hint


def union_members(hint: object) -> tuple[object, ...]:
    """Return the members of a union annotation, with nested unions flattened.

    Args:
        hint: The annotation.

    Returns:
        The members. Empty if the annotation is no union.
    """
    hint = bare(hint)
    if get_origin(hint) not in (typing.Union, types.UnionType):
        return ()
    found: list[object] = []
    for member in get_args(hint):
        found.extend(union_members(member) or (member,))
    return tuple(found)


def show_hint(hint: object) -> str:
    """Return an annotation as a person would write it: `int`, `list[int]`, `Flight | None`.

    Args:
        hint: The annotation.
    """
    if hint is None or hint is types.NoneType:
        return "None"
    if isinstance(hint, type) and not get_args(hint):
        return hint.__qualname__.rpartition("<locals>.")[2]
    if members := union_members(hint):
        return " | ".join(show_hint(member) for member in members)
    return str(hint).replace("typing.", "").replace("collections.abc.", "").replace("~", "")


# --- resolving names -----------------------------------------------------------------------------


def resolve_hints(
    fn_or_class: Callable[..., Any] | type, localns: Mapping[str, object], owner: type
) -> dict[str, Any]:
    """Return the annotations of a function or class, with names and type variables resolved.

    `localns` contains the names of the place where `owner` was written. `owner` itself is always
    known. It is the class that has or inherits the function. Its bases, such as `Box[Flight]`,
    replace the type variables of `Box`, base by base, because two bases may share a variable.
    Raises NameError for a name that does not exist yet. In that case, try again once the module is
    loaded.
    """
    names = {**localns, owner.__name__: owner}
    hints = typing.get_type_hints(fn_or_class, localns=names, include_extras=True)
    maps = _variables_by_base(owner)
    if isinstance(fn_or_class, type):
        return {
            name: _substitute(hint, maps.get(_find_annotator(fn_or_class, name), {}))
            for name, hint in hints.items()
        }
    variables = maps.get(_find_definer(owner, fn_or_class), {})
    return {name: _substitute(hint, variables) for name, hint in hints.items()}


def _find_definer(owner: type, fn: Callable[..., Any]) -> type:
    for base in owner.__mro__:
        if any(value is fn for value in vars(base).values()):
            return base
    return owner


def _find_annotator(cls: type, name: str) -> type:
    for base in cls.__mro__:
        if name in inspect.get_annotations(base):
            return base
    return cls


def _variables_by_base(owner: type) -> dict[type, dict[Any, object]]:
    """Return, for each generic base, the types that `owner` gives for its type variables."""
    found: dict[type, dict[Any, object]] = {}

    def visit(cls: type, variables: dict[Any, object]) -> None:
        for base in getattr(cls, "__orig_bases__", cls.__bases__):
            origin = get_origin(base) or base
            if not isinstance(origin, type) or origin is typing.Generic:
                continue
            parameters = getattr(origin, "__parameters__", ())
            arguments = [_substitute(argument, variables) for argument in get_args(base)]
            inner = dict(zip(parameters, arguments, strict=False))
            found.setdefault(origin, {}).update(inner)
            visit(origin, inner)

    visit(owner, {})
    return found


def _substitute(hint: object, variables: Mapping[Any, object]) -> Any:
    if not variables:
        return hint
    if isinstance(hint, TypeVar):
        return variables.get(hint, hint)
    parameters = getattr(hint, "__parameters__", ())
    if isinstance(hint, type) and not get_args(hint):
        return hint
    if not any(parameter in variables for parameter in parameters):
        return hint
    arguments = tuple(variables.get(parameter, parameter) for parameter in parameters)
    return typing.cast(Any, hint)[arguments]


# --- walking -------------------------------------------------------------------------------------


def inspect_hint(hint: object, subject: str) -> Shape:
    """Walk an annotation, and check that every part of it has an encoding.

    Raises DefinitionError that names `subject`, the part, and a type to write instead. Raises
    NameError if a name inside a class is not defined yet.
    """
    if hint is inspect.Parameter.empty:
        raise DefinitionError(f"{subject}: the annotation is missing; write the type")
    if hint is typing.Self:
        raise DefinitionError(f"{subject}: `Self` is not known at run time; write the class name")
    _refuse_open(hint, subject)
    try:
        node = mi.type_info(hint)
    except NameError:
        raise
    except Exception as error:
        raise DefinitionError(f"{subject}: {error}{_advice_on(str(error))}") from None
    walk = _Walk(subject)
    walk.visit(node, "")
    return Shape(node, walk.needs_runtime)


def _advice_on(message: str) -> str:
    if "Type unions" in message:
        return (
            ". A union of several classes works only as a whole argument, result, state or item;"
            " inside other types, its members must be `msgspec.Struct` with `tag=True`"
        )
    if "Literal" in message or "Enums" in message:
        return ""
    return "; write a type that MessagePack can encode"


def _refuse_open(hint: object, subject: str) -> None:
    if isinstance(hint, TypeVar):
        raise DefinitionError(
            f"{subject}: type variable `{hint.__name__}` is open; write a type in its place"
        )
    parameters: Iterable[Any] = getattr(hint, "__parameters__", ())
    for parameter in parameters if not _is_pydantic_concrete(hint) else ():
        raise DefinitionError(
            f"{subject}: `{show_hint(hint)}` leaves type variable `{parameter.__name__}` open; "
            "write a type in its place"
        )
    for argument in get_args(hint):
        _refuse_open(argument, subject)


def _is_pydantic_concrete(hint: object) -> bool:
    # A pydantic `Box[int]` is a class that still has the type variables of `Box`.
    generic = getattr(hint, "__pydantic_generic_metadata__", None)
    return generic is not None and not generic["parameters"]


class _Walk:
    """One walk over a type tree. A class that contains itself is visited once."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.needs_runtime = False
        self._seen: set[Any] = set()

    def visit(self, node: mi.Type, where: str) -> None:
        if isinstance(node, mi.CustomType):
            self._visit_custom(node.cls, where)
        cls: Any = getattr(node, "cls", None)
        if cls is not None:
            if cls in self._seen:
                return
            self._seen.add(cls)
            _refuse_private(cls, f"{self.subject}{where}")
            if not isinstance(node, mi.CustomType):  # its type arguments are not in the tree
                _refuse_open(cls, f"{self.subject}{where}")
        for child, step in _children(node):
            self.visit(child, f"{where}{step}")

    def _visit_custom(self, cls: Any, where: str) -> None:
        origin: Any = get_origin(cls) or cls
        hook = find_hook(origin) if isinstance(origin, type) else None
        if hook is None or not hook.admits(origin):
            raise DefinitionError(f"{self.subject}{where}: {_no_encoding(cls)}")
        self.needs_runtime = self.needs_runtime or hook.needs_context


def _no_encoding(cls: Any) -> str:
    name = show_hint(cls)
    plain = show_hint(get_origin(cls) or cls)
    if plain in ("Iterable", "Iterator", "Reversible", "Container", "Sized"):
        return f"`{name}` has no encoding; write `Sequence` or `list`"
    if plain in ("Callable", "type", "object", "Hashable"):
        return f"`{name}` has no encoding; write the type of the data that is sent"
    advice = (
        f"register it with `register_type({plain}, encode, decode)` before this class is defined"
    )
    return f"`{name}` has no encoding; {advice}, or send its data as a dataclass"


def _children(node: mi.Type) -> Iterator[tuple[mi.Type, str]]:
    if isinstance(node, mi.Metadata):
        yield node.type, ""
    elif isinstance(node, mi.UnionType):
        yield from ((member, "") for member in node.types)
    elif isinstance(node, (mi.ListType, mi.SetType, mi.FrozenSetType, mi.VarTupleType)):
        yield node.item_type, ": item"
    elif isinstance(node, mi.TupleType):
        yield from ((item, f": item {at}") for at, item in enumerate(node.item_types))
    elif isinstance(node, mi.DictType):
        yield node.key_type, ": key"
        yield node.value_type, ": value"
    elif isinstance(node, (mi.DataclassType, mi.StructType, mi.NamedTupleType, mi.TypedDictType)):
        for field in node.fields:
            yield (
                field.type,
                f": field `{show_hint(get_origin(node.cls) or node.cls)}.{field.name}`",
            )


def _refuse_private(cls: Any, subject: str) -> None:
    # msgspec does not write such a field, but requires it when reading.
    for attribute in getattr(cls, "__attrs_attrs__", ()):
        if attribute.name.startswith("_"):
            raise DefinitionError(
                f"{subject}: attrs field `{show_hint(cls)}.{attribute.name}` is not sent, because "
                "its name begins with an underscore; rename it, or use a dataclass"
            )
