"""Routes for queues: names, settings and depth."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import msgspec
from msgspec import UNSET

from millstream.providers.priority.core.errors import SettingsConflict
from millstream.providers.priority.core.settings import QueueSettings, settings_with
from millstream.providers.priority.http.forms.answers import (
    Answer,
    Depths,
    Queues,
    depth_of,
    queue_of,
)
from millstream.providers.priority.http.forms.bodies import AfterName, DepthQuery, NoFields, Version
from millstream.providers.priority.http.forms.strict import pairs_in

from .route import Asked

__all__ = ["configure", "create", "delete", "depth", "names", "settings", "values"]

CHANGES_MAX = 3
"""Attempts of a change of settings while other programs change them."""


async def names(asked: Asked[NoFields, AfterName]) -> Answer:
    query, found, after = asked.query, list[str](), asked.query.after
    while len(found) <= query.limit and (page := await asked.site.names(query.prefix, after)):
        found += page
        after = page[-1]
    page, is_more = found[: query.limit], len(found) > query.limit
    return Answer(Queues(page, page[-1] if is_more else None))


async def create(asked: Asked[Any, NoFields]) -> Answer:
    settings = settings_with(asked.path["queue"], QueueSettings(), list_given(asked.body))
    return Answer(queue_of(asked.path["queue"], await asked.queue.handle.create(settings)))


def list_given(settings: msgspec.Struct) -> dict[str, Any]:
    """The settings that the body contains."""
    places = msgspec.structs.asdict(settings).items()
    return {name: value for name, value in places if value is not UNSET}


async def settings(asked: Asked[NoFields, NoFields]) -> Answer:
    return Answer(queue_of(asked.path["queue"], await asked.queue.handle.settings()))


async def configure(asked: Asked[Any, Version]) -> Answer:
    """Change the given settings. A request with an old version is refused."""
    handle, version = asked.queue.handle, asked.query.version
    queue = asked.path["queue"]
    for left in reversed(range(CHANGES_MAX)):
        known = await handle.settings()
        wanted = known.version if version is UNSET else version
        with suppress_while(version is UNSET and left > 0):
            settings = settings_with(queue, known.settings, list_given(asked.body))
            row = await handle.configure(settings, version=wanted)
            return Answer(queue_of(queue, row))
    raise AssertionError("the last attempt raises its error")


def suppress_while(is_again: bool) -> AbstractContextManager[None]:
    """Suppress a conflict if the change is tried again."""
    return suppress(SettingsConflict) if is_again else nullcontext()


async def delete(asked: Asked[NoFields, NoFields]) -> Answer:
    await asked.queue.handle.delete()
    return Answer(status=204)


async def depth(asked: Asked[NoFields, DepthQuery]) -> Answer:
    query = asked.query
    value = None if query.value is UNSET else query.value
    wanted = pairs_in("wanted", query.wanted)
    return Answer(depth_of(await asked.queue.handle.depth(wanted=wanted, value=value)))


async def values(asked: Asked[NoFields, NoFields]) -> Answer:
    found = await asked.queue.handle.values()
    return Answer(Depths({value: depth_of(counts) for value, counts in found.items()}))
