"""Streamed results as a user writes them: grains, contracts, references and marks."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import assert_type

from millstream.runtime import (
    CallError,
    Client,
    Contract,
    Grain,
    ResultsAborted,
    Role,
    grain,
    open_to,
    timeout,
    with_options,
)


class Sheet(Grain):
    async def rows(self, first: int, *, last: int = 9) -> AsyncGenerator[str, None]:
        for number in range(first, last):
            yield str(number)

    @timeout(5.0)
    @open_to(Role.OPERATOR)
    async def sums(self) -> AsyncGenerator[int, None]:
        async for row in self.grain(Sheet, self.key).rows(1):
            assert_type(row, str)
            yield int(row)


@grain(name="Sheet")
class SheetCalls(Contract):
    def rows(self, first: int, *, last: int = 9) -> AsyncGenerator[str, None]:
        raise NotImplementedError


async def read(client: Client) -> int:
    sheet = client.grain(Sheet, "prices")
    assert_type(sheet.rows(1), AsyncGenerator[str, None])
    assert_type([row async for row in sheet.rows(1, last=3)], list[str])
    assert_type([row async for row in client.grain(SheetCalls, "prices").rows(1)], list[str])
    async with aclosing(with_options(sheet, timeout=2.0).sums()) as sums:
        async for number in sums:
            assert_type(number, int)
    try:
        return await anext(sheet.sums())
    except ResultsAborted as error:
        failed: CallError = error
        print(failed)
    return 0
