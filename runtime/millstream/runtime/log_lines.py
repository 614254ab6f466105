"""Protection of the log against texts that forge its lines.

This module changes each record of a logger below `millstream` before a handler of the program gets
it. It also owns `Lines`, a text that is meant to have several lines. No name, key or exception text
begins a new line of the log or moves the cursor of a terminal. A program that has not set up
logging still sees warnings on standard error.
"""

from __future__ import annotations

import logging
import traceback
from textwrap import indent
from typing import Any

from millstream.runtime.public_names import with_public_names
from millstream.runtime.text import escape_text

__all__ = ["Lines", "guard_lines"]

ROOT = "millstream"
PLAIN = (int, float, type(None))


class Lines(str):
    """A text of this process itself that may have several lines, such as a stack."""

    __slots__ = ()


class OneLine:
    """An argument of a record, shown without control characters."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return escape_text(str(self._value))

    def __repr__(self) -> str:
        return escape_text(repr(self._value))


class LineGuard(logging.NullHandler):
    """A handler that changes records for the handlers after it. It writes nothing."""

    def handle(self, record: logging.LogRecord) -> bool:  # type: ignore[override, unused-ignore]
        """Escape the arguments and the traceback of a record."""
        if isinstance(record.args, tuple):
            record.args = tuple(map(guard, record.args))
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            record.exc_text = traceback_of(record.exc_info[1])
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not has_other(record.name):
            last.handle(record)
        return True


def guard(value: Any) -> Any:
    """Return an argument of a record in the form in which it is logged."""
    if isinstance(value, Lines):
        return Lines(escape_text(value, keep="\n"))
    return value if isinstance(value, PLAIN) else OneLine(value)


def traceback_of(error: BaseException | None) -> str:
    """Return a traceback. All its lines after the first are indented, whatever the error says."""
    text = with_public_names("".join(traceback.format_exception(error))).rstrip("\n")
    first, line_end, rest = escape_text(text, keep="\n").partition("\n")
    return first + line_end + indent(rest, "  ", lambda line: True)


def has_other(name: str) -> bool:
    """Return whether any handler writes the records of this logger."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(handler, LineGuard) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def guard_lines() -> None:
    """Protect the records of all loggers of Millstream. Repeated calls do nothing."""
    root = logging.getLogger(ROOT)
    if not any(isinstance(handler, LineGuard) for handler in root.handlers):
        root.addHandler(LineGuard())
