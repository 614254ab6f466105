"""Simulated consoles: each sends heartbeats of one game, and its players come and go."""

import asyncio
import random
import sys

from games import Presence, Status, encode_heartbeat

from millstream.runtime import Client, MillstreamError, connect

HEARTBEAT_EVERY_S = 0.2
PLAYERS_OF_GAME = 6


class Console:
    """One console with its game."""

    def __init__(self, client: Client, number: int) -> None:
        # a worker has no state, so the key only chooses the gateway
        self._presence = client.grain(Presence, f"gate-{number % 4}")
        self._game = f"game-{number}"
        self._players = [f"player-{number}-{index}" for index in range(PLAYERS_OF_GAME)]
        self._goals = [0, 0]
        self.sent = 0

    async def play(self) -> None:
        """Send heartbeats until the program ends."""
        while True:
            if random.random() < 0.3:
                self._goals[random.randrange(2)] += 1
            players = random.sample(self._players, random.randrange(2, PLAYERS_OF_GAME + 1))
            status = Status(f"{self._goals[0]}:{self._goals[1]}", sorted(players))
            try:
                await self._presence.heartbeat(encode_heartbeat(self._game, status))
                self.sent += 1
            except MillstreamError as error:
                print(f"{self._game} sent no heartbeat: {error}", flush=True)
            await asyncio.sleep(HEARTBEAT_EVERY_S)


async def main(count: int) -> None:
    async with connect(membership="sqlite:data", cluster="presence") as client:
        consoles = [Console(client, number) for number in range(count)]
        playing = asyncio.gather(*(console.play() for console in consoles))
        print(f"{count} games are played", flush=True)
        while not playing.done():
            before = sum(console.sent for console in consoles)
            await asyncio.wait([playing], timeout=5.0)
            rate = (sum(console.sent for console in consoles) - before) / 5.0
            print(f"{rate:.0f} heartbeats per second", flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 10))
