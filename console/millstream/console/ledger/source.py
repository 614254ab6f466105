"""Selects the rows of ledgers that the options of a command name.

This module owns `source_of`, and `millstream.providers.ledger.inspection` owns the rows. A missing
store is not created. If a store has several clusters, none is guessed.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.providers.ledger.inspection import Source, scopes_in, source_in
from millstream.runtime import ConfigError, StateStore
from millstream.runtime.extending import load_plugin

__all__ = ["source_of"]


@asynccontextmanager
async def source_of(arguments: argparse.Namespace) -> AsyncIterator[Source]:
    """Open the rows that the options name. Raises ConfigError, StorageError."""
    refuse_missing(arguments.store)
    store = load_plugin("millstream.stores", arguments.store)
    try:
        async with source_in(store, await scope_of(store, arguments)) as source:
            yield source
    finally:
        await store.aclose()


def refuse_missing(store: str) -> None:
    """Raise ConfigError for a missing SQLite store, which would be created otherwise."""
    name, _, argument = store.partition(":")
    if name != "sqlite" or not argument:
        return
    path = Path(argument)
    if not path.is_dir():
        raise ConfigError(f"--store {store}: there is no directory {path.absolute()}")
    if not any(path.glob("state-*.db")):
        text = f"--store {store}: {path.absolute()} has no rows of a state store"
        raise ConfigError(f"{text}: give the store of the silos, or DIRECTORY/rows for open_topics")


async def scope_of(store: StateStore, arguments: argparse.Namespace) -> str:
    """Return the selected cluster.

    Raises ConfigError if the store has no ledgers of that cluster, or if the store has ledgers of
    several clusters and none is selected.
    """
    scopes = [scope async for scope in scopes_in(store)]
    wanted: str | None = arguments.cluster
    if wanted is None and len(scopes) == 1:
        return scopes[0]
    if wanted in scopes:
        assert wanted is not None
        return wanted
    known = ", ".join(scopes) or "none"
    if wanted is None and scopes:
        raise ConfigError(
            f"--store {arguments.store} has several clusters; give --cluster: {known}"
        )
    what = "no ledgers" if wanted is None else f"no ledgers of cluster {wanted!r}"
    raise ConfigError(f"--store {arguments.store} has {what}; its clusters with ledgers: {known}")
