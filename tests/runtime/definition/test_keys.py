"""Keys of grains: any text that can be sent is a key, and nothing else is."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.runtime import Grain, LocalCluster, Runtime, Silo
from millstream.runtime.extending import check_text


class Shelf(Grain):
    async def own_key(self) -> str:
        return self.key

    async def key_of(self, key: str) -> str:
        return await self.grain(Shelf, key).own_key()

    async def open_broken(self) -> str:
        return await self.grain(Shelf, "\ud800").own_key()


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize("key", ["\ud800", "a\udfffb", "ü\udc80"])
async def test_a_key_with_a_lone_surrogate_is_refused_where_it_is_given(key: str) -> None:
    async with LocalCluster(silos=2, grains=[Shelf]) as cluster:
        runtimes: list[Runtime] = [cluster, cluster.client, *cluster.silos]
        for runtime in runtimes:
            with pytest.raises(TypeError, match=r"the key of a grain.*surrogate.*errors='replace'"):
                runtime.grain(Shelf, key)
        with pytest.raises(TypeError, match="the key of a grain"):
            await cluster.grain(Shelf, "a").open_broken()


@pytest.mark.parametrize("key", [5, None, b"x", Colour.RED])
async def test_a_key_that_is_no_plain_text_says_what_to_write(key: Any) -> None:
    async with Silo(grains=[Shelf]) as silo:
        with pytest.raises(TypeError, match=r"the key of a grain must be a str, not .*str\("):
            silo.grain(Shelf, key)


@pytest.mark.parametrize("key", ["", "\x00", "\x1f", "\x1b", "/", "ü😀", "\u2028", "x" * 100_000])
async def test_text_that_can_be_sent_is_a_key_everywhere(key: str) -> None:
    async with LocalCluster(silos=2, grains=[Shelf]) as cluster:
        runtimes: list[Runtime] = [cluster, *cluster.silos]
        for runtime in runtimes:
            assert await runtime.grain(Shelf, key).own_key() == key
        assert await cluster.grain(Shelf, "a").key_of(key) == key


@given(st.text(st.characters(codec=None)))
def test_just_what_utf_8_can_carry_is_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        with pytest.raises(TypeError, match=f"position {error.start}"):
            check_text("it", text)
    else:
        check_text("it", text)


def test_no_surrogate_is_printable_so_printable_keys_need_no_closer_look() -> None:
    assert not any(chr(code).isprintable() for code in range(0xD800, 0xE000))
