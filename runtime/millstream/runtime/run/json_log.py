"""Log records as JSON, one object on a line.

This module owns `JsonFormatter`. Besides the text, an object has the fields of `extra`, and the
grain whose turn wrote the record.

Invariants:

- A line is always one valid JSON object in ASCII, whatever the record has.
- A formatter never raises.
"""

from __future__ import annotations

import json
import logging
import math
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from millstream.runtime.turns.flows import flowing_of
from millstream.runtime.turns.request import Request, live_request

__all__ = ["JsonFormatter"]

OWN = frozenset(vars(logging.makeLogRecord({}))) | {"asctime", "message", "taskName"}
"""The attributes that every record has."""
DEPTH_MAX = 5  # of values in `extra`
ITEMS_MAX = 100  # of a list or dict in `extra`
TRACE = "traceparent"  # the flowing header of W3C Trace Context


class JsonFormatter(logging.Formatter):
    """Makes one JSON object of each record, for `millstream run --log-format json`.

    An object has `time` (UTC, ISO 8601), `level`, `logger` and `message`; for an exception `error`
    (its type) and `traceback`; the fields of `extra`; and, within a turn, `silo`, `grain`, `key`
    and `method`, with `trace` if the header `traceparent` flows along the call, and `call` if the
    turn has an id.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the object of a record as one line."""
        found: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": show_message(record),
        }
        with suppress(Exception):
            found |= fields_of(live_request_or_none())
        for name, value in vars(record).items():
            if name not in OWN and name not in ("time", "level", "logger"):
                found[name] = plain(value)
        if record.exc_info and record.exc_info[0] is not None:
            found["error"] = record.exc_info[0].__qualname__
        if record.exc_info or record.exc_text:
            with suppress(Exception):
                found["traceback"] = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        if record.stack_info:
            found["stack"] = record.stack_info
        return json.dumps(found)


def show_message(record: logging.LogRecord) -> str:
    """Return the text of a record. If its arguments do not fit, they follow the text."""
    try:
        return record.getMessage()
    except Exception:
        return f"{show(record.msg)} {show(record.args)}"


def live_request_or_none() -> Request | None:
    """Return the request of the running turn, or None outside of a turn or of an event loop."""
    try:
        return live_request()
    except RuntimeError:  # another thread
        return None


def fields_of(request: Request | None) -> dict[str, str]:
    """Return the fields of a running turn."""
    activation = None if request is None else request.activation
    if request is None or activation is None:
        return {}
    found = {
        "silo": activation.silo,
        "grain": activation.kind.name,
        "key": activation.key,
        "method": getattr(request.spec, "wire_name", request.spec.label),
    }
    if request.turn_id:
        found["call"] = request.turn_id
    parts = flowing_of(request).get(TRACE, "").split("-")
    if len(parts) == 4:
        found["trace"] = parts[1]
    return found


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value of `extra` as JSON can have it: deep or unknown values as text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return str(value)
    if depth < DEPTH_MAX and isinstance(value, dict):
        items = list(value.items())[:ITEMS_MAX]
        return {show(key): plain(one, depth + 1) for key, one in items}
    if depth < DEPTH_MAX and isinstance(value, list | tuple | set | frozenset):
        return [plain(one, depth + 1) for one in list(value)[:ITEMS_MAX]]
    return show(value)


def show(value: object) -> str:
    """Return a value as text, whatever its class does."""
    try:
        return str(value)
    except Exception:
        return f"<{type(value).__name__}>"
