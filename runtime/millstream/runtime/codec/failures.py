"""Errors across the wire, never pickled.

What a caller catches is a fresh exception of a type that its process knows, with the callee's
traceback as text in a note; of any other type only name and message arrive, as `GrainError`. A
local call goes the same way, so `except` clauses do not depend on where a grain is.
Owns: the wire form and its limits. Not: which types are known (`known_errors`), the form of
arguments and attributes (`failure_values`).
Invariants: `__init__` of a user's exception is not run here; nothing here keeps an exception or its
frames alive; KeyboardInterrupt, SystemExit, GeneratorExit and CancelledError are never described.
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
"""Raised by a turn, these end it without being its answer."""

NOTES_MAX = 64
"""Notes of one exception."""
ERROR_BYTES_MAX = 1_048_576
"""Bytes of one encoded error; of a larger one only type, message and traceback are sent."""
MEMBERS_MAX = 64
"""Members of one exception group; a note counts the others."""
NESTING_MAX = 8
"""Groups within groups; deeper ones arrive as GrainError."""

_INTERNAL = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # runtime/
_SENT_ELSEWHERE = ("__notes__", "args")  # the state of an AttributeError has `args` since 3.12
_NIL = msgspec.Raw(b"\xc0")
_EMPTY = msgspec.Raw(b"\x80")
NAMES_KEPT = 1024


class WireError(msgspec.Struct, array_like=True):
    """One exception. `args` is nil if it cannot be sent; `members`: those of a group."""

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
    """The encoded WireError of an exception that a turn raised. Costs some 100 µs.

    `subject` ("Airport/BOS.add") heads the traceback. An attribute that cannot be sent is left out,
    with a note.
    """
    assert not isinstance(error, NEVER_REPLIES), f"{subject}: {error!r} is not a reply"
    wire = _describe(error, NESTING_MAX)
    wire.traceback = _clean(f"raised in {show_text(subject)}:\n{_traceback(error)}")
    data = _encode(wire)
    if len(data) > ERROR_BYTES_MAX:
        wire.args, wire.state, wire.members = _pack_message(wire.message), _EMPTY, []
        wire.notes = [f"{len(data)} bytes of it were not sent: ERROR_BYTES_MAX {ERROR_BYTES_MAX}"]
        data = _encode(wire)
    return data


def answerable(error: BaseException) -> BaseException:
    """The error itself, or a GrainError for one that a method raised and that is no answer."""
    if not isinstance(error, NEVER_REPLIES):
        return error
    return GrainError(type(error).__name__, f"raised by the method: {error}")


def rebuild(data: bytes | msgspec.Raw, known: KnownErrors) -> Exception:
    """A fresh exception from an encoded WireError; GrainError if its type is not known."""
    try:
        wire = _decode(data)
    except msgspec.DecodeError as error:
        return GrainError("unknown", f"the callee's error cannot be read: {error}")
    found = _rebuild(wire, known)
    _set_notes(found, [*wire.notes, wire.traceback])
    return found


def isolate_error(error: Exception, known: KnownErrors, subject: str) -> Exception:
    """The exception that a remote caller would catch."""
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
    """Arguments and attributes, as the builtin base of the exception knows them."""
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
        return f"<its text raised {type(broken).__qualname__}>"


def _clean(text: str) -> str:
    """Text that MessagePack carries: bounded, without lone surrogates."""
    return cut(text).encode("utf-8", "backslashreplace").decode()


def _traceback(error: BaseException) -> str:
    try:
        report = traceback.TracebackException.from_exception(error, compact=True)
        report.__notes__ = None  # they travel by themselves
        _trim(report)
        _shorten(report)
        return with_public_names("".join(report.format()))
    except Exception as broken:
        return f"<the traceback raised {type(broken).__qualname__}>"


def _trim(report: traceback.TracebackException) -> None:
    """Leave out the runtime's own frames, unless there are no others."""
    theirs = [frame for frame in report.stack if not frame.filename.startswith(_INTERNAL)]
    if theirs:
        report.stack[:] = theirs


def _shorten(report: traceback.TracebackException) -> None:
    """Name files as they are imported: paths are this machine's own business."""
    reports = [report]
    while reports:
        one = reports.pop()
        for frame in one.stack:
            frame.filename = source_name(frame.filename)
        others = (one.__cause__, one.__context__, *(one.exceptions or ()))
        reports.extend(other for other in others if other is not None)


# --- from the wire -------------------------------------------------------------------------------


def _rebuild(wire: WireError, known: KnownErrors) -> Exception:
    """One exception and, for a group, its members; with notes, without the traceback."""
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
    """An exception without running a user's `__init__`; None if even that fails."""
    try:
        if cls.__module__ == "builtins":
            found = cls(*args)
        else:
            found = cls.__new__(cls, *args)
            # The builtin part sets what lies outside `__dict__`: errno, encoding, value, ...
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
            # Past a `__setattr__` of its own: a frozen dataclass would refuse.
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
    """`shop/orders.py` for a file that is found from an entry of `sys.path`, else its last part.

    A name does not tell where on a machine a program lies, so equal programs in different
    directories send equal bytes. A name that is no path (`<string>`) stays as it is.
    """
    if not os.path.isabs(filename):
        return filename
    roots = (os.path.abspath(entry) + os.sep for entry in sys.path)
    longest = max((root for root in roots if filename.startswith(root)), key=len, default="")
    return filename.removeprefix(longest) if longest else os.path.basename(filename)
