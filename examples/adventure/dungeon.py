"""The grains of an adventure: rooms, monsters and players.

Rooms call nobody. Monsters call rooms, and players call both, so no calls form a cycle.
"""

import random
from dataclasses import dataclass, field

from world import Plan, join, parse

from millstream.runtime import Grain, grain, state, timer

ROAM_EVERY_S = 20.0
HELP = "Commands: look, go DIRECTION, take THING, drop THING, inventory, kill MONSTER, quit."


@dataclass
class Place:
    """The stored content of a room."""

    text: str = ""
    exits: dict[str, str] = field(default_factory=dict)
    things: list[str] = field(default_factory=list)
    monsters: list[str] = field(default_factory=list)
    players: list[str] = field(default_factory=list)


@grain(name="AdventureRoom")
class Room(Grain):
    """One room, and all that is in it."""

    place = state(Place)

    async def build(self, place: Place) -> None:
        """Build the room, unless it is built."""
        if not self.place.value.text:
            self.place.value = place
            await self.place.write()

    async def look(self, player: str) -> str:
        """Return the room as a player sees it."""
        place = self.place.value
        lines = [place.text, f"Ways lead {join(list(place.exits))}."]
        if place.things:
            lines.append(f"You see: {join(place.things)}.")
        if place.monsters:
            lines.append(f"Beware of the {join(place.monsters)}!")
        if others := [name for name in place.players if name != player]:
            lines.append(f"Also here: {join(others)}.")
        return "\n".join(lines)

    async def find_exits(self) -> dict[str, str]:
        """Return the rooms next to this one, by direction."""
        return self.place.value.exits

    async def has_monster(self, monster: str) -> bool:
        """Return whether a monster is here."""
        return monster in self.place.value.monsters

    async def enter(self, name: str, is_monster: bool = False) -> None:
        """Let a player or monster in."""
        self._list(is_monster).append(name)
        await self.place.write()

    async def leave(self, name: str, is_monster: bool = False) -> bool:
        """Let a player or monster out. Returns False if it is not here."""
        return await self._remove(self._list(is_monster), name)

    async def take(self, thing: str) -> bool:
        """Remove a thing. Returns False if it is not here, because another player was faster."""
        return await self._remove(self.place.value.things, thing)

    async def put(self, things: list[str]) -> None:
        """Put things down."""
        self.place.value.things += things
        await self.place.write()

    def _list(self, is_monster: bool) -> list[str]:
        return self.place.value.monsters if is_monster else self.place.value.players

    async def _remove(self, names: list[str], name: str) -> bool:
        if name not in names:
            return False
        names.remove(name)
        await self.place.write()
        return True


@dataclass
class Beast:
    """The stored state of a monster. `room` is empty once it is dead."""

    room: str = ""
    weapon: str = ""


@grain(name="AdventureMonster")
class Monster(Grain):
    """One monster, which roams while it lives."""

    beast = state(Beast)

    async def wake(self, room: str, weapon: str) -> None:
        """Put the monster into its first room, unless it was woken before."""
        if not self.beast.value.weapon:
            self.beast.value = Beast(room, weapon)
            await self.beast.write()

    async def fight(self, things: list[str]) -> bool:
        """Fight a player with these things. Returns whether the monster dies."""
        beast = self.beast.value
        if beast.weapon not in things or not beast.room:
            return False
        await self.grain(Room, beast.room).leave(self.key, True)
        beast.room = ""
        await self.beast.write()
        return True

    @timer(every=ROAM_EVERY_S)
    async def _roam(self) -> None:
        beast = self.beast.value
        if not beast.room:
            return
        room = self.grain(Room, beast.room)
        target = random.choice(list((await room.find_exits()).values()))
        if await room.leave(self.key, True):
            await self.grain(Room, target).enter(self.key, True)
            beast.room = target
            await self.beast.write()


@dataclass
class Hero:
    """The stored state of a player. `room` is empty before the start and after the death."""

    room: str = ""
    things: list[str] = field(default_factory=list)


@grain(name="AdventurePlayer")
class Player(Grain):
    """One player, who enters commands."""

    hero = state(Hero)

    async def start(self, room: str) -> str:
        """Enter the adventure, or continue. Returns the text for the player."""
        if not self.hero.value.room:
            self.hero.value = Hero(room)
            await self.grain(Room, room).enter(self.key)
            await self.hero.write()
        return await self._look()

    async def act(self, line: str) -> str:
        """Carry out a command, and return the text for the player."""
        if not self.hero.value.room:
            return "You are dead."
        command = parse(line)
        match command.verb:
            case "look":
                return await self._look()
            case "go":
                return await self._go(command.noun)
            case "take":
                return await self._take(command.noun)
            case "drop":
                return await self._drop(command.noun)
            case "inventory":
                return f"You carry: {join(self.hero.value.things) or 'nothing'}."
            case "kill":
                return await self._kill(command.noun)
        return HELP

    def _room(self) -> Room:
        return self.grain(Room, self.hero.value.room)

    async def _look(self) -> str:
        return await self._room().look(self.key)

    async def _go(self, direction: str) -> str:
        target = (await self._room().find_exits()).get(direction)
        if target is None:
            return "There is no way."
        await self._room().leave(self.key)
        await self.grain(Room, target).enter(self.key)
        self.hero.value.room = target
        await self.hero.write()
        return await self._look()

    async def _take(self, thing: str) -> str:
        if not await self._room().take(thing):
            return f"There is no {thing or 'such thing'} here."
        self.hero.value.things.append(thing)
        await self.hero.write()
        return f"You have the {thing}."

    async def _drop(self, thing: str) -> str:
        if thing not in self.hero.value.things:
            return f"You have no {thing or 'such thing'}."
        self.hero.value.things.remove(thing)
        await self.hero.write()
        await self._room().put([thing])
        return f"You put the {thing} down."

    async def _kill(self, monster: str) -> str:
        if not await self._room().has_monster(monster):
            return f"There is no {monster or 'monster'} here."
        hero = self.hero.value
        if await self.grain(Monster, monster).fight(hero.things):
            return f"The {monster} is dead."
        await self._room().leave(self.key)
        await self._room().put(hero.things)
        self.hero.value = Hero()
        await self.hero.write()
        return f"You cannot harm the {monster}. It kills you."


@grain(name="AdventureDungeon")
class Dungeon(Grain):
    """Builds rooms and monsters from a map. One grain, with the key `main`."""

    async def open(self, plan: Plan) -> None:
        """Build what is not built yet."""
        for name, room in plan.rooms.items():
            things = [thing for thing, each in plan.things.items() if each.room == name]
            monsters = [monster for monster, each in plan.monsters.items() if each.room == name]
            place = Place(room.text, room.exits, things, monsters)
            await self.grain(Room, name).build(place)
        for name, monster in plan.monsters.items():
            await self.grain(Monster, name).wake(monster.room, monster.weapon)
