"""Six matches. The reporter of each match publishes its goals."""

import asyncio
import random
from itertools import count
from uuid import uuid4

from matches import GOALS, Goal

from millstream.runtime import Client, MillstreamError, connect

MATCHES = ["ARG-BRA", "CHN-IND", "FRA-GER", "JPN-KOR", "KEN-NGA", "USA-MEX"]
GOALS_PER_MATCH = 30
GOAL_EVERY_S = 1.0


async def report(client: Client, match: str) -> None:
    """Publish the goals of one match."""
    for _ in range(GOALS_PER_MATCH):
        await asyncio.sleep(random.uniform(0.5, 1.5) * GOAL_EVERY_S)
        await publish(client, match, Goal(uuid4().hex, random.choice(match.split("-"))))


async def publish(client: Client, match: str, goal: Goal) -> None:
    """Publish one goal. After an error, publish it again: it may not have been accepted."""
    for attempt in count(1):
        try:
            await client.stream(GOALS, match).publish(goal)
            return
        except MillstreamError as error:
            if attempt == 100:
                print(f"{match}: still trying after {attempt} attempts: {error}", flush=True)
            await asyncio.sleep(0.1)


async def main() -> None:
    async with connect(membership="sqlite:data", cluster="scores") as client:
        print("the matches begin", flush=True)
        await asyncio.gather(*(report(client, match) for match in MATCHES))
    print(len(MATCHES) * GOALS_PER_MATCH, "goals reported")


if __name__ == "__main__":
    asyncio.run(main())
