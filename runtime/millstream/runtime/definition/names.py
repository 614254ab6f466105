"""The names of grains and of their stored rows, as unambiguous text.

This module owns the rules for the names of grain types, and joins type, key and state name to one
text. Different names give different texts. A part without `/` and `%` appears in the text
unchanged.
"""

from __future__ import annotations

from millstream.runtime.errors import DefinitionError
from millstream.runtime.text import show_text

__all__ = [
    "OBSERVER_SIGN",
    "check_kind",
    "check_name",
    "client_of",
    "grain_id",
    "observer_key",
    "parse_grain_id",
    "row_key",
]

SYSTEM_SIGN = "$"  # the first character of the names of system targets
OBSERVER_SIGN = "~"
"""The first character of the type names of observers. Every process of a call sees by it that a
client has the object, also a process that does not know the class.
"""


def check_name(what: str, name: object) -> None:
    """Raise DefinitionError for a name that is no printable text."""
    if type(name) is not str or not name:
        raise DefinitionError(
            f"{what} is {show_text(repr(name))}: it must be a str that is not empty"
        )
    if not name.isprintable():
        raise DefinitionError(
            f"{what} is {show_text(repr(name))}: it has a control character or a lone surrogate; "
            "use printable characters"
        )


def check_kind(what: str, name: object) -> None:
    """Raise DefinitionError unless `name` can be the name of a grain type."""
    check_name(what, name)
    for sign in (SYSTEM_SIGN, OBSERVER_SIGN):
        if str(name).startswith(sign):
            raise DefinitionError(
                f"{what} is {show_text(repr(name))}: names that begin with {sign!r} are "
                "reserved; choose another name"
            )


def observer_key(client: str, number: int) -> str:
    """Return the key of an observer: the client that has it, and its number there."""
    return f"{client}/{number:x}"


def client_of(key: str) -> str:
    """Return the client that has the observer with this key."""
    return key.rpartition("/")[0]


def grain_id(kind: str, key: str) -> str:
    """Return `Type/key`, which identifies a grain. The key appears in it unchanged."""
    return f"{_escape(kind)}/{key}"


def parse_grain_id(text: str) -> tuple[str, str]:
    """Return type and key of a `grain_id`. Raises ValueError for any other text."""
    kind, slash, key = text.partition("/")
    if not slash or not kind:
        raise ValueError(f"{show_text(repr(text))} is not the name of a grain, Type/key")
    return kind.replace("%2F", "/").replace("%25", "%"), key


def row_key(kind: str, key: str, name: str) -> str:
    """Return the key of the row of a grain's state: `Type/key/name`."""
    return f"{_escape(kind)}/{_escape(key)}/{_escape(name)}"


def _escape(part: str) -> str:
    return part.replace("%", "%25").replace("/", "%2F")
