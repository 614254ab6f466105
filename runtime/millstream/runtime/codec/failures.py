"""Errors across the wire, without pickle.

A caller catches a new exception of a type that its process knows, with the callee's traceback as
text in a note. For an unknown type it catches a `GrainError` with the name and message. A local
call converts errors in the same way, so `except` clauses do not depend on the location of a grain.

This module owns the wire form of errors and its limits. `known_errors` knows the types, and
`failure_values` encodes arguments and attributes.

Invariants:

- The `__init__` of a user's exception never runs here.
- No exception or frame is kept alive here.
- KeyboardInterrupt, SystemExit, GeneratorExit and CancelledError are never described.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

import msgspec

from millstream.runtime.errors import GrainError
from millstream.runtime.public_names import type_name, with_public_names
from millstream.runtime.text import show_text

from .failure_values import TEXT_CHARS_MAX, cut, pack, unpack
from .known_errors import KnownErrors

__all__ = [
    "ERROR_BYTES_MAX",
    "MEMBERS_MAX",
    "NESTING_MAX",
    "NEVER_REPLIES",
    "NOTES_MAX",
    "TEXT_CHARS_MAX",
    "KnownErrors",
    "WireError",
    "answerable",
    "describe",
    "isolate_error",
    "rebuild",
    "source_name",
]

NEVER_REPLIES = (KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError)
"""Errors that end a turn without being its answer."""

NOTES_MAX = 64
"""The most notes of one exception."""
ERROR_BYTES_MAX = 1_048_576
"""The most bytes of one encoded error.

Of a larger error only the type, message and traceback are sent.
"""
MEMBERS_MAX = 64
"""The most members of one exception group. A note counts the others."""
NESTING_MAX = 8
"""The most levels of exception groups. Groups below them arrive as GrainError."""

_INTERNAL = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # runtime/
_SENT_ELSEWHERE = ("__notes__", "args")  # the state of an AttributeError has `args` since 3.12
_NIL = msgspec.Raw(b"\xc0")
_EMPTY = msgspec.Raw(b"\x80")
NAMES_KEPT = 1024


class WireError(msgspec.Struct, array_like=True):
    """One exception on the wire.

    `args` is nil if the arguments cannot be sent. `members` are those of an exception group.
    """

    type_name: str
    message: str
    args: msgspec.Raw
    state: msgspec.Raw
    notes: list[str]
    traceback: str
    members: list[WireError]


_encode: Callable[[WireError], bytes] = msgspec.msgpack.Encoder().encode
_decode: Callable[[Any], WireError] = msgspec.msgpack.Decoder(WireError).decode


def describe(error: BaseException, subject: str) -> bytes:
    """Encode an exception that a turn raised, as a WireError. Takes about 100 µs.

    `subject` ("Airport/BOS.add") heads the traceback. An attribute that cannot be sent is left out,
    and a note says so.
    """
    assert not isinstance(error, NEVER_REPLIES), f"{subject}: {error!r} is not a reply"
    wire = _describe(error, NESTING_MAX)
    wire.traceback = _clean(f"raised in {show_text(subject)}:\n{_traceback(error)}")
    data = _encode(wire)
    if len(data) > ERROR_BYTES_MAX:
        wire.args, wire.state, wire.members = _pack_message(wire.message), _EMPTY, []
        wire.notes = [
            f"{len(data)} bytes of this error were not sent: ERROR_BYTES_MAX is {ERROR_BYTES_MAX}"
        ]
        data = _encode(wire)
    return data


def answerable(error: BaseException) -> BaseException:
    """Return the error, or a GrainError instead of an error that cannot be an answer."""
    if not isinstance(error, NEVER_REPLIES):
        return error
    return GrainError(type(error).__name__, f"raised by the method: {error}")


def rebuild(data: bytes | msgspec.Raw, known: KnownErrors) -> Exception:
    """Create a new exception from an encoded WireError. An unknown type becomes GrainError."""
    try:
        wire = _decode(data)
    except msgspec.DecodeError as error:
        return GrainError("unknown", f"the callee's error cannot be read: {error}")
    found = _rebuild(wire, known)
    _set_notes(found, [*wire.notes, wire.traceback])
    return found


def isolate_error(error: Exception, known: KnownErrors, subject: str) -> Exception:
    """Return the exception that a remote caller would catch."""
    return rebuild(describe(error, subject), known)


# --- to the wire ---------------------------------------------------------------------------------


def _describe(error: BaseException, depth: int) -> WireError:
    notes = [_clean(str(note)) for note in getattr(error, "__notes__", ())]
    args: msgspec.Raw | None
    members: list[WireError] = []
    if isinstance(error, BaseExceptionGroup):
        args, state = _pack_or_none((error.message,)), dict(vars(error))
        if depth:
            members = [_describe(one, depth - 1) for one in error.exceptions[:MEMBERS_MAX]]
        if len(error.exceptions) > len(members) > 0:
            notes.append(f"{len(error.exceptions) - len(members)} more exceptions were not sent")
    else:
        args, state = _reduce(error)
    packed = _pack_state(state, notes)
    message = _clean(_text(error))
    name = type_name(type(error))
    return WireError(name, message, args or _NIL, packed, notes[-NOTES_MAX:], "", members)


def _reduce(error: BaseException) -> tuple[msgspec.Raw | None, dict[str, object]]:
    """Return the arguments and attributes that the builtin base of the exception knows."""
    reduced = cast(Any, _builtin_base(type(error))).__reduce__(error)
    state = reduced[2] if len(reduced) > 2 and isinstance(reduced[2], dict) else {}
    return _pack_or_none(reduced[1]), dict(state)


def _pack_or_none(args: object) -> msgspec.Raw | None:
    try:
        return msgspec.Raw(pack(args))
    except Exception:
        return None


def _pack_message(message: str) -> msgspec.Raw:
    return msgspec.Raw(pack((message,)))


def _pack_state(state: dict[str, object], notes: list[str]) -> msgspec.Raw:
    kept: dict[str, msgspec.Raw] = {}
    for name, value in state.items():
        if name in _SENT_ELSEWHERE:
            continue
        packed = _pack_or_none(value)
        if packed is not None:
            kept[_clean(str(name))] = packed
        else:
            notes.append(f"attribute `{name}` of type `{type(value).__qualname__}` was not sent")
    return msgspec.Raw(msgspec.msgpack.encode(kept))


def _text(error: BaseException) -> str:
    try:
        return str(error.message if isinstance(error, BaseExceptionGroup) else error)
    except Exception as broken:
        return f"<the text of the error raised {type(broken).__qualname__}>"


def _clean(text: str) -> str:
    """Return text that MessagePack can carry: of limited length and without lone surrogates."""
    return cut(text).encode("utf-8", "backslashreplace").decode()


def _traceback(error: BaseException) -> str:
    try:
        report = traceback.TracebackException.from_exception(error, compact=True)
        report.__notes__ = None  # notes are sent separately
        _trim(report)
        _shorten(report)
        return with_public_names("".join(report.format()))
    except Exception as broken:
        return f"<the traceback raised {type(broken).__qualname__}>"


def _trim(report: traceback.TracebackException) -> None:
    """Remove the runtime's own frames, unless there are no others."""
    theirs = [frame for frame in report.stack if not frame.filename.startswith(_INTERNAL)]
    if theirs:
        report.stack[:] = theirs


def _shorten(report: traceback.TracebackException) -> None:
    """Name files by their import path, so that paths of this machine are not sent."""
    reports = [report]
    while reports:
        one = reports.pop()
        for frame in one.stack:
            frame.filename = source_name(frame.filename)
        others = (one.__cause__, one.__context__, *(one.exceptions or ()))
        reports.extend(other for other in others if other is not None)


# --- from the wire -------------------------------------------------------------------------------


def _rebuild(wire: WireError, known: KnownErrors) -> Exception:
    """Create one exception with its group members and notes, without the traceback."""
    cls = known.find(wire.type_name)
    if wire.members:
        found = _rebuild_group(wire, cls, known)
    else:
        found = _rebuild_single(wire, cls)
    _set_notes(found, wire.notes)
    return found


def _rebuild_group(wire: WireError, cls: type[Exception] | None, known: KnownErrors) -> Exception:
    members = [_rebuild(member, known) for member in wire.members]
    if cls is not None and issubclass(cls, ExceptionGroup):
        found = _make(cls, (wire.message, members), wire.state)
        if found is not None:
            return found
    wire.notes.append(f"the group was a `{wire.type_name}`")
    return ExceptionGroup(wire.message, members)


def _rebuild_single(wire: WireError, cls: type[Exception] | None) -> Exception:
    found = None
    args = _unpack_args(wire.args)
    if cls is not None and args is not None:
        found = _make(cls, args, wire.state)
    return GrainError(wire.type_name, wire.message) if found is None else found


def _unpack_args(packed: msgspec.Raw) -> tuple[Any, ...] | None:
    try:
        args = unpack(packed)
    except Exception:
        return None
    return args if isinstance(args, tuple) else None


def _make(cls: type[Exception], args: tuple[Any, ...], state: msgspec.Raw) -> Exception | None:
    """Create an exception without running a user's `__init__`. Returns None if that fails."""
    try:
        if cls.__module__ == "builtins":
            found = cls(*args)
        else:
            found = cls.__new__(cls, *args)
            # The builtin base sets the fields outside of `__dict__`: errno, encoding, value, ...
            cast(Any, _builtin_base(cls)).__init__(found, *args)
        if type(found) is not cls:
            return None
        _set_state(found, msgspec.msgpack.decode(state, type=dict[str, msgspec.Raw]))
    except Exception:
        return None
    return found


def _set_state(error: Exception, state: dict[str, msgspec.Raw]) -> None:
    for name, packed in state.items():
        value = unpack(packed)
        try:
            # Bypass a custom `__setattr__`, which in a frozen dataclass would refuse.
            object.__setattr__(error, name, value)
        except AttributeError:
            vars(error)[name] = value


def _set_notes(error: Exception, notes: list[str]) -> None:
    if notes:
        object.__setattr__(error, "__notes__", list(notes))


def _builtin_base(cls: type[BaseException]) -> type[BaseException]:
    return next(base for base in cls.__mro__ if base.__module__ == "builtins")


@lru_cache(NAMES_KEPT)
def source_name(filename: str) -> str:
    """Return `shop/orders.py` for a file below an entry of `sys.path`, else its last part.

    The name does not contain the location on the machine, so equal programs in different
    directories send equal bytes. A name that is no absolute path (`<string>`) is returned
    unchanged.
    """
    if not os.path.isabs(filename):
        return filename
    roots = (os.path.abspath(entry) + os.sep for entry in sys.path)
    longest = max((root for root in roots if filename.startswith(root)), key=len, default="")
    return filename.removeprefix(longest) if longest else os.path.basename(filename)
