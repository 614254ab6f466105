"""Consoles send heartbeats of games; grains keep the games and the players."""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from millstream.runtime import Grain, Observer, ObserverSet, grain, stateless_worker

WATCHER_EXPIRES_S = 60.0
PLAYERS_MAX = 1_000


@dataclass(frozen=True)
class Status:
    """The state of a game: its score, and the players that are in it."""

    score: str
    players: Annotated[list[str], msgspec.Meta(max_length=PLAYERS_MAX)]


@dataclass(frozen=True)
class Heartbeat:
    """The message that a console sends about its game."""

    game: str
    status: Status


class Watcher(Observer):
    """A program that shows a game."""

    async def changed(self, game: str, status: Status) -> None:
        """Show the new status of a game."""


@grain(placement=stateless_worker(max_local=4))
class Presence(Grain):
    """Decodes heartbeats in the silo where they arrive, and passes them on to their games."""

    async def heartbeat(self, data: bytes) -> None:
        heartbeat = decode_heartbeat(data)
        await self.grain(Game, heartbeat.game).update(heartbeat.status)


class Game(Grain):
    """One game. It tells the players where they are, and the watchers what has changed."""

    def __init__(self) -> None:
        self._status = Status("", [])
        self._watchers = ObserverSet(self, Watcher, expires_s=WATCHER_EXPIRES_S)

    async def update(self, status: Status) -> None:
        before, self._status = self._status, status
        for name in sorted(set(status.players) - set(before.players)):
            await self.grain(Player, name).join(self.key)
        for name in sorted(set(before.players) - set(status.players)):
            await self.grain(Player, name).leave(self.key)
        if status != before:
            self._watchers.notify(Watcher.changed, self.key, status)

    async def watch(self, watcher: Watcher) -> Status:
        """Tell a program about the game from now on. Repeat the call in time."""
        self._watchers.add(watcher)
        return self._status


class Player(Grain):
    """One player, who is in at most one game."""

    def __init__(self) -> None:
        self._game = ""

    async def join(self, game: str) -> None:
        self._game = game

    async def leave(self, game: str) -> None:
        if self._game == game:  # the player may have joined another game before
            self._game = ""

    async def current_game(self) -> str:
        """Return the game that the player is in, or an empty text."""
        return self._game


def encode_heartbeat(game: str, status: Status) -> bytes:
    """Return the bytes that a console sends."""
    return msgspec.json.encode(Heartbeat(game, status))


def decode_heartbeat(data: bytes) -> Heartbeat:
    """Return the content of a heartbeat. Raises ValueError for bytes of another form."""
    try:
        return msgspec.json.decode(data, type=Heartbeat)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(f"the bytes are no heartbeat: {error}") from None
