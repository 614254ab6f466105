"""The console of a player: `python play.py NAME`."""

import asyncio
import sys
from pathlib import Path

from dungeon import Dungeon, Player
from world import Plan, read_plan

from millstream.runtime import Client, MillstreamError, connect


async def play(client: Client, plan: Plan, name: str) -> None:
    """Send each line to the player's grain, and print the answers, until `quit`."""
    await client.grain(Dungeon, "main").open(plan)
    player = client.grain(Player, name)
    print(await player.start(plan.start), flush=True)
    while True:
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line or line.strip() == "quit":
            return
        try:
            print(await player.act(line), flush=True)
        except MillstreamError as error:
            print(f"Try again: {error}", flush=True)


async def main(name: str) -> None:
    plan = read_plan(Path(__file__).with_name("map.json"))
    async with connect(membership="sqlite:data", cluster="adventure") as client:
        await play(client, plan, name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else "guest"))
