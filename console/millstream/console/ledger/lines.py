"""Values as lines for people: tables, sizes, times, ages and damaged rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from millstream.console.dead_letters import plain
from millstream.providers.ledger.inspection import Content

__all__ = ["age", "damage_lines", "facts", "print_json", "print_lines", "size", "table", "when"]

DAMAGED_SHOWN_MAX = 20
"""The number of damaged rows whose names are printed."""
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
AGES = ((86_400, "d"), (3_600, "h"), (60, "min"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return columns with the necessary widths, and numbers aligned to the right."""
    cells = [list(head), *(list(map(plain, row)) for row in rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(head))]
    numeric = [all(is_number(row[at]) for row in cells[1:]) for at in range(len(head))]
    lines = []
    for row in cells:
        parts = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(parts).rstrip())
    return lines


def is_number(text: str) -> bool:
    return text[:1].isdigit() or text == "-"


def facts(rows: Mapping[str, str]) -> list[str]:
    """Return a name and a value for each line."""
    width = max(map(len, rows)) + 2
    return [plain(f"{name + ':':<{width}}{value}") for name, value in rows.items()]


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)


def print_json(value: object) -> None:
    """Print one line of JSON and nothing else."""
    print(json.dumps(value, ensure_ascii=False))


def size(count: int) -> str:
    """Return bytes in a readable unit."""
    value, unit = float(count), UNITS[0]
    for unit in UNITS:
        if value < 1024 or unit == UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def when(wall_s: float) -> str:
    """Return a time, to the second."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if wall_s else "-"


def age(seconds: float) -> str:
    """Return an age, roughly."""
    for unit_s, name in AGES:
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {name}"
    return f"{max(0.0, seconds):.0f} s"


def damage_lines(content: Content) -> list[str]:
    """Return the number of damaged rows, which are left out of the output, and some of their names.

    The log has the fault of each row. Returns [] if no row is damaged.
    """
    if not content.damaged:
        return []
    names, count = list(content.damaged), len(content.damaged)
    shown = plain(", ".join(names[:DAMAGED_SHOWN_MAX]))
    more = f" and {count - DAMAGED_SHOWN_MAX:,} more" if count > DAMAGED_SHOWN_MAX else ""
    return ["", f"damaged rows, not listed: {count:,} ({shown}{more})"]
