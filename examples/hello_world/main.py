"""Hello World: a grain answers a greeting.

Run `python examples/hello_world/main.py`.
"""

import asyncio

from millstream.runtime import Grain, LocalCluster


class Hello(Grain):
    """A grain for each name. It exists from its first call on."""

    def __init__(self) -> None:
        self._greetings = 0

    async def say_hello(self, greeting: str) -> str:
        self._greetings += 1
        return f"{self.key} heard {greeting!r} ({self._greetings}) and says hello!"


async def main() -> None:
    async with LocalCluster(silos=2, grains=[Hello]) as cluster:
        ada = cluster.grain(Hello, "Ada")
        print(await ada.say_hello("Good morning"))
        print(await ada.say_hello("Good evening"))
        print(await cluster.grain(Hello, "Bob").say_hello("Good morning"))


if __name__ == "__main__":
    asyncio.run(main())
