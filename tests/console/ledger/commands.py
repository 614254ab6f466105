"""Helpers that run `millstream ledger` over topics that a program has left."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Coroutine, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from millstream.console.main import main
from millstream.providers.ledger import LedgerTopicOptions, open_topics
from millstream.providers.sqlite import SqliteStateStore


class Said(NamedTuple):
    """The output and the exit code of a command."""

    code: int
    out: str
    error: str

    @property
    def value(self) -> Any:
        """The value of `--json`, which must be one line."""
        assert self.out.count("\n") == 1, self.out
        return json.loads(self.out)


class Shop:
    """A directory with a topic `orders` of two partitions, and a runner of commands for it.

    With `disks` above 1 there are several directories, and the rows are beside them.
    """

    def __init__(self, work: Path, capsys: pytest.CaptureFixture[str], disks: int = 1) -> None:
        self.work = work
        self._capsys = capsys
        self.places = [work / f"disk{n}" for n in range(disks)]
        self.rows = work / "rows" if disks > 1 else self.places[0] / "rows"

    def say(self, *words: object, offline: bool = False) -> Said:
        """Run a command on the rows of this shop."""
        where = [] if offline else ["--store", f"sqlite:{self.rows}"]
        code = main(["ledger", *map(str, words), *where])
        out, error = self._capsys.readouterr()
        assert "Traceback" not in error
        return Said(code, out, error)

    def fill(self, values: Iterable[str] = ("a", "b", "c", "d"), dies: bool = False) -> None:
        """Produce messages with themselves as keys. With `dies`, the program ends without closing,
        and its directories keep their state.
        """
        run(self._fill(list(values), dies))

    async def _fill(self, values: list[str], dies: bool) -> None:
        store = SqliteStateStore(self.rows) if len(self.places) > 1 else None
        async with open_topics(*self.places, store=store) as topics:
            options = LedgerTopicOptions(cursor_flush_s=0.01)
            orders = await topics.topic("orders", 2, options=options)
            billing = await orders.subscribe("billing")
            for number, value in enumerate(values):
                await orders.produce(
                    value, f"value {value}".encode(), producer="p", sequence=number
                )
            await billing.flush()
            if dies:
                for place in [*self.places, self.rows]:
                    shutil.copytree(place, self.work / "left" / place.name)
        if store is not None:
            await store.aclose()
        if dies:
            for place in [*self.places, self.rows]:
                shutil.rmtree(place, ignore_errors=True)
            for place in [*self.places, self.rows]:
                if not place.exists():
                    shutil.copytree(self.work / "left" / place.name, place)
            shutil.rmtree(self.work / "left")


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine on its own event loop."""
    asyncio.run(main)
