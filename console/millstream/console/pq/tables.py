"""The output of `millstream pq`: queues, messages and leases as lines for people, and as JSON.

The JSON has the names of the HTTP API: states in lower case, tokens as `epoch.version`, payloads in
base64.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from millstream.console.dead_letters import plain
from millstream.console.ledger.lines import facts, print_json, print_lines, table, when
from millstream.providers.priority import (
    ClockReading,
    Done,
    Enqueued,
    Lease,
    LeaseToken,
    MessageView,
    SettingsRow,
    State,
)

__all__ = [
    "clock_lines",
    "depth",
    "depth_lines",
    "lease",
    "leases_lines",
    "message_lines",
    "messages_lines",
    "name",
    "queue_lines",
    "row",
    "settings",
    "show",
    "show_done",
    "values_lines",
]

LETTERS_MAX = 60
"""Characters of a payload in a table."""
DUE = {State.RUNNING: "lease until", State.INVISIBLE: "visible at", State.PENDING: "due"}
Counts = Mapping[State, int]


def show(is_json: bool, value: object, lines: Callable[[], list[str]]) -> None:
    """Print JSON or lines."""
    if is_json:
        print_json(value)
    else:
        print_lines(map(plain, lines()))


# -- as JSON


def name(state: State) -> str:
    return state.name.lower()


def token_text(token: LeaseToken) -> str:
    return f"{token.epoch}.{token.version}"


def row(found: MessageView | Enqueued | Done | ClockReading) -> dict[str, Any]:
    """Return a result with its fields by name."""
    return {field: plainly(value) for field, value in found._asdict().items()}


def plainly(value: object) -> object:
    match value:
        case State():
            return name(value)
        case LeaseToken():
            return token_text(value)
        case bytes():
            return b64encode(value).decode()
        case tuple():
            return dict(value)
        case _:
            return value


def lease(found: Lease) -> dict[str, Any]:
    return {
        "id": found.id,
        "token": token_text(found.token),
        "payload": b64encode(found.payload).decode(),
        "priority": found.priority,
        "metadata": dict(found.metadata),
        "deadline_ms": found.deadline_ms,
        "attempt": found.attempt,
        "attempts_left": found.attempts_left,
    }


def settings(found: SettingsRow) -> dict[str, Any]:
    return {"version": found.version, "settings": asdict(found.settings)}


def depth(counts: Counts) -> dict[str, int]:
    return {name(state): count for state, count in counts.items()}


# -- for people


def queue_lines(found: SettingsRow, counts: Counts) -> list[str]:
    """Return settings and depth of a queue."""
    told = {"settings version": str(found.version)}
    told |= {field: setting_text(value) for field, value in asdict(found.settings).items()}
    return [*facts(told), "", *depth_lines(counts)]


def clock_lines(readings: Sequence[ClockReading]) -> list[str]:
    """Return a table of the shards: the time of each, and the wall clock of its machine."""
    rows = [
        (str(shard), when(one.queue_ms / 1000), when(one.machine_ms / 1000), apart(one))
        for shard, one in enumerate(readings)
    ]
    return table(("SHARD", "QUEUE", "MACHINE", "DIFFERENCE"), rows)


def apart(reading: ClockReading) -> str:
    return f"{(reading.queue_ms - reading.machine_ms) / 1000:+.3f} s"


def setting_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return "; ".join(",".join(shape) for shape in value) or "-"
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def depth_lines(counts: Counts) -> list[str]:
    return facts({name(state): f"{count:,}" for state, count in counts.items()})


def values_lines(values: Mapping[str, Counts]) -> list[str]:
    head = ["VALUE", *(name(state).upper() for state in State)]
    rows = ([value, *(f"{counts[one]:,}" for one in State)] for value, counts in values.items())
    return table(head, rows)


def messages_lines(views: Sequence[MessageView]) -> list[str]:
    """Return a line for each message."""
    head = ("ID", "STATE", "PRIORITY", "ATTEMPTS", "TOKEN", "METADATA", "PAYLOAD")
    return table(head, (message_cells(view) for view in views)) if views else []


def message_cells(view: MessageView) -> list[str]:
    return [
        view.id,
        name(view.state),
        str(view.priority),
        f"{view.attempts - view.attempts_left} of {view.attempts}",
        token_text(view.token) if view.token else "-",
        pairs_text(view.metadata),
        payload_text(view.payload, LETTERS_MAX),
    ]


def leases_lines(leases: Sequence[Lease]) -> list[str]:
    """Return a line for each lease."""
    head = ("ID", "TOKEN", "ATTEMPT", "UNTIL", "METADATA", "PAYLOAD")
    rows = (
        [
            one.id,
            token_text(one.token),
            str(one.attempt),
            when(one.deadline_ms / 1000),
            pairs_text(one.metadata),
            payload_text(one.payload, LETTERS_MAX),
        ]
        for one in leases
    )
    return table(head, rows) if leases else []


def message_lines(view: MessageView) -> list[str]:
    """Return all facts of one message."""
    due = {State.RUNNING: "lease until", State.INVISIBLE: "visible at"}.get(
        view.state, "kept until"
    )
    told = {
        "id": view.id,
        "state": name(view.state),
        "priority": str(view.priority),
        "sequence": str(view.sequence),
        "metadata": pairs_text(view.metadata),
        "version": str(view.version),
        "attempts": f"{view.attempts - view.attempts_left} of {view.attempts}",
        "enqueued": when(view.created_ms / 1000),
        "changed": when(view.changed_ms / 1000),
        due: when(view.due_ms / 1000),
        "worker": view.worker or "-",
        "token": token_text(view.token) if view.token else "-",
        "reason": view.reason or "-",
        "payload": payload_text(view.payload),
    }
    return facts(told)


def show_done(id: str, done: Done) -> str:
    """Return the result of a change."""
    until = f", lease until {when(done.due_ms / 1000)}" if done.state is State.RUNNING else ""
    again = "" if done.is_changed else " (no change)"
    return f"{id}: {name(done.state)}{until}{again}"


def pairs_text(pairs: Iterable[tuple[str, str]]) -> str:
    return " ".join(f"{key}={value}" for key, value in pairs) or "-"


def payload_text(payload: bytes, most: int | None = None) -> str:
    """Return a payload in a line: as text if possible, else in base64."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = f"base64:{b64encode(payload).decode()}"
    return text if most is None or len(text) <= most else f"{text[:most]}… ({len(payload):,} bytes)"
