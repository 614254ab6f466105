"""The example Chirper: two users in their terminals, and a silo that is killed."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.real.example_programs import SILO, copied, started

pytestmark = pytest.mark.real
RENEW_SOON = ("VIEWER_EXPIRES_S = 60.0", "VIEWER_EXPIRES_S = 3.0")


async def test_messages_reach_followers_also_after_a_silo_was_killed(tmp_path: Path) -> None:
    folder = copied("chirper", tmp_path, RENEW_SOON)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(started(folder, *SILO, "one"))
        await first.until("is active at")
        ada = await stack.enter_async_context(started(folder, "client.py", "ada"))
        await ada.until("ada is here")
        bob = await stack.enter_async_context(started(folder, "client.py", "bob"))
        await bob.until("bob is here")

        await bob.write("follow ada")
        await ada.until("bob follows you now")
        await ada.write("say good morning")
        await ada.until("sent to 1 followers")
        await bob.until("ada: good morning")
        await bob.write("say")
        await bob.until("that failed: a message has 1 to 280 characters, and this has 0")

        second = await stack.enter_async_context(started(folder, *SILO, "two"))
        await second.until("is active at")
        first.process.kill()
        late = await stack.enter_async_context(started(folder, "client.py", "bob"))
        await late.until("ada: good morning")  # it was stored
        await ada.write("say good evening")
        await ada.until("good evening")
        await late.until("ada: good evening")
        for client in (ada, late):
            await client.write("quit")
            assert await client.ended() == 0
        assert await second.stop() == 0
