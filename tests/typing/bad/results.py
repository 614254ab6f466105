"""Mistakes with streamed results that type checkers find."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from millstream.runtime import Client, Grain, always_interleave, one_way, read_only, shielded


class Sheet(Grain):
    async def rows(self, first: int) -> AsyncGenerator[str, None]:
        yield first  # E

    @one_way  # E
    async def told(self) -> AsyncGenerator[int, None]:
        yield 1

    @shielded  # E
    async def kept(self) -> AsyncGenerator[int, None]:
        yield 1

    @read_only  # E
    async def seen(self) -> AsyncGenerator[int, None]:
        yield 1

    @always_interleave  # E
    async def mixed(self) -> AsyncGenerator[int, None]:
        yield 1


async def read(client: Client) -> None:
    sheet = client.grain(Sheet, "prices")
    await sheet.rows(1)  # E
    for row in sheet.rows(1):  # E
        print(row)
    async for text in sheet.rows("1"):  # E
        print(text)
    async for number in sheet.rows(1):
        print(number.real)  # E
