"""Bookies of one process, called as handles call them."""

from __future__ import annotations

import asyncio

import pytest
from tests.providers.ledger.bookie.kit import entry, new_disk, on_loop, opened

from millstream.providers.ledger.bookie.bookie import Bookie
from millstream.providers.ledger.bookie.local import LocalBookies
from millstream.providers.ledger.handle.bookies import Bookies
from millstream.providers.ledger.protocol.errors import BookieAway
from millstream.providers.ledger.protocol.found import Found, Missing


def test_calls_go_to_the_bookie_of_that_name() -> None:
    async def main() -> None:
        names: tuple[str, str] = ("a" * 32, "b" * 32)
        found = [await opened(new_disk(name), fresh=name) for name in names]
        here: dict[str, Bookie] = dict(zip(names, found, strict=True))
        bookies: Bookies = LocalBookies(here)
        one, other = names
        await bookies.add(one, 0, [entry(1, 0), entry(1, 1)])
        assert await bookies.read(one, 1, 1, 9, 99, 0) == Found((entry(1, 1),), Missing.ABSENT, 0)
        assert await bookies.read(other, 1, 1, 9, 99, 0) == Found((), Missing.ABSENT, -1)
        assert await bookies.fence(one, 1, 3) == 0
        watch = asyncio.ensure_future(bookies.watch(one, 1, 0, 9.0))
        await asyncio.sleep(0)
        await bookies.tell(one, 1, 3, 1)
        assert await watch == 1
        assert bookies.writable().keys() == set(names) and min(bookies.writable().values()) > 1
        await here.pop(one).aclose()
        with pytest.raises(BookieAway, match="not in this process"):
            await bookies.add(one, 3, [entry(1, 2)])
        await found[1].aclose()
        with pytest.raises(BookieAway, match="closing"):
            await bookies.fence(other, 1, 1)
        assert bookies.writable() == {}

    on_loop(main)


def test_bookies_may_come() -> None:
    here = dict[str, Bookie]()
    assert LocalBookies(here).writable() == {}
