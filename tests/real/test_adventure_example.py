"""The example Adventure: two players in terminals, from a script."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.real.example_programs import SILO, Running, copied, started

pytestmark = pytest.mark.real
STILL = ("ROAM_EVERY_S = 20.0", "ROAM_EVERY_S = 100_000.0")
GAME = [
    ("look", "You see: lantern"),
    ("dance", "Commands: look"),
    ("go west", "There is no way"),
    ("take the lantern", "You have the lantern"),
    ("take lantern", "There is no lantern here"),
    ("i", "You carry: lantern"),
    ("n", "An overgrown garden"),
    ("west", "A dry well"),
    ("go d", "Beware of the newt"),
    ("kill keeper", "There is no keeper here"),
    ("kill newt", "The newt is dead"),
    ("look", "A low cavern"),
    ("go to the north", "You see: harpoon"),
    ("take harpoon", "You have the harpoon"),
    ("drop rope", "You have no rope"),
    ("drop lantern", "You put the lantern down"),
    ("look", "You see: lantern"),
]
END = [
    ("inventory", "You carry: harpoon"),
    *[(way, "Ways lead") for way in ("south", "up", "east", "east")],
    ("up", "Beware of the keeper"),
]


async def say(console: Running, lines: list[tuple[str, str]]) -> None:
    for line, answer in lines:
        console.printed = ""
        await console.write(line)
        await console.until(answer)


async def test_two_players_play_also_after_the_silo_was_killed(tmp_path: Path) -> None:
    folder = copied("adventure", tmp_path, STILL)
    async with AsyncExitStack() as stack:

        async def start(*words: str) -> Running:
            return await stack.enter_async_context(started(folder, *words))

        silo = await start(*SILO, "one")
        await silo.until("is active at")
        ann = await start("play.py", "ann")
        await ann.until("You see: lantern")
        await say(ann, GAME)
        await ann.write("quit")
        assert await ann.ended() == 0
        silo.process.kill()
        await silo.process.wait()
        silo = await start(*SILO, "two")
        await silo.until("is active at")
        ann, bob = await start("play.py", "ann"), await start("play.py", "bob")
        await ann.until("You see: lantern")
        await bob.until("A wooden landing")
        assert "lantern" not in bob.printed  # ann has carried it away
        await say(ann, END)
        await say(bob, [("n", "garden"), ("e", "lighthouse"), ("u", "Also here: ann")])
        await say(bob, [("take medal", "You have the medal")])
        await say(bob, [("kill keeper", "It kills you"), ("look", "You are dead")])
        await say(ann, [("kill keeper", "The keeper is dead"), ("look", "You see: medal")])
        await say(ann, [("take medal", "You have the medal")])
        for console in (ann, bob):
            await console.write("quit")
            assert await console.ended() == 0
        assert await silo.stop() == 0


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (('"landing",\n', '"nowhere",\n'), "there is no room 'nowhere'"),
        (('"weapon": "harpoon"', '"weapon": "bow"'), "there is no thing 'bow'"),
        (('"start"', '"begin"'), "is no map: Object missing required field `start`"),
    ],
)
async def test_a_wrong_map_is_refused_with_its_reason(
    change: tuple[str, str], text: str, tmp_path: Path
) -> None:
    folder = copied("adventure", tmp_path, change)
    async with started(folder, "play.py", "ann") as console:
        assert await console.ended() == 1
        assert text in console.printed
