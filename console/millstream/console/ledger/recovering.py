"""`millstream ledger recover`: gives an open ledger its end, with loss only if that is accepted.

Owns: the steps, and what is said. Not: recovery (`providers.ledger.handle`). Invariants: it has
the directories that it writes to itself; nothing is given up without being said first, and asked
for twice.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from millstream.providers.ledger.alone.own import OwnLedgers
from millstream.providers.ledger.bookie.options import BookieOptions
from millstream.providers.ledger.handle.loss import Left, end_behind, what_is_left
from millstream.providers.ledger.handle.options import HandleOptions
from millstream.providers.ledger.protocol.errors import NotEnoughBookies, NotRecoverable
from millstream.providers.ledger.protocol.record import LedgerRecord, LedgerState
from millstream.providers.ledger.serving.home import Home
from millstream.runtime import ConfigError, Env, QueueUnavailable
from millstream.runtime.extending import RealDisk

from .files import places_of
from .lines import print_json, size
from .source import Content, Source, source_of

__all__ = ["recover_ledger"]


async def recover_ledger(arguments: argparse.Namespace) -> int:
    """Do it; 1 if it has no end yet. Raises LookupError, LedgerError, ConfigError."""
    async with source_of(arguments) as source:
        content = await source.content()
        record = content.ledger(arguments.ledger)
        if record.state is LedgerState.CLOSED:
            return say_end(record, arguments.json, "has its end already: it")
        async with home_of(source, content, arguments) as home:
            try:
                record = await home.ledgers.recover(record.ledger)
            except (NotRecoverable, NotEnoughBookies) as error:
                if not arguments.accept_loss:
                    text = "bring its bookies back; if they are lost for good, see --accept-loss"
                    raise NotRecoverable(f"{error}. What can be done: {text}") from error
                return await give_up(home, content, arguments)
    return say_end(record, arguments.json, "lost nothing, and")


@asynccontextmanager
async def home_of(
    source: Source, content: Content, arguments: argparse.Namespace
) -> AsyncIterator[OwnLedgers]:
    """The bookies of this machine, run here. Raises ConfigError: a silo runs one of them."""
    places = places_of(content, arguments.directory)
    wanted = [
        Home(path, content.bookies[bookie].place, content.bookies[bookie].owner)
        for bookie, path in places.items()
        if bookie in content.bookies
    ]
    options = HandleOptions(recover_max_s=arguments.wait)
    home = OwnLedgers(
        wanted, source.store, source.scope, BookieOptions(), Env(), RealDisk(), options
    )
    try:
        try:
            await home.start(0.0)
        except QueueUnavailable as error:
            text = f"{error}. Whoever opens the topic next gives the ledger its end; to do it from "
            raise ConfigError(f"{text}here, stop the silos that run its bookies") from error
        yield home
    finally:
        await home.aclose()


async def give_up(home: OwnLedgers, content: Content, arguments: argparse.Namespace) -> int:
    """End it behind what can be read, if that is wanted."""
    left = await what_is_left(home.context, arguments.ledger)
    if not arguments.yes:
        if arguments.json:
            print_json({"ledger": arguments.ledger, "would_lose": facts_of(left)})
        else:
            print("\n".join(lines_of(left, content)))
        return 1
    record = await end_behind(home.context, left)
    return say_end(record, arguments.json, f"lost {left.lost} entries that were acknowledged, and")


def facts_of(left: Left) -> dict[str, object]:
    """What would be lost, in values."""
    return {
        "last": left.last,
        "bytes": left.length,
        "confirmed": left.confirmed,
        "lost": left.lost,
        "readable_behind": left.behind,
        "away": list(left.away),
    }


def lines_of(left: Left, content: Content) -> list[str]:
    """What would be lost, for a person who decides."""
    lines = [f"ledger {left.record.ledger} would end with entry {left.last} ({size(left.length)})."]
    if left.last < 0:
        lines = [f"ledger {left.record.ledger} would end without an entry: none can be read."]
    if left.lost:
        text = f"entries {left.last + 1} to {left.confirmed} were acknowledged and would be lost"
        lines.append(f"{text}, {left.behind} of them readable, but behind one that is not.")
    lines.append("what is known only to these bookies would be lost, too:")
    for name in left.away:
        record = content.bookies.get(name)
        where = "it has no row" if record is None else record.silo or "no silo runs it"
        lines.append(f"  {name} ({where})")
    return [*lines, "if they are gone for good, say it again with --yes."]


def say_end(record: LedgerRecord, is_json: bool, how: str) -> int:
    """It has its end."""
    if is_json:
        print_json({"ledger": record.ledger, "last": record.last, "bytes": record.length})
    else:
        end = f"ends with entry {record.last} ({size(record.length)})"
        print(f"ledger {record.ledger} {how} {end if record.last >= 0 else 'has no entry'}")
    return 0
