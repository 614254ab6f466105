"""Strict decoding of texts from outside: JSON, query strings and paths.

Invariant: repeated keys, unknown fields, incomplete surrogate pairs, NaN and endless nesting are
refused with an explanation. Nothing is guessed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from millstream.runtime.extending import show_text

from .problems import Limit, Problem

__all__ = ["pairs_in", "read_json", "read_path", "read_query"]

T = TypeVar("T")
FIELDS_MAX = 64
DIGITS_MAX = 300
"""Digits of a whole number that are read. A number with so many digits exceeds every limit."""
WHERE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.S)
ENDLESS = re.compile(rf"-?\d{{{DIGITS_MAX},}}")
UNKNOWN = re.compile(r"unknown field `(.*)`")
MISSING = re.compile(r"missing required field `(.*)`")


def read_json(data: bytes, kind: type[T]) -> T:
    """Decode a body to its type. Raises Problem (400)."""
    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=once_each,
            parse_constant=refuse_constant,
            parse_int=whole,
        )
        if b"\\u" in data:
            # an incomplete surrogate pair is not a text
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeError:
        raise wrong("the body is not valid UTF-8, or has an incomplete surrogate pair") from None
    except RecursionError:
        raise wrong("the body is nested too deeply") from None
    except ValueError as error:
        raise wrong(f"the body is not JSON: {show_text(str(error))}") from error
    return as_kind(value, kind)


def once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises an error if a key occurs twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise wrong(f"{show_text(repr(twice))} occurs twice in an object", field=twice)
    return found


def whole(text: str) -> int:
    """A whole number. Of an endless number, enough digits to exceed every limit."""
    return int(text[:DIGITS_MAX])


def refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not a JSON number")


def as_kind(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Convert a value to its type. Raises Problem (400), which names the field."""
    try:
        return msgspec.convert(value, kind, strict=strict)
    except msgspec.ValidationError as error:
        text = str(error)
    parted = WHERE.match(text)
    what, where = parted.groups(default="") if parted else (text, "")
    named = UNKNOWN.search(what) or MISSING.search(what)
    field = ".".join(filter(None, (where, named[1] if named else "")))
    met = re.search(r"[<>]= (-?\d+)", what)
    limit = Limit(int(met[1])) if met else None
    raise wrong(f"{show_text(field) or 'the body'}: {show_text(what)}", field=field, limit=limit)


def wrong(detail: str, *, field: str = "", limit: Limit | None = None) -> Problem:
    # a text that UTF-8 cannot represent cannot be sent back either
    named = field.encode(errors="replace").decode()
    return Problem(400, "RequestInvalid", detail, field=show_text(named), limit=limit)


def read_path(path: str) -> list[str]:
    """The segments of a path, each decoded by itself because a name may contain any character.

    Raises Problem.
    """
    try:
        return [unquote_to_bytes(part).decode() for part in path.split("/")[1:]]
    except UnicodeError:
        raise wrong("the path is not UTF-8") from None


def read_query(text: str, kind: type[T], lists: Sequence[str]) -> T:
    """The fields of a query; some fields may occur more than once. Raises Problem (400)."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=FIELDS_MAX)
    except UnicodeError:
        raise wrong("the query is not UTF-8") from None
    except ValueError:
        limit = Limit(FIELDS_MAX)
        raise wrong(f"the query has more than {FIELDS_MAX} fields", limit=limit) from None
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in lists:
            found.setdefault(name, []).append(value)
        elif name in found:
            raise wrong(f"{show_text(repr(name))} occurs twice in the query", field=name)
        else:
            found[name] = value
    return as_kind({name: cut(value) for name, value in found.items()}, kind, strict=False)


def cut(value: Any) -> Any:
    """An endless number, cut as in `whole`."""
    return value[:DIGITS_MAX] if isinstance(value, str) and ENDLESS.fullmatch(value) else value


def pairs_in(field: str, texts: Sequence[str]) -> dict[str, str]:
    """`key=value` texts of a query as pairs. Raises Problem (400)."""
    found: dict[str, str] = {}
    for text in texts:
        key, is_pair, value = text.partition("=")
        if not is_pair or key in found:
            what = "occurs twice" if is_pair else "is not a pair: write key=value"
            raise wrong(f"{field}: {show_text(repr(key))} {what}", field=field)
        found[key] = value
    return found
