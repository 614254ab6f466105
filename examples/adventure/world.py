"""The map of an adventure, and the commands of its players: data and parsing, no grains."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

LINE_CHARS_MAX = 200
DIRECTIONS = ("north", "south", "east", "west", "up", "down")
SHORT = {direction[0]: direction for direction in DIRECTIONS} | {"i": "inventory", "l": "look"}

Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z]{1,20}$")]


@dataclass(frozen=True)
class RoomPlan:
    """A room of the map: its description, and the rooms next to it, by direction."""

    text: str
    exits: dict[str, Name]


@dataclass(frozen=True)
class ThingPlan:
    """A thing of the map: the room where it lies at first, and its kind."""

    room: Name
    kind: str


@dataclass(frozen=True)
class MonsterPlan:
    """A monster of the map: its first room, and the thing that defeats it."""

    room: Name
    weapon: Name


@dataclass(frozen=True)
class Plan:
    """A map: rooms, things and monsters by name, and the room where players start."""

    start: Name
    rooms: dict[Name, RoomPlan]
    things: dict[Name, ThingPlan]
    monsters: dict[Name, MonsterPlan]


@dataclass(frozen=True)
class Command:
    """A verb and the noun behind it, which may be empty."""

    verb: str
    noun: str = ""


def read_plan(path: Path) -> Plan:
    """Read a map. Raises ValueError for a file that is no map, or a room that is missing."""
    try:
        plan = msgspec.json.decode(path.read_bytes(), type=Plan)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} is no map: {error}") from None
    named = [plan.start, *(each.room for each in (*plan.things.values(), *plan.monsters.values()))]
    named += [room for each in plan.rooms.values() for room in each.exits.values()]
    if missing := sorted(set(named) - plan.rooms.keys()):
        raise ValueError(f"{path}: there is no room {missing[0]!r}")
    weapons = {each.weapon for each in plan.monsters.values()}
    if missing := sorted(weapons - plan.things.keys()):
        raise ValueError(f"{path}: there is no thing {missing[0]!r}")
    return plan


def parse(line: str) -> Command:
    """Return the command of a line. `n` stands for `go north`, and `l` for `look`."""
    words = line[:LINE_CHARS_MAX].lower().split()
    words = [word for word in words if word not in ("the", "a", "an", "to")]
    if not words:
        return Command("")
    verb = SHORT.get(words[0], words[0])
    if verb in DIRECTIONS:
        return Command("go", verb)
    noun = words[1] if len(words) > 1 else ""
    return Command(verb, SHORT.get(noun, noun) if verb == "go" else noun)


def join(names: list[str]) -> str:
    """Return names as a list in a sentence."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
